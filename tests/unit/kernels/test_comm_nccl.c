/* What can go wrong between ranks with a GPU each, and that it ends the group with a sentence on every rank, within the time that was
 * set: no NCCL, one that is too old, two versions, two kinds of GPU, a rank without a GPU, a group that cannot form, an error of NCCL's in the middle of
 * messages, one rank that hangs, sizes that differ, a rank killed in the middle of sending, a rank that leaves too soon, a
 * peer that says nonsense or half a message. And that messages begin behind what the device was given before, and run
 * beside what it is given next. Sockets are real; devices and NCCL are tests/cuemu's, which play the faults.
 *
 * The first test is for a real GPU too: a group of one rank, whose messages go to itself.
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include "ranks.h"
#include "kernels/link.h"

static void plan(const char *fault)
{
	if (fault)
		assert_int_equal(setenv("CUEMU_NCCL", fault, 1), 0);
	else
		(void)unsetenv("CUEMU_NCCL");
}

/* ---- one rank ---- */

static int until_done(const struct link_ops *o, struct link *l, struct errtext *e)
{
	int r;
	while ((r = o->done(l, e)) == -EINPROGRESS)
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	return r;
}

static void alone(void **state)
{
	enum { N = 100000 };
	(void)state;
	struct dev *d = kt_open(&(struct dev_options){.kind = DEV_CUDA, .threads = 1});
	struct link_about about;
	struct link_id id;
	struct link *l = NULL;
	struct errtext e = {""};
	if (d->link->about(d, &about, &e)) {
		print_message("skip: %s\n", e.text);
		dev_free(d);
		skip();
	}
	print_message("NCCL %d, capability %d\n", about.version, about.arch);
	if (d->link->id(d, &id, &e) || d->link->join(d, &id, 0, 1, &l, &e) || until_done(d->link, l, &e))
		fail_msg("%s", e.text);
	real *x = malloc(N * sizeof *x), *from = d->ops->alloc(d, N * sizeof *x), *to = d->ops->alloc(d, N * sizeof *x);
	assert_true(x && from && to);
	for (int turn = 0; turn < 20; turn++) {
		const struct comm_out out[] = {{0, from, N * sizeof *x}, {0, from, 0}};
		const struct comm_in in[] = {{0, to, N * sizeof *x}, {0, to, 0}};
		for (int i = 0; i < N; i++)
			x[i] = (real)(i + turn);
		assert_int_equal(d->ops->upload(d, from, x, N * sizeof *x), 0);
		assert_int_equal(d->ops->add(d, from, from, N), 0); /* what is sent is made just before */
		if (d->link->post(l, out, 2, in, 2, &e) || until_done(d->link, l, &e))
			fail_msg("%s", e.text);
		assert_int_equal(d->ops->add(d, to, to, N), 0);
		assert_int_equal(d->ops->download(d, x, to, N * sizeof *x), 0);
		for (int i = 0; i < N; i++)
			assert_true(x[i] == 4 * (real)(i + turn));
	}
	free(x);
	d->ops->free(d, from);
	d->ops->free(d, to);
	l = d->link->close(l);
	dev_free(d);
	kt_gpu = NULL;
}

/* ---- several, as threads ---- */

/* A rank's run and what it came to. */
struct part {
	struct comm *c;
	int (*fn)(struct comm *c, struct dev *d);
	int r;
	char said[256];
};

static struct link_ops odd; /* of rank 1, where it is set: another NCCL, another GPU */
static bool is_odd, no_gpu;

static void *part_main(void *arg)
{
	struct part *m = arg;
	struct dev *d = NULL;
	struct errtext e = {""};
	int r = dev_new(&(struct dev_options){.kind = no_gpu && m->c->rank == 1 ? DEV_CPU : DEV_CUDA, .threads = 1}, &d, &e);
	if (!r && is_odd && m->c->rank == 1)
		d->link = &odd;
	m->c->timeout_s = 20;
	if (!r)
		r = comm_device(m->c, d, &e);
	if (!r) {
		r = m->fn(m->c, d);
		(void)snprintf(e.text, sizeof e.text, "%s", m->c->error);
	}
	m->r = r;
	memcpy(m->said, e.text, sizeof m->said);
	comm_free(m->c);
	dev_free(d);
	return NULL;
}

