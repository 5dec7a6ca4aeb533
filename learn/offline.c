/* Offline training (learn/offline.h).
 *
 * A lesson is a window of a run; a step trains one, or as many short ones as fill it. Its teacher is worked out
 * once and kept while there is room: in later epochs only the features are read
 * again. Which runs are held out, and the order of each epoch, come from
 * counter random numbers keyed by the seed.
 */
#include "learn/offline_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mix.h"
#include "learn/evaluate.h"
#include "learn/history.h"
#include "learn/init.h"
#include "learn/ttt.h"

static uint64_t draw(uint64_t seed, uint64_t stream, uint64_t i)
{
	return mix64(seed * MIX_GOLDEN + stream * MIX_OTHER + i + 1);
}

/* ---- what is trained, what is judged ---- */

/* Fit to be judged: there from the first token on, and something was generated. */
static bool judgeable(const struct corpus *c, int run)
{
	return c->runs.v[run].n_gen >= 4 && corpus_whole(c, run);
}

/* Of each domain, runs drawn by the seed until it has its share (of its own runs) or its most. */
static int hold_out(struct offline *x)
{
	const struct corpus *c = x->judge ? x->judge : x->corpus;
	const struct runs *all = &c->runs;
	double share = x->judge ? 1 : x->o->heldout_share;
	free(x->held);
	x->held = calloc((size_t)all->n, 1);
	if (!x->held)
		return -ENOMEM;
	for (int i = 0; i < all->n; i++) {
		int of_domain = 0;
		for (int k = 0; k < i; k++)
			of_domain += x->held[k] && strcmp(all->v[k].domain, all->v[i].domain) == 0;
		x->held[i] = judgeable(c, i) && of_domain < x->o->heldout_domain_max && (double)(draw(x->o->seed, 1, (uint64_t)i) >> 11) * 0x1p-53 < share;
	}
	return 0;
}

static bool trained(const struct offline *x, int run)
{
	return x->judge || !x->held[run];
}

/* Rows of a window that have weight, about: without prompts those that were generated, of which a reply's end has most. */
static int weighted_rows(const struct offline *x, const struct run *run, int row0, int n)
{
	int from = x->o->prompt_rows ? 0 : run->n - run->n_gen;
	return row0 + n <= from ? 0 : row0 > from ? n : row0 + n - from;
}

static int make_lessons(struct offline *x, int64_t *ret_rows)
{
	const struct runs *all = &x->corpus->runs;
	int64_t rows = 0;
	int cap = 0;
	for (int i = 0; i < all->n; i++)
		for (int at = all->v[i].first; trained(x, i) && at + BATCH_MIN_ROWS <= all->v[i].n; at += x->o->max_rows) {
			if (x->n_lessons == cap) {
				cap = cap ? 2 * cap : 256;
				struct lesson *v = realloc(x->lesson, (size_t)cap * sizeof *v);
				if (!v)
					return -ENOMEM;
				x->lesson = v;
			}
			int left = all->v[i].n - at, n = left < x->o->max_rows ? left : x->o->max_rows;
			x->lesson[x->n_lessons++] = (struct lesson){.run = i, .row0 = at, .n = n};
			rows += weighted_rows(x, &all->v[i], at, n);
		}
	x->order = malloc(((size_t)x->n_lessons + 1) * sizeof *x->order);
	*ret_rows = rows;
	return x->order ? 0 : -ENOMEM;
}

static void shuffle(struct offline *x, int epoch)
{
	for (int i = 0; i < x->n_lessons; i++)
		x->order[i] = i;
	for (int i = x->n_lessons - 1; i > 0; i--) {
		int k = (int)(draw(x->o->seed, 16 + (uint64_t)epoch, (uint64_t)i) % ((uint64_t)i + 1)), was = x->order[i];
		x->order[i] = x->order[k];
		x->order[k] = was;
	}
}

/* ---- the draft ---- */

