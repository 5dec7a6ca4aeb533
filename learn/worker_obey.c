/* What a command does, on the compute thread between two steps (learn/worker.c takes them from the queue).
 *
 * Those that ask and change nothing (Evaluate, Compare, Replay) answer for themselves, also when there is no answer. Those that change what is
 * trained are entries of the journal. A failure that is no word on the command is the thread's, and ends it.
 */
#include <inttypes.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "learn/evaluate.h"
#include "learn/purge.h"
#include "learn/served.h"
#include "learn/worker_priv.h"

static int entry(struct worker *w, enum journal_kind kind, const struct command *c, int64_t number, struct errtext *e)
{
	struct journal_entry x = {.kind = kind, .version = c->version, .number = number};
	(void)snprintf(x.text, sizeof x.text, "%s", c->text);
	for (char *s = x.text; *s; s++) /* one line, and no mark of ours in it */
		if (*s < ' ' || *s > '~' || *s == '#')
			*s = ' ';
	return learner_do(w->l, &x, e);
}

/* What the candidate gains, over the pairs: for the pace, once its verdict comes. */
static void note_gain(struct worker *w, const struct command *c, json_t *reply)
{
	json_t *pairs = json_object_get(reply, "pairs"), *x;
	double sum = 0, rounds = 0;
	size_t i;
	json_array_foreach(pairs, i, x) {
		double n = json_number_value(json_object_get(x, "rounds"));
		sum += n * (json_number_value(json_object_get(x, "candidate_al")) - json_number_value(json_object_get(x, "live_al")));
		rounds += n;
	}
	w->judged.version = c->live && rounds > 0 ? c->version : 0; /* against no draft at all there is always something to gain */
	w->judged.gain = rounds > 0 ? sum / rounds : 0;
}

/* What asks and changes nothing came to r: the answer to who asked; or, where that is no word on the question, what ends the thread. */
static int answer_asked(struct worker *w, const struct command *c, int r, json_t *reply, const char *not_enough, const char *what, const struct errtext *why, struct errtext *e)
{
	const char *text = *why->text || r >= 0 ? why->text : strerror(-r);
	if (r > 0)
		worker_answer(w, c, NULL, "io.redraft.NotEnough", not_enough);
	else if (r == -EINVAL || r == -ENOENT)
		worker_answer(w, c, NULL, "io.redraft.BadVersion", text);
	else if (r)
		return errtext_set(e, r, "%s: %s", what, text);
	else
		worker_answer(w, c, reply, NULL, NULL);
	return 0;
}

static int do_evaluate(struct worker *w, const struct command *c, struct errtext *e)
{
	json_t *reply = NULL;
	uint64_t t0 = clock_us();
	struct errtext why = {""};
	int r = evaluate(w->l, c->version, c->live, c->k > 0 && c->k <= TTT_MAX_STEPS ? c->k : w->o.pace.gate_k, c->pinned ? &c->older : NULL, &reply, &why);
	if (!r) {
		note_gain(w, c, reply);
		log_info("evaluated version %u against %u on %d requests and %d pinned ones in %" PRIu64 " ms", c->version, c->live,
			 (int)json_array_size(json_object_get(reply, "pairs")), (int)json_array_size(json_object_get(reply, "pinned")), (clock_us() - t0) / 1000);
	}
	return answer_asked(w, c, r, reply, "no request recorded since the candidate was published has closed yet", "evaluate", &why, e);
}

static int do_compare(struct worker *w, const struct command *c, struct errtext *e)
{
	json_t *reply = NULL;
	struct errtext why = {""};
	int r = served_compare(w->l, c->version, c->k, &reply, &why);
	return answer_asked(w, c, r, reply, "no round that this version served is in the pool", "compare", &why, e);
}

static int do_replay(struct worker *w, const struct command *c, struct errtext *e)
{
	json_t *reply = NULL;
	struct errtext why = {""};
	int r = evaluate_newest(w->l, c->version, c->k, w->o.pace.gate_k, &reply, &why);
	return answer_asked(w, c, r, reply, "no request of the pool has its whole history", "replay", &why, e);
}

static int do_purge(struct worker *w, const struct command *c, struct errtext *e)
{
	struct purged p;
	int r = purge_tenant(w->l, c->text, &p, e);
	if (r)
		return r;
	log_info("purged tenant %s: %d runs, %" PRIu64 " records, %" PRIu64 " bytes", c->text, p.runs, p.records, p.bytes);
	worker_answer(w, c, json_pack("{s:i,s:I,s:I}", "runs", p.runs, "records", (json_int_t)p.records, "bytes", (json_int_t)p.bytes), NULL, NULL);
	return 0;
}

static int do_rebase(struct worker *w, const struct command *c, struct errtext *e)
{
	struct errtext why = {""};
	int r = learner_rebase(w->l, c->version, &why);
	if (r == -EINVAL || r == -ENOENT) {
		worker_answer(w, c, NULL, "io.redraft.BadVersion", *why.text ? why.text : "there is no such version");
		return 0;
	}
	if (r)
		return errtext_set(e, r, "rebase: %s", why.text);
	log_info("rebased to version %u: its weights, fresh moments", c->version);
	worker_answer(w, c, NULL, NULL, NULL);
	return 0;
}

int worker_obey(struct worker *w, const struct command *c, struct errtext *e)
{
	int r = 0;
	switch (c->kind) {
	case CMD_EVALUATE:
		return do_evaluate(w, c, e);
	case CMD_COMPARE:
		return do_compare(w, c, e);
	case CMD_REPLAY:
		return do_replay(w, c, e);
	case CMD_PURGE:
		return do_purge(w, c, e);
	case CMD_REBASE:
		return do_rebase(w, c, e);
	case CMD_PUBLISH:
		worker_publish_now(w, c);
		return 0;
	case CMD_SUBMITTED:
	case CMD_SUBMIT_FAILED:
		return worker_submit_answer(w, c, e);
	case CMD_VERDICT:
		r = entry(w, J_VERDICT, c, 0, e);
		if (!r)
			log_info("version %u: %s; held-out runs are free for training", c->version, c->text);
		if (!r && w->judged.version && w->judged.version == c->version)
			pace_judged(w->pace, w->judged.gain);
		w->judged.version = 0;
		break;
	case CMD_DRIFT:
		r = entry(w, J_DRIFT, c, c->k, e);
		pace_drift(w->pace, c->k);
		break;
	case CMD_PACE:
		w->o.pace = c->pace;
		w->expire_at = 0;
		pace_set(w->pace, &c->pace.governor);
		break;
	case CMD_PAUSE:
	case CMD_RESUME:
		if (w->l->paused != (c->kind == CMD_PAUSE))
			r = entry(w, c->kind == CMD_PAUSE ? J_PAUSE : J_RESUME, c, 0, e);
		break;
	}
	if (!r)
		worker_answer(w, c, NULL, NULL, NULL);
	return r;
}
