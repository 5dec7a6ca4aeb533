/* redraft.events: the word of a fleet's leader, one record a target (compacted, one partition, keyed by target_fp).
 *
 * A thread reads the topic from its beginning and keeps, of each target, the word that counts: that of the highest (epoch, run), so what
 * a leader that was replaced says late moves nobody. Broker or topic absent: it looks again. Functions: the loop's thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "schemas/fleet.h"

struct watch_fleet;

int MUSTCHECK watch_fleet_new(const char *brokers, const char *topic, const char *conf, struct watch_fleet **ret, struct errtext *e);
struct watch_fleet *watch_fleet_free(struct watch_fleet *w); /* NULL is taken */
/* The word that counts. 0; -EAGAIN: the topic has not been read to its end yet; -ENOENT: there is none. */
int MUSTCHECK watch_fleet_word(struct watch_fleet *w, const char *target_fp, struct fleet_word *ret);
/* Says it, again and again until the topic has it; a newer one takes its place. */
void watch_fleet_say(struct watch_fleet *w, const struct fleet_word *word);
void watch_fleet_tick(struct watch_fleet *w); /* once a second */
bool watch_fleet_up(struct watch_fleet *w, char *ret_trouble, size_t size); /* the topic is read; else why not */
