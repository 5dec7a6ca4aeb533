/* Training's matrix product: all four transpositions, odd sizes, tails, adding
 * and overwriting, against a double reference; the same bits for any number of
 * threads, and for a block of the output computed alone. Fast arithmetic against the
 * reference of rounded numbers.
 */
#include "kt.h"

static const int sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {6, 16, 8}, {13, 33, 40}, {64, 100, 385}, {97, 17, 800}, {5, 1100, 30}, {800, 9, 20}, {40, 40, 0}};

/* As the product takes a number: fast rounds both sides to bf16, and sums them as strict does. */
static double operand(const struct dev *d, real x)
{
	return d->math == MATH_FAST ? bf16_to_f32(f32_to_bf16((float)x)) : (double)x;
}

static void check(struct dev *d, bool tA, bool tB, int M, int N, int K, bool add)
{
	int lda = (tA ? M : K) + 2, ldb = (tB ? K : N) + 1, ldc = N + 3;
	real *A = kt_reals((size_t)((tA ? K : M) * lda), 1), *B = kt_reals((size_t)((tB ? N : K) * ldb), 1);
	real *C0 = kt_reals((size_t)(M * ldc), 1), *C1 = NULL;
	double *ref = kt_doubles((size_t)(M * ldc));
	for (int m = 0; m < M; m++)
		for (int j = 0; j < ldc; j++) {
			double s = j >= N || add ? (double)C0[m * ldc + j] : 0;
			for (int k = 0; j < N && k < K; k++)
				s += operand(d, tA ? A[k * lda + m] : A[m * lda + k]) * operand(d, tB ? B[j * ldb + k] : B[k * ldb + j]);
			ref[m * ldc + j] = s;
		}
	for (int t = 1; t <= kt_threads(d); t++) {
		real *C = kt_copy(C0, (size_t)(M * ldc));
		dev_set_threads(d, t);
		assert_int_equal(d->ops->gemm(d, C, ldc, tA, A, lda, tB, B, ldb, M, N, K, add), 0);
		kt_close(C, ref, (size_t)(M * ldc), KT_TOL(1e-6));
		if (C1) {
			kt_same_bits(C, C1, (size_t)(M * ldc));
			kt_free(C);
		} else {
			C1 = C;
		}
	}
	kt_free(A);
	kt_free(B);
	kt_free(C0);
	kt_free(C1);
	kt_free(ref);
}

static void against_reference(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(3);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int c = 0; c < 8; c++)
			check(d, c & 1, c & 2, sizes[i][0], sizes[i][1], sizes[i][2], c & 4);
	dev_free(d);
}

/* Blocking over M and N must not change an element's sum */
static void part_equals_whole(void **state)
{
	enum { M = 900, N = 1060, K = 50, M0 = 771, N0 = 1030 };
	struct dev *d = kt_dev(state, 2);
	kt_seed(4);
	real *A = kt_reals((size_t)M * K, 1), *B = kt_reals((size_t)N * K, 1), *C = kt_reals((size_t)M * N, 1);
	real *one = kt_reals(1, 0);
	assert_int_equal(d->ops->gemm(d, C, N, false, A, K, true, B, K, M, N, K, false), 0);
	assert_int_equal(d->ops->gemm(d, one, 1, false, A + (size_t)M0 * K, K, true, B + (size_t)N0 * K, K, 1, 1, K, false), 0);
	double want = (double)*one;
	if (d->kind == DEV_CUDA) /* cuBLAS may sum another size in another order */
		kt_close(&C[(size_t)M0 * N + N0], &want, 1, KT_TOL(1e-6));
	else
		kt_same_bits(&C[(size_t)M0 * N + N0], one, 1);
	kt_free(one);
	kt_free(A);
	kt_free(B);
	kt_free(C);
	dev_free(d);
}

static void bad_sizes(void **state)
{
	struct dev *d = kt_dev(state, 1);
	real a[4] = {0}, c[4] = {0};
	assert_int_equal(d->ops->gemm(d, c, 1, false, a, 2, false, a, 2, 2, 2, 2, false), -EINVAL);
	assert_int_equal(d->ops->gemm(d, c, 2, false, a, 1, false, a, 2, 2, 2, 2, false), -EINVAL);
	assert_int_equal(d->ops->gemm(d, c, 2, false, a, 2, false, a, 1, 2, 2, 2, false), -EINVAL);
	assert_int_equal(d->ops->gemm(d, c, 2, false, a, 2, false, a, 2, -1, 2, 2, false), -EINVAL);
	assert_int_equal(d->ops->gemm(d, NULL, 2, false, NULL, 2, false, a, 2, 0, 2, 2, false), 0);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(against_reference), KT_FAST(against_reference), KT_FAST_CPU(against_reference), KT_TESTS(part_equals_whole), KT_FAST_CPU(part_equals_whole), KT_TESTS(bad_sizes)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
