/* The control socket over a real engine with toy drafts, called as the daemon and
 * redraftctl call it.
 *
 * Load answers with the hash of what is held, unloads other weights than were asked for and
 * refuses a version made for another target;
 * activation, generations and `previous`; rollback goes back one, then further, then to plain,
 * is not Busy while a load runs and disowns it; a status socket changes nothing; an
 * operator's switch survives a restart until the store's state is newer; state.json is taken at
 * start and weights that differ from their manifest are not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"
#include "schemas/manifest.h"
#include "serve/control.h"
#include "serve/override.h"
#include "tests/unit/serve/harness.h"

enum { N_DRAFTS = 6 };

static struct {
	struct dev *d;
	struct llama *target;
	char root[64], run[96], store[96], dir[N_DRAFTS + 1][128], sha[N_DRAFTS + 1][65];
	struct engine *engine;
	struct loop *loop;
	struct control *control;
	pthread_t thread;
} t;

static void *run_loop(void *arg)
{
	(void)arg;
	(void)loop_run(t.loop);
	return NULL;
}

static void start(void)
{
	struct engine_options o = {.dev = t.d, .target = t.target, .max_seqs = 2, .max_queue = 8, .max_context = 160, .kv_tokens = 320,
				   .prefill_chunk = 32, .draft_k = 3};
	struct control_options c = {.run_dir = t.run, .store = t.store, .model_name = "toy", .target_fp = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"};
	struct errtext e = {""};

	if (engine_new(&o, &t.engine, &e) < 0 || loop_new(&t.loop) < 0)
		fail_msg("%s", e.text);
	c.engine = t.engine;
	c.loop = t.loop;
	if (control_new(&c, &t.control, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(0, pthread_create(&t.thread, NULL, run_loop, NULL));
}

static void stop_loop(void *arg)
{
	(void)arg;
	loop_stop(t.loop);
}

static void stop(void)
{
	assert_int_equal(0, loop_post(t.loop, stop_loop, NULL));
	pthread_join(t.thread, NULL);
	t.control = control_free(t.control);
	t.engine = engine_free(t.engine);
	t.loop = loop_free(t.loop);
}

static void write_manifest_for(int i, const char *sha, char target)
{
	struct manifest m = {.number = (uint32_t)i, .created = "2026-01-01T00:00:00.000Z"};
	struct errtext e = {""};

	memset(m.target_fp, target, 64);
	memset(m.draft_fp, 'd', 64);
	memset(m.model_sha, 'a', 64);
	memset(m.config_sha, 'b', 64);
	memcpy(m.weights_sha, sha, 64);
	m.cut = json_pack("{s:s,s:{s:i}}", "cluster", "c", "partitions", "0", i);
	if (manifest_write(t.dir[i], &m, &e) < 0)
		fail_msg("%s", e.text);
	manifest_done(&m);
}

static void write_manifest(int i, const char *sha)
{
	write_manifest_for(i, sha, 'f');
}

static int setup(void **state)
{
	struct errtext e = {""};

	(void)state;
	snprintf(t.root, sizeof t.root, "/tmp/redraft-control-%d", (int)getpid());
	snprintf(t.run, sizeof t.run, "%s/run", t.root);
	snprintf(t.store, sizeof t.store, "%s/store", t.root);
	if (fs_mkdirs(t.run) || fs_mkdirs(t.store) || dev_cpu_new(1, ISA_AUTO, &t.d))
		return -1;
	t.target = toy_target(t.d, 0.05f, DT_BF16);
	for (int i = 1; i <= N_DRAFTS; i++) {
		if (store_version_dir(t.store, (uint32_t)i, t.dir[i], sizeof t.dir[i]) || fs_mkdirs(t.dir[i]) ||
		    toy_draft(t.dir[i], TOY_RANDOM, (uint64_t)i, 2, &e))
			return -1;
	}
	start();
	for (int i = 1; i <= N_DRAFTS; i++) {
		if (engine_load(t.engine, (uint32_t)i, t.dir[i], t.sha[i], &e) < 0 || engine_unload(t.engine, (uint32_t)i, &e) < 0)
			return -1;
		write_manifest(i, t.sha[i]);
	}
	stop();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	llama_free(t.target);
	dev_free(t.d);
	return fs_remove_tree(t.root);
}

/* Calls a method; the reply, or NULL with the error's text in e. */
static json_t *call_on(const char *door, const char *method, json_t *params, struct errtext *e)
{
	char path[160], name[64];
	json_t *reply = NULL;
	int r;

	snprintf(path, sizeof path, "%s/%s.sock", t.run, door);
	snprintf(name, sizeof name, "io.redraft.Serve.%s", method);
	e->text[0] = 0;
	r = rpc_call_sync(path, name, params, 20000, &reply, e);
	if (r < 0)
		fail_msg("%s: %d %s", method, r, e->text);
	return r == 0 ? reply : NULL;
}

