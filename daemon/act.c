/* Events in, actions out. The rollout decides; here its actions meet sockets and
 * files, and what those answer goes back as the next event. Three rules keep this
 * honest: results carry the id of the operation they belong to; a look at the server
 * that was sent before something moved it is thrown away; and the state that could
 * not be written is written again every second, while serving already goes by it.
 */
#include "daemon/act.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "daemon/act_inside.h"
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/notify.h"

enum { COLLECT_US = 60000000 }; /* between two looks at age and disk */

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
	struct store_limits l = a->o.limits;
	int n;

	if (a->r.op.phase != RO_IDLE) { /* what is being loaded or gone back to must not go meanwhile, held or not; the next tick looks again */
		a->collect_us = 0;
		return;
	}
	l.now_s = clock_sure_ms(&a->sure, NULL) / 1000;
	l.need_bytes = store_missing(a->store, a->o.min_free);
	n = store_collect(a->store, &a->r.s, &l);
	a->collect_us = clock_us() + COLLECT_US;

	if (!n)
		return;
	log_info("%d old version%s removed from the store%s", n, n == 1 ? "" : "s", l.need_bytes ? ", whose file system is nearly full" : "");
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

void act_rollback(struct act *a, const char *who, const char *request, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_ROLLBACK, .text = who, .request = request}, answer, arg);
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
	act_verb(a, &(struct ro_event){.kind = RO_RELEASE}, answer, arg);
}

void act_pause(struct act *a, const char *why, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_PAUSE, .text = why}, answer, arg);
}

void act_resume(struct act *a, act_answer *answer, void *arg)
{
	act_verb(a, &(struct ro_event){.kind = RO_RESUME}, answer, arg);
}

void act_follow(struct act *a, uint32_t version, const char *leader)
{
	act_event(a, &(struct ro_event){.kind = RO_FOLLOW, .version = version, .text = leader});
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

static const char *const act_words[] = {"accepted", "rejected", "superseded", "quarantined"};

static struct metric *act_verdicts(struct act *a, const char *verdict)
{
	char label[40];

	snprintf(label, sizeof label, "verdict=\"%s\"", verdict);
	return metrics_counter(a->metrics, "redraft_verdicts_total", label, "Verdicts on candidate versions.");
}

/* journalctl REDRAFT_EVENT=rollout REDRAFT_LIVE=7 */
static void act_log(const struct act *a, const char *text)
{
	const struct store_state *s = &a->r.s;
	char fields[160];

	snprintf(fields, sizeof fields, "REDRAFT_EVENT=rollout\nREDRAFT_LIVE=%u\nREDRAFT_PREVIOUS=%u\nREDRAFT_GENERATION=%llu\n", s->live, s->previous,
		 (unsigned long long)s->generation);
	log_fields(LOG_INFO, fields, "%s", text);
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
		metric_add(act_verdicts(a, x->verdict), 1);
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
		act_log(a, x->text);
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
	ev->frozen = freeze_at(&a->o.freeze, clock_wall_ms());
	if (getrandom(&ev->random, sizeof ev->random, GRND_NONBLOCK) != sizeof ev->random)
		ev->random = (uint32_t)ev->now_us;
	if (!r)
		r = rollout_apply(&a->r, ev, out);
	if (r < 0)
		log_error("out of memory; an event was lost");
	if (a->r.s.canary.version && !a->r.s.canary.since[0])
		clock_iso8601(clock_wall_ms(), a->r.s.canary.since);
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
	if (clock_us() >= a->collect_us)
		act_collect(a);
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
	if (f->stuck)
		log_error("store %s: %d interrupted submission%s in versions/.take-* cannot be put back into incoming; tried again at the next submission", path, f->stuck,
			  f->stuck == 1 ? "" : "s");
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
	(void)clock_sure_ms(&a->sure, NULL);
	rollout_init(&a->r, &state, &o->rules, clock_us());
	r = loop_timer_new(l, act_tick, a, &a->tick);
	if (r < 0) {
		act_free(a);
		return r;
	}
	for (size_t i = 0; i < sizeof act_words / sizeof *act_words; i++)
		(void)act_verdicts(a, act_words[i]); /* there from the start, or an alert would not see the first one as an increase */
	loop_timer_set(a->tick, 0);
	*ret = a;
	return 0;
}

void act_set_rules(struct act *a, const struct act_options *o)
{
	a->o.gate = o->gate;
	a->o.rules = o->rules;
	a->o.canary = o->canary;
	a->o.freeze = o->freeze;
	a->o.limits = o->limits;
	a->o.min_free = o->min_free;
	a->o.probe = o->probe;
	a->o.compare_us = o->compare_us;
	rollout_set_rules(&a->r, &o->rules);
}

/* Whoever still waits is told, so that nothing of theirs is left behind. */
static void act_send_away(struct act *a)
{
	static const char stopping[] = "redraftd is stopping";

	if (a->promote.answer)
		a->promote.answer(a->promote.arg, "io.redraft.Busy", stopping, 0);
	for (int i = 0; i < a->n_rollback; i++)
		a->rollback[i].answer(a->rollback[i].arg, "io.redraft.Busy", stopping, 0);
	if (a->probe.done)
		a->probe.done(a->probe.arg, NULL, "io.redraft.Busy", stopping);
	a->probe.done = NULL;
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
