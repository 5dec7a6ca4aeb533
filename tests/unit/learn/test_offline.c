/* Training from disk is a pure function of corpus, options and seed: the same bits for any number of threads, with
 * teachers kept or worked out anew, one lesson a step or several; another seed is another draft. It learns, it never trains what it judges, it ends
 * where it was told; and a corpus is what its records say: the same from a pool, through files and back. */
#include "tests/unit/learn/toyworld.h"
#include "learn/offline.h"

enum { RUNS = 30, ROWS = 40 };

struct world { char dir[256], store[300], pool[300]; struct frozen fz; };

static void fill(const char *dir, int runs, uint64_t seed)
{
	struct pool_options po = {.dir = dir, .segment_bytes = 1 << 18, .max_bytes = 64 << 20};
	struct pool *p = NULL;
	struct errtext e = {""};
	struct pool_ref ref;
	struct buf b = BUF_INIT(0);
	assert_int_equal(pool_open(&po, &p, &e), 0);
	for (int i = 0; i < runs; i++)
		for (int part = 0; part < 2; part++) { /* two records a request */
			struct tw_record q = {.at = part * ROWS / 2, .T = ROWS / 2, .n_prompt = 12, .run = (uint32_t)part, .last = part == 1, .seq = (uint64_t)(2 * i + part + 1), .seed = seed + (uint64_t)i % 3};
			(void)snprintf(q.request, sizeof q.request, "r%d", i);
			(void)snprintf(q.domain, sizeof q.domain, "%s", i % 2 ? "code" : "tools");
			buf_clear(&b);
			tw_encode(&q, &b);
			assert_int_equal(pool_append(p, i % 3, 2 * i + part, 0, b.data, (uint32_t)b.len, &ref), 0);
		}
	assert_int_equal(pool_sync(p), 0);
	pool_close(p);
	buf_done(&b);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	struct errtext e = {""};
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	(void)snprintf(w->pool, sizeof w->pool, "%s/pool", w->dir);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, TW_FP, &w->fz, &e), 0);
	fill(w->pool, RUNS, 5);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;
	frozen_close(&w->fz);
	assert_int_equal(fs_remove_tree(w->dir), 0);
	free(w);
	return 0;
}

struct seen {
	struct offline_report last, first;
	int evaluated;
	uint64_t hash;
	int64_t die_at; /* step at which the run is cut off; 0 = never */
};

static int on_report(void *arg, const struct offline_report *r)
{
	struct seen *s = arg;
	if (r->evaluated && !s->evaluated++)
		s->first = *r;
	s->last = *r;
	return s->die_at && r->step >= s->die_at ? -EINTR : 0;
}

static int on_keep(void *arg, const struct draft *d, const struct offline_report *r)
{
	struct seen *s = arg;
	(void)r;
	s->hash = 1469598103934665603u;
	const uint8_t *b = (const uint8_t *)d->w;
	for (size_t i = 0; i < d->n * sizeof *d->w; i++)
		s->hash = (s->hash ^ b[i]) * 1099511628211u;
	return 0;
}

static struct offline_options plain(void)
{
	return (struct offline_options){
		.kind = &trainer_eagle3, .seed = 3,
		.train = {.ttt_steps = 3, .decay = (real)0.8, .optimizer = OPT_ADAMW, .lr = (real)5e-3, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8, .clip = 1, .warmup_steps = 2},
		.draft_vocab = 80, .max_rows = 32, .epochs = 3, .prompt_rows = true, .cosine = true, .heldout_share = 0.3, .heldout_domain_max = 4, .k = 3,
		.eval_tokens = 500, .cache_bytes = 1 << 20,
	};
}

static char said[256];
static enum dev_isa isa = ISA_PORTABLE;

