/* The law: what is served equals plain decoding token for token.
 *
 * 1,280 prompts on a toy target in 80 configurations that cover, pairwise by a
 * seeded draw: chain length 1..7, chains, trees of up to 16 nodes or what the controller picks, batch 1..8, prefill chunk, weights f32 and bf16, which
 * draft, how tokens are drawn (filters, penalties, bias, with log-probabilities), and what happens in mid-stream (a switch, a rollback,
 * a fall to plain decoding, another chain length), how little memory there is (requests lose their pages and are
 * recomputed), whose prefixes are reused, from how many clients and with which priorities the requests come. Each prompt is decoded again by an
 * engine without a draft, one at a time, and must give the same tokens and the same
 * ending. That the drafts did something is checked too: proposals were accepted and
 * rejected, requests changed their version under way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/unit/serve/harness.h"

enum { F_K, F_BATCH, F_CHUNK, F_WEIGHTS, F_DRAFT, F_DRAW, F_EVENT, F_NODES, F_PAGES, F_PREFIX, F_CLIENTS, N_FACTORS };
static const int levels[N_FACTORS] = {7, 8, 5, 2, 3, 8, 5, 6, 3, 3, 3};
#ifdef __SANITIZE_ADDRESS__
enum { PER_CONFIG = 4 }; /* memory errors need fewer prompts than the law does */
#else
enum { PER_CONFIG = 16 };
#endif
enum { CONFIGS = 80, MAX_LEVEL = 8 };
static const int chunks[] = {3, 7, 16, 33, 64}, budgets[] = {160, 224, 160 * 8}, clients[] = {1, 3, 16}, nodes[] = {0, 3, 6, 11, 16, -1}; /* 0: chains; -1: as the controller likes */
enum { EV_NONE, EV_SWITCH, EV_ROLLBACK, EV_PLAIN, EV_K };

/* Side 0 is tested, side 1 decodes plainly: a dev and a target belong to one engine's thread. */
static struct { struct dev *d[2]; struct llama *target[2][2]; struct engine *plain[2]; char dir[3][64]; } toy;

/* ---- the seeded pairwise draw ---- */

static bool seen[N_FACTORS][MAX_LEVEL][N_FACTORS][MAX_LEVEL];

static int gain(const int *c)
{
	int n = 0;
	for (int a = 0; a < N_FACTORS; a++)
		for (int b = a + 1; b < N_FACTORS; b++)
			n += !seen[a][c[a]][b][c[b]];
	return n;
}

static void draw_config(uint64_t *rng, int *best)
{
	int best_gain = -1;
	for (int tries = 0; tries < 400; tries++) {
		int c[N_FACTORS];
		for (int f = 0; f < N_FACTORS; f++)
			c[f] = (int)((*rng = toy_mix(*rng + 0x9e3779b97f4a7c15u)) % (uint64_t)levels[f]);
		if (gain(c) > best_gain) {
			best_gain = gain(c);
			memcpy(best, c, sizeof c);
		}
	}
	for (int a = 0; a < N_FACTORS; a++)
		for (int b = a + 1; b < N_FACTORS; b++)
			seen[a][best[a]][b][best[b]] = true;
}

static int pairs_missing(void)
{
	int n = 0;
	for (int a = 0; a < N_FACTORS; a++)
		for (int b = a + 1; b < N_FACTORS; b++)
			for (int i = 0; i < levels[a]; i++)
				for (int j = 0; j < levels[b]; j++)
					n += !seen[a][i][b][j];
	return n;
}

/* ---- set-up ---- */

static struct engine *make_engine(int side, int weights, int seqs, int chunk, int k, int tree, int kv_tokens, enum prefix_sharing prefix)
{
	struct engine_options o = {.dev = toy.d[side], .target = toy.target[side][weights], .f32_kv = weights == 0, .max_seqs = seqs,
				   .max_queue = 64, .max_context = 160, .kv_tokens = kv_tokens, .prefix = prefix, .prefill_chunk = chunk, .draft_k = k,
				   .draft_mode = tree < 0 ? DRAFT_AUTO : tree ? DRAFT_TREE : DRAFT_CHAIN, .draft_nodes = tree < 0 ? 16 : tree,
				   .eog_ids = {2, 77}, .n_eog = 2};
	struct engine *g = NULL;
	struct errtext e = {0};
	if (engine_new(&o, &g, &e))
		fail_msg("engine: %s", e.text);
	return g;
}

