/* Ranks as processes, `redraft-learn train`, the real program: over MPI, started by mpirun, and over NCCL, which find each other.
 *
 * A group trains what one process trains (the loss it reports, to rounding), for several grids; two runs of a group write
 * the same file; and when a rank is killed (SIGKILL) in the middle, the others end within seconds with a sentence, leave
 * nothing half-written, and the same command goes on to the very file that an unbroken run writes.
 * MPI is skipped where mpirun or redraft-mpi.so is missing, and both in builds where Open MPI itself would be what is tested. For NCCL
 * devices and library are tests/cuemu's, so a run is two steps.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/pool.h"

#ifdef __SANITIZE_ADDRESS__
#define BUILD "asan"
#elif defined(REDRAFT_DOUBLE)
#define BUILD "double"
#else
#define BUILD "release"
#endif

enum { RUNS = 10, ROWS = 120 };

struct world {
	char dir[256], store[300], pool[300];
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	struct errtext e = {""};
	struct pool_ref ref;
	struct pool *p = NULL;
	struct buf b = BUF_INIT(0);
	assert_non_null(w);
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	(void)snprintf(w->pool, sizeof w->pool, "%s/pool", w->dir);
	tw_store(w->store);
	struct pool_options po = {.dir = w->pool, .segment_bytes = 1 << 18, .max_bytes = 64 << 20};
	assert_int_equal(pool_open(&po, &p, &e), 0);
	for (int i = 0; i < RUNS; i++) {
		struct tw_record q = {.T = ROWS - i, .n_prompt = 30, .last = true, .seq = (uint64_t)i + 1, .seed = 5 + (uint64_t)i % 3};
		(void)snprintf(q.request, sizeof q.request, "r%d", i);
		(void)snprintf(q.domain, sizeof q.domain, "code");
		buf_clear(&b);
		tw_encode(&q, &b);
		assert_int_equal(pool_append(p, 0, i, 0, b.data, (uint32_t)b.len, &ref), 0);
	}
	assert_int_equal(pool_sync(p), 0);
	pool_close(p);
	buf_done(&b);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;
	assert_int_equal(fs_remove_tree(w->dir), 0);
	free(w);
	return 0;
}

static bool can_run(void)
{
	struct stat st;
	if (strcmp(BUILD, "release") != 0 || stat("build/release/lib/redraft/redraft-mpi.so", &st) || stat("build/release/bin/redraft-learn", &st) ||
	    system("mpirun --version >/dev/null 2>&1")) {
		print_message("skipped: needs mpirun, redraft-mpi.so and the release build\n");
		return false;
	}
	return true;
}

/* The command that trains into dir/name; ranks 0: without mpirun. */
static void command(const struct world *w, const char *name, int ranks, int ulysses, int epochs, const char *more, char ret[2048])
{
	char mpi[160] = "";
	if (ranks)
		(void)snprintf(mpi, sizeof mpi, "timeout 100 mpirun --allow-run-as-root --oversubscribe -np %d", ranks);
	(void)snprintf(ret, 2048,
		       "exec %s build/release/bin/redraft-learn train --from_pool %s --store %s --out %s/%s --epochs %d --threads 1 --nice 0 --train.ttt_steps 4 --train.draft_vocab 80 "
		       "--train.max_rows 64 --ranks.ulysses %d %s >%s/%s.log 2>&1",
		       mpi, w->pool, w->store, w->dir, name, epochs, ulysses, more, w->dir, name);
}

static void show_log(const struct world *w, const char *name)
{
	char cmd[400];
	(void)snprintf(cmd, sizeof cmd, "tail -20 %s/%s.log >&2", w->dir, name);
	(void)!system(cmd);
}

static void train(const struct world *w, const char *name, int ranks, int ulysses, int epochs, const char *more)
{
	char cmd[2048];
	command(w, name, ranks, ulysses, epochs, more, cmd);
	if (system(cmd)) {
		show_log(w, name);
		fail_msg("%s", cmd);
	}
}

/* What the run says of itself in submit.json. */
static double loss_of(const struct world *w, const char *name)
{
	char path[400];
	(void)snprintf(path, sizeof path, "%s/%s/submit.json", w->dir, name);
	json_t *j = json_load_file(path, 0, NULL);
	double loss = json_real_value(json_object_get(json_object_get(j, "training"), "loss"));
	assert_non_null(j);
	json_decref(j);
	assert_true(loss > 0);
	return loss;
}

static void assert_same_file(const struct world *w, const char *a, const char *b)
{
	char cmd[1024];
	(void)snprintf(cmd, sizeof cmd, "cmp %s/%s/model.safetensors %s/%s/model.safetensors", w->dir, a, w->dir, b);
	assert_int_equal(system(cmd), 0);
}

