/* Log lines: "<priority>text" on stderr, one write(2) each; where stderr is the journal's, a message with fields at its own socket.
 *
 * Only programs log; rooms below return codes and errtext. A line says what
 * happened, to what, and what happens next. The descriptor is switched to
 * non-blocking by log_init; what does not fit is dropped and counted.
 * Threads: any.
 */
#pragma once
#include <stdint.h>
#include "daemon/base/err.h"

enum log_level { LOG_ERROR = 3, LOG_WARN = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

void log_init(const char *program, enum log_level max);
void log_set_level(enum log_level max); /* any time, any thread */
void PRINTF(2, 3) log_line(enum log_level level, const char *fmt, ...);
/* The same with fields, "NAME=value\nNAME=value\n", by which the journal finds it (journalctl REDRAFT_EVENT=rollout); elsewhere they are
 * left out. Names: upper case, digits, _; values without control characters. */
void PRINTF(3, 4) log_fields(enum log_level level, const char *fields, const char *fmt, ...);
/* Send to the journal's own socket at path: log_init does where stderr is the journal's. NULL: to stderr. */
void log_to_journal(const char *path);
unsigned long log_dropped(void);
/* What goes wrong again and again while nothing else happens (a full disk, asked about every few seconds): said when the sentence is another than the
 * last, and else once an hour with how often it would have been. Zeroed at first, and when it is over. One thread. */
struct log_repeat {
	char text[640];
	uint64_t said_us;
	unsigned unsaid;
};
void PRINTF(3, 4) log_repeated(struct log_repeat *r, enum log_level level, const char *fmt, ...);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