static void together(int n, int (*fn)(struct comm *c, struct dev *d), struct part m[RANKS_MOST])
{
	struct comm *c[RANKS_MOST];
	pthread_t t[RANKS_MOST];
	ranks_new(BY_NCCL, n, c);
	for (int i = 0; i < n; i++) {
		m[i] = (struct part){.c = c[i], .fn = fn};
		assert_int_equal(pthread_create(&t[i], NULL, part_main, &m[i]), 0);
	}
	for (int i = 0; i < n; i++)
		(void)pthread_join(t[i], NULL);
}

/* Every rank's result, and what all of them say. */
static void all_say(const struct part *m, int n, int r, const char *what)
{
	for (int i = 0; i < n; i++)
		if (m[i].r != r || !strstr(m[i].said, what))
			fail_msg("rank %d came to %d, '%s'; expected %d, '%s'", i, m[i].r, m[i].said, r, what);
}

static int sum(struct comm *c, struct dev *d)
{
	enum { N = 50000 };
	real *x = d->ops->alloc(d, N * sizeof *x);
	int r = x ? comm_sum(c, d, x, N) : -ENOMEM;
	d->ops->free(d, x);
	return r;
}

static int other_version(struct dev *d, struct link_about *ret, struct errtext *e)
{
	(void)d;
	(void)e;
	*ret = (struct link_about){.version = 22105, .arch = 80};
	return 0;
}

static int other_gpu(struct dev *d, struct link_about *ret, struct errtext *e)
{
	(void)d;
	(void)e;
	*ret = (struct link_about){.version = 22809, .arch = 90};
	return 0;
}

static int no_library(struct dev *d, struct link_about *ret, struct errtext *e)
{
	(void)d;
	(void)ret;
	return errtext_set(e, -ENOENT, "NCCL cannot be loaded");
}

static void with_odd(int (*about)(struct dev *d, struct link_about *ret, struct errtext *e), const char *mine, const char *others)
{
	struct part m[RANKS_MOST];
	struct dev *d = kt_open(&(struct dev_options){.kind = DEV_CUDA, .threads = 1});
	odd = *d->link;
	dev_free(d);
	kt_gpu = NULL;
	odd.about = about;
	is_odd = true;
	together(3, sum, m);
	is_odd = false;
	assert_true(m[1].r < 0 && strstr(m[1].said, mine));
	for (int i = 0; i < 3; i += 2)
		if (m[i].r != -ECONNABORTED || !strstr(m[i].said, others))
			fail_msg("rank %d came to %d, '%s'", i, m[i].r, m[i].said);
}

static void mixed(void **state)
{
	struct part m[RANKS_MOST];
	(void)state;
	ranks_need_emulation();
	with_odd(other_version, "rank 1 has NCCL 2.21.5, rank 0 2.28.9: install one version", "rank 1 of 3 gave up: rank 1 has NCCL 2.21.5");
	with_odd(other_gpu, "rank 1 computes with capability 9.0, rank 0 with 8.0: a group needs GPUs of one kind", "rank 1 of 3 gave up: rank 1 computes");
	with_odd(no_library, "NCCL cannot be loaded", "rank 1 of 3 gave up: NCCL cannot be loaded");
	no_gpu = true;
	together(3, sum, m);
	no_gpu = false;
	assert_true(m[1].r == -ENOTSUP && strstr(m[1].said, "rank 1 of 3 has no GPU (cpu"));
	assert_true(m[0].r == -ECONNABORTED && strstr(m[0].said, "rank 1 of 3 gave up: rank 1 of 3 has no GPU"));
	assert_true(m[2].r == -ECONNABORTED);
	plan("version:0:21205");
	together(2, sum, m);
	plan(NULL);
	assert_true(m[0].r < 0 && strstr(m[0].said, "NCCL is 2.12.5, 2.14.3 or later is needed"));
}

