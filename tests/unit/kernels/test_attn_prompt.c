/* Attention of a prompt's rows (ops.h attn_seq: prompt). In fast mode, for heads of 64 and 128, a GPU computes them on tensor cores: near a double
 * reference, and with the same bits however the prompt is cut into batches, whoever shares the batch and with NaN where a row may
 * not look; rows that were generated, and trees, have the bits that they have without prompts beside them. Everywhere else the word changes nothing.
 *
 * The bounds, of the largest output: 4e-3 where q, k and v are bf16 as they stand, for the rounding of the weights, 2^-9 of each; else every factor is off by as much, and a score of
 * 64 or 128 products by some 2^-9 of itself: 1e-2.
 */
#include "paged.h"

static const struct shape one_group = {3, 1, 64}, no_group = {2, 2, 128}, eight = {8, 1, 64}, wide = {6, 2, 128};

static void attend(struct dev *d, real *out, struct kv_pool *p, const struct sequence *s, const struct shape *sh, int from, int n, bool prompt)
{
	int w = sh->nh * sh->hd;
	struct attn_seq seq = {.pages = s->pages, .n_past = from, .n_rows = n, .prompt = prompt};
	assert_int_equal(d->ops->attn(d, out, w, s->q + from * w, w, p, 0, &seq, 1, sh->nh, (real)(1 / sqrt(sh->hd))), 0);
}

/* Rows [from, T) in chunks of `chunk`, into out [T - from] */
static void in_chunks(struct dev *d, real *out, struct kv_pool *p, const struct sequence *s, const struct shape *sh, int from, int chunk)
{
	for (int t = from; t < s->T; t += chunk)
		attend(d, out + (t - from) * sh->nh * sh->hd, p, s, sh, t, chunk < s->T - t ? chunk : s->T - t, true);
}

static void to_bf16(real *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = (real)bf16_to_f32(f32_to_bf16((float)x[i]));
}

/* Rows [from, T) against the reference, with inputs that bf16 holds or with any */
static void near(struct dev *d, const struct shape *sh, int from, int T, enum dtype type, bool rounded)
{
	struct kv_pool p;
	struct sequence s;
	size_t n = (size_t)((T - from) * sh->nh * sh->hd);
	pool_new_of(d, &p, sh, type);
	sequence_new(&s, sh, T, 3, 7);
	if (rounded) {
		to_bf16(s.q, (size_t)(T * sh->nh * sh->hd));
		to_bf16(s.k, (size_t)(T * sh->nkv * sh->hd));
		to_bf16(s.v, (size_t)(T * sh->nkv * sh->hd));
	}
	sequence_write(d, &p, 0, &s);
	double *ref = kt_doubles(n), seen = 0, top = 0.01;
	real *out = kt_reals(n, 1);
	reference(ref, &s, from, T - from, sh, type, (double)(real)(1 / sqrt(sh->hd)));
	in_chunks(d, out, &p, &s, sh, from, T);
	for (size_t i = 0; i < n; i++)
		seen = fmax(seen, fabs((double)out[i] - ref[i])), top = fmax(top, fabs(ref[i]));
	print_message("heads %d/%d of %d, rows %d..%d, %s, %s: %.2g\n", sh->nh, sh->nkv, sh->hd, from, T - 1, type == DT_BF16 ? "bf16" : "f32", rounded ? "rounded" : "any", seen / top);
	kt_close(out, ref, n, rounded ? 4e-3 : 1e-2);
	kt_free(ref);
	kt_free(out);
	sequence_done(&s);
	d->ops->kv_free(d, &p);
}

static void against_reference(void **state)
{
	static const struct { const struct shape *sh; int from, T; } cases[] = {{&one_group, 0, 150}, {&one_group, 0, 1}, {&no_group, 0, 65}, {&no_group, 63, 131}, {&eight, 5, 97},
										{&wide, 37, 64}, {&wide, 0, 33}, {&one_group, 1020, 1031}, {&eight, 2100, 2113}};
	struct dev *d = kt_dev(state, 1);
	kt_seed(31);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int type = DT_F32; type <= DT_BF16; type++)
			for (int rounded = 0; rounded < 2; rounded++)
				near(d, cases[i].sh, cases[i].from, cases[i].T, (enum dtype)type, rounded);
	static const struct shape many = {70, 1, 64}; /* more heads than a tile takes */
	near(d, &many, 61, 68, DT_BF16, true);
	dev_free(d);
}

