/* redraft-learn: consumes trace records, trains the draft, hands candidates to
 * redraftd, answers Evaluate.
 *
 *   redraft-learn [--key value ...]           run
 *   redraft-learn init [--key value ...]      make version 1 from the records there are, and submit it
 *   redraft-learn train [--key value ...]     a draft from records on disk (cmd_train.c)
 *   redraft-learn bootstrap --server URL      traffic for a model that has none (cmd_bootstrap.c)
 *   redraft-learn collect [--key value ...]   the topic's records into a folder; export-records: as single files (cmd_collect.c)
 *   redraft-learn replay --version N          what a version would have had accepted (cmd_replay.c)
 *   redraft-learn pack, unpack                a draft as one 8-bit file, and back (cmd_pack.c)
 *   redraft-learn --follow_journal PATH ...   repeat a recorded run from its first entry, print hashes, end
 *
 * Exit: 0 done, 1 failed while running (the state is whole: start again), 2 wrong
 * config or input, 3 nobody answers.
 */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/notify.h"
#include "daemon/base/reload.h"
#include "daemon/base/rpc.h"
#include "daemon/base/service.h"
#include "learn/cmd.h"
#include "learn/control.h"
#include "learn/crew.h"
#include "learn/priority.h"

struct conf {
	char *store, *state_dir, *run_dir, *daemon_socket, *serve_socket, *brokers, *source_conf, *topic, *target_fp, *follow_journal, *vocab_from;
	int log_level, optimizer, loss, teacher, policy, device, device_math;
	int64_t memory_mb, device_mb, flat_after, max_age_h;
	double tpot_ms, tpot_ratio, least, flat_gain;
	struct crew_conf ranks;
	int64_t threads, nice, seed, ttt_steps, muon_iters, warmup_steps, draft_vocab, max_rows, pack_rows, history_rows, max_epochs, queue_max, min_tokens, min_steps, gate_k;
	int64_t publish_s, checkpoint_s, pool_mb, heldout_max, heldout_domain_max, pinned, follow_print, init_wait_s;
	int64_t tenant_window, request_rows;
	double lr, muon_lr, first, clip, decay, ema, anchor, replay_share, max_scale, tenant_share, spike, reject_weight;
	bool prompt_rows, auto_init, dedup;
};

static int policy_of(const struct conf *c)
{
	return c->policy == 0 ? SCHED_OTHER : c->policy == 1 ? SCHED_BATCH : SCHED_IDLE;
}

