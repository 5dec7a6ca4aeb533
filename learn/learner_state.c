/* The learner's state as a checkpoint and back; its options as one journalled line.
 *
 * What is in here decides what is trained next. Whoever adds a field to struct
 * learner that learner_apply reads must add it here too: the test that kills a
 * learner at every crash point finds the ones that were forgotten.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/sha.h"
#include "kernels/comm.h"
#include "learn/learner.h"

/* ---- options ---- */

int learner_print_config(const struct learner_options *o, char *ret, size_t size)
{
	const struct train_options *t = &o->train;
	int n = snprintf(ret, size,
			 "{\"seed\":%" PRIu64 ",\"ttt_steps\":%d,\"decay\":%.9g,\"optimizer\":%d,\"lr\":%.9g,\"muon_lr\":%.9g,\"beta1\":%.9g,"
			 "\"beta2\":%.9g,\"eps\":%.9g,\"clip\":%.9g,\"muon_momentum\":%.9g,\"muon_iters\":%d,\"warmup\":%" PRId64 ",\"total\":%" PRId64 ",\"draft_vocab\":%d,"
			 "\"max_rows\":%d,\"max_epochs\":%d,\"queue_max\":%d,\"heldout\":[%d,%d],\"prompt_rows\":%d,\"replay_share\":%.9g,"
			 "\"pool\":[%" PRIu64 ",%u],\"history_rows\":%d,\"dedup\":%d,\"ema\":%.9g,\"anchor\":%.9g,\"max_scale\":%.9g,\"tenant\":[%.9g,%" PRId64 "],"
			 "\"request_rows\":%" PRId64 ",\"spike\":%.9g,\"reject_weight\":%.9g,\"loss\":%d,\"whole_teacher\":%d,\"pack_rows\":%d,\"first\":%.9g,\"pinned\":%d}",
			 o->seed, t->ttt_steps, (double)t->decay, (int)t->optimizer, (double)t->lr, (double)t->muon_lr, (double)t->beta1,
			 (double)t->beta2, (double)t->eps, (double)t->clip, (double)t->muon_momentum, t->muon_iters, t->warmup_steps, t->total_steps,
			 o->draft_vocab, o->max_rows, o->max_epochs, o->queue_max, o->heldout_max, o->heldout_domain_max, o->prompt_rows,
			 o->replay_share, o->pool_bytes, o->segment_bytes, o->history_rows, o->dedup, o->ema, o->anchor, o->max_scale, o->tenant_share,
			 o->tenant_window, o->request_rows, o->spike, o->reject_weight, (int)t->loss, o->whole_teacher, o->pack_rows, (double)t->first, o->heldout_pinned);
	if (n > 0 && (size_t)n < size && *o->device)
		n += snprintf(ret + n - 1, size - (size_t)n, ",\"device\":\"%s\"}", o->device) - 1;
	if (n > 0 && (size_t)n < size && t->ranks && t->ranks->size > 1) /* their sums have an order of their own */
		n += snprintf(ret + n - 1, size - (size_t)n, ",\"ranks\":[%d,%d],\"data\":%d}", t->ranks->size, t->ulysses > 1 ? t->ulysses : 1, t->data > 1 ? t->data : 1) - 1;
	return n > 0 && (size_t)n < size ? 0 : -E2BIG;
}

