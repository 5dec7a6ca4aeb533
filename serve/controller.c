/* Accounts, expectations, choice (controller.h). */
#include <math.h>
#include <string.h>
#include "serve/controller.h"
#include "serve/pages.h"

static const int sizes[CTL_SIZES] = {4, 6, 8, 12, 16};
#define DECAY 0.99        /* a try's weight after the next one: about the last hundred count */
#define DECAY_RARE 0.96   /* ... of what is tried so rarely that fewer have to do */
#define FIRST_GUESS 0.6   /* of a position that was never tried: hopeful, so that it is */
#define GUESS_WEIGHT 3.0
#define FRESH 500         /* choices for which a cost is believed */
#define SLOPE 0.09        /* what a row adds to a forward of one row, before anything is known */
#define STAY 1.005        /* a new choice must be this much better */

void controller_init(struct controller *c, enum draft_mode mode, int max_depth, int max_nodes)
{
	memset(c, 0, sizeof *c);
	c->mode = mode;
	c->max_depth = max_depth;
	c->max_nodes = max_nodes;
	c->slope = SLOPE;
	c->lever = 0.4;
}

/* ---- cost ---- */

static int bin_of(int rows)
{
	if (rows <= 32)
		return rows - 1;
	int b = 32 + (rows - 33) / 16;
	return b < CTL_BINS ? b : CTL_BINS - 1;
}

static int rows_of(int bin)
{
	return bin < 32 ? bin + 1 : 33 + (bin - 32) * 16 + 8;
}

/* log of the cost of rows, of a forward of one row. A draft's is a guess that its own measurements correct. */
static double shape_of(const struct controller *c, enum ctl_cost what, int rows)
{
	return what == CTL_VERIFY ? log(1 + c->slope * (rows - 1)) : log(0.06 * (1 + SLOPE * (rows - 1)));
}

static bool known(const struct controller *c, enum ctl_cost what, int bin, uint64_t age)
{
	return c->seen[what][bin] && c->clock - c->at[what][bin] < age;
}

/* What every bin is taken to differ by: its own, or drawn between its neighbours. What is old is asked only where nothing is newer. */
static void draw_between(const struct controller *c, enum ctl_cost what, double ret[static CTL_BINS])
{
	uint64_t age = UINT64_MAX;
	int lo = -1;
	for (int i = 0; i < CTL_BINS; i++)
		if (known(c, what, i, FRESH))
			age = FRESH;
	for (int i = 0; i < CTL_BINS; i++) {
		if (!known(c, what, i, age))
			continue;
		ret[i] = c->off[what][i];
		for (int j = lo + 1; j < i; j++) {
			double at = lo < 0 ? 1 : (double)(rows_of(j) - rows_of(lo)) / (rows_of(i) - rows_of(lo));
			ret[j] = lo < 0 ? ret[i] : ret[lo] + at * (ret[i] - ret[lo]);
		}
		lo = i;
	}
	for (int j = lo + 1; j < CTL_BINS; j++)
		ret[j] = lo < 0 ? 0 : ret[lo];
}

/* Before choosing: what costs are believed now. No forward costs more than one of more rows, however the measurements fell. */
static void believe(struct controller *c)
{
	for (int what = 0; what < CTL_COSTS; what++) {
		double *b = c->believed[what];
		draw_between(c, (enum ctl_cost)what, b);
		for (int i = CTL_BINS - 2; i >= 0; i--) {
			double above = shape_of(c, (enum ctl_cost)what, rows_of(i + 1)) + b[i + 1] - shape_of(c, (enum ctl_cost)what, rows_of(i));
			b[i] = b[i] < above ? b[i] : above;
		}
	}
}

double controller_ms(const struct controller *c, enum ctl_cost what, int rows)
{
	return rows < 1 ? 0 : exp(c->load + shape_of(c, what, rows) + c->believed[what][bin_of(rows)]);
}

int controller_extend_rows(double rows, double continuing)
{
	return (int)ceil(continuing + CTL_KEPT * (rows - continuing));
}

static double clip(double x, double most)
{
	return x > most ? most : x < -most ? -most : x;
}

/* The load is everybody's and changes at once, when somebody else computes too. The slope learns only where rows
 * differ from the usual: of one size alone load and slope cannot be told apart. */
static void learn_load(struct controller *c, int rows, double error)
{
	double at = c->slope * (rows - 1) / (1 + c->slope * (rows - 1)), away = at - c->lever;
	c->load += 0.2 * error;
	c->lever += 0.05 * away;
	c->spread += 0.05 * (away * away - c->spread);
	c->slope *= exp(clip(0.05 * error * away / (c->spread + 0.005), 0.1));
}

