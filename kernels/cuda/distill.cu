/* The losses a draft learns by, and softmax: kernels/cpu/distill.c on a GPU, one block a row.
 *
 * The formulas are explained there: a row's gradient is (a + b A) q - a Q - b [q < r] q, but for
 * reverse KL. Sums that a loss is made of are in double, as it is a difference of
 * large numbers. What a sparse teacher's columns take off is worked out before the row is
 * overwritten and kept in `off`. The ids of a teacher's row are distinct.
 */
#include "kernels/cuda/kern.cuh"

struct row {
	float *x, *off, max, w;
	const float *p;
	const uint32_t *ids;
	double mass, lse;
};

struct sums {
	double ce, alpha, A, over; /* over, for reverse KL: sum of q (log Q - log floor) where Q is above the floor */
};

static __device__ inline uint32_t column(const struct row *r, int c)
{
	return r->ids ? r->ids[c] : (uint32_t)c;
}

static __device__ inline struct sums teacher_sums(const struct ck_distill *j, const struct row *r, double *red)
{
	struct sums s = {0, 0, 0, 0};
	for (int c = (int)threadIdx.x; c < j->K; c += THREADS) {
		double p = (double)r->p[c], t = r->mass * p;
		if (p == 0)
			continue;
		double lp = (double)r->x[column(r, c)] - r->lse, q = exp(lp);
		s.ce -= p * lp;
		s.alpha += q < t ? q : t;
		s.A += q < t ? q : 0;
		s.over += j->kind == CK_REVERSE_KL && p > j->floor ? q * (log(p) - log(j->floor)) : 0;
	}
	s.ce = block_sum_double(s.ce, red);
	s.alpha = block_sum_double(s.alpha, red);
	s.A = block_sum_double(s.A, red);
	s.over = block_sum_double(s.over, red);
	return s;
}

/* The teacher's likeliest token, the first of equals */
static __device__ inline uint32_t likeliest(const struct ck_distill *j, const struct row *r, float *red, unsigned *first)
{
	float mx = -INFINITY;
	for (int c = (int)threadIdx.x; c < j->K; c += THREADS)
		mx = fmaxf(mx, r->p[c]);
	mx = block_max(mx, red);
	if (threadIdx.x == 0)
		*first = (unsigned)j->K - 1;
	__syncthreads();
	for (int c = (int)threadIdx.x; c < j->K; c += THREADS)
		if (r->p[c] == mx)
			atomicMin(first, (unsigned)c);
	__syncthreads();
	return column(r, (int)*first);
}

/* x = f q - w (a p + [q < t] b q), where p is not 0 only in the teacher's columns */
static __device__ inline void mixed_gradient(const struct ck_distill *j, const struct row *r, double a, double b, double A)
{
	double w = (double)r->w;
	float f = (float)(exp((double)r->max - r->lse) * w * (a + b * A));
	for (int c = (int)threadIdx.x; c < j->K; c += THREADS) {
		double p = (double)r->p[c], q = p != 0 ? exp((double)r->x[column(r, c)] - r->lse) : 0;
		r->off[c] = (float)(w * (a * p + (q < r->mass * p ? b * q : 0)));
	}
	__syncthreads();
	for (int v = (int)threadIdx.x; v < j->Vd; v += THREADS)
		r->x[v] = expf(r->x[v] - r->max) * f;
}

/* x = w q (log q - log P - loss), P = max(Q, floor) */
static __device__ inline void reverse_gradient(const struct ck_distill *j, const struct row *r, double loss)
{
	double w = (double)r->w, log_floor = log(j->floor);
	for (int c = (int)threadIdx.x; c < j->K; c += THREADS) {
		double p = (double)r->p[c];
		r->off[c] = p > j->floor ? (float)(w * exp((double)r->x[column(r, c)] - r->lse) * (log(p) - log_floor)) : 0;
	}
	__syncthreads();
	for (int v = (int)threadIdx.x; v < j->Vd; v += THREADS) {
		double lq = (double)r->x[v] - r->lse;
		r->x[v] = (float)(w * exp(lq) * (lq - log_floor - loss));
	}
}

