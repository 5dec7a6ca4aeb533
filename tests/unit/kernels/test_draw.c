/* ops.h draw: on every back end the token that a full sort and whole numbers give, for the same logits. Temperatures, top_p from next to nothing to all,
 * min_p, u at both ends; rows full of ties and rows of one value, whose order is their ids'; infinities and NaN; lengths from 1 to 256k;
 * rows in any order, some twice. The exponential against libm's. And what weighs a row's few likeliest on the host draws what the row draws.
 */
#include "kt.h"
#include "kernels/draw.h"

struct ranked {
	real v;
	uint64_t w;
	uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->v != y->v)
		return x->v > y->v ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

/* ceil or floor of part / DRAW_ALL * n */
static uint64_t of(uint64_t part, uint64_t n, bool up)
{
	unsigned __int128 product = (unsigned __int128)part * n;
	return (uint64_t)(product >> 53) + (up && (uint64_t)product << 11);
}

static uint64_t weight(real v, double max, double inv_t)
{
	double x = ((double)v - max) * inv_t;
	return x > -60 ? (uint64_t)nearbyint(draw_exp(x) * 0x1p40) : 0;
}

static uint32_t reference(const real *x, int N, const struct draw *how)
{
	struct ranked *r = malloc((size_t)N * sizeof *r);
	uint64_t *keep = calloc((size_t)N, sizeof *keep), total = 0, sum = 0;
	double max = -INFINITY;
	uint32_t id = 0;
	assert_true(r && keep);
	for (int i = 0; i < N; i++)
		max = (double)x[i] > max ? (double)x[i] : max;
	for (int i = 0; i < N && isfinite(max); i++) {
		r[i] = (struct ranked){x[i] == x[i] ? x[i] : -(real)INFINITY, weight(x[i], max, how->inv_t), (uint32_t)i};
		total += r[i].w;
	}
	if (isfinite(max)) {
		uint64_t need = of(how->top, total, true), left = 0;
		qsort(r, (size_t)N, sizeof *r, by_rank);
		for (int i = 0; i < N && (i == 0 || sum < need); i++) {
			sum += r[i].w;
			keep[r[i].id] = r[i].w >= how->least ? r[i].w : 0;
			left += keep[r[i].id];
		}
		for (sum = keep[0]; sum <= of(how->u, left, false); sum += keep[id])
			id++;
	} else
		for (int i = N - 1; i >= 0; i--)
			id = max > 0 && (double)x[i] == max ? (uint32_t)i : id;
	free(r), free(keep);
	return id;
}

enum { MOST = 64 };

/* M draws from rows of x, [rows,ld] */
static void check(struct dev *d, const real *x, int ld, const struct draw *how, int M, int N)
{
	uint32_t *ids = kt_mem(MOST, sizeof *ids);
	float *vals = kt_mem(MOST, sizeof *vals);
	assert_true(M <= MOST);
	assert_int_equal(d->ops->draw(d, ids, vals, x, ld, how, M, N), 0);
	assert_int_equal(d->ops->sync(d), 0);
	for (int m = 0; m < M; m++) {
		const real *row = x + (size_t)how[m].row * (size_t)ld;
		uint32_t want = reference(row, N, &how[m]);
		if (ids[m] != want)
			fail_msg("of %d ids, draw %d: %u, and %u is right (1/T %g, u %.17g, top %.17g, least %.17g)", N, m, ids[m], want, how[m].inv_t, (double)how[m].u * 0x1p-53,
				 (double)how[m].top * 0x1p-53, (double)how[m].least * 0x1p-40);
		assert_true(memcmp(&vals[m], &(float){(float)row[want]}, sizeof *vals) == 0);
	}
	kt_free(ids), kt_free(vals);
}

static uint64_t any_u(void)
{
	return (((uint64_t)kt_u32() << 32) | kt_u32()) >> 11;
}

