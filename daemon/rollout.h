/* The rollout as one pure function: (state, event) -> (state, actions).
 *
 * Nothing here does anything: no sockets, no files, no clock (the event brings the
 * time), no randomness (the event brings that too). act.c carries the actions out
 * and turns their results into the next events. The table of what follows what is
 * daemon/rollout.md.
 *
 * Serving acts first, memory and journal second: a version becomes live here only
 * when the server said so, and a rollback is sent to the server before anything is
 * written. One operation runs against the server at a time; an answer that carries
 * an old id is stale and changes nothing.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"
#include "schemas/manifest.h"

enum { RO_MAX_ACTIONS = 48, RO_TEXT = 200, RO_RETRY_US = 3000000, RO_MAX_STEPS = 8, RO_SALT = 33, RO_REQUEST = 64 };

struct rollout_rules {
	uint64_t interval_us;  /* promotions at most this often (jitter of 5 %) */
	uint64_t max_wait_us;  /* a candidate undecided for longer is superseded */
	uint64_t retry_us;     /* between two looks at an undecided candidate, at least 3 x what one took */
	int rejects_to_rebase; /* this many rejections running send the learner back to live */
	uint64_t max_age_us;   /* a gated version that waits for longer is superseded; 0: never */
	int n_steps;           /* of the canary; 0: there is none, a gated version goes live at once */
	uint32_t permille[RO_MAX_STEPS]; /* share of the conversations in each step, growing */
	bool follows;          /* another daemon decides (fleet.h): what is said here holds this server where it is, until release */
	uint64_t step_us;      /* a step with few requests and no harm seen has passed after this */
};

enum ro_phase { RO_IDLE, RO_LOADING, RO_ACTIVATING, RO_CANARYING };
enum ro_why {
	RO_WHY_GATE,     /* a gated version goes live */
	RO_WHY_OPERATOR, /* Promote */
	RO_WHY_RESTORE,  /* the server is not where the state says */
	RO_WHY_BACK,     /* Rollback */
	RO_WHY_CANARY,   /* the server's canary is not what the state says */
	RO_WHY_FLEET,    /* the leader of the fleet is there */
};

struct ro_op {
	enum ro_phase phase;
	enum ro_why why;
	uint32_t id, version;
	uint32_t to, left; /* WHY_BACK: where it goes in the end, what it leaves */
	bool tried_load, cancelled; /* WHY_BACK: has loaded; has stopped another operation */
	bool by_itself;             /* WHY_BACK: nobody asked */
	uint64_t since_us;          /* when this phase began */
	char reason[160];           /* WHY_BACK: what the version that is left gets as its reason */
	char request[RO_REQUEST];   /* WHY_BACK: the caller's name for it, "" = none: the server moves once for it */
};

struct ro_eval {
	bool running;
	uint32_t id, version, against;
	uint64_t since_us, again_us; /* when the candidate came; when to look (again) */
};

struct rollout {
	struct store_state s; /* what is saved */
	struct rollout_rules rules;
	/* known for now, forgotten by a restart */
	bool serve_up, learn_up, greeted, home_said; /* home_said: the learner was told where to go on from, or needed no telling */
	uint64_t serve_generation;
	uint32_t serve_live, serve_canary, serve_permille;
	char serve_salt[RO_SALT];
	struct ro_op op;
	struct ro_eval eval;
	uint64_t next_promotion_us, retry_us; /* not before */
	uint64_t gated_us, step_since_us;     /* when the gated version passed; when the canary's step began */
	uint64_t now_us;                      /* of the event in hand */
	bool frozen;                          /* inside a freeze window, as the last event said */
	uint32_t told;                        /* gated version whose verdict the learner has */
	int rejects, tries;
};

