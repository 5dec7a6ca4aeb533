/* A later round's true history: the rows of earlier requests of its conversation stand before its own, token for token
 * and feature for feature as one recording of the whole would have them, through a chain of parents, cut to what is
 * asked for; rounds and lessons are the later round's alone. What is missing is named, and the run is then what it is
 * without. What a conversation says twice is found, and nothing else is. */
#include "tests/unit/learn/toyworld.h"
#include "learn/batch.h"
#include "learn/history.h"
#include "learn/join.h"

struct fixture { char dir[256]; struct pool *p; struct join j; struct runs runs; int64_t offset; };

static int on_closed(void *arg, struct run *r)
{
	struct fixture *f = arg;
	history_chain(&f->runs, r);
	r->first = history_repeated(&f->runs, r);
	return runs_add(&f->runs, r);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	char path[300];
	struct errtext e = {""};
	tw_temp_dir(f->dir);
	(void)snprintf(path, sizeof path, "%s/pool", f->dir);
	struct pool_options o = {.dir = path, .segment_bytes = 1 << 20, .max_bytes = 64 << 20};
	assert_int_equal(pool_open(&o, &f->p, &e), 0);
	join_init(&f->j, on_closed, f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	runs_done(&f->runs);
	join_done(&f->j);
	pool_close(f->p);
	assert_int_equal(fs_remove_tree(f->dir), 0);
	free(f);
	return 0;
}

/* Rows [at, at+T) of one text (seed 5) as a record of `request`. */
static void put(struct fixture *f, const char *request, const char *parent, int at, int T, uint32_t run, bool last)
{
	struct tw_record q = {.at = at, .T = T, .n_prompt = at + 2, .run = run, .last = last, .seed = 5, .conversation = "talk"};
	struct buf b = BUF_INIT(0);
	struct trace_record r;
	struct pool_ref ref;
	(void)snprintf(q.request, sizeof q.request, "%s", request);
	(void)snprintf(q.parent, sizeof q.parent, "%s", parent);
	q.round_version = 3;
	tw_encode(&q, &b);
	assert_int_equal(record_decode(b.data, b.len, TW_V, &r, NULL), 0);
	assert_int_equal(pool_append(f->p, 0, f->offset, 0, b.data, (uint32_t)b.len, &ref), 0);
	assert_int_equal(join_add(&f->j, &r, 0, f->offset++, 0, ref), 0);
	record_done(&r);
	buf_done(&b);
}

static struct history find(struct fixture *f, int i)
{
	struct history h;
	history_find(&f->runs, &f->j, &f->runs.v[i], &h);
	return h;
}

/* Rows as one record of the whole text would have had them. The toy's features hang on where a record begins, so
 * they are compared with those of the records that were told. */
static void check(const struct joined *j, int pos0)
{
	for (int i = 0; i < j->n; i++) {
		assert_int_equal(j->pos[i], pos0 + i);
		assert_int_equal(j->ids[i], tw_token(5, pos0 + i));
		if (j->gen_row[i] >= 0)
			assert_int_equal(j->topk_ids[j->gen_row[i] * j->K], tw_token(5, pos0 + i + 1));
		assert_int_equal(j->gen_row[i] >= 0, j->mask[i]);
		assert_int_equal(j->hid_row[i] >= 0, !j->mask[i]);
	}
	assert_int_equal(j->ids[j->n], tw_token(5, pos0 + j->n));
}

static void test_chain(void **state)
{
	struct fixture *f = *state;
	struct joined j, a, b;
	put(f, "a", "", 0, 20, 0, false); /* [0, 40) */
	put(f, "a", "", 20, 20, 1, true);
	put(f, "b", "a 32", 32, 30, 0, true);  /* [32, 62) behind 32 of a */
	put(f, "c", "b 60", 60, 10, 0, false); /* [60, 90) behind 28 of b */
	put(f, "c", "b 60", 70, 20, 1, true);
	struct history h = find(f, 2);
	assert_int_equal(h.kind, HISTORY_WHOLE);
	assert_int_equal(h.n, 2);
	assert_int_equal(h.total, 60);
	assert_int_equal(h.rows[0], 28);
	assert_int_equal(h.rows[1], 32);
	assert_int_equal(joined_load_after(f->p, &h, h.total, &f->runs.v[2], TW_V, &j), 0);
	assert_int_equal(j.n, 90);
	assert_int_equal(j.history, 60);
	check(&j, 0);
	assert_int_equal(joined_load(f->p, &f->runs.v[0], TW_V, &a), 0);
	assert_int_equal(joined_load(f->p, &f->runs.v[2], TW_V, &b), 0);
	assert_memory_equal(j.features, a.features, 32 * 3 * TW_H * 2);
	assert_memory_equal(j.features + 60 * 3 * TW_H, b.features, 30 * 3 * TW_H * 2);
	for (int i = 0; i < 2; i++) /* prompt rows of a record are its first two */
		assert_memory_equal(j.hidden + (size_t)j.hid_row[60 + i] * TW_H, b.hidden + (size_t)i * TW_H, TW_H * 2);
	assert_int_equal(j.n_rounds, 2); /* of c alone, at their rows behind the history */
	assert_int_equal(j.round_start[0], 61);
	assert_int_equal(j.round_start[1], 71);
	joined_done(&j);
	joined_done(&b);
	joined_done(&a);
	/* the nearest rows, cut inside a record and inside a link */
	for (int want = 0; want <= 61; want++) {
		assert_int_equal(joined_load_after(f->p, &h, want, &f->runs.v[2], TW_V, &j), 0);
		int got = want < 60 ? want : 60;
		assert_int_equal(j.history, got);
		assert_int_equal(j.n, got + 30);
		check(&j, 60 - got);
		joined_done(&j);
	}
}

static void test_reasons(void **state)
{
	struct fixture *f = *state;
	struct joined j;
	put(f, "b", "gone 32", 32, 10, 0, true);
	assert_int_equal(find(f, 0).kind, HISTORY_MISSING);
	put(f, "c", "", 32, 10, 0, true);
	assert_int_equal(find(f, 1).kind, HISTORY_UNNAMED);
	put(f, "d", "x 31", 32, 10, 0, true); /* what is named does not end where this begins */
	assert_int_equal(find(f, 2).kind, HISTORY_UNNAMED);
	put(f, "e", "x 32 ", 32, 10, 0, true);
	assert_int_equal(find(f, 3).kind, HISTORY_UNNAMED);
	put(f, "late", "", 0, 40, 0, false);
	put(f, "g", "late 40", 40, 10, 0, true);
	assert_int_equal(find(f, 4).kind, HISTORY_OPEN);
	put(f, "late", "", 40, 10, 1, true); /* and then it has arrived */
	assert_int_equal(find(f, 4).kind, HISTORY_WHOLE);
	put(f, "h", "late 60", 60, 10, 0, true);
	assert_int_equal(find(f, 6).kind, HISTORY_SHORT);
	put(f, "self", "self 20", 20, 10, 0, true);
	assert_int_equal(find(f, 7).kind, HISTORY_MISSING);
	/* part of it is better than nothing: behind a gap of the parent */
	put(f, "k", "", 0, 10, 0, false);
	put(f, "k", "", 20, 20, 2, true);
	put(f, "l", "k 32", 32, 10, 0, true);
	int l = f->runs.n - 1;
	struct history h = find(f, l);
	assert_int_equal(h.kind, HISTORY_UNNAMED);
	assert_int_equal(h.total, 12);
	assert_int_equal(joined_load_after(f->p, &h, 100, &f->runs.v[l], TW_V, &j), 0);
	assert_int_equal(j.history, 12);
	check(&j, 20);
	joined_done(&j);
}

/* Links are followed so far and no further, and a chain that bites its tail ends. */
static void test_deep(void **state)
{
	struct fixture *f = *state;
	char name[32], parent[64] = "";
	for (int i = 0; i < HISTORY_MAX_LINKS + 2; i++) {
		(void)snprintf(name, sizeof name, "r%d", i);
		put(f, name, parent, 10 * i, 10, 0, true);
		(void)snprintf(parent, sizeof parent, "r%d %d", i, 10 * (i + 1));
	}
	assert_int_equal(find(f, HISTORY_MAX_LINKS).kind, HISTORY_WHOLE);
	struct history h = find(f, HISTORY_MAX_LINKS + 1);
	assert_int_equal(h.kind, HISTORY_DEEP);
	assert_int_equal(h.n, HISTORY_MAX_LINKS);
}

/* A parent's records that are damaged: named, and the run alone still reads. */
static void test_damaged(void **state)
{
	struct fixture *f = *state;
	struct joined j;
	put(f, "a", "", 0, 32, 0, true);
	put(f, "b", "a 32", 32, 10, 0, true);
	f->runs.v[0].refs[0].offset += 3;
	struct history h = find(f, 1);
	assert_int_equal(joined_load_after(f->p, &h, 32, &f->runs.v[1], TW_V, &j), -EIO);
	assert_int_equal(joined_load(f->p, &f->runs.v[1], TW_V, &j), 0);
	joined_done(&j);
}

/* Only rows behind the lead are lessons. */
static void test_lead(void **state)
{
	struct fixture *f = *state;
	struct batcher b;
	struct train_batch with, without;
	struct joined j;
	struct frozen fz;
	struct dev *d = NULL;
	struct errtext e = {""};
	char store[300];
	int64_t d2t[48] = {0};
	int n_with, n_without;
	(void)snprintf(store, sizeof store, "%s/store", f->dir);
	tw_store(store);
	assert_int_equal(frozen_open(store, "", &fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	assert_int_equal(batcher_init(&b, d, &fz, true, &e), 0);
	assert_int_equal(batcher_set_vocab(&b, d2t, 48), 0);
	put(f, "a", "", 0, 32, 0, true);
	put(f, "b", "a 32", 32, 20, 0, true);
	struct history h = find(f, 1);
	assert_int_equal(joined_load_after(f->p, &h, 12, &f->runs.v[1], TW_V, &j), 0);
	assert_int_equal(batch_build(&b, &j, 0, 32, 12, &with, &n_with), 0);
	assert_int_equal(with.n, 32);
	for (int i = 0; i < 32; i++)
		assert_int_equal(with.mask[i], i >= 12 && i < 31);
	assert_int_equal(batch_build(&b, &j, 12, 20, 0, &without, &n_without), 0);
	assert_int_equal(n_with, n_without);
	assert_int_equal(batch_build(&b, &j, 0, 32, 32, &with, &n_with), -EINVAL);
	joined_done(&j);
	batcher_done(&b);
	dev_free(d);
	frozen_close(&fz);
}

static void test_repeated(void **state)
{
	struct fixture *f = *state;
	put(f, "a", "", 0, 70, 0, true);
	assert_int_equal(f->runs.v[0].first, 0);
	put(f, "b", "", 0, 50, 0, false); /* the same conversation from its start again, in two records, and more */
	put(f, "b", "", 50, 50, 1, true);
	assert_int_equal(f->runs.v[1].first, 64);
	put(f, "c", "b 96", 96, 40, 0, true); /* rows behind a parent's are new */
	assert_int_equal(f->runs.v[2].first, 0);
	put(f, "d", "", 0, 140, 0, true); /* and known when the whole is said again */
	assert_int_equal(f->runs.v[3].first, 128);
	/* another conversation, or none named: nobody's repeat; the other text neither */
	struct run r = f->runs.v[3];
	r.conversation++;
	assert_int_equal(history_repeated(&f->runs, &r), 0);
	uint64_t path[4];
	memcpy(path, f->runs.v[3].path, sizeof path);
	path[1]++;
	r = f->runs.v[3];
	r.path = path;
	assert_int_equal(history_repeated(&f->runs, &r), 32);
}

/* All of it survives a checkpoint. */
static void test_json(void **state)
{
	struct fixture *f = *state;
	struct run r;
	put(f, "a", "", 0, 40, 0, false);
	json_t *v = join_to_json(&f->j);
	join_done(&f->j);
	join_init(&f->j, on_closed, f);
	assert_int_equal(join_from_json(&f->j, v), 0);
	json_decref(v);
	put(f, "a", "", 40, 40, 1, true); /* hashes go on across it */
	put(f, "b", "a 64", 64, 10, 0, true);
	put(f, "a2", "", 0, 80, 0, true);
	assert_int_equal(f->runs.v[2].first, 64);
	for (int i = 0; i < 3; i++) {
		v = run_to_json(&f->runs.v[i]);
		assert_int_equal(run_from_json(v, &r), 0);
		json_decref(v);
		assert_int_equal(r.name, f->runs.v[i].name);
		assert_int_equal(r.parent, f->runs.v[i].parent);
		assert_int_equal(r.parent_rows, f->runs.v[i].parent_rows);
		assert_int_equal(r.conversation, f->runs.v[i].conversation);
		assert_int_equal(r.first, f->runs.v[i].first);
		assert_int_equal(r.n_path, f->runs.v[i].n_path);
		if (r.n_path)
			assert_memory_equal(r.path, f->runs.v[i].path, (size_t)r.n_path * sizeof *r.path);
		run_done(&r);
	}
}

int main(void)
{
#define T(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_chain), T(test_reasons), T(test_deep), T(test_damaged), T(test_lead), T(test_repeated), T(test_json)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
