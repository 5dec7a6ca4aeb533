/* One step of the learner (learn/learner.h): choosing what to train, and training it.
 *
 * What a step trains is drawn from a counter random number keyed by (seed, step):
 * the oldest queued run, or, for a share of the steps and whenever nothing new
 * waits, a run of the pool that was not trained max_epochs times yet: a domain first, then one of its runs.
 */
#include "learn/learner.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/comm.h"
#include "learn/keep.h"

enum { MIN_WINDOW = 8, MAX_REPLAY_DOMAINS = 32, ROUND_REACH = 256 /* rows from a round's first to the one it was refused at, and more */ };

/* ---- choosing ---- */

/* Counter random numbers: splitmix64's finalizer over (seed, step, stream). */
static uint64_t draw(uint64_t seed, int64_t step, uint64_t stream)
{
	uint64_t x = seed + 0x9e3779b97f4a7c15u * ((uint64_t)step * 4 + stream + 1);
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* A run of the pool: first a domain, each as likely as another whatever its traffic, then one of its runs. NULL: none. */
static struct run *replay(struct learner *l)
{
	const char *domain[MAX_REPLAY_DOMAINS];
	uint64_t n = 0, runs = 0;
	for (int i = 0; i < l->runs.n; i++) {
		uint64_t k = 0;
		if (!keep_replayable(l, &l->runs.v[i]))
			continue;
		while (k < n && strcmp(domain[k], l->runs.v[i].domain) != 0)
			k++;
		if (k == n && n < MAX_REPLAY_DOMAINS)
			domain[n++] = l->runs.v[i].domain;
	}
	if (!n)
		return NULL;
	const char *chosen = domain[draw(l->o.seed, l->step, 2) % n];
	for (int i = 0; i < l->runs.n; i++)
		runs += keep_replayable(l, &l->runs.v[i]) && strcmp(l->runs.v[i].domain, chosen) == 0;
	uint64_t pick = draw(l->o.seed, l->step, 1) % runs;
	for (int i = 0; i < l->runs.n; i++)
		if (keep_replayable(l, &l->runs.v[i]) && strcmp(l->runs.v[i].domain, chosen) == 0 && pick-- == 0)
			return &l->runs.v[i];
	return NULL;
}

/* The run that the next step trains, or NULL; *ret_row0: its first row. Changes nothing. */
static struct run *choose(struct learner *l, int *ret_row0)
{
	struct run *cur = l->cur_run ? runs_find(&l->runs, l->cur_run) : NULL, *queued = NULL;
	uint64_t n = 0;
	if (cur && !cur->bad && cur->state == RUN_TRAINED && l->cur_row > cur->first && l->cur_row + MIN_WINDOW <= cur->n) {
		*ret_row0 = l->cur_row;
		return cur;
	}
	for (int i = 0; i < l->runs.n; i++) {
		struct run *r = &l->runs.v[i];
		if (r->state == RUN_QUEUED && !queued)
			queued = r;
		n += keep_replayable(l, r);
	}
	double u = (double)(draw(l->o.seed, l->step, 0) >> 11) * 0x1p-53;
	struct run *chosen = queued && !(n && u < l->o.replay_share / (1 << (l->drift < 3 ? l->drift : 3))) ? queued : n ? replay(l) : NULL;
	*ret_row0 = chosen ? chosen->first : 0;
	return chosen;
}

bool learner_can_step(struct learner *l)
{
	int row0;
	return l->t && !l->paused && choose(l, &row0);
}

int learner_count(const struct learner *l, enum run_state s)
{
	int n = 0;
	for (int i = 0; i < l->runs.n; i++)
		n += l->runs.v[i].state == s;
	return n;
}

/* ---- one step ---- */

/* After a step: the masters towards the anchor; then the average follows them, fast at first, so that it forgets the start. */
static int settle(struct learner *l)
{
	size_t N = l->o.kind->n_params(l->t);
	real *w = l->anchor || l->average ? l->o.kind->params(l->t) : NULL;
	if (!l->anchor && !l->average)
		return 0;
	if (!w)
		return -ENOMEM;
	bool pull = l->anchor && l->anchored;
	for (size_t i = 0; pull && i < N; i++)
		w[i] += (real)l->o.anchor * (l->anchor[i] - w[i]);
	if (pull)
		l->o.kind->params_changed(l->t);
	double n = (double)++l->averaged, decay = l->o.ema < n / (n + 10) ? l->o.ema : n / (n + 10);
	for (size_t i = 0; l->average && i < N; i++)
		l->average[i] = (real)(decay * (double)l->average[i] + (1 - decay) * (double)w[i]);
	return 0;
}

const real *learner_draft(const struct learner *l)
{
	return l->average ? l->average : l->o.kind->params(l->t);
}

enum { USUAL_AFTER = 20, USUAL_OVER = 50 };

/* What a window's loss may be. What is above is cut to it in the mean, so that a change that lasts is let through in the end. */
static double loss_limit(const struct learner *l)
{
	return l->o.spike > 0 && l->losses >= USUAL_AFTER ? l->o.spike * l->usual_loss : 0;
}

static void note_usual(struct learner *l, double loss)
{
	double limit = loss_limit(l), x = limit > 0 && !(loss < limit) ? limit : loss;
	if (!isfinite(x))
		return;
	l->losses += l->losses < USUAL_OVER;
	l->usual_loss += (x - l->usual_loss) / (double)l->losses;
}

static void note(struct learner *l, const struct train_result *r)
{
	bool first = l->n.trained_tokens == 0;
	l->last = *r;
	l->n.trained_tokens += r->tokens;
	if (isfinite(r->loss) && isfinite(r->step_acc[0])) {
		l->loss_mean = first ? r->loss : 0.95 * l->loss_mean + 0.05 * r->loss;
		l->acc_mean = first ? r->step_acc[0] : 0.95 * l->acc_mean + 0.05 * r->step_acc[0];
	}
}

/* Rows [row0, row0+n) of the run behind as much of their history as a step takes, and the two behind them, which teach the last.
 * History that cannot be read is done without. */
static int load_window(struct learner *l, struct run *r, int row0, int n, struct joined *ret)
{
	struct history h;
	int want = l->o.history_rows - row0, lo = row0 - l->o.history_rows - ROUND_REACH, hi = row0 + n + 2;
	history_find(&l->runs, &l->join, r, &h);
	int k = joined_load_rows(l->pool, &h, want, r, lo, hi, (uint32_t)l->fz->V, ret);
	if (k != -EIO || !h.n || want <= 0)
		return k;
	l->n.history_damaged++;
	return joined_load_rows(l->pool, NULL, 0, r, lo, hi, (uint32_t)l->fz->V, ret);
}

/* Train rows [row0, row0+n) of a run. A run that cannot be read or gives a non-finite step is never chosen again. */
static int train(struct learner *l, struct run *r, int row0, int n)
{
	struct joined j = {0};
	struct train_batch b;
	struct train_result res = {0};
	int weighted = 0, k = load_window(l, r, row0, n, &j);
	int at = j.history + row0 - j.from, lead = at < l->o.history_rows ? at : l->o.history_rows;
	if (!k)
		k = batch_build(&l->batcher, &j, at - lead, lead + n, lead, &b, &weighted);
	/* Most kinds of loss are a mean over all rows. per_row: as if there were no lead, for people; per_weighted: over the rows with weight, for
	 * what is usual, or a run whose rows are taught more densely than others' would pass for a spike. */
	bool over_all = l->o.train.loss != LOSS_LK_ALPHA && l->o.train.loss != LOSS_LK_LAMBDA;
	double per_row = over_all ? (double)(lead + n) / (double)n : 1, per_weighted = over_all && weighted ? (double)(lead + n) / (double)weighted : 1;
	b.loss_max = loss_limit(l) / per_weighted;
	if (!k && weighted == 0)
		l->n.steps_empty++;
	else if (!k)
		k = l->o.kind->step(l->t, &b, &res);
	joined_done(&j);
	double each = res.loss * per_weighted;
	res.loss *= per_row;
	if (k == -ENOMEM || comm_lost(k) || (k < 0 && l->d->lost)) /* not the run's fault: another process takes this step */
		return k;
	if (k == 1 && isfinite(res.loss) && isfinite(res.grad_norm)) { /* far off, yet a number: this step is left out, the run is not */
		l->n.steps_spike++;
		note_usual(l, each);
	} else if (k) {
		r->bad = true;
		l->n.steps_bad++;
	} else if (weighted) {
		note(l, &res);
		note_usual(l, each);
		return settle(l);
	}
	return 0;
}

/* Another grid of ranks would come to other bits. */
static int same_grid(const struct learner *l, int64_t step, struct errtext *e)
{
	const struct train_options *t = &l->o.train;
	int ranks = t->ranks ? t->ranks->size : 1, ulysses = ranks > 1 && t->ulysses > 1 ? t->ulysses : 1;
	if (l->o.grid[0] == ranks && l->o.grid[1] == ulysses)
		return 0;
	return errtext_set(e, -EINVAL, "journal: step %" PRId64 " was taken by %d ranks with ulysses %d, and these are %d with %d: start once as it was", step, l->o.grid[0], l->o.grid[1],
			   ranks, ulysses);
}

int learner_apply_step(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	int row0;
	struct run *r = l->t ? choose(l, &row0) : NULL;
	if (!r || x->number != l->step)
		return errtext_set(e, -EINVAL, "journal: step %" PRId64 " does not follow from what came before it (step %" PRId64 ")", x->number, l->step);
	int k = same_grid(l, x->number, e), n = r->n - row0 < l->o.max_rows ? r->n - row0 : l->o.max_rows;
	if (k)
		return k;
	if (row0 == r->first) {
		r->state = RUN_TRAINED;
		r->epochs++;
	}
	l->cur_run = r->id;
	l->cur_row = row0 + n;
	k = train(l, r, row0, n);
	if (k)
		return errtext_set(e, k, "step %" PRId64 ": %s", l->step, comm_lost(k) && l->o.train.ranks ? l->o.train.ranks->error : l->d->lost ? l->d->error : strerror(-k));
	l->step++;
	return 0;
}
