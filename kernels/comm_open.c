/* Which ranks we are one of (kernels/comm.h).
 *
 * MPI lives in a shared object beside the program, ../lib/redraft/redraft-mpi.so
 * seen from it: the programs themselves know no MPI, start as fast without it, and
 * run where it is not installed. Open MPI's own plug-ins look for its symbols among
 * the global ones, hence RTLD_GLOBAL.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/comm.h"

/* The number of ranks the launcher says it started; 1 without one. */
static int launched(void)
{
	static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *v = getenv(names[i]);
		if (v && atoi(v) > 0)
			return atoi(v);
	}
	return 1;
}

static int beside(const char *name, char *ret, size_t size)
{
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	if (n <= 0)
		return -errno;
	exe[n] = 0;
	char *slash = strrchr(exe, '/');
	if (!slash)
		return -ENOENT;
	*slash = 0;
	return snprintf(ret, size, "%s/../lib/redraft/%s", exe, name) < (int)size ? 0 : -ENAMETOOLONG;
}

int comm_open(struct comm **ret, struct errtext *e)
{
	char path[4096];
	int n = launched();
	if (n == 1) {
		*ret = comm_self();
		return 0;
	}
	if (n > COMM_MAX_RANKS)
		return errtext_set(e, -EINVAL, "started as one of %d ranks; at most %d share a sequence", n, COMM_MAX_RANKS);
	int r = beside("redraft-mpi.so", path, sizeof path);
	void *so = r ? NULL : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (!so)
		return errtext_set(e, -EINVAL, "started as one of %d ranks, but MPI is not there: %s (make builds it where libopenmpi-dev is installed)", n,
				   r ? strerror(-r) : dlerror());
	int (*open)(struct comm **, struct errtext *) = (int (*)(struct comm **, struct errtext *))(uintptr_t)dlsym(so, "redraft_comm_mpi");
	if (!open)
		return errtext_set(e, -EINVAL, "%s is not redraft's: it has no redraft_comm_mpi", path);
	return open(ret, e);
}
