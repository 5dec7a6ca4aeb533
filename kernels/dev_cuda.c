/* Is there a CUDA device? Asked without CUDA: the driver first, and only if it answers the
 * library with the kernels (kernels/cuda/abi.h). So a machine without a GPU pays one failed
 * dlopen. Both are found as any library is; the programs carry the folders beside them as
 * run paths (Makefile).
 */
#include <dlfcn.h>
#include "kernels/cuda/abi.h"

enum { DRIVER_NEEDED = 12000 }; /* CUDA 13's runtime needs 13.0; a toolkit of 12 makes a library that 12.0 runs */

#ifdef REDRAFT_DOUBLE
int dev_cuda_new(const struct dev_options *o, struct dev **ret, struct errtext *e)
{
	(void)o;
	(void)ret;
	return errtext_set(e, -ENOTSUP, "this build computes in double");
}
#else

static int driver_answers(struct errtext *e)
{
	int version = 0, n = 0;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return errtext_set(e, -ENODEV, "no CUDA driver: libcuda.so.1 is not installed");
	int (*init)(unsigned), (*get_version)(int *), (*get_count)(int *);
	*(void **)(void *)&init = dlsym(lib, "cuInit");
	*(void **)(void *)&get_version = dlsym(lib, "cuDriverGetVersion");
	*(void **)(void *)&get_count = dlsym(lib, "cuDeviceGetCount");
	if (!init || !get_version || !get_count)
		return errtext_set(e, -ENODEV, "no CUDA driver: libcuda.so.1 is something else");
	int r = init(0);
	if (r)
		return errtext_set(e, -ENODEV, "no CUDA driver: cuInit answers %d%s", r, r == 100 ? ", no device" : "");
	if (get_version(&version) || version < DRIVER_NEEDED)
		return errtext_set(e, -ENODEV, "CUDA driver too old: it is for CUDA %d.%d, %d.%d is needed", version / 1000, version % 1000 / 10, DRIVER_NEEDED / 1000,
				   DRIVER_NEEDED % 1000 / 10);
	if (get_count(&n) || n < 1)
		return errtext_set(e, -ENODEV, "no CUDA device is visible to this process");
	return 0;
}

int dev_cuda_new(const struct dev_options *o, struct dev **ret, struct errtext *e)
{
	int r = driver_answers(e);
	if (r)
		return r;
	void *lib = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return errtext_set(e, -ENOENT, "%.200s", dlerror());
	cuda_open_fn *open;
	*(void **)(void *)&open = dlsym(lib, CUDA_OPEN);
	if (!open)
		return errtext_set(e, -ENOENT, CUDA_LIBRARY " is something else");
	struct cuda_request q = {.math = o->math, .background = o->background, .memory_bytes = o->memory_bytes, .graphs = o->graphs, .wait = o->wait};
	return open(CUDA_ABI_KEY, &q, ret, e);
}
#endif
