/* What to ask a model that nobody asks yet: questions for a first draft without user data.
 *
 * Question i of a seed is a pure function of both. The model writes most of it: it is given its chat template up to
 * the user's turn and a few opening words, and goes on; then it answers its own question. Function lists, which
 * small models cannot write, are put together from words.
 */
#pragma once
#include <stdint.h>
#include "daemon/base/buf.h"

enum bootstrap_family { BOOTSTRAP_SMOLLM2, BOOTSTRAP_CHATML };

struct bootstrap_question {
	const char *domain;       /* "tools", "code", "chat" */
	struct buf system;        /* the system message, or empty: the template's own */
	struct buf opening;       /* the user's turn so far, what the model goes on from */
	struct buf prefix;        /* the raw prompt: template, system, opening */
	int write_tokens;         /* how much of the question the model writes; 0 = the opening is all of it */
	int answer_tokens;
	double write_temperature, answer_temperature;
	uint64_t seed;
};

void bootstrap_done(struct bootstrap_question *q); /* safe on a zeroed struct */
int MUSTCHECK bootstrap_question(enum bootstrap_family family, uint64_t seed, uint64_t i, struct bootstrap_question *ret);
/* The whole question, from what the model wrote: an open code fence is closed. */
int MUSTCHECK bootstrap_whole(const struct bootstrap_question *q, const char *written, struct buf *out);
