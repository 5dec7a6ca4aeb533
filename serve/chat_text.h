/* Room-internal: what the renderers of chat templates share. */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "serve/chat.h"

/* One rendering: text so far, segments so far, and what was asked for. */
struct render {
	struct buf *out;
	struct chat_segment *seg;
	int n, cap;
	const json_t *messages, *tools; /* tools NULL when there are none */
	bool prompt;                    /* an assistant's message is opened at the end */
	const struct chat_options *o;
	struct errtext *e;
};

struct chat_template {
	const char *family;
	const char *sha[4];          /* of the templates that render so */
	int (*render)(const struct chat_template *t, struct render *w);
	const char *default_system;  /* put first when the first message is not a system's; NULL = none */
	bool thinks;                 /* Qwen3: <think> in answers */
	bool dated;                  /* Llama 3.2: today's date; else the template's own */
	bool plain;                  /* Llama 3.0: no date, no tools */
};

int chat_render_chatml(const struct chat_template *t, struct render *w);
int chat_render_qwen(const struct chat_template *t, struct render *w);
int chat_render_llama3(const struct chat_template *t, struct render *w);

int MUSTCHECK put_text(struct render *w, bool special, const char *p, size_t len);
int MUSTCHECK put_plain(struct render *w, const char *s);
int MUSTCHECK put_marker(struct render *w, const char *s); /* a control token */

/* Checks message i; *ret_role is what a template sees (developer is system). */
int MUSTCHECK chat_role(const struct render *w, size_t i, const char **ret_role);
/* Its text: a string, or text parts end to end; null is "" beside tool calls. Appended to out. */
int MUSTCHECK chat_content(const struct render *w, size_t i, struct buf *out);
/* Its tool calls, NULL when there are none. */
int MUSTCHECK chat_calls(const struct render *w, size_t i, const json_t **ret);
/* Call k of them: its name, and its arguments as a value (parsed where they came as JSON in a string), owned. */
int MUSTCHECK chat_call(const struct render *w, size_t i, const json_t *calls, size_t k, const char **ret_name, json_t **ret_args);

/* JSON as Python's json.dumps(ensure_ascii=False) writes it, which templates call tojson. indent 0: one line. */
int MUSTCHECK chat_json(struct buf *out, const json_t *v, int indent);
