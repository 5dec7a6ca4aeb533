/* Paged attention: right against a double reference for bf16 and f32 pools, odd
 * head widths and group sizes; and the law of order: the same bits however a
 * sequence is chunked, whatever other sequences share the batch, wherever its
 * pages lie, for any number of threads, and with NaN in memory it may not see.
 */
#include "paged.h"

static const struct shape shapes[] = {{9, 3, 64}, {4, 4, 20}, {6, 1, 8}, {2, 2, 128}};

static void against_reference(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(5);
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int type = DT_F32; type <= DT_BF16; type++) {
			const struct shape *sh = &shapes[i];
			int T = sh->hd == 8 ? 600 : 150, w = sh->nh * sh->hd, ld = w + 1; /* a GPU cuts long sequences at 256 positions */
			struct kv_pool p;
			struct sequence s;
			pool_new_of(d, &p, sh, (enum dtype)type);
			sequence_new(&s, sh, T, 3, 7);
			sequence_write(d, &p, 1, &s);
			double *ref = kt_doubles((size_t)(T * w)), scale = 1 / sqrt(sh->hd);
			real *out = kt_reals((size_t)(T * ld), 1), *flat = kt_reals((size_t)(T * w), 1);
			reference(ref, &s, 0, T, sh, (enum dtype)type, (double)(real)scale);
			struct attn_seq seq = {.pages = s.pages, .n_rows = T};
			assert_int_equal(d->ops->attn(d, out, ld, s.q, w, &p, 1, &seq, 1, sh->nh, (real)scale), 0);
			for (int t = 0; t < T; t++)
				memcpy(flat + t * w, out + t * ld, (size_t)w * sizeof *out);
			kt_close(flat, ref, (size_t)(T * w), KT_TOL(3e-6));
			kt_free(ref);
			kt_free(out);
			kt_free(flat);
			sequence_done(&s);
			d->ops->kv_free(d, &p);
		}
	dev_free(d);
}

/* rows [past, past+n) of s alone */
static void run_chunk(struct dev *d, real *out, struct kv_pool *p, const struct sequence *s, const struct shape *sh, int past, int n)
{
	int w = sh->nh * sh->hd;
	struct attn_seq seq = {.pages = s->pages, .n_past = past, .n_rows = n};
	assert_int_equal(d->ops->attn(d, out + past * w, w, s->q + past * w, w, p, 0, &seq, 1, sh->nh, (real)0.125), 0);
}

static void law_of_order(void **state)
{
	enum { T = 300, OTHER = 70 };
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(6);
	for (int type = DT_F32; type <= DT_BF16; type++) {
		const struct shape *sh = &shapes[0];
		int w = sh->nh * sh->hd;
		struct kv_pool p;
		struct sequence s, o;
		pool_new_of(d, &p, sh, (enum dtype)type);
		sequence_new(&s, sh, T, 0, 1);   /* pages 0..9 */
		sequence_new(&o, sh, OTHER, 40, 1);
		sequence_write(d, &p, 0, &s);
		sequence_write(d, &p, 0, &o);
		real *one = kt_reals((size_t)(T * w), 1), *out = kt_reals((size_t)((T + OTHER) * w), 1), *q = kt_reals((size_t)((T + OTHER) * w), 1);
		dev_set_threads(d, 1);
		for (int t = 0; t < T; t++)
			run_chunk(d, one, &p, &s, sh, t, 1);
		static const int chunks[] = {2, 5, 17, 200};
		for (int threads = 1; threads <= kt_threads(d); threads++) {
			dev_set_threads(d, threads);
			for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
				for (int t = 0; t < T; t += chunks[c])
					run_chunk(d, out, &p, &s, sh, t, chunks[c] < T - t ? chunks[c] : T - t);
				kt_same_bits(out, one, (size_t)(T * w));
			}
			/* decode row 199, prefill chunk 100..149, and a neighbour, in one batch */
			memcpy(q, o.q, (size_t)(OTHER * w) * sizeof *q);
			memcpy(q + OTHER * w, s.q + 199 * w, (size_t)w * sizeof *q);
			memcpy(q + (OTHER + 1) * w, s.q + 100 * w, (size_t)(50 * w) * sizeof *q);
			struct attn_seq seqs[] = {
				{.pages = s.pages, .n_past = 199, .row0 = OTHER, .n_rows = 1},
				{.pages = o.pages, .n_past = 0, .row0 = 0, .n_rows = OTHER},
				{.pages = s.pages, .n_past = 100, .row0 = OTHER + 1, .n_rows = 50},
			};
			assert_int_equal(d->ops->attn(d, out, w, q, w, &p, 0, seqs, 3, sh->nh, (real)0.125), 0);
			kt_same_bits(out + OTHER * w, one + 199 * w, (size_t)w);
			kt_same_bits(out + (OTHER + 1) * w, one + 100 * w, (size_t)(50 * w));
		}
		kt_free(one);
		kt_free(out);
		kt_free(q);
		sequence_done(&s);
		sequence_done(&o);
		d->ops->kv_free(d, &p);
	}
	dev_free(d);
}

