/* redraft-learn train: a draft from records on disk or in the topic, with a progress line and accept lengths on held-out requests.
 *
 * The result is a version folder (weights, config, submit.json): in store/incoming, ready for redraftd, or where
 * --out says. It is written anew at each evaluation, so a run that is stopped leaves its last good draft; Ctrl-C
 * ends training, evaluates once more and writes.
 */
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "daemon/base/rpc.h"
#include "learn/cmd.h"
#include "learn/collect.h"
#include "learn/crew.h"
#include "learn/offline.h"
#include "learn/priority.h"

enum { SEGMENT_BYTES = 64 << 20, SAY_US = 1000000 };

struct conf {
	char *store, *target_fp, *from_pool, *from_files, *from_topic, *brokers, *source_conf, *judge_pool, *from_draft, *out, *daemon_socket;
	bool json, prompt_rows, submit, resume;
	int optimizer, loss, teacher, schedule, order, device, device_math;
	int64_t tokens, epochs, from_version, threads, nice, seed, ttt_steps, muon_iters, warmup_steps, draft_vocab, max_rows, pack_rows, history_rows, eval_tokens, domain_max, k, cache_mb, device_mb;
	struct crew_conf ranks;
	double lr, muon_lr, clip, decay, ema, share, replay_share, anchor;
};

