/* Drawing tokens: kernels/cpu/draw.c on a GPU, one block of 256 threads a row.
 *
 * Weights are whole numbers, so every way of adding them up comes to the same. The rule's double exponential is worked
 * out by operations that the compiler may not fuse: it has the CPU's bits.
 *
 * What top_p keeps ends at one (logit, id). It is found digit by digit, as topk.cu finds the K-th largest, but by mass instead of
 * number: a pass adds up what each of 16 digits weighs, every thread in memory of its own, and the digit in which the mass
 * is reached is kept. The first 8 digits are of the distance below the best logit, in units of the temperature, because that spreads
 * a row's ids evenly: four passes leave one id as a rule. The rest, of logit and id, tell apart what lies closer. Then the draw: 256 parts of
 * the row are weighed, the one in which the running sum passes is cut in 256 again, until a part is one id.
 */
#include "kernels/cuda/kern.cuh"

enum { BATCH = 8, DIGITS = 16, FAR_LEVELS = 8, LEVELS = 8 + 16, WARPS = THREADS / WARP };

typedef unsigned __int128 wide;

struct row {
	const float *x;
	int N;
	double max, inv_t;
};

/* What ranks keep ends here. */
struct last {
	float v;
	int id;
};

/* Where an id stands: smaller is better. 24 digits of 4 bits, those of `far` first. */
struct place {
	uint32_t far; /* how far below the best, in units of 2^-27 temperatures */
	uint64_t key; /* the logit, downwards, then the id */
};

struct draw_state {
	uint64_t mass[DIGITS * THREADS]; /* by digit and thread; or of the parts of the row */
	uint64_t digit[DIGITS], need, want;
	struct place at; /* digits found so far, 0 below */
	struct last last;
	int from, to;
	unsigned n, first; /* ids that begin with those digits; the first infinite one */
	float red[WARPS];
};

/* Several at a time, so that a warp waits once for all of them; what lies past the end weighs nothing. */
static __device__ inline void load(float v[BATCH], const float *x, int at, int step, int end)
{
	UNROLL for (int j = 0; j < BATCH; j++)
		v[j] = at + j * step < end ? x[at + j * step] : NAN;
}

static __device__ inline uint64_t warp_sum_whole(uint64_t v)
{
	for (int o = WARP / 2; o; o >>= 1)
		v += __shfl_xor_sync(FULL, v, o);
	return v;
}

/* ---- weights ---- */

static __device__ inline double below(const struct row *r, float v)
{
	return __dmul_rn(__dsub_rn((double)v, r->max), r->inv_t);
}

/* Step by step as exp2lanes and weights of kernels/cpu/draw.c */
static __device__ inline uint64_t weight(double x)
{
	const double shift = 0x1.8p52;
	const double c[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1};
	if (!(x > CK_DRAW_FAR))
		return 0;
	double t = __dadd_rn(__dmul_rn(x, 1.4426950408889634), shift), n = __dsub_rn(t, shift);
	double r = __dsub_rn(__dsub_rn(x, __dmul_rn(n, 0x1.62e42fee00000p-1)), __dmul_rn(n, 0x1.a39ef35793c76p-33));
	double y = __dadd_rn(__dmul_rn(r, c[0]), c[1]);
	UNROLL for (int i = 2; i < 12; i++)
		y = __dadd_rn(__dmul_rn(y, r), c[i]);
	uint64_t bits = (uint64_t)__double_as_longlong(y) + ((uint64_t)__double_as_longlong(t) << 52);
	y = __longlong_as_double((long long)bits);
	y = __dadd_rn(__dmul_rn(y, (double)((uint64_t)1 << CK_DRAW_ONE_BITS)), shift);
	return (uint64_t)__double_as_longlong(y) - (uint64_t)__double_as_longlong(shift);
}

/* What id i of logit v weighs, if it is kept */
static __device__ inline uint64_t kept(const struct row *r, struct last last, uint64_t least, float v, int i)
{
	if (!(v > last.v || (v == last.v && i <= last.id)))
		return 0;
	uint64_t w = weight(below(r, v));
	return w >= least ? w : 0;
}

