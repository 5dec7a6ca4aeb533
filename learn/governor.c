/* The governor (learn/governor.h).
 *
 * Serving's tail. A judgement needs rounds enough that the figure is of the time since the last change. Over
 * the objective: the duty is halved, and far over it, or at the least duty already, steps pause. Well under it
 * (0.9 of it) twice running: resume at a low duty, or raise it. Between the two nothing moves. A pause of PAUSE_MAX
 * that changes nothing shows that learning is not the cause: it goes on at the least duty for a while, or it
 * would be starved for another's fault. With nobody served there is nobody to spare.
 *
 * By ratio, the base is measured while nothing is computed: now and then a short pause is made for it (probing). Serving's
 * figure is of its last 128 rounds, so that many must have gone by without us, or the base would be our own tail.
 */
#include "learn/governor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { SETTLE_ROUNDS = 64, MIN_ROWS = 64, NAPS_MAX = 4 };
#define S 1000000u
static const uint64_t idle_us = 5 * S, pause_max_us = 30 * S, spare_us = 60 * S, base_us = 600 * S, probe_max_us = 20 * S, memory_settle_us = 5 * S,
		      memory_grow_us = 600 * S;
#undef S
static const double far_over = 1.5, well_under = 0.9;

const char *governor_word(enum governor_state s)
{
	static const char *const words[] = {"full", "stretched", "paused", "asleep", "refused"};
	return words[s];
}

void governor_init(struct governor *g, const struct governor_options *o, uint64_t now)
{
	*g = (struct governor){.o = *o, .duty = 1, .rows = o->max_rows, .moved_at = now, .memory_at = now};
}

static bool governed(const struct governor *g)
{
	return g->o.tpot_p95_ms > 0 || g->o.tpot_ratio > 0;
}

void governor_set(struct governor *g, const struct governor_options *o)
{
	g->o = *o;
	g->rows = g->rows < o->max_rows && o->memory_bytes ? g->rows : o->max_rows;
	g->duty = g->duty < o->least ? o->least : g->duty;
	g->refused = g->refused && o->memory_bytes;
	g->asleep_until = o->flat_after ? g->asleep_until : 0;
	if (!governed(g)) {
		g->paused = g->probing = false;
		g->duty = 1;
	}
}

double governor_objective(const struct governor *g)
{
	return g->o.tpot_p95_ms > 0 ? g->o.tpot_p95_ms : g->o.tpot_ratio * g->base_ms;
}

/* While drift is reported, more is dared: the least duty doubles with each level. */
static double least(const struct governor *g)
{
	double x = ldexp(g->o.least, g->level < 3 ? g->level : 3);
	return x < 1 ? x : 1;
}

/* ---- serving's tail ---- */

static void pause_steps(struct governor *g, uint64_t now)
{
	g->pauses += !g->paused;
	g->paused_at = g->paused ? g->paused_at : now;
	g->paused = true;
	g->duty = least(g);
}

static void too_slow(struct governor *g, uint64_t now, double objective)
{
	g->calm = 0;
	if (g->paused) {
		if (now - g->paused_at < pause_max_us)
			return;
		g->paused = false; /* it is not us */
		g->spared_until = now + spare_us;
	} else if (now < g->spared_until)
		return;
	else if (g->tpot_ms > far_over * objective || g->duty <= least(g))
		pause_steps(g, now);
	else
		g->duty = fmax(least(g), g->duty / 2);
}

static void fast_enough(struct governor *g)
{
	if (++g->calm < 2)
		return;
	g->calm = 0;
	if (g->paused) {
		g->paused = false;
		g->duty = fmin(1, 2 * least(g));
	} else
		g->duty = fmin(1, fmax(1.5 * g->duty, least(g)));
}

/* Nothing to go by: what was held back comes back. */
static void nobody_waits(struct governor *g, const struct governor_look *look, uint64_t now)
{
	g->seen = *look;
	g->last_rounds = g->worked = look->rounds;
	g->moved_at = now;
	g->paused = g->probing = false;
	g->duty = 1;
	g->calm = 0;
	g->tpot_ms = 0;
}

/* The base by ratio: known, or measured now without us. alone: all rounds that the figure is of were. True: judge nothing yet. */
static bool measure_base(struct governor *g, uint64_t now, bool alone)
{
	if (g->o.tpot_p95_ms > 0 || !(g->o.tpot_ratio > 0))
		return false;
	if (alone && g->tpot_ms > 0) {
		g->base_ms = g->base_ms > 0 ? 0.7 * g->base_ms + 0.3 * g->tpot_ms : g->tpot_ms;
		g->base_at = now;
		g->probing = false;
		return !g->paused;
	}
	if (!g->probing && (g->base_ms <= 0 || now - g->base_at > base_us)) {
		g->probing = true;
		g->paused_at = now;
	} else if (g->probing && now - g->paused_at > probe_max_us) { /* few rounds: later again */
		g->probing = false;
		g->base_at = now;
	}
	return g->probing || g->base_ms <= 0;
}