static void played(void **state)
{
	struct part m[RANKS_MOST];
	(void)state;
	ranks_need_emulation();
	plan("init:2:0");
	together(3, sum, m);
	all_say(m, 3, -ECONNABORTED, "rank 2 of 3: NCCL, joining the group: unhandled system error");
	plan("error:1:1");
	together(3, sum, m);
	all_say(m, 3, -ECONNABORTED, "rank 1 of 3: NCCL, in the middle of messages: remote process exited or there was a network error; connection closed by the other side");
	plan(NULL);
	together(3, sum, m);
	for (int i = 0; i < 3; i++)
		assert_int_equal(m[i].r, 0);
}

/* Rank 1 hangs; the others are through with it or wait as long as they may. */
static int hang(struct comm *c, struct dev *d)
{
	c->timeout_s = 1;
	return sum(c, d);
}

static int disagree(struct comm *c, struct dev *d)
{
	char *x = d->ops->alloc(d, 200);
	const struct comm_out out = {1, x, 100};
	const struct comm_in in = {0, x, 200};
	int r = x ? c->rank ? comm_post(c, COMM_DEVICE, NULL, 0, &in, 1) : comm_post(c, COMM_DEVICE, &out, 1, NULL, 0) : -ENOMEM;
	r = r ? r : comm_wait(c);
	r = r ? r : comm_barrier(c);
	d->ops->free(d, x);
	return r;
}

static int leaves(struct comm *c, struct dev *d)
{
	(void)d;
	return c->rank == 1 ? 0 : comm_barrier(c);
}

static int not_with_zero(struct comm *c, struct dev *d)
{
	char b[4] = "";
	const struct comm_out out = {2, b, sizeof b};
	(void)d;
	return c->rank == 1 ? comm_post(c, COMM_HOST, &out, 1, NULL, 0) : comm_barrier(c);
}

static void stopped(void **state)
{
	struct part m[RANKS_MOST];
	(void)state;
	ranks_need_emulation();
	plan("hang:1:1");
	together(2, hang, m);
	plan(NULL);
	for (int i = 0; i < 2; i++) /* by its own clock or told by the other */
		assert_true((m[i].r == -ETIMEDOUT || m[i].r == -ECONNABORTED) && strstr(m[i].said, "heard nothing from the others for 1 s"));
	together(2, disagree, m);
	all_say(m, 2, -ECONNABORTED, "rank 0 sent 100 bytes where rank 1 expects 200");
	together(3, leaves, m);
	assert_int_equal(m[1].r, 0);
	assert_true(m[0].r == -ECONNABORTED && strstr(m[0].said, "rank 1 of 3 has left the others"));
	assert_true(m[2].r == -ECONNABORTED && strstr(m[2].said, "rank 1 of 3 has left the others"));
	together(3, not_with_zero, m);
	assert_true(m[1].r == -EINVAL && m[2].r == -ECONNABORTED && m[0].r == -ECONNABORTED);
	assert_non_null(strstr(m[0].said, "one end must be rank 0"));
}

/* ---- sockets whose other end is not what it should be ---- */

/* Rank 0 of two, and the test as rank 1: what it says, and whether it then hangs up. */
static int peer_says(const void *p, size_t n, char said[256])
{
	int fd[RANKS_MOST][RANKS_MOST];
	struct comm *c = NULL;
	char b[4];
	ranks_sockets(2, fd);
	assert_int_equal(comm_nccl_new(0, 2, fd[0], &c), 0);
	c->timeout_s = 20;
	if (n)
		assert_int_equal(write(fd[1][0], p, n), n);
	(void)close(fd[1][0]);
	int r = comm_all_gather(c, "abc", (char[8]){""}, sizeof b);
	(void)snprintf(said, 256, "%s", c->error);
	assert_int_equal(comm_barrier(c), r);
	comm_free(c);
	return r;
}