/* The same bits for any chunks: within pages, over tiles and splits, one row at a time */
static void any_chunks(void **state)
{
	static const struct { const struct shape *sh; int from, T; } cases[] = {{&one_group, 0, 150}, {&no_group, 0, 140}, {&eight, 0, 90}, {&one_group, 1010, 1050}, {&wide, 2040, 2060}};
	static const int chunks[] = {1, 7, 16, 31, 33, 64, 100};
	struct dev *d = kt_dev(state, 1);
	kt_seed(32);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int type = DT_F32; type <= DT_BF16; type++) {
			const struct shape *sh = cases[i].sh;
			size_t n = (size_t)((cases[i].T - cases[i].from) * sh->nh * sh->hd);
			struct kv_pool p;
			struct sequence s;
			pool_new_of(d, &p, sh, (enum dtype)type);
			sequence_new(&s, sh, cases[i].T, 3, 7);
			sequence_write(d, &p, 0, &s);
			real *whole = kt_reals(n, 1), *out = kt_reals(n, 1), *plain = kt_reals(n, 1);
			in_chunks(d, whole, &p, &s, sh, cases[i].from, s.T);
			for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
				memset(out, 0xff, n * sizeof *out);
				in_chunks(d, out, &p, &s, sh, cases[i].from, chunks[c]);
				kt_same_bits(out, whole, n);
			}
			attend(d, plain, &p, &s, sh, cases[i].from, s.T - cases[i].from, false);
			assert_memory_not_equal(plain, whole, n * sizeof *plain); /* it did go another way */
			kt_free(whole);
			kt_free(out);
			kt_free(plain);
			sequence_done(&s);
			d->ops->kv_free(d, &p);
		}
	dev_free(d);
}

/* Two prompts, one of them with its generated rows behind, a decoding row and a tree in one batch: each as alone */
static void together(void **state)
{
	enum { A = 120, B = 77, NODES = 4 };
	static const int16_t parent[NODES] = {-1, 0, 0, 1};
	struct dev *d = kt_dev(state, 1);
	kt_seed(33);
	for (int type = DT_F32; type <= DT_BF16; type++) {
		const struct shape *sh = &wide;
		int w = sh->nh * sh->hd;
		struct kv_pool p;
		struct sequence a, b;
		pool_new_of(d, &p, sh, (enum dtype)type);
		sequence_new(&a, sh, A, 0, 1);
		sequence_new(&b, sh, B, 40, 1);
		sequence_write(d, &p, 0, &a);
		sequence_write(d, &p, 0, &b);
		struct attn_seq seqs[] = {
			{.pages = a.pages, .n_past = 116, .n_rows = NODES, .parent = parent, .tree0 = 116},
			{.pages = b.pages, .n_past = 10, .n_rows = 57, .prompt = true},
			{.pages = a.pages, .n_past = 90, .n_rows = 1},
			{.pages = a.pages, .n_past = 30, .n_rows = 41, .prompt = true},
			{.pages = a.pages, .n_past = 71, .n_rows = 19},
		};
		enum { SEQS = sizeof seqs / sizeof *seqs, ROWS = NODES + 57 + 1 + 41 + 19 };
		real *q = kt_reals((size_t)(ROWS * w), 1), *out = kt_reals((size_t)(ROWS * w), 1), *alone = kt_reals((size_t)(ROWS * w), 1);
		for (int i = 0, row = 0; i < SEQS; row += seqs[i++].n_rows) {
			seqs[i].row0 = row;
			memcpy(q + row * w, (i == 1 ? b.q : a.q) + seqs[i].n_past * w, (size_t)(seqs[i].n_rows * w) * sizeof *q);
		}
		for (int i = 0; i < SEQS; i++)
			assert_int_equal(d->ops->attn(d, alone, w, q, w, &p, 0, &seqs[i], 1, sh->nh, (real)0.1), 0);
		assert_int_equal(d->ops->attn(d, out, w, q, w, &p, 0, seqs, SEQS, sh->nh, (real)0.1), 0);
		kt_same_bits(out, alone, (size_t)(ROWS * w));
		kt_free(q);
		kt_free(out);
		kt_free(alone);
		sequence_done(&a);
		sequence_done(&b);
		d->ops->kv_free(d, &p);
	}
	dev_free(d);
}

