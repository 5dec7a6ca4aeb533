/* Reload: a new configuration is built from the same sources, checked whole, and taken, or
 * the old one stands.
 *
 * Only keys that the table marks reloadable are taken up; others that differ are named in
 * the sentence and wait for a restart. The manager hears RELOADING=1 and then READY=1.
 * Threads: the loop's.
 */
#pragma once
#include "daemon/base/conf.h"
#include "daemon/base/metrics.h"

struct reload {
	const struct conf_program *program;
	int argc, max_pos;  /* as conf_load was called */
	char **argv;        /* borrowed */
	void *conf;         /* the running configuration, borrowed */
	/* Take the reloadable values of fresh. Negative with e: nothing was taken. Strings in fresh
	 * live on as the running configuration's. */
	int (*apply)(void *arg, const void *fresh, struct errtext *e);
	void *arg;
	struct metric *counted[2]; /* done, refused; NULL = by nobody. reload_count() makes them */
	unsigned long refused;
};

/* redraft_reloads_total, from the start: an alert on its increase would not see a first one that brings the series with it. */
void reload_count(struct reload *r, struct metrics *m);

/* 0 or negative; either way ret_sentence says what happened, for the log. */
int reload_now(struct reload *r, struct errtext *ret_sentence);
