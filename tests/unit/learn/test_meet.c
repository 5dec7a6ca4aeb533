/* Ranks that find each other at a socket: all that should are let in, over a UNIX socket and over TCP, whoever comes first, with and without a secret, and
 * each stream leads to the rank it should. Whoever should not be let in is told why and stops nobody: the wrong number of ranks, a rank that
 * is there already, another secret or none, another build, strangers who say nothing, half a word or nonsense, more of them than there are seats.
 * Nobody waits longer than was said. A place that is not on this machine needs a secret; a socket file that a killed
 * rank 0 left is no obstacle; a group that meets there already is.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/meet.h"

enum { MOST = 8 };

static char dir[256], where[100];

static int setup(void **state)
{
	(void)state;
	tw_temp_dir(dir);
	(void)snprintf(where, sizeof where, "%.90s/meet", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return fs_remove_tree(dir);
}

struct one {
	struct meet_options o;
	int fd[MOST], local, here, r;
	struct errtext e;
	pthread_t thread;
};

static void *one_main(void *arg)
{
	struct one *x = arg;
	x->r = meet(&x->o, x->fd, &x->local, &x->here, &x->e);
	return NULL;
}

static void begin(struct one *x, int rank, int size, const char *place, const char *secret, int timeout_s)
{
	*x = (struct one){.o = {.rank = rank, .size = size, .where = place, .secret = secret, .timeout_s = timeout_s}, .r = 1};
	for (int i = 0; i < MOST; i++)
		x->fd[i] = -1;
	assert_int_equal(pthread_create(&x->thread, NULL, one_main, x), 0);
}

static void end(struct one *x)
{
	assert_int_equal(pthread_join(x->thread, NULL), 0);
}

/* All are there: a number each way on each stream. */
static void all_met(struct one *x, int n)
{
	for (int i = 0; i < n; i++) {
		if (x[i].r)
			fail_msg("rank %d: %s", i, x[i].e.text);
		assert_int_equal(x[i].local, n); /* of one machine */
		assert_int_equal(x[i].here, i);
	}
	assert_int_equal(x[0].fd[0], -1);
	for (int i = 1; i < n; i++) {
		int got = 0;
		assert_int_equal(write(x[i].fd[0], &i, sizeof i), sizeof i);
		assert_int_equal(recv(x[0].fd[i], &got, sizeof got, MSG_WAITALL), sizeof got);
		assert_int_equal(got, i);
		assert_int_equal(write(x[0].fd[i], &got, sizeof got), sizeof got);
		assert_int_equal(recv(x[i].fd[0], &got, sizeof got, MSG_WAITALL), sizeof got);
		(void)close(x[i].fd[0]);
		(void)close(x[0].fd[i]);
	}
}

static void refused(const struct one *x, int r, const char *what)
{
	if (x->r != r || !strstr(x->e.text, what))
		fail_msg("%d, '%s'; expected %d, '%s'", x->r, x->e.text, r, what);
	assert_int_equal(x->fd[0], -1);
}

/* A port of ours until the socket that is returned is closed: it does not listen, so rank 0 may, and nobody else is given it. */
static int tcp_place(char ret[64])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	const int one = 1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
	(void)snprintf(ret, 64, "127.0.0.1:%d", ntohs(a.sin_port));
	return fd;
}

static bool is_there(void)
{
	struct stat st;
	return stat(where, &st) == 0;
}

static void nap(void)
{
	(void)usleep(10000);
}

/* A stranger's connection to rank 0. */
static int stranger(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	(void)snprintf(a.sun_path, sizeof a.sun_path, "%s", where);
	while (connect(fd, (struct sockaddr *)&a, sizeof a))
		nap();
	return fd;
}

static void test_meets(void **state)
{
	struct one x[MOST];
	char tcp[64];
	(void)state;
	for (int n = 2; n <= 5; n++) {
		for (int i = n - 1; i >= 0; i--) /* rank 0 comes last */
			begin(&x[i], i, n, where, n == 3 ? "a secret of some length" : NULL, 60);
		for (int i = 0; i < n; i++)
			end(&x[i]);
		all_met(x, n);
		assert_false(is_there());
	}
	int port = tcp_place(tcp);
	for (int i = 0; i < 3; i++)
		begin(&x[i], i, 3, tcp, "the same secret for all", 60);
	for (int i = 0; i < 3; i++)
		end(&x[i]);
	all_met(x, 3);
	(void)close(port);
}

