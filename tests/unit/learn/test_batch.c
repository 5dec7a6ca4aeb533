/* The teacher of row t is the target's distribution after x_{t+1}, restricted to
 * the draft vocabulary and renormalised, from recorded top-K rows and from final
 * states alike; rows without one have no weight; a window is the same rows. */
#include <math.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/batch.h"

enum { VD = 80, N = 30, PROMPT = 12 };

struct fixture { char dir[256], store[300]; struct frozen fz; struct dev *d; struct batcher b; struct joined j; int64_t d2t[VD]; };

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	struct errtext e = {""};
	tw_temp_dir(f->dir);
	(void)snprintf(f->store, sizeof f->store, "%s/store", f->dir);
	tw_store(f->store);
	assert_int_equal(frozen_open(f->store, TW_FP, &f->fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &f->d), 0);
	assert_int_equal(batcher_init(&f->b, f->d, &f->fz, true, &e), 0);
	for (int i = 0, id = 0; i < VD; i++, id++) { /* every sixth token is outside */
		id += id % 6 == 5;
		f->d2t[i] = id - i;
	}
	assert_int_equal(batcher_set_vocab(&f->b, f->d2t, VD), 0);
	struct pool_options po = {.dir = f->dir, .segment_bytes = 1 << 20, .max_bytes = 64 << 20};
	struct pool *p = NULL;
	struct run run = {.id = 1, .n = N};
	struct pool_ref ref;
	struct buf blob = BUF_INIT(0);
	struct tw_record q = {.request = "r", .domain = "code", .T = N, .n_prompt = PROMPT, .last = true, .seed = 3};
	assert_int_equal(pool_open(&po, &p, &e), 0);
	tw_encode(&q, &blob);
	assert_int_equal(pool_append(p, 0, 0, 0, blob.data, (uint32_t)blob.len, &ref), 0);
	assert_int_equal(run_ref_add(&run, ref, 0), 0);
	assert_int_equal(joined_load(p, &run, TW_V, &f->j), 0);
	run_done(&run);
	pool_close(p);
	buf_done(&blob);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	joined_done(&f->j);
	batcher_done(&f->b);
	dev_free(f->d);
	frozen_close(&f->fz);
	assert_int_equal(fs_remove_tree(f->dir), 0);
	free(f);
	return 0;
}

static bool inside(const struct fixture *f, uint32_t id, int *draft)
{
	for (int i = 0; i < VD; i++)
		if (i + f->d2t[i] == (int64_t)id) {
			*draft = i;
			return true;
		}
	return false;
}

/* Dense Q of row t and its argmax over the whole vocabulary, in double. false: no teacher. */
static bool expected(const struct fixture *f, int t, double q[VD], uint32_t *y)
{
	int next = t + 1, d;
	memset(q, 0, VD * sizeof *q);
	if (next >= f->j.n)
		return false;
	double sum = 0;
	if (next >= PROMPT) {
		const uint32_t *ids = f->j.topk_ids + (next - PROMPT) * TW_K;
		*y = ids[0];
		for (int k = 0; k < TW_K; k++)
			if (inside(f, ids[k], &d))
				sum += q[d] = exp((double)f16_to_f32(f->j.topk_lp[(next - PROMPT) * TW_K + k]));
	} else {
		double logit[TW_V], best = -1e30;
		for (int v = 0; v < TW_V; v++) {
			logit[v] = 0;
			for (int h = 0; h < TW_H; h++)
				logit[v] += (double)bf16_to_f32(f->fz.head[v * TW_H + h]) * (double)bf16_to_f32(f->j.hidden[next * TW_H + h]);
			if (logit[v] > best)
				best = logit[v], *y = (uint32_t)v;
		}
		/* the TEACHER_K largest of the draft vocabulary */
		for (int i = 0; i < VD; i++) {
			int above = 0;
			double mine = logit[i + f->d2t[i]];
			for (int o = 0; o < VD; o++)
				above += logit[o + f->d2t[o]] > mine;
			if (above < TEACHER_K)
				sum += q[i] = exp(mine - best);
		}
	}
	for (int i = 0; i < VD && sum > 0; i++)
		q[i] /= sum;
	return true;
}