static struct draw any_draw(int i, int rows)
{
	static const double top[] = {1, 0.95, 0.5, 0.0001, 0.9999, 1, 0}, least[] = {0, 0, 0.05, 0, 1, 0.3}, t[] = {1, 0.7, 2, 0.05, 1.3};
	struct draw d = {.inv_t = 1 / t[i % 5], .u = any_u(), .top = (uint64_t)(top[i % 7] * 0x1p53), .least = (uint64_t)(least[i % 6] * 0x1p40), .row = (uint32_t)(i * 5 % rows)};
	d.u = i % 11 == 3 ? 0 : i % 11 == 7 ? DRAW_ALL - 1 : d.u;
	return d;
}

static void shape(struct dev *d, int rows, int N, int M, double scale, double levels)
{
	struct draw how[MOST];
	int ld = N + 3;
	real *x = kt_reals((size_t)rows * (size_t)ld, scale);
	for (int i = 0; i < rows * ld; i++) {
		double v = (double)x[i] / scale;
		v = scale * v * v * v; /* a few high ones */
		x[i] = (real)(levels > 0 ? round(v * levels) / levels : v);
	}
	for (int i = 0; i < M; i++)
		how[i] = any_draw(i, rows);
	check(d, x, ld, how, M, N);
	kt_free(x);
}

static void against_sort(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(60);
	shape(d, 1, 1, 7, 3, 0);
	shape(d, 2, 2, 20, 3, 0);
	shape(d, 3, 31, 40, 8, 0);
	shape(d, 5, 256, 60, 8, 0);
	shape(d, 5, 257, 60, 8, 4);
	shape(d, 4, 1000, 60, 20, 0);
	shape(d, 4, 1000, 60, 20, 1); /* 41 values */
	shape(d, 4, 3000, 60, 2, 0);  /* nearly flat */
	shape(d, 4, 3000, 60, 1e-5, 0);
	shape(d, 2, 49152, 8, 20, 0);
	dev_free(d);
}

static void one_value(void **state)
{
	enum { N = 3000, ALMOST = 700 };
	struct dev *d = kt_dev(state, 1);
	struct draw how[MOST];
	real *x = kt_mem(3 * N, sizeof *x);
	kt_seed(61);
	for (int i = 0; i < 3 * N; i++)
		x[i] = (real)(i < N ? 0 : i < 2 * N ? -7.25 : 3);
	for (int i = 0; i < N; i++) { /* zeros of both signs are equal; and next to the best ones, what is nearly as good */
		x[i] = i % 3 ? 0 : -(real)0;
		if (i % ALMOST == 5)
			x[2 * N + i] = (real)nextafterf(3, 0);
	}
	for (int i = 0; i < MOST; i++)
		how[i] = any_draw(i, 3);
	check(d, x, N, how, MOST, N);
	for (int i = 0; i < MOST; i++) { /* T so large that one logit's distance is as good as none, and so small that nothing weighs beside the best */
		how[i] = any_draw(i, 3);
		how[i].inv_t = i % 2 ? 1e-30 : 1e30;
	}
	check(d, x, N, how, MOST, N);
	kt_free(x);
	dev_free(d);
}

