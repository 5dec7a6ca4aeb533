/* libnccl.so.2 of a machine without one: messages between ranks that are threads or processes of one machine.
 *
 * A group is a file that all map: for each pair of ranks a ring of bytes, each message led by its length. What a group of sends and receives
 * has to do is one piece of work on their stream, tried again and again as its rings fill and drain; so a rank that is gone is waited for
 * for ever, as NCCL's kernels do. Nothing blocks: a call that must wait for others answers "in progress", and what GroupEnd was given reaches
 * the stream only when the caller asks a second time how it stands, so that an event recorded too early shows.
 *
 * Faults: CUEMU_NCCL=what:rank:n. version:0:code (of all), init:R:0 (refused), error:R:n (the n-th group of
 * messages ends with an asynchronous error), hang:R:n (it never ends), die:R:n (the process is killed in the middle of it). count:0:0 is
 * none: at the end it says how many groups of messages there were.
 * Two processes with the same CUDA_VISIBLE_DEVICES share a device, which NCCL refuses.
 */
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>
#include <vector>
#include "kernels/cuda/nccl.h"
#include "tests/cuemu/runtime.h"

namespace {
constexpr int MOST = 16;
constexpr size_t RING = 1 << 16;

struct ring {
	std::atomic<uint64_t> put, taken;
	char bytes[RING];
};
struct world {
	std::atomic<int> joined;
	long device[MOST]; /* hash of what the rank calls its device; 0 unknown */
	ring from_to[MOST][MOST];
};

struct message {
	bool send;
	char *p;
	uint64_t head, at; /* bytes; so many are through, the head's included */
	int peer;
};

struct group {
	std::vector<message> all;
	bool hangs, dies;
};

struct comm_state { /* outlives the comm while work on a stream knows it */
	world *w;
	int rank, size;
	std::atomic<bool> aborted;
	std::atomic<int> error;
	char said[160];
	~comm_state() { munmap(w, sizeof *w); }
};

/* Groups that this process named and not all joined leave no file. */
struct names {
	std::mutex lock;
	std::vector<std::string> all;
	~names()
	{
		for (auto &path : all)
			unlink(path.c_str());
	}
} named;

thread_local int depth;
thread_local struct ncclComm *grouped;

struct planned {
	char what[16];
	int rank;
	long n;
};

planned fault()
{
	planned f = {};
	const char *s = getenv("CUEMU_NCCL");
	if (s && sscanf(s, "%15[^:]:%d:%ld", f.what, &f.rank, &f.n) != 3)
		abort();
	return f;
}

bool fault_is(const char *what, int rank, long n)
{
	auto f = fault();
	return strcmp(f.what, what) == 0 && f.rank == rank && f.n == n;
}

void path_of(const nccl_id *id, char ret[200])
{
	snprintf(ret, 200, "%s/%.60s", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", id->bytes);
}
} // namespace

struct ncclComm {
	std::shared_ptr<comm_state> s;
	char path[200];
	bool joining;
	cudaStream_t stream;
	std::shared_ptr<group> now, handed; /* being made; given by GroupEnd and not on the stream yet */
	bool asked; /* how it stands, since */
	long groups;
};

namespace {
/* As far as the ring lets it. */
bool step(comm_state *s, message *m)
{
	ring *r = m->send ? &s->w->from_to[s->rank][m->peer] : &s->w->from_to[m->peer][s->rank];
	uint64_t head = m->head, said = 0;
	while (m->at < sizeof head + m->head) {
		uint64_t put = r->put.load(std::memory_order_acquire), taken = r->taken.load(std::memory_order_acquire);
		uint64_t can = m->send ? RING - (put - taken) : put - taken;
		if (m->at == 0 && can < sizeof head)
			return false;
		if (!can)
			return false;
		if (m->at == 0) { /* lengths lie whole: put and taken are only moved past all of one */
			for (size_t i = 0; i < sizeof head; i++)
				if (m->send)
					r->bytes[(put + i) % RING] = ((char *)&head)[i];
				else
					((char *)&said)[i] = r->bytes[(taken + i) % RING];
			if (!m->send && said != head) {
				snprintf(s->said, sizeof s->said, "rank %d sent %llu bytes where rank %d expects %llu", m->peer, (unsigned long long)said, s->rank, (unsigned long long)head);
				s->error = NCCL_BAD_USAGE;
				return false;
			}
			(m->send ? r->put : r->taken).fetch_add(sizeof head, std::memory_order_release);
			m->at = sizeof head;
			continue;
		}
		uint64_t from = m->at - sizeof head, n = std::min(can, head - from), at = (m->send ? put : taken) % RING;
		n = std::min(n, RING - at);
		if (m->send)
			memcpy(r->bytes + at, m->p + from, n);
		else
			memcpy(m->p + from, r->bytes + at, n);
		(m->send ? r->put : r->taken).fetch_add(n, std::memory_order_release);
		m->at += n;
	}
	return true;
}

bool work(comm_state *s, group *g)
{
	bool all = true;
	if (s->aborted)
		return true;
	if (s->error || g->hangs)
		return false;
	for (size_t i = 0; i < g->all.size(); i++) {
		bool first = true; /* of its pair and direction */
		for (size_t j = 0; j < i; j++)
			first &= g->all[j].peer != g->all[i].peer || g->all[j].send != g->all[i].send || g->all[j].at == sizeof(uint64_t) + g->all[j].head;
		all &= first && step(s, &g->all[i]);
		if (g->dies)
			kill(getpid(), SIGKILL);
	}
	return all;
}

int add(ncclComm *c, cudaStream_t s, message m)
{
	if (m.peer < 0 || m.peer >= c->s->size)
		return NCCL_BAD_ARGUMENT;
	if (!depth || (grouped && grouped != c) || c->joining || c->handed) /* one group at a time is all that is played */
		return NCCL_BAD_USAGE;
	grouped = c;
	if (!c->now)
		c->now = std::make_shared<group>();
	c->stream = s;
	c->now->all.push_back(m);
	return NCCL_OK;
}

/* Everybody is here: is each alone on its device? */
int same_device(ncclComm *c)
{
	world *w = c->s->w;
	for (int i = 0; i < c->s->size; i++)
		for (int j = 0; j < i; j++)
			if (w->device[i] && w->device[i] == w->device[j]) {
				snprintf(c->s->said, sizeof c->s->said, "Duplicate GPU detected : rank %d and rank %d both on CUDA device 1000", j, i);
				return NCCL_BAD_USAGE;
			}
	return NCCL_OK;
}
} // namespace

extern "C" {
int ncclGetVersion(int *ret)
{
	auto f = fault();
	*ret = strcmp(f.what, "version") == 0 ? (int)f.n : 22809;
	return NCCL_OK;
}

int ncclGetUniqueId(nccl_id *ret)
{
	char path[200];
	uint64_t r[2];
	memset(ret, 0, sizeof *ret);
	if (getrandom(r, sizeof r, 0) != sizeof r)
		return 2;
	snprintf(ret->bytes, sizeof ret->bytes, "cuemu-nccl-%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
	path_of(ret, path);
	int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(world)))
		return 2;
	close(fd);
	std::lock_guard<std::mutex> l(named.lock);
	named.all.push_back(path);
	return NCCL_OK;
}

int ncclCommInitRankConfig(ncclComm **ret, int size, nccl_id id, int rank, nccl_config *config)
{
	const char *device = getenv("CUDA_VISIBLE_DEVICES");
	if (!config || config->magic != 0xcafebeef || config->blocking || size < 1 || size > MOST || rank < 0 || rank >= size)
		return NCCL_BAD_ARGUMENT;
	if (fault_is("init", rank, 0))
		return 2;
	ncclComm *c = new ncclComm{};
	path_of(&id, c->path);
	int fd = open(c->path, O_RDWR | O_CLOEXEC);
	void *p = fd < 0 ? MAP_FAILED : mmap(nullptr, sizeof(world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED) {
		delete c;
		return 2;
	}
	c->s = std::make_shared<comm_state>();
	c->s->w = (world *)p;
	c->s->rank = rank;
	c->s->size = size;
	c->joining = true;
	for (const char *d = device; d && *d; d++)
		c->s->w->device[rank] = c->s->w->device[rank] * 31 + *d;
	c->s->w->joined++;
	*ret = c;
	return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(ncclComm *c, int *ret)
{
	*ret = c->s->error;
	if (c->s->error)
		return NCCL_OK;
	*ret = c->joining || (c->handed && !c->asked) ? NCCL_IN_PROGRESS : NCCL_OK;
	if (c->joining && c->s->w->joined == c->s->size) {
		c->joining = false;
		unlink(c->path);
		c->s->error = same_device(c);
	}
	if (c->handed && !c->asked)
		c->asked = true;
	else if (c->handed) {
		auto s = c->s;
		auto g = std::move(c->handed);
		cuemu::enqueue_until(c->stream, [s, g]() { return work(s.get(), g.get()); });
		c->handed = nullptr;
		c->asked = false;
		if (fault_is("error", s->rank, c->groups)) {
			snprintf(s->said, sizeof s->said, "connection closed by the other side");
			s->error = NCCL_REMOTE_ERROR;
		}
	}
	return NCCL_OK;
}

int ncclCommAbort(ncclComm *c)
{
	if (strcmp(fault().what, "count") == 0)
		fprintf(stderr, "cuemu: %ld groups of messages\n", c->groups);
	c->s->aborted = true;
	unlink(c->path);
	delete c;
	return NCCL_OK;
}

int ncclGroupStart(void)
{
	depth++;
	return NCCL_OK;
}

int ncclGroupEnd(void)
{
	ncclComm *c = grouped;
	if (--depth || !c)
		return NCCL_OK;
	grouped = nullptr;
	c->groups++;
	c->handed = std::move(c->now);
	c->now = nullptr;
	c->handed->hangs = fault_is("hang", c->s->rank, c->groups);
	c->handed->dies = fault_is("die", c->s->rank, c->groups);
	return NCCL_IN_PROGRESS;
}

int ncclSend(const void *p, size_t count, int type, int peer, ncclComm *c, cudaStream_t s)
{
	return type == NCCL_UINT8 ? add(c, s, {true, (char *)p, count, 0, peer}) : NCCL_BAD_ARGUMENT;
}

int ncclRecv(void *p, size_t count, int type, int peer, ncclComm *c, cudaStream_t s)
{
	return type == NCCL_UINT8 ? add(c, s, {false, (char *)p, count, 0, peer}) : NCCL_BAD_ARGUMENT;
}

const char *ncclGetErrorString(int r)
{
	static const char *const names[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage",
					    "remote process exited or there was a network error", "in progress"};
	return r >= 0 && r < 8 ? names[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm *c)
{
	return c ? c->s->said : "";
}
}
