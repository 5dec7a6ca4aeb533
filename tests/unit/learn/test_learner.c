/* The learner is exact: killed at any point (between its operations, inside its writes, or by SIGKILL at a moment that
 * nobody chose) and started again, any number of times, it ends with the same weights, bit for bit, as a run that
 * repeats its journal unbroken; whoever shares the work (threads) and whether records come back from
 * the pool's tail or from the log changes nothing. A disk that is full at any write ends it with a sentence, and it
 * is as exact afterwards. And what is not exact is said: a log that lost records.
 *
 * REDRAFT_KILLS=100 kills it so often (36 otherwise, which is twice the crash points). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "tests/unit/learn/learner_world.h"
#include "learn/crew.h"

/* ---- a disk that is full at the n-th write, sync or rename ---- */

static int full_at; /* 0: never */
static _Atomic int calls; /* of the writer of checkpoints too */
static _Thread_local bool beside; /* on the daemon's disk, not ours */

static bool full(void)
{
	if (!full_at || beside || ++calls != full_at)
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
	o->train.data = w->groups ? w->groups : 1;
	o->train.ulysses = w->ranks / o->train.data % 2 ? 1 : 2;
}

static void others_end(struct others *x)
{
	if (!x->n)
		return;
	crew_end(x->c[0], NULL);
	for (int i = 1; i < x->n; i++)
		(void)pthread_join(x->thread[i], NULL);
	for (int i = 0; i < x->n; i++)
		comm_free(x->c[i]);
}

/* A version's number follows from its candidate's name, so that it is numbered once however often it is asked for. */
static uint32_t number_of(const char *name)
{
	return (uint32_t)(run_hash(RUN_HASH, name, strlen(name)) % 1000000) + 1;
}

static uint32_t accept_beside(struct world *w, const char *name)
{
	beside = true;
	uint32_t n = accept_candidate(w, name, number_of(name));
	beside = false;
	return n;
}

/* One life: what a worker does, in an order drawn from `seed`; ends at `passes` passes, or by
 * _exit when die says so. 0: all is trained. 1: not all. 7: not all, and it went on without a checkpoint or a candidate for which the disk was full. 8: the disk
 * was full. 9: a mistake. */
static int life(struct world *w, const char *state, uint64_t seed, int passes, int die)
{
	struct learner_options o = options(w, state);
	struct dev *d = NULL;
	struct errtext e = {""}, late = {""};
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
		else if (!r && *l->pending.name && !l->pending.version && !l->pending.writing && !*l->pending.sha)
			r = entry_or(l, J_WITHDRAW, 0, "", &e); /* as the worker does where the store could not be written */
		else if (!r && *l->pending.sha && !l->pending.version && u < 40)
			r = entry_or(l, J_SUBMITTED, accept_beside(w, l->pending.name), "", &e);
		else if (!r && l->pending.version && u < 8)
			r = entry_or(l, J_VERDICT, l->pending.version, u & 1 ? "rejected: test" : "accepted: test", &e);
		else if (!r && l->pending.version && u > 96)
			r = learner_rebase(l, l->pending.version, &e);
		if (!r && u >= 40 && u < 65) /* most of them beside the next passes */
			r = u < 46 ? learner_checkpoint(l, &e) : learner_checkpoint_begin(l, &e);
		if (learner_write_end(l, false, &late) < 0 && !full_at)
			r = errtext_set(&e, -EIO, "%s", late.text);
		if (r) {
			print_message("life: %d %s\n", r, e.text);
			return full_at && *e.text ? 8 : 9;
		}
	}
	bool more = w->src.visible < w->src.n || learner_can_step(l);
	int went_on = l->saved.failed || l->candidate.failed ? 7 : 1;
	learner_close(l);
	others_end(&ranks);
	dev_free(d);
	return more ? went_on : 0;
}

/* Repeat `journal` unbroken in a fresh state folder. */
static void follow(struct world *w, const char *journal, const char *state, int threads, char hex[65], int64_t *step, struct learner_counts *n, uint64_t *pinned)
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
	*pinned = pinned_members(l);
	learner_close(l);
	others_end(&ranks);
	dev_free(d);
}