static int parse_config(const char *text, struct learner_options *o)
{
	json_int_t seed, warmup, total, pool, segment;
	double decay, lr, muon_lr, beta1, beta2, eps, clip, momentum, first = 1;
	const char *device = "";
	int optimizer, prompt_rows, dedup = 0, loss = LOSS_KL, whole_teacher = 0;
	json_int_t window = 0, request_rows = 0;
	struct train_options *t = &o->train;
	json_t *j = json_loads(text, 0, NULL);
	t->muon_iters = 5; /* of journals that do not say, as all that follows */
	o->history_rows = o->pack_rows = o->heldout_pinned = 0;
	o->ema = o->anchor = o->max_scale = o->spike = o->reject_weight = 0;
	o->tenant_share = 1;
	o->grid[0] = o->grid[1] = o->grid[2] = 1;
	int r = json_unpack(j, "{s:I,s:i,s:F,s:i,s:F,s:F,s:F,s:F,s:F,s:F,s:F,s?i,s:I,s:I,s:i,s:i,s:i,s:i,s:[ii],s:i,s:F,s:[II],s?i,s?i,s?F,s?F,s?F,s?[FI],s?I,s?F,s?F,s?i,s?i,s?[ii],s?i,s?i,s?F,s?s,s?i}", "seed", &seed,
			    "ttt_steps", &t->ttt_steps, "decay", &decay, "optimizer", &optimizer, "lr", &lr, "muon_lr", &muon_lr, "beta1", &beta1,
			    "beta2", &beta2, "eps", &eps, "clip", &clip, "muon_momentum", &momentum, "muon_iters", &t->muon_iters, "warmup", &warmup, "total", &total,
			    "draft_vocab", &o->draft_vocab, "max_rows", &o->max_rows, "max_epochs", &o->max_epochs, "queue_max", &o->queue_max,
			    "heldout", &o->heldout_max, &o->heldout_domain_max, "prompt_rows", &prompt_rows, "replay_share", &o->replay_share,
			    "pool", &pool, &segment, "history_rows", &o->history_rows, "dedup", &dedup, "ema", &o->ema, "anchor", &o->anchor, "max_scale", &o->max_scale,
			    "tenant", &o->tenant_share, &window, "request_rows", &request_rows, "spike", &o->spike, "reject_weight", &o->reject_weight,
			    "loss", &loss, "whole_teacher", &whole_teacher, "ranks", &o->grid[0], &o->grid[1], "data", &o->grid[2], "pack_rows", &o->pack_rows,
			    "first", &first, "device", &device, "pinned", &o->heldout_pinned);
	(void)snprintf(o->device, sizeof o->device, "%s", r ? "" : device);
	json_decref(j);
	if (r)
		return -EINVAL;
	o->seed = (uint64_t)seed;
	t->decay = (real)decay;
	t->optimizer = (enum optimizer_kind)optimizer;
	t->lr = (real)lr;
	t->muon_lr = (real)muon_lr;
	t->beta1 = (real)beta1;
	t->beta2 = (real)beta2;
	t->eps = (real)eps;
	t->clip = (real)clip;
	t->muon_momentum = (real)momentum;
	t->warmup_steps = warmup;
	t->total_steps = total;
	t->first = (real)first;
	t->loss = (enum loss_kind)loss;
	o->prompt_rows = prompt_rows;
	o->whole_teacher = whole_teacher;
	o->pool_bytes = (uint64_t)pool;
	o->segment_bytes = (uint32_t)segment;
	o->dedup = dedup;
	o->tenant_window = window;
	o->request_rows = request_rows;
	return 0;
}

/* ---- the draft ---- */

/* A copy where it is kept at all. *ret NULL: it is not, or no memory. */
static int copy_of(const real *from, size_t n, bool kept, real **ret)
{
	*ret = kept ? malloc(n * sizeof **ret) : NULL;
	if (*ret)
		memcpy(*ret, from, n * sizeof **ret);
	return kept && !*ret ? -ENOMEM : 0;
}

int learner_set_draft(struct learner *l, const struct draft_config *c, const int64_t *d2t, const real *w, const struct learner_beside *beside,
		      struct errtext *e)
{
	static const struct learner_beside anew = {0};
	const struct learner_beside *b = beside ? beside : &anew;
	struct eagle3_config ec;
	struct trainer *t = NULL;
	struct train_options train = l->o.train;
	if (!l->fresh)
		train.first = 1;
	draft_eagle3_config(c, &ec);
	size_t n = draft_params(&ec);
	int64_t *copy = malloc((size_t)ec.V_d * sizeof *copy);
	real *mean = NULL, *anchor = NULL;
	int r = copy ? copy_of(b->average ? b->average : w, n, l->o.ema > 0, &mean) : -ENOMEM;
	if (!r)
		r = copy_of(b->anchor ? b->anchor : w, n, l->o.anchor > 0, &anchor);
	if (copy)
		memcpy(copy, d2t, (size_t)ec.V_d * sizeof *copy);
	if (!r)
		r = l->o.kind->new(l->d, &ec, &train, d2t, l->fz->embedding, &t, e);
	if (!r) {
		memcpy(l->o.kind->params(t), w, l->o.kind->n_params(t) * sizeof *w);
		l->o.kind->params_changed(t);
		r = l->o.kind->load_state(t, b->moments, b->trainer_step);
	}
	if (!r)
		r = batcher_set_vocab(&l->batcher, d2t, ec.V_d);
	if (r) {
		l->o.kind->free(t);
		free(copy);
		free(mean);
		free(anchor);
		return r;
	}
	l->o.kind->free(l->t);
	free(l->d2t);
	free(l->average);
	free(l->anchor);
	l->average = mean;
	l->anchor = anchor;
	l->averaged = b->average ? b->averaged : 0;
	if (!beside) { /* another draft: what was usual of the last one says nothing */
		l->usual_loss = 0;
		l->losses = 0;
	}
	l->t = t;
	l->d2t = copy;
	l->file = *c;
	return 0;
}