static __device__ inline double reverse_loss(const struct ck_distill *j, const struct row *r, double over, double *red)
{
	double sum = 0;
	for (int v = (int)threadIdx.x; v < j->Vd; v += THREADS) {
		double lq = (double)r->x[v] - r->lse;
		sum += exp(lq) * lq;
	}
	return block_sum_double(sum, red) - log(j->floor) - over;
}

/* max, log-sum-exp and the first column that holds the maximum */
static __device__ inline void look(const struct ck_distill *j, struct row *r, float *red, unsigned *best)
{
	float mx = -INFINITY, sum = 0;
	if (threadIdx.x == 0)
		*best = 0xffffffffu;
	for (int v = (int)threadIdx.x; v < j->Vd; v += THREADS)
		mx = fmaxf(mx, r->x[v]);
	r->max = block_max(mx, red);
	for (int v = (int)threadIdx.x; v < j->Vd; v += THREADS) {
		sum += expf(r->x[v] - r->max);
		if (r->x[v] == r->max)
			atomicMin(best, (unsigned)v);
	}
	r->lse = (double)r->max + log((double)block_sum(sum, red));
}

static __global__ void distill_kernel(struct ck_distill j)
{
	__shared__ float red[THREADS / WARP];
	__shared__ double red2[THREADS / WARP];
	__shared__ unsigned best, first;
	size_t i = blockIdx.x, at = i * (size_t)j.K;
	struct row r = {j.logits + i * (size_t)j.Vd, j.off + at, 0, j.w[i], j.p + at, j.ids ? j.ids + at : NULL, j.mass ? (double)j.mass[i] : 1, 0};
	look(&j, &r, red, &best);
	struct sums s = teacher_sums(&j, &r, red2);
	double loss = s.ce;
	uint32_t hard = 0;
	if (j.kind == CK_HARD) {
		hard = likeliest(&j, &r, red, &first);
		loss = r.lse - (double)r.x[hard];
		mixed_gradient(&j, &r, 1, 0, 0);
	} else if (j.kind == CK_REVERSE_KL) {
		loss = reverse_loss(&j, &r, s.over, red2);
		reverse_gradient(&j, &r, loss);
	} else {
		double alpha = s.alpha > 1e-30 ? s.alpha : 1e-30, kl = (double)j.kl;
		bool mix = j.kind == CK_MIX;
		loss = mix ? kl * s.ce + (1 - kl) * (1 - s.alpha) : -log(alpha);
		mixed_gradient(&j, &r, mix ? kl : 0, mix ? 1 - kl : 1 / alpha, s.A);
	}
	__syncthreads();
	if (j.kind == CK_HARD && threadIdx.x == 0)
		r.x[hard] -= r.w;
	for (int c = (int)threadIdx.x; c < j.K && j.kind != CK_HARD; c += THREADS)
		if (r.p[c] != 0)
			r.x[column(&r, c)] -= r.off[c];
	if (threadIdx.x == 0) {
		j.loss[i] = (float)loss;
		j.alpha[i] = (float)s.alpha;
		j.argmax[i] = best == 0xffffffffu ? 0 : best;
	}
}

cudaError_t ck_distill(cudaStream_t s, const struct ck_distill *j)
{
	LAUNCH(distill_kernel, (unsigned)j->m, THREADS, 0, s, *j);
	return cudaGetLastError();
}

static __global__ void softmax_kernel(float *y, int ldy, const float *x, int ldx, int N)
{
	__shared__ float red[THREADS / WARP];
	const float *xr = x + (size_t)blockIdx.x * (size_t)ldx;
	float *yr = y + (size_t)blockIdx.x * (size_t)ldy, mx = -INFINITY, sum = 0;
	for (int i = (int)threadIdx.x; i < N; i += THREADS)
		mx = fmaxf(mx, xr[i]);
	mx = block_max(mx, red);
	for (int i = (int)threadIdx.x; i < N; i += THREADS)
		sum += expf(xr[i] - mx);
	float inv = 1 / block_sum(sum, red);
	for (int i = (int)threadIdx.x; i < N; i += THREADS)
		yr[i] = expf(xr[i] - mx) * inv;
}

cudaError_t ck_softmax(cudaStream_t s, float *y, int ldy, const float *x, int ldx, int M, int N)
{
	LAUNCH(softmax_kernel, (unsigned)M, THREADS, 0, s, y, ldy, x, ldx, N);
	return cudaGetLastError();
}
