/* Rank 0 says a number nobody could know; the other answers who it is, signed with the secret over that number, and a number of
 * its own, over which rank 0 signs what it says in the end. (Without a secret the signatures are empty.) Three fixed structs in the order of
 * bytes of this machine: a group is one build, and the first thing compared is which.
 */
#include "learn/meet.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/address.h"
#include "daemon/base/clock.h"
#include "daemon/base/sha.h"

enum { NONCE = 32, GUESTS = 32 /* who may be asked at a time */, PATIENCE_S = 10 /* with each */, MACHINE = 40, BUILD = 16 };
static const char magic[8] = "redraft";

struct challenge {
	char magic[8];
	uint8_t nonce[NONCE];
};
struct hello {
	char magic[8], build[BUILD], machine[MACHINE];
	uint32_t rank, size;
	uint8_t nonce[NONCE];
	char mac[SHA_HEX];
};
struct answer {
	uint32_t ok, local, here;
	char why[148];
	char mac[SHA_HEX];
};

struct place {
	struct sockaddr_storage a;
	socklen_t len;
	bool path;
};

/* ---- what both sides do ---- */

static int place_of(const struct meet_options *o, struct place *ret, struct errtext *e)
{
	struct sockaddr_un *un = (struct sockaddr_un *)&ret->a;
	char host[ADDRESS_HOST];
	const char *port;
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
	*ret = (struct place){0};
	if (o->where[0] == '/') {
		ret->path = true;
		ret->len = sizeof *un;
		return address_unix(o->where, un) ? errtext_set(e, -EINVAL, "ranks.meet: the path of a socket has at most %zu characters", sizeof un->sun_path - 1) : 0;
	}
	if (address_split(o->where, host, &port) || !*host)
		return errtext_set(e, -EINVAL, "ranks.meet is '%.80s': it must be host:port, or the path of a socket from / on", o->where);
	int r = getaddrinfo(host, port, &hints, &found);
	if (r)
		return errtext_set(e, -EINVAL, "ranks.meet: %.80s: %s", o->where, gai_strerror(r));
	memcpy(&ret->a, found->ai_addr, found->ai_addrlen);
	ret->len = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

static bool on_loopback(const struct place *p)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)&p->a;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&p->a;
	if (p->a.ss_family == AF_INET)
		return ntohl(in->sin_addr.s_addr) >> 24 == 127;
	return p->a.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

/* A peer that vanishes without a word, with its machine, is noticed in half a minute. */
static void keep_alive(int fd)
{
	static const int opts[][3] = {{SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_NODELAY, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 10}, {IPPROTO_TCP, TCP_KEEPINTVL, 5}, {IPPROTO_TCP, TCP_KEEPCNT, 4}};
	for (size_t i = 0; i < sizeof opts / sizeof *opts; i++)
		(void)setsockopt(fd, opts[i][0], opts[i][1], &opts[i][2], sizeof opts[i][2]); /* those of TCP fail on a UNIX socket */
}

/* Of a UNIX socket: is the other end our own user, or root? */
static bool is_us(int fd)
{
	struct ucred u = {0};
	socklen_t n = sizeof u;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &n) == 0 && (u.uid == geteuid() || u.uid == 0);
}

static void machine_of(char ret[MACHINE])
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, ret, MACHINE - 1) : 0;
	if (fd >= 0)
		(void)close(fd);
	memset(ret + (n > 0 ? n : 0), 0, MACHINE - (size_t)(n > 0 ? n : 0));
}

/* role, the other's nonce, and all of a struct before its mac */
static void sign(const char *secret, char role, const uint8_t nonce[NONCE], const void *p, size_t n, char ret[static SHA_HEX])
{
	uint8_t all[1 + NONCE + sizeof(struct hello) + sizeof(struct answer)];
	memset(ret, 0, SHA_HEX);
	if (!secret)
		return;
	all[0] = (uint8_t)role;
	memcpy(all + 1, nonce, NONCE);
	memcpy(all + 1 + NONCE, p, n);
	sha_hmac_hex(secret, strlen(secret), all, 1 + NONCE + n, ret);
}

static int nonce(uint8_t ret[NONCE])
{
	return getrandom(ret, NONCE, 0) == NONCE ? 0 : -errno;
}

static uint64_t deadline_of(const struct meet_options *o)
{
	return o->timeout_s ? clock_us() + (uint64_t)o->timeout_s * 1000000 : UINT64_MAX;
}

/* For poll: until then, at most a fifth of a second. */
static int slice(uint64_t deadline)
{
	uint64_t now = clock_us(), left = deadline > now ? deadline - now : 0;
	return left > 200000 ? 200 : (int)(left / 1000) + 1;
}