static void refused(const char *door, const char *method, json_t *params, const char *error)
{
	struct errtext e;
	json_t *j = call_on(door, method, params, &e);

	assert_null(j);
	if (!strstr(e.text, error))
		fail_msg("%s: '%s' is not %s", method, e.text, error);
}

static json_t *call(const char *method, json_t *params)
{
	struct errtext e;
	json_t *j = call_on("control", method, params, &e);

	if (!j)
		fail_msg("%s: %s", method, e.text);
	return j;
}

static void load(int i)
{
	json_t *j = call("Load", json_pack("{s:i,s:s,s:s}", "version", i, "path", t.dir[i], "weights_sha", t.sha[i]));

	assert_string_equal(t.sha[i], json_string_value(json_object_get(j, "weights_sha")));
	json_decref(j);
}

static int num(const json_t *j, const char *name)
{
	assert_true(json_is_integer(json_object_get(j, name)));
	return (int)json_integer_value(json_object_get(j, name));
}

/* The answer of Activate or Rollback: live and previous as expected; the generation. */
static int moved(json_t *j, int live, int previous)
{
	int generation = num(j, "generation");

	assert_int_equal(live, num(j, "live"));
	assert_int_equal(previous, num(j, "previous"));
	json_decref(j);
	return generation;
}

static json_t *to(int version, const char *move)
{
	return json_pack("{s:i,s:s}", "version", version, "move", move);
}

static void is_live(int live, const char *source)
{
	struct engine_status s;
	json_t *j = call("Status", NULL);

	assert_int_equal(live, num(j, "live"));
	assert_string_equal(source, json_string_value(json_object_get(j, "source")));
	if (live)
		assert_int_equal(live, json_integer_value(json_object_get(json_object_get(json_object_get(j, "cut"), "partitions"), "0")));
	else
		assert_true(json_is_null(json_object_get(j, "cut")));
	json_decref(j);
	engine_status(t.engine, &s);
	assert_int_equal(live, s.live);
}

static void test_load(void **state)
{
	struct errtext e;
	json_t *j;

	(void)state;
	start();
	load(1);
	load(1); /* again: what is held */
	j = call("Load", json_pack("{s:i,s:s,s:s}", "version", 2, "path", t.dir[2], "weights_sha", t.sha[3]));
	assert_string_equal(t.sha[2], json_string_value(json_object_get(j, "weights_sha")));
	json_decref(j);
	refused("control", "Activate", to(2, "new"), "BadVersion"); /* other weights than asked for: not kept */
	refused("control", "Load", json_pack("{s:i,s:s,s:s}", "version", 3, "path", "/nowhere", "weights_sha", ""), "BadVersion");
	refused("control", "Load", json_pack("{s:i,s:s,s:s}", "version", 0, "path", t.dir[1], "weights_sha", ""), "InvalidParameter");
	refused("control", "Load", json_pack("{s:i,s:s,s:s}", "version", 3, "path", "store/3", "weights_sha", ""), "InvalidParameter");
	refused("control", "Load", json_pack("{s:i,s:s,s:s}", "version", 3, "path", t.dir[3], "weights_sha", "abc"), "InvalidParameter");
	refused("control", "Load", json_pack("{s:s}", "version", "3"), "InvalidParameter");
	write_manifest_for(4, t.sha[4], 'e');
	refused("control", "Load", json_pack("{s:i,s:s,s:s}", "version", 4, "path", t.dir[4], "weights_sha", t.sha[4]), "another target");
	write_manifest(4, t.sha[4]);
	refused("status", "Load", json_pack("{s:i,s:s,s:s}", "version", 3, "path", t.dir[3], "weights_sha", t.sha[3]), "PermissionDenied");
	refused("status", "Rollback", NULL, "PermissionDenied");
	j = call_on("status", "Status", NULL, &e);
	assert_non_null(j);
	assert_int_equal(4, json_array_size(json_object_get(j, "slots")));
	json_decref(j);
	json_decref(call("Unload", json_pack("{s:i}", "version", 1)));
	refused("control", "Unload", json_pack("{s:i}", "version", 1), "BadVersion");
	stop();
}