#define AT(f) offsetof(struct conf, f)
#define AT_RANKS(f) AT(ranks.f)
static const struct conf_entry entries[] = {
	{"store", CONF_STRING, AT(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "version store shared with redraftd and redraft-serve"},
	{"state_dir", CONF_STRING, AT(state_dir), "/var/lib/redraft/learn", 0, 0, NULL, false, "", "checkpoints, journal and replay pool"},
	{"run_dir", CONF_STRING, AT(run_dir), "/run/redraft/learn", 0, 0, NULL, false, "", "folder of the control sockets"},
	{"daemon_socket", CONF_STRING, AT(daemon_socket), "/run/redraft/daemon/control.sock", 0, 0, NULL, false, "", "redraftd's control socket"},
	{"serve_socket", CONF_STRING, AT(serve_socket), "/run/redraft/serve/status.sock", 0, 0, NULL, false, "", "redraft-serve's status socket, for slo.*; empty = it is not asked"},
	{"brokers", CONF_STRING, AT(brokers), "", 0, 0, NULL, false, "", "Kafka bootstrap servers; empty = train from what is in the pool"},
	{"source.conf", CONF_STRING, AT(source_conf), "", 0, 0, NULL, false, "", "more librdkafka settings, k=v,k=v"},
	{"topic", CONF_STRING, AT(topic), "redraft.traces", 0, 0, NULL, false, "", "topic of the trace records"},
	{"target_fp", CONF_STRING, AT(target_fp), "", 0, 0, NULL, false, "", "fingerprint of the target; empty = the only one in store/frozen"},
	{"device", CONF_ENUM, AT(device), "auto", 0, 0, "auto|cpu|cuda", false, "", "what computes; auto takes a GPU where one answers, at the lowest priority"},
	{"device_math", CONF_ENUM, AT(device_math), "fast", 0, 0, "strict|fast", false, "", "fast: products in bf16 where the device has them (a GPU, AVX-512 with bf16), strict: in f32; sums are f32"},
	{"device_memory_mb", CONF_INT, AT(device_mb), "0", 0, 1e9, NULL, false, "MiB", "memory of a GPU that is taken at most, what cuBLAS and the driver need for themselves aside; 0 = no limit"},
	{"threads", CONF_INT, AT(threads), "0", 0, DEV_MAX_THREADS, NULL, false, "threads", "compute threads; 0 = all processors"},
	{"nice", CONF_INT, AT(nice), "10", 0, 19, NULL, false, "", "niceness of the compute threads"},
	{"cpu.policy", CONF_ENUM, AT(policy), "batch", 0, 0, "other|batch|idle", false, "", "scheduling of the compute threads; idle: only what nobody else wants, whatever nice is"},
	{"slo.tpot_p95_ms", CONF_REAL, AT(tpot_ms), "0", 0, 1e6, NULL, true, "ms", "serving's P95 time per token beyond which learning is stretched, then paused; 0 = none"},
	{"slo.tpot_ratio", CONF_REAL, AT(tpot_ratio), "0", 0, 100, NULL, true, "", "the same, in times of what it is while nothing is learned; 0 = none"},
	{"pace.least", CONF_REAL, AT(least), "0.05", 0.001, 1, NULL, true, "", "share of the time that is computed at least, while not paused"},
	{"pace.memory_mb", CONF_INT, AT(memory_mb), "0", 0, 1e9, NULL, true, "MiB", "past this much memory steps get smaller, and in the end wait; 0 = no ceiling"},
	{"pace.flat_after", CONF_INT, AT(flat_after), "4", 0, 1000, NULL, true, "", "candidates in a row without a gain before learning sleeps, until drift or a while later; 0 = never"},
	{"pace.flat_gain", CONF_REAL, AT(flat_gain), "0.005", 0, 1, NULL, true, "", "gain of accept length over the live version below which there is none"},
	{"pool.max_age_h", CONF_INT, AT(max_age_h), "0", 0, 1e6, NULL, true, "h", "records older than that are erased from the pool; 0 = only its size counts"},
	{"seed", CONF_INT, AT(seed), "1", 0, 9007199254740991.0, NULL, false, "", "seed of every random choice"},
	{"log_level", CONF_ENUM, AT(log_level), "info", 0, 0, "error|warn|info|debug", true, "", "what is logged"},
	CREW_KEYS(AT_RANKS),
	{"train.ttt_steps", CONF_INT, AT(ttt_steps), "4", 1, TTT_MAX_STEPS, NULL, false, "steps", "unrolled steps of training-time test"},
	{"train.decay", CONF_REAL, AT(decay), "0.8", 0.01, 1, NULL, false, "", "weight of each further unrolled step"},
	{"train.loss", CONF_ENUM, AT(loss), "kl", 0, 0, LOSS_NAMES, false, "", "what the draft is drawn towards (learn/README.md)"},
	{"train.teacher", CONF_ENUM, AT(teacher), "top", 0, 0, "top|whole", false, "", "prompt rows learn from the 64 likeliest tokens of the draft vocabulary, or from all of it"},
	{"train.optimizer", CONF_ENUM, AT(optimizer), "adamw", 0, 0, "adamw|muon", false, "", "muon: on the matrices, AdamW on head and norms"},
	{"train.lr", CONF_REAL, AT(lr), "0.0003", 1e-9, 1, NULL, false, "", "learning rate of AdamW"},
	{"train.muon_lr", CONF_REAL, AT(muon_lr), "0.006", 1e-9, 1, NULL, false, "", "learning rate of Muon"},
	{"train.muon_iters", CONF_INT, AT(muon_iters), "3", 1, 12, NULL, false, "", "Newton-Schulz rounds a step of Muon; fewer are cheaper"},
	{"train.clip", CONF_REAL, AT(clip), "0.5", 1e-6, 1e6, NULL, false, "", "gradients are clipped to this norm"},
	{"train.first", CONF_REAL, AT(first), "3", 1, 1000, NULL, false, "", "a first draft made here begins at so many times the learning rates, falling to them with the root of its steps"},
	{"train.warmup_steps", CONF_INT, AT(warmup_steps), "10", 0, 1e9, NULL, false, "steps", "linear warm-up of the learning rate"},
	{"train.draft_vocab", CONF_INT, AT(draft_vocab), "8192", 16, 1 << 24, NULL, false, "tok", "draft vocabulary of a first draft"},
	{"train.max_rows", CONF_INT, AT(max_rows), "1024", 16, 1 << 20, NULL, false, "tok", "rows of one step; longer runs take several"},
	{"train.pack_rows", CONF_INT, AT(pack_rows), "0", 0, 1 << 20, NULL, false, "tok", "a step takes further runs while they fit into so many rows; 0 = one run a step"},
	{"train.history_rows", CONF_INT, AT(history_rows), "256", 0, 16384, NULL, false, "tok", "rows before a window that are laid in front of it as context, an earlier request's too"},
	{"train.ema", CONF_REAL, AT(ema), "0.98", 0, 0.99999, NULL, false, "", "decay a step of the averaged weights, which are what is published; 0 = the last weights are"},
	{"train.anchor", CONF_REAL, AT(anchor), "0.002", 0, 1, NULL, false, "", "each step draws the weights this far towards the version that was begun from or last accepted; 0 = not"},
	{"train.spike", CONF_REAL, AT(spike), "3", 1.2, 1e9, NULL, false, "", "a loss so many times the running mean is no step"},
	{"train.reject_weight", CONF_REAL, AT(reject_weight), "1", 0.01, 100, NULL, false, "", "weight of rows at which serving refused the draft's proposal"},
	{"train.dedup", CONF_BOOL, AT(dedup), "on", 0, 0, NULL, false, "", "a prefix of a conversation that is in the pool already is not trained again"},
	{"train.max_scale", CONF_REAL, AT(max_scale), "8", 2, 1e9, NULL, false, "", "records whose features are so many times larger or smaller than usual are refused"},
	{"train.tenant_share", CONF_REAL, AT(tenant_share), "1", 0.001, 1, NULL, false, "", "share of the rows of a window that one tenant may have; 1 = any"},
	{"train.tenant_window", CONF_INT, AT(tenant_window), "65536", 16, 1e9, NULL, false, "tok", "rows of that window"},
	{"train.request_rows", CONF_INT, AT(request_rows), "16384", 16, 1e9, NULL, false, "tok", "rows of one request that are learned from at most"},
	{"train.prompt_rows", CONF_BOOL, AT(prompt_rows), "on", 0, 0, NULL, false, "", "learn from prompts too, not from replies alone"},
	{"train.replay_share", CONF_REAL, AT(replay_share), "0.25", 0, 1, NULL, false, "", "share of steps that take an older run while new ones wait"},
	{"train.max_epochs", CONF_INT, AT(max_epochs), "4", 1, 1000, NULL, false, "", "how often one run is trained at most"},
	{"train.queue_max", CONF_INT, AT(queue_max), "256", 1, 100000, NULL, false, "runs", "new runs that wait; past it the oldest are left to replay"},
	{"train.auto_init", CONF_BOOL, AT(auto_init), "on", 0, 0, NULL, false, "", "make a first draft when the store is empty"},
	{"init.min_tokens", CONF_INT, AT(min_tokens), "20000", 1, 1e12, NULL, false, "tok", "tokens to count before a first draft's vocabulary is chosen"},
	{"init.vocab_from", CONF_STRING, AT(vocab_from), "", 0, 0, NULL, false, "", "init: a text file of token ids to count too"},
	{"init.wait_s", CONF_INT, AT(init_wait_s), "10", 0, 86400, NULL, false, "s", "init: go ahead after so long without a new record"},
	{"publish.interval_s", CONF_INT, AT(publish_s), "3600", 1, 1e8, NULL, true, "s", "time between candidates"},
	{"publish.min_steps", CONF_INT, AT(min_steps), "20", 1, 1e9, NULL, true, "steps", "steps between candidates at least"},
	{"gate.k", CONF_INT, AT(gate_k), "5", 1, TTT_MAX_STEPS, NULL, true, "tok", "chain length of Evaluate when the caller names none"},
	{"heldout.max", CONF_INT, AT(heldout_max), "64", 1, 10000, NULL, false, "runs", "runs kept to judge a candidate by; further ones are trained"},
	{"heldout.domain_max", CONF_INT, AT(heldout_domain_max), "24", 1, 10000, NULL, false, "runs", "the same, of one domain"},
	{"heldout.pinned", CONF_INT, AT(pinned), "48", 0, 256, NULL, false, "runs", "older requests of each domain that are never trained, so that a candidate which forgets is seen; 0 = none"},
	{"pool.max_mb", CONF_INT, AT(pool_mb), "4096", 64, 1e7, NULL, false, "MiB", "replay pool on disk; the oldest records go past it"},
	{"checkpoint.interval_s", CONF_INT, AT(checkpoint_s), "300", 1, 1e7, NULL, true, "s", "time between checkpoints"},
	{"follow_journal", CONF_STRING, AT(follow_journal), "", 0, 0, NULL, false, "", "repeat this journal in a fresh state_dir, then end"},
	{"follow.print_steps", CONF_INT, AT(follow_print), "10", 0, 1e9, NULL, false, "steps", "print the weights' hash every so many steps; 0 = at the end only"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};

static int check(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	return *c->source_conf ? source_kafka_check(c->source_conf, e) : 0;
}

static const struct conf_program program = {
	.name = "redraft-learn",
	.summary = "Trains the draft of a speculative-decoding server on what it serves. First argument \"init\": make version 1; "
		   "\"train\", \"bootstrap\", \"collect\", \"export-records\", \"replay\", \"pack\", \"unpack\" have a --help of their own.",
	.entries = entries, .struct_size = sizeof(struct conf), .check = check};
static const enum log_level levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG};

/* ---- options ---- */

static struct comm *ranks;         /* we are one of; set once by main */
static volatile int group_ends;

static void learner_options(const struct conf *c, struct learner_options *o)
{
	*o = (struct learner_options){
		.state_dir = c->state_dir, .store = c->store, .kind = &trainer_eagle3, .seed = (uint64_t)c->seed,
		.train = {.ttt_steps = (int)c->ttt_steps, .decay = (real)c->decay, .loss = (enum loss_kind)c->loss, .optimizer = c->optimizer ? OPT_MUON : OPT_ADAMW,
			  .lr = (real)c->lr, .muon_lr = (real)c->muon_lr, .first = (real)c->first, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8,
			  .clip = (real)c->clip, .muon_momentum = (real)0.95, .muon_iters = (int)c->muon_iters, .warmup_steps = c->warmup_steps},
		.draft_vocab = (int)c->draft_vocab, .max_rows = (int)c->max_rows, .pack_rows = (int)c->pack_rows, .history_rows = (int)c->history_rows, .max_epochs = (int)c->max_epochs,
		.queue_max = (int)c->queue_max, .heldout_max = (int)c->heldout_max, .heldout_domain_max = (int)c->heldout_domain_max, .heldout_pinned = (int)c->pinned,
		.prompt_rows = c->prompt_rows, .whole_teacher = c->teacher == 1, .auto_init = c->auto_init, .replay_share = c->replay_share, .dedup = c->dedup, .ema = c->ema, .anchor = c->anchor,
		.max_scale = c->max_scale, .tenant_share = c->tenant_share, .tenant_window = c->tenant_window,
		.request_rows = c->request_rows, .spike = c->spike, .reject_weight = c->reject_weight, .init_min_tokens = c->min_tokens,
		.pool_bytes = (uint64_t)c->pool_mb << 20, .segment_bytes = c->pool_mb >= 512 ? 64u << 20 : 8u << 20,
		.follow = *c->follow_journal != 0,
	};
	o->train.ranks = ranks;
	o->train.data = (int)c->ranks.data;
	o->train.ulysses = (int)c->ranks.ulysses;
}

static int open_source(const struct conf *c, struct source **ret, struct errtext *e)
{
	struct source_options o = {.brokers = c->brokers, .topic = c->topic, .extra = *c->source_conf ? c->source_conf : NULL};
	return *c->brokers ? source_kafka_new(&o, ret, e) : 0;
}

static int fail(int code, const char *message)
{
	fprintf(stderr, "redraft-learn: %s\n", message);
	return code;
}

/* ---- init ---- */

/* Records until enough tokens are counted, or none came for a while. */
static int count_records(const struct conf *c, struct learner *l, struct errtext *e)
{
	uint64_t heard = clock_us();
	while (l->src && l->counted < l->o.init_min_tokens && clock_us() - heard < (uint64_t)c->init_wait_s * 1000000) {
		int n = 0, r = learner_consume(l, 256, &n, e);
		if (r)
			return r;
		if (n)
			heard = clock_us();
		else
			(void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	return 0;
}

static int submit(const struct conf *c, struct learner *l, struct errtext *e)
{
	char path[4096];
	json_t *reply = NULL;
	int r = learner_publish(l, e);
	if (!r)
		r = learner_write_end(l, true, e);
	if (!r && !*l->pending.sha)
		r = errtext_set(e, -EIO, "%s", l->candidate.error);
	if (!r)
		r = publish_path(c->store, l->pending.name, path, sizeof path);
	if (r)
		return r;
	struct journal_entry x = {.kind = J_SUBMITTED};
	int k = rpc_call_sync(c->daemon_socket, "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", path), 60000, &reply, e);
	if (!k) {
		x.version = (uint32_t)json_integer_value(json_object_get(reply, "version"));
		printf("version %u: a first draft of %d tokens, %" PRId64 " counted\n", x.version, l->file.draft_vocab_size, l->counted);
	} else
		fprintf(stderr, "redraft-learn: %s\nThe draft is in %s; redraft-learn submits it once redraftd answers.\n", e->text, path);
	json_decref(reply);
	r = k ? 0 : learner_do(l, &x, e);
	if (!r)
		r = learner_checkpoint(l, e);
	return r ? r : k ? 3 : 0;
}

static int init(const struct conf *c, const struct dev_options *device, const struct frozen *fz)
{
	struct learner_options o;
	struct learner *l = NULL;
	struct source *src = NULL;
	struct dev *d = NULL;
	struct errtext e = {""};
	bool done = false;
	learner_options(c, &o);
	int r = open_source(c, &src, &e);
	if (!r)
		r = crew_dev_new(ranks, device, &d, &e);
	if (!r)
		r = learner_open(&o, d, src, fz, &l, &e);
	if (r == LEARNER_E_INEXACT)
		r = 0;
	if (!r && l->t)
		r = errtext_set(&e, -EEXIST, "%.150s holds a draft already: use another --state_dir to start anew", c->state_dir);
	if (!r)
		r = count_records(c, l, &e);
	if (!r)
		r = learner_begin(l, c->vocab_from, &done, &e);
	if (!r)
		r = submit(c, l, &e);
	learner_close(l);
	if (src)
		src->free(src);
	dev_free(d);
	if (r < 0)
		return fail(r == -EINVAL || r == -EEXIST ? 2 : 1, *e.text ? e.text : strerror(-r));
	return r;
}

/* ---- run ---- */

struct process {
	struct loop *loop;
	struct worker *worker;
	struct service *service;
	struct reload reload;
	struct pulse pulse;
	bool stall_said;
	int code;
};

static void on_exit_of_worker(void *arg, int code, const char *message)
{
	struct process *p = arg;
	p->code = code;
	if (code) {
		log_error("%s", message);
		notify_state("STATUS=%s", message);
	}
	loop_stop(p->loop);
}

static void pace_of(const struct conf *c, struct worker_pace *ret)
{
	uint64_t publish_us = (uint64_t)c->publish_s * 1000000;
	*ret = (struct worker_pace){.publish_us = publish_us, .checkpoint_us = (uint64_t)c->checkpoint_s * 1000000,
				    .publish_min_steps = c->min_steps, .gate_k = (int)c->gate_k, .max_age_us = (uint64_t)c->max_age_h * 3600000000u,
				    .governor = {.tpot_p95_ms = c->tpot_ms, .tpot_ratio = c->tpot_ratio, .least = c->least, .memory_bytes = (uint64_t)c->memory_mb << 20,
						 .max_rows = (int)c->max_rows, .flat_after = (int)c->flat_after, .flat_gain = c->flat_gain, .nap_us = 2 * publish_us}};
}

/* What is trained is in the journal and stays; only when things are done may change under way. */
static int apply(void *arg, const void *fresh, struct errtext *e)
{
	const struct conf *c = fresh;
	struct process *p = arg;
	struct command pace = {.kind = CMD_PACE};
	pace_of(c, &pace.pace);
	if (worker_post(p->worker, &pace))
		return errtext_set(e, -EAGAIN, "too many commands wait for the learner; try again");
	log_set_level(levels[c->log_level]);
	return 0;
}

static void on_reload(void *arg)
{
	struct process *p = arg;
	struct errtext e = {""};
	int r = reload_now(&p->reload, &e);
	log_line(r < 0 ? LOG_ERROR : LOG_INFO, "%s", e.text);
}

static void on_stop(void *arg)
{
	struct process *p = arg;
	group_ends = ranks->size > 1; /* perhaps because a rank is gone: do not wait for it */
	loop_stop(p->loop);
}

/* ---- what the service manager hears ---- */

static bool on_alive(void *arg)
{
	struct process *p = arg;
	bool moves = pulse_moves(&p->pulse, worker_beats(p->worker), true);
	if (!moves && !p->stall_said)
		log_error("the compute thread does nothing; the service manager will restart us unless it moves");
	p->stall_said = !moves;
	return moves;
}

static void on_status(void *arg, char *ret, size_t size)
{
	struct process *p = arg;
	json_t *j = worker_status(p->worker);
	json_t *records = json_object_get(j, "records"), *loss = json_object_get(j, "loss");
	int n = snprintf(ret, size, "step %" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT " records, %" JSON_INTEGER_FORMAT " behind, on version %" JSON_INTEGER_FORMAT,
			 json_integer_value(json_object_get(j, "step")), json_integer_value(json_object_get(records, "consumed")),
			 json_integer_value(json_object_get(records, "lag")), json_integer_value(json_object_get(j, "base_version")));
	if (n > 0 && (size_t)n < size && json_is_real(loss))
		n += snprintf(ret + n, size - (size_t)n, ", loss %.3f", json_real_value(loss));
	if (n > 0 && (size_t)n < size && p->reload.refused)
		(void)snprintf(ret + n, size - (size_t)n, "; %lu reloads refused", p->reload.refused);
	json_decref(j);
}

static json_t *on_config(void *arg)
{
	return conf_show(&program, arg);
}

static int run(struct conf *c, const struct dev_options *device, const struct frozen *fz, int argc, char **argv)
{
	struct worker_options o = {
		.device = *device, .nice = (int)c->nice, .policy = policy_of(c),
		.serve_socket = c->serve_socket, .daemon_socket = c->daemon_socket,
		.follow = *c->follow_journal ? c->follow_journal : NULL, .follow_print = (int)c->follow_print,
	};
	struct process p = {.reload = {.program = &program, .argc = argc, .argv = argv, .max_pos = 1, .conf = c, .apply = apply, .arg = &p}};
	struct source *src = NULL;
	struct control *control = NULL;
	struct errtext e = {""};
	learner_options(c, &o.learner);
	pace_of(c, &o.pace);
	int r = open_source(c, &src, &e);
	if (!r)
		r = loop_new(&p.loop);
	if (r)
		return fail(2, *e.text ? e.text : strerror(-r));
	loop_on_signal(p.loop, on_stop, on_reload, &p); /* from here on they wait for the loop: a SIGHUP ends nothing */
	r = worker_start(&o, p.loop, src, fz, on_exit_of_worker, &p, &p.worker);
	if (!r && !o.follow)
		r = control_start(p.loop, c->run_dir, p.worker, &control, &e);
	if (control)
		control_config(control, on_config, c);
	if (!r)
		r = service_new(&(struct service_options){.loop = p.loop, .alive = on_alive, .status = on_status, .arg = &p}, &p.service);
	if (!r) {
		notify_state("READY=1\nSTATUS=learning for target %.12s", fz->target_fp);
		log_info("target %.12s, %d tokens, %d wide; store %s; brokers %s", fz->target_fp, fz->V, fz->H, c->store, *c->brokers ? c->brokers : "none");
		r = loop_run(p.loop);
		notify_state("STOPPING=1");
	}
	service_free(p.service);
	control_stop(control);
	worker_stop(p.worker);
	loop_free(p.loop);
	if (r)
		return fail(r == -EADDRINUSE || *e.text ? 2 : 1, *e.text ? e.text : strerror(-r));
	return p.code;
}

static void on_group_end(int s)
{
	(void)s;
	group_ends = 1;
}

/* Every rank but the first: no socket, no record, no journal. */
static int follow(const struct conf *c, const struct dev_options *device, const struct frozen *fz)
{
	struct dev *d = NULL;
	struct errtext e = {""};
	(void)signal(SIGINT, SIG_IGN); /* rank 0 ends the others */
	(void)signal(SIGTERM, on_group_end);
	int r = priority_lower(policy_of(c), (int)c->nice);
	if (r)
		log_warn("cpu.policy: %s; going on as any other process", strerror(-r));
	r = crew_dev_new(ranks, device, &d, &e);
	if (!r)
		r = crew_follow(ranks, d, &(struct crew_target){fz->embedding, fz->head, fz->V, fz->H}, &e);
	dev_free(d);
	return r ? fail(1, *e.text ? e.text : strerror(-r)) : 0;
}

static const struct {
	const char *word;
	int (*run)(int argc, char **argv);
} words[] = {
	{"train", cmd_train}, {"bootstrap", cmd_bootstrap}, {"collect", cmd_collect}, {"export-records", cmd_export_records},
	{"replay", cmd_replay}, {"export", cmd_export}, {"import", cmd_import}, {"pack", cmd_pack}, {"unpack", cmd_unpack},
};

int main(int argc, char **argv)
{
	struct conf c;
	struct frozen fz = {0};
	struct errtext e = {""};
	const char *word[2];
	int n = 0;
	for (size_t i = 0; argc > 1 && i < sizeof words / sizeof words[0]; i++)
		if (strcmp(argv[1], words[i].word) == 0)
			return words[i].run(argc - 1, argv + 1);
	int r = conf_load(&program, argc, argv, &c, word, 1, &n, &e);
	if (r > 0)
		return 0;
	if (r < 0 || crew_open(&c.ranks, &ranks, &e))
		return fail(2, e.text);
	ranks->stop = ranks->size > 1 ? &group_ends : NULL;
	struct dev_options device = {.kind = (enum dev_kind)c.device, .threads = (int)c.threads, .math = (enum dev_math)c.device_math, .background = true,
				     .memory_bytes = (uint64_t)c.device_mb << 20};
	log_init("redraft-learn", levels[c.log_level]);
	if (n && strcmp(word[0], "init") != 0) {
		(void)errtext_set(&e, 0, "unknown word \"%.40s\": known are init, train, bootstrap, collect, export-records, replay, export, import, pack and unpack", word[0]);
		r = fail(2, e.text);
	} else if (crew_device(ranks, &device, &e) || frozen_open(c.store, c.target_fp, &fz, &e))
		r = fail(2, e.text);
	else
		r = ranks->rank ? follow(&c, &device, &fz) : n ? init(&c, &device, &fz) : run(&c, &device, &fz, argc, argv);
	crew_end(ranks, r ? *e.text ? e.text : "it ended with an error" : NULL);
	comm_free(ranks);
	frozen_close(&fz);
	conf_done(&program, &c);
	return r;
}