static void strange_values(void **state)
{
	enum { N = 9, ROWS = 8 };
	const real inf = (real)INFINITY, nan = (real)NAN;
	const real rows[ROWS][N] = {
		{nan, 1, nan, 2, 0, -inf, 1, 2, nan}, {0, -inf, 5, inf, 1, inf, nan, 0, 0}, {nan, nan, nan, nan, nan, nan, nan, nan, nan},
		{-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf}, {nan, -inf, nan, -inf, nan, nan, nan, nan, -inf}, {-inf, -inf, -inf, -1e30f, -inf, nan, -inf, -inf, -inf},
		{3e38f, -3e38f, 0, 3e38f, 1, 2, 3, 4, 5}, {-100, -101, -100.5f, -130, -99, nan, -inf, -200, -99},
	};
	struct dev *d = kt_dev(state, 1);
	real *x = kt_copy((const real *)rows, ROWS * N);
	struct draw how[MOST];
	uint32_t *ids = kt_mem(1, sizeof *ids);
	float *vals = kt_mem(1, sizeof *vals);
	kt_seed(62);
	for (int turn = 0; turn < 7; turn++) {
		for (int i = 0; i < ROWS; i++) {
			how[i] = any_draw(7 * turn + i, ROWS);
			how[i].row = (uint32_t)i;
		}
		check(d, x, N, how, ROWS, N);
	}
	for (int i = 0; i < 5; i++) { /* by hand */
		static const uint32_t want[] = {3, 3, 0, 0, 0};
		how[0] = (struct draw){.inv_t = 1, .u = DRAW_ALL - 1, .row = (uint32_t)i};
		assert_int_equal(d->ops->draw(d, ids, vals, x, N, how, 1, N), 0);
		assert_int_equal(d->ops->sync(d), 0);
		assert_int_equal(ids[0], want[i]);
	}
	assert_int_equal(d->ops->draw(d, ids, vals, x, N, how, 0, N), 0);
	assert_int_equal(d->ops->draw(d, ids, vals, x, N - 1, how, 1, N), -EINVAL);
	assert_int_equal(d->ops->draw(d, ids, vals, x, N, how, 1, 0), -EINVAL);
	assert_int_equal(d->ops->draw(d, ids, vals, x, DRAW_MOST + 1, how, 1, DRAW_MOST + 1), -EINVAL);
	kt_free(x), kt_free(ids), kt_free(vals);
	dev_free(d);
}

static void long_row(void **state)
{
	enum { N = 256 << 10 };
	struct dev *d = kt_dev(state, 1);
	kt_seed(63);
	real *x = kt_reals(N, 20);
	const struct draw how[] = {{.inv_t = 1, .u = any_u(), .top = (uint64_t)(0.95 * 0x1p53)}, {.inv_t = 1 / 0.7, .u = any_u(), .top = DRAW_ALL}};
	check(d, x, N, how, 2, N);
	for (int i = 0; i < N; i++)
		x[i] = 1;
	check(d, x, N, how, 1, N);
	kt_free(x);
	dev_free(d);
}

static void exponential(void **state)
{
	(void)state;
	for (double x = 0; x >= -60; x -= 0.00137)
		if (!(fabs(draw_exp(x) / exp(x) - 1) <= 1e-13))
			fail_msg("e^%g", x);
	assert_true(draw_exp(0) == 1);
}

/* Of 40 ranks: those of the row, and those of a list that is the row's ranks */
static void likeliest(void **state)
{
	(void)state;
	enum { N = 500, K = 40 };
	struct ranked r[N];
	struct draw_room room = {.w = malloc(N * sizeof *room.w), .heap = malloc(N * sizeof *room.heap)};
	assert_true(room.w && room.heap);
	kt_gpu = NULL;
	kt_seed(64);
	for (int turn = 0; turn < 200; turn++) {
		struct draw how = any_draw(turn, 1);
		real *x = kt_reals(N, 9);
		uint32_t ids[K];
		float vals[K];
		for (int i = 0; i < N; i++) {
			x[i] = (real)(float)(turn % 3 ? x[i] : round(x[i]));
			r[i] = (struct ranked){.v = x[i], .id = (uint32_t)i};
		}
		qsort(r, N, sizeof *r, by_rank);
		for (int i = 0; i < K; i++) {
			ids[i] = r[i].id;
			vals[i] = (float)r[i].v;
		}
		uint32_t got = draw_top(&room, x, N, K, &how);
		assert_int_equal(draw_listed(&room, ids, vals, K, &how), got);
		for (int i = K; i < N; i++) /* the row without the others */
			x[r[i].id] = -(real)INFINITY;
		assert_int_equal(draw_row(&room, x, N, &how), got);
		kt_free(x);
	}
	free(room.w), free(room.heap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(against_sort), KT_TESTS(one_value), KT_TESTS(strange_values), KT_TESTS(long_row),
					   cmocka_unit_test(exponential), cmocka_unit_test(likeliest)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