static int first_draft(struct offline *x, struct errtext *e)
{
	const struct frozen *fz = x->corpus->fz;
	struct draft *d = &x->draft;
	uint64_t *counts = calloc((size_t)fz->V, sizeof *counts);
	int r = counts ? frozen_draft_config(fz, x->o->draft_vocab, &d->file, e) : -ENOMEM;
	for (int i = 0; i < x->corpus->runs.n && !r; i++)
		if (trained(x, i) && (r = corpus_count(x->corpus, i, counts)) == -EIO)
			r = 0; /* damaged: it will not be trained either */
	if (!r) {
		draft_eagle3_config(&d->file, &d->c);
		d->n = draft_params(&d->c);
		d->d2t = malloc((size_t)d->c.V_d * sizeof *d->d2t);
		d->w = malloc(d->n * sizeof *d->w);
		r = d->d2t && d->w ? draft_vocab_from_counts(counts, fz->V, d->c.V_d, d->d2t) : -ENOMEM;
	}
	if (!r)
		draft_init_warm(&d->c, d->d2t, fz->head, NULL, x->o->seed, d->w);
	free(counts);
	return r;
}

static int copy_draft(struct offline *x, const struct draft *from)
{
	struct draft *d = &x->draft;
	*d = *from;
	d->d2t = malloc((size_t)from->c.V_d * sizeof *d->d2t);
	d->w = malloc(from->n * sizeof *d->w);
	if (!d->d2t || !d->w)
		return -ENOMEM;
	memcpy(d->d2t, from->d2t, (size_t)from->c.V_d * sizeof *d->d2t);
	memcpy(d->w, from->w, from->n * sizeof *d->w);
	return 0;
}

static struct step_room empty(const struct offline *x)
{
	return (struct step_room){.groups = x->o->train.data, .rows = x->o->pack_rows};
}

/* Steps that all lessons take once, in the order of the corpus; in another order it is about as many. */
static int64_t packs(const struct offline *x)
{
	int64_t n = 0;
	struct step_room room = empty(x);
	for (int i = 0; i < x->n_lessons; i++) {
		if (n && step_takes(&room, x->lesson[i].n))
			continue;
		n++;
		room = empty(x);
		(void)step_takes(&room, x->lesson[i].n);
	}
	return n;
}

static int begin(struct offline *x, const struct draft *start, int64_t rows, struct errtext *e)
{
	const struct offline_options *o = x->o;
	const struct frozen *fz = x->corpus->fz;
	struct train_options t = o->train;
	double again = o->stream ? 1 / (1 - o->replay_share) : o->epochs;
	int64_t all = (int64_t)((double)rows * again), most = o->tokens && o->tokens < all ? o->tokens : all;
	x->rep.tokens_total = most;
	x->rep.steps = (int64_t)ceil((double)packs(x) * again * ((double)most / (double)(all ? all : 1)));
	t.total_steps = o->cosine ? x->rep.steps + 1 : 0;
	int r = start ? copy_draft(x, start) : first_draft(x, e);
	if (!r)
		r = batcher_init(&x->batcher, x->d, fz, o->prompt_rows, e);
	x->batcher.whole_teacher = o->whole_teacher;
	if (!r)
		r = batcher_set_vocab(&x->batcher, x->draft.d2t, x->draft.c.V_d);
	if (!r)
		r = o->kind->new(x->d, &x->draft.c, &t, x->draft.d2t, fz->embedding, &x->t, e);
	real *w = r ? NULL : o->kind->params(x->t);
	if (!r && !w)
		r = -ENOMEM;
	if (!r) {
		memcpy(w, x->draft.w, x->draft.n * sizeof *w);
		o->kind->params_changed(x->t);
	}
	return r;
}