static int run(struct world *w, const struct offline_options *o, int threads, const char *judge_by, struct seen *ret)
{
	struct corpus c, other = {0};
	struct dev *d = NULL;
	struct errtext e = {""};
	struct offline_calls calls = {on_report, on_keep, ret};
	*ret = (struct seen){.die_at = ret->die_at};
	assert_int_equal(dev_cpu_new(threads, isa, &d), 0);
	assert_int_equal(corpus_open(w->pool, &w->fz, &c, &e), 0);
	assert_int_equal(c.runs.n, RUNS);
	if (judge_by)
		assert_int_equal(corpus_open(judge_by, &w->fz, &other, &e), 0);
	int r = offline_train(o, d, &c, judge_by ? &other : NULL, NULL, &calls, &e);
	corpus_close(&other);
	corpus_close(&c);
	dev_free(d);
	(void)snprintf(said, sizeof said, "%s", e.text);
	return r;
}

static void go(struct world *w, const struct offline_options *o, int threads, const char *judge_by, struct seen *ret)
{
	assert_int_equal(run(w, o, threads, judge_by, ret), 0);
}

static void test_same_bits(void **state)
{
	struct offline_options o = plain();
	struct seen a = {0}, b = {0};
	go(*state, &o, 1, NULL, &a);
	go(*state, &o, 3, NULL, &b);
	assert_true(a.hash == b.hash);
	o.cache_bytes = 0; /* every teacher anew */
	go(*state, &o, 2, NULL, &b);
	assert_true(a.hash == b.hash);
	o.seed = 4;
	go(*state, &o, 2, NULL, &b);
	assert_true(a.hash != b.hash);
}

static void test_learns(void **state)
{
	struct offline_options o = plain();
	struct seen a = {0}, b = {0};
	o.epochs = 12;
	go(*state, &o, 1, NULL, &a);
	const struct offline_domain *all = &a.last.domain[a.last.n_domains - 1], *start = &a.first.domain[a.first.n_domains - 1];
	assert_string_equal(all->name, "all");
	assert_int_equal(a.last.n_domains, 3); /* tools, code, all */
	assert_true(offline_accept_length(all) > offline_accept_length(start) + 0.2); /* three texts, each seen many times */
	assert_true(all->low <= offline_accept_length(all) && offline_accept_length(all) <= all->high);
	assert_true(a.last.tokens == a.last.tokens_total || a.last.step == a.last.steps);
	o.ema = 0.9;
	go(*state, &o, 1, NULL, &b);
	assert_true(a.hash != b.hash);
	assert_true(offline_accept_length(&b.last.domain[b.last.n_domains - 1]) > offline_accept_length(start) + 0.2);
}

/* With records of their own to judge by, everything is trained; without, the judged are not. */
static void test_held_out(void **state)
{
	struct world *w = *state;
	struct offline_options o = plain();
	struct seen a = {0}, b = {0};
	char other[400];
	(void)snprintf(other, sizeof other, "%s/other", w->dir);
	fill(other, 6, 50);
	o.epochs = 1;
	go(w, &o, 1, other, &a);
	go(w, &o, 1, NULL, &b);
	int judged = b.last.domain[b.last.n_domains - 1].requests;
	assert_int_equal(a.last.domain[a.last.n_domains - 1].requests, 6);
	assert_true(judged > 0 && judged <= 2 * o.heldout_domain_max);
	assert_int_equal(a.last.steps, 2 * RUNS); /* two windows a run */
	assert_int_equal(b.last.steps, 2 * (RUNS - judged));
	o.tokens = 100;
	go(w, &o, 1, NULL, &b);
	assert_true(b.last.tokens >= 100 && b.last.tokens < 100 + ROWS);
	/* the end that was foreseen, which a falling rate falls to, is the one that came, of replies alone too */
	for (int prompts = 0; prompts < 2; prompts++) {
		o = plain();
		o.prompt_rows = prompts;
		o.tokens = 700;
		go(w, &o, 1, NULL, &a);
		if (!(llabs(a.last.step - a.last.steps) <= 3))
			fail_msg("%d steps were foreseen, %d came", (int)a.last.steps, (int)a.last.step);
	}
}

