/* A server and a learner that only keep books: real control sockets, no decoding, no
 * training. They run on a thread and loop of their own; knobs and books are under one
 * lock.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"
#include "schemas/manifest.h"
#include "tests/unit/daemon/fixture.h"

struct peers {
	pthread_t thread;
	struct loop *loop;
	struct rpc_server *serve, *learn;
	pthread_mutex_t lock;
	/* server: books, then knobs */
	uint64_t generation;
	uint32_t live, previous, canary, permille, loaded[16];
	char salt[33];
	int n_loaded, n_loads, n_activations;
	char source[16], request[64]; /* of the last activation */
	uint32_t left; /* what was gone back from, told when tells_left */
	bool tells_left;
	int probe_accepted, n_probes;
	bool hold_back; /* the replay of an older version is not answered yet */
	struct rpc_call *back;
	bool wrong_sha, hold_loads, refuse_activate, forget_loads;
	struct rpc_call *held;
	uint32_t held_version;
	/* learner: books, then knobs */
	char verdicts[64][48]; /* "3 accepted" */
	int n_verdicts, n_evaluations, n_pauses, n_resumes, n_canaries;
	uint32_t rebased, base; /* base: what it says its weights descend from */
	int pairs;      /* -1: NotEnough; -2: NotReplayable */
	int busy;        /* verdicts that find it ending */
	int not_written; /* checkpoints for which its disk was full */
	const char *purge_error; /* or NULL */
	double gain, back_gain; /* of candidates; of an older version against live */
	int pinned, n_pinned; /* older requests the learner has, 0: it is one that knows none; how often they were asked for */
	double pinned_gain;
	const char *asked;     /* the one domain of held-out requests; NULL: two */
	char references[200];  /* as last told */
};

static bool peers_has(const struct peers *p, uint32_t version)
{
	for (int i = 0; i < p->n_loaded; i++)
		if (p->loaded[i] == version)
			return true;
	return false;
}

static void peers_serve_status(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	(void)params;
	json_t *left = p->tells_left ? json_array() : NULL;

	pthread_mutex_lock(&p->lock);
	if (left && p->left)
		json_array_append_new(left, json_integer(p->left));
	rpc_reply(call, json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:i, s:i, s:[], s:{s:I, s:I, s:s}, s:o*}", "target_fp", FIXTURE_TARGET, "model", "toy",
				  "generation", (json_int_t)p->generation, "live", (json_int_t)p->live, "previous",
				  (json_int_t)p->previous, "source", p->source, "running", 1, "waiting", 0, "slots", "canary", "version", (json_int_t)p->canary,
				  "permille", (json_int_t)p->permille, "salt", p->salt, "left", left));
	pthread_mutex_unlock(&p->lock);
}

static void peers_answer_load(struct peers *p, struct rpc_call *call, uint32_t version)
{
	char dir[PATH_MAX], sha[65];
	struct manifest m;
	struct errtext e;

	if (store_version_dir(fixture_path("store"), version, dir, sizeof dir) || manifest_read(dir, &m, &e)) {
		rpc_error(call, "io.redraft.BadVersion", "no such version");
		return;
	}
	memcpy(sha, m.weights_sha, sizeof sha);
	manifest_done(&m);
	if (p->wrong_sha)
		sha[0] = sha[0] == '0' ? '1' : '0';
	if (!peers_has(p, version))
		p->loaded[p->n_loaded++ % 16] = version;
	rpc_reply(call, json_pack("{s:I, s:s}", "version", (json_int_t)version, "weights_sha", sha));
}

static void peers_load(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;
	uint32_t version = (uint32_t)json_integer_value(json_object_get(params, "version"));

	pthread_mutex_lock(&p->lock);
	p->n_loads++;
	if (p->hold_loads) {
		p->held = call;
		p->held_version = version;
	} else {
		peers_answer_load(p, call, version);
	}
	pthread_mutex_unlock(&p->lock);
}