/* The average follows the masters: fast at first, so that it forgets the start. */
static int follow(struct offline *x)
{
	double n = (double)x->rep.step, decay = x->o->ema;
	if (decay > n / (n + 10))
		decay = n / (n + 10);
	const real *w = x->o->kind->params(x->t);
	if (!w)
		return -ENOMEM;
	for (size_t i = 0; i < x->draft.n; i++)
		x->draft.w[i] = (real)(decay * (double)x->draft.w[i] + (1 - decay) * (double)w[i]);
	return 0;
}

/* Towards what is not to be forgotten. */
static int pull(struct offline *x)
{
	real *w = x->anchor ? x->o->kind->params(x->t) : NULL;
	if (!x->anchor)
		return 0;
	if (!w)
		return -ENOMEM;
	for (size_t i = 0; i < x->draft.n; i++)
		w[i] += (real)x->o->anchor * (x->anchor[i] - w[i]);
	x->o->kind->params_changed(x->t);
	return 0;
}

static int drop_anchor(struct offline *x)
{
	const real *w = x->o->kind->params(x->t);
	if (!w || !(x->anchor = malloc(x->draft.n * sizeof *w)))
		return -ENOMEM;
	memcpy(x->anchor, w, x->draft.n * sizeof *w);
	return 0;
}

/* ---- judging ---- */

static struct offline_domain *domain_of(struct offline_report *r, const char *name)
{
	for (int i = 0; i < r->n_domains; i++)
		if (strcmp(r->domain[i].name, name) == 0)
			return &r->domain[i];
	if (r->n_domains == OFFLINE_MAX_DOMAINS - 1)
		return &r->domain[r->n_domains - 1];
	struct offline_domain *d = &r->domain[r->n_domains++];
	*d = (struct offline_domain){0};
	(void)snprintf(d->name, sizeof d->name, "%s", name);
	return d;
}

/* A ratio of sums over requests: its deviation by the residuals. v[i]: rounds, accepted of request i where which[i] is d (-1: all). */
static void interval(struct offline_domain *x, int d, const struct replay_result *v, const int *which, int n)
{
	double ratio = x->rounds ? (double)x->accepted / (double)x->rounds : 0, sum = 0;
	for (int i = 0; i < n; i++)
		if (v[i].rounds && (d < 0 || which[i] == d)) {
			double off = (double)v[i].accepted - ratio * (double)v[i].rounds;
			sum += off * off;
		}
	double s = x->requests > 1 && x->rounds ? sqrt(sum * x->requests / (x->requests - 1.0)) / (double)x->rounds : INFINITY;
	x->low = fmax(1, 1 + ratio - 1.96 * s);
	x->high = 1 + ratio + 1.96 * s;
}

static int judge(struct offline *x)
{
	struct corpus *c = x->judge ? x->judge : x->corpus;
	struct offline_report *rep = &x->rep;
	struct replay_result *v = calloc((size_t)c->runs.n, sizeof *v);
	int *which = calloc((size_t)c->runs.n, sizeof *which), r = v && which ? 0 : -ENOMEM;
	rep->n_domains = 0;
	for (int i = 0; i < c->runs.n && !r; i++) {
		struct joined j = {0};
		if (!x->held[i] || (x->o->stop && *x->o->stop > 1) || corpus_load(c, i, HISTORY_MAX_ROWS, &j))
			continue;
		r = evaluate_run(x->d, c->fz, &j, c->runs.v[i].first, &x->draft, x->o->k, &v[i]);
		joined_done(&j);
		if (r || !v[i].rounds)
			continue;
		struct offline_domain *d = domain_of(rep, c->runs.v[i].domain);
		which[i] = (int)(d - rep->domain);
		d->requests++;
		d->rounds += v[i].rounds;
		d->accepted += v[i].accepted;
	}
	struct offline_domain all = {.name = "all"};
	for (int i = 0; i < rep->n_domains && !r; i++) {
		struct offline_domain *d = &rep->domain[i];
		interval(d, i, v, which, c->runs.n);
		all.requests += d->requests;
		all.rounds += d->rounds;
		all.accepted += d->accepted;
	}
	if (!r) {
		interval(&all, -1, v, which, c->runs.n);
		rep->domain[rep->n_domains++] = all;
	}
	free(v);
	free(which);
	return r;
}