/* In the order of the stream every run comes once, with replay some more; kept teachers change nothing. */
static void test_stream(void **state)
{
	struct offline_options o = plain();
	struct seen a = {0}, b = {0};
	o.stream = true;
	o.prompt_rows = false;
	go(*state, &o, 1, NULL, &a);
	int judged = a.last.domain[a.last.n_domains - 1].requests;
	assert_int_equal(a.last.step, 2 * (RUNS - judged)); /* epochs do not count */
	o.replay_share = 0.5;
	go(*state, &o, 1, NULL, &b);
	assert_true(b.last.step > a.last.step + 10 && b.last.step < 4 * a.last.step);
	o.cache_bytes = 0;
	go(*state, &o, 2, NULL, &a);
	assert_true(a.hash == b.hash);
}

/* Cut off at any step, a run goes on from its last evaluation to the same weights; another run's state is refused by name. */
static void resumed(struct world *w, struct offline_options o, const char *name)
{
	char dir[400];
	struct seen whole = {0}, part = {0};
	(void)snprintf(dir, sizeof dir, "%s/%s", w->dir, name);
	o.eval_tokens = 150;
	go(w, &o, 1, NULL, &whole);
	o.state_dir = dir;
	for (int64_t at = 2; at < whole.last.step; at += 7) {
		part.die_at = at;
		assert_int_equal(run(w, &o, 1, NULL, &part), -EINTR);
		assert_true(at < 20 || part.last.resumed > 0); /* it did go on, not start again */
	}
	part.die_at = 0;
	go(w, &o, 2, NULL, &part);
	assert_true(part.hash == whole.hash);
	assert_int_equal(part.last.step, whole.last.step);
	assert_int_equal(part.last.tokens, whole.last.tokens);
	go(w, &o, 1, NULL, &part); /* done already: nothing is trained twice */
	assert_true(part.hash == whole.hash && part.last.resumed == whole.last.step);
	o.train.lr = (real)1e-4;
	assert_int_equal(run(w, &o, 1, NULL, &part), -EINVAL);
	assert_non_null(strstr(said, "lr was another"));
}

/* Several lessons a step: the same rows in fewer steps, as exact as ever, shuffled and in the order of the stream. */
static void test_packed(void **state)
{
	struct offline_options o = plain();
	for (int stream = 0; stream < 2; stream++) {
		struct seen alone = {0}, a = {0}, b = {0};
		o.stream = stream;
		o.replay_share = stream ? 0.4 : 0;
		o.pack_rows = 0;
		go(*state, &o, 1, NULL, &alone);
		o.pack_rows = 72;
		go(*state, &o, 1, NULL, &a);
		assert_true(a.last.step > 0 && 3 * a.last.step < 2 * alone.last.step);
		assert_int_equal(a.last.tokens, alone.last.tokens);
		o.cache_bytes = 0;
		go(*state, &o, 2, NULL, &b);
		assert_true(a.hash == b.hash && a.hash != alone.hash);
		o.cache_bytes = 1 << 20;
		resumed(*state, o, stream ? "packed-b.state" : "packed-a.state");
	}
}

/* Begun on one path of the CPU, and gone on with on another: told and counted, once. */
static void test_resume_elsewhere(void **s)
{
	struct world *w = *s;
	struct offline_options o = plain();
	struct seen part = {.die_at = 12};
	struct dev *d = NULL;
	char dir[400];
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
	enum dev_isa other = d->isa;
	dev_free(d);
	if (other == ISA_PORTABLE)
		skip();
	(void)snprintf(dir, sizeof dir, "%s/elsewhere.state", w->dir);
	o.eval_tokens = 150;
	o.state_dir = dir;
	assert_int_equal(run(w, &o, 1, NULL, &part), -EINTR);
	part.die_at = 20;
	assert_int_equal(run(w, &o, 1, NULL, &part), -EINTR);
	assert_true(part.last.resumed > 0 && !*part.last.taken_on && part.last.inexact == 0);
	isa = other;
	part.die_at = 35;
	int r = run(w, &o, 1, NULL, &part);
	isa = ISA_PORTABLE;
	assert_int_equal(r, -EINTR);
	assert_true(part.last.resumed > 0);
	assert_non_null(strstr(part.last.taken_on, "cpu portable"));
	assert_null(strstr(part.last.device, "portable"));
	assert_int_equal(part.last.inexact, 1);
	isa = other;
	part.die_at = 0;
	r = run(w, &o, 1, NULL, &part);
	isa = ISA_PORTABLE;
	assert_int_equal(r, 0);
	assert_string_equal(part.last.taken_on, "");
	assert_int_equal(part.last.inexact, 1);
}