/* Options change: the same weights under a new trainer; moments live on where the optimizer does. */
int learner_set_config(struct learner *l, const char *text, struct errtext *e)
{
	struct learner_options before = l->o;
	if (parse_config(text, &l->o))
		return errtext_set(e, -EINVAL, "journal: a config entry cannot be read");
	(void)snprintf(l->config, sizeof l->config, "%s", text);
	if (before.pool_bytes != l->o.pool_bytes || before.segment_bytes != l->o.segment_bytes)
		pool_set_sizes(l->pool, l->o.segment_bytes, l->o.pool_bytes);
	l->batcher.prompt_rows = l->o.prompt_rows;
	l->batcher.reject_weight = l->o.reject_weight > 0 ? l->o.reject_weight : 1;
	if (l->o.max_rows < before.max_rows)
		batcher_trim(&l->batcher);
	l->batcher.whole_teacher = l->o.whole_teacher;
	if (before.train.loss != l->o.train.loss || before.train.ttt_steps != l->o.train.ttt_steps || before.train.decay < l->o.train.decay || before.train.decay > l->o.train.decay) {
		l->usual_loss = 0; /* of another scale */
		l->losses = 0;
	}
	if (!l->t)
		return 0;
	size_t n = l->o.kind->n_params(l->t), m = l->o.kind->n_state(l->t);
	real *w = malloc(n * sizeof *w), *moments = malloc((m + 1) * sizeof *moments), *average = l->average, *anchor = l->anchor;
	int64_t step = 0;
	l->average = l->anchor = NULL; /* they outlive the trainer, where they are still to be kept */
	int r = w && moments ? l->o.kind->save_state(l->t, moments, &step) : -ENOMEM;
	if (!r) {
		memcpy(w, l->o.kind->params(l->t), n * sizeof *w);
		bool same = before.train.optimizer == l->o.train.optimizer;
		const struct learner_beside b = {same ? moments : NULL, average, anchor, same ? step : 0, l->averaged};
		r = learner_set_draft(l, &l->file, l->d2t, w, &b, e);
	}
	free(w);
	free(moments);
	free(average);
	free(anchor);
	return r;
}

/* ---- to a checkpoint ---- */

static json_t *cursors_json(const struct learner *l)
{
	json_t *a = json_array();
	int bad = 0;
	for (int p = 0; p < l->n_parts; p++) {
		const struct cursor *c = &l->at[p];
		json_t *seen = json_array();
		for (int i = 0; i < c->n_seen; i++)
			bad |= json_array_append_new(seen, json_pack("[sI]", c->seen[i].producer, (json_int_t)c->seen[i].seq));
		bad |= json_array_append_new(a, json_pack("{s:I,s:I,s:s,s:I,s:o}", "next", (json_int_t)c->next, "last", (json_int_t)c->last_offset,
							  "producer", c->producer, "seq", (json_int_t)c->seq, "seen", seen));
	}
	if (!bad)
		return a;
	json_decref(a);
	return NULL;
}

static json_t *runs_json(const struct learner *l)
{
	json_t *a = json_array();
	for (int i = 0; i < l->runs.n; i++)
		if (json_array_append_new(a, run_to_json(&l->runs.v[i]))) {
			json_decref(a);
			return NULL;
		}
	return a;
}