static void test_switching_and_back(void **state)
{
	int g;

	(void)state;
	start();
	is_live(0, "store");
	for (int i = 1; i <= 3; i++)
		load(i);
	g = moved(call("Activate", to(1, "new")), 1, 0);
	assert_int_equal(g + 1, moved(call("Activate", to(2, "new")), 2, 1));
	assert_int_equal(g + 2, moved(call("Activate", to(3, "all")), 3, 2));
	is_live(3, "daemon");
	refused("control", "Unload", json_pack("{s:i}", "version", 3), "Busy");
	refused("control", "Activate", json_pack("{s:i,s:s,s:i}", "version", 1, "move", "new", "expected_generation", g), "GenerationMismatch");
	refused("control", "Activate", to(1, "sideways"), "InvalidParameter");
	refused("control", "Activate", to(9, "new"), "BadVersion");
	is_live(3, "daemon");
	moved(call("Activate", json_pack("{s:i,s:s,s:i}", "version", 2, "move", "all", "expected_generation", g + 2)), 2, 1);
	moved(call("Activate", to(3, "new")), 3, 2);
	moved(call("Rollback", NULL), 2, 1);
	is_live(2, "operator");
	moved(call("Rollback", NULL), 1, 0);
	moved(call("Rollback", NULL), 0, 0);
	assert_int_equal(g + 8, moved(call("Rollback", NULL), 0, 0)); /* nothing left to go back to is no error */
	is_live(0, "operator");
	moved(call("Activate", to(3, "new")), 3, 0);
	is_live(3, "daemon");
	stop();
}

static json_t *named(const char *id)
{
	return json_pack("{s:s}", "request_id", id);
}

/* The daemon moved us and died before it could say so: whoever asks again under the same name moves nothing. */
static void test_a_request_moves_once(void **state)
{
	char id[20];
	int g;

	(void)state;
	start();
	for (int i = 1; i <= 3; i++) {
		load(i);
		moved(call("Activate", to(i, "new")), i, i - 1);
	}
	g = moved(call("Activate", json_pack("{s:i,s:s,s:s,s:s}", "version", 2, "move", "all", "source", "operator", "request_id", "r")), 2, 1);
	assert_int_equal(g, moved(call("Rollback", named("r")), 2, 1));
	assert_int_equal(g, moved(call("Activate", json_pack("{s:i,s:s,s:s}", "version", 2, "move", "all", "request_id", "r")), 2, 1));
	is_live(2, "operator");
	assert_int_equal(g + 1, moved(call("Rollback", named("s")), 1, 0));
	assert_int_equal(g, moved(call("Rollback", named("r")), 2, 1)); /* what it gave then */
	is_live(1, "operator");
	refused("control", "Activate", json_pack("{s:i,s:s,s:s}", "version", 9, "move", "all", "request_id", "t"), "BadVersion");
	moved(call("Activate", json_pack("{s:i,s:s,s:s}", "version", 3, "move", "all", "request_id", "t")), 3, 1); /* a refusal is no move */
	for (int i = 0; i < 16; i++) {
		snprintf(id, sizeof id, "u%d", i);
		moved(call("Activate", json_pack("{s:i,s:s,s:s}", "version", 2 + i % 2, "move", "all", "request_id", id)), 2 + i % 2, i % 2 ? 1 : 3);
	}
	refused("control", "Rollback", json_pack("{s:i}", "request_id", 7), "InvalidParameter");
	refused("control", "Rollback", named("0123456789012345678901234567890123456789012345678901234567890123"), "InvalidParameter");
	moved(call("Rollback", named("r")), 1, 0); /* sixteen later it is a new one */
	stop();
}

static void test_full_slots_make_room(void **state)
{
	(void)state;
	start();
	for (int i = 1; i <= 4; i++)
		load(i);
	moved(call("Activate", to(1, "new")), 1, 0);
	moved(call("Activate", to(2, "new")), 2, 1);
	load(5); /* in place of 3 or 4 */
	moved(call("Activate", to(5, "new")), 5, 2);
	moved(call("Rollback", NULL), 2, 1);
	stop();
}