void controller_cost(struct controller *c, enum ctl_cost what, int rows, double ms)
{
	if (rows < 1 || !(ms > 0))
		return;
	int bin = bin_of(rows), *n = &c->seen[what][bin];
	uint64_t age = c->clock - c->at[what][bin];
	if (!c->any) {
		c->load = log(ms) - shape_of(c, what, rows);
		c->any = true;
	}
	if (!*n || age >= FRESH)
		c->off[what][bin] = c->believed[what][bin];
	double error = log(ms) - c->load - shape_of(c, what, rows) - c->off[what][bin];
	int old = age < 4 ? CTL_SURE : age < 50 ? (int)(200 / age) : 4; /* the longer ago, the less it counts against what is seen now */
	*n = 1 + (*n < old ? *n : old);
	/* What is seen all the time moves little by a round that was held up, or by a change of load, which is followed at once. */
	c->off[what][bin] += clip(error, *n < 12 ? 0.4 : 0.1) / (*n + 1);
	c->at[what][bin] = c->clock;
	if (what == CTL_VERIFY)
		learn_load(c, rows, clip(error, 0.4));
}

/* ---- acceptance ---- */

static void blank(struct ctl_key *k)
{
	for (int i = 0; i < ENGINE_MAX_K; i++) {
		k->chain[i] = (struct ctl_rate){GUESS_WEIGHT * FIRST_GUESS, GUESS_WEIGHT};
		for (int n = 0; n < CTL_SIZES; n++)
			k->tree[n][i] = (struct ctl_rate){GUESS_WEIGHT * (FIRST_GUESS + 0.05 * n), GUESS_WEIGHT};
	}
}

/* Taken over, but quickly overruled */
static void inherit(struct ctl_rate *r, int n)
{
	for (int i = 0; i < n; i++)
		if (r[i].tries > 4 * GUESS_WEIGHT) {
			r[i].hits *= 4 * GUESS_WEIGHT / r[i].tries;
			r[i].tries = 4 * GUESS_WEIGHT;
		}
}

int controller_key(struct controller *c, uint32_t version, const char *domain)
{
	uint32_t h = 2166136261u;
	int place = 0, kin = -1;
	for (; *domain; domain++)
		h = (h ^ (uint8_t)*domain) * 16777619u;
	for (int i = 0; i < CTL_KEYS; i++) {
		struct ctl_key *k = &c->key[i];
		if (k->version == version && k->domain == h) {
			k->used = c->clock;
			return i;
		}
		if (k->version && k->domain == h && (kin < 0 || k->used > c->key[kin].used))
			kin = i;
		if (!k->version || (c->key[place].version && k->used < c->key[place].used))
			place = c->key[place].version ? i : place;
	}
	struct ctl_key k = {0};
	blank(&k);
	if (kin >= 0) {
		k = c->key[kin];
		inherit(k.chain, ENGINE_MAX_K);
		inherit(k.tree[0], CTL_SIZES * ENGINE_MAX_K);
	}
	k.version = version;
	k.domain = h;
	k.used = c->clock;
	k.rounds = k.since_probe = k.probes = 0;
	k.measured = k.expected = 0;
	c->key[place] = k;
	return place;
}

static void try(struct ctl_rate *r, bool hit, double decay)
{
	r->hits = r->hits * decay + hit;
	r->tries = r->tries * decay + 1;
}

const struct ctl_key *controller_last(const struct controller *c, uint32_t version)
{
	const struct ctl_key *last = NULL;
	for (int i = 0; i < CTL_KEYS && version; i++)
		if (c->key[i].version == version && (!last || c->key[i].used > last->used))
			last = &c->key[i];
	return last;
}

/* Of a table that was last tried at *at */
static double decay_of(const struct controller *c, uint64_t *at)
{
	if (!at)
		return DECAY;
	double d = pow(DECAY, 1 + (double)(c->clock - *at) / 8);
	*at = c->clock;
	return d > DECAY_RARE ? d : DECAY_RARE;
}

static double rate(const struct ctl_rate *r)
{
	return r->tries > 0 ? r->hits / r->tries : 0;
}

double controller_gain(const struct controller *c, int key, struct draft_shape h)
{
	const struct ctl_key *k = &c->key[key];
	const struct ctl_rate *r = k->chain;
	double reach = 1, gain = 0;
	if (h.width > 1) {
		int n = 0;
		while (n + 1 < CTL_SIZES && sizes[n + 1] <= h.nodes)
			n++;
		r = k->tree[n];
	}
	for (int i = 0; i < h.depth; i++)
		gain += reach *= rate(&r[i]);
	return gain;
}

