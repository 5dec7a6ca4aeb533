/* io.redraft.Learn: the learner's control socket over daemon/base/rpc.h.
 *
 * Handlers run on the loop's thread and hand everything that touches the
 * learner to the worker; each call is answered when it has been applied.
 */
#pragma once
#include "learn/worker.h"

struct control;
int MUSTCHECK control_start(struct loop *loop, const char *run_dir, struct worker *w, struct control **ret, struct errtext *e);
/* What Config answers, from now on: new reference. */
void control_config(struct control *c, json_t *(*config)(void *arg), void *arg);
struct control *control_stop(struct control *c);
