/* What the clock asks of the compute thread: candidates and checkpoints.
 *
 * Both are written beside training, one at a time (learn/writer.c), so one that is due waits for the other; a candidate goes first.
 * A candidate that was written is handed to the daemon (Submit, on the loop's thread),
 * and waits for its verdict. The daemon may be away, stopping or out of disk: it is
 * asked again every few seconds, until the next candidate takes this one's place;
 * training goes on meanwhile. A candidate that it refuses goes. An answer that was lost is found
 * by the weights' hash in the store; a verdict that was lost, by the version's
 * state there.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"
#include "learn/worker_priv.h"

enum { SUBMIT_AGAIN_US = 5000000, SUBMIT_TIMEOUT_MS = 60000 };

struct submit {
	struct worker *w;
	char path[PATH_MAX], name[96];
};

void worker_answer_waiter(struct worker *w, json_t *reply, const char *error, const char *message)
{
	if (w->has_waiter)
		worker_answer(w, &w->waiter, reply, error, message);
	else
		json_decref(reply);
	w->has_waiter = false;
}

/* While accept length is fallen, candidates are made sooner: a half, a quarter, an eighth of the interval by level. */
static uint64_t publish_after(const struct worker *w)
{
	return w->o.pace.publish_us >> (w->l->drift < 3 ? w->l->drift : 3);
}

/* ---- on the loop's thread ---- */

static void submit_done(void *arg, int r, json_t *params, const char *error)
{
	struct submit *s = arg;
	struct command c = {.kind = r ? CMD_SUBMIT_FAILED : CMD_SUBMITTED, .k = r};
	json_int_t version = r ? 0 : json_integer_value(json_object_get(params, "version"));
	(void)snprintf(c.text, sizeof c.text, "%s", r ? (error ? error : strerror(r < 0 ? -r : EIO)) : s->name);
	c.version = version > 0 && version <= UINT32_MAX ? (uint32_t)version : 0;
	if (!c.version)
		c.kind = CMD_SUBMIT_FAILED;
	if (worker_post(s->w, &c))
		log_warn("the daemon's answer to Submit found no room; it is asked again");
	free(s);
}

static void submit_call(void *arg)
{
	struct submit *s = arg;
	int r = rpc_call_async(s->w->loop, s->w->o.daemon_socket, "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", s->path),
			       SUBMIT_TIMEOUT_MS, submit_done, s);
	if (r)
		submit_done(s, r, NULL, NULL);
}

/* ---- on the compute thread ---- */

static int simple_entry(struct worker *w, enum journal_kind kind, uint32_t version, const char *text, struct errtext *e)
{
	struct journal_entry x = {.kind = kind, .version = version};
	(void)snprintf(x.text, sizeof x.text, "%s", text);
	return learner_do(w->l, &x, e);
}

static int numbered(struct worker *w, uint32_t version, struct errtext *e)
{
	int r = simple_entry(w, J_SUBMITTED, version, "", e);
	if (r)
		return r;
	w->no_number = (struct log_repeat){.unsaid = 0};
	log_info("version %u submitted at step %" PRId64, version, w->l->published_step);
	worker_answer_waiter(w, json_pack("{s:I}", "version", (json_int_t)version), NULL, NULL);
	return 0;
}

int worker_submit_answer(struct worker *w, const struct command *c, struct errtext *e)
{
	static const char bad_version[] = "io.redraft.Daemon.BadVersion:";
	struct learner *l = w->l;
	char why[256];
	w->submitting = false;
	w->submit_at = clock_us() + SUBMIT_AGAIN_US;
	bool ours = *l->pending.name && !l->pending.version;
	if (c->kind == CMD_SUBMITTED)
		return ours && strcmp(c->text, l->pending.name) == 0 ? numbered(w, c->version, e) : 0;
	bool refused = ours && c->k == RPC_E_REMOTE && !strncmp(c->text, bad_version, sizeof bad_version - 1); /* it was looked at; another error says nothing of it */
	log_repeated(&w->no_number, LOG_WARN, "Submit: %s; %s", c->text, refused ? "withdrawn" : "asked again until it is taken");
	if (refused) {
		w->no_number = (struct log_repeat){.unsaid = 0};
		worker_answer_waiter(w, NULL, "io.redraft.BadVersion", c->text);
		return simple_entry(w, J_WITHDRAW, 0, "", e);
	}
	(void)snprintf(why, sizeof why, "the candidate is written, but redraftd has not taken it: %.100s; it is submitted again until it does", c->text);
	worker_answer_waiter(w, NULL, "io.redraft.Busy", why);
	return 0;
}

