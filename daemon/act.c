/* Events in, actions out. The rollout decides; here its actions meet sockets and
 * files, and what those answer goes back as the next event. Three rules keep this
 * honest: results carry the id of the operation they belong to; a look at the server
 * that was sent before something moved it is thrown away; and the state that could
 * not be written is written again every second, while serving already goes by it.
 */
#include "daemon/act.h"
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "daemon/act_inside.h"
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/loop_guard.h"
#include "daemon/base/metrics.h"
#include "daemon/base/notify.h"

enum { SERVE_SILENT_MAX = 3 };

struct act_call { /* a load or an activation that is out */
	struct loop_guard guard;
	struct act *a;
	uint32_t id, version;
	uint32_t permille;
	char sha[65], salt[RO_SALT];
};

static void act_call_drop(struct loop_guard *g)
{
	free((char *)g - offsetof(struct act_call, guard));
}

static struct act_call *act_call_new(struct act *a, const struct ro_action *x)
{
	struct act_call *c = malloc(sizeof *c);

	if (!c)
		return NULL;
	*c = (struct act_call){.guard.drop = act_call_drop, .a = a, .id = x->id, .version = x->version};
	loop_guard_add(a->loop, &c->guard);
	return c;
}

static void act_call_free(struct act_call *c)
{
	if (c)
		loop_guard_remove(&c->guard);
	free(c);
}

/* ---- the server ---- */

static void act_look(struct act *a);

static void act_looked(void *arg, const struct engine_answer *x)
{
	struct act *a = arg;
	struct ro_event ev = {.kind = RO_SERVER_GONE};

	a->looking = false;
	if (a->look_seq != a->engine_seq) { /* something has moved it since we asked */
		act_look(a);
		return;
	}
	if (x->result == RO_HUNG && ++a->serve_silent < SERVE_SILENT_MAX)
		return; /* slow is not gone */
	if (x->status) {
		a->serve_silent = 0;
		json_decref(a->serve_status);
		a->serve_status = json_incref(x->status->raw);
		memcpy(a->target_fp, x->status->target_fp, sizeof a->target_fp);
		ev = (struct ro_event){.kind = RO_SERVER, .generation = x->status->generation, .version = x->status->live,
				       .canary = x->status->canary, .permille = x->status->permille, .salt = x->status->salt,
				       .by_operator = x->status->by_operator, .by_daemon = x->status->by_daemon};
	}
	act_event(a, &ev);
}

static void act_look(struct act *a)
{
	if (a->looking)
		return;
	a->looking = true;
	a->look_seq = a->engine_seq;
	a->engine.kind->status(&a->engine, act_looked, a);
}

static void act_loaded(void *arg, const struct engine_answer *x)
{
	struct act_call *c = arg;
	struct act *a = c->a;
	struct ro_event ev = {.kind = RO_LOADED, .id = c->id, .version = c->version, .result = x->result, .text = x->text};
	char text[RO_TEXT];

	a->engine_seq++;
	if (x->result == RO_OK && (!x->weights_sha || strcmp(x->weights_sha, c->sha))) {
		snprintf(text, sizeof text, "the server holds weights %.12s, the store %.12s",
			 x->weights_sha ? x->weights_sha : "unknown", c->sha);
		ev.result = RO_MISMATCH;
		ev.text = text;
	}
	act_call_free(c);
	act_event(a, &ev);
}

static void act_activated(void *arg, const struct engine_answer *x)
{
	struct act_call *c = arg;
	struct act *a = c->a;
	struct ro_event ev = {.kind = RO_ACTIVATED, .id = c->id, .version = c->version, .result = x->result,
			      .generation = x->generation, .text = x->text};

	a->engine_seq++;
	act_call_free(c);
	fs_crash_point("act-activated"); /* the server has moved, the state does not know */
	act_event(a, &ev);
}

/* A load that cannot even start answers from the loop too, like any other. */
static void act_load_failed(void *arg)
{
	const struct engine_answer x = {.result = RO_BAD, .text = "its manifest cannot be read"};

	act_loaded(arg, &x);
}

