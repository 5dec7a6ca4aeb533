/* CUDA's stream capture and graphs over the lazy streams.
 *
 * What is queued in a capturing stream is noted and not run; whoever launches the graph gets it run in the stream's order, as often as
 * it is launched, with the arguments of the capture. A copy from pageable memory reads it at each launch. Streams join a capture by
 * waiting for an event of it, and must be waited for before it ends. Refused, and the capture spoilt by it, as on a GPU: waiting for a
 * stream that captures; calls that are not ordered by a stream (pinned memory, looking at events) by a thread that captures, or by any while
 * somebody captures in mode global; waiting for an event from outside; the legacy stream beside a blocking one that captures.
 * Memory taken under capture belongs to the graph, which cannot be launched again before it is given back. Ending this process, where a GPU
 * says nothing of it: destroying what is still to run.
 */
#include "tests/cuemu/runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>

struct cuemu_graph_exec {
	std::shared_ptr<cuemu_graph> g;
};

namespace cuemu {
static std::vector<std::shared_ptr<capture>> active;

cudaError_t spoil(capture *c, cudaError_t e)
{
	c->spoilt = true;
	return e;
}

cudaError_t not_in_stream_order()
{
	for (auto &c : active)
		if (c->mode != cudaStreamCaptureModeRelaxed && (c->mode == cudaStreamCaptureModeGlobal || c->thread == std::this_thread::get_id()))
			return spoil(c.get(), cudaErrorStreamCaptureUnsupported);
	return cudaSuccess;
}

cudaError_t legacy_stream()
{
	for (auto &c : active)
		if (!c->origin->non_blocking)
			return spoil(c.get(), cudaErrorStreamCaptureImplicit);
	return cudaErrorInvalidValue; /* it is never meant here */
}

cudaError_t note_work(cudaStream_t s, std::function<bool()> work)
{
	if (s->in->spoilt)
		return cudaErrorStreamCaptureInvalidated;
	s->in->g->nodes.push_back(std::move(work));
	s->in->joined[s].first++;
	return cudaSuccess;
}

void record_captured(cudaEvent_t e, cudaStream_t s)
{
	e->in = s->in;
	e->from = s;
	e->at = s->in->joined[s].first;
}

cudaError_t wait_captured(cudaStream_t s, cudaEvent_t e)
{
	if (!e->in)
		return s->in ? spoil(s->in.get(), cudaErrorStreamCaptureIsolation) : cudaErrorInvalidValue;
	if (std::find(active.begin(), active.end(), e->in) == active.end())
		return cudaErrorCapturedEvent;
	if (s->in && s->in != e->in)
		return spoil(s->in.get(), cudaErrorStreamCaptureMerge);
	if (!s->in) {
		s->in = e->in;
		s->in->joined[s] = {1, 0};
	} else if (s == s->in->origin)
		s->in->joined[e->from].second = std::max(s->in->joined[e->from].second, e->at);
	return cudaSuccess;
}
} // namespace cuemu

using namespace cuemu;

extern "C" {
#define TRY_CALL(name)                                 \
	std::lock_guard<std::recursive_mutex> held_(lock); \
	do {                                           \
		cudaError_t fault_ = cuemu::fault(name); \
		if (fault_ != cudaSuccess)             \
			return note(fault_);           \
	} while (0)

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	TRY_CALL("cudaStreamBeginCapture");
	if (!s)
		return note(cudaErrorStreamCaptureUnsupported);
	if (s->in)
		return note(cudaErrorIllegalState);
	s->in = std::make_shared<capture>();
	s->in->g = std::make_shared<cuemu_graph>();
	s->in->origin = s;
	s->in->mode = mode;
	s->in->thread = std::this_thread::get_id();
	s->in->joined[s] = {0, 0};
	active.push_back(s->in);
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *ret)
{
	std::lock_guard<std::recursive_mutex> held_(lock);
	cudaError_t planned = cuemu::fault("cudaStreamEndCapture"); /* the capture is over all the same */
	*ret = nullptr;
	auto c = s ? s->in : nullptr;
	if (!c || c->origin != s)
		return note(c ? cudaErrorStreamCaptureUnmatched : cudaErrorIllegalState);
	if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
		return note(cudaErrorStreamCaptureWrongThread);
	bool unjoined = false;
	for (auto &j : c->joined) {
		unjoined = unjoined || (j.first != s && j.second.second < j.second.first);
		j.first->in = nullptr;
	}
	active.erase(std::find(active.begin(), active.end(), c));
	if (planned != cudaSuccess)
		return note(planned);
	if (c->spoilt || unjoined)
		return note(c->spoilt ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
	*ret = new cuemu_graph_handle{c->g};
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long)
{
	TRY_CALL("cudaGraphInstantiate");
	*ret = new cuemu_graph_exec{std::make_shared<cuemu_graph>(*g->g)};
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
	TRY_CALL("cudaGraphLaunch");
	auto g = x->g;
	if (g->taken && g->launched)
		return note(cudaErrorInvalidValue);
	g->launched = true;
	return note(enqueue(s, [g]() {
		for (auto &n : g->nodes)
			while (!n())
				;
	}));
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	TRY_CALL("cudaGraphDestroy");
	delete g;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
	std::lock_guard<std::recursive_mutex> held_(lock);
	(void)cuemu::fault("cudaGraphExecDestroy");
	if (x->g.use_count() > 1) {
		fprintf(stderr, "cuemu: a graph is destroyed that is still to run\n");
		abort();
	}
	delete x;
	return cudaSuccess;
}
}
