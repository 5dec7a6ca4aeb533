/* The controller against a simulated world: it must come within 3 % of the best fixed choice,
 * its probes and its share of chains included.
 *
 * The world has a draft that is sure in some places and not in others, trees grown by tree.c itself from its
 * probabilities, draws from a seed, and costs with noise: of a quiet machine, and of one whose processors others use, where a time is off by a sixth
 * and some by far more. Every fixed shape is run through the same world; the controller then
 * sees nothing but outcomes and times. Figures are means over seeds, as one stretch of luck says little. Checked: steady worlds (drafts that are good, fair, useless; one and eight
 * sessions; cheap and dear verification), a shift down and one up again, costs that change, two domains of
 * which one pays. A draft that never agrees costs at most 3 %, 5 % on such a machine; while nothing is proposed it still probes; where trees are
 * chosen a sixteenth of the rounds are chains; the same numbers give the same choices.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "serve/controller.h"
#include "serve/pages.h"
#include "serve/draft.h"
#include "tests/unit/serve/toy.h"

enum { K = 6, NODES = 16, TYPES = 2, SHAPES = K + 1 + K * CTL_SIZES, SEEDS = 5 };

struct world {
	double p[TYPES][TREE_WIDTH]; /* of the draft's n-th guess being right, in places of each type */
	double easy;                 /* share of type 0 */
	double row, level;           /* what a row adds to a forward, and a level costs, of a forward of one row */
	double ms;                   /* of that */
};

struct grown { int16_t parent[ENGINE_MAX_NODES]; uint8_t rank[ENGINE_MAX_NODES]; uint32_t ids[ENGINE_MAX_NODES]; int n, runs[ENGINE_MAX_K]; };
static uint64_t rng;
static bool shared; /* the machine, with others */

static double uniform(void)
{
	return (double)(toy_mix(rng += 0x9e3779b97f4a7c15u) >> 11) / 9007199254740992.0;
}

static bool never(const void *arg, uint32_t id)
{
	(void)arg;
	(void)id;
	return false;
}

/* ids are the guesses' orders */
static void grow(const struct world *w, int type, struct draft_shape h, struct grown *g)
{
	static struct { const double *p; struct draft_shape h; struct grown g; } made[256]; /* it is always the same one */
	static int n_made;
	struct tree t;
	uint32_t ids[TREE_WIDTH] = {0, 1, 2, 3};
	for (int i = 0; i < n_made; i++)
		if (made[i].p == w->p[type] && memcmp(&made[i].h, &h, sizeof h) == 0) {
			*g = made[i].g;
			return;
		}
	float logp[TREE_WIDTH];
	for (int i = 0; i < TREE_WIDTH; i++)
		logp[i] = (float)log(w->p[type][i] + 1e-4);
	memset(g->runs, 0, sizeof g->runs);
	tree_start(&t, h, ids, logp);
	for (int level = 1; tree_next(&t, 99, never, NULL); level++) {
		g->runs[level] = t.n_live;
		for (int i = 0; i < t.n_live; i++)
			tree_note(&t, i, ids, logp);
	}
	g->n = tree_pick(&t, 99, g->ids, g->parent, g->rank);
	n_made %= 256;
	made[n_made].p = w->p[type];
	made[n_made].h = h;
	made[n_made++].g = *g;
}

static int walk(const struct world *w, int type, const struct grown *g, int *path)
{
	int at = -1, n = 0;
	for (;;) {
		double u = uniform();
		int order = 0, child = -1;
		while (order < TREE_WIDTH && u >= w->p[type][order])
			u -= w->p[type][order++];
		for (int i = at + 1; i < g->n && child < 0; i++)
			if (g->parent[i] == at && g->ids[i] == (uint32_t)order)
				child = i;
		if (child < 0)
			return n;
		path[n++] = at = child;
	}
}

static double verify_ms(const struct world *w, int rows)
{
	return w->ms * (1 + w->row * (rows - 1) + (rows > 8 ? 0.3 * w->row * (rows - 8) : 0));
}

