/* The governor's eyes and hands: asks serving's status socket once a second, reads the process's own memory, and
 * stretches what is computed by short sleeps between operations of the device, so that a long step yields too.
 *
 * Threads: made and freed on the loop's thread, which also asks; the rest is the compute thread's. Nothing here waits for
 * long: a sleep is at most 50 ms, the device's beats go on between them, and inside one step they come to 10 s at most;
 * what is owed beyond that is waited for between steps, where commands are heard.
 */
#pragma once
#include <jansson.h>
#include "daemon/base/err.h"
#include "learn/governor.h"

struct loop;
struct dev;
struct pace;

/* socket: serving's status socket; "" = nobody is asked. ask_us: between two looks. */
int MUSTCHECK pace_new(struct loop *loop, const char *socket, uint64_t ask_us, const struct governor_options *o, struct pace **ret);
struct pace *pace_free(struct pace *p);
void pace_set(struct pace *p, const struct governor_options *o); /* any thread */
void pace_attach(struct pace *p, struct dev *d);
bool pace_may_step(struct pace *p);
void pace_stretch(struct pace *p, bool on); /* around what is to be stretched */
bool pace_asleep(struct pace *p);           /* the last candidates gained nothing */
int pace_rows(struct pace *p);              /* of a step, at most */
void pace_judged(struct pace *p, double gain);
void pace_drift(struct pace *p, int level);
json_t *pace_status(struct pace *p);        /* {"state", "why", "duty", ...}; new reference */
