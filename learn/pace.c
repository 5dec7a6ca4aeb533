/* Asking, sleeping (learn/pace.h). The governor is under a lock: looks come on the loop's thread. */
#include "learn/pace.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"
#include "kernels/dev.h"

enum { ASK_TIMEOUT_MS = 2000, SLEEP_MIN_US = 2000, SLEEP_MAX_US = 50000, STEP_REST_US = 10000000, OWED_MAX_US = 60000000, LATE_MOST = 10 };

struct pace {
	struct loop *loop;
	struct loop_timer *timer;
	char *socket;
	uint64_t ask_us;
	bool asking;
	int late;           /* answers that did not come in time, running */
	enum governor_state said;

	pthread_mutex_t lock;
	struct governor g;
	bool computed, computing; /* since the last look; now: a step may be longer than several looks */

	/* the compute thread's */
	bool stretch;
	uint64_t at, debt_us, rested_us, resume_at;
	_Atomic int duty_ppm;
};

/* ---- on the loop's thread ---- */

static void look_of(json_t *status, struct governor_look *ret)
{
	json_t *tokens = json_object_get(status, "tokens"), *latency = json_object_get(status, "latency");
	json_t *recent = json_object_get(latency, "recent_ms_p95");
	*ret = (struct governor_look){
		.there = true, .running = (int)json_integer_value(json_object_get(status, "running")),
		.rounds = json_integer_value(json_object_get(tokens, "rounds")), .generated = json_integer_value(json_object_get(tokens, "generated")),
		.round_ms_p95 = json_number_value(recent ? recent : json_object_get(latency, "round_ms_p95")),
	};
}