enum { N_COUNTS = sizeof(struct learner_counts) / sizeof(int64_t) };
_Static_assert(sizeof(struct learner_counts) % sizeof(int64_t) == 0, "counts are all of one size");

static json_t *counts_json(const struct learner_counts *n)
{
	int64_t v[N_COUNTS];
	json_t *a = json_array();
	memcpy(v, n, sizeof v);
	for (int i = 0; i < N_COUNTS; i++)
		if (json_array_append_new(a, json_integer(v[i]))) { /* a shorter list is an older program's */
			json_decref(a);
			return NULL;
		}
	return a;
}

/* Nothing in it is the learner's: another thread prints and frees it. */
static json_t *state_json(struct learner *l, const char *draft_json, int64_t trainer_step)
{
	struct pool_where w = pool_where(l->pool);
	return json_pack("{s:i,s:s,s:s,s:I,s:I,s:I,s:i,s:I,s:b,s:I,s:I,s:[III],s:s,s:s,s:{s:s,s:s,s:I,s:b,s:o?},s:I,s:I,s:[ff],s:i,s:o,s:o,s:o,s:o,s:s,s:[ii],s:o,s:[If],s:I,s:b,s:b}",
			 "schema", 1, "target_fp", l->fz->target_fp, "config", l->config, "journal", (json_int_t)journal_end(l->journal), "step",
			 (json_int_t)l->step, "cur_run", (json_int_t)l->cur_run, "cur_row", l->cur_row, "base", (json_int_t)l->base, "paused",
			 l->paused, "drift", (json_int_t)l->drift, "counted", (json_int_t)l->counted, "pool", (json_int_t)w.first,
			 (json_int_t)w.segment, (json_int_t)w.offset, "cluster", l->cluster, "draft", draft_json, "pending", "name",
			 l->pending.name, "sha", l->pending.sha, "version", (json_int_t)l->pending.version, "left", (int)l->pending.left, "cut", json_deep_copy(l->pending.cut), "trainer_step",
			 (json_int_t)trainer_step, "published_step", (json_int_t)l->published_step, "means", l->loss_mean, l->acc_mean, "turn",
			 l->turn, "cursors", cursors_json(l), "runs", runs_json(l), "join", join_to_json(&l->join), "counts", counts_json(&l->n),
			 "last_bad", l->last_bad, "aside", l->aside_files, (int)l->aside_bytes, "rules", rules_to_json(&l->rules), "usual_loss",
			 (json_int_t)l->losses, l->usual_loss, "averaged", (json_int_t)l->averaged, "anchored", (int)l->anchored, "fresh", (int)l->fresh);
}

/* The draft and what is kept beside it into the room of c. */
static int copy_draft(struct learner *l, struct checkpoint *c, int64_t *ret_trainer_step)
{
	const real *w = l->o.kind->params(l->t);
	size_t bytes = c->n_params * sizeof *w;
	if (!w)
		return -ENOMEM;
	memcpy(c->params, w, bytes);
	memcpy(c->d2t, l->d2t, (size_t)c->V_d * sizeof *c->d2t);
	if (l->average)
		memcpy(c->average, l->average, bytes);
	if (l->anchor)
		memcpy(c->anchor, l->anchor, bytes);
	return l->o.kind->save_state(l->t, c->moments, ret_trainer_step);
}

int learner_copy_room(const struct learner *l, struct checkpoint *c)
{
	c->V = l->fz->V;
	c->n_params = l->t ? l->o.kind->n_params(l->t) : 0;
	c->n_moments = l->t ? l->o.kind->n_state(l->t) : 0;
	c->V_d = l->t ? l->file.draft_vocab_size : 0;
	return checkpoint_room(c, l->average, l->anchor);
}

int learner_copy(struct learner *l, struct checkpoint *c, struct errtext *e)
{
	char *draft_json = NULL;
	int64_t trainer_step = 0;
	int r = learner_copy_room(l, c); /* another draft since? */
	if (!r && l->t)
		r = copy_draft(l, c, &trainer_step);
	if (!r && l->t)
		r = draft_config_print(&l->file, &draft_json, e);
	if (!r)
		memcpy(c->counts, l->counts, (size_t)c->V * sizeof *c->counts);
	if (!r && !(c->state = state_json(l, draft_json ? draft_json : "", trainer_step)))
		r = -ENOMEM;
	free(draft_json);
	return r;
}