/* What lies behind a row's last key, or in another sequence's page, is never read into it */
static void unseen_nan(void **state)
{
	enum { T = 45 };
	struct dev *d = kt_dev(state, 2);
	kt_seed(7);
	for (int type = DT_F32; type <= DT_BF16; type++) {
		const struct shape *sh = &shapes[0];
		int w = sh->nh * sh->hd;
		struct kv_pool clean, dirty;
		struct sequence s, bad;
		pool_new_of(d, &clean, sh, (enum dtype)type);
		pool_new_of(d, &dirty, sh, (enum dtype)type);
		sequence_new(&s, sh, T, 5, 3);
		sequence_new(&bad, sh, 64, 5, 3);
		for (int i = 0; i < 64 * sh->nkv * sh->hd; i++)
			bad.k[i] = bad.v[i] = (real)NAN;
		sequence_write(d, &dirty, 0, &bad);
		sequence_write(d, &clean, 0, &s);
		sequence_write(d, &dirty, 0, &s);
		real *a = kt_reals((size_t)(T * w), 1), *b = kt_reals((size_t)(T * w), 1);
		for (int t = 0; t < T; t += 9) {
			run_chunk(d, a, &clean, &s, sh, t, 9);
			run_chunk(d, b, &dirty, &s, sh, t, 9);
		}
		kt_same_bits(a, b, (size_t)(T * w));
		kt_free(a);
		kt_free(b);
		sequence_done(&s);
		sequence_done(&bad);
		d->ops->kv_free(d, &clean);
		d->ops->kv_free(d, &dirty);
	}
	dev_free(d);
}

/* kv_copy moves whole positions of every layer, wherever they come to lie */
static void copy_positions(void **state)
{
	enum { T = 40 };
	struct dev *d = kt_dev(state, 1);
	kt_seed(8);
	for (int type = DT_F32; type <= DT_BF16; type++) {
		const struct shape *sh = &shapes[1];
		int w = sh->nh * sh->hd;
		struct kv_pool p;
		struct sequence s;
		uint32_t to[T], from[T], moved[2] = {50, 61};
		pool_new_of(d, &p, sh, (enum dtype)type);
		sequence_new(&s, sh, T, 0, 1);
		sequence_write(d, &p, 0, &s);
		sequence_write(d, &p, 1, &s);
		for (uint32_t t = 0; t < T; t++) {
			from[t] = s.pages[t / TOK] * TOK + t % TOK;
			to[t] = moved[t / TOK] * TOK + t % TOK;
		}
		assert_int_equal(d->ops->kv_copy(d, &p, to, from, T), 0);
		real *a = kt_reals((size_t)(T * w), 1), *b = kt_reals((size_t)(T * w), 1);
		for (int layer = 0; layer < LAYERS; layer++) {
			struct attn_seq x = {.pages = s.pages, .n_rows = T}, y = {.pages = moved, .n_rows = T};
			assert_int_equal(d->ops->attn(d, a, w, s.q, w, &p, layer, &x, 1, sh->nh, 1), 0);
			assert_int_equal(d->ops->attn(d, b, w, s.q, w, &p, layer, &y, 1, sh->nh, 1), 0);
			kt_same_bits(a, b, (size_t)(T * w));
		}
		kt_free(a);
		kt_free(b);
		sequence_done(&s);
		d->ops->kv_free(d, &p);
	}
	dev_free(d);
}

static void bad_input(void **state)
{
	struct dev *d = kt_dev(state, 1);
	struct kv_pool p = {.n_layer = 1, .n_kv = 2, .d = 8, .page_tok = 30, .n_pages = 2, .type = DT_F32};
	assert_int_equal(d->ops->kv_new(d, &p), -EINVAL); /* page not a multiple of 32 */
	p.page_tok = 32;
	assert_int_equal(d->ops->kv_new(d, &p), 0);
	real *x = kt_reals(32, 0), *out = kt_reals(32, 0);
	uint32_t slot = 64, page = 2;
	assert_int_equal(d->ops->kv_write(d, &p, 0, x, x, 16, &slot, 1), -EINVAL);
	assert_int_equal(d->ops->kv_copy(d, &p, &slot, &slot, 1), -EINVAL);
	slot = 63;
	assert_int_equal(d->ops->kv_write(d, &p, 1, x, x, 16, &slot, 1), -EINVAL);
	assert_int_equal(d->ops->kv_write(d, &p, 0, x, x, 16, &slot, 1), 0);
	struct attn_seq s = {.pages = &page, .n_rows = 1};
	assert_int_equal(d->ops->attn(d, out, 32, x, 32, &p, 0, &s, 1, 4, 1), -EINVAL); /* page past the pool */
	page = 1;
	assert_int_equal(d->ops->attn(d, out, 32, x, 32, &p, 0, &s, 1, 3, 1), -EINVAL); /* 3 heads over 2 */
	assert_int_equal(d->ops->attn(d, out, 32, x, 32, &p, 0, &s, 1, 4, 1), 0);
	s.n_rows = 0;
	assert_int_equal(d->ops->attn(d, out, 32, x, 32, &p, 0, &s, 1, 4, 1), 0);
	d->ops->kv_free(d, &p);
	d->ops->kv_free(d, &p);
	kt_free(x);
	kt_free(out);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_TESTS(against_reference), KT_TESTS(law_of_order), KT_TESTS(unseen_nan), KT_TESTS(copy_positions), KT_TESTS(bad_input),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
