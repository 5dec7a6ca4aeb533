/* An engine that answers from a script, behind struct openai_engine: each request is a
 * thread that emits the script's tokens in groups and ends as told. What was submitted and
 * cancelled can be looked at afterwards. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "serve/openai.h"

enum { FAKE_MAX = 64 };

static struct fake {
	/* the script */
	const uint32_t *ids;
	int n_ids, group;
	unsigned pause_us; /* between groups */
	bool hold;         /* after the script: wait for the cancel */
	enum finish why;
	const char *error;
	struct request_stats stats;
	int accept; /* requests until the queue is full */
	/* what happened */
	pthread_mutex_t lock;
	struct engine_request got[FAKE_MAX]; /* prompt and callbacks not to be used */
	pthread_t threads[FAKE_MAX];
	atomic_bool cancelled[FAKE_MAX];
	atomic_int n, n_cancelled, n_done;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Token id's log-probability is -id / 8, and its alternatives are 1, 2, 3, ... likewise. */
static void fake_logprobs(const struct engine_request *r, const uint32_t *ids, int n)
{
	struct token_logprob lp[FAKE_MAX * (ENGINE_MAX_LOGPROBS + 1)];
	int at = 0;

	for (int i = 0; i < n; i++)
		for (int k = 0; k <= r->top_logprobs; k++) {
			uint32_t id = k ? (uint32_t)k : ids[i];
			lp[at++] = (struct token_logprob){id, -(float)id / 8};
		}
	r->on_logprobs(r->arg, lp, n);
}

static void *fake_run(void *arg)
{
	int me = (int)(intptr_t)arg, at = 0;
	struct engine_request r = fake.got[me];
	enum finish why = fake.why;

	while (at < fake.n_ids && at < r.max_tokens && !atomic_load(&fake.cancelled[me])) {
		int n = fake.n_ids - at < fake.group ? fake.n_ids - at : fake.group;
		if (r.on_logprobs)
			fake_logprobs(&r, fake.ids + at, n);
		r.on_tokens(r.arg, fake.ids + at, n);
		at += n;
		usleep(fake.pause_us);
	}
	for (int i = 0; fake.hold && i < 10000 && !atomic_load(&fake.cancelled[me]); i++)
		usleep(1000);
	if (atomic_load(&fake.cancelled[me]))
		why = FINISH_CANCELLED;
	atomic_fetch_add(&fake.n_done, 1);
	r.on_done(r.arg, why, &fake.stats, fake.error ? fake.error : "");
	return NULL;
}

static int fake_submit(struct engine *g, const struct engine_request *r, uint64_t *ret_handle)
{
	int me;

	(void)g;
	pthread_mutex_lock(&fake.lock);
	me = atomic_load(&fake.n);
	if (me >= fake.accept) {
		pthread_mutex_unlock(&fake.lock);
		return ENGINE_E_FULL;
	}
	fake.got[me] = *r;
	*ret_handle = (uint64_t)me + 1;
	atomic_store(&fake.cancelled[me], false);
	pthread_create(&fake.threads[me], NULL, fake_run, (void *)(intptr_t)me);
	atomic_fetch_add(&fake.n, 1);
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

static void fake_cancel(struct engine *g, uint64_t handle)
{
	(void)g;
	if (!atomic_exchange(&fake.cancelled[handle - 1], true))
		atomic_fetch_add(&fake.n_cancelled, 1);
}

static void fake_status(struct engine *g, struct engine_status *ret)
{
	(void)g;
	memset(ret, 0, sizeof *ret);
	ret->live = 7;
	ret->accepted_at[1] = 5;
	ret->tokens_generated = 1234;
}

static const struct openai_engine fake_calls = {fake_submit, fake_cancel, fake_status};

/* Every request thread is over; ready for the next script. */
static void fake_reset(void)
{
	for (int i = 0; i < atomic_load(&fake.n); i++)
		pthread_join(fake.threads[i], NULL);
	atomic_store(&fake.n, 0);
	atomic_store(&fake.n_cancelled, 0);
	atomic_store(&fake.n_done, 0);
	fake.group = 1;
	fake.pause_us = 0;
	fake.hold = false;
	fake.why = FINISH_STOP;
	fake.error = NULL;
	fake.stats = (struct request_stats){.rounds = 4, .proposed = 6, .accepted = 3, .proposing_rounds = 2, .versions = {7}, .n_versions = 1};
	fake.accept = FAKE_MAX;
}