/* ---- rank 0 ---- */

struct guest {
	int fd; /* -1: this seat is free */
	uint64_t since;
	size_t got;
	struct challenge asked;
	struct hello hello;
};

struct hall {
	const struct meet_options *o;
	int listener, n_there;
	int *fd;             /* [size] */
	struct hello *there; /* [size] of those who came */
	struct guest guest[GUESTS];
	char refused[200]; /* the last one that was */
};

static int listen_at(const struct meet_options *o, const struct place *p, int *ret, struct errtext *e)
{
	static const int one = 1;
	int r = p->path ? address_clear((const struct sockaddr_un *)&p->a) : 0; /* a rank 0 that was killed left it */
	if (r == -EADDRINUSE)
		return errtext_set(e, r, "ranks.meet: another group meets at %.120s", o->where);
	if (r)
		return errtext_set(e, r, "ranks.meet: %.120s: %s", o->where, strerror(-r));
	int fd = socket(p->a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return errtext_set(e, -errno, "a socket: %s", strerror(errno));
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (const struct sockaddr *)&p->a, p->len) || (p->path && chmod(o->where, 0600)) || listen(fd, GUESTS)) {
		r = -errno;
		(void)close(fd);
		return errtext_set(e, r, "ranks.meet: %.120s: %s", o->where, strerror(-r));
	}
	*ret = fd;
	return 0;
}

static void seat_free(struct guest *g, bool hang_up)
{
	if (hang_up)
		(void)close(g->fd);
	*g = (struct guest){.fd = -1};
}

static void welcome(struct hall *h, bool path)
{
	struct guest *seat = &h->guest[0];
	int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (path && !is_us(fd)) {
		(void)close(fd);
		return;
	}
	for (int i = 0; i < GUESTS; i++) /* a free one, or whoever sits longest */
		if (seat->fd >= 0 && (h->guest[i].fd < 0 || h->guest[i].since < seat->since))
			seat = &h->guest[i];
	if (seat->fd >= 0)
		seat_free(seat, true);
	*seat = (struct guest){.fd = fd, .since = clock_us()};
	memcpy(seat->asked.magic, magic, sizeof magic);
	keep_alive(fd);
	if (nonce(seat->asked.nonce) || send(fd, &seat->asked, sizeof seat->asked, MSG_NOSIGNAL) != sizeof seat->asked)
		seat_free(seat, true);
}

static void reply(struct hall *h, int fd, const struct hello *to, struct answer *a)
{
	sign(h->o->secret, '0', to->nonce, a, offsetof(struct answer, mac), a->mac);
	(void)!send(fd, a, sizeof *a, MSG_NOSIGNAL);
}

/* What is wrong with what it says; NULL: nothing. */
static const char *objection(const struct hall *h, const struct guest *g, char text[static 148])
{
	const struct hello *x = &g->hello;
	char mac[SHA_HEX], ours[BUILD] = "";
	sign(h->o->secret, 'r', g->asked.nonce, x, offsetof(struct hello, mac), mac);
	if (!sha_same(mac, x->mac))
		return "the secret is another one: ranks.secret_file must be the same for all ranks";
	(void)snprintf(ours, sizeof ours, "%s", REDRAFT_COMMIT);
	if (memcmp(x->build, ours, sizeof ours) != 0) {
		(void)snprintf(text, 148, "it is build %.15s, rank 0 is %.15s: a group needs one", x->build, ours);
		return text;
	}
	if (x->size != (uint32_t)h->o->size || x->rank < 1 || x->rank >= x->size) {
		(void)snprintf(text, 148, "it says it is rank %u of %u, and rank 0 waits for ranks 1 to %d", x->rank, x->size, h->o->size - 1);
		return text;
	}
	if (h->fd[x->rank] >= 0) {
		(void)snprintf(text, 148, "there is a rank %u already", x->rank);
		return text;
	}
	return NULL;
}

