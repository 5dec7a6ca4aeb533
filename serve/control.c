/* Which version drafts.
 *
 * The versions that were made live form a stack: activating one puts it on top, going back to one that is in it (running requests
 * move too) takes away what lies above, rolling back takes away the top.
 * `previous` is what a rollback would go to. Serving acts first (the engine's switch),
 * then memory, then disk: a rollback works with the disk full.
 *
 * Rollback needs nothing and waits for nobody: it disowns a running load (control_load.c). A switch that comes under a request id is
 * made once: whoever asks again under it, the daemon or redraftctl when the daemon died in between, gets the answer
 * that it gave.
 */
#include "serve/control.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "daemon/base/rpc.h"
#include "schemas/idl.h"
#include "schemas/manifest.h"
#include "serve/control_inside.h"

static const char *const source_names[] = {"store", "daemon", "operator"};

void PRINTF(3, 4) control_note(struct control *c, bool warn, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	if (!c->o.note)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	c->o.note(warn, text);
}

uint32_t control_live(const struct control *c)
{
	return c->depth > 0 ? c->stack[c->depth - 1] : 0;
}

const struct engine_slot *control_ready(const struct engine_status *s, uint32_t version)
{
	for (int i = 0; i < 4; i++)
		if (version && s->slots[i].version == version && strcmp(s->slots[i].state, "loading") != 0 &&
		    strcmp(s->slots[i].state, "empty") != 0)
			return &s->slots[i];
	return NULL;
}

const char *control_source_name(enum source source)
{
	return source_names[source];
}

uint32_t control_previous(const struct control *c, const struct engine_status *s)
{
	for (int i = c->depth - 2; i >= 0; i--)
		if (control_ready(s, c->stack[i]) && !(c->load && c->load->version == c->stack[i]))
			return c->stack[i];
	return 0;
}

/* back: to one that is in it, and what lies above goes. Forward: an older one too comes to lie on top. */
static void push(struct control *c, uint32_t version, bool back)
{
	int n = 0;

	for (int i = 0; i < c->depth; i++) {
		if (c->stack[i] != version)
			c->stack[n++] = c->stack[i];
		else if (back) {
			c->depth = i + 1;
			return;
		}
	}
	c->depth = n;
	if (version == 0) {
		c->depth = 0;
		return;
	}
	if (c->depth == MAX_STACK) {
		memmove(c->stack, c->stack + 1, (MAX_STACK - 1) * sizeof *c->stack);
		c->depth--;
	}
	c->stack[c->depth++] = version;
}

/* --- persistence --- */

/* What is to be written down. Before anybody is answered: the daemon, once it is, writes a state that is newer than this. */
static struct override to_persist(struct control *c)
{
	struct override o = {.generation = c->generation, .live = control_live(c), .n_left = c->n_left};
	struct engine_status now;
	struct store_state s;
	struct errtext e;

	engine_status(c->o.engine, &now);
	o.previous = control_previous(c, &now);
	memcpy(o.left, c->left, sizeof o.left);
	if (c->source == FROM_OPERATOR && store_state_read(c->o.store, &s, &e) == 0) {
		o.store_generation = s.generation;
		store_state_done(&s);
	}
	return o;
}

static void persist(struct control *c, const struct override *o)
{
	int r;

	if (c->source != FROM_OPERATOR) {
		override_remove(c->o.store, c->o.run_dir);
		return;
	}
	r = override_write(c->o.store, c->o.run_dir, o);
	if (r < 0)
		control_note(c, true, "the operator's switch holds but could not be written down (%s); a restart would forget it", strerror(-r));
}

/* --- switching --- */

static void reply_move(struct rpc_call *call, const struct control_move *m)
{
	rpc_reply(call, json_pack("{s:I,s:I,s:I}", "generation", (json_int_t)m->generation, "live", (json_int_t)m->live, "previous",
				  (json_int_t)m->previous));
}

static void reply_switched(struct control *c, struct rpc_call *call, const json_t *p)
{
	const char *id = json_string_value(json_object_get(p, "request_id"));
	struct engine_status s;

	engine_status(c->o.engine, &s);
	struct control_move m = {.generation = c->generation, .live = control_live(c), .previous = control_previous(c, &s)};
	if (id && *id) {
		snprintf(m.id, sizeof m.id, "%s", id);
		c->moves[c->next_move] = m;
		c->next_move = (c->next_move + 1) % MAX_MOVES;
	}
	reply_move(call, &m);
}

