/* The compute thread (learn/worker.h).
 *
 * One pass of its loop: commands, records, a draft if there is none, one step,
 * then what is due. A failed write of the journal ends the process, as does a failed checkpoint that
 * something waits for: the state on disk is whole, and the next start goes on from it.
 */
#include "learn/worker.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "learn/crew.h"
#include "learn/pinned.h"
#include "learn/priority.h"
#include "learn/purge.h"
#include "learn/worker_priv.h"

enum { QUEUE_MAX = 64, TAKE_MAX = 64, IDLE_MS = 50, BEGIN_US = 2000000, STATUS_US = 250000 };

/* ---- commands come, answers go ---- */

struct answer {
	struct command c;
	json_t *reply;
	char error[64], message[256];
};

static void on_answer(void *arg)
{
	struct answer *a = arg;
	a->c.done(a->c.arg, a->reply, *a->error ? a->error : NULL, a->message);
	json_decref(a->reply);
	free(a);
}

void worker_answer(struct worker *w, const struct command *c, json_t *reply, const char *error, const char *message)
{
	struct answer *a = c->done ? calloc(1, sizeof *a) : NULL;
	if (!a) {
		json_decref(reply);
		return;
	}
	a->c = *c;
	a->reply = reply;
	(void)snprintf(a->error, sizeof a->error, "%s", error ? error : "");
	(void)snprintf(a->message, sizeof a->message, "%s", message ? message : "");
	if (loop_post(w->loop, on_answer, a)) {
		json_decref(reply);
		free(a);
	}
}

int worker_post(struct worker *w, const struct command *c)
{
	int r = -EAGAIN;
	pthread_mutex_lock(&w->lock);
	if (w->n_queue < QUEUE_MAX && !w->ended) {
		w->queue[(w->head + w->n_queue++) % QUEUE_MAX] = *c;
		pthread_cond_signal(&w->wake);
		r = 0;
	}
	pthread_mutex_unlock(&w->lock);
	return r;
}

static bool next_command(struct worker *w, struct command *ret)
{
	pthread_mutex_lock(&w->lock);
	bool got = w->n_queue > 0;
	if (got) {
		*ret = w->queue[w->head];
		w->head = (w->head + 1) % QUEUE_MAX;
		w->n_queue--;
	}
	pthread_mutex_unlock(&w->lock);
	return got;
}

static void idle(struct worker *w)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += IDLE_MS * 1000000L;
	if (t.tv_nsec >= 1000000000L)
		t.tv_sec++, t.tv_nsec -= 1000000000L;
	pthread_mutex_lock(&w->lock);
	if (!w->n_queue && !w->stop)
		(void)pthread_cond_timedwait(&w->wake, &w->lock, &t);
	pthread_mutex_unlock(&w->lock);
}

/* ---- status ---- */

static json_t *real_or_null(double v, bool known)
{
	return known ? json_real(v) : json_null();
}

/* What was not learned from, by reason; and how far back the history of what was went. */
static json_t *left_out(const struct learner_counts *n)
{
	json_t *out = json_object(), *history = json_object();
	for (int i = 0; i < OUT_N; i++)
		(void)json_object_set_new(out, rule_word((enum rule_out)i), json_integer((json_int_t)n->out[i]));
	for (int i = 0; i < HISTORY_N; i++)
		(void)json_object_set_new(history, history_word((enum history_kind)i), json_integer((json_int_t)n->history[i]));
	(void)json_object_set_new(out, "shortened", json_integer((json_int_t)n->shortened));
	(void)json_object_set_new(history, "damaged", json_integer((json_int_t)n->history_damaged));
	return json_pack("{s:o,s:o,s:I,s:I}", "left_out", out, "history", history, "repeated_rows", (json_int_t)n->repeated_rows, "shortened_rows", (json_int_t)n->shortened_rows);
}

static json_t *written(const struct written *x)
{
	return json_pack("{s:I,s:I,s:f,s:f,s:I,s:s}", "step", (json_int_t)x->step, "bytes", (json_int_t)x->bytes, "stood_ms", (double)x->stood_us / 1000, "took_ms", (double)x->took_us / 1000,
			 "failed", (json_int_t)x->failed, "error", x->error);
}