static void act_load(struct act *a, const struct ro_action *x)
{
	struct act_call *c = act_call_new(a, x);
	struct manifest m;
	char dir[PATH_MAX];
	bool ok = store_version_dir(store_path(a->store), x->version, dir, sizeof dir) == 0 && manifest_read(dir, &m, NULL) == 0;

	a->engine_seq++;
	if (c && ok) {
		memcpy(c->sha, m.weights_sha, sizeof c->sha);
		a->engine.kind->load(&a->engine, x->version, dir, m.weights_sha, act_loaded, c);
	} else if (!c || loop_post(a->loop, act_load_failed, c) < 0) {
		log_error("out of memory while loading version %u; restart redraftd if this lasts", x->version);
		act_call_free(c);
	}
	if (ok)
		manifest_done(&m);
}

static void act_activate(struct act *a, const struct ro_action *x)
{
	struct act_call *c = act_call_new(a, x);

	a->engine_seq++;
	if (!c) {
		log_error("out of memory while activating version %u; restart redraftd if this lasts", x->version);
		return;
	}
	a->engine.kind->activate(&a->engine, x->version, x->all, x->checked ? (int64_t)x->generation : -1, x->by_operator,
				 act_activated, c);
}

static void act_canaried(void *arg, const struct engine_answer *x)
{
	struct act_call *c = arg;
	struct act *a = c->a;
	char salt[RO_SALT];
	struct ro_event ev = {.kind = RO_CANARIED, .id = c->id, .version = c->version, .permille = c->permille, .salt = salt,
			      .result = x->result, .text = x->text};

	memcpy(salt, c->salt, sizeof salt);
	a->engine_seq++;
	act_call_free(c);
	fs_crash_point("act-canaried"); /* a share of the traffic has moved, the state does not know */
	act_event(a, &ev);
}

static void act_canary_call(struct act *a, const struct ro_action *x)
{
	struct act_call *c = act_call_new(a, x);

	a->engine_seq++;
	if (!c) {
		log_error("out of memory while version %u should go on canary; restart redraftd if this lasts", x->version);
		return;
	}
	c->permille = x->permille;
	snprintf(c->salt, sizeof c->salt, "%.32s", x->text);
	a->engine.kind->canary(&a->engine, x->version, x->permille, c->salt, x->checked ? (int64_t)x->generation : -1, act_canaried, c);
}

/* ---- files ---- */

static void act_save(struct act *a)
{
	struct errtext e = {.text = ""};
	int r = store_save(a->store, &a->r.s, &e);

	a->dirty = r < 0;
	if (r < 0 && !a->save_failed)
		log_error("the state cannot be written: %s; what runs goes by it all the same, trying again every second", e.text);
	else if (!r && a->save_failed)
		log_info("the state is written again");
	a->save_failed = r < 0;
}

static void act_collect(struct act *a)
{
	int n = store_collect(a->store, &a->r.s, a->o.keep);

	if (!n)
		return;
	log_info("%d old version%s removed from the store", n, n == 1 ? "" : "s");
	act_save(a);
	store_sweep(a->store);
}

/* ---- people who wait ---- */

static void act_answer_now(struct act *a, const struct ro_action *x)
{
	struct act_waiter w[ACT_MAX_WAITERS + 1];
	int n = 0;

	if (a->now.answer && a->now_verb == x->verb) {
		w[n++] = a->now;
		a->now.answer = NULL;
	} else if (x->verb == RO_PROMOTE && a->promote.answer) {
		w[n++] = a->promote;
		a->promote.answer = NULL;
	}
	if (x->verb == RO_ROLLBACK) {
		memcpy(&w[n], a->rollback, (size_t)a->n_rollback * sizeof *w);
		n += a->n_rollback;
		a->n_rollback = 0;
	}
	for (int i = 0; i < n; i++)
		w[i].answer(w[i].arg, x->error, x->text, x->version);
}

static void act_verb(struct act *a, struct ro_event *ev, act_answer *answer, void *arg)
{
	a->now = (struct act_waiter){.answer = answer, .arg = arg};
	a->now_verb = ev->kind;
	act_event(a, ev);
	if (a->now.answer && ev->kind == RO_PROMOTE) {
		a->promote = a->now;
	} else if (a->now.answer && ev->kind == RO_ROLLBACK && a->n_rollback < ACT_MAX_WAITERS) {
		a->rollback[a->n_rollback++] = a->now;
	} else if (a->now.answer) {
		answer(arg, "io.redraft.Busy", "too many callers wait for this", 0);
	}
	a->now.answer = NULL;
}

void act_promote(struct act *a, uint32_t version, int64_t expected, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_PROMOTE, .version = version, .expected = expected}, answer, arg);
}

