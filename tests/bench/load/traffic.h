/* What clients say: dialogues of one or more rounds, as the messages each round adds.
 *
 * A later round resends all that was said, the server's own answers included, as agents and chat
 * pages do; so the prompt grows and its beginning repeats. Dialogue i of a kind is the same for the
 * same seed and files. Threads: one; dialogues belong to the traffic.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum traffic_kind {
	TRAFFIC_PROMPTS,   /* one round each: lines {"name","domain","messages":[...]} of a file */
	TRAFFIC_AGENT,     /* those of domain tools, then rounds of tool results and follow-up questions */
	TRAFFIC_DIALOGUES, /* the human's side of ShareGPT's dialogues: a JSON list, which may be cut */
	TRAFFIC_LONG,      /* one round: a text of about long_tokens tokens, and a question */
};
#define TRAFFIC_KINDS "prompts|agent|dialogues|long"

struct traffic_options {
	enum traffic_kind kind;
	const char *file;
	const char *domain; /* prompts: only of this domain; "" = all */
	int rounds, long_tokens, max_chars; /* of one message */
	uint64_t seed;
};

struct dialogue {
	char name[64], domain[16];
	json_t *rounds; /* array (rounds) of arrays (messages {"role","content"}) */
};

struct traffic {
	struct dialogue *d; /* owned */
	size_t n;
};

int MUSTCHECK traffic_init(struct traffic *t, const struct traffic_options *o, struct errtext *e);
void traffic_done(struct traffic *t);
const struct dialogue *traffic_at(const struct traffic *t, size_t i); /* i modulo the number of dialogues */