json_t *worker_describe(struct worker *w)
{
	struct learner *l = w->l;
	const struct learner_counts *n = &l->n;
	bool some = n->trained_tokens > 0;
	int64_t lag = 0, one;
	for (int p = 0; p < l->n_parts && l->src; p++)
		lag += (one = l->src->lag(l->src, p, l->at[p].next)) > 0 ? one : 0;
	json_t *records = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:s,s:s,s:s}", "consumed", (json_int_t)n->records, "bytes", (json_int_t)n->bytes,
				    "rows", (json_int_t)n->rows, "set_aside", (json_int_t)n->set_aside, "duplicates", (json_int_t)n->duplicates,
				    "gaps", (json_int_t)n->offset_gaps, "lost", (json_int_t)n->lost, "lag", (json_int_t)lag, "lag_s", lag > 0 ? learner_age_s(l) : 0.0, "last_bad", l->last_bad,
				    "last_gap", l->last_gap, "trouble", l->src ? l->src->trouble(l->src) : "");
	json_t *pool = json_pack("{s:i,s:i,s:i,s:I,s:I,s:I}", "runs", l->runs.n, "queued", learner_count(l, RUN_QUEUED), "open", l->join.n, "bytes",
				 (json_int_t)pool_bytes(l->pool), "joins_broken", (json_int_t)l->join.gaps, "counted", (json_int_t)l->counted);
	json_t *steps = json_pack("{s:I,s:I,s:I,s:I}", "bad", (json_int_t)n->steps_bad, "spikes", (json_int_t)n->steps_spike, "empty", (json_int_t)n->steps_empty,
				  "inexact_resumes", (json_int_t)n->inexact);
	(void)json_object_update_new(pool, left_out(n));
	json_t *saved = written(&l->saved), *candidate = written(&l->candidate);
	(void)json_object_set_new(saved, "copy_bytes", json_integer((json_int_t)learner_copy_bytes(l)));
	return json_pack("{s:s,s:i,s:I,s:I,s:I,s:o,s:o,s:f,s:I,s:b,s:o,s:o,s:i,s:o,s:I,s:o,s:{s:s,s:I,s:b},s:o,s:o,s:o,s:o}", "target_fp", l->fz->target_fp, "pid",
			 (int)getpid(), "uptime_s", (json_int_t)((clock_us() - w->started) / 1000000), "step", (json_int_t)l->step, "trained_tokens",
			 (json_int_t)n->trained_tokens, "loss", real_or_null(l->loss_mean, some), "accuracy", real_or_null(l->acc_mean, some), "lr",
			 (double)l->o.train.lr, "base_version", (json_int_t)l->base, "paused", l->paused, "records", records, "pool", pool, "held_out",
			 learner_count(l, RUN_HELD_OUT), "cut", learner_cut(l), "drift", (json_int_t)l->drift, "steps", steps, "pending", "name",
			 l->pending.name, "version", (json_int_t)l->pending.version, "writing", (int)l->pending.writing, "pace", pace_status(w->pace), "checkpoint", saved, "candidate", candidate,
			 "pinned", pinned_count(l));
}

static void refresh_status(struct worker *w, bool force)
{
	uint64_t now = clock_us();
	if (!force && now - w->status_at < STATUS_US)
		return;
	json_t *j = worker_describe(w), *old;
	w->status_at = now;
	pthread_mutex_lock(&w->lock);
	old = w->status;
	w->status = j ? j : old;
	if (j)
		json_decref(old);
	pthread_mutex_unlock(&w->lock);
}

json_t *worker_status(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	json_t *j = w->status ? json_deep_copy(w->status) : NULL;
	pthread_mutex_unlock(&w->lock);
	if (j)
		return j;
	return json_pack("{s:n,s:i,s:I,s:i,s:i,s:n,s:n,s:f,s:i,s:b,s:{},s:{},s:i,s:n,s:i,s:s}", "target_fp", "pid", (int)getpid(), "uptime_s",
			 (json_int_t)((clock_us() - w->started) / 1000000), "step", 0, "trained_tokens", 0, "loss", "accuracy", "lr", 0.0,
			 "base_version", 0, "paused", 0, "records", "pool", "held_out", 0, "cut", "drift", 0, "state", "starting");
}

