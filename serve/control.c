/* Which version drafts.
 *
 * The versions that were made live form a stack: activating a new one pushes it,
 * going to one that is in it takes away what lies above, rolling back takes away the top.
 * `previous` is what a rollback would go to. Serving acts first (the engine's switch),
 * then memory, then disk: a rollback works with the disk full.
 *
 * A load reads and packs a version for a second or so and runs on its own
 * thread; a second one is answered Busy. Rollback needs nothing and waits for nobody:
 * it disowns a running load.
 */
#include "serve/control.h"
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"
#include "schemas/idl.h"
#include "schemas/manifest.h"
#include "serve/control_inside.h"
#include "serve/override.h"
#include "serve/tap.h"

enum { LOAD_NICE = 5 };
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

static uint32_t live(const struct control *c)
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

/* What a rollback would go to: the next in the stack that is still held. */
static uint32_t previous(const struct control *c, const struct engine_status *s)
{
	for (int i = c->depth - 2; i >= 0; i--)
		if (control_ready(s, c->stack[i]) && !(c->load && c->load->version == c->stack[i]))
			return c->stack[i];
	return 0;
}

static void push(struct control *c, uint32_t version)
{
	for (int i = 0; i < c->depth; i++)
		if (c->stack[i] == version) {
			c->depth = i + 1;
			return;
		}
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

static void keep_cut(struct control *c, uint32_t version, const char *dir)
{
	struct manifest m;
	struct errtext e;

	if (manifest_read(dir, &m, &e) < 0)
		return; /* not a version folder of the store: nothing to report */
	json_decref(c->cuts[c->next_cut].cut);
	c->cuts[c->next_cut].version = version;
	c->cuts[c->next_cut].cut = json_incref(m.cut);
	c->next_cut = (c->next_cut + 1) % 4;
	manifest_done(&m);
}

/* Same shapes do not make a draft fit: was this version made for our target? A folder without
 * a manifest is somebody's experiment and is taken at its word. */
static bool fits_target(struct control *c, const char *dir, struct errtext *e)
{
	struct errtext ignored;
	struct manifest m;
	bool fits;

	if (manifest_read(dir, &m, &ignored) < 0)
		return true;
	fits = strcmp(m.target_fp, c->o.target_fp) == 0;
	if (!fits)
		errtext_set(e, -EINVAL, "it was made for another target (fingerprint %.12s, this server holds %.12s)", m.target_fp, c->o.target_fp);
	manifest_done(&m);
	return fits;
}

static void drop_version(struct control *c, uint32_t version)
{
	struct errtext e = {""};

	if (engine_unload(c->o.engine, version, &e) < 0)
		control_note(c, true, "version %u keeps its slot: %s", version, e.text);
}

/* --- persistence --- */

/* What is to be written down. Before anybody is answered: the daemon, once it is, writes a state that is newer than this. */
static struct override to_persist(struct control *c)
{
	struct override o = {.generation = c->generation, .live = live(c)};
	struct engine_status now;
	struct store_state s;
	struct errtext e;

	engine_status(c->o.engine, &now);
	o.previous = previous(c, &now);
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

static void reply_switched(struct control *c, struct rpc_call *call)
{
	struct engine_status s;

	engine_status(c->o.engine, &s);
	rpc_reply(call, json_pack("{s:I,s:I,s:I}", "generation", (json_int_t)c->generation, "live", (json_int_t)live(c), "previous",
				  (json_int_t)previous(c, &s)));
}

/* The engine's switch and then our memory of it; persist() is the caller's. */
static int switch_to(struct control *c, uint32_t version, bool all, uint32_t deadline_ms, enum source from, struct errtext *e)
{
	struct engine_status s;
	int r = engine_activate(c->o.engine, version, all, deadline_ms, e);

	if (r < 0)
		return r;
	push(c, version);
	c->generation++;
	c->source = from;
	engine_status(c->o.engine, &s);
	control_note(c, false, "version %u is live (generation %llu, %s, %s requests), previous %u", version, (unsigned long long)c->generation,
	     source_names[from], all ? "all" : "new", previous(c, &s));
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
	if (!control_generation_fits(c, call, p))
		return;
	if (control_loading(c, call, version))
		return;
	all = strcmp(move, "all") == 0;
	if (switch_to(c, version, all, deadline, from && strcmp(from, "operator") == 0 ? FROM_OPERATOR : FROM_DAEMON, &e) < 0)
		rpc_error(call, "io.redraft.BadVersion", "%s", *e.text ? e.text : "the version is not loaded");
	else {
		struct override o = to_persist(c);

		reply_switched(c, call); /* the daemon, who asked, waits for no disk: it writes the state itself */
		persist(c, &o);
	}
}

static void on_rollback(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	struct engine_status s;
	struct errtext e = {""};

	(void)p;
	if (c->load && !c->load->disowned) {
		c->load->disowned = true;
		if (c->load->call)
			rpc_error(c->load->call, "io.redraft.Busy", "the load was cancelled by a rollback");
		c->load->call = NULL;
	}
	engine_status(c->o.engine, &s);
	/* Going back to plain decoding cannot fail for want of a version. */
	if (switch_to(c, previous(c, &s), true, 0, FROM_OPERATOR, &e) < 0 && switch_to(c, 0, true, 0, FROM_OPERATOR, &e) < 0)
		rpc_error(call, "io.redraft.BadVersion", "%s", *e.text ? e.text : "the engine is stopping");
	else {
		struct override o = to_persist(c);

		persist(c, &o); /* first: with the daemon dead nobody else writes it down */
		reply_switched(c, call);
	}
}

/* --- loading --- */

/* Make room: versions that are neither live nor what a rollback goes to, and idle. */
static void make_room(struct control *c)
{
	struct engine_status s;
	struct errtext e;

	engine_status(c->o.engine, &s);
	for (int i = 0; i < 4; i++)
		if (strcmp(s.slots[i].state, "empty") == 0)
			return;
	for (int i = 0; i < 4; i++) {
		uint32_t v = s.slots[i].version;
		if (control_ready(&s, v) && v != live(c) && v != previous(c, &s) && s.slots[i].requests == 0 && engine_unload(c->o.engine, v, &e) == 0) {
			control_note(c, false, "version %u left its slot to a new one", v);
			return;
		}
	}
}

static void load_answer(struct load_job *j)
{
	bool later = j->result == -EBUSY || j->result == -ENOMEM || j->result == -EMFILE; /* says nothing against the version */
	const char *error = j->result == -ENOSPC ? "io.redraft.NoSlot" : later ? "io.redraft.Busy" : "io.redraft.BadVersion";

	if (!j->call)
		return;
	if (j->result < 0)
		rpc_error(j->call, error, "%s", *j->e.text ? j->e.text : j->result == -ENOSPC ? "no slot is free" : strerror(-j->result));
	else
		rpc_reply(j->call, json_pack("{s:I,s:s}", "version", (json_int_t)j->version, "weights_sha", j->sha));
}

/* On the loop: the load is over. A version with other weights than the caller named, or
 * that nobody waits for any more, does not stay. */
static void load_over(void *arg)
{
	struct load_job *j = arg;
	struct control *c = j->c;
	bool mismatch = j->result == 0 && *j->expect && strcmp(j->expect, j->sha) != 0;

	pthread_join(j->thread, NULL);
	if (j->result == 0 && (mismatch || j->disowned))
		drop_version(c, j->version);
	else if (j->result == 0)
		keep_cut(c, j->version, j->path);
	if (j->result < 0)
		control_note(c, true, "version %u was not loaded: %s", j->version, *j->e.text ? j->e.text : strerror(-j->result));
	else
		control_note(c, mismatch, "version %u %s", j->version,
		     mismatch    ? "holds other weights than were asked for; unloaded"
		     : j->disowned ? "was loaded but a rollback had come; unloaded"
				   : "is loaded");
	c->load = NULL;
	load_answer(j);
	free(j);
}

static void *load_main(void *arg)
{
	struct load_job *j = arg;

	/* Packing is long and urgent to nobody; decoding goes first. */
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LOAD_NICE);
	j->result = engine_load(j->c->o.engine, j->version, j->path, j->sha, &j->e);
	while (loop_post(j->c->o.loop, load_over, j) < 0)
		usleep(10000);
	return NULL;
}

static void start_load(struct control *c, struct rpc_call *call, uint32_t version, const char *path, const char *expect)
{
	struct load_job *j = calloc(1, sizeof *j);

	make_room(c);
	if (!j) {
		rpc_error(call, "io.redraft.Busy", "out of memory");
		return;
	}
	j->c = c;
	j->call = call;
	j->version = version;
	(void)snprintf(j->path, sizeof j->path, "%s", path);
	(void)snprintf(j->expect, sizeof j->expect, "%s", expect);
	if (pthread_create(&j->thread, NULL, load_main, j) != 0) {
		free(j);
		rpc_error(call, "io.redraft.Busy", "no thread could be started");
		return;
	}
	c->load = j;
}

static void on_load(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const char *path = json_string_value(json_object_get(p, "path")), *sha = json_string_value(json_object_get(p, "weights_sha"));
	const struct engine_slot *slot;
	struct engine_status s;
	struct errtext e;
	uint32_t version;

	if (!control_u32(p, "version", true, &version) || version == 0) {
		control_invalid(call, "version");
		return;
	}
	if (!path || *path != '/' || strlen(path) >= PATH_MAX) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "path must be absolute");
		return;
	}
	if (!sha || (*sha && strlen(sha) != 64)) {
		control_invalid(call, "weights_sha");
		return;
	}
	if (c->load) {
		rpc_error(call, "io.redraft.Busy", "version %u is being loaded", c->load->version);
		return;
	}
	if (!fits_target(c, path, &e)) {
		control_note(c, true, "version %u was not loaded: %s", version, e.text);
		rpc_error(call, "io.redraft.BadVersion", "version %u: %s", version, e.text);
		return;
	}
	engine_status(c->o.engine, &s);
	slot = control_ready(&s, version);
	if (slot) /* it is there already: say what is held */
		rpc_reply(call, json_pack("{s:I,s:s}", "version", (json_int_t)version, "weights_sha", slot->weights_sha));
	else
		start_load(c, call, version, path, sha);
}