static double level_ms(const struct world *w, int rows)
{
	return w->ms * w->level * (1 + w->row * (rows - 1));
}

static double noise_of(void)
{
	if (!shared)
		return 1 + 0.06 * (uniform() - 0.5);
	double held_up = uniform() < 0.03 ? 2.5 : 1;
	return exp(0.3 * (uniform() + uniform() - 1)) * held_up;
}

struct run { double tokens, ms; int rounds, chains, off; };

/* One round of n sessions with these shapes; c may be NULL. */
static void one_round(const struct world *const *w, struct controller *c, struct ctl_session *s, int n, struct run *r)
{
	struct grown g;
	int rows = n, path[ENGINE_MAX_K], runs[ENGINE_MAX_K] = {0}, drafting = 0;
	double noise = noise_of(), ms, tokens = n;
	for (int i = 0; i < n; i++) {
		int type = uniform() >= w[i]->easy;
		if (!s[i].shape.depth) {
			r->off++;
			continue;
		}
		drafting++;
		grow(w[i], type, s[i].shape, &g);
		rows += g.n;
		for (int l = 1; l < ENGINE_MAX_K; l++)
			runs[l] += g.runs[l];
		int a = walk(w[i], type, &g, path);
		tokens += a;
		r->chains += s[i].shape.width == 1;
		if (c)
			controller_outcome(c, s[i].key, s[i].shape, g.parent, g.rank, g.n, path, a, false);
	}
	ms = verify_ms(w[0], rows) * noise;
	if (c)
		controller_cost(c, CTL_VERIFY, rows, ms);
	int extends = drafting ? controller_extend_rows(tokens, drafting) : r->rounds % PAGE_TOK == 0 ? controller_extend_rows(n * PAGE_TOK, 0) : 0;
	if (extends) {
		ms += level_ms(w[0], extends) * noise;
		if (c)
			controller_cost(c, CTL_EXTEND, extends, level_ms(w[0], extends) * noise);
	}
	for (int l = 1; l < ENGINE_MAX_K; l++)
		if (runs[l]) {
			ms += level_ms(w[0], runs[l]) * noise;
			if (c)
				controller_cost(c, CTL_STEP, runs[l], level_ms(w[0], runs[l]) * noise);
		}
	r->tokens += tokens;
	r->ms += ms;
	r->rounds++;
}

static double fixed_pace(const struct world *w, int n, struct draft_shape h, int rounds)
{
	struct run r = {0};
	const struct world *ws[ENGINE_MAX_SEQS];
	struct ctl_session s[ENGINE_MAX_SEQS];
	rng = 5;
	for (int i = 0; i < n; i++) {
		ws[i] = w;
		s[i].shape = h;
	}
	for (int i = 0; i < rounds; i++)
		one_round(ws, NULL, s, n, &r);
	return r.tokens / r.ms;
}

static double best_fixed(const struct world *w, int n, struct draft_shape *ret)
{
	static const int sizes[CTL_SIZES] = {4, 6, 8, 12, 16};
	double best = 0;
	for (int i = 0; i < SHAPES; i++) {
		unsigned j = i > K ? (unsigned)(i - K - 1) : 0;
		struct draft_shape h = i <= K ? (struct draft_shape){1, i, i} : (struct draft_shape){TREE_WIDTH, 1 + (int)(j / CTL_SIZES), sizes[j % CTL_SIZES]};
		double pace = fixed_pace(w, n, h, 2000);
		if (pace > best) {
			best = pace;
			*ret = h;
		}
	}
	return best;
}

static void drive(struct controller *c, const struct world *w, int n, int rounds, struct run *r)
{
	const struct world *ws[ENGINE_MAX_SEQS];
	struct ctl_session s[ENGINE_MAX_SEQS];
	*r = (struct run){0};
	for (int i = 0; i < n; i++)
		ws[i] = w;
	for (int i = 0; i < rounds; i++) {
		for (int j = 0; j < n; j++)
			s[j].key = controller_key(c, 1, "chat");
		controller_choose(c, s, n, 0);
		one_round(ws, c, s, n, r);
	}
}

