/* A request longer than one may give (train.request_rows) is learned from all the same: its newest rows are lessons, the
 * older ones history, in one run or in several, counted, and the same after a restart. Only when nothing is left
 * to give is a part left out. And a step of a long run keeps the records it needs and no others, which changes
 * nothing of what it trains; nor does it read what lies before them. */
#include <sys/syscall.h>
#include "tests/unit/learn/learner_world.h"

static uint64_t bytes_read; /* of the pool */

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	ssize_t got = syscall(SYS_pread64, fd, p, n, at);
	bytes_read += got > 0 ? (uint64_t)got : 0;
	return got;
}

struct fixture { struct world w; char state[300]; struct dev *d; struct learner_options o; uint64_t seq; };

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	world_init(&f->w, 0);
	(void)snprintf(f->state, sizeof f->state, "%s/s", f->w.dir);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &f->d), 0);
	f->o = options(&f->w, f->state);
	f->o.request_rows = 50;
	f->o.init_min_tokens = 60;
	f->o.max_epochs = 1;
	f->o.replay_share = 0;
	f->o.pool_bytes = 64 << 20;
	f->o.segment_bytes = 4 << 20;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	dev_free(f->d);
	world_done(&f->w);
	free(f);
	return 0;
}

static void say(struct fixture *f, const char *request, int at, int T, int n_prompt, uint32_t run, bool last)
{
	struct tw_record q = {.at = at, .T = T, .n_prompt = n_prompt, .run = run, .last = last, .seq = ++f->seq, .seed = (uint64_t)request[0], .domain = "code"};
	struct buf b = BUF_INIT(0);
	(void)snprintf(q.request, sizeof q.request, "%s", request);
	tw_encode(&q, &b);
	tw_add(&f->w.src, 0, b.data, b.len);
	buf_done(&b);
	f->w.src.visible = f->w.src.n;
}

static struct learner *take(struct fixture *f, struct learner *l)
{
	struct errtext e = {""};
	bool begun;
	if (!l)
		l = open_ok(&f->o, f->d, &f->w, 0);
	for (int n = 1; n;)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &begun, &e), 0);
	return l;
}

/* All that waits; how many rows had weight. */
static int64_t train(struct learner *l)
{
	struct errtext e = {""};
	int64_t before = l->n.trained_tokens;
	while (learner_can_step(l))
		assert_int_equal(learner_step(l, &e), 0);
	assert_int_equal(l->n.steps_bad, 0);
	return l->n.trained_tokens - before;
}

static void test_newest(void **state)
{
	struct fixture *f = *state;
	char sha[65], again[65];
	say(f, "a", 0, 90, 70, 0, true);
	struct learner *l = take(f, NULL);
	assert_int_equal(l->runs.n, 1);
	assert_int_equal(l->runs.v[0].first, 40); /* rows 40 to 89, its reply among them */
	assert_int_equal(l->n.shortened, 1);
	assert_int_equal(l->n.shortened_rows, 40);
	assert_int_equal(l->n.out[OUT_REQUEST], 0);
	assert_non_null(strstr(l->last_bad, "its newest 50 are learned from"));
	int64_t rows = train(l);
	assert_true(rows >= 20 && rows <= 50); /* the last row has no teacher, and half of what the prompt teaches is not in the draft's vocabulary */
	learner_weights_sha(l, sha);
	learner_close(l);
	l = take(f, NULL); /* from the journal, and it is the same */
	assert_int_equal(l->n.shortened_rows, 40);
	assert_int_equal(l->runs.v[0].first, 40);
	learner_weights_sha(l, again);
	assert_string_equal(sha, again);
	learner_close(l);
}