static void on_unload(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	struct errtext e = {""};
	uint32_t version;
	int r;

	if (!control_u32(p, "version", true, &version)) {
		control_invalid(call, "version");
		return;
	}
	r = engine_unload(c->o.engine, version, &e);
	if (r == -EBUSY)
		rpc_error(call, "io.redraft.Busy", "%s", *e.text ? e.text : "the version is live or in use");
	else if (r < 0)
		rpc_error(call, "io.redraft.BadVersion", "%s", *e.text ? e.text : "the version is not loaded");
	else
		rpc_reply(call, NULL);
}

/* --- status --- */

static json_t *slots_json(const struct engine_status *s)
{
	json_t *a = json_array();

	for (int i = 0; i < 4; i++)
		json_array_append_new(a, json_pack("{s:I,s:s,s:s,s:i}", "version", (json_int_t)s->slots[i].version, "state", s->slots[i].state,
						   "weights_sha", s->slots[i].weights_sha, "requests", s->slots[i].requests));
	return a;
}

static json_t *tokens_json(const struct engine_status *s)
{
	json_t *accepted = json_array(), *proposed = json_array();

	for (int i = 0; i < ENGINE_MAX_K; i++) {
		json_array_append_new(accepted, json_integer((json_int_t)s->accepted_at[i]));
		json_array_append_new(proposed, json_integer((json_int_t)s->proposed_at[i]));
	}
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "prompt", (json_int_t)s->tokens_prompt, "generated",
			 (json_int_t)s->tokens_generated, "rounds", (json_int_t)s->rounds, "proposing_rounds", (json_int_t)s->proposing_rounds,
			 "proposed", (json_int_t)s->proposed, "accepted", (json_int_t)s->accepted, "accepted_at", accepted, "proposed_at",
			 proposed);
}