static inline void peers_release_load(void *arg)
{
	struct peers *p = arg;

	pthread_mutex_lock(&p->lock);
	p->hold_loads = false;
	if (p->held)
		peers_answer_load(p, p->held, p->held_version);
	p->held = NULL;
	pthread_mutex_unlock(&p->lock);
}

static void peers_activate(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;
	uint32_t version = (uint32_t)json_integer_value(json_object_get(params, "version"));
	json_t *expected = json_object_get(params, "expected_generation");
	const char *source = json_string_value(json_object_get(params, "source"));
	const char *request = json_string_value(json_object_get(params, "request_id"));

	pthread_mutex_lock(&p->lock);
	if (p->refuse_activate || (version && !peers_has(p, version))) {
		rpc_error(call, "io.redraft.BadVersion", "version %u is not loaded", version);
	} else if (expected && (uint64_t)json_integer_value(expected) != p->generation) {
		rpc_error(call, "io.redraft.GenerationMismatch", "the generation is %llu", (unsigned long long)p->generation);
	} else {
		p->previous = p->live;
		p->live = version;
		p->canary = p->permille = 0;
		p->salt[0] = 0;
		p->generation++;
		p->n_activations++;
		snprintf(p->source, sizeof p->source, "%s", source ? source : "daemon");
		snprintf(p->request, sizeof p->request, "%s", request ? request : "");
		rpc_reply(call, json_pack("{s:I, s:I, s:I}", "generation", (json_int_t)p->generation, "live", (json_int_t)p->live,
					  "previous", (json_int_t)p->previous));
	}
	pthread_mutex_unlock(&p->lock);
}

static void peers_canary(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;
	uint32_t version = (uint32_t)json_integer_value(json_object_get(params, "version"));
	const char *salt = json_string_value(json_object_get(params, "salt"));

	pthread_mutex_lock(&p->lock);
	if (version && !peers_has(p, version)) {
		rpc_error(call, "io.redraft.BadVersion", "version %u is not loaded", version);
	} else {
		p->canary = version;
		p->permille = (uint32_t)json_integer_value(json_object_get(params, "permille"));
		snprintf(p->salt, sizeof p->salt, "%s", salt ? salt : "");
		p->n_canaries++;
		rpc_reply(call, json_pack("{s:I}", "generation", (json_int_t)p->generation));
	}
	pthread_mutex_unlock(&p->lock);
}

static void peers_unload(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;
	uint32_t version = (uint32_t)json_integer_value(json_object_get(params, "version"));

	pthread_mutex_lock(&p->lock);
	for (int i = 0; i < p->n_loaded; i++)
		if (p->loaded[i] == version)
			p->loaded[i] = p->loaded[--p->n_loaded];
	pthread_mutex_unlock(&p->lock);
	rpc_reply(call, NULL);
}

static void peers_learn_status(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	(void)params;
	pthread_mutex_lock(&p->lock);
	json_t *out = json_pack("{s:i, s:f, s:I, s:{s:i, s:s}}", "step", 12, "loss", 1.5, "base_version", (json_int_t)p->base, "checkpoint", "failed", p->not_written, "error",
				p->not_written ? "checkpoint: No space left on device" : "");
	pthread_mutex_unlock(&p->lock);
	rpc_reply(call, out);
}

static void peers_note_references(struct peers *p, json_t *of)
{
	char *text = json_dumps(of, JSON_COMPACT | JSON_SORT_KEYS);

	snprintf(p->references, sizeof p->references, "%s", text ? text : "");
	free(text);
}