static void test_resume(void **state)
{
	struct offline_options o = plain();
	o.ema = 0.9;
	resumed(*state, o, "a.state");
	o.stream = true;
	o.replay_share = 0.4;
	o.anchor = 0.01;
	o.ema = 0;
	resumed(*state, o, "b.state");
}

static void test_files_and_back(void **state)
{
	struct world *w = *state;
	char files[320], glob[340], again[320];
	struct errtext e = {""};
	struct pool *p = NULL;
	struct corpus c, d;
	int64_t exported = 0;
	int n = 0;
	(void)snprintf(files, sizeof files, "%s/files", w->dir);
	(void)snprintf(glob, sizeof glob, "%s/*.safetensors", files);
	(void)snprintf(again, sizeof again, "%s/again", w->dir);
	struct pool_options po = {.dir = again, .segment_bytes = 1 << 18, .max_bytes = 64 << 20};
	assert_int_equal(corpus_export(w->pool, files, &exported, &e), 0);
	assert_int_equal(exported, 2 * RUNS);
	assert_int_equal(pool_open(&po, &p, &e), 0);
	assert_int_equal(corpus_import(glob, p, &n, &e), 0);
	pool_close(p);
	assert_int_equal(n, 2 * RUNS);
	assert_int_equal(corpus_open(w->pool, &w->fz, &c, &e), 0);
	assert_int_equal(corpus_open(again, &w->fz, &d, &e), 0);
	assert_int_equal(c.runs.n, d.runs.n);
	for (int i = 0; i < c.runs.n; i++) {
		struct joined a, b;
		assert_int_equal(corpus_load(&c, i, 0, &a), 0);
		assert_int_equal(corpus_load(&d, i, 0, &b), 0);
		assert_int_equal(a.n, b.n);
		assert_memory_equal(a.ids, b.ids, ((size_t)a.n + 1) * sizeof *a.ids);
		joined_done(&a);
		joined_done(&b);
	}
	corpus_close(&c);
	corpus_close(&d);
}

/* What is not there, is no record, or belongs to another target is said by name. */
static void test_refused(void **state)
{
	struct world *w = *state;
	char path[400], dir[320];
	struct errtext e = {""};
	struct pool *p = NULL;
	struct corpus c;
	int n = 0;
	(void)snprintf(dir, sizeof dir, "%s/empty", w->dir);
	struct pool_options po = {.dir = dir, .segment_bytes = 1 << 18, .max_bytes = 64 << 20};
	assert_int_equal(corpus_open(dir, &w->fz, &c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "empty"));
	(void)snprintf(path, sizeof path, "%s/bad.safetensors", w->dir);
	assert_int_equal(fs_write_atomic(path, "nonsense", 8), 0);
	assert_int_equal(pool_open(&po, &p, &e), 0);
	assert_true(corpus_import(path, p, &n, &e) < 0);
	assert_non_null(strstr(e.text, "bad.safetensors"));
	assert_int_equal(corpus_import("/nowhere/*.x", p, &n, &e), -EINVAL);
	pool_close(p);
	w->fz.target_fp[0] = 'c'; /* the same records, another target */
	assert_int_equal(corpus_open(w->pool, &w->fz, &c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "target"));
	w->fz.target_fp[0] = 'a';
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_same_bits, setup, teardown),
		cmocka_unit_test_setup_teardown(test_learns, setup, teardown),
		cmocka_unit_test_setup_teardown(test_held_out, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stream, setup, teardown),
		cmocka_unit_test_setup_teardown(test_resume, setup, teardown), cmocka_unit_test_setup_teardown(test_resume_elsewhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_packed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_files_and_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
