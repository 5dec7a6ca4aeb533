/* The learner is exact: killed at any point and started again, any number of times,
 * it ends with the same weights, bit for bit, as a run that repeats its journal
 * unbroken; whoever shares the work (threads) and whether records come back from
 * the pool's tail or from the log changes nothing. A disk that is full at any write ends it with a sentence, and it
 * is as exact afterwards. And what is not exact is said: a log that lost records.
 *
 * REDRAFT_KILLS=100 kills it so often (30 otherwise). */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "tests/unit/learn/toyworld.h"
#include <pthread.h>
#include "learn/crew.h"
#include "learn/evaluate.h"
#include "learn/learner.h"

/* ---- a disk that is full at the n-th write, sync or rename ---- */

static int full_at, calls; /* 0: never */

static bool full(void)
{
	if (!full_at || ++calls != full_at)
		return false;
	errno = ENOSPC;
	return true;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	return full() ? -1 : syscall(SYS_pwrite64, fd, p, n, at);
}

ssize_t write(int fd, const void *p, size_t n)
{
	return full() ? -1 : syscall(SYS_write, fd, p, n);
}

int fdatasync(int fd)
{
	return full() ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	return full() ? -1 : (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
	return full() ? -1 : (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

struct world {
	char dir[256], store[300];
	struct frozen fz;
	struct tw_source src;
	bool muon; /* and averaged weights */
	int ranks; /* that share each sequence; 0: one process as ever */
};

/* The other ranks, as threads of this process. */
struct others {
	int n;
	struct comm *c[4];
	pthread_t thread[4];
	const struct frozen *fz;
};
struct other {
	struct comm *c;
	const struct frozen *fz;
};

static void *other_main(void *arg)
{
	struct other *o = arg;
	struct dev *d = NULL;
	struct errtext e = {""};
	if (dev_cpu_new(1, ISA_PORTABLE, &d) || crew_follow(o->c, d, &(struct crew_target){o->fz->embedding, o->fz->head, o->fz->V, o->fz->H}, &e))
		print_message("a rank: %s\n", e.text);
	dev_free(d);
	free(o);
	return NULL;
}

static void others_start(struct others *x, const struct world *w, struct learner_options *o)
{
	*x = (struct others){.n = w->ranks};
	if (!w->ranks || comm_threads_new(w->ranks, x->c))
		return;
	for (int i = 1; i < x->n; i++) {
		struct other *one = malloc(sizeof *one);
		*one = (struct other){x->c[i], &w->fz};
		assert_int_equal(pthread_create(&x->thread[i], NULL, other_main, one), 0);
	}
	o->train.ranks = x->c[0];
	o->train.ulysses = w->ranks % 2 ? 1 : 2;
}

static void others_end(struct others *x)
{
	if (!x->n)
		return;
	crew_end(x->c[0]);
	for (int i = 1; i < x->n; i++)
		(void)pthread_join(x->thread[i], NULL);
	for (int i = 0; i < x->n; i++)
		comm_free(x->c[i]);
}

static void world_init(struct world *w, int requests)
{
	struct errtext e = {""};
	memset(w, 0, sizeof *w);
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, "", &w->fz, &e), 0);
	tw_source_init(&w->src);
	tw_script(&w->src, requests, 4242);
	w->src.visible = w->src.n;
}

static void world_done(struct world *w)
{
	frozen_close(&w->fz);
	tw_source_done(&w->src);
	assert_int_equal(fs_remove_tree(w->dir), 0);
}

static struct learner_options options(const struct world *w, const char *state)
{
	return (struct learner_options){
		.state_dir = state, .store = w->store, .kind = &trainer_eagle3, .seed = 99,
		.train = {.ttt_steps = 3, .decay = (real)0.8, .optimizer = w->muon ? OPT_MUON : OPT_ADAMW, .muon_iters = 3, .lr = (real)1e-3, .muon_lr = (real)0.02, .beta1 = (real)0.9,
			  .beta2 = (real)0.999, .eps = (real)1e-8, .clip = (real)0.5, .muon_momentum = (real)0.95, .warmup_steps = 5},
		.draft_vocab = 48, .max_rows = 24, .max_epochs = 2, .queue_max = 6, .heldout_max = 4, .heldout_domain_max = 3,
		.prompt_rows = true, .auto_init = true, .replay_share = 0.3, .init_min_tokens = 150, .pool_bytes = 220000, .segment_bytes = 40000,
		.replay_wait_ms = 1, .history_rows = 16, .dedup = true, .ema = w->muon ? 0.9 : 0, .anchor = w->muon ? 0.01 : 0, .max_scale = 8, .tenant_share = 1,
		.tenant_window = 1000, .request_rows = 100000, .spike = 3,
	};
}

static struct learner *open_ok(const struct learner_options *o, struct dev *d, struct world *w, int want)
{
	struct learner *l = NULL;
	struct errtext e = {""};
	int r = learner_open(o, d, w ? &w->src.base : NULL, &w->fz, &l, &e);
	if (r != want)
		print_message("learner_open: %d %s\n", r, e.text);
	assert_int_equal(r, want);
	return l;
}

/* A version as the daemon would have numbered it: manifest in place, folder renamed. */
static uint32_t accept(struct world *w, const char *name, uint32_t n)
{
	char from[512], to[512], versions[400];
	struct errtext e = {""};
	struct manifest m = {.number = n};
	(void)snprintf(from, sizeof from, "%s/incoming/%s", w->store, name);
	(void)snprintf(versions, sizeof versions, "%s/versions", w->store);
	(void)snprintf(to, sizeof to, "%s/%u", versions, n);
	assert_int_equal(fs_mkdirs(versions), 0);
	if (rename(from, to)) /* numbered in an earlier life */
		return n;
	memcpy(m.target_fp, TW_FP, 65);
	memcpy(m.draft_fp, TW_FP, 65);
	memcpy(m.weights_sha, TW_FP, 65);
	memcpy(m.model_sha, TW_FP, 65);
	memcpy(m.config_sha, TW_FP, 65);
	(void)snprintf(m.created, sizeof m.created, "2026-01-01T00:00:00.000Z");
	assert_int_equal(manifest_write(to, &m, &e), 0);
	return n;
}

static uint32_t accept_candidate(struct world *w, const char *name, uint32_t n)
{
	int was = full_at; /* the daemon's disk, not ours */
	full_at = 0;
	n = accept(w, name, n);
	full_at = was;
	return n;
}

static int entry_or(struct learner *l, enum journal_kind kind, uint32_t version, const char *text, struct errtext *e)
{
	struct journal_entry x = {.kind = kind, .version = version, .number = 1};
	(void)snprintf(x.text, sizeof x.text, "%s", text);
	return learner_do(l, &x, e);
}

static int entry(struct learner *l, enum journal_kind kind, uint32_t version, const char *text)
{
	struct errtext e = {""};
	int r = entry_or(l, kind, version, text, &e);
	if (r)
		print_message("entry: %d %s\n", r, e.text);
	return r;
}

/* One life: what a worker does, in an order drawn from `seed`; ends at `passes` passes, or by
 * _exit when die says so. 0: all is trained. */
static int life(struct world *w, const char *state, uint64_t seed, int passes, int die)
{
	struct learner_options o = options(w, state);
	struct dev *d = NULL;
	struct errtext e = {""};
	struct learner *l = NULL;
	bool done;
	int n;
	struct others ranks;
	others_start(&ranks, w, &o);
	if (dev_cpu_new(1, ISA_PORTABLE, &d) || learner_open(&o, d, &w->src.base, &w->fz, &l, &e)) {
		print_message("life: %s\n", e.text);
		return full_at && *e.text ? 8 : 9;
	}
	w->src.visible = (int)l->n.records;
	for (int i = 0; i < passes; i++) {
		uint64_t u = tw_next(&seed) % 100;
		if (die >= 0 && i == die)
			_exit(137);
		w->src.visible += (int)(tw_next(&seed) % 4);
		if (w->src.visible > w->src.n)
			w->src.visible = w->src.n;
		int r = learner_consume(l, 3, &n, &e);
		if (!r)
			r = learner_begin(l, NULL, &done, &e);
		if (!r && learner_can_step(l))
			r = learner_step(l, &e);
		if (!r && l->t && u < 12 && !*l->pending.name)
			r = learner_publish(l, &e);
		else if (!r && *l->pending.name && !*l->pending.sha)
			r = entry_or(l, J_WITHDRAW, 0, "", &e); /* as the worker does where the store could not be written */
		else if (!r && *l->pending.name && !l->pending.version && u < 40)
			r = entry_or(l, J_SUBMITTED, accept_candidate(w, l->pending.name, (uint32_t)l->published_step + 1), "", &e);
		else if (!r && l->pending.version && u < 8)
			r = entry_or(l, J_VERDICT, l->pending.version, u & 1 ? "rejected: test" : "accepted: test", &e);
		else if (!r && l->pending.version && u > 96)
			r = learner_rebase(l, l->pending.version, &e);
		if (!r && u >= 40 && u < 65)
			r = learner_checkpoint(l, &e);
		if (r) {
			print_message("life: %d %s\n", r, e.text);
			return full_at && *e.text ? 8 : 9;
		}
	}
	bool more = w->src.visible < w->src.n || learner_can_step(l);
	learner_close(l);
	others_end(&ranks);
	dev_free(d);
	return more ? 1 : 0;
}

/* Repeat `journal` unbroken in a fresh state folder. */
static void follow(struct world *w, const char *journal, const char *state, int threads, char hex[65], int64_t *step, struct learner_counts *n)
{
	struct learner_options o = options(w, state);
	struct dev *d = NULL;
	struct errtext e = {""};
	struct others ranks;
	others_start(&ranks, w, &o);
	o.follow = true;
	w->src.visible = w->src.n;
	assert_int_equal(dev_cpu_new(threads, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, w, 0);
	int r = learner_follow(l, journal, NULL, NULL, &e);
	if (r)
		print_message("follow: %s\n", e.text);
	assert_int_equal(r, 0);
	learner_weights_sha(l, hex);
	*step = l->step;
	*n = l->n;
	learner_close(l);
	others_end(&ranks);
	dev_free(d);
}

static void resumed(struct world *w, const char *state, char hex[65], int64_t *step, struct learner_counts *n)
{
	struct learner_options o = options(w, state);
	struct dev *d = NULL;
	struct others ranks;
	others_start(&ranks, w, &o);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, w, 0);
	learner_weights_sha(l, hex);
	*step = l->step;
	*n = l->n;
	learner_close(l);
	others_end(&ranks);
	dev_free(d);
}

static void remove_pool(const char *state)
{
	char path[400];
	(void)snprintf(path, sizeof path, "%s/pool", state);
	assert_int_equal(fs_remove_tree(path), 0);
}

/* Killed some thirty times: between passes, and inside writes. */
static void killed(bool muon, bool disk, int ranks)
{
	static const char *const points[] = {"journal-written", "journal-synced", "step-done", "checkpoint-before", "fs-created", "fs-half",
					     "fs-written", "fs-synced", "fs-renamed", "checkpoint-after", "publish-weights", "publish-submit"};
	struct world w;
	char state[300], again[300], a[65], b[65];
	int64_t sa, sb;
	struct learner_counts na, nb;
	uint64_t seed = 31337;
	int lives = 0, kills = 0, rc = 1, wanted = getenv("REDRAFT_KILLS") ? atoi(getenv("REDRAFT_KILLS")) : 30;
	world_init(&w, wanted > 30 ? 5 * wanted / 2 : wanted);
	w.muon = muon;
	w.ranks = ranks;
	(void)snprintf(state, sizeof state, "%s/killed", w.dir);
	(void)snprintf(again, sizeof again, "%s/again", w.dir);
	while (rc) {
		assert_true(lives < 8 * wanted);
		uint64_t life_seed = tw_next(&seed);
		bool may = !disk && kills < wanted;
		int die = lives % 2 || !may ? -1 : (int)(tw_next(&seed) % 12);
		const char *point = lives % 2 && may ? points[(lives / 2) % 12] : NULL;
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			if (point)
				setenv("REDRAFT_CRASH_AT", point, 1);
			full_at = disk && kills < 2 * wanted ? 1 + lives : 0; /* a write later in each life */
			_exit(life(&w, state, life_seed, 14, die));
		}
		int status;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		rc = WEXITSTATUS(status);
		assert_int_not_equal(rc, 9);
		kills += rc == 137 || rc == 8;
		lives++;
	}
	(void)snprintf(a, sizeof a, "%s", "");
	char journal[400];
	(void)snprintf(journal, sizeof journal, "%s/journal", state);
	resumed(&w, state, a, &sa, &na);
	follow(&w, journal, again, 1, b, &sb, &nb);
	print_message("%d lives, %d kills, %lld steps, %llu records (%llu set aside, %llu twice), weights %.12s\n", lives, kills, (long long)sa,
		      (unsigned long long)na.records, (unsigned long long)na.set_aside, (unsigned long long)na.duplicates, a);
	assert_true(kills >= wanted / 2);
	assert_true(sa > wanted / 2);
	print_message("history: %llu whole, %llu unnamed, %llu missing, %llu open, %llu short; %llu runs and %llu rows said before\n",
		      (unsigned long long)na.history[HISTORY_WHOLE], (unsigned long long)na.history[HISTORY_UNNAMED],
		      (unsigned long long)na.history[HISTORY_MISSING], (unsigned long long)na.history[HISTORY_OPEN],
		      (unsigned long long)na.history[HISTORY_SHORT], (unsigned long long)na.out[OUT_REPEATED], (unsigned long long)na.repeated_rows);
	assert_true(na.repeated_rows > 0 && na.history[HISTORY_WHOLE] > 0);
	assert_true(na.set_aside > 0 && na.duplicates > 0);
	assert_int_equal(na.steps_bad, 0);
	assert_int_equal(sa, sb);
	assert_string_equal(a, b);
	assert_memory_equal(&na, &nb, sizeof na);
	/* threads change nothing */
	assert_int_equal(fs_remove_tree(again), 0);
	follow(&w, journal, again, 2, b, &sb, &nb);
	assert_string_equal(a, b);
	world_done(&w);
}