static void nonsense(void **state)
{
	char said[256], zeros[400] = "";
	const uint64_t half[3] = {0, 4, 0x6565}; /* head and two bytes of four */
	const uint64_t huge[2] = {0, 1ull << 60}, strange[2] = {77, 4}, no_text[2] = {2, 4};
	(void)state;
	assert_int_equal(peer_says("", 0, said), -ECONNABORTED);
	assert_string_equal(said, "rank 1 of 2 is gone: its process ended");
	assert_int_equal(peer_says(half, 18, said), -ECONNABORTED);
	assert_string_equal(said, "rank 1 of 2 is gone: its process ended");
	assert_int_equal(peer_says(half, 7, said), -ECONNABORTED);
	assert_int_equal(peer_says(huge, sizeof huge, said), -EMSGSIZE);
	assert_string_equal(said, "rank 1 sent 1152921504606846976 bytes where rank 0 expects 4");
	assert_int_equal(peer_says(strange, sizeof strange, said), -ECONNABORTED);
	assert_string_equal(said, "rank 1 of 2 sent what is no message: are all ranks of one build?");
	assert_int_equal(peer_says(no_text, sizeof no_text, said), -ECONNABORTED);
	assert_int_equal(peer_says(zeros, sizeof zeros, said), -EMSGSIZE);
}

/* ---- processes ---- */

/* The child's rank: 0 when it ended as told; the comm's other sockets are not its. */
static int child(int rank, int n, int fd[RANKS_MOST][RANKS_MOST])
{
	struct errtext e = {""};
	struct comm *c = NULL;
	struct dev *d = NULL;
	for (int i = 0; i < n; i++)
		for (int j = 0; j < (i ? 1 : n); j++)
			if (i != rank && fd[i][j] >= 0)
				(void)close(fd[i][j]);
	if (comm_nccl_new(rank, n, fd[rank], &c))
		return 3;
	c->timeout_s = 60;
	int r = dev_new(&(struct dev_options){.kind = DEV_CUDA, .threads = 1}, &d, &e);
	if (!r)
		r = comm_device(c, d, &e);
	if (r)
		return 4;
	for (int i = 0; i < 5 && !r; i++)
		r = sum(c, d);
	bool well = r == -ECONNABORTED && strstr(c->error, "rank 1 of 3 is gone: its process ended");
	if (!well)
		fprintf(stderr, "rank %d: %d, '%s'\n", rank, r, c->error);
	comm_free(c);
	dev_free(d);
	return well ? 0 : 5;
}

static void killed(void **state)
{
	enum { N = 3 };
	int fd[RANKS_MOST][RANKS_MOST], status[N];
	pid_t pid[N];
	(void)state;
	ranks_need_emulation();
	ranks_sockets(N, fd);
	plan("die:1:3");
	(void)fflush(NULL);
	for (int i = 0; i < N; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (pid[i] == 0)
			_exit(child(i, N, fd));
	}
	plan(NULL);
	for (int i = 0; i < N; i++)
		for (int j = 0; j < (i ? 1 : N); j++)
			if (fd[i][j] >= 0)
				(void)close(fd[i][j]);
	for (int i = 0; i < N; i++)
		assert_int_equal(waitpid(pid[i], &status[i], 0), pid[i]);
	assert_true(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
	assert_true(WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == 0);
	assert_true(WIFEXITED(status[2]) && WEXITSTATUS(status[2]) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(alone), cmocka_unit_test(mixed), cmocka_unit_test(played), cmocka_unit_test(stopped), cmocka_unit_test(nonsense), cmocka_unit_test(killed)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