#define AT(f) offsetof(struct conf, f)
#define AT_RANKS(f) AT(ranks.f)
static const struct conf_entry entries[] = {
	{"from_pool", CONF_STRING, AT(from_pool), "", 0, 0, NULL, false, "", "folders of pool segments (of collect, or a learner's state_dir/pool), separated by blanks"},
	{"from_files", CONF_STRING, AT(from_files), "", 0, 0, NULL, false, "", "globs of record files; they are read into OUT.records first"},
	{"from_topic", CONF_STRING, AT(from_topic), "", 0, 0, NULL, false, "", "topic whose records are read into OUT.records first, to its end, a million rows or what --tokens needs"},
	{"brokers", CONF_STRING, AT(brokers), "", 0, 0, NULL, false, "", "Kafka bootstrap servers, for from_topic"},
	{"source.conf", CONF_STRING, AT(source_conf), "", 0, 0, NULL, false, "", "more librdkafka settings, k=v,k=v, for from_topic"},
	{"judge_pool", CONF_STRING, AT(judge_pool), "", 0, 0, NULL, false, "", "folders of records to judge by, never trained; empty = a share of what is trained from"},
	{"from_draft", CONF_STRING, AT(from_draft), "", 0, 0, NULL, false, "", "folder of a draft to go on from"},
	{"from_version", CONF_INT, AT(from_version), "0", 0, 4294967295.0, NULL, false, "", "version of the store to go on from; 0 = a first draft"},
	{"out", CONF_STRING, AT(out), "", 0, 0, NULL, false, "", "folder of the draft; empty = store/incoming/offline-<time>"},
	{"submit", CONF_BOOL, AT(submit), "off", 0, 0, NULL, false, "", "hand the draft in store/incoming to redraftd when done"},
	{"daemon_socket", CONF_STRING, AT(daemon_socket), "/run/redraft/daemon/control.sock", 0, 0, NULL, false, "", "redraftd's control socket"},
	{"store", CONF_STRING, AT(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "version store, for the target's frozen file"},
	{"target_fp", CONF_STRING, AT(target_fp), "", 0, 0, NULL, false, "", "fingerprint of the target; empty = the only one in store/frozen"},
	{"resume", CONF_BOOL, AT(resume), "off", 0, 0, NULL, false, "", "keep the whole state in OUT.state at each evaluation, and go on from it: bit for bit (where the device rounds otherwise it says so)"},
	CREW_KEYS(AT_RANKS),
	{"tokens", CONF_INT, AT(tokens), "0", 0, 1e12, NULL, false, "tok", "end after so many trained rows; 0 = after the epochs"},
	{"epochs", CONF_INT, AT(epochs), "2", 1, 1000, NULL, false, "", "how often each run is trained at most"},
	{"json", CONF_BOOL, AT(json), "off", 0, 0, NULL, false, "", "one JSON object an evaluation on standard output, instead of a table"},
	{"eval.tokens", CONF_INT, AT(eval_tokens), "20000", 0, 1e12, NULL, false, "tok", "rows between two evaluations; 0 = at the end alone"},
	{"eval.k", CONF_INT, AT(k), "5", 1, TTT_MAX_STEPS, NULL, false, "tok", "chain length of the accept length"},
	{"heldout.share", CONF_REAL, AT(share), "0.1", 0, 0.9, NULL, false, "", "share of the runs that is judged and not trained"},
	{"heldout.domain_max", CONF_INT, AT(domain_max), "24", 1, 10000, NULL, false, "runs", "runs judged of each domain at most"},
	{"device", CONF_ENUM, AT(device), "auto", 0, 0, "auto|cpu|cuda", false, "", "what computes; auto takes a GPU where one answers"},
	{"device_math", CONF_ENUM, AT(device_math), "fast", 0, 0, "strict|fast", false, "", "fast: products in bf16 where the device has them (a GPU, AVX-512 with bf16), strict: in f32; sums are f32"},
	{"device_memory_mb", CONF_INT, AT(device_mb), "0", 0, 1e9, NULL, false, "MiB", "memory of a GPU that is taken at most, what cuBLAS and the driver need for themselves aside; 0 = no limit"},
	{"threads", CONF_INT, AT(threads), "0", 0, DEV_MAX_THREADS, NULL, false, "threads", "compute threads; 0 = all processors"},
	{"nice", CONF_INT, AT(nice), "10", 0, 19, NULL, false, "", "niceness"},
	{"seed", CONF_INT, AT(seed), "1", 0, 9007199254740991.0, NULL, false, "", "seed of every random choice"},
	{"train.ttt_steps", CONF_INT, AT(ttt_steps), "7", 1, TTT_MAX_STEPS, NULL, false, "steps", "unrolled steps of training-time test"},
	{"train.decay", CONF_REAL, AT(decay), "0.8", 0.01, 1, NULL, false, "", "weight of each further unrolled step"},
	{"train.loss", CONF_ENUM, AT(loss), "kl", 0, 0, LOSS_NAMES, false, "", "what the draft is drawn towards (learn/README.md)"},
	{"train.teacher", CONF_ENUM, AT(teacher), "top", 0, 0, "top|whole", false, "", "prompt rows learn from the 64 likeliest tokens of the draft vocabulary, or from all of it"},
	{"train.optimizer", CONF_ENUM, AT(optimizer), "adamw", 0, 0, "adamw|muon", false, "", "muon: on the matrices, AdamW on head and norms"},
	{"train.lr", CONF_REAL, AT(lr), "0.001", 1e-9, 1, NULL, false, "", "learning rate of AdamW"},
	{"train.muon_lr", CONF_REAL, AT(muon_lr), "0.02", 1e-9, 1, NULL, false, "", "learning rate of Muon"},
	{"train.schedule", CONF_ENUM, AT(schedule), "cosine", 0, 0, "constant|cosine", false, "", "course of the learning rate after warm-up"},
	{"train.warmup_steps", CONF_INT, AT(warmup_steps), "10", 0, 1e9, NULL, false, "steps", "linear warm-up of the learning rate"},
	{"train.muon_iters", CONF_INT, AT(muon_iters), "5", 1, 12, NULL, false, "", "Newton-Schulz rounds a step of Muon; fewer are cheaper"},
	{"train.clip", CONF_REAL, AT(clip), "0.5", 1e-6, 1e6, NULL, false, "", "gradients are clipped to this norm"},
	{"train.ema", CONF_REAL, AT(ema), "0", 0, 0.99999, NULL, false, "", "decay a step of averaged weights, which are then judged and kept; 0 = off"},
	{"train.order", CONF_ENUM, AT(order), "shuffled", 0, 0, "shuffled|stream", false, "", "stream: as the records came, once, as the learner that runs beside a server meets them"},
	{"train.replay_share", CONF_REAL, AT(replay_share), "0.25", 0, 0.9, NULL, false, "", "order stream: share of steps that train a run from before"},
	{"train.anchor", CONF_REAL, AT(anchor), "0", 0, 1, NULL, false, "", "each step draws the weights this far towards the start (or the end of the first folder)"},
	{"train.draft_vocab", CONF_INT, AT(draft_vocab), "8192", 16, 1 << 24, NULL, false, "tok", "draft vocabulary of a first draft"},
	{"train.max_rows", CONF_INT, AT(max_rows), "1024", 16, 1 << 20, NULL, false, "tok", "rows of one step; longer runs take several"},
	{"train.pack_rows", CONF_INT, AT(pack_rows), "0", 0, 1 << 20, NULL, false, "tok", "a step takes further runs while they fit into so many rows; 0 = one run a step"},
	{"train.history_rows", CONF_INT, AT(history_rows), "256", 0, 16384, NULL, false, "tok", "rows before a window that are laid in front of it as context, an earlier request's too"},
	{"train.prompt_rows", CONF_BOOL, AT(prompt_rows), "on", 0, 0, NULL, false, "", "learn from prompts too, not from replies alone"},
	{"train.cache_mb", CONF_INT, AT(cache_mb), "1024", 0, 1e7, NULL, false, "MiB", "teachers kept in memory from one epoch to the next"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program program = {
	.name = "redraft-learn train", .summary = "Trains a draft from recorded requests, on disk or in the topic, and writes it as a version folder.",
	.entries = entries, .struct_size = sizeof(struct conf)};

static volatile sig_atomic_t caught;
static volatile int stop_now, group_ends;

static void on_signal(int s)
{
	caught = caught + 1;
	stop_now = caught; /* twice: the last evaluation is cut short too */
	if (s == SIGTERM) /* under mpirun: a rank is gone, and soon all of us */
		group_ends = 1;
}

struct session {
	const struct conf *c;
	const struct frozen *fz;
	char dir[4096], state[4112];
	char sha[65];
	uint64_t said, began;
	bool tty;
	struct comm *ranks;
};

/* ---- telling ---- */

static void eta_text(const struct offline_report *r, char ret[32])
{
	double left = r->tokens ? r->seconds * (double)(r->tokens_total - r->tokens) / (double)r->tokens : NAN;
	if (!(left >= 0))
		(void)snprintf(ret, 32, "?");
	else if (left < 90)
		(void)snprintf(ret, 32, "%.0f s", left);
	else
		(void)snprintf(ret, 32, "%.0f min", left / 60);
}

static void progress(struct session *s, const struct offline_report *r)
{
	char eta[32];
	if (clock_us() - s->said < (uint64_t)(s->tty ? SAY_US : 30 * SAY_US))
		return;
	s->said = clock_us();
	eta_text(r, eta);
	fprintf(stderr, "%sstep %" PRId64 "/%" PRId64 "  %" PRId64 " of %" PRId64 " tok  %.0f tok/s  loss %.3f  accuracy %.3f  ETA %s  %s", s->tty ? "\r" : "", r->step,
		r->steps, r->tokens, r->tokens_total, r->seconds > 0 ? (double)r->tokens / r->seconds : 0, r->loss, r->accuracy, eta, s->tty ? "" : "\n");
}

static void print_json(const struct session *s, const struct offline_report *r)
{
	json_t *domains = json_object();
	for (int i = 0; i < r->n_domains; i++) {
		const struct offline_domain *d = &r->domain[i];
		json_t *x = json_pack("{s:i,s:I,s:f}", "requests", d->requests, "rounds", (json_int_t)d->rounds, "accept_length", offline_accept_length(d));
		if (isfinite(d->high)) {
			(void)json_object_set_new(x, "low", json_real(d->low));
			(void)json_object_set_new(x, "high", json_real(d->high));
		}
		(void)json_object_set_new(domains, d->name, x);
	}
	json_t *j = json_pack("{s:s,s:i,s:I,s:I,s:f,s:f,s:f,s:i,s:I,s:s,s:o}", "event", "eval", "leg", r->leg, "step", (json_int_t)r->step, "tokens", (json_int_t)r->tokens, "seconds", r->seconds,
			      "loss", r->loss, "accuracy", r->accuracy, "k", (int)s->c->k, "seed", (json_int_t)s->c->seed, "commit", REDRAFT_COMMIT, "domains", domains);
	char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	if (text)
		puts(text);
	(void)fflush(stdout);
	free(text);
	json_decref(j);
}

static void print_table(const struct session *s, const struct offline_report *r)
{
	if (s->tty)
		fprintf(stderr, "\n");
	printf("%9" PRId64 " tok  loss %7.3f  accept length at k = %d:", r->tokens, r->loss, (int)s->c->k);
	for (int i = 0; i < r->n_domains; i++)
		printf("  %s %.3f [%.3f, %.3f] of %d", r->domain[i].name, offline_accept_length(&r->domain[i]), r->domain[i].low, r->domain[i].high, r->domain[i].requests);
	printf("\n");
	(void)fflush(stdout);
}

static int report(void *arg, const struct offline_report *r)
{
	struct session *s = arg;
	if (r->resumed && !s->said) {
		fprintf(stderr, "going on from step %" PRId64 ", %s", r->resumed, s->state);
		if (*r->taken_on)
			fprintf(stderr, "; not to the same bits: those steps were taken on %s, and these are on %s, which rounds otherwise", r->taken_on, r->device);
		fprintf(stderr, "\n");
	}
	if (!r->evaluated)
		progress(s, r);
	else if (s->c->json)
		print_json(s, r);
	else
		print_table(s, r);
	return 0;
}

/* ---- keeping ---- */

static int keep(void *arg, const struct draft *d, const struct offline_report *r)
{
	struct session *s = arg;
	const struct offline_domain *all = r->n_domains ? &r->domain[r->n_domains - 1] : NULL;
	json_t *meta = json_pack("{s:I,s:{},s:{s:I,s:I,s:f,s:f,s:f,s:i,s:I,s:i,s:s}}", "parent", (json_int_t)s->c->from_version, "cut", "training", "step", (json_int_t)r->step, "tokens",
				 (json_int_t)r->tokens, "loss", r->loss, "accuracy", r->accuracy, "accept_length", all ? offline_accept_length(all) : 1.0, "accept_length_k",
				 (int)s->c->k, "seed", (json_int_t)s->c->seed, "inexact_resumes", r->inexact, "who", "redraft-learn train");
	struct errtext e = {""};
	if (r->step == 0) { /* nothing was learned yet */
		json_decref(meta);
		return 0;
	}
	int k = meta ? publish_write_folder(s->dir, &d->file, d->d2t, d->w, s->fz, meta, s->sha, &e) : -ENOMEM;
	json_decref(meta);
	if (k)
		fprintf(stderr, "redraft-learn train: %s\n", *e.text ? e.text : strerror(-k));
	return k;
}

static int submit(const struct session *s, struct errtext *e)
{
	json_t *reply = NULL;
	int r = rpc_call_sync(s->c->daemon_socket, "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", s->dir), 60000, &reply, e);
	if (!r)
		fprintf(stderr, "submitted: version %" PRId64 "\n", (int64_t)json_integer_value(json_object_get(reply, "version")));
	json_decref(reply);
	return r ? 3 : 0;
}

/* ---- options ---- */

static void options(const struct session *s, struct offline_options *o)
{
	const struct conf *c = s->c;
	*o = (struct offline_options){
		.kind = &trainer_eagle3, .seed = (uint64_t)c->seed,
		.train = {.ttt_steps = (int)c->ttt_steps, .decay = (real)c->decay, .loss = (enum loss_kind)c->loss, .optimizer = c->optimizer ? OPT_MUON : OPT_ADAMW,
			  .lr = (real)c->lr, .muon_lr = (real)c->muon_lr, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8,
			  .clip = (real)c->clip, .muon_momentum = (real)0.95, .muon_iters = (int)c->muon_iters, .warmup_steps = c->warmup_steps},
		.draft_vocab = (int)c->draft_vocab, .max_rows = (int)c->max_rows, .pack_rows = (int)c->pack_rows, .history_rows = (int)c->history_rows, .epochs = (int)c->epochs, .tokens = c->tokens,
		.prompt_rows = c->prompt_rows, .whole_teacher = c->teacher == 1,
		.cosine = c->schedule == 1, .stream = c->order == 1, .replay_share = c->replay_share, .anchor = c->anchor, .ema = c->ema, .heldout_share = c->share,
		.heldout_domain_max = (int)c->domain_max, .k = (int)c->k, .eval_tokens = c->eval_tokens, .cache_bytes = (uint64_t)c->cache_mb << 20,
		.stop = &stop_now, .state_dir = c->resume ? s->state : NULL,
	};
	o->train.ranks = s->ranks;
	o->train.data = (int)c->ranks.data;
	o->train.ulysses = (int)c->ranks.ulysses;
}

/* The topic's records into dir, behind those that are there. A run that goes on trains from what it began with. */
static int collect(const struct session *s, const char *dir, struct errtext *e)
{
	const struct conf *c = s->c;
	const struct collect_options o = {
		.source = {.brokers = c->brokers, .topic = c->from_topic, .extra = *c->source_conf ? c->source_conf : NULL}, .dir = dir, .max_mb = COLLECT_MB, .idle_s = COLLECT_IDLE_S,
		.tokens = c->tokens ? (int64_t)ceil((double)c->tokens / (1 - c->share)) : COLLECT_TOKENS, .to_end = true, .stop = &stop_now};
	struct collected n = {0};
	if (!*c->brokers)
		return errtext_set(e, -EINVAL, "--from_topic needs --brokers");
	if (c->resume && !access(s->state, F_OK))
		return 0;
	int r = collect_records(&o, s->fz, &n, e);
	if (r)
		return r;
	fprintf(stderr, "%" PRId64 " rows in %" PRId64 " records of %s; %" PRId64 " refused\n", n.rows, n.records, c->from_topic, n.refused);
	return n.records ? 0 : errtext_set(e, -ENOENT, "topic %.100s at %.100s holds no record of this target (%" PRId64 " of others): there is nothing to train from", c->from_topic, c->brokers, n.refused);
}

/* The folders to train from; the topic's records and record files are read into one of their own first. */
static int open_corpus(const struct session *s, struct corpus *ret, struct errtext *e)
{
	const struct conf *c = s->c;
	char dir[4160];
	if (!!*c->from_pool + !!*c->from_files + !!*c->from_topic != 1)
		return errtext_set(e, -EINVAL, "name what to train from: one of --from_pool, --from_files and --from_topic");
	if (*c->from_pool)
		return corpus_open(c->from_pool, s->fz, ret, e);
	(void)snprintf(dir, sizeof dir, "%s.records", s->dir);
	if (*c->from_topic) {
		int r = collect(s, dir, e);
		return r ? r : corpus_open(dir, s->fz, ret, e);
	}
	struct pool_options o = {.dir = dir, .segment_bytes = SEGMENT_BYTES, .max_bytes = UINT64_MAX};
	struct pool *p = NULL;
	int n = 0, r = fs_remove_tree(dir);
	if (!r)
		r = pool_open(&o, &p, e);
	if (!r)
		r = corpus_import(c->from_files, p, &n, e);
	pool_close(p);
	return r ? r : corpus_open(dir, s->fz, ret, e);
}

/* Records that were read for a draft in store/incoming: they are nobody's. Beside --out they stay, for another run to go on behind them. */
static void forget_records(const struct session *s)
{
	char dir[4160];
	(void)snprintf(dir, sizeof dir, "%s.records", s->dir);
	if (!*s->c->out && !*s->c->from_pool && fs_remove_tree(dir))
		fprintf(stderr, "redraft-learn train: %s could not be removed whole\n", dir);
}

static int open_start(const struct session *s, struct draft *ret, bool *ret_any, struct errtext *e)
{
	if (*s->c->from_draft && s->c->from_version)
		return errtext_set(e, -EINVAL, "--from_draft and --from_version exclude each other");
	*ret_any = *s->c->from_draft || s->c->from_version;
	if (*s->c->from_draft)
		return publish_read_folder(s->c->from_draft, s->fz, ret, e);
	return s->c->from_version ? publish_read_version(s->c->store, (uint32_t)s->c->from_version, s->fz, ret, e) : 0;
}

static int open_dev(const struct session *s, struct dev **ret, struct errtext *e)
{
	struct dev_options o = {.kind = (enum dev_kind)s->c->device, .threads = (int)s->c->threads, .math = (enum dev_math)s->c->device_math,
				.background = true, .memory_bytes = (uint64_t)s->c->device_mb << 20};
	int r = crew_device(s->ranks, &o, e);
	(void)priority_lower(SCHED_OTHER, (int)s->c->nice);
	return r ? r : crew_dev_new(s->ranks, &o, ret, e);
}

/* Every rank but the first. */
static int follow(const struct session *s, struct errtext *e)
{
	struct dev *d = NULL;
	int r = open_dev(s, &d, e);
	if (!r)
		r = crew_follow(s->ranks, d, &(struct crew_target){s->fz->embedding, s->fz->head, s->fz->V, s->fz->H}, e);
	dev_free(d);
	return r;
}

static int train(struct session *s, struct errtext *e)
{
	struct offline_options o;
	struct offline_calls calls = {.report = report, .keep = keep, .arg = s};
	struct corpus corpus = {0}, judge = {0};
	struct draft start = {0};
	struct dev *d = NULL;
	bool any = false;
	options(s, &o);
	int r = open_dev(s, &d, e); /* first: other ranks wait to join theirs */
	if (!r)
		r = open_start(s, &start, &any, e);
	if (!r)
		r = open_corpus(s, &corpus, e);
	if (!r && *s->c->judge_pool)
		r = corpus_open(s->c->judge_pool, s->fz, &judge, e);
	if (!r) {
		fprintf(stderr, "%d requests, %" PRId64 " rows (%" PRId64 " generated), %" PRIu64 " records refused%s%s\n", corpus.runs.n, corpus.rows, corpus.generated,
			corpus.refused, *corpus.why ? ": " : "", corpus.why);
		r = offline_train(&o, d, &corpus, judge.runs.n ? &judge : NULL, any ? &start : NULL, &calls, e);
	}
	dev_free(d);
	corpus_close(&judge);
	corpus_close(&corpus);
	draft_done(&start);
	forget_records(s);
	return r;
}

/* Rank 0, and the only one there is without mpirun. */
static int lead(struct session *s, struct errtext *e)
{
	const struct conf *c = s->c;
	if (*c->out)
		(void)snprintf(s->dir, sizeof s->dir, "%s", c->out);
	else
		(void)snprintf(s->dir, sizeof s->dir, "%s/incoming/offline-%" PRId64, c->store, clock_wall_ms() / 1000);
	(void)snprintf(s->state, sizeof s->state, "%s.state", s->dir);
	if (c->submit && *c->out)
		return errtext_set(e, -EINVAL, "--submit takes a draft in store/incoming: leave --out away");
	if (c->resume && !*c->out)
		return errtext_set(e, -EINVAL, "--resume needs --out: that is where the state is looked for, in OUT.state");
	int r = train(s, e);
	if (comm_lost(r))
		return errtext_set(e, r, "%s; %s", s->ranks->error, c->resume ? "the same command goes on from the last evaluation" : "--resume would go on from the last evaluation");
	if (!r)
		fprintf(stderr, "%s%s: %.12s\n", s->tty ? "\n" : "", *s->sha ? s->dir : "no step was taken, nothing was written", s->sha);
	return !r && c->submit && *s->sha ? submit(s, e) : r;
}

int cmd_train(int argc, char **argv)
{
	struct conf c;
	struct frozen fz = {0};
	struct errtext e = {""};
	struct session s = {.c = &c, .fz = &fz, .tty = isatty(2)};
	int r = conf_load(&program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r > 0)
		return 0;
	if (r || (r = crew_open(&c.ranks, &s.ranks, &e))) {
		fprintf(stderr, "redraft-learn train: %s\n", e.text);
		return 2;
	}
	s.ranks->stop = s.ranks->size > 1 ? &group_ends : NULL;
	(void)signal(SIGINT, s.ranks->rank ? SIG_IGN : on_signal); /* rank 0 ends the others */
	(void)signal(SIGTERM, on_signal);
	r = frozen_open(c.store, c.target_fp, &fz, &e);
	if (!r)
		r = s.ranks->rank ? follow(&s, &e) : lead(&s, &e);
	if (r)
		fprintf(stderr, "redraft-learn train: %s\n", *e.text ? e.text : strerror(-r));
	crew_end(s.ranks, r < 0 ? *e.text ? e.text : strerror(-r) : NULL);
	comm_free(s.ranks);
	frozen_close(&fz);
	conf_done(&program, &c);
	return r >= 0 ? r : r == -EHOSTUNREACH ? 3 : r == -EINVAL || r == -ENOENT ? 2 : 1;
}