static void test_teacher(void **state)
{
	struct fixture *f = *state;
	struct train_batch b;
	int weighted, expect_weighted = 0, d;
	assert_int_equal(batch_build(&f->b, &f->j, 0, N, 0, &b, &weighted), 0);
	assert_int_equal(b.n, N);
	assert_int_equal(b.teacher.K, TEACHER_K);
	for (int t = 0; t < N; t++) {
		double q[VD], got[VD] = {0};
		uint32_t y = 0;
		if (!expected(f, t, q, &y)) {
			assert_int_equal(t, N - 1);
			assert_int_equal(b.mask[t], 0);
			continue;
		}
		assert_int_equal(b.mask[t], 1);
		assert_int_equal(b.y[t], y);
		assert_int_equal(b.in_vocab[t], inside(f, y, &d));
		expect_weighted += b.in_vocab[t];
		for (int k = 0; k < TEACHER_K; k++) {
			assert_true(b.teacher.ids[t * TEACHER_K + k] < VD);
			got[b.teacher.ids[t * TEACHER_K + k]] += (double)b.teacher.p[t * TEACHER_K + k];
		}
		for (int i = 0; i < VD; i++)
			if (!(fabs(got[i] - q[i]) <= 2e-5)) {
				print_message("row %d, draft id %d: %.8f, want %.8f\n", t, i, got[i], q[i]);
				assert_true(false);
			}
	}
	assert_int_equal(weighted, expect_weighted);
	assert_true(weighted > N / 2 && weighted < N - 1);
	assert_memory_equal(b.ids, f->j.ids, (N + 1) * sizeof *b.ids);
	for (int i = 0; i < N * 3 * TW_H; i++)
		assert_true(b.features[i] == (real)bf16_to_f32(f->j.features[i]));
}

/* Replies only: a row counts when the token it predicts, x_{t+2}, was generated and its teacher recorded. */
static void test_replies_only(void **state)
{
	struct fixture *f = *state;
	struct train_batch b;
	int weighted;
	f->b.prompt_rows = false;
	assert_int_equal(batch_build(&f->b, &f->j, 0, N, 0, &b, &weighted), 0);
	for (int t = 0; t < N; t++)
		assert_int_equal(b.mask[t], t + 1 >= PROMPT && t + 1 < N);
}

/* A window: the same teacher at the same tokens; its last row may look beyond it into the run. */
static void test_window(void **state)
{
	struct fixture *f = *state;
	struct train_batch b;
	int weighted;
	static real whole[N * TEACHER_K];
	static uint32_t y[N];
	assert_int_equal(batch_build(&f->b, &f->j, 0, N, 0, &b, &weighted), 0);
	memcpy(whole, b.teacher.p, sizeof whole);
	memcpy(y, b.y, sizeof y);
	assert_int_equal(batch_build(&f->b, &f->j, 7, 10, 0, &b, &weighted), 0);
	assert_int_equal(b.pos[0], 7);
	assert_memory_equal(b.ids, f->j.ids + 7, 11 * sizeof *b.ids);
	assert_memory_equal(b.teacher.p, whole + 7 * TEACHER_K, 10 * TEACHER_K * sizeof *whole);
	assert_memory_equal(b.y, y + 7, 10 * sizeof *y);
	assert_int_equal(b.mask[9], 1);
	assert_int_equal(batch_build(&f->b, &f->j, 25, 10, 0, &b, &weighted), -EINVAL);
}

