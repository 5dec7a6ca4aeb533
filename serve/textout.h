/* From token ids to text that may be shown: bytes joined over token borders,
 * invalid UTF-8 replaced, stop strings found and cut, and what might still turn
 * into one held back. Threads: one owner.
 */
#pragma once
#include <stdbool.h>
#include "daemon/base/buf.h"

struct tokenizer;

enum { TEXTOUT_MAX_STOPS = 16, TEXTOUT_MAX_STOP = 256 /* bytes */ };

struct textout {
	const struct tokenizer *tokenizer; /* borrowed */
	char (*stops)[TEXTOUT_MAX_STOP + 1]; /* borrowed */
	int n_stops;
	const char *fence;  /* borrowed or NULL: what this begins is not shown before the end is known, nor is JSON */
	size_t floor;       /* bytes of text put there before the first token: no stop string reaches into them */
	struct buf text;    /* valid UTF-8 */
	size_t shown;       /* bytes of text handed out by textout_take */
	uint8_t partial[4]; /* the beginning of a character */
	size_t n_partial;
	int quiet;          /* so many tokens from here on complete no stop string */
	bool stopped;
};

void textout_done(struct textout *o);
/* TEXTOUT_STOP: a stop string was completed; text ends before it and takes no more. -ENOMEM. */
enum { TEXTOUT_STOP = 1 };
int MUSTCHECK textout_add(struct textout *o, uint32_t id);
/* The same, control tokens written out as they would be typed. */
int MUSTCHECK textout_add_shown(struct textout *o, uint32_t id);
int MUSTCHECK textout_finish(struct textout *o); /* nothing follows: releases what was held back */
/* Text that no token gave (a prompt to echo, a forced beginning); before the first token. */
int MUSTCHECK textout_begin(struct textout *o, const char *p, size_t n);
/* The text that may be shown now and was not yet; valid until the next call. */
const char *textout_take(struct textout *o, bool all, size_t *ret_len);