void governor_saw(struct governor *g, uint64_t now, const struct governor_look *look, bool computed)
{
	bool first = look->there && !g->serving;
	g->serving = look->there;
	if (!look->there || !governed(g) || look->rounds < g->seen.rounds) { /* gone, or another life of it */
		nobody_waits(g, look, now);
		return;
	}
	int64_t rounds = look->rounds - g->seen.rounds, tokens = look->generated - g->seen.generated;
	int64_t enough = (int64_t)SETTLE_ROUNDS * (look->running > 1 ? look->running : 1);
	if (computed || first) /* first: an earlier life of ours may have computed until just now */
		g->worked = look->rounds;
	if (look->rounds != g->last_rounds)
		g->moved_at = now;
	g->last_rounds = look->rounds;
	if (now - g->moved_at > idle_us && !look->running) {
		nobody_waits(g, look, now);
		return;
	}
	if (rounds == 0 || now != g->moved_at)
		return;
	double each = tokens > rounds ? (double)tokens / (double)rounds : 1;
	double tpot = look->round_ms_p95 / each, objective = governor_objective(g);
	bool urgent = !g->paused && objective > 0 && rounds >= enough / 4 && tpot > far_over * objective;
	if (rounds < enough && !urgent)
		return;
	g->tpot_ms = tpot;
	g->seen = *look;
	if (measure_base(g, now, look->rounds - g->worked >= 2 * enough) || !((objective = governor_objective(g)) > 0))
		return;
	if (tpot > objective)
		too_slow(g, now, objective);
	else if (tpot < well_under * objective)
		fast_enough(g);
	else
		g->calm = 0;
}

/* ---- memory ---- */

void governor_memory(struct governor *g, uint64_t now, int64_t rss)
{
	g->rss = rss;
	if (!g->o.memory_bytes)
		return;
	double share = (double)rss / (double)g->o.memory_bytes;
	if (share < 0.9)
		g->refused = false;
	if (share > 1 && now - g->memory_at > memory_settle_us) {
		g->refused = g->refused || g->rows <= MIN_ROWS;
		g->rows = g->rows / 2 > MIN_ROWS ? g->rows / 2 : g->rows < MIN_ROWS ? g->rows : MIN_ROWS;
		g->memory_at = now;
	} else if (share < 0.7 && g->rows < g->o.max_rows && now - g->memory_at > memory_grow_us) {
		g->rows = 2 * g->rows < g->o.max_rows ? 2 * g->rows : g->o.max_rows;
		g->memory_at = now;
	}
}

/* ---- is there anything to gain? ---- */

void governor_judged(struct governor *g, uint64_t now, double gain)
{
	if (!(gain < g->o.flat_gain)) {
		g->flat = g->naps = 0;
		return;
	}
	if (!g->o.flat_after || ++g->flat < g->o.flat_after || g->level > 0)
		return;
	g->asleep_until = now + (g->o.nap_us << g->naps);
	g->naps += g->naps < NAPS_MAX;
	g->flat = g->o.flat_after - 1; /* one more without a gain, and it sleeps again */
	g->sleeps++;
}

void governor_drift(struct governor *g, int level)
{
	g->level = level;
	if (level > 0) {
		g->asleep_until = 0;
		g->flat = g->naps = 0;
	}
}

/* ---- */

enum governor_state governor_state(const struct governor *g, uint64_t now)
{
	return g->refused ? GOVERNOR_REFUSED : g->paused || g->probing ? GOVERNOR_PAUSED : now < g->asleep_until ? GOVERNOR_ASLEEP
	       : g->duty < 1 || g->rows < g->o.max_rows ? GOVERNOR_STRETCHED : GOVERNOR_FULL;
}

bool governor_asleep(const struct governor *g, uint64_t now)
{
	return now < g->asleep_until;
}

bool governor_may_step(const struct governor *g, uint64_t now)
{
	return governor_state(g, now) <= GOVERNOR_STRETCHED;
}

static void say_tail(const struct governor *g, const char *begin, char *ret, size_t size)
{
	(void)snprintf(ret, size, "%s: serving's P95 time per token is %.1f ms, its objective %.1f ms", begin, g->tpot_ms, governor_objective(g));
}

void governor_say(const struct governor *g, uint64_t now, char *ret, size_t size)
{
	char text[64];
	switch (governor_state(g, now)) {
	case GOVERNOR_REFUSED:
		(void)snprintf(ret, size, "no step: memory is %" PRId64 " MiB, its ceiling %" PRIu64 ", and steps of %d rows cannot be made smaller", g->rss >> 20,
			       g->o.memory_bytes >> 20, g->rows);
		break;
	case GOVERNOR_PAUSED:
		if (g->probing && !g->paused)
			(void)snprintf(ret, size, "paused for a moment: measuring serving's P95 time per token without us");
		else
			say_tail(g, "paused", ret, size);
		break;
	case GOVERNOR_ASLEEP:
		(void)snprintf(ret, size, "asleep for another %" PRIu64 " s: %d candidates running gained less than %.3f of accept length", (g->asleep_until - now) / 1000000,
			       g->o.flat_after, g->o.flat_gain);
		break;
	case GOVERNOR_STRETCHED:
		if (g->duty < 1 && now < g->spared_until)
			(void)snprintf(ret, size, "stretched to %.0f %%: serving is over its objective (%.1f ms) whether we learn or not", 100 * g->duty, governor_objective(g));
		else if (g->duty < 1) {
			(void)snprintf(text, sizeof text, "stretched to %.0f %%", 100 * g->duty);
			say_tail(g, text, ret, size);
		} else
			(void)snprintf(ret, size, "steps of %d rows instead of %d: memory was over its ceiling of %" PRIu64 " MiB", g->rows, g->o.max_rows, g->o.memory_bytes >> 20);
		break;
	case GOVERNOR_FULL:
		(void)snprintf(ret, size, "at full speed: %s", !governed(g) ? "no objective is set" : !g->serving ? "the server's status socket does not answer"
			       : g->tpot_ms > 0 ? "serving is within its objective" : "nobody is served");
		break;
	}
}
