/* Chat templates: the SHA-256 of the template's text selects a hand-written renderer.
 * Roles: system, developer, user, assistant, tool, function. */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "daemon/base/buf.h"

struct chat_template;
/* NULL-terminated template text from the model file; family overrides (NULL = by hash).
 * -ENOTSUP: unknown template and no family named. */
int MUSTCHECK chat_select(const char *tmpl, size_t len, const char *family, const struct chat_template **ret, struct errtext *e);
/* messages: the request's array (content a string or a list of text parts); tools: array or NULL.
 * The rendered text is to be encoded with special tokens on; role and content that
 * contain special-token text are kept as plain text by the segments: out is a list of
 * segments, each special or not, appended to one buffer. */
struct chat_segment { size_t offset, len; bool special; };
int MUSTCHECK chat_render(const struct chat_template *t, const json_t *messages, const json_t *tools, bool add_generation_prompt,
			  struct buf *out, struct chat_segment **ret_segments, int *ret_n, struct errtext *e);

/* What a request may say to its template (chat_template_kwargs). */
struct chat_options {
	int enable_thinking; /* Qwen3: 0 = no thoughts; 1 or -1 (not said) = the template's way */
	const char *date;    /* Llama 3.1 on: "26 Jul 2024"; NULL = the template's, or today where it says so */
};
#define CHAT_OPTIONS_NONE {-1, NULL}
int MUSTCHECK chat_render_with(const struct chat_template *t, const json_t *messages, const json_t *tools, bool add_generation_prompt,
			       const struct chat_options *o, struct buf *out, struct chat_segment **ret_segments, int *ret_n, struct errtext *e);
const char *chat_family(const struct chat_template *t); /* "smollm2", "qwen2.5", "llama3.1", ... */