/* ---- and back ---- */

static int restore_cursors(struct learner *l, json_t *a)
{
	json_t *x, *s;
	size_t i, k;
	int r = learner_cursors(l, (int)json_array_size(a));
	json_array_foreach(a, i, x) {
		struct cursor *c = &l->at[i];
		json_int_t next, last, seq;
		const char *producer;
		json_t *seen;
		if (r || json_unpack(x, "{s:I,s:I,s:s,s:I,s:o}", "next", &next, "last", &last, "producer", &producer, "seq", &seq, "seen", &seen) ||
		    json_array_size(seen) > SEEN_PRODUCERS)
			return r ? r : -EINVAL;
		c->next = next;
		c->last_offset = last;
		c->seq = (uint64_t)seq;
		(void)snprintf(c->producer, sizeof c->producer, "%s", producer);
		json_array_foreach(seen, k, s) {
			const char *who;
			json_int_t n;
			if (json_unpack(s, "[sI]", &who, &n))
				return -EINVAL;
			(void)snprintf(c->seen[k].producer, sizeof c->seen[k].producer, "%s", who);
			c->seen[k].seq = (uint64_t)n;
			c->n_seen = (int)k + 1;
		}
	}
	return r;
}

static int restore_counts(struct learner_counts *n, json_t *a)
{
	int64_t v[N_COUNTS] = {0};
	if (!json_is_array(a) || json_array_size(a) > N_COUNTS) /* fewer: an older program's */
		return -EINVAL;
	for (size_t i = 0; i < json_array_size(a); i++)
		v[i] = json_integer_value(json_array_get(a, i));
	memcpy(n, v, sizeof v);
	return 0;
}

static int restore_lists(struct learner *l, json_t *runs, json_t *join)
{
	json_t *x;
	size_t i;
	json_array_foreach(runs, i, x) {
		struct run r;
		int k = run_from_json(x, &r);
		if (!k && (k = runs_add(&l->runs, &r)))
			run_done(&r);
		if (k)
			return k;
	}
	return join_from_json(&l->join, join);
}

