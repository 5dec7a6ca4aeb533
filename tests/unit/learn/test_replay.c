/* Replayed accept length against the thing it stands for: a chain walked round by
 * round with the serving layer (kernels/model/eagle3.c), greedy, the same start,
 * the same cuts. Every count must be equal, for k = 1..7, from several first rows,
 * and along recorded rounds. Token sequences are made so that chains are right for
 * a while and then wrong: part of the tokens are what the draft itself would say.
 */
#include "tests/unit/learn/draft_chain.h"

enum { N = 90 };

struct text {
	struct ttt_case k;
	uint32_t ids[N + 1], pos[N];
	real *features;
	struct chain s;
	struct dev *d;
};

/* The walk that serving would do (contracts.md "Replayed AL"). lens NULL: k each. */
static int brute_round(struct text *x, int *filled, int t, int want, struct replay_result *res)
{
	int limit = want < N - 1 - t ? want : N - 1 - t, a = 0;
	if (limit < 1)
		return -1;
	/* rows up to t with true features; draft-made rows beyond are overwritten, as serving does */
	chain_extend(&x->s, x->ids, x->pos, x->features, *filled, t);
	*filled = t + 1;
	for (int j = 0; j < limit; j++) {
		res->proposed_at[j]++;
		uint32_t token = chain_argmax(&x->s);
		if (a != j || token != x->ids[t + 2 + j])
			continue; /* wrong already: later proposals are made, and rejected */
		res->accepted_at[j]++;
		a++;
		if (j + 1 < limit)
			chain_step(&x->s, x->pos, t, j + 1, token);
	}
	res->rounds++;
	res->accepted += (uint32_t)a;
	return a;
}

static struct replay_result brute_walk(struct text *x, int first, int k)
{
	struct replay_result res = {0};
	int filled = 0;
	for (int t = first, a; t < N; t += a + 1)
		if ((a = brute_round(x, &filled, t, k, &res)) < 0)
			break;
	return res;
}

/* Tokens that the draft gets right for stretches: with chance 3/4 the next token is
 * the chain's own next proposal, else any. */
static void write_text(struct text *x, uint64_t seed)
{
	print_message("seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < N; i++)
		x->pos[i] = (uint32_t)i + 3;
	for (int i = 0; i < N * 3 * x->k.c.H_t; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		x->features[i] = (real)((double)(int64_t)(seed >> 40) / (1 << 23) - 1);
	}
	x->ids[0] = 1;
	x->ids[1] = 2;
	for (int t = 0; t + 1 < N;) {
		chain_extend(&x->s, x->ids, x->pos, x->features, t, t);
		int stretch = 0;
		for (;; stretch++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			if (t + 2 + stretch > N || stretch == 7)
				break;
			if ((seed >> 40) % 4 == 0) {
				x->ids[t + 2 + stretch] = (uint32_t)((seed >> 33) % (uint64_t)x->k.c.V);
				stretch++;
				break;
			}
			x->ids[t + 2 + stretch] = chain_argmax(&x->s);
			if (t + 3 + stretch <= N && stretch < 6)
				chain_step(&x->s, x->pos, t, stretch + 1, x->ids[t + 2 + stretch]);
		}
		/* the rows passed over get their real features */
		for (int i = 1; i < stretch && t + i < N; i++)
			chain_extend(&x->s, x->ids, x->pos, x->features, t + i, t + i);
		t += stretch;
	}
}

static void open_text(struct text *x, const char *name, enum dev_isa isa, uint64_t seed)
{
	x->d = dev_or_null(2, isa);
	assert_non_null(x->d);
	ttt_case_open(&x->k, name);
	x->features = malloc(N * 3 * (size_t)x->k.c.H_t * sizeof(real));
	chain_open(&x->s, x->d, &x->k.c, x->k.params, x->k.d2t, x->k.embedding);
	write_text(x, seed);
}

static void close_text(struct text *x)
{
	chain_close(&x->s);
	free(x->features);
	ttt_case_close(&x->k);
	dev_free(x->d);
}

static struct replay_result replay(struct text *x, struct replay_request *r, int k)
{
	struct replay_result res;
	r->n = N;
	r->ids = x->ids;
	r->pos = x->pos;
	r->features = x->features;
	assert_int_equal(replay_accept_length(x->d, &x->k.c, x->k.params, x->k.d2t, x->k.embedding, r, k, &res), 0);
	return res;
}

static void assert_same(const struct replay_result *got, const struct replay_result *want)
{
	assert_int_equal(got->rounds, want->rounds);
	assert_int_equal(got->accepted, want->accepted);
	for (int i = 0; i < TTT_MAX_STEPS; i++) {
		assert_int_equal(got->proposed_at[i], want->proposed_at[i]);
		assert_int_equal(got->accepted_at[i], want->accepted_at[i]);
	}
}

static void test_walk(void **state)
{
	(void)state;
	const char *const names[] = {"plain", "packed", "norms", "norms_fc"};
	const int first[] = {0, 17, 84, N - 2, N - 1};
	for (int i = 0; i < 4; i++) {
		struct text x;
		open_text(&x, names[i], i ? ISA_PORTABLE : ISA_AUTO, 5 + (uint64_t)i);
		for (int k = 1; k <= 7; k++)
			for (int j = 0; j < 5; j++) {
				struct replay_request r = {.first_round_row = first[j]};
				struct replay_result want = brute_walk(&x, first[j], k), got = replay(&x, &r, k);
				assert_same(&got, &want);
				if (k == 5 && j == 0) {
					print_message("%s: %u rounds, accept length %.3f\n", names[i], got.rounds,
						      1 + (double)got.accepted / got.rounds);
					assert_true(got.accepted > got.rounds / 2 && got.accepted < 4 * got.rounds);
				}
			}
		close_text(&x);
	}
}

/* Recorded rounds: other starts and lengths than the walk would choose, some 0. */
static void test_recorded_rounds(void **state)
{
	(void)state;
	struct text x;
	open_text(&x, "plain", ISA_AUTO, 9);
	uint32_t start[40];
	uint8_t len[40];
	int n = 0, filled = 0;
	struct replay_result want = {0};
	for (int t = 4; t < N && n < 40; t += 1 + t % 3, n++) {
		start[n] = (uint32_t)t;
		len[n] = (uint8_t)(t % 6);
		if (len[n])
			(void)brute_round(&x, &filled, t, len[n], &want);
	}
	struct replay_request r = {.round_start = start, .round_len = len, .n_rounds = n};
	struct replay_result got = replay(&x, &r, 1);
	assert_true(got.rounds > 20);
	assert_same(&got, &want);
	start[0] = N;
	assert_int_equal(replay_accept_length(x.d, &x.k.c, x.k.params, x.k.d2t, x.k.embedding, &r, 5, &got), -EINVAL);
	close_text(&x);
}

/* Nothing to judge: no rounds, and no failure. */
static void test_empty(void **state)
{
	(void)state;
	struct text x;
	open_text(&x, "plain", ISA_AUTO, 9);
	struct replay_request r = {.first_round_row = N + 5};
	struct replay_result got = replay(&x, &r, 5);
	assert_int_equal(got.rounds, 0);
	r.first_round_row = N - 1; /* its proposal would stand for a token beyond the record */
	got = replay(&x, &r, 5);
	assert_int_equal(got.rounds, 0);
	r.first_round_row = -1;
	assert_int_equal(replay_accept_length(x.d, &x.k.c, x.k.params, x.k.d2t, x.k.embedding, &r, 5, &got), -EINVAL);
	close_text(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_walk), cmocka_unit_test(test_recorded_rounds), cmocka_unit_test(test_empty)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
