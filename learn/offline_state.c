/* A run from disk that was killed goes on (learn/offline_priv.h).
 *
 * The state at an evaluation is one checkpoint file: masters, moments and the
 * average, the anchor behind the moments, and where in the order of lessons it
 * stood. Teachers that were kept are not in it: worked out again they are the same
 * bits. What the run is (options, corpus, ranks) is written beside it and must be
 * the same when it goes on, or the rest would belong to another run. On what its steps were taken is written too: where
 * that adds or multiplies otherwise than what goes on, as after an upgrade or on another machine, the run goes on, and says so.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fs.h"
#include "kernels/comm.h"
#include "learn/checkpoint.h"
#include "learn/offline_priv.h"

/* What makes a run this run. */
static json_t *identity(const struct offline *x)
{
	const struct offline_options *o = x->o;
	const struct train_options *t = &o->train;
	json_t *j = json_pack("{s:I,s:i,s:i,s:i,s:i,s:b,s:b,s:b,s:f,s:f,s:f,s:I}", "seed", (json_int_t)o->seed, "max_rows", o->max_rows, "pack_rows", o->pack_rows,
			      "history_rows", o->history_rows, "epochs", o->epochs, "prompt_rows", o->prompt_rows,
			      "cosine", o->cosine, "stream", o->stream, "replay_share", o->replay_share, "anchor", o->anchor, "ema", o->ema, "tokens", (json_int_t)o->tokens);
	json_t *k = json_pack("{s:i,s:f,s:i,s:i,s:f,s:f,s:f,s:i,s:I,s:i,s:i,s:i,s:i,s:f,s:i,s:b,s:i,s:i,s:I}", "ttt_steps", t->ttt_steps, "decay", (double)t->decay, "loss", (int)t->loss, "optimizer",
			      (int)t->optimizer, "lr", (double)t->lr, "muon_lr", (double)t->muon_lr, "clip", (double)t->clip, "muon_iters", t->muon_iters, "warmup_steps",
			      (json_int_t)t->warmup_steps, "ranks", t->ranks ? t->ranks->size : 1, "ulysses", t->ulysses > 1 ? t->ulysses : 1, "data", t->data > 1 ? t->data : 1,
			      "whole_teacher", (int)o->whole_teacher, "heldout_share", o->heldout_share, "heldout_domain_max",
			      o->heldout_domain_max, "judged by a pool", x->judge != NULL, "lessons", x->n_lessons, "runs",
			      x->corpus->runs.n, "rows", (json_int_t)x->corpus->rows);
	if (!j || !k || json_object_update(j, k)) {
		json_decref(j);
		j = NULL;
	}
	json_decref(k);
	return j;
}

int offline_save(const struct offline *x, struct errtext *e)
{
	const struct offline_report *rep = &x->rep;
	size_t n_state = x->o->kind->n_state(x->t), n_anchor = x->anchor ? x->draft.n : 0;
	int64_t step = 0;
	real *w = x->o->kind->params(x->t), *moments = malloc((n_state + n_anchor) * sizeof *moments);
	int r = w && moments ? x->o->kind->save_state(x->t, moments, &step) : -ENOMEM;
	if (!r && n_anchor)
		memcpy(moments + n_state, x->anchor, n_anchor * sizeof *moments);
	struct checkpoint c = {.n_params = x->draft.n, .n_moments = n_state + n_anchor, .params = w, .moments = moments, .average = x->o->ema > 0 ? x->draft.w : NULL, .V_d = x->draft.c.V_d,
			       .d2t = x->draft.d2t};
	uint64_t none = 0;
	c.counts = &none;
	c.V = 1;
	c.state = json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:i,s:I,s:b,s:s,s:i}", "run", identity(x), "done", (json_int_t)x->done, "turn", (json_int_t)x->turn, "trainer_step", (json_int_t)step, "step",
			    (json_int_t)rep->step, "tokens", (json_int_t)rep->tokens, "loss", rep->loss, "accuracy", rep->accuracy, "leg", rep->leg, "spent_us", (json_int_t)x->spent_us, "anchored",
			    n_anchor > 0, "device", rep->device, "inexact", rep->inexact);
	if (!r)
		r = c.state ? fs_mkdirs(x->o->state_dir) : -ENOMEM;
	if (!r)
		r = checkpoint_write(x->o->state_dir, x->rep.step, &c, e);
	json_decref(c.state);
	free(moments);
	return r;
}

