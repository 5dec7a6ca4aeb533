/* Probes on their way: base into a slot, the prompts to the server, the answer against the references (act_probe.h). */
#include "daemon/act_probe.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/act_inside.h"
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/sha.h"

enum { PROBE_TOKENS = 32 };
static const char reference_file[] = "probe.json";
static const uint64_t retry_us = 60000000;

/* Pinned: to change one is to change what all references were taken with. */
static const char *const prompts[] = {
	"The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
	"def fibonacci(n):\n    if n < 2:\n        return n\n    return",
	"Once upon a time there was a small village at the foot of a mountain. In this village lived",
	"{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\", \"unit\": \"celsius\"}}\n{\"name\": \"get_weather\", \"arguments\":",
	"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
	"Water boils at one hundred degrees Celsius at sea level because",
	"SELECT name, price FROM items WHERE price > 10 ORDER BY price; SELECT name,",
	"Dear Sir or Madam, I am writing to you about the order that I placed last week, which",
};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

static json_t *prompt_list(char ret_sha[static SHA_HEX])
{
	json_t *list = json_array();
	struct sha *s = sha_new();

	for (int i = 0; i < N_PROMPTS; i++) {
		(void)json_array_append_new(list, json_string(prompts[i]));
		if (s)
			sha_update(s, prompts[i], strlen(prompts[i]) + 1);
	}
	ret_sha[0] = '\0';
	if (s)
		sha_final_hex(s, ret_sha);
	sha_free(s);
	return list;
}

/* Taken of the same target, draft, chain length and prompts? */
static bool comparable(const struct act *a, const json_t *reference, const json_t *seen)
{
	const char *fp = json_string_value(json_object_get(reference, "target_fp")), *sha = json_string_value(json_object_get(reference, "prompts_sha"));
	const char *draft = json_string_value(json_object_get(reference, "weights_sha"));

	return fp && !strcmp(fp, a->target_fp) && sha && !strcmp(sha, a->probe.prompts_sha) && draft && !strcmp(draft, a->probe.weights_sha) &&
	       json_integer_value(json_object_get(reference, "k")) == json_integer_value(json_object_get(seen, "k"));
}

static int write_reference(struct act *a, const json_t *seen)
{
	char path[PATH_MAX], now[32], *text;
	json_t *j = json_copy((json_t *)(uintptr_t)seen);
	int r = j ? 0 : -ENOMEM;

	clock_iso8601(clock_wall_ms(), now);
	if (!r && (json_object_set_new(j, "schema", json_integer(1)) || json_object_set_new(j, "created", json_string(now)) ||
		   json_object_set_new(j, "target_fp", json_string(a->target_fp)) || json_object_set_new(j, "prompts_sha", json_string(a->probe.prompts_sha)) ||
		   json_object_set_new(j, "weights_sha", json_string(a->probe.weights_sha))))
		r = -ENOMEM;
	text = r ? NULL : json_dumps(j, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	snprintf(path, sizeof path, "%s/%s", store_path(a->store), reference_file);
	if (!r)
		r = text ? fs_write_atomic(path, text, strlen(text)) : -ENOMEM;
	free(text);
	json_decref(j);
	if (r < 0)
		log_warn("probe references cannot be written to %.200s: %s", path, strerror(-r));
	return r;
}

static void answer(struct act *a, json_t *outcome, const char *error, const char *text)
{
	struct act_probing *p = &a->probe;
	act_probed *done = p->done;

	p->running = false;
	p->done = NULL;
	if (done)
		done(p->arg, outcome, error, text);
	else
		json_decref(outcome);
}

static void failed(struct act *a, const char *why)
{
	a->probe.next_us = clock_us() + retry_us;
	log_debug("probes: %s", why);
	answer(a, NULL, "io.redraft.Busy", why);
}

static void judge(struct act *a, const json_t *seen)
{
	struct act_probing *p = &a->probe;
	json_t *reference = store_json_in(store_path(a->store), reference_file);
	bool make = p->record || !reference || !comparable(a, reference, seen), moved = false;
	char text[RO_TEXT] = "";
	int r = 0;

	if (make) {
		r = write_reference(a, seen);
		snprintf(text, sizeof text, "probes: references %s, of version %u", r ? "could not be written" : "recorded", p->version);
	} else {
		r = probe_compare(&a->o.probe, reference, seen, &moved, text, sizeof text);
	}
	json_decref(reference);
	p->moved = moved ? p->moved + 1 : 0;
	p->next_us = clock_us() + (moved && p->moved < 2 ? 0 : a->o.probe.every_us); /* once may be chance: look again at once */
	metric_set(metrics_gauge(a->metrics, "redraft_probe_moved", NULL, "1 while the pinned probes give other features or another accept length than their references."), moved);
	log_info("%s", text);
	if (p->moved >= 2)
		act_alarm(a, text);
	answer(a, json_pack("{s:b, s:b, s:s, s:O}", "moved", moved, "recorded", make && !r, "text", text, "seen", seen), NULL, "");
}

static void probed(void *arg, const struct engine_answer *x)
{
	struct act *a = arg;

	if (x->result == RO_OK && x->raw)
		judge(a, x->raw);
	else
		failed(a, x->text[0] ? x->text : "the server does not answer");
}

static void loaded(void *arg, const struct engine_answer *x)
{
	struct act *a = arg;
	struct act_probing *p = &a->probe;

	if (x->result != RO_OK || !x->weights_sha || strcmp(x->weights_sha, p->weights_sha)) {
		failed(a, x->result == RO_OK ? "the server holds other weights of base than the store" : x->text);
		return;
	}
	a->engine.kind->probe(&a->engine, p->version, prompt_list(p->prompts_sha), PROBE_TOKENS, probed, a);
}

/* Base does not change while it is probed with, whatever else goes on: it is loaded beside, and the server makes room by itself. */
static void begin(struct act *a)
{
	struct act_probing *p = &a->probe;
	struct manifest m;
	char dir[PATH_MAX];

	p->running = true;
	p->version = a->r.s.base;
	if (!p->version || !a->engine.kind->probe || store_version_dir(store_path(a->store), p->version, dir, sizeof dir) < 0 || manifest_read(dir, &m, NULL) < 0) {
		failed(a, "there is no base version to probe with");
		return;
	}
	memcpy(p->weights_sha, m.weights_sha, sizeof p->weights_sha);
	manifest_done(&m);
	a->engine.kind->load(&a->engine, p->version, dir, p->weights_sha, loaded, a);
}

void act_probe(struct act *a)
{
	struct act_probing *p = &a->probe;

	if (p->running || !a->o.probe.every_us || clock_us() < p->next_us || !a->r.serve_up || a->r.op.phase != RO_IDLE || !a->r.s.live)
		return;
	p->record = false;
	begin(a);
}

void act_probe_now(struct act *a, bool record, act_probed *done, void *arg)
{
	struct act_probing *p = &a->probe;

	if (p->running || a->r.op.phase != RO_IDLE) {
		done(arg, NULL, "io.redraft.Busy", p->running ? "probes are running" : "the server is being switched");
		return;
	}
	if (!a->r.serve_up) {
		done(arg, NULL, "io.redraft.ServerAbsent", "the server does not answer");
		return;
	}
	p->record = record;
	p->done = done;
	p->arg = arg;
	begin(a);
}