static void resumed(struct world *w, const char *state, char hex[65], int64_t *step, struct learner_counts *n, uint64_t *pinned)
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
	*pinned = pinned_members(l);
	learner_close(l);
	others_end(&ranks);
	dev_free(d);
}

/* Are the weights those of an unbroken repeat of the journal, by one thread and by two? */
static void same_as_unbroken(struct world *w, const char *state, struct learner_counts *ret, int64_t *ret_steps, char ret_sha[65])
{
	char again[300], journal[400], b[65];
	struct learner_counts nb;
	int64_t sb;
	uint64_t pinned, pinned_b;
	(void)snprintf(again, sizeof again, "%s/again", w->dir);
	(void)snprintf(journal, sizeof journal, "%s/journal", state);
	resumed(w, state, ret_sha, ret_steps, ret, &pinned);
	print_message("pinned: %s\n", pinned == RUN_HASH ? "nobody" : "some");
	for (int threads = 1; threads <= 2; threads++) {
		follow(w, journal, again, threads, b, &sb, &nb, &pinned_b);
		assert_true(pinned == pinned_b);
		assert_int_equal(*ret_steps, sb);
		assert_string_equal(ret_sha, b);
		assert_memory_equal(ret, &nb, sizeof nb);
		assert_int_equal(fs_remove_tree(again), 0);
	}
}

/* The learner's weights as they would be published now. */
static void hash_draft(const struct world *w, struct learner *l, char ret_sha[static 65])
{
	char dir[400];
	struct errtext e = {""};
	json_t *nothing = json_object();
	(void)snprintf(dir, sizeof dir, "%s/draft", w->dir);
	assert_int_equal(publish_write_folder(dir, &l->file, l->d2t, learner_draft(l), &w->fz, nothing, ret_sha, &e), 0);
	json_decref(nothing);
}

static void hash_version(const struct world *w, uint32_t n, char ret_sha[static 65])
{
	char dir[400];
	struct draft_files *f = NULL;
	struct errtext e = {""};
	(void)snprintf(dir, sizeof dir, "%s/versions/%u", w->store, n);
	assert_int_equal(draft_open(dir, w->fz.n_layer, &f, &e), 0);
	assert_int_equal(draft_weights_sha(f, ret_sha), 0);
	draft_close(f);
}

/* Every candidate of the journal was numbered or withdrawn once, or waits still, and what was numbered are the weights of its entry's place in it. */
static void same_candidates(struct world *w, const char *state)
{
	char again[300], path[400], sha[65] = "", of[65];
	struct learner_options o = options(w, again);
	struct journal_entry x;
	struct journal *j = NULL;
	struct dev *d = NULL;
	struct errtext e = {""};
	struct others ranks;
	int64_t at = 0, next;
	int numbered = 0, withdrawn = 0;
	(void)snprintf(again, sizeof again, "%s/again", w->dir);
	(void)snprintf(path, sizeof path, "%s/journal", state);
	others_start(&ranks, w, &o);
	o.follow = true;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	assert_int_equal(journal_open(path, true, NULL, &j, &e), 0);
	struct learner *l = open_ok(&o, d, w, 0);
	l->repeating = true;
	for (; !journal_read(j, at, &x, &next); at = next) {
		bool waits = *l->pending.name && !l->pending.version;
		if (x.kind == J_PUBLISH) {
			assert_false(waits);
			hash_draft(w, l, sha);
		} else if (x.kind == J_SUBMITTED) {
			assert_true(waits);
			assert_int_equal(x.version, number_of(l->pending.name));
			hash_version(w, x.version, of);
			assert_string_equal(of, sha);
			numbered++;
		} else if (x.kind == J_WITHDRAW) {
			assert_true(waits);
			withdrawn++;
		}
		assert_int_equal(learner_apply(l, &x, &e), 0);
	}
	l->repeating = false;
	bool waits = *l->pending.name && !l->pending.version;
	learner_close(l);
	assert_int_equal(fs_remove_tree(again), 0);
	if (waits) { /* it is there, or will be */
		o.state_dir = state;
		o.follow = false;
		l = open_ok(&o, d, w, 0);
		assert_int_equal(learner_write_end(l, true, &e), 0);
		assert_string_equal(l->pending.sha, sha);
		learner_close(l);
	}
	journal_close(j);
	others_end(&ranks);
	dev_free(d);
	print_message("candidates: %d numbered, %d withdrawn, %d wait\n", numbered, withdrawn, waits);
	assert_true(numbered > 0);
}