static int64_t integer(const json_t *j, const char *key)
{
	return (int64_t)json_integer_value(json_object_get(j, key));
}

/* The first thing in which the two runs differ, by name. */
static int same_run(const struct offline *x, const json_t *was, struct errtext *e)
{
	json_t *now = identity(x), *v;
	const char *key;
	int r = now ? 0 : -ENOMEM;
	json_object_foreach(now, key, v)
		if (!r && !json_equal(v, json_object_get(was, key)))
			r = errtext_set(e, -EINVAL, "%s is of a run whose %s was another: give the same options and records, or another --out", x->o->state_dir, key);
	json_decref(now);
	return r;
}

/* Where the steps so far were taken as ours will be, nothing; else it is told and counted. */
static void compare_devices(struct offline_report *rep, const json_t *state)
{
	const char *was = json_string_value(json_object_get(state, "device"));
	rep->inexact = (int)integer(state, "inexact");
	if (!rep->step || (was && strcmp(was, rep->device) == 0))
		return;
	rep->inexact++;
	(void)snprintf(rep->taken_on, sizeof rep->taken_on, "%s", was ? was : "a device that it does not name"); /* an older program's */
}

int offline_restore(struct offline *x, struct errtext *e)
{
	struct checkpoint c = {0};
	int64_t serial = 0;
	int damaged = 0, r = checkpoint_load(x->o->state_dir, &c, &serial, &damaged, e);
	size_t n_state = x->o->kind->n_state(x->t);
	if (r == -ENOENT && !damaged)
		return 0;
	if (r)
		return r;
	bool anchored = json_is_true(json_object_get(c.state, "anchored"));
	r = same_run(x, json_object_get(c.state, "run"), e);
	if (!r && (c.n_params != x->draft.n || c.n_moments != n_state + (anchored ? x->draft.n : 0) || (x->o->ema > 0) != (c.average != NULL) || c.V_d != x->draft.c.V_d ||
		   memcmp(c.d2t, x->draft.d2t, (size_t)c.V_d * sizeof *c.d2t)))
		r = errtext_set(e, -EINVAL, "%s holds another draft than this run starts from", x->o->state_dir);
	real *w = r ? NULL : x->o->kind->params(x->t);
	if (!r && (!w || (anchored && !x->anchor && !(x->anchor = malloc(x->draft.n * sizeof *w)))))
		r = -ENOMEM;
	if (!r) {
		memcpy(w, c.params, x->draft.n * sizeof *w);
		x->o->kind->params_changed(x->t);
		memcpy(x->draft.w, c.average ? c.average : c.params, x->draft.n * sizeof *w);
		if (anchored)
			memcpy(x->anchor, c.moments + n_state, x->draft.n * sizeof *w);
		r = x->o->kind->load_state(x->t, c.moments, integer(c.state, "trainer_step"));
	}
	if (!r) {
		x->done = integer(c.state, "done");
		x->turn = integer(c.state, "turn");
		x->spent_us = (uint64_t)integer(c.state, "spent_us");
		x->rep.step = integer(c.state, "step");
		x->rep.tokens = integer(c.state, "tokens");
		x->rep.loss = json_real_value(json_object_get(c.state, "loss"));
		x->rep.accuracy = json_real_value(json_object_get(c.state, "accuracy"));
		x->rep.leg = (int)integer(c.state, "leg");
		x->rep.resumed = x->rep.step;
		compare_devices(&x->rep, c.state);
		x->eval_at = x->rep.tokens + x->o->eval_tokens;
	}
	checkpoint_done(&c);
	return r;
}