static void test_grids(void **state)
{
	/* ranks, ulysses; two groups take two windows a step, as one process does that has room for them */
	static const struct {
		int ranks, ulysses;
		const char *more;
		bool groups;
	} grids[] = {{2, 1, "", false}, {2, 2, "", false}, {3, 1, "", false}, {4, 2, "", false}, {2, 1, "--ranks.data 2", true}, {4, 2, "--ranks.data 2", true}};
	struct world *w = *state;
	char name[32];
	if (!can_run())
		skip();
	train(w, "one", 0, 1, 1, "");
	train(w, "two", 0, 1, 1, "--train.pack_rows 128");
	for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
		(void)snprintf(name, sizeof name, "g%zu", i);
		train(w, name, grids[i].ranks, grids[i].ulysses, 1, grids[i].more);
		double got = loss_of(w, name), want = loss_of(w, grids[i].groups ? "two" : "one");
		print_message("%d ranks, ulysses %d %s: loss %.9f, one rank %.9f\n", grids[i].ranks, grids[i].ulysses, grids[i].more, got, want);
		assert_true(fabs(got - want) <= 1e-4 * want);
	}
	assert_true(fabs(loss_of(w, "one") - loss_of(w, "two")) > 1e-3 * loss_of(w, "one")); /* else the groups would prove nothing */
	train(w, "again", 4, 2, 1, "--ranks.data 2");
	assert_same_file(w, "again", "g5");
	char cmd[2048];
	command(w, "bad", 2, 3, 1, "", cmd);
	assert_true(system(cmd) != 0); /* a grid that does not fit */
	(void)snprintf(cmd, sizeof cmd, "grep -q 'must divide the 2 ranks' %s/bad.log", w->dir);
	assert_int_equal(system(cmd), 0);
}

enum { EPOCHS = 12 }; /* of the run in whose middle a rank is killed */

static void nap(void)
{
	const struct timespec t = {.tv_nsec = 20000000};
	(void)nanosleep(&t, NULL);
}

/* The pid of a rank of the group whose output is dir/name. */
static pid_t pid_of_rank(const struct world *w, const char *name, const char *rank)
{
	char path[300], want[400], text[8192];
	pid_t found = 0;
	(void)snprintf(want, sizeof want, "%s/%s", w->dir, name);
	DIR *d = opendir("/proc");
	assert_non_null(d);
	for (const struct dirent *de; !found && (de = readdir(d));) {
		bool ours = false;
		for (int which = 0; which < 2 && de->d_name[0] >= '1' && de->d_name[0] <= '9'; which++) {
			(void)snprintf(path, sizeof path, "/proc/%.20s/%s", de->d_name, which ? "environ" : "cmdline");
			FILE *f = fopen(path, "r");
			size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
			bool hit = false, program = false;
			if (f)
				(void)fclose(f);
			text[n] = 0;
			for (char *p = text; p < text + n; p += strlen(p) + 1) {
				hit |= which ? strncmp(p, "OMPI_COMM_WORLD_RANK=", 21) == 0 && strcmp(p + 21, rank) == 0 : strcmp(p, want) == 0;
				program |= p == text && strstr(p, "redraft-learn") != NULL;
			}
			if (which && ours && hit)
				found = (pid_t)atoi(de->d_name);
			ours = !which && hit && program;
		}
	}
	(void)closedir(d);
	return found;
}

/* The newest step whose state is on disk. */
static long saved_step(const char *dir)
{
	long newest = 0;
	DIR *d = opendir(dir);
	for (const struct dirent *de; d && (de = readdir(d));) {
		long s = strtol(de->d_name, NULL, 10);
		newest = s > newest ? s : newest;
	}
	if (d)
		(void)closedir(d);
	return newest;
}

static void kill_a_rank(const struct world *w, const char *name, const char *rank, const char *sentence)
{
	char cmd[2048], state[400];
	pid_t victim = 0, mpirun;
	int status, seconds;
	command(w, name, 4, 2, EPOCHS, "--resume on --eval.tokens 300", cmd);
	(void)snprintf(state, sizeof state, "%s/%s.state", w->dir, name);
	mpirun = fork();
	if (mpirun == 0) {
		execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 1500 && (!saved_step(state) || !(victim = pid_of_rank(w, name, rank))); i++)
		nap();
	nap(); /* into the steps after it, of which EPOCHS leave enough on a machine that takes one a millisecond */
	if (!victim)
		show_log(w, name);
	assert_true(victim > 0);
	time_t t0 = time(NULL);
	assert_int_equal(kill(victim, SIGKILL), 0);
	assert_int_equal(waitpid(mpirun, &status, 0), mpirun);
	seconds = (int)(time(NULL) - t0);
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < 100 && pid_of_rank(w, name, strcmp(rank, "0") ? "0" : "1"); i++)
		nap();
	assert_int_equal(pid_of_rank(w, name, "0") + pid_of_rank(w, name, "1") + pid_of_rank(w, name, "2") + pid_of_rank(w, name, "3"), 0);
	print_message("rank %s killed: the group ended after %d s\n", rank, seconds);
	assert_true(seconds <= 60); /* one or two; far from ranks.timeout_s on any machine */
	(void)snprintf(cmd, sizeof cmd, "grep -q '%s' %s/%s.log", sentence, w->dir, name);
	if (system(cmd)) {
		show_log(w, name);
		fail_msg("nobody said: %s", sentence);
	}
	train(w, name, 4, 2, EPOCHS, "--resume on --eval.tokens 300");
	(void)snprintf(cmd, sizeof cmd, "grep -q 'going on from step' %s/%s.log", w->dir, name);
	assert_int_equal(system(cmd), 0);
}