/* Its folder is not there. Training went on, and goes on. */
static int withdraw(struct worker *w, struct errtext *e)
{
	const char *why = *w->l->candidate.error ? w->l->candidate.error : "it could not be written before the last end";
	log_error("candidate not written: %s; tried again at the next interval", why);
	worker_answer_waiter(w, NULL, "io.redraft.Busy", why);
	return simple_entry(w, J_WITHDRAW, 0, "", e);
}

/* A candidate without a number: find its number in the store, or ask for one. */
static int submit(struct worker *w, struct errtext *e)
{
	struct learner *l = w->l;
	if (!*l->pending.sha)
		return withdraw(w, e);
	if (w->submitting || clock_us() < w->submit_at)
		return 0;
	uint32_t known = publish_find_sha(l->o.store, l->pending.sha);
	if (known) {
		publish_remove(l->o.store, l->pending.name); /* written again after a crash; it is a version already */
		return numbered(w, known, e);
	}
	struct submit *s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->w = w;
	(void)snprintf(s->name, sizeof s->name, "%s", l->pending.name);
	int r = publish_path(l->o.store, s->name, s->path, sizeof s->path);
	if (!r)
		r = loop_post(w->loop, submit_call, s);
	if (r) {
		free(s);
		w->submit_at = clock_us() + SUBMIT_AGAIN_US;
		return 0;
	}
	w->submitting = true;
	return 0;
}

/* Is the way free for a new candidate? One that is being written or submitted bars it, and one that waits for a verdict, unless the store knows
 * better: what it says of it is *ret_state. */
static bool way_free(const struct worker *w, const char **ret_state)
{
	const struct learner *l = w->l;
	*ret_state = NULL;
	if (!*l->pending.name)
		return true;
	if (!l->pending.version)
		return !w->submitting && !l->pending.writing;
	*ret_state = publish_state_of(l->o.store, l->pending.version);
	return !*ret_state || (strcmp(*ret_state, "candidate") != 0 && strcmp(*ret_state, "gated") != 0);
}

/* A version that waits for its verdict still, though the store has decided: its word is the verdict. (One without a number gives way by the new one's entry.) */
static int take_stores_word(struct worker *w, const char *state, struct errtext *e)
{
	uint32_t version = w->l->pending.version;
	if (!*w->l->pending.name || !version)
		return 0;
	log_warn("no verdict on version %u came, the store says %s", version, state ? state : "nothing of it");
	return simple_entry(w, J_VERDICT, version, state ? state : "unknown", e);
}

/* The entry and a copy of the weights; the folder is written beside the next steps. */
static int publish(struct worker *w, const char *state, struct errtext *e)
{
	w->published_at = clock_us();
	w->submit_at = 0;
	w->asked = false;
	int r = take_stores_word(w, state, e);
	return r ? r : learner_publish(w->l, e);
}

static const char barred[] = "a candidate waits for its number or its verdict";

/* Begun by worker_due, once nothing is being written. Until then what waits stays as it is, and is not submitted either. */
void worker_publish_now(struct worker *w, const struct command *c)
{
	const char *state;
	if (!w->l->t)
		worker_answer(w, c, NULL, "io.redraft.NotEnough", "there is no draft yet");
	else if (w->has_waiter || !way_free(w, &state))
		worker_answer(w, c, NULL, "io.redraft.Busy", barred);
	else {
		w->waiter = *c;
		w->has_waiter = w->asked = true;
	}
}

enum { EXPIRE_EVERY = 24 }; /* looks for what is past its age, an age */

