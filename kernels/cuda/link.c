/* The devices of ranks, joined by NCCL (kernels/link.h).
 *
 * NCCL is opened by its soname when the first group forms. Its calls do not block: what takes time answers "in progress"
 * and is asked about. Messages run on a stream of their own, which begins where the device's stream stands and may run beside
 * what that is given next; an event at its end says that they are over. A group is left by ncclCommAbort, well or not: it waits for no other
 * rank, and ends a kernel that waits for one that is gone.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nccl.h"
#include "kernels/link.h"

static struct nccl_calls nccl;
static char missing[200]; /* why nccl cannot be used */

struct link {
	struct dev *d;
	struct ncclComm *comm;
	cudaStream_t stream;
	cudaEvent_t ready, over; /* the device's stream came so far; the messages are through */
	bool posted;             /* messages were given to NCCL, which may still prepare them */
	bool recorded;           /* and `over` stands behind them */
};

static void open_library(void)
{
	void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	const struct cuda_symbol symbols[] = {
		{(void **)(void *)&nccl.get_version, "ncclGetVersion"},
		{(void **)(void *)&nccl.get_unique_id, "ncclGetUniqueId"},
		{(void **)(void *)&nccl.init, "ncclCommInitRankConfig"},
		{(void **)(void *)&nccl.async_error, "ncclCommGetAsyncError"},
		{(void **)(void *)&nccl.abort, "ncclCommAbort"},
		{(void **)(void *)&nccl.group_start, "ncclGroupStart"},
		{(void **)(void *)&nccl.group_end, "ncclGroupEnd"},
		{(void **)(void *)&nccl.send, "ncclSend"},
		{(void **)(void *)&nccl.recv, "ncclRecv"},
		{(void **)(void *)&nccl.error_string, "ncclGetErrorString"},
		{(void **)(void *)&nccl.last_error, "ncclGetLastError"},
	};
	if (!lib) {
		const char *why = dlerror();
		(void)snprintf(missing, sizeof missing, "NCCL cannot be loaded (%.100s): install libnccl2, or add its folder to the loader's path", why ? why : "libnccl.so.2");
		return;
	}
	const char *lacks = cuda_symbols(lib, symbols, sizeof symbols / sizeof *symbols);
	if (lacks)
		(void)snprintf(missing, sizeof missing, "libnccl.so.2 has no %s: NCCL 2.14 or later is needed", lacks);
}

static int link_about(struct dev *d, struct link_about *ret, struct errtext *e)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct cudaDeviceProp p;
	int version = 0;
	(void)pthread_once(&once, open_library);
	if (missing[0])
		return errtext_set(e, -ENOENT, "%s", missing);
	if (nccl.get_version(&version) || version < NCCL_OLDEST)
		return errtext_set(e, -ENOENT, "NCCL is %d.%d.%d, 2.14.3 or later is needed", version / 10000, version / 100 % 100, version % 100);
	cudaError_t err = cudaGetDeviceProperties(&p, 0);
	if (err != cudaSuccess)
		return errtext_set(e, cuda_done(d, err, "asking the device what it is"), "%s", d->error);
	*ret = (struct link_about){.version = version, .arch = 10 * p.major + p.minor};
	return 0;
}

/* NCCL's own sentence where it has one: which rank shares whose device, which connection broke. */
static int bad(const struct link *l, int r, const char *what, struct errtext *e)
{
	const char *more = nccl.last_error(l ? l->comm : NULL);
	return errtext_set(e, -EIO, "NCCL, %s: %s%s%.120s", what, nccl.error_string(r), more && *more ? "; " : "", more ? more : "");
}

static int link_id(struct dev *d, struct link_id *ret, struct errtext *e)
{
	struct nccl_id id;
	_Static_assert(sizeof id == sizeof *ret, "both are 128 bytes");
	(void)d;
	int r = nccl.get_unique_id(&id);
	if (r)
		return bad(NULL, r, "beginning a group", e);
	memcpy(ret->bytes, id.bytes, sizeof id.bytes);
	return 0;
}