static int64_t rss_bytes(void)
{
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");
	int n = f ? fscanf(f, "%ld %ld", &pages, &resident) : 0;
	if (f)
		(void)fclose(f);
	return n == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

/* Published for the compute thread; a change of state is said once. */
static void publish(struct pace *p, uint64_t now)
{
	char text[200];
	enum governor_state s = governor_state(&p->g, now);
	atomic_store(&p->duty_ppm, (int)(1e6 * (p->g.duty > 0 ? p->g.duty : 1)));
	if (s == p->said)
		return;
	governor_say(&p->g, now, text, sizeof text);
	log_info("pace: %s", text);
	p->said = s;
}

static void seen(void *arg, int r, json_t *params, const char *error)
{
	struct pace *p = arg;
	struct governor_look look = {0};
	uint64_t now = clock_us();
	(void)error;
	p->asking = false;
	p->late = r == -ETIMEDOUT ? p->late + 1 : 0;
	if (p->late && p->late <= LATE_MOST) /* somebody is there and slow, perhaps through us: no reason to go faster */
		return;
	if (r == 0)
		look_of(params, &look);
	pthread_mutex_lock(&p->lock);
	governor_saw(&p->g, now, &look, p->computed || p->computing);
	p->computed = false;
	publish(p, now);
	pthread_mutex_unlock(&p->lock);
}

static void on_timer(void *arg)
{
	struct pace *p = arg;
	int64_t rss = rss_bytes();
	uint64_t now = clock_us();
	pthread_mutex_lock(&p->lock);
	governor_memory(&p->g, now, rss);
	publish(p, now);
	pthread_mutex_unlock(&p->lock);
	if (*p->socket && !p->asking) {
		p->asking = true;
		int r = rpc_call_async(p->loop, p->socket, "io.redraft.Serve.Status", NULL, ASK_TIMEOUT_MS, seen, p);
		if (r)
			seen(p, r, NULL, NULL);
	}
	loop_timer_set(p->timer, p->ask_us);
}

int pace_new(struct loop *loop, const char *socket, uint64_t ask_us, const struct governor_options *o, struct pace **ret)
{
	struct pace *p = calloc(1, sizeof *p);
	int r = p && (p->socket = strdup(socket)) ? 0 : -ENOMEM;
	if (!r) {
		p->loop = loop;
		p->ask_us = ask_us;
		governor_init(&p->g, o, clock_us());
		atomic_store(&p->duty_ppm, 1000000);
		pthread_mutex_init(&p->lock, NULL);
		r = loop_timer_new(loop, on_timer, p, &p->timer);
		if (r)
			pthread_mutex_destroy(&p->lock);
	}
	if (r) {
		free(p ? p->socket : NULL);
		free(p);
		return r;
	}
	loop_timer_set(p->timer, 1);
	*ret = p;
	return 0;
}

struct pace *pace_free(struct pace *p)
{
	if (!p)
		return NULL;
	loop_timer_free(p->timer);
	pthread_mutex_destroy(&p->lock);
	free(p->socket);
	free(p);
	return NULL;
}

/* ---- any thread ---- */

void pace_set(struct pace *p, const struct governor_options *o)
{
	pthread_mutex_lock(&p->lock);
	governor_set(&p->g, o);
	publish(p, clock_us());
	pthread_mutex_unlock(&p->lock);
}

json_t *pace_status(struct pace *p)
{
	char why[200];
	uint64_t now = clock_us();
	pthread_mutex_lock(&p->lock);
	const struct governor *g = &p->g;
	governor_say(g, now, why, sizeof why);
	json_t *j = json_pack("{s:s,s:s,s:f,s:f,s:f,s:i,s:I,s:I,s:I}", "state", governor_word(governor_state(g, now)), "why", why, "duty",
			      governor_may_step(g, now) ? g->duty : 0.0, "tpot_p95_ms", g->tpot_ms, "objective_ms", governor_objective(g), "rows", g->rows,
			      "rss_bytes", (json_int_t)g->rss, "pauses", (json_int_t)g->pauses, "sleeps", (json_int_t)g->sleeps);
	pthread_mutex_unlock(&p->lock);
	return j;
}

/* ---- on the compute thread ---- */

/* Before an operation of the device: what was computed since the last one is owed a share of rest. */
static void between(void *arg)
{
	struct pace *p = arg;
	int ppm = atomic_load_explicit(&p->duty_ppm, memory_order_relaxed);
	if (!p->stretch || ppm >= 1000000)
		return;
	uint64_t now = clock_us();
	p->debt_us += (uint64_t)((double)(now - p->at) * (1e6 - ppm) / ppm);
	if (p->debt_us >= SLEEP_MIN_US && p->rested_us < STEP_REST_US) { /* commands wait for the step's end: the rest is owed after it */
		uint64_t us = p->debt_us < SLEEP_MAX_US ? p->debt_us : SLEEP_MAX_US;
		(void)nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
		p->debt_us -= us;
		p->rested_us += us;
	}
	p->at = clock_us();
}

void pace_attach(struct pace *p, struct dev *d)
{
	d->between_arg = p;
	d->between = between;
}

bool pace_may_step(struct pace *p)
{
	pthread_mutex_lock(&p->lock);
	uint64_t now = clock_us();
	bool may = now >= p->resume_at && governor_may_step(&p->g, now);
	pthread_mutex_unlock(&p->lock);
	return may;
}

void pace_stretch(struct pace *p, bool on)
{
	p->stretch = on;
	p->at = clock_us();
	p->resume_at = on ? 0 : p->at + (p->debt_us < OWED_MAX_US ? p->debt_us : OWED_MAX_US);
	p->debt_us = p->rested_us = 0;
	pthread_mutex_lock(&p->lock);
	p->computed = true;
	p->computing = on;
	pthread_mutex_unlock(&p->lock);
}

bool pace_asleep(struct pace *p)
{
	pthread_mutex_lock(&p->lock);
	bool asleep = governor_asleep(&p->g, clock_us());
	pthread_mutex_unlock(&p->lock);
	return asleep;
}

int pace_rows(struct pace *p)
{
	pthread_mutex_lock(&p->lock);
	int rows = p->g.rows;
	pthread_mutex_unlock(&p->lock);
	return rows;
}

void pace_judged(struct pace *p, double gain)
{
	pthread_mutex_lock(&p->lock);
	governor_judged(&p->g, clock_us(), gain);
	pthread_mutex_unlock(&p->lock);
}

void pace_drift(struct pace *p, int level)
{
	pthread_mutex_lock(&p->lock);
	governor_drift(&p->g, level);
	pthread_mutex_unlock(&p->lock);
}