static void remove_pool(const char *state)
{
	char path[400];
	(void)snprintf(path, sizeof path, "%s/pool", state);
	assert_int_equal(fs_remove_tree(path), 0);
}

static int kills_wanted(void)
{
	return getenv("REDRAFT_KILLS") ? atoi(getenv("REDRAFT_KILLS")) : 36;
}

/* Killed some forty times: between passes, and inside writes. */
static void killed(bool muon, bool disk, int ranks, int groups)
{
	static const char *const points[] = {"journal-written", "journal-synced", "step-done", "checkpoint-begun", "checkpoint-synced",
					     "checkpoint-before", "fs-created", "fs-half", "fs-written", "fs-synced", "fs-renamed", "checkpoint-after",
					     "checkpoint-durable", "candidate-begun", "publish-weights", "publish-submit", "candidate-durable"};
	enum { POINTS = sizeof points / sizeof *points };
	struct world w;
	char state[300], a[65];
	int64_t sa;
	struct learner_counts na;
	uint64_t seed = 31337;
	int lives = 0, kills = 0, went_on = 0, rc = 1, wanted = kills_wanted();
	world_init(&w, wanted > 36 ? 5 * wanted / 2 : 3 * wanted / 2);
	w.muon = muon;
	w.ranks = ranks;
	w.groups = groups;
	(void)snprintf(state, sizeof state, "%s/killed", w.dir);
	while (rc) {
		assert_true(lives < 8 * wanted);
		uint64_t life_seed = tw_next(&seed);
		bool may = !disk && kills < wanted;
		int die = lives % 2 || !may ? -1 : (int)(tw_next(&seed) % 12);
		const char *point = lives % 2 && may ? points[(lives / 2) % POINTS] : NULL;
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
		kills += rc == 137 || rc == 8 || rc == 7;
		went_on += rc == 7;
		lives++;
	}
	same_as_unbroken(&w, state, &na, &sa, a);
	same_candidates(&w, state);
	print_message("%d lives, %d kills (%d went on without a checkpoint or a candidate), %lld steps, %llu records (%llu set aside, %llu twice), weights %.12s\n", lives, kills, went_on, (long long)sa,
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
	world_done(&w);
}

/* SIGKILL after a random time, at most as long as a life about takes: that limit follows what happens, so that on a machine
 * of any speed most lives are killed and some end by themselves. */
static void test_killed_by_clock(void **unused)
{
	struct world w;
	char state[300], a[65];
	int64_t steps;
	struct learner_counts n;
	uint64_t seed = 777;
	int lives = 0, kills = 0, rc = 1, wanted = kills_wanted();
	double limit_us = 20000;
	(void)unused;
	world_init(&w, 3 * wanted);
	(void)snprintf(state, sizeof state, "%s/killed", w.dir);
	while (rc) {
		uint64_t life_seed = tw_next(&seed), u = tw_next(&seed) >> 11;
		bool may = kills < wanted && lives < 4 * wanted;
		int status;
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			_exit(life(&w, state, life_seed, may ? 4 : 14, -1));
		if (may) {
			(void)usleep((useconds_t)((double)u * 0x1p-53 * limit_us));
			(void)kill(pid, SIGKILL);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		bool killed_it = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		assert_true(killed_it || WIFEXITED(status));
		kills += killed_it;
		rc = killed_it ? 1 : WEXITSTATUS(status);
		assert_true(rc == 0 || rc == 1);
		if (may)
			limit_us *= killed_it ? 1.1 : 0.7;
		lives++;
	}
	same_as_unbroken(&w, state, &n, &steps, a);
	same_candidates(&w, state);
	print_message("%d lives, %d killed at a random moment, the last limit %.1f ms; %lld steps, %llu records, weights %.12s\n", lives, kills, limit_us / 1000, (long long)steps,
		      (unsigned long long)n.records, a);
	assert_true(kills > 0 && steps > wanted / 2);
	assert_int_equal(n.steps_bad, 0);
	world_done(&w);
}

static void test_killed(void **unused)
{
	(void)unused;
	killed(false, false, 0, 0);
}

static void test_killed_muon(void **unused)
{
	(void)unused;
	killed(true, false, 0, 0);
}

static void test_disk_full(void **unused)
{
	(void)unused;
	killed(false, true, 0, 0);
}

/* A group is as exact as one process: rank 0's journal and checkpoint are the group's. */
static void test_killed_ranks(void **unused)
{
	(void)unused;
	killed(false, false, 2, 1);
	killed(true, false, 3, 1);
	killed(true, false, 2, 2);
}

/* The pool's tail is a shortcut, not a need: without it the records come from the log again. */
static void test_from_log(void **unused)
{
	struct world w;
	char state[300], a[65], b[65], none[65] = "";
	int64_t sa, sb;
	struct learner_counts na, nb;
	uint64_t pinned_a, pinned_b;
	(void)unused;
	world_init(&w, 10);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	assert_int_not_equal(life(&w, state, 5, 40, -1), 9);
	w.src.visible = w.src.n;
	w.src.reads = 0;
	resumed(&w, state, a, &sa, &na, &pinned_a);
	int few = w.src.reads;
	char path[400];
	(void)snprintf(path, sizeof path, "%s/checkpoint", state);
	assert_int_equal(fs_remove_tree(path), 0); /* from the first entry */
	remove_pool(state);
	w.src.reads = 0;
	resumed(&w, state, b, &sb, &nb, &pinned_b);
	print_message("reads of the log: %d with the pool's tail, %d without\n", few, w.src.reads);
	assert_true(w.src.reads > few);
	assert_int_equal(sa, sb);
	assert_string_equal(a, b);
	assert_string_not_equal(a, none);
	assert_true(pinned_a == pinned_b);
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
	assert_non_null(strstr(l->last_gap, "records 0 to 2 passed retention")); /* said: what, and how it goes on */
	assert_non_null(strstr(l->last_gap, "reading on at 3"));
	learner_close(l);
	l = open_ok(&o, d, &w, 0); /* and that is repeatable again */
	assert_true(l->n.offset_gaps > 0);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* Steps repeated on another ISA path than they were taken on: said once they are, and not when it is the same. */
static void test_other_device(void **unused)
{
	struct world w;
	char state[300], path[400];
	struct dev *d[2] = {NULL, NULL};
	(void)unused;
	if (dev_cpu_new(1, ISA_AVX2, &d[1]))
		skip();
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d[0]), 0);
	world_init(&w, 10);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	assert_int_not_equal(life(&w, state, 6, 30, -1), 9); /* portable */
	(void)snprintf(path, sizeof path, "%s/checkpoint", state);
	assert_int_equal(fs_remove_tree(path), 0);
	w.src.visible = w.src.n;
	struct learner_options o = options(&w, state);
	struct learner *l = open_ok(&o, d[0], &w, 0);
	assert_true(l->step > 0);
	assert_string_equal(l->o.device, "cpu portable, sums 2");
	learner_close(l);
	l = open_ok(&o, d[1], &w, LEARNER_E_INEXACT);
	assert_int_equal(l->n.inexact, 1);
	assert_string_equal(l->o.device, "cpu avx2, sums 2");
	learner_close(l);
	dev_free(d[0]);
	dev_free(d[1]);
	world_done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_other_device),
		cmocka_unit_test(test_killed), cmocka_unit_test(test_killed_by_clock), cmocka_unit_test(test_killed_muon),
		cmocka_unit_test(test_killed_ranks), cmocka_unit_test(test_disk_full), cmocka_unit_test(test_from_log), cmocka_unit_test(test_lost_log),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