void controller_outcome(struct controller *c, int key, struct draft_shape h, const int16_t *parent, const uint8_t *rank, int n,
			const int *path, int accepted, bool ended)
{
	struct ctl_key *k = &c->key[key];
	int straight = 0; /* nodes of the surest path */
	double decay = decay_of(c, &k->chain_at);
	if (n < 1)
		return;
	while (straight < n && parent[straight] == straight - 1)
		straight++;
	bool full = n >= h.nodes; /* the path ended because others were surer: a chain would have gone on, and mostly in vain */
	for (int d = 0; d < h.depth && (d < straight || full); d++) {
		bool hit = d < straight && d < accepted && path[d] == d;
		try(&k->chain[d], hit, decay);
		if (!hit || (ended && d + 1 == accepted))
			break;
	}
	decay = decay_of(c, h.width > 1 ? &k->tree_at : NULL);
	for (int size = 0; h.width > 1 && size < CTL_SIZES && sizes[size] <= h.nodes; size++)
		for (int d = 0; d < h.depth; d++) {
			bool hit = d < accepted && rank[path[d]] < sizes[size];
			try(&k->tree[size][d], hit, decay);
			if (!hit || (ended && d + 1 == accepted))
				break;
		}
	k->measured += (k->measured > 0 ? 0.05 : 1) * (1 + accepted - k->measured);
	double want = 1 + controller_gain(c, key, h);
	k->expected += (k->expected > 0 ? 0.05 : 1) * (want - k->expected);
}

/* ---- choice ---- */

static int level_rows(struct draft_shape h)
{
	return h.width == 1 ? 1 : h.nodes / 2 < h.width ? (h.nodes + 1) / 2 : h.width;
}

struct outlook { double ms, tokens; };

/* What a round with these shapes costs and brings */
static struct outlook round_of(const struct controller *c, const struct ctl_session *s, int n, int plain)
{
	int rows = plain, deepest = 0, drafting = 0;
	double fresh = 0, kept = 0; /* rows to extend at once; of those that are extended a page at a time */
	for (int i = 0; i < n; i++) {
		struct draft_shape h = s[i].shape;
		rows += 1 + (h.depth ? h.nodes : 0);
		drafting += h.depth > 0;
		if (h.depth)
			fresh += 1 + controller_gain(c, s[i].key, h);
		else
			kept++;
		deepest = h.depth > deepest ? h.depth : deepest;
	}
	double ms = controller_ms(c, CTL_VERIFY, rows) + controller_ms(c, CTL_EXTEND, controller_extend_rows(fresh, drafting)) +
		    kept / PAGE_TOK * controller_ms(c, CTL_EXTEND, controller_extend_rows(PAGE_TOK, 0));
	for (int level = 1; level < deepest; level++) {
		int m = 0;
		for (int i = 0; i < n; i++)
			m += level < s[i].shape.depth ? level_rows(s[i].shape) : 0;
		ms += controller_ms(c, CTL_STEP, m);
	}
	return (struct outlook){.ms = ms, .tokens = plain + kept + fresh};
}

static double tokens_per_ms(const struct controller *c, const struct ctl_session *s, int n, int plain)
{
	struct outlook o = round_of(c, s, n, plain);
	return o.tokens / o.ms;
}

static void give(struct ctl_session *s, int n, int key, struct draft_shape h)
{
	for (int i = 0; i < n; i++)
		if (s[i].key == key)
			s[i].shape = h;
}

/* The i-th shape there is; false past the last. chains_only: only those. */
static bool shape_at(const struct controller *c, int i, bool chains_only, struct draft_shape *ret)
{
	if (i <= c->max_depth) {
		*ret = (struct draft_shape){1, i, i};
		return true;
	}
	i -= c->max_depth + 1;
	int depth = 1 + i / CTL_SIZES, nodes = sizes[i % CTL_SIZES];
	if (chains_only || depth > c->max_depth)
		return false;
	*ret = (struct draft_shape){TREE_WIDTH, depth, nodes};
	if (nodes > c->max_nodes)
		*ret = (struct draft_shape){1, 0, 0}; /* none */
	return true;
}

