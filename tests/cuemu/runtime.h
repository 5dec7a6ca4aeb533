/* Between the files of tests/cuemu: the lazy streams and the faults. */
#pragma once
#include "tests/cuemu/cuemu.h"

namespace cuemu {
void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body);
/* Do it when the stream is drained. */
cudaError_t enqueue(cudaStream_t s, std::function<void()> work);
/* The same for what must be tried again as long as it says false: it waits for another rank. Whoever waits for the stream lets others run meanwhile. */
cudaError_t enqueue_until(cudaStream_t s, std::function<bool()> work);
/* The error that call number n of this name is to give, see runtime.cpp; cudaSuccess: none. A lasting error comes back from every call. */
cudaError_t fault(const char *call);
} // namespace cuemu