/* Rows `at` and on of batch b are the n rows that `alone` has, in every array, and of a run that begins there. */
static void same_rows(const struct train_batch *b, int at, const struct train_batch *alone, int n)
{
	const size_t H3 = 3 * TW_H;
	assert_memory_equal(b->ids + at, alone->ids, ((size_t)n + 1) * sizeof *b->ids);
	assert_memory_equal(b->pos + at, alone->pos, (size_t)n * sizeof *b->pos);
	assert_memory_equal(b->features + (size_t)at * H3, alone->features, (size_t)n * H3 * sizeof *b->features);
	assert_memory_equal(b->teacher.p + at * TEACHER_K, alone->teacher.p, (size_t)n * TEACHER_K * sizeof *b->teacher.p);
	assert_memory_equal(b->teacher.ids + at * TEACHER_K, alone->teacher.ids, (size_t)n * TEACHER_K * sizeof *b->teacher.ids);
	assert_memory_equal(b->teacher.mass + at, alone->teacher.mass, (size_t)n * sizeof *b->teacher.mass);
	assert_memory_equal(b->mask + at, alone->mask, (size_t)n);
	assert_memory_equal(b->y + at, alone->y, (size_t)n * sizeof *b->y);
	assert_memory_equal(b->in_vocab + at, alone->in_vocab, (size_t)n);
	for (int t = 0; t < n; t++) {
		if (b->seg)
			assert_int_equal(b->seg[at + t], at);
		int mine = b->states ? b->states->row[at + t] : -1, its = alone->states ? alone->states->row[t] : -1;
		assert_int_equal(mine >= 0, its >= 0);
		if (mine >= 0)
			assert_memory_equal(b->states->z + mine * TW_H, alone->states->z + its * TW_H, TW_H * sizeof(real));
	}
}

/* Two windows in one batch: each the rows it has alone, with a row of no weight between them that carries the first one's last
 * token; a window that cannot be added, and one whose teacher was kept, change nothing of that. */
static void test_packed(void **state)
{
	struct fixture *f = *state;
	struct batcher other;
	struct errtext e = {""};
	struct train_batch b, first, second;
	int weighted, w1, w2;
	enum { A = 10, B = 17, LEAD = 4 };
	assert_int_equal(batcher_init(&other, f->d, &f->fz, true, &e), 0);
	assert_int_equal(batcher_set_vocab(&other, f->d2t, VD), 0);
	for (int whole = 0; whole < 2; whole++) {
		struct batch_teacher *kept;
		f->b.whole_teacher = other.whole_teacher = whole;
		batch_begin(&f->b);
		assert_int_equal(batch_add(&f->b, &f->j, 7, A, 0), 0);
		assert_int_equal(batch_add(&f->b, &f->j, 25, 10, 0), -EINVAL);
		assert_int_equal(batch_add(&f->b, &f->j, 3, B, LEAD), 0);
		kept = batch_teacher_copy(&f->b, B);
		assert_non_null(kept);
		for (int taught = 0; taught < 2; taught++) {
			if (taught) {
				batch_begin(&f->b);
				assert_int_equal(batch_add(&f->b, &f->j, 7, A, 0), 0);
				assert_int_equal(batch_add_taught(&f->b, &f->j, 3, B, kept), 0);
			}
			batch_end(&f->b, &b, &weighted);
			assert_int_equal(b.n, A + 1 + B);
			assert_int_equal(b.teacher.n, b.n);
			assert_int_equal(batch_build(&other, &f->j, 7, A, 0, &first, &w1), 0);
			assert_null(first.seg);
			same_rows(&b, 0, &first, A);
			assert_int_equal(b.mask[A], 0);
			assert_int_equal(b.seg[A], 0);
			assert_int_equal(batch_build(&other, &f->j, 3, B, LEAD, &second, &w2), 0);
			same_rows(&b, A + 1, &second, B);
			assert_int_equal(weighted, w1 + w2);
		}
		batch_teacher_free(kept);
	}
	batcher_done(&other);
}

