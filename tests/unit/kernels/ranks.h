/* Ranks as threads for tests: over comm_threads, each with a CPU device, or over comm_nccl, each with an emulated GPU and sockets to rank 0. */
#pragma once
#include <pthread.h>
#include <sys/socket.h>
#include "kt.h"
#include "kernels/comm.h"

enum ranks_by { BY_THREADS, BY_NCCL };
enum { RANKS_MOST = 8 };
static const enum ranks_by ranks_by[] = {BY_THREADS, BY_NCCL};
#define RANKS_TESTS(fn) {#fn "/threads", fn, NULL, NULL, (void *)(uintptr_t)&ranks_by[0]}, {#fn "/nccl", fn, NULL, NULL, (void *)(uintptr_t)&ranks_by[1]}

/* cmocka's assertions jump, which only its own thread may: others count here. */
static _Atomic int wrong;
#define EXPECT(x)                                                            \
	do {                                                                 \
		if (!(x)) {                                                  \
			wrong++;                                             \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
		}                                                            \
	} while (0)

/* fd[rank]: what comm_nccl_new takes of that rank; [n] for rank 0. */
static inline void ranks_sockets(int n, int fd[RANKS_MOST][RANKS_MOST])
{
	fd[0][0] = -1;
	for (int i = 1; i < n; i++) {
		int pair[2];
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		fd[0][i] = pair[0];
		fd[i][0] = pair[1];
	}
}

/* Ranks as threads are no such thing where each would open the one real GPU. */
static inline void ranks_need_emulation(void)
{
	struct dev *d = kt_open(&(struct dev_options){.kind = DEV_CUDA, .threads = 1});
	bool emulated = strstr(d->about, "emulated") != NULL;
	dev_free(d);
	kt_gpu = NULL;
	if (!emulated) {
		print_message("skip: ranks share one process here, and a GPU each needs one each\n");
		skip();
	}
}

struct member {
	enum ranks_by by;
	struct comm *c;
	void (*fn)(struct comm *c, struct dev *d);
};

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct dev *d = NULL;
	struct errtext e = {""};
	int r = dev_new(&(struct dev_options){.kind = m->by == BY_NCCL ? DEV_CUDA : DEV_CPU, .threads = 1, .isa = ISA_PORTABLE}, &d, &e);
	if (!r)
		r = comm_device(m->c, d, &e);
	if (!r && m->by == BY_NCCL) /* who gives up below does so when all are here */
		r = comm_barrier(m->c);
	if (r)
		fprintf(stderr, "%s\n", e.text);
	EXPECT(r == 0);
	if (!r)
		m->fn(m->c, d);
	comm_free(m->c);
	dev_free(d);
	return NULL;
}

static inline void ranks_new(enum ranks_by by, int n, struct comm *ret[RANKS_MOST])
{
	int fd[RANKS_MOST][RANKS_MOST];
	if (by == BY_THREADS || n == 1) {
		assert_int_equal(comm_threads_new(n, ret), 0);
		return;
	}
	ranks_sockets(n, fd);
	for (int i = 0; i < n; i++)
		assert_int_equal(comm_nccl_new(i, n, fd[i], &ret[i]), 0);
}

static inline void ranks_run(enum ranks_by by, int n, void (*fn)(struct comm *c, struct dev *d))
{
	struct comm *c[RANKS_MOST];
	struct member m[RANKS_MOST];
	pthread_t t[RANKS_MOST];
	ranks_new(by, n, c);
	for (int i = 0; i < n; i++) {
		m[i] = (struct member){by, c[i], fn};
		assert_int_equal(pthread_create(&t[i], NULL, member_main, &m[i]), 0);
	}
	for (int i = 0; i < n; i++)
		(void)pthread_join(t[i], NULL);
}