/* It said something; when that is all, it is let in or turned away. */
static void hear(struct hall *h, struct guest *g)
{
	char text[148];
	ssize_t k = recv(g->fd, (char *)&g->hello + g->got, sizeof g->hello - g->got, 0);
	if (k < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (k <= 0) {
		seat_free(g, true);
		return;
	}
	g->got += (size_t)k;
	if (g->got < sizeof g->hello)
		return;
	g->hello.build[BUILD - 1] = g->hello.machine[MACHINE - 1] = 0;
	const char *why = memcmp(g->hello.magic, magic, sizeof magic) ? "it is no rank" : objection(h, g, text);
	if (why) {
		struct answer no = {0};
		(void)snprintf(no.why, sizeof no.why, "%s", why);
		(void)snprintf(h->refused, sizeof h->refused, "; one was refused: %s", why);
		reply(h, g->fd, &g->hello, &no);
		seat_free(g, true);
		return;
	}
	h->fd[g->hello.rank] = g->fd;
	h->there[g->hello.rank] = g->hello;
	h->n_there++;
	seat_free(g, false);
}

/* Until all are there. */
static int wait_for_all(struct hall *h, bool path, struct errtext *e)
{
	uint64_t deadline = deadline_of(h->o);
	while (h->n_there < h->o->size) {
		struct pollfd p[GUESTS + 1];
		if (clock_us() >= deadline)
			return errtext_set(e, -ETIMEDOUT, "%d of %d ranks were at %.60s within %d s%s", h->n_there, h->o->size, h->o->where, h->o->timeout_s, h->refused);
		for (int i = 0; i < GUESTS; i++) {
			if (h->guest[i].fd >= 0 && clock_us() - h->guest[i].since > PATIENCE_S * 1000000ull)
				seat_free(&h->guest[i], true);
			p[i] = (struct pollfd){.fd = h->guest[i].fd, .events = POLLIN};
		}
		p[GUESTS] = (struct pollfd){.fd = h->listener, .events = POLLIN};
		(void)poll(p, GUESTS + 1, slice(deadline));
		for (int i = 0; i < GUESTS; i++)
			if (h->guest[i].fd >= 0 && p[i].revents)
				hear(h, &h->guest[i]);
		if (p[GUESTS].revents)
			welcome(h, path);
	}
	return 0;
}

/* How many ranks are on the machine of `rank`, and how many of those come before it. */
static void neighbours(const struct hall *h, int rank, int *ret_local, int *ret_here)
{
	*ret_local = *ret_here = 0;
	for (int i = 0; i < h->o->size; i++)
		if (memcmp(h->there[i].machine, h->there[rank].machine, MACHINE) == 0) {
			++*ret_local;
			*ret_here += i < rank;
		}
}

static int host(const struct meet_options *o, const struct place *p, int *ret_fd, int *ret_local, int *ret_here, struct errtext *e)
{
	struct hall h = {.o = o, .n_there = 1, .fd = ret_fd, .there = calloc((size_t)o->size, sizeof *h.there)};
	int r = h.there ? listen_at(o, p, &h.listener, e) : errtext_set(e, -ENOMEM, "out of memory");
	if (r) {
		free(h.there);
		return r;
	}
	for (int i = 0; i < o->size; i++)
		ret_fd[i] = -1;
	for (int i = 0; i < GUESTS; i++)
		h.guest[i].fd = -1;
	machine_of(h.there[0].machine);
	r = wait_for_all(&h, p->path, e);
	for (int i = 1; i < o->size && !r; i++) {
		struct answer yes = {.ok = 1};
		int local, here;
		neighbours(&h, i, &local, &here);
		yes.local = (uint32_t)local;
		yes.here = (uint32_t)here;
		reply(&h, ret_fd[i], &h.there[i], &yes);
	}
	if (!r)
		neighbours(&h, 0, ret_local, ret_here);
	for (int i = 0; i < GUESTS; i++)
		if (h.guest[i].fd >= 0)
			seat_free(&h.guest[i], true);
	for (int i = 1; i < o->size && r; i++)
		if (ret_fd[i] >= 0)
			(void)close(ret_fd[i]);
	(void)close(h.listener);
	if (p->path)
		(void)unlink(o->where);
	free(h.there);
	return r;
}

/* ---- the others ---- */

/* TCP joins a socket to itself when it happens to draw the very port it calls and nobody listens there, which who asks again and again comes to see. */
static bool is_itself(int fd, const struct place *p)
{
	struct sockaddr_storage a = {0};
	socklen_t n = sizeof a;
	return getsockname(fd, (struct sockaddr *)&a, &n) == 0 && n == p->len && memcmp(&a, &p->a, n) == 0;
}

/* Until rank 0 listens. Blocking from then on, with time limits. */
static int reach(const struct meet_options *o, const struct place *p, uint64_t deadline, int *ret, struct errtext *e)
{
	for (;;) {
		int fd = socket(p->a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		const struct timeval patience = {.tv_sec = PATIENCE_S};
		if (fd < 0)
			return errtext_set(e, -errno, "a socket: %s", strerror(errno));
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
		int r = connect(fd, (const struct sockaddr *)&p->a, p->len) ? errno : is_itself(fd, p) ? ECONNREFUSED : 0;
		if (!r) {
			*ret = fd;
			return 0;
		}
		(void)close(fd);
		if (clock_us() >= deadline)
			return errtext_set(e, -ETIMEDOUT, "rank 0 was not at %.100s within %d s: %s", o->where, o->timeout_s, strerror(r));
		if (r == EACCES || r == EPERM)
			return errtext_set(e, -r, "ranks.meet: %.120s: %s", o->where, strerror(r));
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	}
}

/* All of it, or why not: -ETIMEDOUT, -ECONNRESET. */
static int hear_all(int fd, void *p, size_t n, uint64_t deadline)
{
	for (size_t at = 0; at < n;) {
		struct pollfd q = {.fd = fd, .events = POLLIN};
		if (clock_us() >= deadline)
			return -ETIMEDOUT;
		if (poll(&q, 1, slice(deadline)) <= 0)
			continue;
		ssize_t k = recv(fd, (char *)p + at, n - at, 0);
		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (k <= 0)
			return -ECONNRESET;
		at += (size_t)k;
	}
	return 0;
}

static int introduce(const struct meet_options *o, int fd, uint64_t deadline, struct answer *ret, struct errtext *e)
{
	struct challenge asked;
	struct hello me = {.rank = (uint32_t)o->rank, .size = (uint32_t)o->size};
	char mac[SHA_HEX];
	int r = nonce(me.nonce);
	memcpy(me.magic, magic, sizeof magic);
	(void)snprintf(me.build, sizeof me.build, "%s", REDRAFT_COMMIT);
	machine_of(me.machine);
	r = r ? r : hear_all(fd, &asked, sizeof asked, deadline);
	if (!r && memcmp(asked.magic, magic, sizeof magic) != 0)
		return errtext_set(e, -EINVAL, "what listens at %.120s is no rank 0", o->where);
	if (!r) {
		sign(o->secret, 'r', asked.nonce, &me, offsetof(struct hello, mac), me.mac);
		r = send(fd, &me, sizeof me, MSG_NOSIGNAL) == sizeof me ? 0 : -ECONNRESET;
	}
	r = r ? r : hear_all(fd, ret, sizeof *ret, deadline);
	if (r)
		return errtext_set(e, r, r == -ETIMEDOUT ? "rank 0 at %.100s was still waiting for others after %d s" : "rank 0 at %.100s hung up before all had come (%d s at most)", o->where, o->timeout_s);
	ret->why[sizeof ret->why - 1] = 0;
	sign(o->secret, '0', me.nonce, ret, offsetof(struct answer, mac), mac);
	if (!sha_same(mac, ret->mac) && (ret->ok || !o->secret))
		return errtext_set(e, -EINVAL, "rank 0 at %.100s has another secret: ranks.secret_file must be the same for all ranks", o->where);
	return ret->ok ? 0 : errtext_set(e, -EINVAL, "rank 0 at %.60s refused rank %d: %s", o->where, o->rank, ret->why);
}

int meet(const struct meet_options *o, int *ret_fd, int *ret_local, int *ret_here, struct errtext *e)
{
	struct place p;
	struct answer a = {0};
	int fd = -1;
	if (o->size < 2 || o->size > COMM_MAX_RANKS || o->rank < 0 || o->rank >= o->size)
		return errtext_set(e, -EINVAL, "ranks.rank is %d: of %d ranks they are 0 to %d", o->rank, o->size, o->size - 1);
	int r = place_of(o, &p, e);
	if (r)
		return r;
	if (!o->secret && !p.path && !on_loopback(&p))
		return errtext_set(e, -EINVAL, "ranks.meet: %.100s is not of this machine alone, so who comes must prove to be one of us: set ranks.secret_file", o->where);
	if (o->rank == 0)
		return host(o, &p, ret_fd, ret_local, ret_here, e);
	uint64_t deadline = deadline_of(o);
	r = reach(o, &p, deadline, &fd, e);
	if (r)
		return r;
	keep_alive(fd);
	r = p.path && !is_us(fd) ? errtext_set(e, -EPERM, "ranks.meet: another user listens at %.120s", o->where) : introduce(o, fd, deadline, &a, e);
	if (!r && (a.local < 1 || a.local > (uint32_t)o->size || a.here >= a.local))
		r = errtext_set(e, -EINVAL, "what listens at %.120s is no rank 0", o->where);
	if (r) {
		(void)close(fd);
		return r;
	}
	*ret_fd = fd;
	*ret_local = (int)a.local;
	*ret_here = (int)a.here;
	return 0;
}