static void test_killed(void **unused)
{
	(void)unused;
	killed(false, false, 0);
}

static void test_killed_muon(void **unused)
{
	(void)unused;
	killed(true, false, 0);
}

static void test_disk_full(void **unused)
{
	(void)unused;
	killed(false, true, 0);
}

/* A group is as exact as one process: rank 0's journal and checkpoint are the group's. */
static void test_killed_ranks(void **unused)
{
	(void)unused;
	killed(false, false, 2);
	killed(true, false, 3);
}

/* The pool's tail is a shortcut, not a need: without it the records come from the log again. */
static void test_from_log(void **unused)
{
	struct world w;
	char state[300], a[65], b[65], none[65] = "";
	int64_t sa, sb;
	struct learner_counts na, nb;
	(void)unused;
	world_init(&w, 10);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	assert_int_not_equal(life(&w, state, 5, 40, -1), 9);
	w.src.visible = w.src.n;
	w.src.reads = 0;
	resumed(&w, state, a, &sa, &na);
	int few = w.src.reads;
	char path[400];
	(void)snprintf(path, sizeof path, "%s/checkpoint", state);
	assert_int_equal(fs_remove_tree(path), 0); /* from the first entry */
	remove_pool(state);
	w.src.reads = 0;
	resumed(&w, state, b, &sb, &nb);
	print_message("reads of the log: %d with the pool's tail, %d without\n", few, w.src.reads);
	assert_true(w.src.reads > few);
	assert_int_equal(sa, sb);
	assert_string_equal(a, b);
	assert_string_not_equal(a, none);
	world_done(&w);
}

