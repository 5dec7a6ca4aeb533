/* CUDA's runtime over the fibers: memory, streams, events, faults.
 *
 * Streams are lazy: a copy or a kernel is put in a queue and runs when somebody
 * synchronises, so host code that reads a result too early, or reuses pinned
 * memory too soon, fails here every time and not once a month. Host memory that is
 * not pinned behaves as CUDA says: a copy from it is taken at once, a copy
 * to it waits. Fresh device memory is filled with NaN.
 *
 * Faults: CUEMU_FAULT=call:nth:code, read whenever devices are counted. "launch:3:719" makes
 * the third launch fail with cudaErrorLaunchFailure. Errors from 200 on that come from work on the device last, as
 * on a GPU: every later call gives them again; those of captures (900 on) do not. CUEMU_DEVICES is how many devices there are (1), CUEMU_MEMORY how many
 * bytes each has (8 GB), CUEMU_CAPABILITY its compute capability (80). cuemu_called(call) is how often a call was made that can
 * fail; "launch" is one of them.
 */
#include "tests/cuemu/runtime.h"
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sched.h>
#include <string>

namespace cuemu {
std::recursive_mutex lock;
}
using namespace cuemu;

namespace {
struct block {
	size_t bytes;
	bool pinned;
};

std::map<const char *, block> blocks;
std::vector<cudaStream_t> streams;
thread_local int last_error; /* each thread has its own, as in CUDA */
std::atomic<int> lasting;
/* A lost device's memory goes with the process; of a sound one whatever is left is a leak, for a sanitizer to tell. */
struct lost_memory {
	bool any;
	~lost_memory()
	{
		for (auto &p : blocks)
			if (any)
				free((void *)p.first);
	}
} lost;
size_t used;
std::map<std::string, long> calls;
struct {
	char call[32];
	long left;
	int code;
} planned;

size_t memory_size()
{
	const char *s = getenv("CUEMU_MEMORY");
	return s ? (size_t)strtoull(s, nullptr, 10) : (size_t)8 << 30;
}

const block *find(const void *p)
{
	auto it = blocks.upper_bound((const char *)p);
	if (it == blocks.begin())
		return nullptr;
	--it;
	return (const char *)p < it->first + (it->second.bytes ? it->second.bytes : 1) ? &it->second : nullptr;
}

/* false: a piece of work waits for somebody else (another rank) and is the next one still */
bool drain(cudaStream_t s, uint64_t upto)
{
	while (s->done < upto && !s->queue.empty()) {
		auto work = std::move(s->queue.front());
		s->queue.pop_front();
		if (!lasting && !work()) {
			s->queue.push_front(std::move(work));
			return false;
		}
		s->done++;
	}
	return true;
}

typedef std::unique_lock<std::recursive_mutex> held;

/* Until it is done; what it waits for may need the lock. */
void drain_all(held &l, cudaStream_t s, uint64_t upto)
{
	while (!drain(s, upto)) {
		l.unlock();
		sched_yield();
		l.lock();
	}
}

cudaError_t take(void **ret, size_t bytes, bool pinned)
{
	if (bytes > memory_size() || (!pinned && used + bytes > memory_size()))
		return cudaErrorMemoryAllocation;
	void *p = nullptr;
	if (posix_memalign(&p, 256, bytes ? bytes : 1)) /* exactly, so that a sanitizer sees a step past the end */
		return cudaErrorMemoryAllocation;
	memset(p, 0xff, bytes);
	blocks[(const char *)p] = {bytes, pinned};
	used += pinned ? 0 : bytes;
	*ret = p;
	return cudaSuccess;
}

cudaError_t give(void *p, bool pinned)
{
	auto it = blocks.find((const char *)p);
	if (it == blocks.end() || it->second.pinned != pinned)
		return cudaErrorInvalidValue;
	used -= pinned ? 0 : it->second.bytes;
	blocks.erase(it);
	free(p);
	return cudaSuccess;
}
} // namespace

