/* What the tap gets of a GPU: bf16, byte planes and e4m3 as the record's schema has them, bit for bit the
 * host's own rounding; as x was when pack was called, though x changes at once and nothing waits; in order of the
 * tickets; refused, not waited for, when more is under way than there is room for.
 */
#include "kt.h"

enum { M = 7, H = 130 };

static struct dev *open_async(void)
{
	return kt_open(&(struct dev_options){.kind = DEV_CUDA, .threads = 1});
}

static void arrived(struct dev *d, uint64_t ticket)
{
	int asked = 0;
	while (!d->ops->packed(d, ticket))
		assert_true(asked++ < 1 << 20);
}

static double e4m3(uint8_t b)
{
	int e = b >> 3 & 15, m = b & 7;
	double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
	return b & 0x80 ? -v : v;
}

/* The nearest code by trying all; ties: either neighbour is accepted, the even one is what it must be */
static void is_nearest(uint8_t got, double x)
{
	double best = 1e30;
	int n_best = 0;
	for (int b = 0; b < 256; b++)
		if ((b & 0x7f) != 0x7f) {
			double off = fabs(e4m3((uint8_t)b) - x);
			n_best = off < best ? 1 : off == best ? n_best + 1 : n_best;
			best = off < best ? off : best;
		}
	if (!(fabs(e4m3(got) - x) <= best * (1 + 1e-6)))
		fail_msg("%g became %g", x, e4m3(got));
	if (n_best > 1 && e4m3(got) != 0 && fabs(e4m3(got) - x) == best)
		assert_int_equal(got & 1, 0);
}

static void formats(void **state)
{
	(void)state;
	struct dev *d = open_async();
	uint64_t ticket;
	kt_seed(60);
	real *x = kt_reals(M * H, 3), keep[M * H];
	uint8_t *to = kt_mem(4 * M * H, 1);
	x[0] = 0, x[1] = -0.0f, x[2] = 1000, x[3] = (real)1e-4, x[H] = (real)448, x[H + 1] = (real)(448 / 256.0 * 1.0625), x[2 * H] = (real)NAN;
	for (int i = 0; i < H; i++)
		x[3 * H + i] = 0; /* a row of zeros has scale 1 */
	memcpy(keep, x, sizeof keep);
	for (int kind = PACK_BF16; kind <= PACK_FP8; kind++) {
		assert_int_equal(d->ops->pack(d, to, (enum pack_kind)kind, x, M, H, &ticket), 0);
		assert_int_equal(d->ops->zero(d, x, M * H * sizeof *x), 0); /* the next round's features */
		arrived(d, ticket);
		for (int i = 0; i < M * H; i++) {
			uint16_t h = f32_to_bf16((float)keep[i]), got = (uint16_t)(to[i] << 8 | to[M * H + i]);
			if (kind == PACK_BF16)
				memcpy(&got, to + 2 * i, 2);
			if (kind != PACK_FP8) {
				assert_int_equal(got, h);
				continue;
			}
			float scale;
			memcpy(&scale, to + (M * H + 3) / 4 * 4 + 4 * (i / H), sizeof scale);
			if (isnan(keep[i]))
				assert_int_equal(to[i] & 0x7f, 0x7f);
			else
				is_nearest(to[i], (double)((float)keep[i] / scale));
		}
		assert_int_equal(d->ops->upload(d, x, keep, sizeof keep), 0);
	}
	float scale;
	memcpy(&scale, to + (M * H + 3) / 4 * 4 + 4 * 3, sizeof scale);
	assert_true(scale == 1);
	assert_int_equal(d->ops->pack(d, to, PACK_BF16, x, 0, H, &ticket), -EINVAL);
	assert_int_equal(d->ops->pack(d, to, PACK_BF16, x, 1 << 20, H, &ticket), -EINVAL);
	kt_free(x);
	kt_free(to);
	dev_free(d);
}

/* Nobody looks: some are taken, then they are refused and nothing of them is written; what was taken arrives whole and in order. */
static void refused_when_full(void **state)
{
	(void)state;
	enum { TRIES = 32 };
	struct dev *d = open_async();
	real *x = kt_reals(M * H, 1);
	uint16_t *to = kt_mem(TRIES * M * H, sizeof *to);
	uint64_t ticket[TRIES];
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
	kt_free(x);
	kt_free(to);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(formats), cmocka_unit_test(refused_when_full)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