void act_rollback(struct act *a, const char *who, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_ROLLBACK, .text = who}, answer, arg);
}

void act_pin(struct act *a, uint32_t version, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_PIN, .version = version}, answer, arg);
}

void act_unpin(struct act *a, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_UNPIN}, answer, arg);
}

void act_hold(struct act *a, const char *why, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_HOLD, .text = why}, answer, arg);
}

void act_release(struct act *a, act_answer *answer, void *arg)
{
	a->decay[0] = '\0'; /* whoever releases has looked */
	act_verb(a, &(struct ro_event){.kind = RO_RELEASE}, answer, arg);
}

/* ---- carrying out ---- */

void act_say(struct act *a, enum act_news kind, const char *text)
{
	snprintf(a->last_event, sizeof a->last_event, "%s", text);
	if (a->heard)
		a->heard(a->heard_arg, kind, a->last_event);
}

void act_on_news(struct act *a, act_heard *heard, void *arg)
{
	a->heard = heard;
	a->heard_arg = arg;
}

static void act_do(struct act *a, const struct ro_action *x)
{
	switch (x->kind) {
	case RO_DO_EVALUATE: act_evaluate(a, x->id, x->version, x->against); break;
	case RO_DO_LOAD: act_load(a, x); break;
	case RO_DO_ACTIVATE: act_activate(a, x); break;
	case RO_DO_CANARY: act_canary_call(a, x); break;
	case RO_DO_UNLOAD:
		a->engine_seq++;
		a->engine.kind->unload(&a->engine, x->version);
		break;
	case RO_DO_VERDICT:
		act_tell(a, "io.redraft.Learn.Verdict",
			 json_pack("{s:I, s:s, s:s}", "version", (json_int_t)x->version, "verdict", x->verdict, "reason", x->text));
		metric_add(metrics_counter(a->metrics, "redraft_verdicts_total",
					   x->verdict[0] == 'a'	  ? "verdict=\"accepted\""
					   : x->verdict[0] == 'r' ? "verdict=\"rejected\""
					   : x->verdict[0] == 'q' ? "verdict=\"quarantined\""
								  : "verdict=\"superseded\"",
					   "Verdicts on candidate versions."), 1);
		break;
	case RO_DO_REBASE:
		act_tell(a, "io.redraft.Learn.Rebase",
			 json_pack("{s:I, s:s}", "version", (json_int_t)x->version, "reason", x->text));
		break;
	case RO_DO_PAUSE: act_tell(a, "io.redraft.Learn.PauseTraining", json_object()); break;
	case RO_DO_RESUME: act_tell(a, "io.redraft.Learn.ResumeTraining", json_object()); break;
	case RO_DO_SAVE: act_save(a); break;
	case RO_DO_COLLECT: act_collect(a); break;
	case RO_DO_LOOK: act_look(a); break;
	case RO_DO_ANSWER: act_answer_now(a, x); break;
	case RO_DO_LOG:
		log_info("%s", x->text);
		act_say(a, ACT_NEWS_ROLLOUT, x->text);
		break;
	}
}

static void act_publish(struct act *a)
{
	const struct rollout *r = &a->r;
	char text[sizeof a->notified];

	metric_set(metrics_gauge(a->metrics, "redraft_live_version", NULL, "Draft version that new requests decode with."), r->s.live);
	metric_set(metrics_gauge(a->metrics, "redraft_generation", NULL, "Grows with every activation."), (double)r->s.generation);
	metric_set(metrics_gauge(a->metrics, "redraft_versions", NULL, "Versions in the store."), r->s.n_versions);
	metric_set(metrics_gauge(a->metrics, "redraft_serve_up", NULL, "1 when the server answers."), r->serve_up);
	metric_set(metrics_gauge(a->metrics, "redraft_learn_up", NULL, "1 when the learner answers."), r->learn_up);
	metric_set(metrics_gauge(a->metrics, "redraft_state_unsaved", NULL, "1 while the state cannot be written."), a->dirty);
	snprintf(text, sizeof text, "STATUS=live %u, previous %u, generation %llu; server %s, learner %s", r->s.live, r->s.previous,
		 (unsigned long long)r->s.generation, r->serve_up ? "up" : "absent", r->learn_up ? "up" : "absent");
	if (strcmp(text, a->notified)) {
		memcpy(a->notified, text, sizeof text);
		notify_state("%s", text);
	}
}