namespace cuemu {
cudaError_t note(cudaError_t e)
{
	if (e != cudaSuccess)
		last_error = e;
	return e;
}

cudaError_t fault(const char *call)
{
	std::lock_guard<std::recursive_mutex> l(lock);
	calls[call]++;
	if (lasting)
		return (cudaError_t)lasting.load();
	if (!planned.call[0] || strcmp(planned.call, call) != 0 || --planned.left)
		return cudaSuccess;
	planned.call[0] = 0;
	if (planned.code >= 200 && planned.code < cudaErrorStreamCaptureUnsupported)
		lasting = planned.code, lost.any = true;
	return (cudaError_t)planned.code;
}

cudaError_t enqueue_until(cudaStream_t s, std::function<bool()> work)
{
	std::lock_guard<std::recursive_mutex> l(lock);
	if (!s)
		return legacy_stream();
	if (s->in)
		return note_work(s, std::move(work));
	s->queue.push_back(std::move(work));
	s->enqueued++;
	return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t s, std::function<void()> work)
{
	return enqueue_until(s, [work]() { return work(), true; });
}

void launch(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s, std::function<void()> body)
{
	cudaError_t e = fault("launch");
	if (e == cudaSuccess && (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535))
		e = cudaErrorInvalidValue;
	if (e == cudaSuccess)
		e = enqueue(s, [=]() { run_grid(kernel, grid, block, shared, body); });
	note(e);
}
} // namespace cuemu

extern "C" {
int cuemu_priority(int n);
long cuemu_called(const char *call);
long cuemu_called(const char *call)
{
	std::lock_guard<std::recursive_mutex> l(lock);
	auto it = calls.find(call);
	return it == calls.end() ? 0 : it->second;
}

#define FAULT(name)                                    \
	do {                                           \
		cudaError_t fault_ = cuemu::fault(name); \
		if (fault_ != cudaSuccess)             \
			return note(fault_);           \
	} while (0)
#define LOCKED held locked_(lock)
#define UNORDERED                                              \
	do {                                                   \
		cudaError_t refused_ = not_in_stream_order(); \
		if (refused_ != cudaSuccess)                   \
			return note(refused_);                 \
	} while (0)

cudaError_t cudaGetDeviceCount(int *ret)
{
	LOCKED;
	const char *plan = getenv("CUEMU_FAULT"), *n = getenv("CUEMU_DEVICES");
	last_error = lasting = 0;
	planned = {};
	if (plan && sscanf(plan, "%31[^:]:%ld:%d", planned.call, &planned.left, &planned.code) != 3)
		abort();
	FAULT("cudaGetDeviceCount");
	*ret = n ? atoi(n) : 1;
	return *ret ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
	FAULT("cudaSetDevice");
	return device == 0 ? cudaSuccess : note(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
	FAULT("cudaGetDeviceProperties");
	*ret = {};
	snprintf(ret->name, sizeof ret->name, "emulated device %d", device);
	const char *cc = getenv("CUEMU_CAPABILITY");
	ret->totalGlobalMem = memory_size();
	ret->major = cc ? atoi(cc) / 10 : 8;
	ret->minor = cc ? atoi(cc) % 10 : 0;
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	LOCKED;
	FAULT("cudaMemGetInfo");
	*ret_total = memory_size();
	*ret_free = *ret_total - used;
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	int e = last_error;
	last_error = 0;
	return (cudaError_t)(lasting ? lasting.load() : e);
}

const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
	case cudaSuccess: return "cudaSuccess";
	case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
	case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
	case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
	case cudaErrorNoDevice: return "cudaErrorNoDevice";
	case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
	case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
	case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
	case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
	case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
	case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
	default: return "cudaErrorUnknown";
	}
}

cudaError_t cudaMallocAsync(void **ret, size_t bytes, cudaStream_t s)
{
	LOCKED;
	FAULT("cudaMallocAsync");
	cudaError_t e = take(ret, bytes, false);
	if (e == cudaSuccess && s && s->in) {
		s->in->g->taken++;
		s->in->memory[*ret] = bytes;
	}
	return note(e);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
	LOCKED;
	if (!p)
		return cudaSuccess;
	FAULT("cudaFreeAsync");
	if (s && s->in) { /* its own, which stays a part of the graph; nobody else's */
		if (!s->in->memory.erase(p))
			return note(spoil(s->in.get(), cudaErrorInvalidValue));
		s->in->g->taken--;
		return cudaSuccess;
	}
	return note(cuemu::enqueue(s, [p]() {
		if (give(p, false) != cudaSuccess)
			abort();
	}));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *ret, int device)
{
	FAULT("cudaDeviceGetDefaultMemPool");
	*ret = nullptr;
	return device == 0 ? cudaSuccess : note(cudaErrorInvalidDevice);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, enum cudaMemPoolAttr attr, void *ret)
{
	LOCKED;
	FAULT("cudaMemPoolGetAttribute");
	if (attr != cudaMemPoolAttrUsedMemCurrent)
		return note(cudaErrorInvalidValue);
	*(uint64_t *)ret = used;
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned)
{
	LOCKED;
	FAULT("cudaHostAlloc");
	UNORDERED;
	return note(take(ret, bytes, true));
}

