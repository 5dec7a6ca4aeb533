/* Requests against an engine from a test's own thread: submit, wait, compare. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "serve/engine.h"
#include "tests/unit/serve/toy.h"

enum { JOB_MAX = 160 };

struct job {
	uint32_t prompt[JOB_MAX], out[JOB_MAX];
	int n_prompt, n_out, max_tokens;
	struct sampling how;
	struct token_bias bias[2];
	uint32_t stop_ids[3];
	int n_stop_ids, min_tokens;
	int client, priority; /* client: 0 = nobody */
	int conversation;     /* 0 = one that all share */
	struct probe *probe; uint32_t probe_version;
	uint64_t deadline_us;
	bool no_draft, no_trace, ignore_eos, logprobs; /* logprobs: with two alternatives */
	struct token_logprob lp[JOB_MAX * 3];
	int n_lp;
	uint64_t handle;
	enum finish why;
	struct request_stats stats;
	int groups;         /* on_tokens calls */
	int first_at, done_at; /* places in the order of all jobs' first tokens and ends, from 1 */
	atomic_int done;
	atomic_int *ticks;  /* every emission adds one, when set */
	atomic_int *hold;   /* tokens are not taken while it is not 0 (10 s at most), when set */
	atomic_int *slow;   /* each emission takes 50 ms while it is not 0, when set: the engine takes commands between them */
	int stall_at;       /* on this tick, wait until the test's thread has seen it (ticks_wait), and for as long as it takes to act */
	char error[64];
};

static pthread_mutex_t job_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_cond = PTHREAD_COND_INITIALIZER;

static atomic_int job_events;
static bool tick_seen; /* job_lock */

static void job_tokens(void *arg, const uint32_t *ids, int n)
{
	struct job *j = arg;
	if (!j->groups)
		j->first_at = atomic_fetch_add(&job_events, 1) + 1;
	for (int i = 0; i < n && j->n_out < JOB_MAX; i++)
		j->out[j->n_out++] = ids[i];
	j->groups++;
	for (int i = 0; j->hold && atomic_load(j->hold) && i < 10000; i++)
		usleep(1000);
	if (j->slow && atomic_load(j->slow))
		usleep(50000);
	if (j->ticks && atomic_fetch_add(j->ticks, 1) == j->stall_at) {
		pthread_mutex_lock(&job_lock);
		pthread_cond_broadcast(&job_cond);
		while (!tick_seen)
			pthread_cond_wait(&job_cond, &job_lock);
		tick_seen = false;
		pthread_mutex_unlock(&job_lock);
		usleep(3000);
	}
}

static void job_logprobs(void *arg, const struct token_logprob *lp, int n)
{
	struct job *j = arg;
	for (int i = 0; i < 3 * n && j->n_lp < JOB_MAX * 3; i++)
		j->lp[j->n_lp++] = lp[i];
}

static void job_done(void *arg, enum finish why, const struct request_stats *s, const char *error)
{
	struct job *j = arg;
	j->why = why;
	j->done_at = atomic_fetch_add(&job_events, 1) + 1;
	j->stats = *s;
	snprintf(j->error, sizeof j->error, "%s", error);
	pthread_mutex_lock(&job_lock);
	atomic_store(&j->done, 1);
	pthread_cond_broadcast(&job_cond);
	pthread_mutex_unlock(&job_lock);
}

static inline int job_submit(struct engine *g, struct job *j)
{
	struct engine_request r = {.prompt = j->prompt, .n_prompt = j->n_prompt, .max_tokens = j->max_tokens, .sampling = j->how,
				   .ignore_eos = j->ignore_eos, .no_draft = j->no_draft, .no_trace = j->no_trace, .request_id = "r", .conversation = "c",
				   .domain = "other", .probe = j->probe, .probe_version = j->probe_version, .priority = j->priority, .deadline_us = j->deadline_us, .on_tokens = job_tokens, .on_done = job_done, .arg = j};
	if (j->conversation)
		snprintf(r.conversation, sizeof r.conversation, "c-%d", j->conversation);
	if (j->client)
		snprintf(r.client, sizeof r.client, "client-%d", j->client);
	snprintf(r.tenant, sizeof r.tenant, "tenant-%d", j->client % 3);
	if (j->how.n_bias)
		r.sampling.bias = j->bias;
	r.stop_ids = j->stop_ids;
	r.n_stop_ids = j->n_stop_ids;
	r.min_tokens = j->min_tokens;
	if (j->logprobs)
		r.on_logprobs = job_logprobs, r.top_logprobs = 2;
	j->n_out = j->groups = j->n_lp = 0;
	atomic_store(&j->done, 0);
	return engine_submit(g, &r, &j->handle);
}

static inline void job_wait(struct job *j)
{
	pthread_mutex_lock(&job_lock);
	while (!atomic_load(&j->done))
		pthread_cond_wait(&job_cond, &job_lock);
	pthread_mutex_unlock(&job_lock);
}

static inline bool jobs_done(const struct job *jobs, int n)
{
	for (int i = 0; i < n; i++)
		if (!atomic_load(&jobs[i].done))
			return false;
	return true;
}

/* Until the tick that stalls has come, or all jobs ended before it: those that count `ticks`, which nobody else does. */
static inline void ticks_wait(const atomic_int *ticks, int at, const struct job *jobs, int n)
{
	pthread_mutex_lock(&job_lock);
	while (atomic_load(ticks) <= at && !jobs_done(jobs, n))
		pthread_cond_wait(&job_cond, &job_lock);
	tick_seen = atomic_load(ticks) > at;
	pthread_cond_broadcast(&job_cond);
	pthread_mutex_unlock(&job_lock);
}

static inline void job_random(struct job *j, uint64_t seed, int n_prompt, int max_tokens)
{
	memset(j, 0, sizeof *j);
	j->n_prompt = n_prompt;
	j->max_tokens = max_tokens;
	for (int i = 0; i < n_prompt; i++)
		j->prompt[i] = (uint32_t)(toy_mix(seed * 1000003u + (uint64_t)i) % TOY_V);
}

static inline bool job_same(const struct job *a, const struct job *b)
{
	return a->n_out == b->n_out && a->why == b->why && memcmp(a->out, b->out, (size_t)a->n_out * sizeof *a->out) == 0 &&
	       a->n_lp == b->n_lp && a->n_lp == (a->logprobs ? 3 * a->n_out : 0) && memcmp(a->lp, b->lp, (size_t)a->n_lp * sizeof *a->lp) == 0;
}