static void peers_evaluate(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;
	bool plain = !json_integer_value(json_object_get(params, "live"));
	bool back = json_integer_value(json_object_get(params, "candidate")) < json_integer_value(json_object_get(params, "live"));
	json_t *list = json_array(), *answer, *older = json_array();

	pthread_mutex_lock(&p->lock);
	if (json_is_true(json_object_get(params, "pinned")))
		p->n_pinned++, peers_note_references(p, json_object_get(params, "references"));
	else
		p->n_evaluations++;
	for (int i = 0; i < p->pinned && json_is_true(json_object_get(params, "pinned")); i++)
		json_array_append_new(older, json_pack("{s:s, s:i, s:f, s:f}", "domain", "chat", "rounds", 20, "live_al", 1.4, "candidate_al", 1.4 + p->pinned_gain));
	for (int i = 0; i < p->pairs; i++)
		json_array_append_new(list, json_pack("{s:s, s:i, s:f, s:f}", "domain", p->asked ? p->asked : i % 2 ? "tools" : "code", "rounds", 20, "live_al",
						      plain ? 1.0 : 1.4, "candidate_al", (plain ? 1.3 : 1.4) + (back ? p->back_gain : p->gain)));
	if (back && p->hold_back) {
		json_decref(list);
		p->back = call;
	} else if (p->pairs == -2) {
		json_decref(list);
		rpc_error(call, "io.redraft.NotReplayable", "a draft of another kind");
	} else if (p->pairs < 0) {
		json_decref(list);
		rpc_error(call, "io.redraft.NotEnough", "nothing is held out");
	} else {
		answer = json_pack("{s:i, s:o, s:[]}", "requests", p->pairs, "pairs", list, "table");
		if (json_array_size(older))
			json_object_set(answer, "pinned", older);
		rpc_reply(call, answer);
	}
	json_decref(older);
	pthread_mutex_unlock(&p->lock);
}

/* The replay that was held, answered: the older version is better by far. */
static inline void peers_release_back(void *arg)
{
	struct peers *p = arg;
	json_t *list = json_array();

	for (int i = 0; i < 40; i++)
		json_array_append_new(list, json_pack("{s:s, s:i, s:f, s:f}", "domain", "code", "rounds", 20, "live_al", 1.0, "candidate_al", 1.4));
	pthread_mutex_lock(&p->lock);
	p->hold_back = false;
	if (p->back)
		rpc_reply(p->back, json_pack("{s:i, s:o, s:[]}", "requests", 40, "pairs", list, "table"));
	p->back = NULL;
	pthread_mutex_unlock(&p->lock);
}

static void peers_verdict(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	pthread_mutex_lock(&p->lock);
	bool busy = p->busy > 0;

	if (busy)
		p->busy--;
	else
		snprintf(p->verdicts[p->n_verdicts++ % 64], sizeof p->verdicts[0], "%d %s",
			 (int)json_integer_value(json_object_get(params, "version")), json_string_value(json_object_get(params, "verdict")));
	pthread_mutex_unlock(&p->lock);
	if (busy)
		rpc_error(call, "io.redraft.Busy", "the learner is ending");
	else
		rpc_reply(call, NULL);
}

static void peers_rebase(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	pthread_mutex_lock(&p->lock);
	p->rebased = (uint32_t)json_integer_value(json_object_get(params, "version"));
	pthread_mutex_unlock(&p->lock);
	rpc_reply(call, NULL);
}

static void peers_probe(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	pthread_mutex_lock(&p->lock);
	p->n_probes++;
	rpc_reply(call, json_pack("{s:O,s:i,s:[{s:i,s:i,s:i,s:i,s:[{s:f,s:[f,f,f,f]}]}]}", "version", json_object_get(params, "version"), "k", 3, "probes", "tokens", 5, "rounds", 20,
				  "proposed", 60, "accepted", p->probe_accepted, "features", "rms", 2.0, "projections", 1.0, 2.0, 3.0, 4.0));
	pthread_mutex_unlock(&p->lock);
}

static void peers_pause(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	(void)params;
	pthread_mutex_lock(&p->lock);
	p->n_pauses++;
	pthread_mutex_unlock(&p->lock);
	rpc_reply(call, NULL);
}

static void peers_resume(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	(void)params;
	pthread_mutex_lock(&p->lock);
	p->n_resumes++;
	pthread_mutex_unlock(&p->lock);
	rpc_reply(call, NULL);
}

