/* One streamed chat request over HTTP: sent, timed, read to its end.
 *
 * A connection for each request, as a client without a pool would. Times are
 * monotonic microseconds; the first token is the first piece with text or token ids (not the
 * chunk that only names the role). Threads: the event loop's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"
#include "daemon/base/err.h"

struct event_base;
struct call;

struct piece {
	float ms;        /* since the piece before it */
	uint16_t tokens; /* that it carried */
};

struct answer {
	bool ok;
	char error[32]; /* "" or the kind: "connect", "closed", "timeout", "http 429", "stream", "no end" */
	uint64_t sent, first, last, done; /* µs; 0 = never; last: of the last piece */
	int prompt_tokens, tokens, rounds, proposed, accepted;
	struct piece *pieces; /* owned; after the first */
	size_t n_pieces;
	int first_tokens; /* in the first piece */
	struct buf text;
};

struct target {
	const char *host;
	uint16_t port;
	int timeout_s; /* of silence */
	const char *bearer, *model; /* "" = not sent */
};

struct request {
	const struct target *to;
	const char *messages; /* JSON text of the list */
	const char *domain;   /* "" = not sent */
	int max_tokens;
	bool draft, trace, token_ids, ignore_eos;
	double temperature;
	uint64_t seed;
};

/* on_end is called once, from the loop; *a is the caller's then (answer_done). */
int MUSTCHECK call_start(struct event_base *base, const struct request *q, void (*on_end)(void *arg, struct answer *a), void *arg);
void answer_done(struct answer *a);
/* One event's data ("{...}" or "[DONE]") that came at now; -EINVAL when it is not what a server says. */
int MUSTCHECK answer_event(struct answer *a, const char *data, size_t n, uint64_t now);
