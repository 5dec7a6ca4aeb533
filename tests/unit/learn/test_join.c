/* Records join to runs by request and position, whatever lies between them; a hole
 * ends a run and starts another; what is silent for too long closes by offsets
 * alone; and a run read back holds every row of its records, in order. */
#include "tests/unit/learn/toyworld.h"
#include "learn/join.h"

struct closed { struct run v[32]; int n; };

static int on_closed(void *arg, struct run *r)
{
	struct closed *c = arg;
	c->v[c->n++] = *r;
	return 0;
}

struct fixture { char dir[256]; struct pool *p; struct join j; struct closed c; int64_t offset; };

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	char path[300];
	struct errtext e = {""};
	tw_temp_dir(f->dir);
	(void)snprintf(path, sizeof path, "%s/pool", f->dir);
	struct pool_options o = {.dir = path, .segment_bytes = 1 << 20, .max_bytes = 64 << 20};
	assert_int_equal(pool_open(&o, &f->p, &e), 0);
	join_init(&f->j, on_closed, &f->c);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	for (int i = 0; i < f->c.n; i++)
		run_done(&f->c.v[i]);
	join_done(&f->j);
	pool_close(f->p);
	assert_int_equal(fs_remove_tree(f->dir), 0);
	free(f);
	return 0;
}

static void add(struct fixture *f, const struct tw_record *q, int partition)
{
	struct buf b = BUF_INIT(0);
	struct trace_record r;
	struct pool_ref ref;
	tw_encode(q, &b);
	assert_int_equal(record_decode(b.data, b.len, TW_V, &r, NULL), 0);
	assert_int_equal(pool_append(f->p, partition, f->offset, 0, b.data, (uint32_t)b.len, &ref), 0);
	assert_int_equal(join_add(&f->j, &r, partition, f->offset++, 0, ref), 0);
	record_done(&r);
	buf_done(&b);
}

static struct tw_record rec(const char *request, int at, int T, int n_prompt, uint32_t run, bool last)
{
	struct tw_record q = {.at = at, .T = T, .n_prompt = n_prompt, .run = run, .last = last, .seed = (uint64_t)request[0]};
	(void)snprintf(q.request, sizeof q.request, "%s", request);
	(void)snprintf(q.domain, sizeof q.domain, "code");
	return q;
}

static void put(struct fixture *f, const char *request, int at, int T, int n_prompt, uint32_t run, bool last)
{
	struct tw_record q = rec(request, at, T, n_prompt, run, last);
	add(f, &q, 0);
}

/* Two requests, interleaved: each whole, numbered as they close. */
static void test_interleaved(void **state)
{
	struct fixture *f = *state;
	put(f, "a", 0, 10, 15, 0, false);
	put(f, "b", 0, 12, 4, 0, false);
	put(f, "a", 10, 10, 15, 1, false);
	put(f, "b", 12, 9, 4, 1, true);
	put(f, "a", 20, 5, 15, 2, true);
	assert_int_equal(f->c.n, 2);
	assert_int_equal(f->c.v[0].id, 1);
	assert_int_equal(f->c.v[0].n, 21);
	assert_int_equal(f->c.v[0].n_gen, 17);
	assert_int_equal(f->c.v[1].n, 25);
	assert_int_equal(f->c.v[1].n_gen, 10);
	assert_int_equal(f->c.v[1].n_refs, 3);
	assert_int_equal(f->j.n, 0);
	assert_int_equal(f->j.gaps, 0);
}

/* A missing record, a wrong position, a wrong token: each ends the run, and the next one starts where it is. */
static void test_holes(void **state)
{
	struct fixture *f = *state;
	put(f, "a", 0, 10, 5, 0, false);
	put(f, "a", 20, 10, 5, 2, true); /* run 1 never came */
	assert_int_equal(f->c.n, 2);
	assert_int_equal(f->c.v[0].n, 10);
	assert_int_equal(f->c.v[1].n, 10);
	assert_int_equal(f->c.v[1].pos0, 20);
	put(f, "b", 0, 10, 5, 0, false);
	put(f, "b", 11, 10, 5, 1, true); /* a position too far */
	assert_int_equal(f->c.n, 4);
	struct tw_record q = rec("c", 0, 10, 5, 0, false);
	add(f, &q, 0);
	q = rec("c", 10, 10, 5, 1, true);
	q.seed++; /* another text */
	while (tw_token(q.seed, 10) == tw_token(q.seed - 1, 10))
		q.at++;
	add(f, &q, 0);
	assert_int_equal(f->c.n, 6);
	assert_int_equal(f->j.gaps, 3);
}