struct slow_load {
	struct errtext e;
	json_t *reply;
};

static void *load_six(void *arg)
{
	struct slow_load *l = arg;

	l->reply = call_on("control", "Load", json_pack("{s:i,s:s,s:s}", "version", 6, "path", t.dir[6], "weights_sha", t.sha[6]), &l->e);
	return NULL;
}

/* Toy loads take milliseconds, so the rollback may come before or after: in both cases it is
 * answered, and what was loaded under it is either refused to its caller or ready. */
static void test_rollback_during_a_load(void **state)
{
	int disowned = 0;

	(void)state;
	start();
	load(1);
	load(2);
	for (int i = 0; i < 20; i++) {
		struct slow_load l = {{""}, NULL};
		struct engine_status s;
		struct errtext e;
		pthread_t th;
		moved(call("Activate", to(1, "new")), 1, 0);
		moved(call("Activate", to(2, "new")), 2, 1);
		assert_int_equal(0, pthread_create(&th, NULL, load_six, &l));
		usleep((unsigned)i * 300);
		moved(call("Rollback", NULL), 1, 0);
		pthread_join(th, NULL);
		if (l.reply) {
			json_decref(l.reply);
			assert_int_equal(0, engine_unload(t.engine, 6, &e));
			continue;
		}
		if (strstr(l.e.text, "is being loaded")) /* the one disowned before still runs */
			continue;
		assert_non_null(strstr(l.e.text, "rollback"));
		disowned++;
		for (int k = 0; k < 2000; k++) { /* it leaves its slot soon */
			bool there = false;
			engine_status(t.engine, &s);
			for (int n = 0; n < 4; n++)
				there |= s.slots[n].version == 6;
			if (!there)
				break;
			usleep(1000);
			assert_true(k < 1999);
		}
	}
	print_message("%d of 20 loads were disowned\n", disowned);
	stop();
}

static void save_state(uint64_t generation, uint32_t live, uint32_t previous)
{
	struct version_entry v[2] = {{.number = live, .state = VS_LIVE}, {.number = previous, .state = VS_PREVIOUS}};
	struct store_state s = {.generation = generation, .next_number = 99, .live = live, .previous = previous, .n_versions = 2, .versions = v};
	struct errtext e = {""};

	if (previous < live) { /* the file lists them ascending */
		struct version_entry first = v[1];
		v[1] = v[0];
		v[0] = first;
	}
	if (store_state_write(t.store, &s, &e) < 0)
		fail_msg("%s", e.text);
}

/* What was gone back from is told, in its order, and kept with the override, until the next switch forward. */
static void left(const char *what)
{
	json_t *j = call("Status", NULL);
	char *text = json_dumps(json_object_get(j, "left"), JSON_COMPACT);

	assert_string_equal(text, what);
	free(text);
	json_decref(j);
}

static void test_what_was_left(void **state)
{
	(void)state;
	override_remove(t.store, t.run);
	save_state(10, 3, 2);
	start();
	left("[]");
	moved(call("Rollback", NULL), 2, 0);
	left("[3]");
	moved(call("Rollback", NULL), 0, 0);
	left("[3,2]");
	moved(call("Rollback", NULL), 0, 0); /* from nothing */
	left("[3,2]");
	stop();
	start();
	left("[3,2]");
	load(4);
	moved(call("Activate", to(4, "new")), 4, 0);
	left("[]");
	load(1);
	moved(call("Activate", to(1, "new")), 1, 4);
	moved(call("Activate", to(4, "new")), 4, 1); /* forward, to one that was live before: back is where we came from, as at the daemon */
	left("[]");
	moved(call("Rollback", NULL), 1, 0);
	left("[4]");
	moved(call("Activate", to(4, "new")), 4, 1);
	moved(call("Activate", to(0, "all")), 0, 0);
	left("[4]");
	stop();
	override_remove(t.store, t.run);
	start(); /* what the daemon did by itself is its own to write down */
	left("[]");
	stop();
}

