/* Several servers, one learner: each server's own redraftd keeps the leader's version live on it.
 *
 * One daemon, the one that the learner hands its candidates to, leads: it judges, promotes and rolls back as it would alone, and says
 * which version is live in redraft.events. The others follow: they take that version's files from where they see the leader's
 * store, verify them as a submission is, and switch their own server; a rollback moves running requests at once, and quarantines. Who leads is
 * an operator's choice (fleet.role); a leader that starts takes an epoch above all it reads, and one that reads a higher epoch than its own
 * says so and leads no more. Without Kafka everyone stays where they are, and is rolled back as ever. What is said to a follower
 * itself (rollback, promote, pin, hold) holds it where it is until release. Threads: the loop's.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "daemon/base/err.h"

struct act;
struct fleet;
struct loop;

enum fleet_role { FLEET_ALONE, FLEET_LEADER, FLEET_FOLLOWER };
struct fleet_options { /* strings are borrowed for its life */
	struct loop *loop;
	struct act *act;
	enum fleet_role role;
	const char *brokers, *topic, *conf;
	const char *versions; /* follower: the folder versions/ of the leader's store as seen here */
};

/* *ret = NULL when alone. */
int MUSTCHECK fleet_new(const struct fleet_options *o, struct fleet **ret, struct errtext *e);
struct fleet *fleet_free(struct fleet *f); /* NULL is taken, here and below */
void fleet_tick(struct fleet *f);          /* once a second */
/* What happened since this was asked before, as a sentence; false: nothing. */
bool fleet_said(struct fleet *f, char *ret, size_t size);
/* {role, leader, epoch, live, behind, up, trouble}; leader "" and live 0 while none is known; new reference; JSON null when alone */
json_t *fleet_status(struct fleet *f);
bool fleet_behind(struct fleet *f); /* a follower that is not where its leader is */
bool fleet_follows(const struct fleet *f);