static struct draft_shape best_for(const struct controller *c, struct ctl_session *s, int n, int plain, int key, bool chains_only)
{
	struct draft_shape best = c->key[key].best, h;
	if (chains_only && best.width > 1)
		best = (struct draft_shape){1, 1, 1};
	give(s, n, key, best);
	double most = tokens_per_ms(c, s, n, plain) * STAY;
	for (int i = 0; shape_at(c, i, chains_only, &h); i++) {
		if (chains_only && i == 0)
			continue;
		give(s, n, key, h);
		double now = tokens_per_ms(c, s, n, plain);
		if (now > most) {
			most = now;
			best = h;
		}
	}
	give(s, n, key, best);
	return best;
}

/* A look at what is not chosen. While nothing is proposed mostly a cheap one; else by turns the largest, which tells of all that
 * is smaller, and nothing at all, whose cost is not known otherwise. */
static struct draft_shape probe_shape(const struct controller *c, const struct ctl_key *k)
{
	if (!k->best.depth && k->probes % 4 != 3) {
		int d = c->max_depth < 2 ? c->max_depth : 2;
		return (struct draft_shape){1, d, d};
	}
	if (k->best.depth && k->probes % 2)
		return (struct draft_shape){1, 0, 0};
	if (c->max_nodes > c->max_depth && c->max_nodes >= sizes[0])
		return (struct draft_shape){TREE_WIDTH, c->max_depth, c->max_nodes};
	return (struct draft_shape){1, c->max_depth, c->max_depth};
}

static void maybe_probe(struct controller *c, struct ctl_session *s, int n, int plain)
{
	struct outlook chosen = round_of(c, s, n, plain);
	struct ctl_key *k = NULL;
	c->budget += CTL_PROBE_SHARE * chosen.ms;
	for (int i = 0; i < n; i++)
		if (!k || c->key[s[i].key].since_probe > k->since_probe)
			k = &c->key[s[i].key];
	if (!k || k->since_probe * (n < 6 ? n : 6) < CTL_LEAST_GAP)
		return;
	/* What is accepted one session of the key shows, the others go on; what a round without proposals costs only all together. */
	struct ctl_session keep[ENGINE_MAX_SEQS];
	struct draft_shape h = probe_shape(c, k);
	bool was_off = !k->best.depth, one = false;
	memcpy(keep, s, (size_t)n * sizeof *s);
	for (int i = 0; i < n && !one; i++)
		if (&c->key[s[i].key] == k) {
			s[i].shape = h;
			one = h.depth > 0;
		}
	struct outlook probe = round_of(c, s, n, plain);
	double lost = probe.ms - probe.tokens * chosen.ms / chosen.tokens;
	lost = (lost > 0 ? lost : 0) + (was_off ? controller_ms(c, CTL_EXTEND, controller_extend_rows(PAGE_TOK / 2, 1)) : 0);
	if (c->budget < lost) {
		memcpy(s, keep, (size_t)n * sizeof *s);
		return;
	}
	c->budget -= lost;
	k->since_probe = 0;
	k->probes++;
}

void controller_choose(struct controller *c, struct ctl_session *s, int n, int plain)
{
	bool done[CTL_KEYS] = {false}, chains = false;
	c->clock++;
	if (c->mode != DRAFT_AUTO || !n) {
		struct draft_shape h = c->mode == DRAFT_TREE ? (struct draft_shape){TREE_WIDTH, c->max_depth, c->max_nodes} :
				       c->mode == DRAFT_OFF ? (struct draft_shape){1, 0, 0} : (struct draft_shape){1, c->max_depth, c->max_depth};
		for (int i = 0; i < n; i++)
			s[i].shape = c->key[s[i].key].best = h;
		return;
	}
	believe(c);
	for (int i = 0; i < n; i++)
		s[i].shape = c->key[s[i].key].best;
	for (int i = 0; i < n; i++) {
		struct ctl_key *k = &c->key[s[i].key];
		if (done[s[i].key])
			continue;
		done[s[i].key] = true;
		k->since_probe++;
		k->best = best_for(c, s, n, plain, s[i].key, false);
		if (k->best.depth && k->best.width > 1 && ++k->rounds % CTL_CHAIN_EVERY == 0) {
			struct draft_shape tree = k->best;
			give(s, n, s[i].key, best_for(c, s, n, plain, s[i].key, true));
			k->best = tree;
			chains = true;
		}
	}
	if (!chains) /* a round for the replay is not spent on a probe */
		maybe_probe(c, s, n, plain);
	double most = 3 * controller_ms(c, CTL_VERIFY, n + plain + c->max_nodes);
	c->budget = c->budget < most ? c->budget : most;
}