/* ---- what ranks keep ---- */

static __device__ inline struct place place_of(float v, int i, double x)
{
	union bits32 b;
	struct place p;
	b.f = v + 0.0f; /* -0 + 0 is 0: equal values get equal bits */
	uint32_t up = b.u & 0x80000000u ? ~b.u : b.u | 0x80000000u;
	p.far = (uint32_t)__dmul_rn(x, -0x1p27);
	p.key = (uint64_t)~up << 32 | (uint32_t)i;
	return p;
}

static __device__ inline bool begins(const struct place *p, const struct place *with, int level)
{
	if (level <= FAR_LEVELS)
		return (uint64_t)(p->far ^ with->far) >> (32 - 4 * level) == 0;
	return p->far == with->far && (p->key ^ with->key) >> (64 - 4 * (level - FAR_LEVELS)) == 0;
}

static __device__ inline unsigned digit_of(const struct place *p, int level)
{
	if (level < FAR_LEVELS)
		return p->far >> (28 - 4 * level) & 15;
	return (unsigned)(p->key >> (60 - 4 * (level - FAR_LEVELS))) & 15;
}

/* Of the ids that begin with the digits found: how many there are, which one (if it is one), and each digit's mass. */
static __device__ void weigh_digits(struct draw_state *s, const struct row *r, int level)
{
	struct place at = s->at;
	struct last mine = {0, 0};
	float v[BATCH];
	unsigned n = 0;
	if (threadIdx.x == 0)
		s->n = 0;
	for (int d = 0; d < DIGITS; d++)
		s->mass[d * THREADS + (int)threadIdx.x] = 0;
	__syncthreads();
	for (int i0 = (int)threadIdx.x; i0 < r->N; i0 += BATCH * THREADS) {
		load(v, r->x, i0, THREADS, r->N);
		UNROLL for (int j = 0; j < BATCH; j++) {
			double x = below(r, v[j]);
			if (!(x > CK_DRAW_FAR))
				continue;
			struct place p = place_of(v[j], i0 + j * THREADS, x);
			uint64_t w = begins(&p, &at, level) ? weight(x) : 0;
			if (!w)
				continue;
			n++;
			mine.v = v[j];
			mine.id = i0 + j * THREADS;
			if (level < LEVELS)
				s->mass[(int)digit_of(&p, level) * THREADS + (int)threadIdx.x] += w;
		}
	}
	if (n)
		(void)atomicAdd(&s->n, n);
	__syncthreads();
	if (n && s->n == 1)
		s->last = mine;
	__syncthreads();
}

static __device__ void choose_digit(struct draw_state *s, int level, uint64_t top)
{
	for (int d = (int)threadIdx.x / WARP; d < DIGITS; d += WARPS) {
		uint64_t sum = 0;
		for (int t = (int)threadIdx.x % WARP; t < THREADS; t += WARP)
			sum += s->mass[d * THREADS + t];
		sum = warp_sum_whole(sum);
		if (threadIdx.x % WARP == 0)
			s->digit[d] = sum;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		int d = 0;
		if (level == 0) {
			uint64_t total = 0;
			for (int i = 0; i < DIGITS; i++)
				total += s->digit[i];
			s->need = (uint64_t)(((wide)top * total + (((uint64_t)1 << CK_DRAW_ALL_BITS) - 1)) >> CK_DRAW_ALL_BITS);
			s->need = s->need ? s->need : 1; /* the best one is always kept */
		}
		while (s->digit[d] < s->need)
			s->need -= s->digit[d++];
		if (level < FAR_LEVELS)
			s->at.far |= (uint32_t)d << (28 - 4 * level);
		else
			s->at.key |= (uint64_t)d << (60 - 4 * (level - FAR_LEVELS));
	}
	__syncthreads();
}

/* No two ids have the same place: after the last digit one is left at the latest. */
static __device__ struct last find_last(struct draw_state *s, const struct row *r, uint64_t top)
{
	if (threadIdx.x == 0) {
		s->at.far = 0;
		s->at.key = 0;
	}
	__syncthreads();
	for (int level = 0;; level++) {
		weigh_digits(s, r, level);
		if (s->n == 1)
			return s->last;
		choose_digit(s, level, top);
	}
}