/* NaN and infinities at a position reach the rows from it on, all of them, and no row before it, in its tile or not; nor what lies behind the sequence's end */
static void not_finite(void **state)
{
	enum { T = 140, END = 160 };
	static const double bad[] = {NAN, INFINITY, -INFINITY};
	static const int at[] = {0, 20, 63, 64, 127, 139, 140}; /* a tile begins at 126 */
	struct dev *d = kt_dev(state, 1);
	kt_seed(34);
	for (int type = DT_F32; type <= DT_BF16; type++)
		for (int side = 0; side < 2; side++)
			for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
				const struct shape *sh = &one_group;
				int w = sh->nh * sh->hd, from = at[i] < T ? at[i] : T, row = sh->nkv * sh->hd;
				struct kv_pool clean, dirty;
				struct sequence s, behind;
				pool_new_of(d, &clean, sh, (enum dtype)type);
				pool_new_of(d, &dirty, sh, (enum dtype)type);
				sequence_new(&behind, sh, END, 5, 3);
				for (int j = 0; j < END * row; j++)
					behind.k[j] = behind.v[j] = (real)NAN;
				sequence_write(d, &dirty, 0, &behind);
				sequence_new(&s, sh, T, 5, 3);
				sequence_write(d, &clean, 0, &s);
				if (at[i] < T)
					(side ? s.v : s.k)[at[i] * row + 9] = (real)bad[side ? i % 3 : 0];
				sequence_write(d, &dirty, 0, &s);
				real *a = kt_reals((size_t)(T * w), 1), *b = kt_reals((size_t)(T * w), 1);
				in_chunks(d, a, &clean, &s, sh, 0, T);
				for (int chunk = 30; chunk <= T; chunk += 110) {
					in_chunks(d, b, &dirty, &s, sh, 0, chunk);
					kt_same_bits(a, b, (size_t)(from * w));
					for (int t = from; t < T; t++)
						for (int h = 0; h < sh->nh; h++) {
							bool finite = isfinite(b[t * w + h * sh->hd + 9]);
							assert_false(finite);
						}
				}
				kt_free(a);
				kt_free(b);
				sequence_done(&s);
				sequence_done(&behind);
				d->ops->kv_free(d, &clean);
				d->ops->kv_free(d, &dirty);
			}
	dev_free(d);
}

/* Where nobody goes another way the word changes no bit: strict, the CPU, heads of other widths. */
static void no_difference(void **state)
{
	static const struct shape shapes[] = {{4, 2, 20}, {2, 1, 64}};
	struct dev *d = kt_dev(state, 2);
	bool fast = ((const struct kt_path *)*state)->math == MATH_FAST;
	kt_seed(35);
	for (size_t i = 0; i < (fast ? 1 : 2); i++) {
		enum { T = 70 };
		const struct shape *sh = &shapes[i];
		size_t n = (size_t)(T * sh->nh * sh->hd);
		struct kv_pool p;
		struct sequence s;
		pool_new_of(d, &p, sh, DT_BF16);
		sequence_new(&s, sh, T, 0, 1);
		sequence_write(d, &p, 0, &s);
		real *a = kt_reals(n, 1), *b = kt_reals(n, 1);
		attend(d, a, &p, &s, sh, 0, T, true);
		attend(d, b, &p, &s, sh, 0, T, false);
		kt_same_bits(a, b, n);
		kt_free(a);
		kt_free(b);
		sequence_done(&s);
		d->ops->kv_free(d, &p);
	}
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_FAST(against_reference), KT_FAST(any_chunks), KT_FAST(together), KT_FAST(not_finite), KT_FAST(no_difference), KT_TESTS(no_difference),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