/* Shorter than the least worth training: dropped, and takes no number. */
static void test_short(void **state)
{
	struct fixture *f = *state;
	put(f, "a", 0, JOIN_MIN_ROWS - 1, 2, 0, true);
	assert_int_equal(f->c.n, 0);
	put(f, "b", 0, JOIN_MIN_ROWS, 2, 0, true);
	assert_int_equal(f->c.n, 1);
	assert_int_equal(f->c.v[0].id, 1);
}

/* Silence closes by offsets of the same partition, not by another's. */
static void test_silence(void **state)
{
	struct fixture *f = *state;
	f->j.max_lag = 3;
	struct tw_record q = rec("z", 0, 10, 5, 0, false);
	add(f, &q, 1);
	put(f, "a", 0, 10, 5, 0, false);
	for (int i = 0; i < 4; i++)
		put(f, "b", i * 10, 10, 5, (uint32_t)i, false);
	assert_int_equal(f->c.n, 1);
	assert_int_equal(f->c.v[0].partition, 0);
	assert_int_equal(f->c.v[0].n, 10);
	assert_int_equal(f->j.n, 2); /* "b", and "z" of the quiet partition */
}

/* Too many open at once: the oldest closes. */
static void test_bounded(void **state)
{
	struct fixture *f = *state;
	char name[16];
	f->j.max_open = 4;
	for (int i = 0; i < 6; i++) {
		(void)snprintf(name, sizeof name, "%c", 'a' + i);
		put(f, name, 0, 10, 5, 0, false);
	}
	assert_int_equal(f->j.n, 4);
	assert_int_equal(f->c.n, 2);
}

/* Open parts survive a checkpoint: the same records join to the same run. */
static void test_json(void **state)
{
	struct fixture *f = *state;
	put(f, "a", 0, 10, 15, 0, false);
	put(f, "b", 0, 12, 4, 0, false);
	json_t *v = join_to_json(&f->j);
	assert_non_null(v);
	join_done(&f->j);
	join_init(&f->j, on_closed, &f->c);
	assert_int_equal(join_from_json(&f->j, v), 0);
	json_decref(v);
	assert_int_equal(f->j.n, 2);
	put(f, "a", 10, 10, 15, 1, true);
	assert_int_equal(f->c.n, 1);
	assert_int_equal(f->c.v[0].n, 20);
	json_t *bad = json_pack("{s:i}", "next_id", 1);
	struct join other;
	join_init(&other, on_closed, &f->c);
	assert_int_equal(join_from_json(&other, bad), -EINVAL);
	json_decref(bad);
	join_done(&other);
}

/* Read back: tokens, positions, masks, features, teachers of both kinds at their rows. */
static void test_read_back(void **state)
{
	struct fixture *f = *state;
	struct joined j;
	put(f, "a", 0, 10, 15, 0, false);
	put(f, "a", 10, 10, 15, 1, false);
	put(f, "a", 20, 6, 15, 2, true);
	assert_int_equal(joined_load(f->p, &f->c.v[0], TW_V, &j), 0);
	assert_int_equal(j.n, 26);
	assert_int_equal(j.n_gen, 11);
	assert_int_equal(j.n_hid, 15);
	for (int i = 0; i <= j.n; i++)
		assert_int_equal(j.ids[i], tw_token('a', i));
	for (int i = 0; i < j.n; i++) {
		assert_int_equal(j.pos[i], i);
		assert_int_equal(j.mask[i], i >= 15);
		assert_int_equal(j.gen_row[i], i >= 15 ? i - 15 : -1);
		assert_int_equal(j.hid_row[i], i < 15 ? i : -1);
		if (i >= 15)
			assert_int_equal(j.topk_ids[(i - 15) * j.K], tw_token('a', i + 1));
	}
	struct tw_record q = rec("a", 20, 6, 15, 2, true);
	struct buf b = BUF_INIT(0);
	struct trace_record r;
	tw_encode(&q, &b);
	assert_int_equal(record_decode(b.data, b.len, TW_V, &r, NULL), 0);
	assert_memory_equal(j.features + 20 * 3 * TW_H, r.features, 6 * 3 * TW_H * 2);
	record_done(&r);
	buf_done(&b);
	joined_done(&j);
}

int main(void)
{
#define T(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_interleaved), T(test_holes), T(test_short), T(test_silence), T(test_bounded), T(test_json), T(test_read_back)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
