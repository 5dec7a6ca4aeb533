/* How a version comes into a slot and leaves it: Load, Unload.
 *
 * A load reads and packs a version for a second or so and runs on its own thread; a second one is answered Busy. A version with
 * other weights than the caller named, of another target, or that a rollback has disowned meanwhile, does not stay.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "daemon/base/loop.h"
#include "serve/control_inside.h"

enum { LOAD_NICE = 5 };

void control_keep_cut(struct control *c, uint32_t version, json_t *cut)
{
	if (!cut)
		return;
	json_decref(c->cuts[c->next_cut].cut);
	c->cuts[c->next_cut].version = version;
	c->cuts[c->next_cut].cut = json_incref(cut);
	c->next_cut = (c->next_cut + 1) % 4;
}

bool control_fits_target(struct control *c, const struct manifest *m, struct errtext *e)
{
	if (strcmp(m->target_fp, c->o.target_fp) == 0)
		return true;
	errtext_set(e, -EINVAL, "it was made for another target (fingerprint %.12s, this server holds %.12s)", m->target_fp, c->o.target_fp);
	return false;
}

void control_drop(struct control *c, uint32_t version)
{
	struct errtext e = {""};

	if (engine_unload(c->o.engine, version, &e) < 0)
		control_note(c, true, "version %u keeps its slot: %s", version, e.text);
}

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
		if (control_ready(&s, v) && v != control_live(c) && v != control_previous(c, &s) && s.slots[i].requests == 0 && engine_unload(c->o.engine, v, &e) == 0) {
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

static void job_free(struct load_job *j)
{
	json_decref(j->cut);
	free(j);
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
		control_drop(c, j->version);
	else if (j->result == 0)
		control_keep_cut(c, j->version, j->cut);
	if (j->result < 0)
		control_note(c, true, "version %u was not loaded: %s", j->version, *j->e.text ? j->e.text : strerror(-j->result));
	else
		control_note(c, mismatch, "version %u %s", j->version,
		     mismatch    ? "holds other weights than were asked for; unloaded"
		     : j->disowned ? "was loaded but a rollback had come; unloaded"
				   : "is loaded");
	c->load = NULL;
	load_answer(j);
	job_free(j);
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

static void start_load(struct control *c, struct rpc_call *call, uint32_t version, const char *path, const char *expect, json_t *cut)
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
	j->cut = json_incref(cut);
	(void)snprintf(j->path, sizeof j->path, "%s", path);
	(void)snprintf(j->expect, sizeof j->expect, "%s", expect);
	if (pthread_create(&j->thread, NULL, load_main, j) != 0) {
		job_free(j);
		rpc_error(call, "io.redraft.Busy", "no thread could be started");
		return;
	}
	c->load = j;
}

void on_load(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const char *path = json_string_value(json_object_get(p, "path")), *sha = json_string_value(json_object_get(p, "weights_sha"));
	const struct engine_slot *slot;
	struct engine_status s;
	struct manifest m;
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
	if (manifest_read(path, &m, &e) < 0) {
		m = (struct manifest){.number = 0}; /* a folder without one is somebody's experiment and is taken at its word */
	} else if (!control_fits_target(c, &m, &e)) {
		control_note(c, true, "version %u was not loaded: %s", version, e.text);
		rpc_error(call, "io.redraft.BadVersion", "version %u: %s", version, e.text);
		manifest_done(&m);
		return;
	}
	engine_status(c->o.engine, &s);
	slot = control_ready(&s, version);
	if (slot) /* it is there already: say what is held */
		rpc_reply(call, json_pack("{s:I,s:s}", "version", (json_int_t)version, "weights_sha", slot->weights_sha));
	else
		start_load(c, call, version, path, sha, m.cut);
	manifest_done(&m);
}

void on_unload(void *ctx, struct rpc_call *call, json_t *p)
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

void control_load_disown(struct control *c)
{
	if (!c->load || c->load->disowned)
		return;
	c->load->disowned = true;
	if (c->load->call)
		rpc_error(c->load->call, "io.redraft.Busy", "the load was cancelled by a rollback");
	c->load->call = NULL;
}

void control_load_end(struct control *c)
{
	if (!c->load) /* else the loop has stopped: its post will not be run */
		return;
	pthread_join(c->load->thread, NULL);
	if (c->load->call) /* its caller is cut off: this only frees the call */
		rpc_error(c->load->call, "io.redraft.Busy", "the server is stopping");
	job_free(c->load);
	c->load = NULL;
}