static void test_start_and_override(void **state)
{
	json_t *j;

	(void)state;
	override_remove(t.store, t.run);
	save_state(10, 3, 2);
	start();
	is_live(3, "store");
	j = call("Status", NULL);
	assert_int_equal(10, num(j, "generation"));
	assert_int_equal(2, num(j, "previous"));
	json_decref(j);
	assert_int_equal(11, moved(call("Rollback", NULL), 2, 0));
	stop();
	start(); /* the operator's word holds */
	is_live(2, "operator");
	stop();
	save_state(11, 1, 2); /* the daemon has spoken since */
	start();
	is_live(1, "store");
	moved(call("Rollback", NULL), 2, 0);
	json_decref(call("Load", json_pack("{s:i,s:s,s:s}", "version", 4, "path", t.dir[4], "weights_sha", t.sha[4])));
	moved(call("Activate", to(4, "new")), 4, 2);
	stop();
	start(); /* the daemon's own switch ended the override, though it wrote nothing yet */
	is_live(1, "store");
	stop();
}

static void test_start_without_what_the_state_names(void **state)
{
	(void)state;
	override_remove(t.store, t.run);
	write_manifest(5, t.sha[4]);
	save_state(20, 5, 2);
	start();
	is_live(0, "store"); /* weights differ from the manifest */
	load(2);
	moved(call("Activate", to(2, "new")), 2, 0);
	stop();
	write_manifest(5, t.sha[5]);
	write_manifest_for(6, t.sha[6], 'e');
	save_state(21, 6, 5);
	start();
	is_live(0, "store"); /* made for another target */
	stop();
	save_state(22, 77, 5);
	start();
	is_live(0, "store"); /* no such folder */
	stop();
	/* no state at all */
	char path[160];
	snprintf(path, sizeof path, "%s/state.json", t.store);
	assert_int_equal(0, unlink(path));
	start();
	is_live(0, "store");
	stop();
}

static json_t *canary(int version, int permille, const char *salt)
{
	return json_pack("{s:i,s:i,s:s}", "version", version, "permille", permille, "salt", salt);
}

static void on_canary_are(int version, int permille)
{
	json_t *j = call("Status", NULL), *c = json_object_get(j, "canary");

	assert_int_equal(version, num(c, "version"));
	assert_int_equal(permille, num(c, "permille"));
	json_decref(j);
}

static void test_canary(void **state)
{
	(void)state;
	override_remove(t.store, t.run); /* of the tests before */
	start();
	for (int i = 1; i <= 3; i++)
		load(i);
	int g = moved(call("Activate", to(1, "new")), 1, 0);
	on_canary_are(0, 0);
	refused("control", "Canary", canary(9, 50, "s"), "BadVersion");
	refused("control", "Canary", canary(1, 50, "s"), "live already");
	refused("control", "Canary", canary(2, 1001, "s"), "InvalidParameter");
	refused("control", "Canary", canary(2, 0, "s"), "InvalidParameter");
	refused("control", "Canary", canary(2, 50, ""), "InvalidParameter");
	refused("control", "Canary", canary(2, 50, "a salt that is longer than 32 bytes"), "InvalidParameter");
	refused("status", "Canary", canary(2, 50, "s"), "PermissionDenied");
	refused("control", "Canary", json_pack("{s:i,s:i,s:s,s:i}", "version", 2, "permille", 50, "salt", "s", "expected_generation", g + 1), "GenerationMismatch");
	on_canary_are(0, 0);
	json_decref(call("Canary", json_pack("{s:i,s:i,s:s,s:i}", "version", 2, "permille", 50, "salt", "s", "expected_generation", g)));
	on_canary_are(2, 50);
	refused("control", "Unload", json_pack("{s:i}", "version", 2), "Busy");
	load(4);
	load(5); /* in place of 3: the canary keeps its slot */
	on_canary_are(2, 50);
	json_decref(call("Canary", canary(2, 250, "s")));
	on_canary_are(2, 250);
	json_decref(call("Canary", json_pack("{s:i}", "version", 0)));
	on_canary_are(0, 0);
	json_decref(call("Canary", canary(2, 50, "s")));
	moved(call("Activate", to(5, "new")), 5, 1); /* any switch ends it */
	on_canary_are(0, 0);
	json_decref(call("Canary", canary(2, 50, "s")));
	moved(call("Rollback", NULL), 1, 0);
	on_canary_are(0, 0);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_switching_and_back),
		cmocka_unit_test(test_full_slots_make_room),
		cmocka_unit_test(test_canary),
		cmocka_unit_test(test_a_request_moves_once),
		cmocka_unit_test(test_rollback_during_a_load),
		cmocka_unit_test(test_what_was_left), cmocka_unit_test(test_start_and_override),
		cmocka_unit_test(test_start_without_what_the_state_names),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