static int look(struct offline *x)
{
	int r = 0;
	if (!(x->o->ema > 0)) {
		const real *w = x->o->kind->params(x->t);
		if (!w)
			return -ENOMEM;
		memcpy(x->draft.w, w, x->draft.n * sizeof *w);
	}
	r = judge(x);
	x->rep.evaluated = true;
	if (!r)
		r = x->calls->report(x->calls->arg, &x->rep);
	x->rep.evaluated = false;
	if (!r && x->calls->keep)
		r = x->calls->keep(x->calls->arg, &x->draft, &x->rep);
	x->eval_at = x->rep.tokens + x->o->eval_tokens;
	return !r && x->o->state_dir ? offline_save(x, x->e) : r;
}

/* ---- training ---- */

/* The lesson's window, behind those that the batch has. A run that cannot be read is left out. */
static int add(struct offline *x, struct lesson *l)
{
	struct joined j = {0};
	int r = corpus_load_window(x->corpus, l->run, x->o->history_rows, l->row0, l->n, &j);
	if (r)
		return r == -ENOMEM ? r : 0;
	int at = j.history + l->row0 - j.from, lead = at < x->o->history_rows ? at : x->o->history_rows, n = lead + l->n;
	bool comes_again = x->o->stream ? x->o->replay_share > 0 : x->o->epochs > 1;
	size_t bytes = batch_teacher_bytes(n);
	if (l->kept) {
		r = batch_add_taught(&x->batcher, &j, at - lead, n, l->kept);
	} else {
		r = batch_add(&x->batcher, &j, at - lead, n, lead);
		if (!r && comes_again && x->cached + bytes <= x->o->cache_bytes && (l->kept = batch_teacher_copy(&x->batcher, n)))
			x->cached += bytes;
	}
	joined_done(&j);
	return r == -ENOMEM || (r < 0 && x->d->lost) ? r : 0;
}

/* One step on n lessons. Together non-finite, they are taken one by one, so that one spoils no other. */
static int step(struct offline *x, struct lesson *const *l, int n)
{
	struct train_batch b;
	struct train_result res = {0};
	int weighted = 0, r = 0;
	batch_begin(&x->batcher);
	for (int i = 0; i < n && !r; i++)
		r = add(x, l[i]);
	if (r)
		return r;
	batch_end(&x->batcher, &b, &weighted);
	if (weighted)
		r = x->o->kind->step(x->t, &b, &res);
	if (r == -ENOMEM || comm_lost(r) || (r < 0 && x->d->lost))
		return r;
	if (r && n > 1) {
		for (r = 0; n > 0 && !r; n--, l++)
			r = step(x, l, 1);
		return r;
	}
	if (r || !weighted) /* damaged or non-finite: left out, as online */
		return 0;
	struct offline_report *rep = &x->rep;
	double keep = rep->step ? 0.95 : 0;
	rep->loss = keep * rep->loss + (1 - keep) * res.loss;
	rep->accuracy = keep * rep->accuracy + (1 - keep) * (isfinite(res.step_acc[0]) ? res.step_acc[0] : rep->accuracy);
	rep->tokens += res.tokens;
	rep->step++;
	r = pull(x);
	return !r && x->o->ema > 0 ? follow(x) : r;
}

static bool over(const struct offline *x)
{
	return (x->o->tokens && x->rep.tokens >= x->o->tokens) || (x->o->stop && *x->o->stop);
}