static void test_killed(void **state)
{
	struct world *w = *state;
	if (!can_run())
		skip();
	train(w, "whole", 4, 2, EPOCHS, "--eval.tokens 300");
	kill_a_rank(w, "k2", "2", "was told to end while it waited for others");
	assert_same_file(w, "k2", "whole");
	kill_a_rank(w, "k0", "0", "was told to end while it waited for others");
	assert_same_file(w, "k0", "whole");
}

/* ---- over NCCL ---- */

enum { GPUS = 3 };
static const char *gpus = "0,1,2"; /* which ranks may see */
static char fault[32] = "count:0:0"; /* that the stand-in for NCCL plays */
static const char small[] = "--device_math strict --threads 1 --nice 0 --train.ttt_steps 2 --train.draft_vocab 80 --train.max_rows 32 --heldout.share 0.1 --heldout.domain_max 1 --eval.k 1";

/* Rank r of n that train into dir/name, `more` with it; n 1: alone on such a device. Its output is dir/name.r.log. */
static pid_t start_rank(const struct world *w, const char *name, int r, int n, const char *more)
{
	char cmd[2048];
	(void)snprintf(cmd, sizeof cmd,
		       "exec env LD_LIBRARY_PATH=build/release/cuemu CUEMU_NCCL=%s CUDA_VISIBLE_DEVICES=%s build/release/bin/redraft-learn train --from_pool %s --store %s --out %s/%s --device cuda %s "
		       "--ranks.count %d --ranks.rank %d --ranks.meet %s/meet --ranks.timeout_s 100 %s >%s/%s.%d.log 2>&1",
		       fault, gpus, w->pool, w->store, w->dir, name, small, n, r, w->dir, more, w->dir, name, r);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
		_exit(127);
	}
	return pid;
}

