/* Ranks as processes over MPI: `redraft-learn train` under mpirun, the real program.
 *
 * A group trains what one process trains (the loss it reports, to rounding), for several grids; two runs of a group write
 * the same file; and when a rank is killed (SIGKILL) in the middle, the others end within seconds with a sentence, leave
 * nothing half-written, and the same command goes on to the very file that an unbroken run writes.
 * Skipped where mpirun or redraft-mpi.so is missing, and in builds where Open MPI itself would be what is tested.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
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
	static const int grids[][2] = {{2, 1}, {2, 2}, {3, 1}, {4, 2}};
	struct world *w = *state;
	char name[32];
	if (!can_run())
		skip();
	train(w, "one", 0, 1, 1, "");
	double want = loss_of(w, "one");
	for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
		(void)snprintf(name, sizeof name, "g%zu", i);
		train(w, name, grids[i][0], grids[i][1], 1, "");
		double got = loss_of(w, name);
		print_message("%d ranks, ulysses %d: loss %.9f, one rank %.9f\n", grids[i][0], grids[i][1], got, want);
		assert_true(fabs(got - want) <= 1e-4 * want);
	}
	train(w, "again", 4, 2, 1, "");
	assert_same_file(w, "again", "g3");
	char cmd[2048];
	command(w, "bad", 2, 3, 1, "", cmd);
	assert_true(system(cmd) != 0); /* a grid that does not fit */
	(void)snprintf(cmd, sizeof cmd, "grep -q 'must divide the 2 ranks' %s/bad.log", w->dir);
	assert_int_equal(system(cmd), 0);
}

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
	command(w, name, 4, 2, 4, "--resume on --eval.tokens 300", cmd);
	(void)snprintf(state, sizeof state, "%s/%s.state", w->dir, name);
	mpirun = fork();
	if (mpirun == 0) {
		execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 1500 && (!saved_step(state) || !(victim = pid_of_rank(w, name, rank))); i++)
		nap();
	for (int i = 0; i < 10; i++) /* into the steps after it */
		nap();
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
	assert_true(seconds <= 10);
	(void)snprintf(cmd, sizeof cmd, "grep -q '%s' %s/%s.log", sentence, w->dir, name);
	if (system(cmd)) {
		show_log(w, name);
		fail_msg("nobody said: %s", sentence);
	}
	train(w, name, 4, 2, 4, "--resume on --eval.tokens 300");
	(void)snprintf(cmd, sizeof cmd, "grep -q 'going on from step' %s/%s.log", w->dir, name);
	assert_int_equal(system(cmd), 0);
}

static void test_killed(void **state)
{
	struct world *w = *state;
	if (!can_run())
		skip();
	train(w, "whole", 4, 2, 4, "--eval.tokens 300");
	kill_a_rank(w, "k2", "2", "was told to end while it waited for others");
	assert_same_file(w, "k2", "whole");
	kill_a_rank(w, "k0", "0", "was told to end while it waited for others");
	assert_same_file(w, "k0", "whole");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_grids, setup, teardown), cmocka_unit_test_setup_teardown(test_killed, setup, teardown)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