/* Records past their age go, from the index, the checkpoints and the disk. At the start too. */
static int expire(struct worker *w, struct errtext *e)
{
	uint64_t now = clock_us(), age = w->o.pace.max_age_us;
	int64_t before = clock_sure_ms(&w->sure, NULL) / 1000 - (int64_t)(age / 1000000), oldest; /* a clock that jumps erases nothing */
	if (!age || now < w->expire_at)
		return 0;
	w->expire_at = now + (age / EXPIRE_EVERY > 1000000 ? age / EXPIRE_EVERY : 1000000);
	int r = pool_oldest(w->l->pool, &oldest);
	if (r)
		return errtext_set(e, r, "pool: %s", strerror(-r));
	if (oldest >= before)
		return 0;
	r = learner_expire(w->l, before, e);
	if (!r)
		log_info("records older than %" PRIu64 " h are gone from the pool", age / 3600000000);
	return r;
}

/* What was being written, if it is there now. A checkpoint that cannot be written ends nothing: the one before it stands, and the journal behind that is
 * whole. */
static void written(struct worker *w)
{
	struct learner *l = w->l;
	struct errtext why = {""};
	bool candidate = l->pending.writing, checkpoint = l->saving && !candidate;
	const struct written *x = candidate ? &l->candidate : &l->saved;
	int r = learner_write_end(l, false, &why);
	if (r < 0)
		log_error("%s; the checkpoint before it stands, and the next is begun in %" PRIu64 " s", why.text, w->o.pace.checkpoint_us / 1000000);
	else if (!r && (checkpoint || (candidate && *l->pending.sha)))
		log_line(candidate ? LOG_INFO : LOG_DEBUG, "%s at step %" PRId64 ": %" PRIu64 " MiB, training stood still for %" PRIu64 " ms (%" PRIu64 " of processor time), durable after %" PRIu64 " ms",
			 candidate ? "candidate" : "checkpoint", x->step, x->bytes >> 20, x->stood_us / 1000, x->stood_cpu_us / 1000, x->took_us / 1000);
}

static void checkpoint(struct worker *w)
{
	struct learner *l = w->l;
	struct errtext why = {""};
	uint64_t now = clock_us();
	if (l->saving || now - w->checkpointed_at < w->o.pace.checkpoint_us || l->step == w->checkpointed_step)
		return;
	w->checkpointed_at = now;
	w->checkpointed_step = l->step;
	if (learner_checkpoint_begin(l, &why))
		log_error("%s; the checkpoint before it stands, and the next is begun in %" PRIu64 " s", why.text, w->o.pace.checkpoint_us / 1000000);
}

/* Publish() asked for one, or it is time. */
static bool candidate_due(const struct worker *w)
{
	const struct learner *l = w->l;
	if (!l->t || l->saving)
		return false;
	return w->asked || (!l->paused && clock_us() - w->published_at >= publish_after(w) && l->step - l->published_step >= w->o.pace.publish_min_steps);
}

/* The way is not free yet: looked at again soon. Who asked found it free, so it is the store that says otherwise now, and he is told. */
static void put_off(struct worker *w)
{
	uint64_t after = publish_after(w), soon = 10000000;
	w->published_at = clock_us() - after + (after < soon ? after : soon);
	if (w->asked)
		worker_answer_waiter(w, NULL, "io.redraft.Busy", barred);
	w->asked = false;
}

int worker_due(struct worker *w, struct errtext *e)
{
	struct learner *l = w->l;
	const char *state;
	int r = 0;
	written(w);
	if (pace_asleep(w->pace)) /* the next candidate is of a whole interval awake: one of a few steps would gain nothing again */
		w->published_at = clock_us();
	if (*l->pending.name && !l->pending.version && !l->pending.writing && !w->asked)
		r = submit(w, e);
	if (!r)
		r = expire(w, e);
	if (!r && candidate_due(w)) {
		if (way_free(w, &state))
			r = publish(w, state, e);
		else
			put_off(w);
	}
	if (!r)
		checkpoint(w);
	return r;
}
