/* What the tap gets of a device: bf16 as the host rounds it, on every path; on a GPU also e4m3 and 8-bit integers with their scales, byte for
 * byte what the tap's own thread makes of the same features (schemas/record_payload.c), NaN, infinities, zeros, numbers below the smallest normal
 * one and ties included. All of it as x was when pack was called, though x changes at once and nothing waits; in order of the
 * tickets; refused, not waited for, when more is under way than there is room for.
 */
#include "tests/unit/kernels/kt.h"
#include "schemas/record_payload.h"

enum { M = 64, H = 130 };

static void arrived(struct dev *d, uint64_t ticket)
{
	int asked = 0;
	while (!d->ops->packed(d, ticket))
		assert_true(asked++ < 1 << 20);
}

static float ends(uint32_t u)
{
	union { uint32_t u; float f; } x = {.u = u};
	return x.f;
}

/* Rows of every size, rows of one kind of strange number each, rows in which codes tie. */
static real *strange_rows(void)
{
	real *x = kt_reals(M * H, 3);
	for (int m = 0; m < M; m++)
		for (int i = 0; i < H; i++) {
			real *v = &x[m * H + i];
			switch (m) {
			case 0: *v = 0; break;
			case 1: *v = i % 2 ? -0.0f : 0.0f; break;
			case 2: *v = (real)ldexp((double)*v, -140); break;        /* denormal */
			case 3: *v = (real)ldexp((double)*v, 120); break;
			case 4: *v = i == 77 ? (real)NAN : *v; break;
			case 5: *v = i == 3 ? -(real)INFINITY : *v; break;
			case 6: *v = i == 9 ? (real)3.4e38 : *v; break;            /* bf16 has it as infinity */
			case 7: *v = i ? (real)(i - 64) / 2 : (real)127; break;    /* halves: ties of int8 */
			case 8: *v = i ? (real)((i % 16 + 16) * 2 + 1) / 2 : (real)448; break;
			case 9: *v = i ? (real)ldexp(i % 32, -10) : (real)448; break; /* ties below e4m3's smallest normal */
			case 10: *v = (real)1e-38; break;
			case 11: *v = i ? *v : (real)ends(0x7f812345); break;      /* a signalling NaN with a payload */
			default: *v = (real)ldexp((double)*v, (int)(kt_u32() % 40) - 20); break;
			}
		}
	return x;
}

static void bf16(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	uint64_t ticket = 99;
	kt_seed(60);
	real *x = strange_rows();
	uint16_t *to = kt_mem(M * H, sizeof *to);
	assert_int_equal(d->ops->pack(d, to, PACK_BF16, x, M, H, &ticket), 0);
	arrived(d, ticket);
	for (int i = 0; i < M * H; i++)
		assert_int_equal(to[i], f32_to_bf16((float)x[i]));
	assert_int_equal(d->ops->pack(d, to, PACK_BF16, x, 0, H, &ticket), -EINVAL);
	if (d->kind == DEV_CPU)
		assert_int_equal(d->ops->pack(d, to, PACK_FP8, x, M, H, &ticket), -ENOTSUP);
	kt_free(x);
	kt_free(to);
	dev_free(d);
}

static struct dev *open_async(void)
{
	return kt_open(&(struct dev_options){.kind = DEV_CUDA, .threads = 1});
}

static void as_the_tap(void **state)
{
	(void)state;
	struct dev *d = open_async();
	kt_seed(61);
	real *x = strange_rows();
	uint16_t *rounded = malloc(M * H * sizeof *rounded);
	size_t keep_bytes = M * H * sizeof *x, at = (M * H + 3) / 4 * 4;
	real *keep = malloc(keep_bytes);
	uint8_t *to = kt_mem(at + 4 * M, 1);
	assert_true(rounded && keep);
	memcpy(keep, x, keep_bytes);
	for (int i = 0; i < M * H; i++)
		rounded[i] = f32_to_bf16((float)x[i]);
	for (int kind = PACK_FP8; kind <= PACK_INT8; kind++) {
		struct packed_features want;
		uint64_t ticket;
		assert_int_equal(record_pack_features(kind == PACK_FP8 ? RECORD_FP8 : RECORD_INT8, rounded, M * H, H, &want), 0);
		assert_int_equal(d->ops->pack(d, to, (enum pack_kind)kind, x, M, H, &ticket), 0);
		assert_int_equal(d->ops->zero(d, x, keep_bytes), 0); /* the next round's features */
		arrived(d, ticket);
		assert_int_equal(d->ops->upload(d, x, keep, keep_bytes), 0);
		for (int i = 0; i < M * H; i++)
			if (to[i] != want.code[i])
				fail_msg("kind %d, row %d, column %d: %.9g is %02x and the tap makes it %02x", kind, i / H, i % H, (double)keep[i], to[i], want.code[i]);
		assert_memory_equal(to + at, want.scale, M * sizeof(float));
		free(want.owned);
	}
	kt_free(x);
	kt_free(to);
	free(rounded);
	free(keep);
	dev_free(d);
}

/* Nobody looks: some are taken, then they are refused and nothing of them is written; what was taken arrives whole and in order. Slots grow. */
static void refused_when_full(void **state)
{
	(void)state;
	enum { TRIES = 32, WIDE = 700000 };
	struct dev *d = open_async();
	real *x = kt_reals(M * H, 1), *wide = kt_reals(WIDE, 1);
	uint16_t *to = kt_mem(TRIES * M * H, sizeof *to), *wide_to = kt_mem(WIDE, sizeof *wide_to);
	uint64_t ticket[TRIES], last;
	int taken = 0, refused = 0;
	memset(to, 0xee, TRIES * M * H * sizeof *to);
	for (int i = 0; i < TRIES; i++) {
		real v = (real)(taken + 1);
		assert_int_equal(d->ops->upload(d, x, &v, sizeof v), 0);
		int r = d->ops->pack(d, to + taken * M * H, PACK_BF16, x, M, H, &ticket[taken]);
		assert_true(r == 0 || r == 1);
		taken += r == 0;
		refused += r == 1;
	}
	assert_true(taken >= 4);
	if (strstr(d->about, "emulated"))
		assert_true(refused > 0);
	arrived(d, ticket[taken - 1]);
	for (int i = 0; i < taken; i++) {
		assert_true(i == 0 || ticket[i] == ticket[i - 1] + 1);
		assert_true(d->ops->packed(d, ticket[i]));
		assert_int_equal(to[i * M * H], f32_to_bf16((float)(i + 1)));
	}
	assert_true(taken == TRIES || to[taken * M * H] == 0xeeee);
	assert_false(d->ops->packed(d, ticket[taken - 1] + 1));
	for (int i = 0; i < 8; i++) {
		assert_int_equal(d->ops->pack(d, wide_to, PACK_BF16, wide, 1, WIDE, &last), 0);
		arrived(d, last);
		assert_int_equal(wide_to[WIDE - 1], f32_to_bf16((float)wide[WIDE - 1]));
		memset(wide_to, 0, WIDE * sizeof *wide_to);
	}
	kt_free(x);
	kt_free(to);
	kt_free(wide);
	kt_free(wide_to);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(bf16), cmocka_unit_test(as_the_tap), cmocka_unit_test(refused_when_full)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