/* Parts of one request (a hole between them): the oldest that still waits gives way to the newest. */
static void test_parts(void **state)
{
	struct fixture *f = *state;
	say(f, "a", 0, 40, 10, 0, false);
	say(f, "a", 60, 40, 60, 2, true);
	struct learner *l = take(f, NULL);
	assert_int_equal(l->runs.n, 2);
	assert_int_equal(l->runs.v[0].first, 30);
	assert_int_equal(l->runs.v[1].first, 0);
	assert_int_equal(l->n.shortened_rows, 30);
	say(f, "b", 0, 40, 10, 0, false);
	say(f, "b", 60, 47, 60, 2, true);
	(void)take(f, l); /* three rows are no lesson: they go too */
	assert_int_equal(l->runs.v[2].first, 37);
	assert_int_equal(l->runs.v[2].state, RUN_TRAINED);
	assert_int_equal(l->n.shortened, 2);
	(void)train(l);
	assert_int_equal(l->runs.v[2].epochs, 0);
	/* what was trained cannot give way: nothing is left for a third part */
	say(f, "a", 120, 30, 120, 4, true);
	(void)take(f, l);
	assert_int_equal(l->n.out[OUT_REQUEST], 1);
	assert_int_equal(l->runs.n, 4);
	assert_int_equal(train(l), 0);
	learner_close(l);
}

static void same_rows(const struct joined *part, const struct joined *whole)
{
	size_t at = (size_t)(part->from - whole->from), n = (size_t)part->n, W = (size_t)part->H3;
	assert_memory_equal(part->ids, whole->ids + at, (n + 1) * sizeof *part->ids);
	assert_memory_equal(part->pos, whole->pos + at, n * sizeof *part->pos);
	assert_memory_equal(part->features, whole->features + at * W, n * W * sizeof *part->features);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(part->mask[i], whole->mask[at + i]);
		assert_int_equal(part->gen_row[i] >= 0, whole->gen_row[at + i] >= 0);
		if (part->gen_row[i] >= 0)
			assert_memory_equal(part->topk_ids + part->gen_row[i] * part->K, whole->topk_ids + whole->gen_row[at + i] * whole->K, (size_t)part->K * 4);
	}
}

/* More records than a run holds: the request goes on in a run of its own, behind the first; and each window of it is the same rows
 * whether all of it was read or only what it needs. */
static void test_many_records(void **state)
{
	enum { RECORDS = RUN_MAX_RECORDS + 44, T = 12 };
	struct fixture *f = *state;
	struct joined whole, part;
	struct history h;
	f->o.request_rows = 0;
	for (int i = 0; i < RECORDS; i++)
		say(f, "a", i * T, T, 30 * T, (uint32_t)i, i == RECORDS - 1);
	struct learner *l = take(f, NULL);
	assert_int_equal(l->runs.n, 2);
	assert_int_equal(l->join.gaps, 0);
	struct run *r = &l->runs.v[1];
	assert_int_equal(l->runs.v[0].n, RUN_MAX_RECORDS * T);
	assert_int_equal(r->n, (RECORDS - RUN_MAX_RECORDS) * T);
	history_find(&l->runs, &l->join, r, &h);
	assert_int_equal(h.kind, HISTORY_WHOLE);
	assert_int_equal(h.total, RUN_MAX_RECORDS * T);
	assert_int_equal(joined_load_after(l->pool, &h, 20, r, TW_V, &part), 0);
	assert_int_equal(part.history, 20);
	for (int i = 0; i <= part.n; i++)
		assert_int_equal(part.ids[i], tw_token('a', RUN_MAX_RECORDS * T - 20 + i));
	joined_done(&part);
	r = &l->runs.v[0];
	bytes_read = 0;
	assert_int_equal(joined_load(l->pool, r, TW_V, &whole), 0);
	uint64_t once = bytes_read;
	bytes_read = 0;
	for (int lo = 0; lo < r->n; lo += 97) {
		int hi = lo + 64 < r->n ? lo + 64 : r->n;
		assert_int_equal(joined_load_rows(l->pool, NULL, 0, r, lo, hi, TW_V, &part), 0);
		assert_true(part.from <= lo && part.from + part.n >= hi && part.n <= 64 + 2 * T);
		same_rows(&part, &whole);
		joined_done(&part);
	}
	assert_true(bytes_read < once); /* 64 rows of each 97, and the rest of their records: what lies before a window is not read */
	for (int i = 0; i < r->n_refs; i++)
		r->rows[i] = 0; /* as an older checkpoint leaves it: then it is, and the rows are the same */
	assert_int_equal(joined_load_rows(l->pool, NULL, 0, r, 1000, 1064, TW_V, &part), 0);
	same_rows(&part, &whole);
	joined_done(&part);
	joined_done(&whole);
	assert_true(train(l) > 3000);
	learner_close(l);
}

int main(void)
{
#define T(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_newest), T(test_parts), T(test_many_records)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