/* A request id that is none, or that has been answered, is answered; true then. */
static bool known_move(struct control *c, struct rpc_call *call, const json_t *p)
{
	const json_t *v = json_object_get(p, "request_id");
	const char *id = json_string_value(v);

	if (v && !json_is_null(v) && (!id || strlen(id) >= REQUEST_ID)) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "request_id: a string of at most %d bytes", REQUEST_ID - 1);
		return true;
	}
	for (int i = 0; id && *id && i < MAX_MOVES; i++)
		if (!strcmp(c->moves[i].id, id)) {
			reply_move(call, &c->moves[i]);
			return true;
		}
	return false;
}

/* Whoever moves the running requests too goes back from what they had. */
static void note_left(struct control *c, uint32_t was, uint32_t version, bool all)
{
	if (!all)
		c->n_left = 0;
	if (!all || !was || was == version)
		return;
	if (c->n_left == MAX_STACK)
		memmove(c->left, c->left + 1, (size_t)--c->n_left * sizeof *c->left);
	c->left[c->n_left++] = was;
}

/* The engine's switch and then our memory of it; persist() is the caller's. */
static int switch_to(struct control *c, uint32_t version, bool all, uint32_t deadline_ms, enum source from, struct errtext *e)
{
	struct engine_status s;
	uint32_t was = control_live(c);
	int r = engine_activate(c->o.engine, version, all, deadline_ms, e);

	if (r < 0)
		return r;
	push(c, version, all);
	note_left(c, was, version, all);
	c->generation++;
	c->source = from;
	engine_status(c->o.engine, &s);
	control_note(c, false, "version %u is live (generation %llu, %s, %s requests), previous %u", version, (unsigned long long)c->generation,
	     source_names[from], all ? "all" : "new", control_previous(c, &s));
	return 0;
}

/* A 32-bit version or so out of the parameters. */
bool control_u32(const json_t *p, const char *name, bool required, uint32_t *ret)
{
	const json_t *v = json_object_get(p, name);

	if (!v || json_is_null(v))
		return !required;
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
		return false;
	*ret = (uint32_t)json_integer_value(v);
	return true;
}

void control_invalid(struct rpc_call *call, const char *name)
{
	rpc_error(call, "org.varlink.service.InvalidParameter", "parameter '%s' is missing or has the wrong type", name);
}

bool control_generation_fits(struct control *c, struct rpc_call *call, const json_t *p)
{
	const json_t *expected = json_object_get(p, "expected_generation");

	if (!expected || json_is_null(expected) || (uint64_t)json_integer_value(expected) == c->generation)
		return true;
	rpc_error(call, "io.redraft.GenerationMismatch", "the generation is %llu", (unsigned long long)c->generation);
	return false;
}

bool control_loading(struct control *c, struct rpc_call *call, uint32_t version)
{
	if (!version || !c->load || c->load->version != version)
		return false;
	rpc_error(call, "io.redraft.Busy", "version %u is being loaded", version);
	return true;
}

static void on_activate(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const char *move = json_string_value(json_object_get(p, "move")), *from = json_string_value(json_object_get(p, "source"));
	uint32_t version, deadline = 0;
	struct errtext e = {""};
	bool all;

	if (!control_u32(p, "version", true, &version)) {
		control_invalid(call, "version");
		return;
	}
	if (!move || (strcmp(move, "new") != 0 && strcmp(move, "all") != 0)) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "move must be \"new\" or \"all\"");
		return;
	}
	if (!control_u32(p, "deadline_ms", false, &deadline)) {
		control_invalid(call, "deadline_ms");
		return;
	}
	if (known_move(c, call, p) || !control_generation_fits(c, call, p) || control_loading(c, call, version))
		return;
	all = strcmp(move, "all") == 0;
	if (switch_to(c, version, all, deadline, from && strcmp(from, "operator") == 0 ? FROM_OPERATOR : FROM_DAEMON, &e) < 0)
		rpc_error(call, "io.redraft.BadVersion", "%s", *e.text ? e.text : "the version is not loaded");
	else {
		struct override o = to_persist(c);

		reply_switched(c, call, p); /* the daemon, who asked, waits for no disk: it writes the state itself */
		persist(c, &o);
	}
}