uint64_t worker_beats(struct worker *w)
{
	struct dev *d = atomic_load(&w->counted);
	return atomic_load(&w->beats) + (d ? atomic_load_explicit(&d->beats, memory_order_relaxed) : 0);
}

/* ---- the loop ---- */

static int begin_if_none(struct worker *w, struct errtext *e)
{
	bool done;
	struct errtext why = {""};
	if (w->l->t || clock_us() < w->begin_at)
		return 0;
	w->begin_at = clock_us() + BEGIN_US;
	int r = learner_begin(w->l, NULL, &done, &why);
	if (r == -EINVAL || r == -ENOENT) { /* a version that cannot be read: others may come */
		log_repeated(&w->no_draft, LOG_WARN, "no draft to go on from: %s", why.text);
		return 0;
	}
	if (r)
		return errtext_set(e, r, "%s", *why.text ? why.text : strerror(-r));
	if (done && w->l->base)
		log_info("going on from version %u of the store", w->l->base);
	else if (done)
		log_info("made a first draft: %d of %d tokens, from %" PRId64 " counted", w->l->file.draft_vocab_size, w->l->fz->V, w->l->counted);
	return 0;
}

/* Rows of a step as the pace allows them: an option like any other, so it is journalled. */
static int fit_memory(struct worker *w, struct errtext *e)
{
	int rows = pace_rows(w->pace);
	struct learner_options o = w->l->o;
	struct journal_entry x = {.kind = J_CONFIG};
	if (rows == o.max_rows)
		return 0;
	log_info("steps of %d rows from now on, instead of %d", rows, o.max_rows);
	o.max_rows = rows;
	int r = learner_print_config(&o, x.text, sizeof x.text);
	return r ? r : learner_do(w->l, &x, e);
}

static const char ending[] = "the learner is ending";

static int one_pass(struct worker *w, struct errtext *e)
{
	struct command c;
	int r = 0, taken = 0;
	w->beats++;
	while (!r && next_command(w, &c)) {
		r = worker_obey(w, &c, e);
		if (r)
			worker_answer(w, &c, NULL, "io.redraft.Busy", ending);
	}
	uint64_t gaps = w->l->n.offset_gaps;
	if (!r)
		r = learner_consume(w->l, TAKE_MAX, &taken, e);
	if (w->l->n.offset_gaps > gaps)
		log_warn("%s (%" PRIu64 " such now)", w->l->last_gap, w->l->n.offset_gaps - gaps);
	if (!r)
		r = begin_if_none(w, e);
	if (!r)
		r = fit_memory(w, e);
	bool can = !r && learner_can_step(w->l) && pace_may_step(w->pace);
	refresh_status(w, false); /* a step may take seconds */
	if (can) {
		pace_stretch(w->pace, true);
		r = learner_step(w->l, e);
		pace_stretch(w->pace, false);
	}
	if (can && !r && w->l->step % 50 == 0)
		log_info("step %" PRId64 ": loss %.4f, accuracy %.3f, %" PRId64 " tokens trained", w->l->step, w->l->loss_mean, w->l->acc_mean, w->l->n.trained_tokens);
	if (!r)
		r = worker_due(w, e);
	if (!r && !can && !taken)
		idle(w);
	return r;
}

static void print_sha(void *arg, struct learner *l)
{
	struct worker *w = arg;
	char hex[65];
	if (w->o.follow_print <= 0 || l->step % w->o.follow_print)
		return;
	learner_weights_sha(l, hex);
	printf("step %" PRId64 " weights %s\n", l->step, hex);
	(void)fflush(stdout);
}

static int follow(struct worker *w, struct errtext *e)
{
	char hex[65];
	int r = learner_follow(w->l, w->o.follow, print_sha, w, e);
	if (!r)
		r = learner_checkpoint(w->l, e); /* for who compares more than the hash */
	if (r)
		return r;
	learner_weights_sha(w->l, hex);
	printf("end step %" PRId64 " weights %s\n", w->l->step, hex);
	(void)fflush(stdout);
	return 0;
}

