/* daemon/rollout.md is what the rollout function does: every event in every state that matters, applied here and written down.
 *
 *   build/release/tests/daemon/test_rollout_table            compares, and names the first line that differs
 *   build/release/tests/daemon/test_rollout_table --write    writes it anew, from the tree's root
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/base/fs.h"
#include "tests/unit/daemon/rollout_drive.h"

static const char path[] = "daemon/rollout.md";

/* ---- states: live 2, previous 1, base 1; what is new is 3 ---- */

static void idle(struct rollout *r)
{
	live_by(r, &canary_rules, 2);
}

static void judging(struct rollout *r)
{
	idle(r);
	EV(r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
}

static void waiting(struct rollout *r)
{
	judging(r);
	EV(r, .kind = RO_EVALUATED, .id = r->eval.id, .result = RO_OK, .text = "better");
}

static void loading(struct rollout *r)
{
	waiting(r);
	now += 1000;
	EV(r, .kind = RO_TICK);
}

static void asking(struct rollout *r)
{
	loading(r);
	loaded(r, 3);
}

static void first_step(struct rollout *r)
{
	asking(r);
	canaried(r, RO_OK);
}

static void last_step(struct rollout *r)
{
	first_step(r);
	EV(r, .kind = RO_JUDGED, .version = 3, .permille = 50, .result = RO_OK, .text = "no harm");
	canaried(r, RO_OK);
}

static void activating(struct rollout *r)
{
	last_step(r);
	EV(r, .kind = RO_JUDGED, .version = 3, .permille = 250, .result = RO_OK, .text = "no harm");
}

static void going_back(struct rollout *r)
{
	idle(r);
	EV(r, .kind = RO_ROLLBACK);
}

static void held(struct rollout *r)
{
	idle(r);
	EV(r, .kind = RO_HOLD);
	passes(r, 3);
	now += 1000;
}

static void pinned(struct rollout *r)
{
	idle(r);
	EV(r, .kind = RO_PIN);
}

static void alarmed(struct rollout *r)
{
	held(r);
	EV(r, .kind = RO_ALARM, .text = "why");
}

static void paused(struct rollout *r)
{
	idle(r);
	EV(r, .kind = RO_PAUSE);
	EV(r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
}

static const struct { const char *name, *what; void (*make)(struct rollout *r); } states[] = {
	{"idle", "Nothing new", idle},
	{"judging", "3 is a candidate, the learner replays it", judging},
	{"gated, waiting", "3 was accepted; the interval has not passed", waiting},
	{"loading", "3 is being loaded", loading},
	{"asking for a canary", "3 is loaded, the server has been asked for its first share", asking},
	{"canary, first step", "3 drafts for 50 of 1000", first_step},
	{"canary, last step", "3 drafts for 250 of 1000", last_step},
	{"activating", "The canary has passed, the server has been asked to make 3 live", activating},
	{"going back", "A rollback is on its way from 2 to 1", going_back},
	{"held, 3 gated", "An operator holds promotions", held},
	{"pinned", "2 is pinned", pinned},
	{"alarm", "Held by an alarm, 3 is gated", alarmed},
	{"paused", "The rollout is paused, 3 is a candidate", paused},
};

/* ---- events ---- */

#define TEXT .text = "x"
static const struct { const char *name; struct ro_event ev; bool op, eval; /* its id is the one that is out */ } events[] = {
	{"tick, when all is due", {.kind = RO_TICK}, 0, 0},
	{"tick, in a freeze window", {.kind = RO_TICK, .frozen = true}, 0, 0},
	{"submitted 4, made from 2", {.kind = RO_SUBMITTED, .version = 4, .parent = 2}, 0, 0},
	{"evaluated: accept", {.kind = RO_EVALUATED, .result = RO_OK, TEXT}, 0, 1},
	{"evaluated: reject", {.kind = RO_EVALUATED, .result = RO_BAD, TEXT}, 0, 1},
	{"evaluated: undecided", {.kind = RO_EVALUATED, .result = RO_LATER, TEXT}, 0, 1},
	{"evaluated: undecided on all there is", {.kind = RO_EVALUATED, .result = RO_LATER, .full = true, TEXT}, 0, 1},
	{"evaluated: not replayable", {.kind = RO_EVALUATED, .result = RO_UNFIT, TEXT}, 0, 1},
	{"loaded", {.kind = RO_LOADED, .version = 3, .result = RO_OK}, 1, 0},
	{"loaded: other weights", {.kind = RO_LOADED, .version = 3, .result = RO_MISMATCH, TEXT}, 1, 0},
	{"loaded: refused", {.kind = RO_LOADED, .version = 3, .result = RO_BAD, TEXT}, 1, 0},
	{"loaded: busy, no slot", {.kind = RO_LOADED, .version = 3, .result = RO_LATER, TEXT}, 1, 0},
	{"loaded: nobody there", {.kind = RO_LOADED, .version = 3, .result = RO_NOBODY, TEXT}, 1, 0},
	{"canary: done", {.kind = RO_CANARIED, .version = 3, .permille = 50, .salt = "salt", .result = RO_OK}, 1, 0},
	{"canary: generation differs", {.kind = RO_CANARIED, .result = RO_GENERATION, TEXT}, 1, 0},
	{"canary: refused", {.kind = RO_CANARIED, .result = RO_BAD, TEXT}, 1, 0},
	{"canary seen: harm", {.kind = RO_JUDGED, .version = 3, .result = RO_BAD, TEXT}, 0, 0},
	{"canary seen: enough, no harm", {.kind = RO_JUDGED, .version = 3, .result = RO_OK, TEXT}, 0, 0},
	{"canary seen: few requests, no harm", {.kind = RO_JUDGED, .version = 3, .result = RO_LATER, TEXT}, 0, 0},
	{"activated", {.kind = RO_ACTIVATED, .result = RO_OK, .generation = 9}, 1, 0},
	{"activated: generation differs", {.kind = RO_ACTIVATED, .result = RO_GENERATION, TEXT}, 1, 0},
	{"activated: refused", {.kind = RO_ACTIVATED, .result = RO_BAD, TEXT}, 1, 0},
	{"activated: nobody there", {.kind = RO_ACTIVATED, .result = RO_NOBODY, TEXT}, 1, 0},
	{"server seen as we left it, without a canary", {.kind = RO_SERVER, .version = 2, .generation = 2}, 0, 0},
	{"server seen with 2, moved by an operator", {.kind = RO_SERVER, .version = 2, .generation = 9, .by_operator = true}, 0, 0},
	{"server seen with 1, moved by an operator", {.kind = RO_SERVER, .version = 1, .generation = 9, .by_operator = true}, 0, 0},
	{"server seen with 3, by our own hand", {.kind = RO_SERVER, .version = 3, .generation = 9, .by_daemon = true}, 0, 0},
	{"server seen with 1, gone back there by ourselves", {.kind = RO_SERVER, .version = 1, .generation = 9, .by_daemon = true, .left = (const uint32_t[]){2}, .n_left = 1}, 0, 0},
	{"server seen with 1, an operator promoted it", {.kind = RO_SERVER, .version = 1, .generation = 9, .by_operator = true, .left = (const uint32_t[]){2}, .n_left = 0}, 0, 0},
	{"server seen without a draft", {.kind = RO_SERVER}, 0, 0},
	{"server gone", {.kind = RO_SERVER_GONE}, 0, 0},
	{"learner gone", {.kind = RO_LEARNER_GONE}, 0, 0},
	{"promote 1", {.kind = RO_PROMOTE, .version = 1, .expected = -1}, 0, 0},
	{"rollback", {.kind = RO_ROLLBACK}, 0, 0},
	{"collapsed", {.kind = RO_COLLAPSED, .version = 2, TEXT}, 0, 0},
	{"pin", {.kind = RO_PIN}, 0, 0},
	{"unpin", {.kind = RO_UNPIN}, 0, 0},
	{"hold", {.kind = RO_HOLD}, 0, 0},
	{"release", {.kind = RO_RELEASE}, 0, 0},
	{"pause", {.kind = RO_PAUSE}, 0, 0},
	{"resume", {.kind = RO_RESUME}, 0, 0},
	{"alarm", {.kind = RO_ALARM, TEXT}, 0, 0},
	{"the fleet's leader is at 3", {.kind = RO_FOLLOW, .version = 3, .text = "host"}, 0, 0},
	{"the fleet's leader is at 1", {.kind = RO_FOLLOW, .version = 1, .text = "host"}, 0, 0},
};

/* ---- in words ---- */

static void PRINTF(2, 3) put(char *out, const char *fmt, ...)
{
	size_t n = strlen(out);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(out + n, 600 - n, fmt, ap);
	va_end(ap);
}

static void what_changed(const struct rollout *a, const struct rollout *b, char *out)
{
	for (uint32_t n = 1; n <= 4; n++) {
		const struct version_entry *x = rollout_find(a, n), *y = rollout_find(b, n);

		if (y && (!x || x->state != y->state))
			put(out, "%s%u %s", out[0] ? ", " : "", n, version_state_name(y->state));
	}
	if (a->s.canary.version && b->s.canary.version && a->s.canary.permille != b->s.canary.permille)
		put(out, "%scanary %u", out[0] ? ", " : "", b->s.canary.permille);
	if (a->s.hold != b->s.hold)
		put(out, "%s%s", out[0] ? ", " : "", b->s.hold ? "held" : "hold over");
	if (a->s.paused != b->s.paused)
		put(out, "%s%s", out[0] ? ", " : "", b->s.paused ? "paused" : "goes on");
	if (a->s.pin != b->s.pin)
		put(out, "%s%s", out[0] ? ", " : "", b->s.pin ? "pinned" : "pin over");
	if (!a->s.alarm[0] != !b->s.alarm[0])
		put(out, "%s%s", out[0] ? ", " : "", b->s.alarm[0] ? "alarm" : "alarm over");
}

static void what_is_done(char *out)
{
	for (int i = 0; i < acts.n; i++) {
		const struct ro_action *x = &acts.a[i];

		if (x->kind == RO_DO_LOG || x->kind == RO_DO_COLLECT)
			continue;
		put(out, "%s", out[0] ? "; " : "");
		switch (x->kind) {
		case RO_DO_EVALUATE: put(out, "evaluate %u against %u", x->version, x->against); break;
		case RO_DO_LOAD: put(out, "load %u", x->version); break;
		case RO_DO_ACTIVATE: put(out, "activate %u%s%s", x->version, x->all ? ", all" : "", x->checked ? ", checked" : ""); break;
		case RO_DO_CANARY:
			if (x->version)
				put(out, "canary %u at %u", x->version, x->permille);
			else
				put(out, "canary: none");
			break;
		case RO_DO_UNLOAD: put(out, "unload %u", x->version); break;
		case RO_DO_VERDICT: put(out, "verdict %u %s", x->version, x->verdict); break;
		case RO_DO_REBASE: put(out, "rebase %u", x->version); break;
		case RO_DO_PAUSE: put(out, "pause training"); break;
		case RO_DO_RESUME: put(out, "resume training"); break;
		case RO_DO_SAVE: put(out, "save"); break;
		case RO_DO_LOOK: put(out, "look"); break;
		case RO_DO_ANSWER: put(out, "answer: %s", x->error ? strrchr(x->error, '.') + 1 : "done"); break;
		case RO_DO_COLLECT:
		case RO_DO_LOG: break;
		}
	}
}

static void rows_of(size_t s, FILE *out)
{
	fprintf(out, "\n## %s\n\n%s.\n\n| event | becomes | done, in this order |\n|---|---|---|\n", states[s].name, states[s].what);
	for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
		char changed[600] = "", done[600] = "";
		struct ro_event ev = events[i].ev;
		struct rollout r, before;

		states[s].make(&r);
		before = r;
		assert_int_equal(store_state_copy(&before.s, &r.s), 0);
		ev.id = events[i].op ? r.op.id : events[i].eval ? r.eval.id : 0;
		if (ev.kind == RO_SUBMITTED)
			ev.version = r.s.next_number;
		if (ev.kind == RO_JUDGED)
			ev.permille = r.s.canary.permille;
		if (ev.kind == RO_TICK)
			now += 1000;
		apply(&r, ev);
		what_changed(&before, &r, changed);
		what_is_done(done);
		if (changed[0] || done[0])
			fprintf(out, "| %s | %s | %s |\n", events[i].name, changed, done);
		rollout_done(&before);
		rollout_done(&r);
	}
}

static char *table(void)
{
	char *text = NULL;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	assert_non_null(out);
	fprintf(out, "# What follows what in the rollout\n\n"
		     "Written by `tests/unit/daemon/test_rollout_table.c`, which applies every event to every state below and fails when this page says something\n"
		     "else (`--write` writes it anew). Live is version 2, previous and base 1, both steps of the canary are set; what is new is 3. Events that change\n"
		     "nothing are left out; a line in the log goes with most of the others. After a server or learner answers, whatever is due starts by itself.\n");
	for (size_t s = 0; s < sizeof states / sizeof *states; s++)
		rows_of(s, out);
	fclose(out);
	return text;
}

static void the_page_is_true(void **state)
{
	char *want = table(), *have = NULL;
	int line = 1;

	(void)state;
	if (fs_read_text(path, 1 << 20, &have))
		fail_msg("%s cannot be read: run from the tree's root", path);
	for (const char *a = want, *b = have; *a || *b; a++, b++) {
		if (*a != *b)
			fail_msg("%s:%d is not what the function does; --write writes it anew", path, line);
		line += *a == '\n';
	}
	free(want);
	free(have);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(the_page_is_true)};

	if (argc > 1 && !strcmp(argv[1], "--write")) {
		char *text = table();
		int r = fs_write_atomic(path, text, strlen(text));

		free(text);
		return r ? 1 : 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