static const struct world good = {{{.85, .07, .03, .01}, {.4, .2, .1, .06}}, .7, .09, .06, 25}, fair = {{{.7, .1, .05, .02}, {.25, .15, .1, .05}}, .5, .09, .06, 25},
			  useless = {{{0}}, .5, .09, .06, 25}, poor = {{{.2, .05, .02, .01}, {.1, .05, .03, .02}}, .5, .09, .06, 25},
			  wide = {{{.45, .25, .15, .08}, {.35, .25, .15, .1}}, .5, .04, .03, 25}, dear = {{{.7, .1, .05, .02}, {.25, .15, .1, .05}}, .5, .5, .06, 25},
			  cheap = {{{.85, .07, .03, .01}, {.4, .2, .1, .06}}, .7, .02, .02, 25};

static double lost(const struct run *r, double best)
{
	return 1 - r->tokens / r->ms / best;
}

/* sum: of SEEDS losses */
static void check(const char *what, double sum, double allowed)
{
	print_message("%-30s%s %.1f %% below the best fixed choice\n", what, shared ? ", shared machine:" : ":", 100 * sum / SEEDS);
	assert_true(sum / SEEDS <= allowed);
}

/* rounds of n sessions, after so many in which it came to know its way */
static void steady(const char *name, const struct world *w, int n, int known, int rounds, double allowed)
{
	struct draft_shape h = {0};
	double best = best_fixed(w, n, &h), sum = 0;
	char what[40];
	for (unsigned seed = 0; seed < SEEDS; seed++) {
		struct controller c;
		struct run r;
		controller_init(&c, DRAFT_AUTO, K, NODES);
		rng = 77 + 1000 * seed;
		drive(&c, w, n, known, &r);
		drive(&c, w, n, rounds, &r);
		sum += lost(&r, best);
		if (w == &useless)
			assert_true(c.key[controller_key(&c, 1, "chat")].probes > 10);
	}
	snprintf(what, sizeof what, "%s, %d session%s", name, n, n > 1 ? "s" : "");
	check(what, sum, allowed);
}

static void test_steady(void **state)
{
	(void)state;
	static const struct { const char *name; const struct world *w; } all[] = {{"good", &good}, {"fair", &fair}, {"poor", &poor}, {"useless", &useless}, {"wide", &wide}, {"dear", &dear}, {"cheap", &cheap}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int n = 1; n <= 8; n += 7)
			for (int noisy = 0; noisy < 2; noisy++) {
				shared = noisy;
				/* wide at 8: the best two choices are 3 % apart, less than the noise of a time shows */
				steady(all[i].name, all[i].w, n, 400, n > 1 ? 1200 : 4000, noisy || (all[i].w == &wide && n == 8) ? 0.05 : 0.03);
			}
	shared = false;
}

static void test_shifts(void **state)
{
	(void)state;
	struct draft_shape h = {0};
	struct world slow = good;
	slow.ms = 60; /* somebody else computes, too: all is dearer alike */
	double b_good = best_fixed(&good, 1, &h), b_bad = best_fixed(&useless, 1, &h), b_dear = best_fixed(&dear, 1, &h), b_slow = best_fixed(&slow, 1, &h);
	double turn = 0, bad = 0, again = 0, costs = 0, slower = 0;
	for (unsigned seed = 0; seed < SEEDS; seed++) {
		struct controller c;
		struct run r;
		controller_init(&c, DRAFT_AUTO, K, NODES);
		rng = 9 + 1000 * seed;
		drive(&c, &good, 1, 1500, &r);
		drive(&c, &useless, 1, 4000, &r);
		turn += lost(&r, b_bad);
		drive(&c, &useless, 1, 2000, &r);
		bad += lost(&r, b_bad);
		drive(&c, &good, 1, 1500, &r); /* found by probes */
		drive(&c, &good, 1, 2000, &r);
		again += lost(&r, b_good);
		drive(&c, &dear, 1, 1000, &r);
		drive(&c, &dear, 1, 2000, &r);
		costs += lost(&r, b_dear);
		drive(&c, &slow, 1, 1500, &r);
		drive(&c, &slow, 1, 2000, &r);
		slower += lost(&r, b_slow);
	}
	check("good, then useless", turn, 0.06); /* the turn itself included */
	check("... settled", bad, 0.03);
	check("useless, then good: settled", again, 0.04);
	check("costs changed: settled", costs, 0.03);
	check("all is slower: settled", slower, 0.04);
}

