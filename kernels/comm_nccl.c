/* Ranks with a GPU each (kernels/comm.h).
 *
 * Two ways for bytes. What lies in the memory of the devices goes through their link (kernels/link.h: NCCL). What lies in
 * the host's goes through the sockets over which the ranks found each other (learn/meet.h), one between rank 0 and each
 * other: a follower that waits minutes for its next order sleeps in poll, where a message by NCCL would keep a kernel spinning on
 * the GPU that it shares with a server.
 *
 * The sockets also tell who is alive. NCCL's kernels wait for a dead peer for ever; so does nobody here: while
 * a rank waits it looks at its sockets. One that ends, or brings a sentence of why its rank gave up, fails the
 * comm; rank 0 hands the sentence on. A message is a head and its bytes; the sentence is a head of another kind, and so is
 * the farewell of a rank that is done, which hurts only who still waits for something of it.
 */
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kernels/link.h"

enum { HEAD_BYTES, HEAD_LEAVES, HEAD_GIVES_UP };

struct head {
	uint32_t kind, pad;
	uint64_t bytes;
};

struct line { /* to one rank */
	int fd, peer; /* fd -1: none, or closed */
	struct head out, in; /* under way */
	size_t out_at, in_at; /* of head and bytes, so many are through */
	bool has_in; /* in is whole */
	bool left;   /* it is done */
	char why[192]; /* of a rank that gives up */
};

struct message {
	struct line *line;
	char *p;
	size_t bytes;
	bool done;
};

struct nccl {
	struct comm comm;
	const struct link_ops *ops;
	struct link *link;
	enum comm_memory where; /* of the post under way */
	int n_lines;
	struct line *line; /* rank 0: by rank; else the one to rank 0 */
	struct message *out, *in; /* of the post, in host memory; of one line: in order */
	int n_out, n_in, cap_out, cap_in;
	struct pollfd *poll; /* [n_lines] scratch */
};

/* ---- ends ---- */

