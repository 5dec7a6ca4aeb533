/* The audit log: what was changed, by whom, and why; each line sealed to the one before it.
 *
 * A line is "HASH JSON\n": the SHA-256 of the JSON text, a blank, one JSON object. Every object holds "seq" (one more than
 * the line before) and "prev" (that line's hash; 64 zeros in the very first). So nothing inside can be changed, taken out or put
 * in without every later line not fitting; what was cut off at the end shows against a copy (Kafka's redraft.audit, or the head
 * that somebody noted). audit.md says what the objects hold. Files: audit.log is being written, audit.1 is older, audit.2 older still.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"
#include "daemon/base/sha.h"

enum { AUDIT_MAX_LINE = 8192, AUDIT_MAX_FILES = 64 };

struct audit_head { /* where the chain stands; all zero = nothing was sealed yet */
	uint64_t seq;
	char hash[SHA_HEX]; /* "" = nothing yet */
};

/* The record (borrowed; "seq" and "prev" are put in) as the next line, appended to out; head moves. -E2BIG: longer than a line may be. */
int MUSTCHECK audit_seal(json_t *record, struct audit_head *head, struct buf *out);

struct audit_seen {
	struct audit_head head;    /* of the last line that reads */
	uint64_t first, lines;     /* seq of the first line; lines that read and fit */
	int files;
	int64_t whole;             /* bytes of audit.log up to the end of its last whole line */
	bool torn;                 /* behind them stands a piece of a line, as a crash leaves it */
	int broken;                /* lines that do not fit */
	char what[256];            /* the first of them; "" = the chain is whole */
};

/* Read all files of a folder, oldest first. each (may be NULL) gets every record that reads; a folder that is not there is an empty log. -errno. */
int MUSTCHECK audit_read(const char *dir, struct audit_seen *ret, void (*each)(void *arg, const json_t *record), void *arg, struct errtext *e);
/* The same with its last `most` records, as io.redraft.Daemon.Audit answers: audit_reply(seen, records). */
int MUSTCHECK audit_last(const char *dir, size_t most, struct audit_seen *ret, json_t **ret_records, struct errtext *e);
json_t *audit_reply(const struct audit_seen *s, json_t *records /* taken */); /* NULL: out of memory */
/* One more line, written and synced, by somebody who holds the store's lock (redraftctl restore). */
int MUSTCHECK audit_append(const char *dir, json_t *record, struct errtext *e);