static json_t *records_json(struct control *c)
{
	struct tap_stats t = {0};

	if (c->o.tap)
		tap_stats(c->o.tap, &t);
	return json_pack("{s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "enabled", c->o.tap && c->capture, "records", (json_int_t)t.records,
			 "bytes", (json_int_t)t.bytes, "delivered", (json_int_t)t.delivered, "rounds", (json_int_t)t.rounds, "dropped_ring",
			 (json_int_t)t.dropped_ring, "dropped_queue", (json_int_t)t.dropped_queue, "dropped_broker",
			 (json_int_t)t.dropped_broker, "dropped_size", (json_int_t)t.dropped_size, "requests_traced",
			 (json_int_t)t.requests_traced, "requests_skipped", (json_int_t)t.requests_skipped);
}

static json_t *live_cut(struct control *c)
{
	for (int i = 0; i < 4; i++)
		if (c->cuts[i].cut && c->cuts[i].version == live(c))
			return json_incref(c->cuts[i].cut);
	return json_null();
}

static void on_status(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	struct engine_status s;
	json_t *j;

	(void)p;
	engine_status(c->o.engine, &s);
	j = json_pack("{s:s,s:s,s:i,s:I,s:I,s:I,s:I,s:s,s:o}", "target_fp", c->o.target_fp, "model", c->o.model_name, "pid", (int)getpid(),
		      "uptime_s", (json_int_t)((clock_us() - c->start_us) / 1000000), "generation", (json_int_t)c->generation, "live",
		      (json_int_t)live(c), "previous", (json_int_t)previous(c, &s), "source", source_names[c->source], "slots", slots_json(&s));
	if (j) {
		json_object_set_new(j, "canary", canary_json(&s));
		json_object_set_new(j, "running", json_integer(s.running));
		json_object_set_new(j, "waiting", json_integer(s.waiting));
		json_object_set_new(j, "draft_k", json_integer(s.draft_k));
		json_object_set_new(j, "cut", live_cut(c));
		json_object_set_new(j, "records", records_json(c));
		json_object_set_new(j, "tokens", tokens_json(&s));
		json_object_set_new(j, "latency", json_pack("{s:f,s:f,s:f,s:f}", "round_ms_p50", s.round_ms_p50, "round_ms_p95", s.round_ms_p95,
							    "recent_ms_p95", s.recent_ms_p95, "max_gap_ms", s.max_gap_ms));
	}
	rpc_reply(call, j);
}