/* The lessons of a step and what is said about it. */
static int one(struct offline *x, struct lesson *const *l, int n)
{
	uint64_t t0 = clock_us();
	int r = step(x, l, n);
	x->spent_us += clock_us() - t0;
	x->rep.seconds = (double)x->spent_us / 1e6;
	if (!r)
		r = x->calls->report(x->calls->arg, &x->rep);
	if (!r && x->o->eval_tokens && x->rep.tokens >= x->eval_at && !over(x))
		r = look(x);
	return r;
}

/* The lesson that comes next, or NULL. Shuffled: of this epoch's order. Stream: in the order in which they came, between them, for a
 * share of the steps, one from before (*ret_again). */
static struct lesson *next(struct offline *x, bool *ret_again)
{
	*ret_again = false;
	if (!x->o->stream) {
		int64_t epoch = x->done / x->n_lessons;
		if (epoch >= x->o->epochs)
			return NULL;
		if (epoch != x->shuffled)
			shuffle(x, (int)epoch);
		x->shuffled = epoch;
		return &x->lesson[x->order[x->done % x->n_lessons]];
	}
	if (x->done >= x->n_lessons)
		return NULL;
	uint64_t i = (uint64_t)x->done, n = (uint64_t)x->turn;
	*ret_again = i > 0 && (double)(draw(x->o->seed, 2, n) >> 11) * 0x1p-53 < x->o->replay_share;
	return &x->lesson[*ret_again ? draw(x->o->seed, 3, n) % i : i];
}

/* A folder's end is looked at; the first one's end is what the anchor holds to. */
static int next_leg(struct offline *x, int leg)
{
	int r = x->done ? look(x) : 0;
	if (!r && x->done && x->o->anchor > 0 && !x->anchor)
		r = drop_anchor(x);
	x->rep.leg = leg;
	return r;
}

/* Steps to the end. A step takes lessons while there is room. */
static int lessons(struct offline *x)
{
	int r = 0;
	while (!r && !over(x)) {
		struct lesson *v[BATCH_MOST_RUNS], *l;
		struct step_room room = empty(x);
		int n = 0;
		bool again;
		while (!r && n < BATCH_MOST_RUNS && (l = next(x, &again))) {
			int leg = x->corpus->pool_of[l->run];
			bool turned = x->o->stream && !again && leg != x->rep.leg;
			if ((n && turned) || !step_takes(&room, l->n))
				break;
			if (turned)
				r = next_leg(x, leg);
			x->done += !again;
			x->turn++;
			v[n++] = l;
		}
		if (!n)
			break;
		if (!r)
			r = one(x, v, n);
	}
	return r;
}

static int train(struct offline *x)
{
	int r = x->o->eval_tokens && !x->done ? look(x) : 0;
	if (!r)
		r = lessons(x);
	return r ? r : look(x);
}

int offline_train(const struct offline_options *o, struct dev *d, struct corpus *corpus, struct corpus *judge_by, const struct draft *start,
		  const struct offline_calls *calls, struct errtext *e)
{
	struct offline x = {.shuffled = -1, .o = o, .d = d, .corpus = corpus, .judge = judge_by, .calls = calls, .e = e};
	int64_t rows = 0;
	trainer_name_device(d, x.rep.device);
	int r = hold_out(&x);
	if (!r)
		r = make_lessons(&x, &rows);
	if (!r && !x.n_lessons)
		r = errtext_set(e, -EINVAL, "nothing to train: every run is held out or shorter than %d rows", BATCH_MIN_ROWS);
	if (!r)
		r = begin(&x, start, rows, e);
	if (!r && start && o->anchor > 0)
		r = drop_anchor(&x);
	if (!r && o->state_dir)
		r = offline_restore(&x, e);
	if (!r)
		r = train(&x);
	for (int i = 0; i < x.n_lessons; i++)
		batch_teacher_free(x.lesson[i].kept);
	if (x.t)
		o->kind->free(x.t);
	batcher_done(&x.batcher);
	draft_done(&x.draft);
	free(x.anchor);
	free(x.lesson);
	free(x.order);
	free(x.held);
	return r;
}