static void test_refused(void **state)
{
	struct one x[2], odd;
	char garbage[4096];
	int fd[60];
	(void)state;
	begin(&x[0], 0, 2, where, "the group's own secret", 60);
	memset(garbage, 'x', sizeof garbage);
	for (int i = 0; i < 60; i++) { /* more than seats; some say something */
		fd[i] = stranger();
		if (i % 3)
			(void)!send(fd[i], garbage, i % 3 == 1 ? 7 : sizeof garbage, MSG_NOSIGNAL);
	}
	begin(&odd, 1, 2, where, "not the group's secret", 60);
	end(&odd);
	refused(&odd, -EINVAL, "refused rank 1: the secret is another one");
	begin(&odd, 1, 2, where, NULL, 60);
	end(&odd);
	refused(&odd, -EINVAL, "secret");
	begin(&odd, 1, 3, where, "the group's own secret", 60);
	end(&odd);
	refused(&odd, -EINVAL, "it says it is rank 1 of 3, and rank 0 waits for ranks 1 to 1");
	struct stat st;
	assert_int_equal(stat(where, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	begin(&x[1], 1, 2, where, "the group's own secret", 60);
	end(&x[0]);
	end(&x[1]);
	all_met(x, 2);
	for (int i = 0; i < 60; i++)
		(void)close(fd[i]);
}

static void test_twice(void **state)
{
	struct one x[3], again;
	(void)state;
	begin(&x[0], 0, 3, where, NULL, 60);
	begin(&x[1], 1, 3, where, NULL, 60);
	begin(&again, 1, 3, where, NULL, 60);
	/* one of the two is refused, whichever came second; the other waits for rank 2 */
	while (x[1].r > 0 && again.r > 0)
		nap();
	struct one *first = again.r > 0 ? &again : &x[1], *second = again.r > 0 ? &x[1] : &again;
	end(second);
	refused(second, -EINVAL, "refused rank 1: there is a rank 1 already");
	begin(&x[2], 2, 3, where, NULL, 60);
	struct one *const all[] = {&x[0], first, &x[2]};
	for (int i = 0; i < 3; i++) {
		end(all[i]);
		if (all[i]->r)
			fail_msg("%s", all[i]->e.text);
		for (int k = 0; k < MOST; k++)
			if (all[i]->fd[k] >= 0)
				(void)close(all[i]->fd[k]);
	}
}

static void test_alone(void **state)
{
	struct one x;
	(void)state;
	begin(&x, 0, 3, where, NULL, 1);
	end(&x);
	refused(&x, -ETIMEDOUT, "1 of 3 ranks were at ");
	assert_false(is_there());
	begin(&x, 2, 3, where, NULL, 1);
	end(&x);
	refused(&x, -ETIMEDOUT, "rank 0 was not at ");
	/* somebody listens and says nothing */
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	(void)snprintf(a.sun_path, sizeof a.sun_path, "%s", where);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 5), 0);
	begin(&x, 1, 3, where, NULL, 1);
	end(&x);
	refused(&x, -ETIMEDOUT, "was still waiting for others after 1 s");
	begin(&x, 0, 3, where, NULL, 1);
	end(&x);
	refused(&x, -EADDRINUSE, "another group meets at");
	/* or something else */
	begin(&x, 1, 3, where, NULL, 60);
	for (int i = 0; i < 3; i++) { /* the first two are of those who came before */
		int c = accept(fd, NULL, NULL);
		char text[64];
		memset(text, 'z', sizeof text);
		(void)!send(c, text, sizeof text, MSG_NOSIGNAL);
		if (i == 2)
			end(&x);
		(void)close(c);
	}
	refused(&x, -EINVAL, "is no rank 0");
	(void)close(fd); /* and leaves its file, as a rank 0 that was killed does */
	assert_true(is_there());
	struct one y[2];
	begin(&y[0], 0, 2, where, NULL, 60);
	begin(&y[1], 1, 2, where, NULL, 60);
	end(&y[0]);
	end(&y[1]);
	all_met(y, 2);
	/* a file that is no socket stays */
	fd = open(where, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	(void)close(fd);
	begin(&x, 0, 2, where, NULL, 1);
	end(&x);
	refused(&x, -EEXIST, where);
	assert_true(is_there());
}

static void test_places(void **state)
{
	static const struct {
		const char *where, *says;
	} bad[] = {
		{"meet", "it must be host:port, or the path of a socket"}, {":80", "it must be host:port"}, {"host:", "it must be host:port"}, {"", "it must be host:port"},
		{"192.0.2.1:4711", "set ranks.secret_file"}, {"0.0.0.0:4711", "set ranks.secret_file"}, {"[2001:db8::1]:4711", "set ranks.secret_file"},
		{"127.0.0.1:no-such-service-name", "ranks.meet: 127.0.0.1:no-such-service-name: "},
	};
	struct errtext e;
	char longer[200];
	int fd[MOST], local, here;
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		for (int rank = 0; rank < 2; rank++) {
			assert_int_equal(meet(&(struct meet_options){.rank = rank, .size = 2, .where = bad[i].where, .timeout_s = 1}, fd, &local, &here, &e), -EINVAL);
			if (!strstr(e.text, bad[i].says))
				fail_msg("'%s' does not say '%s'", e.text, bad[i].says);
		}
	memset(longer, '/', sizeof longer);
	longer[sizeof longer - 1] = 0;
	assert_int_equal(meet(&(struct meet_options){.size = 2, .where = longer, .timeout_s = 1}, fd, &local, &here, &e), -EINVAL);
	assert_int_equal(meet(&(struct meet_options){.rank = 2, .size = 2, .where = where, .timeout_s = 1}, fd, &local, &here, &e), -EINVAL);
	assert_string_equal(e.text, "ranks.rank is 2: of 2 ranks they are 0 to 1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_meets, setup, teardown), cmocka_unit_test_setup_teardown(test_refused, setup, teardown), cmocka_unit_test_setup_teardown(test_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_alone, setup, teardown), cmocka_unit_test_setup_teardown(test_places, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