cudaError_t cudaFreeHost(void *p)
{
	LOCKED;
	UNORDERED;
	for (auto s : streams)
		(void)drain(s, s->enqueued); /* as a device waits, but not for other ranks, which have devices of their own */
	return p ? note(give(p, true)) : cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *ret, const void *p)
{
	LOCKED;
	const block *b = find(p);
	*ret = {};
	ret->type = !b ? cudaMemoryTypeUnregistered : b->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind, cudaStream_t s)
{
	LOCKED;
	FAULT("cudaMemcpyAsync");
	if (!s)
		return note(cudaErrorInvalidValue);
	if (!bytes)
		return cudaSuccess;
	if (s->in)
		return note(cuemu::enqueue(s, [=]() { memmove(dst, src, bytes); }));
	if (!find(src)) { /* pageable: taken now */
		std::vector<char> copy((const char *)src, (const char *)src + bytes);
		return note(cuemu::enqueue(s, [dst, copy]() { memcpy(dst, copy.data(), copy.size()); }));
	}
	cudaError_t e = cuemu::enqueue(s, [=]() { memmove(dst, src, bytes); });
	if (e == cudaSuccess && !find(dst))
		drain_all(locked_, s, s->enqueued);
	return note(e);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t s)
{
	FAULT("cudaMemsetAsync");
	return note(cuemu::enqueue(s, [=]() { memset(dst, value, bytes); }));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	*ret_least = 0;
	*ret_greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
	LOCKED;
	FAULT("cudaStreamCreateWithPriority");
	*ret = new cuemu_stream{};
	(*ret)->priority = priority;
	(*ret)->non_blocking = flags & cudaStreamNonBlocking;
	streams.push_back(*ret);
	return cudaSuccess;
}

/* For tests: the priority of the nth stream that is open, in order of their making; 1 = there are not so many. */
int cuemu_priority(int n)
{
	LOCKED;
	return n < (int)streams.size() ? streams[(size_t)n]->priority : 1;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	LOCKED;
	(void)drain(s, s->enqueued);
	for (size_t i = 0; i < streams.size(); i++)
		if (streams[i] == s)
			streams.erase(streams.begin() + (long)i);
	delete s;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	LOCKED;
	FAULT("cudaStreamSynchronize");
	if (s->in)
		return note(spoil(s->in.get(), cudaErrorStreamCaptureUnsupported));
	drain_all(locked_, s, s->enqueued);
	return (cudaError_t)lasting.load();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	LOCKED;
	FAULT("cudaStreamWaitEvent");
	if (s->in || e->in)
		return note(wait_captured(s, e));
	cuemu_event now = *e; /* what it is about now, whatever it is recorded for later */
	return note(cuemu::enqueue_until(s, [now]() { return !now.stream || drain(now.stream, now.at); }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
	FAULT("cudaEventCreateWithFlags");
	*ret = new cuemu_event{};
	(*ret)->timed = !(flags & cudaEventDisableTiming);
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	delete e;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	LOCKED;
	FAULT("cudaEventRecord");
	if (s->in) {
		record_captured(e, s);
		return cudaSuccess;
	}
	e->in = nullptr;
	if (e->timed) {
		auto when = std::make_shared<double>(-1.0);
		e->when = when;
		(void)cuemu::enqueue(s, [when]() { *when = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); });
	}
	e->stream = s;
	e->at = s->enqueued;
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t a, cudaEvent_t b)
{
	LOCKED;
	if (!a->when || !b->when || a->in || b->in)
		return note(cudaErrorInvalidResourceHandle);
	if (*a->when < 0 || *b->when < 0)
		return note(cudaErrorNotReady);
	*ret_ms = (float)(*b->when - *a->when);
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	LOCKED;
	if (e->in)
		return note(cudaErrorCapturedEvent);
	UNORDERED;
	if (e->stream && e->stream->done < e->at) { /* time passes between one question and the next: one piece of work's */
		(void)drain(e->stream, e->stream->done + 1);
		return note(cudaErrorNotReady); /* a real runtime remembers it as any other */
	}
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	LOCKED;
	FAULT("cudaEventSynchronize");
	if (e->in)
		return note(cudaErrorCapturedEvent);
	UNORDERED;
	if (e->stream)
		drain_all(locked_, e->stream, e->at);
	return (cudaError_t)lasting.load();
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
	return value > 99 << 10 ? note(cudaErrorInvalidValue) : cudaSuccess; /* sm_86 gives 99 KB */
}
}