/* Mass is what was renormalised: with it the teacher is the target's own distribution again. */
static void test_mass(void **state)
{
	struct fixture *f = *state;
	struct train_batch b;
	int weighted, d;
	assert_int_equal(batch_build(&f->b, &f->j, 0, N, 0, &b, &weighted), 0);
	for (int t = PROMPT - 1; t < N - 1; t++) {
		const uint32_t *ids = f->j.topk_ids + (t + 1 - PROMPT) * TW_K;
		double sum = 0;
		for (int k = 0; k < TW_K; k++)
			sum += inside(f, ids[k], &d) ? exp((double)f16_to_f32(f->j.topk_lp[(t + 1 - PROMPT) * TW_K + k])) : 0;
		assert_true(fabs((double)b.teacher.mass[t] - fmin(sum, 1)) <= 1e-6);
	}
	assert_true((double)b.teacher.mass[N - 1] == 0);
	for (int t = 0; t < PROMPT - 1; t++) { /* 64 of 80: less than the whole draft vocabulary's share, which is less than 1 */
		real some = b.teacher.mass[t];
		struct train_batch whole;
		f->b.whole_teacher = true;
		assert_int_equal(batch_build(&f->b, &f->j, t, 2, 0, &whole, &weighted), 0);
		f->b.whole_teacher = false;
		assert_true((double)some > 0 && some < whole.teacher.mass[0] && (double)whole.teacher.mass[0] < 1);
		assert_int_equal(batch_build(&f->b, &f->j, 0, N, 0, &b, &weighted), 0);
	}
}

/* Whole teachers: the states are the recorded ones, and head times state is Q up to what the 64 largest leave out. */
static void test_whole_teacher(void **state)
{
	struct fixture *f = *state;
	struct train_batch b;
	int weighted;
	f->b.whole_teacher = true;
	assert_int_equal(batch_build(&f->b, &f->j, 0, N, 0, &b, &weighted), 0);
	assert_non_null(b.states);
	assert_ptr_equal(b.states->head, &f->b.head_d);
	for (int t = 0; t < N; t++) {
		assert_int_equal(b.states->row[t] >= 0, t + 1 < PROMPT);
		if (t + 1 >= PROMPT)
			continue;
		double x[VD], sum = 0, top = 0;
		const real *z = b.states->z + b.states->row[t] * TW_H;
		for (int i = 0; i < VD; i++) {
			x[i] = 0;
			for (int h = 0; h < TW_H; h++) {
				assert_true(z[h] == (real)bf16_to_f32(f->j.hidden[f->j.hid_row[t + 1] * TW_H + h]));
				x[i] += (double)z[h] * (double)bf16_to_f32(f->fz.head[(i + f->d2t[i]) * TW_H + h]);
			}
			sum += exp(x[i]);
		}
		for (int k = 0; k < TEACHER_K; k++)
			top += exp(x[b.teacher.ids[t * TEACHER_K + k]]) / sum;
		for (int k = 0; k < TEACHER_K; k++)
			assert_true(fabs(exp(x[b.teacher.ids[t * TEACHER_K + k]]) / sum / top - (double)b.teacher.p[t * TEACHER_K + k]) <= 2e-5);
	}
}

/* A row is worth more where serving's proposal for the token it predicts was rejected, and nowhere else. */
static void test_rejected(void **state)
{
	struct fixture *f = *state;
	struct train_batch b;
	int weighted;
	uint32_t start[] = {PROMPT - 1, PROMPT + 2, PROMPT + 6, N - 1};
	uint8_t len[] = {3, 2, 4, 5}, accepted[] = {1, 2, 0, 3};
	struct joined j = f->j;
	j.n_rounds = 4, j.round_start = start, j.round_len = len, j.round_accepted = accepted;
	assert_int_equal(batch_build(&f->b, &j, 0, N, 0, &b, &weighted), 0);
	assert_null(b.weight);
	f->b.reject_weight = 2.5;
	for (int row0 = 0; row0 < 6; row0 += 5) {
		assert_int_equal(batch_build(&f->b, &j, row0, N - row0, 0, &b, &weighted), 0);
		for (int t = 0; t < N - row0; t++)
			assert_true((double)b.weight[t] == (t + row0 == PROMPT || t + row0 == PROMPT + 6 ? 2.5 : 1));
	}
}

/* A vocabulary id outside the target's is refused. */
static void test_bad_vocab(void **state)
{
	struct fixture *f = *state;
	int64_t bad[VD];
	memcpy(bad, f->d2t, sizeof bad);
	bad[VD - 1] = TW_V;
	assert_int_equal(batcher_set_vocab(&f->b, bad, VD), -EINVAL);
}

int main(void)
{
#define T(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_teacher), T(test_replies_only), T(test_window), T(test_packed), T(test_mass), T(test_whole_teacher), T(test_rejected), T(test_bad_vocab)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