/* A log that lost what must be read again: said so, journalled, and learning goes on. */
static void test_lost_log(void **unused)
{
	struct world w;
	char state[300], path[400];
	struct dev *d = NULL;
	struct errtext e = {""};
	int n;
	(void)unused;
	world_init(&w, 10);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	assert_int_not_equal(life(&w, state, 6, 30, -1), 9);
	(void)snprintf(path, sizeof path, "%s/checkpoint", state);
	assert_int_equal(fs_remove_tree(path), 0);
	remove_pool(state);
	w.src.visible = w.src.n;
	for (int p = 0; p < TW_PARTS; p++)
		w.src.low[p] = 3;
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, LEARNER_E_INEXACT);
	assert_int_equal(l->n.inexact, 1);
	for (int i = 0; i < 20; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_true(l->n.offset_gaps > 0 && l->n.lost > 0);
	assert_true(l->n.records > 10);
	learner_close(l);
	l = open_ok(&o, d, &w, 0); /* and that is repeatable again */
	assert_true(l->n.offset_gaps > 0);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* A topic made anew under the same name: the cursor goes back to its start, nothing is compared by offset alone. */
static void test_topic_anew(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	int n;
	(void)unused;
	world_init(&w, 8);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	uint64_t before = l->n.records;
	assert_int_equal(before, (uint64_t)w.src.n);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	/* the same log: verified, nothing read twice */
	l = open_ok(&o, d, &w, 0);
	assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(n, 0);
	assert_int_equal(l->n.offset_gaps, 0);
	learner_close(l);
	/* another log under the same offsets */
	tw_source_done(&w.src);
	tw_source_init(&w.src);
	tw_script(&w.src, 9, 777);
	w.src.visible = w.src.n;
	for (int i = 0; i < w.src.n; i++) /* another producer wrote it */
		for (uint8_t *p = w.src.v[i].blob.data; (p = memmem(p, w.src.v[i].blob.len - (size_t)(p - w.src.v[i].blob.data), "toy-producer", 12));)
			memcpy(p, "new-producer", 12);
	l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_true(l->n.offset_gaps >= 1);
	assert_true(l->n.records - before > (uint64_t)w.src.n / 2);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* A copy that comes after a restart is known for one. */
static void test_copy_after_restart(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	int n;
	(void)unused;
	world_init(&w, 0);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct tw_record q = {.request = "a", .domain = "code", .T = 12, .n_prompt = 6, .seed = 1, .seq = 41};
	tw_encode(&q, &b);
	tw_add(&w.src, 1, b.data, b.len);
	tw_add(&w.src, 1, b.data, b.len);
	w.src.visible = 1;
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	l = open_ok(&o, d, &w, 0);
	w.src.visible = 2;
	assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_int_equal(l->n.duplicates, 1);
	assert_int_equal(l->n.rows, 12);
	learner_close(l);
	dev_free(d);
	buf_done(&b);
	world_done(&w);
}

/* Junk of every kind: set aside with its reason within bounds, counted past them, and the cursor moves on. */
static void test_set_aside(void **unused)
{
	struct world w;
	char state[300], path[400], *reason = NULL;
	struct dev *d = NULL;
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	int n;
	(void)unused;
	world_init(&w, 0);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct tw_record q = {.request = "a", .domain = "code", .T = 12, .n_prompt = 6, .seed = 1, .seq = 1};
	tw_add(&w.src, 0, "", 0);
	buf_done(&w.src.v[0].blob); /* no value at all */
	tw_add(&w.src, 0, "junk", 4);
	tw_encode(&q, &b);
	for (uint8_t *p = b.data; (p = memmem(p, b.len - (size_t)(p - b.data), "abab", 4));) /* another target */
		memcpy(p, "cdcd", 4);
	tw_add(&w.src, 0, b.data, b.len);
	for (int i = 0; i < 300; i++)
		tw_add(&w.src, 0, "x\xff\xff", 3);
	buf_clear(&b);
	tw_encode(&q, &b);
	tw_add(&w.src, 0, b.data, b.len);
	w.src.visible = w.src.n;
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 60; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(l->n.set_aside, 303);
	assert_int_equal(l->n.records, 304);
	assert_int_equal(l->n.rows, 12);
	assert_int_equal(l->at[0].next, 304);
	assert_true(l->aside_files <= 200);
	(void)snprintf(path, sizeof path, "%s/set-aside/0-2.reason", state);
	assert_int_equal(fs_read_text(path, 1000, &reason), 0);
	assert_non_null(strstr(reason, "target_fp"));
	free(reason);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	dev_free(d);
	buf_done(&b);
	world_done(&w);
}

/* What closes after a candidate is written is kept from training until the verdict, within its bounds. */
static void test_held_out(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	bool done;
	int n;
	(void)unused;
	world_init(&w, 24);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	o.pool_bytes = 100 << 20;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	w.src.visible = w.src.n / 3;
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	assert_true(done);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), 0);
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 1), ""), 0);
	w.src.visible = w.src.n;
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), o.heldout_max);
	while (learner_can_step(l))
		assert_int_equal(learner_step(l, &e), 0);
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_HELD_OUT)
			assert_int_equal(l->runs.v[i].epochs, 0);
	/* judged on them, both ways */
	json_t *j = NULL;
	assert_int_equal(evaluate(l, 1, 0, 3, &j, &e), 0);
	assert_int_equal(json_integer_value(json_object_get(j, "requests")), o.heldout_max);
	assert_true(json_is_true(json_object_get(j, "full")));
	json_t *pair = json_array_get(json_object_get(j, "pairs"), 0);
	assert_true(json_real_value(json_object_get(pair, "live_al")) == 1.0);
	assert_true(json_real_value(json_object_get(pair, "candidate_al")) >= 1.0);
	json_decref(j);
	assert_int_equal(evaluate(l, 1, 1, 3, &j, &e), 0);
	pair = json_array_get(json_object_get(j, "pairs"), 0);
	assert_true(json_real_value(json_object_get(pair, "live_al")) == json_real_value(json_object_get(pair, "candidate_al")));
	json_decref(j);
	assert_int_equal(evaluate(l, 7, 1, 3, &j, &e) < 0, 1);
	/* another version's verdict frees nothing, this one's does */
	assert_int_equal(entry(l, J_VERDICT, 2, "accepted"), 0);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), o.heldout_max);
	assert_int_equal(entry(l, J_VERDICT, 1, "accepted"), 0);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), 0);
	assert_true(learner_can_step(l));
	assert_int_equal(evaluate(l, 1, 0, 3, &j, &e), EVALUATE_E_NOT_ENOUGH);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* Where a learner without a checkpoint goes on: live, the base though it was refused, the newest not refused. */