/* A sentence to whoever can still be told: best effort, as this process may end soon. */
static void tell(struct line *l, const char *why)
{
	struct { struct head h; char text[192]; } say = {.h = {.kind = HEAD_GIVES_UP, .bytes = sizeof say.text}};
	(void)snprintf(say.text, sizeof say.text, "%s", why);
	if (l->fd >= 0 && l->out_at == 0) /* a message that is half sent would be taken for it: the end of the stream must do */
		(void)!send(l->fd, &say, sizeof say, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (l->fd >= 0)
		(void)shutdown(l->fd, SHUT_WR);
}

static void nccl_abort(struct comm *c)
{
	struct nccl *n = c->impl;
	for (int i = 0; i < n->n_lines; i++)
		tell(&n->line[i], c->error);
	if (n->link)
		n->link = n->ops->close(n->link);
}

static int PRINTF(3, 4) give_up(struct comm *c, int r, const char *fmt, ...)
{
	char why[sizeof c->error];
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	r = comm_fail(c, r, "%s", why);
	nccl_abort(c);
	return r;
}

static int gone(struct comm *c, const struct line *l)
{
	return give_up(c, -ECONNABORTED, "rank %d of %d %s", l->peer, c->size, l->left ? "has left the others" : "is gone: its process ended");
}

/* ---- lines ---- */

/* Head and bytes as far as they go now. */
static int line_send(struct comm *c, struct message *m)
{
	struct line *l = m->line;
	if (l->left)
		return gone(c, l);
	while (!m->done) {
		if (l->out_at == 0)
			l->out = (struct head){.kind = HEAD_BYTES, .bytes = m->bytes};
		bool head = l->out_at < sizeof l->out;
		size_t at = head ? l->out_at : l->out_at - sizeof l->out;
		ssize_t k = send(l->fd, head ? (char *)&l->out + at : m->p + at, head ? sizeof l->out - at : m->bytes - at,
				 MSG_DONTWAIT | MSG_NOSIGNAL | (head && m->bytes ? MSG_MORE : 0));
		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (k < 0 && l->has_in)
			return gone(c, l);
		if (k < 0) /* it may have said why before it went: that is heard next */
			return l->out_at = 0, 0;
		l->out_at += (size_t)k;
		m->done = l->out_at == sizeof l->out + m->bytes;
	}
	l->out_at = 0;
	return 0;
}

/* -EAGAIN: no more now. */
static int read_some(struct comm *c, struct line *l, void *p, size_t size)
{
	ssize_t k = recv(l->fd, p, size, MSG_DONTWAIT);
	if (k > 0) {
		l->in_at += (size_t)k;
		return 0;
	}
	return k < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : gone(c, l);
}

/* The head of what comes next, if one is here; a sentence is read to its end. -EAGAIN: not whole yet. */
static int line_hear(struct comm *c, struct line *l)
{
	int r = 0;
	while (!r && !l->has_in && l->in_at < sizeof l->in)
		r = read_some(c, l, (char *)&l->in + l->in_at, sizeof l->in - l->in_at);
	if (!r && l->in.kind == HEAD_BYTES)
		l->has_in = true;
	if (r || l->has_in)
		return r;
	if (l->in.kind == HEAD_LEAVES && !l->in.bytes)
		return l->left = true, -EAGAIN;
	if (l->in.kind != HEAD_GIVES_UP || l->in.bytes != sizeof l->why)
		return give_up(c, -ECONNABORTED, "rank %d of %d sent what is no message: are all ranks of one build?", l->peer, c->size);
	while (!r && l->in_at < sizeof l->in + sizeof l->why)
		r = read_some(c, l, l->why + (l->in_at - sizeof l->in), sizeof l->in + sizeof l->why - l->in_at);
	if (r)
		return r;
	l->why[sizeof l->why - 1] = 0;
	return give_up(c, -ECONNABORTED, "%s", l->why);
}

static int line_receive(struct comm *c, struct message *m)
{
	struct line *l = m->line;
	int r = l->left ? gone(c, l) : line_hear(c, l);
	if (!r && l->in.bytes != m->bytes)
		r = give_up(c, -EMSGSIZE, "rank %d sent %llu bytes where rank %d expects %zu", l->peer, (unsigned long long)l->in.bytes, c->rank, m->bytes);
	while (!r && l->in_at < sizeof l->in + m->bytes)
		r = read_some(c, l, m->p + (l->in_at - sizeof l->in), sizeof l->in + m->bytes - l->in_at);
	if (r)
		return r == -EAGAIN ? 0 : r;
	m->done = true;
	l->has_in = false;
	l->in_at = 0;
	return 0;
}

/* What the sockets bring and take now; messages of a line in their order. *ret_left: how many are not through. listen: hear who gives up
 * though nothing is left. */
static int move(struct nccl *n, bool listen, int *ret_left)
{
	struct comm *c = &n->comm;
	int left = 0, r = 0;
	for (int pass = 0; pass < 2; pass++) {
		struct message *m = pass ? n->in : n->out;
		for (int i = 0; i < (pass ? n->n_in : n->n_out) && !r; i++) {
			bool first = true; /* of its line */
			for (int j = 0; j < i; j++)
				first &= m[j].done || m[j].line != m[i].line;
			if (!m[i].done && first)
				r = pass ? line_receive(c, &m[i]) : line_send(c, &m[i]);
			left += !m[i].done;
		}
	}
	for (int i = 0; i < n->n_lines && !r && (left || listen); i++) /* who says nothing expected may say that he is gone */
		if (n->line[i].fd >= 0 && !n->line[i].has_in && !n->line[i].left && (r = line_hear(c, &n->line[i])) == -EAGAIN)
			r = 0;
	*ret_left = left;
	return r;
}

/* Until a socket can go on, or so long. */
static void nap(struct nccl *n, int ms)
{
	for (int i = 0; i < n->n_lines; i++) {
		short events = n->line[i].has_in || n->line[i].left ? 0 : POLLIN;
		for (int j = 0; j < n->n_out; j++)
			events |= !n->out[j].done && n->out[j].line == &n->line[i] ? POLLOUT : 0;
		n->poll[i] = (struct pollfd){.fd = events ? n->line[i].fd : -1, .events = events};
	}
	(void)poll(n->poll, (nfds_t)n->n_lines, ms);
}

/* ---- waiting ---- */

static double now(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Hot for 100 us on a device's work, then giving way, then asleep, ever longer. Sockets wake it. */
static void relax(struct nccl *n, double waited)
{
	if (n->where == COMM_DEVICE && waited < 100e-6)
		return;
	if (n->where == COMM_DEVICE && waited < 2e-3)
		(void)sched_yield();
	else
		nap(n, n->where == COMM_HOST ? 50 : 1);
}

/* NCCL failed here. Often that is because another rank did, whose sentence says more: it has half a second to come. */
static int link_failed(struct nccl *n, const struct errtext *e)
{
	struct comm *c = &n->comm;
	int left, r = 0;
	for (int i = 0; i < 10 && !r; i++) {
		if (i)
			nap(n, 50);
		r = move(n, true, &left);
	}
	return r ? r : give_up(c, -ECONNABORTED, "rank %d of %d: %.160s", c->rank, c->size, e->text);
}

/* 0: over; -EINPROGRESS; or the comm's failure. */
static int look(struct nccl *n, double waited)
{
	struct comm *c = &n->comm;
	struct errtext e = {""};
	int left = 0, r = 0;
	if (n->where == COMM_DEVICE) {
		r = n->ops->done(n->link, &e);
		if (r != -EINPROGRESS)
			return r ? link_failed(n, &e) : 0;
	}
	if (n->where == COMM_HOST || waited > 2e-3)
		r = move(n, n->where == COMM_DEVICE, &left);
	if (r)
		return r;
	if (n->where == COMM_HOST && !left)
		return 0;
	if (c->stop && *c->stop && waited > 0.3) /* peers that are well have that long to end the step */
		return give_up(c, -ECANCELED, "rank %d of %d was told to end while it waited for others", c->rank, c->size);
	if (c->timeout_s && waited > c->timeout_s)
		return give_up(c, -ETIMEDOUT, "rank %d of %d heard nothing from the others for %d s", c->rank, c->size, c->timeout_s);
	return -EINPROGRESS;
}

static int nccl_wait(struct comm *c)
{
	struct nccl *n = c->impl;
	double began = now(), waited = 0;
	int r;
	while ((r = look(n, waited)) == -EINPROGRESS) {
		relax(n, waited);
		waited = now() - began;
	}
	n->n_out = n->n_in = 0;
	n->where = COMM_HOST;
	return r;
}

/* ---- posting ---- */

static int room(struct message **m, int *cap, int n)
{
	if (n <= *cap)
		return 0;
	struct message *more = realloc(*m, (size_t)n * sizeof *more);
	if (!more)
		return -ENOMEM;
	*m = more;
	*cap = n;
	return 0;
}

static int line_to(struct nccl *n, int peer, struct line **ret)
{
	struct comm *c = &n->comm;
	if (peer == c->rank || peer < 0 || peer >= c->size || (c->rank && peer))
		return give_up(c, -EINVAL, "a message in host memory from rank %d to rank %d: one end must be rank 0", c->rank, peer);
	*ret = &n->line[c->rank ? 0 : peer];
	return 0;
}

static int nccl_post(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	struct nccl *n = c->impl;
	struct errtext e = {""};
	int r = 0;
	if (where == COMM_DEVICE && n_out + n_in > 0) {
		if (!n->link)
			return give_up(c, -EINVAL, "rank %d was not joined with the others' devices", c->rank);
		if ((r = n->ops->post(n->link, out, n_out, in, n_in, &e)) < 0)
			return link_failed(n, &e);
		n->where = COMM_DEVICE;
		return 0;
	}
	if (room(&n->out, &n->cap_out, n_out) || room(&n->in, &n->cap_in, n_in))
		return give_up(c, -ENOMEM, "out of memory for %d messages", n_out + n_in);
	for (int i = 0; i < n_out && !r; i++) {
		n->out[i] = (struct message){.p = (char *)(uintptr_t)out[i].p, .bytes = out[i].bytes};
		r = line_to(n, out[i].peer, &n->out[i].line);
	}
	for (int i = 0; i < n_in && !r; i++) {
		n->in[i] = (struct message){.p = in[i].p, .bytes = in[i].bytes};
		r = line_to(n, in[i].peer, &n->in[i].line);
	}
	if (r)
		return r;
	n->n_out = n_out;
	n->n_in = n_in;
	n->where = COMM_HOST;
	int left;
	return move(n, false, &left);
}

/* ---- joining the devices ---- */

struct invitation { /* of rank 0 */
	struct link_about about;
	struct link_id id;
};

static int compare(const struct comm *c, const struct link_about *a, const struct link_about *zero, struct errtext *e)
{
	if (a->version != zero->version)
		return errtext_set(e, -EINVAL, "rank %d has NCCL %d.%d.%d, rank 0 %d.%d.%d: install one version", c->rank, a->version / 10000, a->version / 100 % 100, a->version % 100,
				   zero->version / 10000, zero->version / 100 % 100, zero->version % 100);
	if (a->arch != zero->arch) /* their sums would part, and with them the weights */
		return errtext_set(e, -EINVAL, "rank %d computes with capability %d.%d, rank 0 with %d.%d: a group needs GPUs of one kind", c->rank, a->arch / 10, a->arch % 10, zero->arch / 10,
				   zero->arch % 10);
	return 0;
}

static int nccl_device(struct comm *c, struct dev *d, struct errtext *e)
{
	struct nccl *n = c->impl;
	struct link_about mine = {0};
	struct invitation zero = {0};
	int r = d->link ? 0 : errtext_set(e, -ENOTSUP, "rank %d of %d has no GPU (%.100s): ranks that find each other by ranks.meet have one each; on processors start them with mpirun", c->rank,
					  c->size, d->about);
	n->ops = d->link;
	if (!r)
		r = n->ops->about(d, &mine, e);
	if (!r && c->rank == 0) {
		zero.about = mine;
		r = n->ops->id(d, &zero.id, e);
	}
	if (!r && (r = comm_broadcast(c, &zero, sizeof zero)))
		return errtext_set(e, r, "%s", c->error);
	if (!r)
		r = compare(c, &mine, &zero.about, e);
	if (r) {
		comm_abort(c, e->text);
		return r;
	}
	r = n->ops->join(d, &zero.id, c->rank, c->size, &n->link, e);
	if (r)
		r = link_failed(n, e);
	else {
		n->where = COMM_DEVICE;
		r = nccl_wait(c);
	}
	return r ? errtext_set(e, r, "%s", c->error) : 0;
}

static void nccl_free(struct comm *c)
{
	struct nccl *n = c->impl;
	if (n->link)
		n->link = n->ops->close(n->link);
	const struct head bye = {.kind = HEAD_LEAVES};
	for (int i = 0; i < n->n_lines; i++) {
		if (n->line[i].fd < 0)
			continue;
		if (!c->failed)
			(void)!send(n->line[i].fd, &bye, sizeof bye, MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)close(n->line[i].fd);
	}
	free(n->line);
	free(n->poll);
	free(n->out);
	free(n->in);
	free(n);
}

static const struct comm_ops nccl_ops = {.name = "nccl", .post = nccl_post, .wait = nccl_wait, .abort = nccl_abort, .free = nccl_free, .device = nccl_device};

int comm_nccl_new(int rank, int size, const int *fd, struct comm **ret)
{
	int lines = rank ? 1 : size;
	struct nccl *n = calloc(1, sizeof *n);
	struct line *line = calloc((size_t)lines, sizeof *line);
	struct pollfd *poll = calloc((size_t)lines, sizeof *poll);
	if (!n || !line || !poll) {
		for (int i = 0; i < lines; i++)
			if (fd[i] >= 0)
				(void)close(fd[i]);
		free(n);
		free(line);
		free(poll);
		return -ENOMEM;
	}
	for (int i = 0; i < lines; i++) {
		line[i].fd = fd[i];
		line[i].peer = i;
	}
	*n = (struct nccl){.comm = {.ops = &nccl_ops, .impl = n, .rank = rank, .size = size, .local = size, .here = rank}, .n_lines = lines, .line = line, .poll = poll};
	*ret = &n->comm;
	return 0;
}
