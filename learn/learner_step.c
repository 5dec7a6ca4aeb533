/* One step of the learner (learn/learner.h): choosing what to train, and training it.
 *
 * What a step trains is drawn from a counter random number keyed by (seed, step):
 * the oldest queued run, or, for a share of the draws and whenever nothing new
 * waits, a run of the pool that was not trained max_epochs times yet: a domain first, then one of its runs.
 * Further runs are drawn the same way while they fit into pack_rows, so that a step mixes new and old, its
 * gradient is less one request's, and what an optimizer costs by the step is shared by more rows. Where ranks are
 * several groups, a step takes for each what one process would take.
 */
#include "learn/learner.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "daemon/base/mix.h"
#include "kernels/comm.h"
#include "learn/keep.h"

enum { MAX_REPLAY_DOMAINS = 32 };

struct window { /* of a run: rows [row0, row0+n) */
	struct run *r;
	int row0, n;
};

/* ---- choosing ---- */

/* Counter random numbers of (seed, step, place in the step, stream). */
static uint64_t draw(const struct learner *l, int place, uint64_t stream)
{
	return mix64(l->o.seed + MIX_GOLDEN * ((uint64_t)l->step * 4 + stream + 1) + MIX_OTHER * (uint64_t)place);
}

/* A run of the pool: first a domain, each as likely as another whatever its traffic, then one of its runs. NULL: none. */
static struct run *replay(struct learner *l, int place)
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
	const char *chosen = domain[draw(l, place, 2) % n];
	for (int i = 0; i < l->runs.n; i++)
		runs += keep_replayable(l, &l->runs.v[i]) && strcmp(l->runs.v[i].domain, chosen) == 0;
	uint64_t pick = draw(l, place, 1) % runs;
	for (int i = 0; i < l->runs.n; i++)
		if (keep_replayable(l, &l->runs.v[i]) && strcmp(l->runs.v[i].domain, chosen) == 0 && pick-- == 0)
			return &l->runs.v[i];
	return NULL;
}

/* What the next step trains at this place of it (0: first). 1, or 0: nothing. Changes nothing. */
static int choose(struct learner *l, int place, struct window *ret)
{
	struct run *cur = l->cur_run ? runs_find(&l->runs, l->cur_run) : NULL, *queued = NULL;
	uint64_t n = 0;
	bool goes_on = cur && !cur->bad && cur->state == RUN_TRAINED && l->cur_row > cur->first && l->cur_row + BATCH_MIN_ROWS <= cur->n;
	for (int i = 0; i < l->runs.n && !goes_on; i++) {
		struct run *r = &l->runs.v[i];
		if (r->state == RUN_QUEUED && !queued)
			queued = r;
		n += keep_replayable(l, r);
	}
	double u = (double)(draw(l, place, 0) >> 11) * 0x1p-53;
	struct run *r = goes_on ? cur : queued && !(n && u < l->o.replay_share / (1 << (l->drift < 3 ? l->drift : 3))) ? queued : n ? replay(l, place) : NULL;
	if (!r)
		return 0;
	int row0 = goes_on ? l->cur_row : r->first;
	*ret = (struct window){r, row0, r->n - row0 < l->o.max_rows ? r->n - row0 : l->o.max_rows};
	return 1;
}

/* What the next step trains, noted as trained: windows while there is room. No rows are in it twice; a long run's next window may follow
 * its last. Returns how many. */
static int take(struct learner *l, struct window *ret /* [BATCH_MOST_RUNS] */)
{
	int n = 0;
	struct step_room room = {.groups = l->o.train.data, .rows = l->o.pack_rows < l->o.max_rows ? l->o.pack_rows : l->o.max_rows};
	struct window w;
	while (n < BATCH_MOST_RUNS && choose(l, n, &w)) {
		bool there = false;
		for (int i = 0; i < n; i++)
			there |= ret[i].r == w.r && w.row0 == w.r->first;
		if (there || !step_takes(&room, w.n))
			break;
		if (w.row0 == w.r->first) {
			w.r->state = RUN_TRAINED;
			w.r->epochs++;
		}
		l->cur_run = w.r->id;
		l->cur_row = w.row0 + w.n;
		ret[n++] = w;
	}
	return n;
}