static void test_start(void **unused)
{
	static const struct { uint32_t live, base, want; enum version_state of[3]; } cases[] = {
		{3, 1, 3, {VS_RETIRED, VS_PREVIOUS, VS_LIVE}}, {2, 1, 2, {VS_RETIRED, VS_LIVE, VS_CANDIDATE}},
		{0, 1, 1, {VS_REJECTED, VS_REJECTED, VS_REJECTED}}, {0, 1, 1, {VS_REJECTED, VS_REJECTED, VS_CANDIDATE}},
		{0, 1, 2, {VS_QUARANTINED, VS_GATED, VS_REJECTED}}, {0, 1, 0, {VS_QUARANTINED, VS_REJECTED, VS_QUARANTINED}},
		{0, 0, 3, {VS_RETIRED, VS_RETIRED, VS_RETIRED}},
	};
	char dir[256];
	(void)unused;
	tw_temp_dir(dir);
	assert_int_equal(publish_newest(dir), 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct version_entry v[3] = {{.number = 1, .state = cases[i].of[0]}, {.number = 2, .state = cases[i].of[1]}, {.number = 3, .state = cases[i].of[2]}};
		struct store_state s = {.next_number = 4, .live = cases[i].live, .base = cases[i].base, .n_versions = 3, .versions = v};
		assert_int_equal(store_state_write(dir, &s, NULL), 0);
		assert_int_equal(publish_newest(dir), cases[i].want);
	}
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* Rebase: the version's weights (bf16 widened) with fresh moments; a bad number changes and journals nothing. */
static void test_rebase(void **unused)
{
	struct world w;
	char state[300], before[65], after[65];
	struct dev *d = NULL;
	struct errtext e = {""};
	bool done;
	int n;
	(void)unused;
	world_init(&w, 12);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 1), ""), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(learner_step(l, &e), 0);
	learner_weights_sha(l, before);
	int64_t end = journal_end(l->journal);
	assert_true(learner_rebase(l, 5, &e) < 0);
	assert_int_equal(journal_end(l->journal), end);
	learner_weights_sha(l, after);
	assert_string_equal(before, after);
	assert_int_equal(learner_rebase(l, 1, &e), 0);
	learner_weights_sha(l, after);
	assert_string_not_equal(before, after);
	struct draft v;
	assert_int_equal(publish_read_version(w.store, 1, &w.fz, &v, &e), 0);
	assert_memory_equal(v.w, trainer_eagle3.params(l->t), v.n * sizeof *v.w);
	draft_done(&v);
	/* one that overtakes the answer to Submit: the candidate is numbered, what is trained descends from 1 */
	assert_int_equal(entry(l, J_VERDICT, 1, "rejected"), 0);
	assert_int_equal(learner_step(l, &e), 0);
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(learner_rebase(l, 1, &e), 0);
	learner_close(l);
	l = open_ok(&o, d, &w, 0);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 2), ""), 0);
	assert_int_equal(l->pending.version, 2);
	assert_int_equal(l->base, 1);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed), cmocka_unit_test(test_killed_muon), cmocka_unit_test(test_killed_ranks), cmocka_unit_test(test_disk_full), cmocka_unit_test(test_from_log), cmocka_unit_test(test_lost_log),
		cmocka_unit_test(test_topic_anew), cmocka_unit_test(test_copy_after_restart), cmocka_unit_test(test_set_aside), cmocka_unit_test(test_held_out), cmocka_unit_test(test_start),
		cmocka_unit_test(test_rebase),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