static int restore_state(struct learner *l, const struct checkpoint *c, int64_t *ret_journal, struct errtext *e)
{
	json_int_t step, cur_run, base, drift, counted, first, segment, offset, version, trainer_step, published, journal, losses = 0, averaged = 0;
	double usual = 0;
	const char *fp, *config, *cluster, *draft, *name, *sha, *last_bad;
	json_t *cut = NULL, *cursors, *runs, *join, *counts, *rules = NULL;
	int paused, left = 0, aside_bytes, anchored = 0, fresh = 0;
	if (json_unpack(c->state, "{s:s,s:s,s:I,s:I,s:I,s:i,s:I,s:b,s:I,s:I,s:[III],s:s,s:s,s:{s:s,s:s,s:I,s?b,s?o},s:I,s:I,s:[FF],s:i,s:o,s:o,s:o,s:o,s:s,s:[ii],s?o,s?[IF],s?I,s?b,s?b}",
			"target_fp", &fp, "config", &config, "journal", &journal, "step", &step, "cur_run", &cur_run, "cur_row", &l->cur_row,
			"base", &base, "paused", &paused, "drift", &drift, "counted", &counted, "pool", &first, &segment, &offset, "cluster",
			&cluster, "draft", &draft, "pending", "name", &name, "sha", &sha, "version", &version, "left", &left, "cut", &cut, "trainer_step",
			&trainer_step, "published_step", &published, "means", &l->loss_mean, &l->acc_mean, "turn", &l->turn, "cursors", &cursors,
			"runs", &runs, "join", &join, "counts", &counts, "last_bad", &last_bad, "aside", &l->aside_files, &aside_bytes,
			"rules", &rules, "usual_loss", &losses, &usual, "averaged", &averaged, "anchored", &anchored, "fresh", &fresh))
		return errtext_set(e, -EINVAL, "checkpoint: its state cannot be read");
	if (strcmp(fp, l->fz->target_fp) != 0)
		return errtext_set(e, -EINVAL, "state_dir belongs to target %.12s, this is %.12s: use another state_dir", fp, l->fz->target_fp);
	l->fresh = fresh;
	l->step = step;
	l->cur_run = (uint64_t)cur_run;
	l->base = (uint32_t)base;
	l->paused = paused;
	l->drift = drift;
	l->counted = counted;
	l->published_step = published;
	l->aside_bytes = (uint64_t)aside_bytes;
	(void)snprintf(l->cluster, sizeof l->cluster, "%s", cluster);
	(void)snprintf(l->pending.name, sizeof l->pending.name, "%s", name);
	(void)snprintf(l->pending.sha, sizeof l->pending.sha, "%s", sha);
	(void)snprintf(l->last_bad, sizeof l->last_bad, "%s", last_bad);
	l->pending.version = (uint32_t)version;
	l->pending.left = left;
	l->pending.cut = json_is_object(cut) ? json_incref(cut) : NULL;
	pool_rewind(l->pool, (struct pool_where){(uint32_t)first, (uint32_t)segment, (uint32_t)offset});
	l->kept_first[0] = l->kept_first[1] = (uint32_t)first;
	memcpy(l->counts, c->counts, (size_t)c->V * sizeof *l->counts);
	int r = learner_set_config(l, config, e);
	if (!r)
		r = restore_cursors(l, cursors);
	if (!r)
		r = restore_counts(&l->n, counts);
	if (!r)
		r = restore_lists(l, runs, join);
	if (!r)
		r = rules_from_json(&l->rules, rules);
	if (r)
		return errtext_set(e, r, "checkpoint: its lists cannot be read");
	if (c->params) {
		struct draft_config dc;
		struct eagle3_config ec;
		if ((r = draft_config_parse(draft, l->fz->n_layer, &dc, e)))
			return r;
		draft_eagle3_config(&dc, &ec);
		if (draft_params(&ec) != c->n_params || ec.V_d != c->V_d)
			return errtext_set(e, -EINVAL, "checkpoint: the weights do not fit their config");
		const struct learner_beside b = {c->moments, c->average, c->anchor, trainer_step, averaged};
		r = learner_set_draft(l, &dc, c->d2t, c->params, &b, e);
		if (!r && l->o.kind->n_state(l->t) != c->n_moments)
			r = errtext_set(e, -EINVAL, "checkpoint: the optimizer state has another size");
	}
	l->anchored = anchored;
	l->losses = losses;
	l->usual_loss = usual;
	*ret_journal = journal;
	return r;
}

int learner_restore(struct learner *l, int64_t *ret_journal, struct errtext *e)
{
	struct checkpoint c = {0};
	char dir[PATH_MAX];
	int damaged = 0;
	int r = snprintf(dir, sizeof dir, "%s/checkpoint", l->o.state_dir) < (int)sizeof dir ? 0 : -ENAMETOOLONG;
	if (!r)
		r = checkpoint_load(dir, &c, &l->serial, &damaged, e);
	if (!r)
		r = c.V == l->fz->V ? restore_state(l, &c, ret_journal, e)
				    : errtext_set(e, -EINVAL, "checkpoint: %d tokens, the target has %d: use another state_dir", c.V, l->fz->V);
	else if (r == -ENOENT) {
		*ret_journal = 0;
		r = 0;
	}
	l->serial += damaged; /* never write under the name of a damaged one */
	checkpoint_done(&c);
	return r;
}

void learner_weights_sha(const struct learner *l, char ret_hex[static 65])
{
	struct sha *sha = l->t ? sha_new() : NULL;
	const real *w = l->t ? l->o.kind->params(l->t) : NULL;
	memcpy(ret_hex, "none", 5);
	if (sha && w) {
		size_t bytes = l->o.kind->n_params(l->t) * sizeof *w;
		sha_update(sha, w, bytes);
		if (l->average)
			sha_update(sha, l->average, bytes);
		if (l->anchor)
			sha_update(sha, l->anchor, bytes);
		sha_final_hex(sha, ret_hex);
	}
	sha_free(sha);
}