static void peers_purge(void *ctx, struct rpc_call *call, json_t *params)
{
	struct peers *p = ctx;

	(void)params;
	pthread_mutex_lock(&p->lock);
	if (p->purge_error)
		rpc_error(call, p->purge_error, "said by the learner");
	else
		rpc_reply(call, json_pack("{s:i, s:i, s:i}", "runs", 1, "records", 2, "bytes", 3));
	pthread_mutex_unlock(&p->lock);
}

static const struct rpc_method peers_serve_methods[] = {
	{"io.redraft.Serve.Status", RPC_STATUS, peers_serve_status}, {"io.redraft.Serve.Load", RPC_CONTROL, peers_load},
	{"io.redraft.Serve.Canary", RPC_CONTROL, peers_canary},
	{"io.redraft.Serve.Probe", RPC_CONTROL, peers_probe}, {"io.redraft.Serve.Activate", RPC_CONTROL, peers_activate},  {"io.redraft.Serve.Unload", RPC_CONTROL, peers_unload},
	{NULL, RPC_STATUS, NULL},
};
static const struct rpc_method peers_learn_methods[] = {
	{"io.redraft.Learn.Status", RPC_STATUS, peers_learn_status},
	{"io.redraft.Learn.Evaluate", RPC_CONTROL, peers_evaluate},
	{"io.redraft.Learn.Verdict", RPC_CONTROL, peers_verdict},
	{"io.redraft.Learn.Rebase", RPC_CONTROL, peers_rebase},
	{"io.redraft.Learn.PauseTraining", RPC_CONTROL, peers_pause},
	{"io.redraft.Learn.ResumeTraining", RPC_CONTROL, peers_resume},
	{"io.redraft.Learn.Purge", RPC_CONTROL, peers_purge},
	{NULL, RPC_STATUS, NULL},
};

static inline void peers_serve_on(void *arg)
{
	struct peers *p = arg;
	struct errtext e;

	if (!p->serve && rpc_server_new(p->loop, fixture_path("serve"), peers_serve_methods, "interface io.redraft.Serve\n", p,
					&p->serve, &e))
		fprintf(stderr, "peers: %s\n", e.text);
}

static inline void peers_serve_off(void *arg)
{
	struct peers *p = arg;

	p->serve = rpc_server_free(p->serve);
}

static inline void peers_learn_on(void *arg)
{
	struct peers *p = arg;
	struct errtext e;

	if (!p->learn && rpc_server_new(p->loop, fixture_path("learn"), peers_learn_methods, "interface io.redraft.Learn\n", p,
					&p->learn, &e))
		fprintf(stderr, "peers: %s\n", e.text);
}

static void *peers_run(void *arg)
{
	struct peers *p = arg;

	(void)loop_run(p->loop);
	return NULL;
}

static void peers_stop(void *arg)
{
	struct peers *p = arg;

	loop_stop(p->loop);
}

static inline void peers_post(struct peers *p, void (*fn)(void *arg))
{
	assert_int_equal(loop_post(p->loop, fn, p), 0);
}

static void peers_start(struct peers *p)
{
	*p = (struct peers){.pairs = 20, .gain = 0.3, .source = "store"};
	pthread_mutex_init(&p->lock, NULL);
	assert_int_equal(loop_new(&p->loop), 0);
	assert_int_equal(pthread_create(&p->thread, NULL, peers_run, p), 0);
}

static void peers_end(struct peers *p)
{
	peers_post(p, peers_stop);
	pthread_join(p->thread, NULL);
	rpc_server_free(p->serve);
	rpc_server_free(p->learn);
	loop_free(p->loop);
	pthread_mutex_destroy(&p->lock);
}

static inline bool peers_was_told(struct peers *p, const char *what)
{
	bool told = false;

	pthread_mutex_lock(&p->lock);
	for (int i = 0; i < p->n_verdicts && i < 64; i++)
		told |= !strcmp(p->verdicts[i], what);
	pthread_mutex_unlock(&p->lock);
	return told;
}
