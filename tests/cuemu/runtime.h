/* Between the files of tests/cuemu: the lazy streams, captures and the faults. */
#pragma once
#include "tests/cuemu/cuemu.h"
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

struct cuemu_graph {
	std::vector<std::function<bool()>> nodes;
	int taken; /* memory that it takes and does not give back */
	bool launched;
};
struct cuemu_graph_handle {
	std::shared_ptr<cuemu_graph> g;
};

namespace cuemu {
/* Under lock: */
struct capture {
	std::shared_ptr<cuemu_graph> g;
	cudaStream_t origin;
	enum cudaStreamCaptureMode mode;
	std::thread::id thread;
	bool spoilt;
	std::map<cudaStream_t, std::pair<uint64_t, uint64_t>> joined; /* work noted in each; of it, how much the origin waited for */
	std::map<void *, size_t> memory;                              /* taken and not given back */
};
} // namespace cuemu

struct cuemu_stream {
	int priority;
	bool non_blocking;
	std::deque<std::function<bool()>> queue;
	uint64_t enqueued, done;
	std::shared_ptr<cuemu::capture> in; /* what captures it, or NULL */
};
struct cuemu_event {
	cudaStream_t stream;
	uint64_t at; /* enqueued then; in a capture, noted then */
	bool timed;
	std::shared_ptr<double> when; /* ms; set when the stream comes there */
	std::shared_ptr<cuemu::capture> in; /* recorded in that capture last, */
	cudaStream_t from;                  /* in this stream of it */
};

namespace cuemu {
extern std::recursive_mutex lock;
cudaError_t note(cudaError_t e); /* for cudaGetLastError */
void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body);
/* Do it when the stream is drained. */
cudaError_t enqueue(cudaStream_t s, std::function<void()> work);
/* The same for what must be tried again as long as it says false: it waits for another rank. Whoever waits for the stream lets others run meanwhile. */
cudaError_t enqueue_until(cudaStream_t s, std::function<bool()> work);
/* The error that call number n of this name is to give, see runtime.cpp; cudaSuccess: none. A lasting error comes back from every call. */
cudaError_t fault(const char *call);
/* graphs.cpp; under lock */
cudaError_t spoil(capture *c, cudaError_t e);   /* that capture comes to nothing; returns e */
cudaError_t not_in_stream_order();              /* what a call of that kind is answered now */
cudaError_t legacy_stream();                    /* what work for it is answered */
cudaError_t note_work(cudaStream_t s, std::function<bool()> work); /* s captures */
void record_captured(cudaEvent_t e, cudaStream_t s);               /* s captures */
cudaError_t wait_captured(cudaStream_t s, cudaEvent_t e);          /* one of them is in a capture */
} // namespace cuemu