enum ro_event_kind {
	RO_SUBMITTED, /* version, parent */
	RO_EVALUATED, /* id, took_us, result: RO_OK accept, RO_BAD reject, RO_LATER undecided, RO_NOBODY, RO_UNFIT cannot be replayed; text */
	RO_LOADED,    /* id, version, result: RO_OK, RO_MISMATCH, RO_BAD, RO_LATER, RO_NOBODY; text */
	RO_ACTIVATED, /* id, result: RO_OK (generation), RO_GENERATION, RO_BAD, RO_NOBODY, RO_HUNG; text */
	RO_TICK,
	RO_SERVER,    /* generation, version (its live), left, canary, permille, salt, by_operator, by_daemon */
	RO_SERVER_GONE,
	RO_LEARNER,   /* parent: the quarantined version that its weights come from, or any other; 0 = it does not know yet */
	RO_LEARNER_GONE,
	RO_PROMOTE,   /* version, expected (-1 = no check) */
	RO_ROLLBACK,  /* text: who; request */
	RO_PIN,       /* version, 0 = live */
	RO_UNPIN,
	RO_HOLD,      /* text: why */
	RO_RELEASE,
	RO_PAUSE,     /* text: why: nothing is judged or promoted until RO_RESUME; what is live is kept live, and can be rolled back */
	RO_RESUME,
	RO_CANARIED,  /* id, version, permille, salt, result: RO_OK, RO_GENERATION, RO_BAD, RO_LATER, RO_NOBODY, RO_HUNG; text */
	RO_JUDGED,    /* version, permille: the canary by what was served; RO_OK step passed, RO_BAD harm, RO_LATER no harm yet, few requests; text */
	RO_ALARM,     /* text: the engine or the target is not to be trusted: hold, and pause training, until RO_RELEASE */
	RO_COLLAPSED, /* version, text: it is live and so bad that going back does not wait for anybody */
	RO_FOLLOW,    /* version (0: no draft), text: the leader's name; nothing while something runs, is pinned or held */
	RO_N_EVENTS
};
enum ro_result { RO_OK, RO_BAD, RO_MISMATCH, RO_LATER, RO_GENERATION, RO_NOBODY, RO_HUNG, RO_UNFIT };

struct ro_event {
	enum ro_event_kind kind;
	uint64_t now_us;
	uint32_t random; /* any; jitter */
	uint32_t id, version, parent, canary, permille;
	const char *salt; /* borrowed; NULL = "" */
	bool frozen;      /* inside a freeze window: no canary starts or grows, nothing is promoted */
	enum ro_result result;
	uint64_t generation, took_us;
	int64_t expected;
	bool by_operator, by_daemon;
	const uint32_t *left; /* borrowed: what the server was moved back from since it was last moved forward; NULL = it does not tell */
	int n_left;
	bool full; /* RO_EVALUATED: no further requests will be held out, so undecided stays undecided */
	const char *text; /* borrowed; may be NULL */
	const char *request; /* borrowed; NULL or "" = none */
};

enum ro_action_kind {
	RO_DO_EVALUATE, /* id, version, against */
	RO_DO_LOAD,     /* id, version */
	RO_DO_ACTIVATE, /* id, version, all, generation (checked when checked), text = the request it is for, or "" */
	RO_DO_CANARY,   /* id, version, permille, text = salt, generation (checked when checked); version 0: none */
	RO_DO_UNLOAD,   /* version */
	RO_DO_VERDICT,  /* version, verdict, text: to the learner */
	RO_DO_REBASE,   /* version, text: to the learner */
	RO_DO_PAUSE,    /* training, to the learner */
	RO_DO_RESUME,
	RO_DO_SAVE,     /* write the state; again later when it fails */
	RO_DO_COLLECT,  /* remove versions nobody needs */
	RO_DO_LOOK,     /* ask the server where it is */
	RO_DO_ANSWER,   /* an operator waits: verb, result, version = what was quarantined, text */
	RO_DO_LOG,      /* text */
};

struct ro_action {
	enum ro_action_kind kind;
	uint32_t id, version, against, permille;
	bool all, checked, by_operator;
	uint64_t generation;
	const char *verdict;    /* "accepted", ...: static */
	enum ro_event_kind verb; /* DO_ANSWER: RO_PROMOTE, RO_ROLLBACK, RO_PIN, RO_UNPIN, RO_HOLD, RO_RELEASE, RO_PAUSE, RO_RESUME */
	const char *error;      /* DO_ANSWER: NULL = done, else the error's name: static */
	char text[RO_TEXT];
};

struct ro_actions {
	int n;
	struct ro_action a[RO_MAX_ACTIONS];
};

/* s is taken. now_us: promotions wait one interval from here when something is live. */
void rollout_init(struct rollout *r, struct store_state *s, const struct rollout_rules *rules, uint64_t now_us);
/* Other rules from now on; the next promotion is due as if its interval had always been the new one. */
void rollout_set_rules(struct rollout *r, const struct rollout_rules *rules);
void rollout_done(struct rollout *r);
/* -ENOMEM (RO_SUBMITTED only): nothing changed. */
int MUSTCHECK rollout_apply(struct rollout *r, const struct ro_event *ev, struct ro_actions *ret);
struct version_entry *rollout_find(const struct rollout *r, uint32_t number); /* or NULL; valid until the next submit */
bool rollout_unproven(const struct rollout *r, uint32_t number); /* no replay could judge it: the canary has to */
/* Where a rollback would go now; 0 = no draft. */
uint32_t rollout_back_to(const struct rollout *r);