static int end_of(pid_t pid)
{
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static void show_rank(const struct world *w, const char *name, int r)
{
	char log[64];
	(void)snprintf(log, sizeof log, "%.40s.%d", name, r);
	show_log(w, log);
}

static void assert_says(const struct world *w, const char *name, int r, const char *sentence)
{
	char cmd[1024];
	(void)snprintf(cmd, sizeof cmd, "grep -q '%s' %s/%s.%d.log", sentence, w->dir, name, r);
	if (system(cmd)) {
		show_rank(w, name, r);
		fail_msg("rank %d does not say: %s", r, sentence);
	}
}

static void together(const struct world *w, const char *name, int n, const char *more)
{
	pid_t pid[GPUS];
	for (int r = n - 1; r >= 0; r--)
		pid[r] = start_rank(w, name, r, n, more);
	for (int r = 0; r < n; r++) {
		int code = end_of(pid[r]);
		if (code) {
			show_rank(w, name, r);
			fail_msg("rank %d of %s ended with %d", r, name, code);
		}
	}
}

static bool can_run_nccl(void)
{
	if (strcmp(BUILD, "release") == 0 && access("build/release/cuemu/libnccl.so.2", R_OK) == 0 && access("build/release/bin/redraft-learn", X_OK) == 0)
		return true;
	print_message("skipped: needs the release build\n");
	return false;
}

static void test_nccl(void **state)
{
	struct world *w = *state;
	if (!can_run_nccl())
		skip();
	together(w, "one", 1, "--tokens 60");
	together(w, "ring", GPUS, "--tokens 60");
	double want = loss_of(w, "one"), got = loss_of(w, "ring");
	print_message("%d ranks over NCCL: loss %.9f, one rank %.9f\n", GPUS, got, want);
	assert_true(fabs(got - want) <= 1e-4 * want);
	together(w, "packed", 1, "--tokens 60 --train.pack_rows 64");
	together(w, "groups", 2, "--tokens 60 --ranks.data 2");
	want = loss_of(w, "packed"), got = loss_of(w, "groups");
	print_message("2 groups over NCCL: loss %.9f, one rank %.9f\n", got, want);
	assert_true(fabs(got - want) <= 1e-4 * want);
}

/* How often that rank of a whole run sent or received. */
static long messages_of(const struct world *w, const char *name, int r)
{
	char path[400], line[512];
	long n = 0;
	(void)snprintf(path, sizeof path, "%s/%s.%d.log", w->dir, name, r);
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	while (!n && fgets(line, sizeof line, f))
		(void)sscanf(line, "cuemu: %ld groups", &n);
	(void)fclose(f);
	return n;
}

/* In the middle of a message, two thirds through the run. */
static void test_nccl_killed(void **state)
{
	static const char more[] = "--ranks.ulysses 2 --tokens 120 --eval.tokens 30 --resume on";
	struct world *w = *state;
	pid_t pid[2];
	if (!can_run_nccl())
		skip();
	together(w, "whole", 2, more);
	long n = messages_of(w, "whole", 1);
	assert_true(n > 6);
	(void)snprintf(fault, sizeof fault, "die:1:%ld", 2 * n / 3);
	for (int r = 0; r < 2; r++)
		pid[r] = start_rank(w, "k", r, 2, more);
	(void)snprintf(fault, sizeof fault, "count:0:0");
	assert_int_equal(end_of(pid[1]), 256 + SIGKILL);
	assert_int_equal(end_of(pid[0]), 1);
	assert_says(w, "k", 0, "rank 1 of 2 is gone: its process ended; the same command goes on from the last evaluation");
	together(w, "k", 2, more);
	assert_says(w, "k", 0, "going on from step");
	assert_same_file(w, "k", "whole");
}

/* Ranks that cannot begin: each says why, and none waits for the others. */
static void test_nccl_refused(void **state)
{
	struct world *w = *state;
	pid_t pid[GPUS];
	if (!can_run_nccl())
		skip();
	gpus = "5,7,"; /* two */
	for (int r = 0; r < GPUS; r++)
		pid[r] = start_rank(w, "few", r, GPUS, "");
	gpus = "5";
	for (int r = 0; r < GPUS; r++)
		assert_int_not_equal(end_of(pid[r]), 0);
	assert_says(w, "few", 2, "redraft-learn train: 3 ranks on this machine, and CUDA_VISIBLE_DEVICES names 2 GPUs: each rank needs one");
	for (int r = 0; r < 2; r++)
		assert_says(w, "few", r, "redraft-learn train: rank 2 of 3 gave up: 3 ranks on this machine");
	for (int r = 0; r < 2; r++)
		pid[r] = start_rank(w, "same", r, 2, "");
	gpus = "0,1,2";
	for (int r = 0; r < 2; r++) {
		assert_int_equal(end_of(pid[r]), 1);
		assert_says(w, "same", r, "Duplicate GPU detected");
	}
	pid[0] = start_rank(w, "grid", 0, 2, "--ranks.ulysses 3");
	pid[1] = start_rank(w, "grid", 1, 2, "--ranks.ulysses 3");
	assert_int_equal(end_of(pid[0]), 2);
	assert_int_equal(end_of(pid[1]), 0); /* was told to go home */
	assert_says(w, "grid", 0, "must divide the 2 ranks");
	pid[0] = start_rank(w, "cpu", 0, 2, "--device cpu");
	pid[1] = start_rank(w, "cpu", 1, 2, "");
	assert_int_not_equal(end_of(pid[0]), 0);
	assert_int_not_equal(end_of(pid[1]), 0);
	assert_says(w, "cpu", 0, "device = cpu with ranks.count 2");
	assert_says(w, "cpu", 1, "rank 0 of 2 gave up: device = cpu with ranks.count 2");
	pid[0] = start_rank(w, "place", 0, 2, "--ranks.meet 192.0.2.1:99");
	assert_int_equal(end_of(pid[0]), 2);
	assert_says(w, "place", 0, "set ranks.secret_file");
	char path[300], with[600];
	(void)snprintf(path, sizeof path, "%s/secret", w->dir);
	(void)snprintf(with, sizeof with, "--ranks.secret_file %s", path);
	assert_int_equal(fs_write_atomic(path, "sixteen characters\n", 19), 0);
	assert_int_equal(chmod(path, 0644), 0);
	pid[0] = start_rank(w, "open", 0, 2, with);
	assert_int_equal(end_of(pid[0]), 2);
	assert_says(w, "open", 0, "secret is open to every user; chmod o= it");
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(truncate(path, 15), 0);
	pid[0] = start_rank(w, "short", 0, 2, with);
	assert_int_equal(end_of(pid[0]), 2);
	assert_says(w, "short", 0, "its first line must have 16 characters at least");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nccl, setup, teardown), cmocka_unit_test_setup_teardown(test_nccl_killed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nccl_refused, setup, teardown), cmocka_unit_test_setup_teardown(test_grids, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
	};
	cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
