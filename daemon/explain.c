/* Explaining (explain.h). First what the version is, then what keeps it there, then what would change it. Only what the
 * rollout's state says is said; nothing is guessed.
 */
#include "daemon/explain.h"
#include <math.h>
#include <string.h>
#include "daemon/base/buf.h"
#include "daemon/report.h"

struct story {
	json_t *reasons;
	struct buf text;
};

static void PRINTF(2, 3) say(struct story *s, const char *fmt, ...)
{
	char line[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	(void)json_array_append_new(s->reasons, report_text(line));
	if (buf_printf(&s->text, "%s%s", s->text.len ? " " : "", line) < 0)
		return; /* the list still has it */
}

static double number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

/* What the gate measured, if it judged: the figures, and the domain that decided. */
static void say_gate(struct story *s, const json_t *verdict)
{
	double candidate = number(verdict, "candidate_al"), live = number(verdict, "live_al");
	const char *name;
	json_t *d, *before;

	if (!verdict)
		return;
	if (isfinite(candidate) && isfinite(live))
		say(s, "The gate replayed both on the same requests: accept length %.3f against %.3f of version %lld.", candidate, live,
		    (long long)json_integer_value(json_object_get(verdict, "against")));
	json_object_foreach(json_object_get(verdict, "domains"), name, d)
		if (number(d, "upper") < 0)
			say(s, "In domain %.40s it is surely worse: %.3f against %.3f on %lld requests (difference at most %.3f).", name, number(d, "candidate_al"),
			    number(d, "live_al"), (long long)json_integer_value(json_object_get(d, "requests")), number(d, "upper"));
	json_object_foreach(json_object_get(verdict, "pinned"), name, d)
		say(s, "On %lld pinned older requests of domain %.40s it has %.3f against %.3f (difference %+.3f, at most %+.3f).",
		    (long long)json_integer_value(json_object_get(d, "requests")), name, number(d, "candidate_al"), number(d, "live_al"),
		    number(d, "difference"), number(d, "upper"));
	json_object_foreach(json_object_get(verdict, "pinned"), name, d)
		if ((before = json_object_get(d, "before")))
			say(s, "Version %lld, the last that was judged while %.40s was asked, has %.3f there (difference %+.3f, at most %+.3f).",
			    (long long)json_integer_value(json_object_get(before, "version")), name, number(before, "accept_length"), number(before, "difference"),
			    number(before, "upper"));
}

static const char *phase_word(enum ro_phase p)
{
	return p == RO_LOADING ? "loaded" : p == RO_CANARYING ? "put on canary" : "activated";
}

static void say_blocks(struct story *s, const struct rollout *r, uint32_t version, const char *decay, uint64_t now_us)
{
	int blocks = 0;

	if (r->s.pin && r->s.pin != version) {
		say(s, "Version %u is pinned, so nothing else goes live until `redraftctl unpin`.", r->s.pin);
		blocks++;
	}
	if (r->s.hold) {
		say(s, "Promotions are held until `redraftctl release`.");
		blocks++;
		if (decay[0])
			say(s, "They are held because the engine does not do what its weights say: %s.", decay);
	}
	if (r->s.paused) {
		say(s, "The rollout is paused until `redraftctl resume`.");
		blocks++;
	}
	if (r->frozen) {
		say(s, "A freeze window is open: nothing is promoted until it ends.");
		blocks++;
	}
	if (!r->serve_up) {
		say(s, "The server does not answer; it is looked for once a second.");
		blocks++;
	}
	if (r->op.phase != RO_IDLE && r->op.version != version)
		say(s, "Version %u is being %s just now; one switch runs at a time.", r->op.version, phase_word(r->op.phase));
	else if (r->op.phase != RO_IDLE)
		say(s, "It is being %s just now.", phase_word(r->op.phase));
	else if (r->s.canary.version == version)
		say(s, "Its share grows, and then it goes live, as its requests show no harm (canary.steps, canary.requests, canary.step_s).");
	else if (r->s.canary.version)
		say(s, "Version %u is on canary, and there is one canary at a time.", r->s.canary.version);
	else if (r->next_promotion_us > now_us && r->s.live)
		say(s, "The next promotion may come in %llu s (rollout.interval_s).", (unsigned long long)((r->next_promotion_us - now_us) / 1000000 + 1));
	else if (r->retry_us > now_us)
		say(s, "The last try came to nothing and is repeated in %llu s.", (unsigned long long)((r->retry_us - now_us) / 1000000 + 1));
	else if (!blocks)
		say(s, "Nothing stands in its way: %s within a second.", r->rules.n_steps ? "its canary begins" : "it goes live");
}

static void say_candidate(struct story *s, const struct rollout *r, const struct version_entry *v, uint64_t now_us)
{
	say(s, "Version %u is a candidate: it has no verdict yet.", v->number);
	if (!r->learn_up)
		say(s, "The learner, who replays it for the gate, does not answer; it is looked for once a second.");
	else if (r->eval.running && r->eval.version == v->number)
		say(s, "The learner is replaying it against version %u now (waiting for %llu s).", r->eval.against,
		    (unsigned long long)((now_us - r->eval.since_us) / 1000000));
	else if (r->eval.version == v->number && r->eval.again_us > now_us)
		say(s, "So far there are too few requests to tell; the gate looks again in %llu s, and gives up %llu s after it was submitted.",
		    (unsigned long long)((r->eval.again_us - now_us) / 1000000 + 1), (unsigned long long)(r->rules.max_wait_us / 1000000));
	else
		say(s, "It waits for its turn at the gate.");
}

static void say_past(struct story *s, const struct rollout *r, const struct version_entry *v, const json_t *verdict)
{
	const char *why = v->reason[0] ? v->reason : "no reason is recorded";

	switch (v->state) {
	case VS_PREVIOUS:
	case VS_RETIRED:
		say(s, "Version %u has served and version %u has taken its place.", v->number, r->s.live);
		say(s, v->state == VS_PREVIOUS ? "A rollback would go back to it." : "It is kept so that one can go back to it.");
		break;
	case VS_REJECTED:
		say(s, "Version %u was refused: %s.", v->number, why);
		say_gate(s, verdict);
		break;
	default:
		say(s, "Version %u is quarantined: %s.", v->number, why);
		say_gate(s, verdict);
		break;
	}
	say(s, "`redraftctl promote %u` makes it live whatever was decided.", v->number);
}

static void say_live(struct story *s, const struct rollout *r, const struct version_entry *v)
{
	say(s, "Version %u is live: new requests draft with it.", v->number);
	if (!r->serve_up)
		say(s, "The server does not answer, though; it takes this version when it starts.");
	else if (r->serve_live != v->number)
		say(s, "But the server drafts with version %u at this moment; it is being put right.", r->serve_live);
}

json_t *explain_version(const struct rollout *r, uint32_t version, const json_t *verdict, const char *decay, uint64_t now_us)
{
	const struct version_entry *v = rollout_find(r, version);
	struct story s = {.reasons = json_array(), .text = BUF_INIT(16 << 10)};
	json_t *j;

	if (!v) {
		json_decref(s.reasons);
		return NULL;
	}
	if (r->s.live == version) {
		say_live(&s, r, v);
	} else if (v->state == VS_CANDIDATE) {
		say_candidate(&s, r, v, now_us);
	} else if (v->state == VS_GATED || v->state == VS_CANARY) {
		if (v->state == VS_CANARY)
			say(&s, "Version %u is on canary: %u of 1,000 conversations draft with it.", version, r->s.canary.permille);
		else
			say(&s, "Version %u was accepted by the gate and waits to go live.", version);
		say_gate(&s, verdict);
		say_blocks(&s, r, version, decay, now_us);
	} else {
		say_past(&s, r, v, verdict);
	}
	j = json_pack("{s:I, s:b, s:s, s:o, s:o}", "version", (json_int_t)version, "live", r->s.live == version, "state", version_state_name(v->state), "text",
		      report_text(buf_append(&s.text, "", 1) == 0 ? (char *)s.text.data : ""), "reasons", s.reasons);
	buf_done(&s.text);
	return j;
}
