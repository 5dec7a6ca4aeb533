/* How hard to learn: a pure state machine of what was seen and when; it reads no clock and no socket (learn/pace.h does).
 *
 *     full        as fast as the threads go
 *     stretched   pauses inside and between steps, so that a share (duty) of the time is computed
 *     paused      serving's tail is far over its objective: no step
 *     asleep      the last candidates gained nothing: no step for a while, woken by drift
 *     refused     memory is over its ceiling and steps cannot be made smaller: no step
 *
 * Only when something is learned is decided here, never what: but for the rows of a step, which memory may
 * cut and which the caller journals.
 * Threads: none of its own; the caller locks.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct governor_options {
	double tpot_p95_ms;    /* objective of serving's P95 time per token; 0 = none by value */
	double tpot_ratio;     /* the same, in times of what it is while nothing is learned; 0 = none by ratio */
	double least;          /* duty never below it while not paused: above 0 to 1 */
	uint64_t memory_bytes; /* ceiling of the process; 0 = none */
	int max_rows;          /* of a step */
	int flat_after;        /* candidates in a row without a gain before it sleeps; 0 = it never does */
	double flat_gain;      /* of accept length, below which there is none */
	uint64_t nap_us;       /* the first sleep; each further one is twice as long, up to 16 of it */
};

enum governor_state { GOVERNOR_FULL, GOVERNOR_STRETCHED, GOVERNOR_PAUSED, GOVERNOR_ASLEEP, GOVERNOR_REFUSED };
const char *governor_word(enum governor_state s);

/* What serving's status says. rounds, generated: counters. */
struct governor_look {
	bool there;
	int running;
	int64_t rounds, generated;
	double round_ms_p95; /* of the latest engine rounds */
};

struct governor {
	struct governor_options o;
	struct governor_look seen;   /* where the counters stood at the last judgement */
	int64_t worked;              /* rounds at the last look before which we computed */
	int64_t last_rounds;         /* at the last look, and when they last moved */
	uint64_t moved_at;
	bool serving;                /* somebody answers at the socket */
	double duty, tpot_ms, base_ms; /* base: while nothing is learned; 0 = not known */
	uint64_t base_at, paused_at, spared_until, asleep_until, memory_at;
	bool paused, probing, refused;
	int calm;                    /* judgements well under the objective, running */
	int rows;
	int64_t rss;
	int flat, naps, level;
	uint64_t pauses, sleeps;     /* how often */
};

bool governor_asleep(const struct governor *g, uint64_t now_us);
void governor_init(struct governor *g, const struct governor_options *o, uint64_t now_us);
void governor_set(struct governor *g, const struct governor_options *o); /* other options under way */
/* computed: was anything computed since the last look? */
void governor_saw(struct governor *g, uint64_t now_us, const struct governor_look *look, bool computed);
void governor_memory(struct governor *g, uint64_t now_us, int64_t rss_bytes);
void governor_judged(struct governor *g, uint64_t now_us, double gain); /* a candidate against a live version, by its verdict */
void governor_drift(struct governor *g, int level);
enum governor_state governor_state(const struct governor *g, uint64_t now_us);
bool governor_may_step(const struct governor *g, uint64_t now_us);
double governor_objective(const struct governor *g); /* ms; 0 = there is none (yet) */
/* One sentence: the state and why. */
void governor_say(const struct governor *g, uint64_t now_us, char *ret, size_t size);
