/* The server's side of what the daemon does: looks at it, loads, activations, canaries. Each
 * answer goes back to the rollout as an event that carries the id of its operation.
 */
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/act_inside.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/loop_guard.h"

enum { SERVE_SILENT_MAX = 3 };

struct act_call { /* a load, a canary or an activation that is out */
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
				       .left = x->status->n_left >= 0 ? x->status->left : NULL, .n_left = x->status->n_left,
				       .by_operator = x->status->by_operator, .by_daemon = x->status->by_daemon};
	}
	act_event(a, &ev);
}

void act_look(struct act *a)
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

void act_load(struct act *a, const struct ro_action *x)
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

void act_activate(struct act *a, const struct ro_action *x)
{
	struct act_call *c = act_call_new(a, x);

	a->engine_seq++;
	if (!c) {
		log_error("out of memory while activating version %u; restart redraftd if this lasts", x->version);
		return;
	}
	a->engine.kind->activate(&a->engine, x->version, x->all, x->checked ? (int64_t)x->generation : -1, x->by_operator, x->text,
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

void act_canary_call(struct act *a, const struct ro_action *x)
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