/* ---- the draw ---- */

/* Part p of ids [from, to), by a warp each */
static __device__ inline void weigh_parts(struct draw_state *s, const struct row *r, struct last last, uint64_t least, int from, int to, int part)
{
	float v[BATCH];
	for (int p = (int)threadIdx.x / WARP; p < THREADS; p += WARPS) {
		int lo = from + p * part, hi = lo + part < to ? lo + part : to;
		uint64_t sum = 0;
		for (int i0 = lo + (int)(threadIdx.x % WARP); i0 < hi; i0 += BATCH * WARP) {
			load(v, r->x, i0, WARP, hi);
			UNROLL for (int j = 0; j < BATCH; j++)
				sum += kept(r, last, least, v[j], i0 + j * WARP);
		}
		sum = warp_sum_whole(sum);
		if (threadIdx.x % WARP == 0)
			s->mass[p] = sum;
	}
}

static __device__ int draw_kept(struct draw_state *s, const struct row *r, struct last last, uint64_t least, uint64_t u)
{
	int from = 0, to = r->N;
	for (bool all = true;; all = false) {
		int part = (to - from + THREADS - 1) / THREADS;
		__syncthreads(); /* mass, from and to may still be read */
		weigh_parts(s, r, last, least, from, to, part);
		__syncthreads();
		if (threadIdx.x == 0) {
			int p = 0;
			if (all) {
				uint64_t total = 0;
				for (int i = 0; i < THREADS; i++)
					total += s->mass[i];
				s->want = (uint64_t)((wide)u * total >> CK_DRAW_ALL_BITS);
			}
			while (s->mass[p] <= s->want)
				s->want -= s->mass[p++];
			s->from = from + p * part;
			s->to = s->from + part < to ? s->from + part : to;
		}
		__syncthreads();
		from = s->from;
		to = s->to;
		if (part == 1)
			return from;
	}
}

static __device__ float largest(const struct row *r, float *red)
{
	float mx = -INFINITY, v[BATCH];
	for (int i0 = (int)threadIdx.x; i0 < r->N; i0 += BATCH * THREADS) {
		load(v, r->x, i0, THREADS, r->N);
		UNROLL for (int j = 0; j < BATCH; j++)
			mx = fmaxf(mx, v[j]); /* NaN never wins */
	}
	return block_max(mx, red);
}

/* Of a row whose largest is no number to weigh by */
static __device__ int first_infinite(struct draw_state *s, const struct row *r, float mx)
{
	if (mx < 0)
		return 0;
	if (threadIdx.x == 0)
		s->first = (unsigned)r->N;
	__syncthreads();
	for (int i = (int)threadIdx.x; i < r->N; i += THREADS)
		if (r->x[i] == mx)
			(void)atomicMin(&s->first, (unsigned)i);
	__syncthreads();
	return (int)s->first;
}

static __global__ void draw_kernel(uint32_t *ids, float *vals, const float *x, int ldx, const struct ck_draw *hows, int N)
{
	__shared__ struct draw_state s;
	const struct ck_draw how = hows[blockIdx.x];
	struct row r = {x + (size_t)how.row * (size_t)ldx, N, 0, how.inv_t};
	struct last all = {-INFINITY, N};
	float mx = largest(&r, s.red);
	int id;
	r.max = (double)mx;
	if (mx - mx != 0)
		id = first_infinite(&s, &r, mx);
	else {
		struct last last = how.top >> CK_DRAW_ALL_BITS ? all : find_last(&s, &r, how.top);
		id = draw_kept(&s, &r, last, how.least, how.u);
	}
	if (threadIdx.x == 0) {
		ids[blockIdx.x] = (uint32_t)id;
		vals[blockIdx.x] = r.x[id];
	}
}

cudaError_t ck_draw(cudaStream_t s, uint32_t *ids, float *vals, const float *x, int ldx, const struct ck_draw *how, int M, int N)
{
	LAUNCH(draw_kernel, (unsigned)M, THREADS, 0, s, ids, vals, x, ldx, how, N);
	return cudaGetLastError();
}