static void on_rollback(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	struct engine_status s;
	struct errtext e = {""};

	if (known_move(c, call, p))
		return;
	control_load_disown(c);
	engine_status(c->o.engine, &s);
	/* Going back to plain decoding cannot fail for want of a version. */
	if (switch_to(c, control_previous(c, &s), true, 0, FROM_OPERATOR, &e) < 0 && switch_to(c, 0, true, 0, FROM_OPERATOR, &e) < 0)
		rpc_error(call, "io.redraft.BadVersion", "%s", *e.text ? e.text : "the engine is stopping");
	else {
		struct override o = to_persist(c);

		persist(c, &o); /* first: with the daemon dead nobody else writes it down */
		reply_switched(c, call, p);
	}
}

static const struct rpc_method methods[] = {
	{"io.redraft.Serve.Status", RPC_STATUS, on_status},	{"io.redraft.Serve.Load", RPC_CONTROL, on_load},
	{"io.redraft.Serve.Activate", RPC_CONTROL, on_activate}, {"io.redraft.Serve.Unload", RPC_CONTROL, on_unload},
	{"io.redraft.Serve.Rollback", RPC_CONTROL, on_rollback}, {"io.redraft.Serve.SetCapture", RPC_CONTROL, on_capture},
	{"io.redraft.Serve.Config", RPC_STATUS, on_config},
	{"io.redraft.Serve.Canary", RPC_CONTROL, on_canary},
	{"io.redraft.Serve.Probe", RPC_CONTROL, on_probe},
	{NULL, RPC_STATUS, NULL},
};

/* --- start --- */

/* Load one version of the store and check its weights against its manifest. */
static bool restore(struct control *c, uint32_t version)
{
	char dir[PATH_MAX], sha[65];
	struct manifest m;
	struct errtext e = {""};
	bool same;

	if (version == 0)
		return false;
	if (store_version_dir(c->o.store, version, dir, sizeof dir) < 0 || manifest_read(dir, &m, &e) < 0) {
		control_note(c, true, "version %u of the store is not usable: %s", version, e.text);
		return false;
	}
	if (!control_fits_target(c, &m, &e) || engine_load(c->o.engine, version, dir, sha, &e) < 0) {
		control_note(c, true, "version %u of the store cannot be loaded: %s", version, e.text);
		manifest_done(&m);
		return false;
	}
	same = strcmp(sha, m.weights_sha) == 0;
	if (same) {
		control_keep_cut(c, version, m.cut);
		push(c, version, false);
	} else {
		control_note(c, true, "version %u of the store holds other weights than its manifest says; not used", version);
		control_drop(c, version);
	}
	manifest_done(&m);
	return same;
}

static void restore_all(struct control *c)
{
	struct store_state s = {0};
	struct override o;
	struct errtext e = {""};
	int r = store_state_read(c->o.store, &s, &e);
	uint32_t want = s.live, back = s.previous;

	if (r < 0 && r != -ENOENT)
		control_note(c, true, "the store's state cannot be read, ignoring: %s", e.text);
	c->generation = s.generation;
	c->source = FROM_STORE;
	if (override_read(c->o.store, c->o.run_dir, s.generation, &o) == 0) {
		want = o.live;
		back = o.previous;
		c->generation = o.generation;
		c->source = FROM_OPERATOR;
		c->n_left = o.n_left;
		memcpy(c->left, o.left, sizeof c->left);
		control_note(c, false, "an operator's switch to version %u holds", want);
	}
	store_state_done(&s);
	if (back != want)
		(void)restore(c, back);
	if (!restore(c, want)) {
		c->depth = 0; /* the previous one stays loaded but nobody chose it */
		control_note(c, false, "no draft is live: decoding plainly");
		return;
	}
	if (engine_activate(c->o.engine, want, true, 0, &e) < 0) {
		control_note(c, true, "version %u could not be made live: %s", want, e.text);
		c->depth = 0;
		return;
	}
	control_note(c, false, "version %u is live from the start", want);
}

int control_new(const struct control_options *o, struct control **ret, struct errtext *e)
{
	struct control *c = calloc(1, sizeof *c);
	int r;

	if (!c)
		return errtext_set(e, -ENOMEM, "out of memory");
	c->o = *o;
	c->start_us = clock_us();
	c->capture = o->tap != NULL;
	restore_all(c);
	r = rpc_server_new(o->loop, o->run_dir, methods, idl_io_redraft_Serve, c, &c->rpc, e);
	if (r < 0) {
		control_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

struct control *control_free(struct control *c)
{
	if (!c)
		return NULL;
	rpc_server_free(c->rpc);
	control_load_end(c);
	control_probes_end(c);
	for (int i = 0; i < 4; i++)
		json_decref(c->cuts[i].cut);
	free(c);
	return NULL;
}