static int link_join(struct dev *d, const struct link_id *id, int rank, int size, struct link **ret, struct errtext *e)
{
	struct nccl_config config = NCCL_CONFIG;
	struct nccl_id nid;
	int least = 0, greatest = 0;
	struct link *l = calloc(1, sizeof *l);
	if (!l)
		return errtext_set(e, -ENOMEM, "out of memory");
	l->d = d;
	*ret = l;
	memcpy(nid.bytes, id->bytes, sizeof nid.bytes);
	cudaError_t err = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	if (err == cudaSuccess)
		err = cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, cuda_of(d)->q.background ? least : greatest);
	if (err == cudaSuccess)
		err = cudaEventCreateWithFlags(&l->ready, cudaEventDisableTiming);
	if (err == cudaSuccess)
		err = cudaEventCreateWithFlags(&l->over, cudaEventDisableTiming);
	if (err != cudaSuccess)
		return errtext_set(e, cuda_done(d, err, "a stream for messages"), "%s", d->error);
	int r = nccl.init(&l->comm, size, nid, rank, &config);
	return r && r != NCCL_IN_PROGRESS ? bad(l, r, "joining the group", e) : 0;
}

static int give(struct link *l, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	int r = nccl.group_start();
	for (int i = 0; i < n_out && !r; i++)
		if (out[i].bytes)
			r = nccl.send(out[i].p, out[i].bytes, NCCL_UINT8, out[i].peer, l->comm, l->stream);
	for (int i = 0; i < n_in && !r; i++)
		if (in[i].bytes)
			r = nccl.recv(in[i].p, in[i].bytes, NCCL_UINT8, in[i].peer, l->comm, l->stream);
	int end = nccl.group_end();
	return r && r != NCCL_IN_PROGRESS ? r : end;
}

static int link_post(struct link *l, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in, struct errtext *e)
{
	cudaError_t err = cudaEventRecord(l->ready, cuda_of(l->d)->stream);
	if (err == cudaSuccess)
		err = cudaStreamWaitEvent(l->stream, l->ready, 0);
	if (err != cudaSuccess)
		return errtext_set(e, cuda_done(l->d, err, "messages"), "%s", l->d->error);
	int r = give(l, out, n_out, in, n_in);
	if (r && r != NCCL_IN_PROGRESS)
		return bad(l, r, "sending", e);
	l->posted = true;
	l->recorded = false;
	return 0;
}

static int link_done(struct link *l, struct errtext *e)
{
	int state = NCCL_OK, r = nccl.async_error(l->comm, &state);
	if (r || (state && state != NCCL_IN_PROGRESS))
		return bad(l, r ? r : state, l->posted ? "in the middle of messages" : "joining the group", e);
	if (state == NCCL_IN_PROGRESS)
		return -EINPROGRESS;
	if (!l->posted)
		return 0;
	cudaError_t err = l->recorded ? cudaSuccess : cudaEventRecord(l->over, l->stream);
	l->recorded = true;
	if (err == cudaSuccess)
		err = cudaEventQuery(l->over);
	if (err == cudaErrorNotReady) {
		(void)cudaGetLastError(); /* it is no error, but is remembered as one */
		return -EINPROGRESS;
	}
	if (err != cudaSuccess)
		return errtext_set(e, cuda_done(l->d, err, "messages"), "%s", l->d->error);
	l->posted = false;
	return 0;
}

static struct link *link_close(struct link *l)
{
	if (!l)
		return NULL;
	if (l->comm)
		(void)nccl.abort(l->comm);
	if (l->stream)
		(void)cudaStreamDestroy(l->stream);
	if (l->ready)
		(void)cudaEventDestroy(l->ready);
	if (l->over)
		(void)cudaEventDestroy(l->over);
	free(l);
	return NULL;
}

const struct link_ops cuda_link_ops = {.about = link_about, .id = link_id, .join = link_join, .post = link_post, .done = link_done, .close = link_close};
