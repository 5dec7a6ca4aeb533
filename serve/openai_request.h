/* What a client asks for: the JSON body of /v1/completions and
 * /v1/chat/completions, checked and turned into token ids and sampling options.
 * Unknown fields are ignored; known ones that would change the answer and that we
 * do not do are refused by name. Threads: pure functions.
 */
#pragma once
#include <jansson.h>
#include "serve/engine.h"
#include "serve/textout.h"

struct tokenizer;
struct chat_template;

enum { OPENAI_MAX_N = 32, OPENAI_MAX_PROMPTS = 32, OPENAI_MAX_CHOICES = 64 /* n x prompts */ };

struct openai_model { /* what requests are checked against; borrowed */
	const struct tokenizer *tokenizer;
	const struct chat_template *chat; /* NULL: /v1/chat/completions is refused */
	const char *name;
	int max_context;
};

struct openai_prompt {
	uint32_t *ids; /* owned */
	int n;
};

struct openai_request {
	bool chat;
	struct openai_prompt *prompts; /* owned */
	int n_prompts, n;              /* n choices each */
	int max_tokens, min_tokens;    /* 0 = as many as fit; 0 = one */
	uint32_t *stop_ids;            /* owned */
	int n_stop_ids;
	struct sampling sampling;      /* choice is set at submit */
	char (*stops)[TEXTOUT_MAX_STOP + 1]; /* owned */
	int n_stops;
	bool ignore_eos, stream, include_usage, return_ids;
	struct token_bias *bias; /* owned, what sampling points to */
	bool logprobs;
	int top_logprobs;
	bool echo;               /* completions: the prompt's text before the answer's */
	bool tools;              /* calls in the answer are to be found */
	char *forced;            /* owned: how the answer must begin (tool_choice), or NULL; ends the prompt too */
	char *first_words; /* owned: system + first user message, for the conversation's name */
};

struct openai_error {
	int status;         /* HTTP */
	const char *type, *code; /* static */
	char param[48];     /* "" = null */
	char message[320];
};
int PRINTF(5, 6) openai_fail(struct openai_error *e, int status, const char *param, const char *code, const char *fmt, ...); /* -EINVAL */
/* {"error": {...}}, new reference */
json_t *openai_error_json(const struct openai_error *e);

int MUSTCHECK openai_parse_json(const char *body, size_t len, json_t **ret, struct openai_error *e); /* an object */
int MUSTCHECK openai_request_parse(const struct openai_model *m, const json_t *body, bool chat, struct openai_request *ret,
				   struct openai_error *e);
void openai_request_done(struct openai_request *q);

/* Is it worth building a tree of? Bounds nesting and the number of values, whose memory is many times the text's. */
bool openai_json_bounded(const char *body, size_t len);
/* Messages (and tools) to ids; also for /tokenize. most: ids at most, else a 400. */
int MUSTCHECK openai_encode_chat(const struct openai_model *m, const json_t *body, bool generation, int most, struct openai_prompt *ret,
				 struct openai_error *e);
int MUSTCHECK openai_encode_text(const struct openai_model *m, const char *param, const json_t *text, int most, struct openai_prompt *ret,
				 struct openai_error *e);
/* How many ids are made of one request's text at most, all its prompts together: what the others wait for meanwhile is some tenths of a second. */
enum { OPENAI_MOST_IDS = 1 << 18 };
int openai_most_ids(const struct openai_model *m); /* that, or the context where it is longer */
int MUSTCHECK openai_append_text(const struct openai_model *m, const char *text, struct openai_prompt *p, struct openai_error *e);
int MUSTCHECK openai_check_model(const struct openai_model *m, const json_t *body, struct openai_error *e);