bool learner_can_step(struct learner *l)
{
	struct window w;
	return l->t && !l->paused && choose(l, 0, &w);
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

/* History that cannot be read is done without. */
static int load_window(struct learner *l, struct run *r, int row0, int n, struct joined *ret)
{
	struct history h;
	history_find(&l->runs, &l->join, r, &h);
	int k = joined_load_window(l->pool, &h, l->o.history_rows, r, row0, n, (uint32_t)l->fz->V, ret);
	if (k != -EIO || !h.n || l->o.history_rows <= row0)
		return k;
	l->n.history_damaged++;
	return joined_load_window(l->pool, NULL, l->o.history_rows, r, row0, n, (uint32_t)l->fz->V, ret);
}

/* Not a run's fault: another process takes this step. */
static bool fatal(const struct learner *l, int r)
{
	return r == -ENOMEM || comm_lost(r) || (r < 0 && l->d->lost);
}

static void spoilt(struct learner *l, struct window *w)
{
	w->r->bad = true; /* never chosen again */
	l->n.steps_bad++;
}

/* The windows into a batch; those that cannot be read are left out. *ret_rows: without what leads up to them. */
static int build(struct learner *l, struct window *w, int n, struct train_batch *ret, int *ret_rows, int *ret_weighted)
{
	int rows = 0;
	batch_begin(&l->batcher);
	for (int i = 0; i < n; i++) {
		struct joined j = {0};
		int k = load_window(l, w[i].r, w[i].row0, w[i].n, &j), at = j.history + w[i].row0 - j.from, lead = at < l->o.history_rows ? at : l->o.history_rows;
		if (!k)
			k = batch_add(&l->batcher, &j, at - lead, lead + w[i].n, lead);
		joined_done(&j);
		if (fatal(l, k))
			return k;
		if (k)
			spoilt(l, &w[i]);
		else
			rows += w[i].n;
	}
	batch_end(&l->batcher, ret, ret_weighted);
	*ret_rows = rows;
	return 0;
}

/* Trains n windows as one step. Non-finite or far off together, they are taken one by one, so that one spoils no other; alone, such a
 * window is left out, and its run is never chosen again unless it was merely far off. */
static int train(struct learner *l, struct window *w, int n)
{
	struct train_batch b;
	struct train_result res = {0};
	int rows = 0, weighted = 0, k = build(l, w, n, &b, &rows, &weighted);
	if (k || !rows)
		return k;
	/* Most kinds of loss are a mean over all rows. per_row: as if there were no lead, for people; per_weighted: over the rows with weight, for
	 * what is usual, or a run whose rows are taught more densely than others' would pass for a spike. */
	bool over_all = l->o.train.loss != LOSS_LK_ALPHA && l->o.train.loss != LOSS_LK_LAMBDA;
	double per_row = over_all ? (double)b.n / (double)rows : 1, per_weighted = over_all && weighted ? (double)b.n / (double)weighted : 1;
	b.loss_max = loss_limit(l) / per_weighted;
	if (weighted)
		k = l->o.kind->step(l->t, &b, &res);
	else
		l->n.steps_empty++;
	if (fatal(l, k))
		return k;
	if (k && n > 1) {
		for (k = 0; n > 0 && !k; n--, w++)
			k = w->r->bad ? 0 : train(l, w, 1);
		return k;
	}
	double each = res.loss * per_weighted;
	res.loss *= per_row;
	if (k == 1 && isfinite(res.loss) && isfinite(res.grad_norm)) { /* far off, yet a number: this step is left out, the run is not */
		l->n.steps_spike++;
		note_usual(l, each);
	} else if (k) {
		spoilt(l, w);
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
	int ranks = t->ranks ? t->ranks->size : 1, ulysses = ranks > 1 && t->ulysses > 1 ? t->ulysses : 1, data = ranks > 1 && t->data > 1 ? t->data : 1;
	if (l->o.grid[0] == ranks && l->o.grid[1] == ulysses && l->o.grid[2] == data)
		return 0;
	return errtext_set(e, -EINVAL, "journal: step %" PRId64 " was taken by %d ranks with ulysses %d and data %d, and these are %d with %d and %d: start once as it was", step,
			   l->o.grid[0], l->o.grid[1], l->o.grid[2], ranks, ulysses, data);
}

int learner_apply_step(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	struct window w[BATCH_MOST_RUNS];
	if (!l->t || x->number != l->step || !choose(l, 0, w))
		return errtext_set(e, -EINVAL, "journal: step %" PRId64 " does not follow from what came before it (step %" PRId64 ")", x->number, l->step);
	int k = same_grid(l, x->number, e);
	if (k)
		return k;
	l->elsewhere += strcmp(l->o.device, l->device) != 0; /* a live step's options name this one */
	k = train(l, w, take(l, w));
	if (k)
		return errtext_set(e, k, "step %" PRId64 ": %s", l->step, comm_lost(k) && l->o.train.ranks ? l->o.train.ranks->error : (l->d->lost || k == -ENOMEM) && *l->d->error ? l->d->error : strerror(-k));
	l->step++;
	return 0;
}