void act_event(struct act *a, struct ro_event *ev)
{
	struct ro_actions *out = malloc(sizeof *out); /* not on the stack: carrying out may come back here */
	int r = out ? 0 : -ENOMEM;

	ev->now_us = clock_us();
	if (getrandom(&ev->random, sizeof ev->random, GRND_NONBLOCK) != sizeof ev->random)
		ev->random = (uint32_t)ev->now_us;
	if (!r)
		r = rollout_apply(&a->r, ev, out);
	if (r < 0)
		log_error("out of memory; an event was lost");
	for (int i = 0; !r && i < out->n; i++)
		act_do(a, &out->a[i]);
	free(out);
	act_publish(a);
}

static void act_tick(void *arg)
{
	struct act *a = arg;
	struct ro_event ev = {.kind = RO_TICK};

	if (a->dirty)
		act_save(a);
	act_event(a, &ev);
	act_look(a);
	act_ask_learner(a);
	loop_timer_set(a->tick, a->o.poll_us);
}

/* ---- life ---- */

static void act_said_found(const struct store_found *f, const char *path)
{
	if (f->new_state)
		log_info("store %s: new state", path);
	if (f->adopted)
		log_warn("store %s: %d version%s found that the state did not know; taken in", path, f->adopted,
			 f->adopted == 1 ? "" : "s");
	if (f->given_back)
		log_warn("store %s: %d interrupted submission%s put back into incoming", path, f->given_back,
			 f->given_back == 1 ? "" : "s");
	if (f->lost)
		log_error("store %s: files of %d version%s are missing or damaged; quarantined", path, f->lost,
			  f->lost == 1 ? "" : "s");
}

int act_new(struct loop *l, const struct act_options *o, struct metrics *m, struct act **ret, struct errtext *e)
{
	struct act *a = calloc(1, sizeof *a);
	struct store_state state;
	struct store_found found;
	int r;

	if (!a)
		return -ENOMEM;
	a->o = *o;
	a->loop = l;
	a->metrics = m;
	a->drift = -1;
	a->engine = (struct engine){.loop = l, .socket_path = o->serve_socket, .kind = &engine_native};
	r = store_open(o->store, &a->store, &state, &found, e);
	if (r < 0) {
		free(a);
		return r;
	}
	act_said_found(&found, o->store);
	rollout_init(&a->r, &state, &o->rules, clock_us());
	r = loop_timer_new(l, act_tick, a, &a->tick);
	if (r < 0) {
		act_free(a);
		return r;
	}
	loop_timer_set(a->tick, 0);
	*ret = a;
	return 0;
}

void act_set_rules(struct act *a, const struct gate_rules *gate, const struct rollout_rules *rules, int keep)
{
	a->o.gate = *gate;
	a->o.keep = keep;
	rollout_set_rules(&a->r, rules);
}

/* Whoever still waits is told, so that nothing of theirs is left behind. */
static void act_send_away(struct act *a)
{
	static const char stopping[] = "redraftd is stopping";

	if (a->promote.answer)
		a->promote.answer(a->promote.arg, "io.redraft.Busy", stopping, 0);
	for (int i = 0; i < a->n_rollback; i++)
		a->rollback[i].answer(a->rollback[i].arg, "io.redraft.Busy", stopping, 0);
	a->promote.answer = NULL;
	a->n_rollback = 0;
}

struct act *act_free(struct act *a)
{
	if (!a)
		return NULL;
	act_send_away(a);
	act_submit_join(a);
	if (a->dirty)
		act_save(a);
	loop_timer_free(a->tick);
	for (int i = 0; i < a->n_outbox; i++)
		json_decref(a->outbox[i].params);
	json_decref(a->serve_status);
	json_decref(a->learn_status);
	rollout_done(&a->r);
	store_close(a->store);
	free(a);
	return NULL;
}

const struct rollout *act_rollout(const struct act *a)
{
	return &a->r;
}

struct store *act_store(struct act *a)
{
	return a->store;
}

const char *act_target_fp(const struct act *a)
{
	return a->target_fp;
}

json_t *act_serve_status(const struct act *a)
{
	return a->serve_status;
}

json_t *act_learn_status(const struct act *a)
{
	return a->learn_status;
}

const char *act_last_event(const struct act *a)
{
	return a->last_event;
}