static void on_capture(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const json_t *v = json_object_get(p, "enabled");

	if (!json_is_boolean(v)) {
		control_invalid(call, "enabled");
		return;
	}
	c->capture = c->o.tap && json_is_true(v);
	if (c->o.tap)
		tap_set_enabled(c->o.tap, c->capture);
	rpc_reply(call, json_pack("{s:b}", "enabled", c->capture));
}

static void on_config(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;

	(void)p;
	rpc_reply(call, json_pack("{s:o}", "config", c->o.config ? c->o.config(c->o.config_arg) : json_object()));
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
	if (!fits_target(c, dir, &e) || engine_load(c->o.engine, version, dir, sha, &e) < 0) {
		control_note(c, true, "version %u of the store cannot be loaded: %s", version, e.text);
		manifest_done(&m);
		return false;
	}
	same = strcmp(sha, m.weights_sha) == 0;
	manifest_done(&m);
	if (!same) {
		control_note(c, true, "version %u of the store holds other weights than its manifest says; not used", version);
		drop_version(c, version);
		return false;
	}
	keep_cut(c, version, dir);
	push(c, version);
	return true;
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
	if (c->load) { /* the loop has stopped: its post will not be run */
		pthread_join(c->load->thread, NULL);
		if (c->load->call) /* its caller is cut off: this only frees the call */
			rpc_error(c->load->call, "io.redraft.Busy", "the server is stopping");
		free(c->load);
	}
	control_probes_end(c);
	for (int i = 0; i < 4; i++)
		json_decref(c->cuts[i].cut);
	free(c);
	return NULL;
}