static void test_from_the_start(void **state)
{
	(void)state;
	for (int noisy = 0; noisy < 2; noisy++) {
		shared = noisy;
		steady("useless, from the start", &useless, 1, 0, 2000, noisy ? 0.05 : 0.03);
	}
	shared = false;
}

static void test_two_domains(void **state)
{
	(void)state;
	struct controller c;
	struct run r = {0};
	const struct world *ws[4] = {&good, &useless, &good, &useless};
	struct ctl_session s[4];
	int on[2] = {0};
	controller_init(&c, DRAFT_AUTO, K, NODES);
	rng = 4;
	for (int i = 0; i < 2000; i++) {
		for (int j = 0; j < 4; j++)
			s[j].key = controller_key(&c, 1, j % 2 ? "code" : "chat");
		controller_choose(&c, s, 4, 0);
		for (int j = 0; j < 4 && i >= 500; j++)
			on[j % 2] += s[j].shape.depth > 0;
		one_round(ws, &c, s, 4, &r);
	}
	print_message("two domains: %d and %d of 3000 sessions' rounds propose\n", on[0], on[1]);
	assert_true(on[0] > 2900);
	assert_true(on[1] > 10 && on[1] < 400);
}

static void test_chain_share(void **state)
{
	(void)state;
	struct controller c;
	struct run r;
	controller_init(&c, DRAFT_AUTO, K, NODES);
	rng = 5;
	drive(&c, &wide, 1, 400, &r);
	drive(&c, &wide, 1, 2000, &r);
	print_message("%d of %d rounds are chains\n", r.chains, r.rounds);
	assert_true(r.chains >= r.rounds / CTL_CHAIN_EVERY - 20);
	assert_true(r.chains < r.rounds / 2);
}

static void test_fixed_and_keys(void **state)
{
	(void)state;
	struct controller c;
	struct ctl_session s[2] = {{.key = 0}, {.key = 0}};
	controller_init(&c, DRAFT_OFF, 3, 8);
	s[0].key = s[1].key = controller_key(&c, 1, "a");
	controller_choose(&c, s, 2, 1);
	assert_int_equal(s[0].shape.depth, 0);
	controller_init(&c, DRAFT_CHAIN, 3, 8);
	controller_choose(&c, s, 2, 1);
	assert_true(s[1].shape.width == 1 && s[1].shape.depth == 3 && s[1].shape.nodes == 3);
	controller_init(&c, DRAFT_TREE, 3, 8);
	controller_choose(&c, s, 2, 1);
	assert_true(s[1].shape.width == TREE_WIDTH && s[1].shape.depth == 3 && s[1].shape.nodes == 8);
	controller_init(&c, DRAFT_AUTO, 3, 8);
	int first = controller_key(&c, 1, "a");
	for (uint32_t v = 2; v < 500; v++) { /* more than there is room for: the longest unused give way */
		char name[8];
		c.clock++;
		snprintf(name, sizeof name, "%u", v % 7);
		int k = controller_key(&c, v, name);
		assert_true(k >= 0 && k < CTL_KEYS);
		assert_int_equal(controller_key(&c, v, name), k);
		c.clock++;
		assert_int_equal(controller_key(&c, 1, "a"), first);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_steady), cmocka_unit_test(test_shifts), cmocka_unit_test(test_from_the_start),
					   cmocka_unit_test(test_two_domains), cmocka_unit_test(test_chain_share), cmocka_unit_test(test_fixed_and_keys)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
