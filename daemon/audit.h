/* The writing end of the audit log (schemas/audit.h): what was changed, by whom, from what to what, and why.
 *
 * A line is in the file (the kernel has it, so kill -9 loses nothing) when audit_write returns, and on the disk a moment later: a
 * thread syncs, so that no order waits for a disk. A disk that is full, or a folder that is gone, fails nobody: lines wait in memory
 * (256 of them; what more comes is counted) and are tried again every second. Threads: the loop's.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct audit;
struct loop;
struct metrics;
struct news;
struct store_state;

struct audit_options {
	const char *dir;    /* made when missing */
	int64_t max_bytes;  /* audit.log becomes audit.1 past this */
	int keep;           /* older files kept, at most AUDIT_MAX_FILES */
	struct metrics *metrics;
};

/* Reads what is there, cuts a torn last line, reports a chain that does not fit. Only -ENOMEM. */
int MUSTCHECK audit_new(struct loop *l, const struct audit_options *o, struct audit **ret);
struct audit *audit_free(struct audit *a); /* what still waits is tried once more */

/* {generation, live, previous, pin, hold, paused} of now; new reference. */
json_t *audit_place(const struct store_state *s);
/* One change. record: {what, who, ...} as audit.md says, taken; time, seq and prev are put in. true: the line is in the file; false: it
 * waits for room, or found none. */
bool audit_write(struct audit *a, json_t *record);
/* What somebody asked for, as it was answered (error NULL: done; else text says why not): the line, and to the journal and the news. */
struct audit_change {
	const char *what, *who, *detail, *why; /* detail, why: "" = none */
	bool peer;    /* it came by the control socket: from uid and pid */
	unsigned uid;
	int pid;      /* 0: of another pid namespace */
	json_t *from; /* audit_place() when it came; borrowed, may be NULL */
};
bool audit_change(struct audit *a, struct news *n, const struct store_state *now, const struct audit_change *c, const char *error, const char *text);
/* {what, who "redraftd", why}, for what the daemon does by itself; from and to are taken and may be NULL. */
void PRINTF(5, 6) audit_note(struct audit *a, const char *what, json_t *from, json_t *to, const char *fmt, ...);
/* Every line as it is sealed, without its end: for the topic and for who tails. */
void audit_on_line(struct audit *a, void (*heard)(void *arg, const json_t *record, const char *line, size_t len), void *arg);
/* {seq, hash, unwritten, lost, broken, dir}; new reference. */
json_t *audit_status(const struct audit *a);
uint64_t audit_written(const struct audit *a); /* number of the last line in the file; 0 = some wait */
const char *audit_dir(const struct audit *a);
