/* libcuda.so.1 of a machine without one: just what kernels/dev_cuda.c asks before it loads anything.
 * CUEMU_DRIVER is the version it claims (13000), CUEMU_DEVICES how many devices it has (1),
 * CUEMU_INIT what cuInit answers (0).
 */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *ret);
int cuDeviceGetCount(int *ret);

static int number(const char *name, int or)
{
	const char *s = getenv(name);
	return s ? atoi(s) : or;
}

int cuInit(unsigned flags)
{
	(void)flags;
	return number("CUEMU_INIT", 0);
}

int cuDriverGetVersion(int *ret)
{
	*ret = number("CUEMU_DRIVER", 13000);
	return 0;
}

int cuDeviceGetCount(int *ret)
{
	*ret = number("CUEMU_DEVICES", 1);
	return 0;
}