static int run(struct worker *w, struct errtext *e)
{
	int r = priority_lower(w->o.policy, w->o.nice); /* before the pool's threads: they inherit it */
	if (r)
		log_warn("cpu.policy: %s; going on as any other process", strerror(-r));
	r = crew_dev_new(w->o.learner.train.ranks, &w->o.device, &w->d, e);
	if (r)
		return r;
	log_info("device: %s", w->d->about);
	pace_attach(w->pace, w->d);
	atomic_store(&w->counted, w->d);
	r = learner_open(&w->o.learner, w->d, w->src, w->fz, &w->l, e);
	if (r == LEARNER_E_INEXACT)
		log_warn("resumed inexactly: %s", e->text);
	else if (r == -EINTR)
		return 0;
	else if (r < 0)
		return r;
	if (w->o.follow)
		return follow(w, e);
	if ((r = purge_unfinished(w->l, e)))
		return r;
	w->published_at = w->checkpointed_at = clock_us();
	w->checkpointed_step = w->l->step;
	pace_drift(w->pace, (int)w->l->drift);
	log_info("at step %" PRId64 ", %" PRIu64 " records, base version %u", w->l->step, w->l->n.records, w->l->base);
	refresh_status(w, true);
	for (r = 0; !r && !w->stop;)
		r = one_pass(w, e);
	if (r)
		worker_answer_waiter(w, NULL, "io.redraft.Busy", ending);
	if (!r)
		r = learner_checkpoint(w->l, e);
	if (!r)
		log_info("checkpoint written at step %" PRId64, w->l->step);
	return r;
}

static void on_end(void *arg)
{
	struct worker *w = arg;
	w->told = true;
	w->on_exit(w->arg, w->code, w->message.text);
}

static void *thread_main(void *arg)
{
	struct worker *w = arg;
	int r = run(w, &w->message);
	if (w->stop && r == -ECANCELED) /* in the middle of a step of several ranks, of which one may be gone: it is taken again */
		log_warn("%s", w->message.text);
	if (w->stop && (r == -ECANCELED || r == -EINTR /* while it waited for the log */))
		r = 0;
	if (r && !*w->message.text)
		(void)errtext_set(&w->message, 0, "%s", r == -EIO && w->d && *w->d->error ? w->d->error : strerror(-r));
	w->code = !r ? 0 : w->l ? 1 : 2;
	pthread_mutex_lock(&w->lock);
	w->ended = true;
	pthread_mutex_unlock(&w->lock);
	if (!w->stop && loop_post(w->loop, on_end, w))
		log_error("the loop takes no more posts");
	return NULL;
}

int worker_start(const struct worker_options *o, struct loop *loop, struct source *src, const struct frozen *fz,
		 void (*on_exit)(void *arg, int code, const char *message), void *arg, struct worker **ret)
{
	struct worker *w = calloc(1, sizeof *w);
	pthread_condattr_t ca;
	if (!w)
		return -ENOMEM;
	w->o = *o;
	w->o.learner.stop = &w->stop;
	w->o.learner.beats = &w->beats;
	w->loop = loop;
	w->src = src;
	w->fz = fz;
	w->on_exit = on_exit;
	w->arg = arg;
	w->started = clock_us();
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&ca);
	pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
	pthread_cond_init(&w->wake, &ca);
	pthread_condattr_destroy(&ca);
	int r = pace_new(loop, o->serve_socket ? o->serve_socket : "", o->ask_us ? o->ask_us : 1000000, &o->pace.governor, &w->pace);
	if (!r)
		r = -pthread_create(&w->thread, NULL, thread_main, w);
	if (r) {
		pace_free(w->pace);
		free(w);
		return r;
	}
	*ret = w;
	return 0;
}

struct worker *worker_stop(struct worker *w)
{
	if (!w)
		return NULL;
	pthread_mutex_lock(&w->lock);
	w->stop = 1;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	if (w->code && !w->told) /* its last checkpoint, or a rank that was gone: nobody has heard of that */
		w->on_exit(w->arg, w->code, w->message.text);
	learner_close(w->l);
	pace_free(w->pace);
	if (w->src)
		w->src->free(w->src);
	dev_free(w->d);
	json_decref(w->status);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