static int setup(void **state)
{
	(void)state;
	struct errtext e = {0};
	for (int side = 0; side < 2; side++) {
		assert_int_equal(dev_cpu_new(1, ISA_AUTO, &toy.d[side]), 0);
		for (int w = 0; w < 2; w++) {
			toy.target[side][w] = toy_target(toy.d[side], w ? 0.15f : 0.05f, w ? DT_BF16 : DT_F32);
			assert_non_null(toy.target[side][w]);
		}
	}
	const enum toy_kind kinds[3] = {TOY_AGREES, TOY_RANDOM, TOY_OVERFLOW};
	for (int i = 0; i < 3; i++) {
		snprintf(toy.dir[i], sizeof toy.dir[i], "/tmp/redraft-law-%d-%d", (int)getpid(), i);
		if (toy_draft(toy.dir[i], kinds[i], 11, 2, &e))
			fail_msg("draft: %s", e.text);
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		if (fs_remove_tree(toy.dir[i]))
			return -1;
	for (int side = 0; side < 2; side++) {
		for (int w = 0; w < 2; w++)
			llama_free(toy.target[side][w]);
		dev_free(toy.d[side]);
	}
	return 0;
}

static void draw_sampling(int kind, uint64_t seed, struct job *j)
{
	struct sampling *s = &j->how;
	*s = (struct sampling){.top_p = 1, .seed = seed, .choice = (uint32_t)(seed % 3)};
	s->temperature = kind == 0 || kind == 5 ? 0 : kind == 4 ? 1.3f : 0.7f;
	if (kind == 2)
		s->top_p = 0.8f;
	if (kind == 3)
		s->top_k = 20, s->top_p = 0.95f;
	if (kind == 4)
		s->min_p = 0.02f;
	if (kind == 5 || kind == 7)
		s->repetition = 1.3f;
	if (kind >= 6)
		s->presence = 0.6f, s->frequency = kind == 6 ? 0.4f : -0.3f;
	if (kind >= 5) {
		s->n_bias = 2;
		j->bias[0] = (struct token_bias){(uint32_t)(seed % TOY_V), 3};
		j->bias[1] = (struct token_bias){(uint32_t)((seed + 1) % TOY_V), -100};
	}
	j->logprobs = seed % 3 > 0;
}

/* Tokens that end it beside the model's, and none of them too early. */
static void draw_ends(struct job *j, uint64_t seed, bool stops)
{
	j->n_stop_ids = stops ? 3 : 0;
	for (int i = 0; i < 3; i++)
		j->stop_ids[i] = (uint32_t)(toy_mix(seed + 20 + (uint64_t)i) % TOY_V);
	j->min_tokens = stops ? (int)(toy_mix(seed + 23) % 12) % (j->max_tokens + 1) : 0;
}

static void check_ends(const struct job *j)
{
	assert_true(j->n_out >= j->min_tokens);
	for (int i = 0; i + 1 < j->n_out || i < j->min_tokens; i++)
		for (int k = 0; k < j->n_stop_ids; k++)
			assert_int_not_equal(j->out[i], j->stop_ids[k]);
}

static void must(int r, const struct errtext *e)
{
	if (r)
		fail_msg("%s (%d)", e->text, r);
}

static void happen(struct engine *g, int event)
{
	struct errtext e = {0};
	switch (event) {
	case EV_SWITCH: must(engine_activate(g, 2, false, 1, &e), &e); break;
	case EV_ROLLBACK: must(engine_activate(g, 2, true, 0, &e), &e); break;
	case EV_PLAIN: must(engine_activate(g, 0, true, 0, &e), &e); break;
	case EV_K: engine_set_draft_k(g, 6); break;
	default: break;
	}
}

/* Half of them begin like others: one of three texts, cut somewhere. */
static void draw_prompt(struct job *j, uint64_t seed)
{
	static struct job family;
	int common = toy_mix(seed + 7) % 2 ? 33 + (int)(toy_mix(seed + 8) % 64) : 0, own = 1 + (int)(toy_mix(seed) % 40);
	job_random(j, seed, common + own, 1 + (int)(toy_mix(seed + 5) % (common ? 24 : 80)));
	job_random(&family, 1 + toy_mix(seed + 9) % 3, common, 1);
	memcpy(j->prompt, family.prompt, (size_t)common * sizeof *j->prompt);
}

struct tally { uint64_t preempted, reused, evicted, rounds[2], proposed[2], accepted[2], moved, dropped, tokens; }; /* of chains; of trees and the controller's */

static void one_config(const int *c, int index, struct tally *t)
{
	static struct job jobs[PER_CONFIG];
	char sha[65];
	struct errtext e = {0};
	atomic_int ticks = 0;
	int first = c[F_DRAFT] == 0 ? 0 : c[F_DRAFT] == 1 ? 1 : 2;
	/* the other version of a switch: with one that agrees comes one that does not, and back */
	int second = c[F_DRAFT] == 0 ? 1 : 0;
	struct engine *g = make_engine(0, c[F_WEIGHTS], 1 + c[F_BATCH], chunks[c[F_CHUNK]], 1 + c[F_K], nodes[c[F_NODES]], budgets[c[F_PAGES]],
				       (enum prefix_sharing)c[F_PREFIX]);
	must(engine_load(g, 1, toy.dir[first], sha, &e), &e);
	must(engine_load(g, 2, toy.dir[second], sha, &e), &e);
	must(engine_activate(g, 1, false, 0, &e), &e);
	for (int i = 0; i < PER_CONFIG; i++) {
		uint64_t seed = (uint64_t)(index * PER_CONFIG + i);
		draw_prompt(&jobs[i], seed);
		jobs[i].client = 1 + (int)(toy_mix(seed + 11) % (uint64_t)clients[c[F_CLIENTS]]);
		jobs[i].priority = (int)(toy_mix(seed + 13) % 3) - 1;
		draw_sampling(c[F_DRAW], seed, &jobs[i]);
		jobs[i].ticks = &ticks;
		jobs[i].stall_at = 9;
		jobs[i].ignore_eos = i % 4 == 0;
		draw_ends(&jobs[i], seed, i % 3 == 0);
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	ticks_wait(&ticks, 9, jobs, PER_CONFIG);
	happen(g, c[F_EVENT]);
	for (int i = 0; i < PER_CONFIG; i++) {
		static struct job ref;
		job_wait(&jobs[i]);
		ref = jobs[i];
		ref.ticks = NULL;
		assert_int_equal(job_submit(toy.plain[c[F_WEIGHTS]], &ref), 0);
		job_wait(&ref);
		check_ends(&jobs[i]);
		if (!job_same(&ref, &jobs[i])) {
			int at = 0;
			while (at < ref.n_out && at < jobs[i].n_out && ref.out[at] == jobs[i].out[at])
				at++;
			fail_msg("config %d (k %d nodes %d batch %d chunk %d weights %d draft %d draw %d event %d) prompt %d: %d tokens for %d, differ at %d",
				 index, 1 + c[F_K], nodes[c[F_NODES]], 1 + c[F_BATCH], chunks[c[F_CHUNK]], c[F_WEIGHTS], c[F_DRAFT], c[F_DRAW], c[F_EVENT],
				 i, jobs[i].n_out, ref.n_out, at);
		}
		t->tokens += (uint64_t)ref.n_out;
		t->rounds[c[F_NODES] > 0] += jobs[i].stats.proposing_rounds;
		t->proposed[c[F_NODES] > 0] += jobs[i].stats.proposed;
		t->accepted[c[F_NODES] > 0] += jobs[i].stats.accepted;
		t->moved += jobs[i].stats.n_versions > 1;
		t->dropped += jobs[i].stats.versions[0] == 0;
	}
	struct engine_status st;
	engine_status(g, &st);
	t->preempted += st.preemptions;
	t->reused += st.prefix_reused;
	t->evicted += st.evictions;
	/* nobody is left: every page is free or kept by the tree alone */
	assert_int_equal(st.pages_free + st.pages_cached, st.pages);
	assert_true(c[F_PREFIX] != PREFIX_OFF || (st.pages_cached == 0 && st.prefix_reused == 0));
	engine_free(g);
}

static void test_law(void **state)
{
	(void)state;
	uint64_t rng = 20261129;
	struct tally t = {0};
	print_message("seed %llu, %d configurations of %d prompts\n", (unsigned long long)rng, CONFIGS, PER_CONFIG);
	for (int w = 0; w < 2; w++)
		toy.plain[w] = make_engine(1, w, 1, 64, 1, 0, 160, PREFIX_OFF);
	for (int i = 0; i < CONFIGS; i++) {
		int c[N_FACTORS];
		draw_config(&rng, c);
		one_config(c, i, &t);
	}
	for (int w = 0; w < 2; w++)
		engine_free(toy.plain[w]);
	print_message("%llu tokens, chains: %llu proposed, %llu accepted, trees: %llu proposed, %llu accepted, %llu requests moved, pairs not covered %d\n",
		      (unsigned long long)t.tokens, (unsigned long long)t.proposed[0], (unsigned long long)t.accepted[0],
		      (unsigned long long)t.proposed[1], (unsigned long long)t.accepted[1], (unsigned long long)t.moved, pairs_missing());
	for (int tree = 0; tree < 2; tree++) {
		assert_true(t.accepted[tree] > t.rounds[tree] / 10);
		assert_true(t.accepted[tree] < t.proposed[tree]);
	}
	assert_true(t.moved > 2 * PER_CONFIG);
	print_message("%llu preempted, %llu prompt tokens reused, %llu pages evicted\n", (unsigned long long)t.preempted,
		      (unsigned long long)t.reused, (unsigned long long)t.evicted);
	assert_true(t.preempted > PER_CONFIG && t.reused > 100 * PER_CONFIG && t.evicted > 10 * PER_CONFIG);
	assert_true(pairs_missing() < 12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_law)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
