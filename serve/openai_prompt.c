/* Prompts of every shape to token ids.
 *
 * A raw prompt is the caller's to write whole, so control tokens in it are recognised,
 * as other engines do; in chat only the template's own markers are.
 * It is read on the loop's thread, so reading ends where there are more tokens than can be used: everybody's streams wait meanwhile.
 */
#include <stdlib.h>
#include <string.h>
#include "serve/chat.h"
#include "serve/openai_request.h"
#include "serve/tokenizer.h"

static int too_many(const struct openai_model *m, const char *param, int most, struct openai_error *e)
{
	return most == m->max_context ? openai_fail(e, 400, param, "context_length_exceeded", "This model's maximum context length is %d tokens; the text has more.", most)
				      : openai_fail(e, 400, param, "context_length_exceeded", "%d tokens are read of one request, and its text has more: send it in parts.", openai_most_ids(m));
}

/* Text that cannot fit, whatever its tokens are: refused before it is encoded. */
static int check_bytes(const struct openai_model *m, const char *param, size_t len, int most, struct openai_error *e)
{
	return len / tokenizer_longest(m->tokenizer) <= (size_t)most ? 0 : too_many(m, param, most, e);
}

static int append(struct openai_prompt *p, const uint32_t *ids, size_t n)
{
	void *grown;

	if (n == 0)
		return 0;
	grown = realloc(p->ids, ((size_t)p->n + n) * sizeof *p->ids);
	if (!grown)
		return -ENOMEM;
	p->ids = grown;
	memcpy(p->ids + p->n, ids, n * sizeof *ids);
	p->n += (int)n;
	return 0;
}

/* p comes to hold `most` ids at most, else -E2BIG. */
static int encode(const struct openai_model *m, const char *text, size_t len, bool special, size_t most, struct openai_prompt *p)
{
	uint32_t *ids;
	size_t n;
	int r = tokenizer_encode(m->tokenizer, text, len, special, most - (size_t)p->n, &ids, &n);

	if (r < 0)
		return r;
	r = append(p, ids, n);
	free(ids);
	return r;
}

static int out_of_memory(struct openai_error *e)
{
	return openai_fail(e, 503, "", "overloaded", "The server is out of memory; try again.");
}

/* The text is valid UTF-8: the JSON parser saw to that. */
static int encode_failed(const struct openai_model *m, const char *param, int most, int r, struct openai_error *e)
{
	if (r == -E2BIG)
		return too_many(m, param, most, e);
	if (r == -EMSGSIZE)
		return openai_fail(e, 400, param, "invalid_value", "%s holds a word of more than %d bytes.", param, TOKENIZER_WORD);
	return out_of_memory(e);
}

int openai_most_ids(const struct openai_model *m)
{
	return m->max_context > OPENAI_MOST_IDS ? m->max_context : OPENAI_MOST_IDS;
}

/* Some models' texts begin with a token of their own (Llama 3), unless the caller wrote it. */
static int begin(const struct openai_model *m, struct openai_prompt *p)
{
	int64_t bos = tokenizer_bos(m->tokenizer);
	uint32_t id = (uint32_t)bos;
	int r;

	if (bos < 0 || (p->n > 0 && p->ids[0] == id))
		return 0;
	if ((r = append(p, &id, 1)) < 0)
		return r;
	memmove(p->ids + 1, p->ids, ((size_t)p->n - 1) * sizeof *p->ids);
	p->ids[0] = id;
	return 0;
}

int openai_encode_text(const struct openai_model *m, const char *param, const json_t *text, int most, struct openai_prompt *ret,
		       struct openai_error *e)
{
	struct openai_prompt p = {0};
	int r = check_bytes(m, param, json_string_length(text), most, e);

	if (r < 0)
		return r;
	if ((r = encode(m, json_string_value(text), json_string_length(text), true, (size_t)most, &p)) < 0 || (r = begin(m, &p)) < 0) {
		free(p.ids);
		return encode_failed(m, param, most, r, e);
	}
	*ret = p;
	return 0;
}

int openai_encode_chat(const struct openai_model *m, const json_t *body, bool generation, int most, struct openai_prompt *ret,
		       struct openai_error *e)
{
	const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
	struct buf text = BUF_INIT(16 << 20);
	struct chat_segment *seg;
	struct openai_prompt p = {0};
	struct errtext why = {""};
	const json_t *kwargs = json_object_get(body, "chat_template_kwargs"), *thinking = json_object_get(kwargs, "enable_thinking");
	struct chat_options options = {json_is_boolean(thinking) ? json_is_true(thinking) : -1, json_string_value(json_object_get(kwargs, "date_string"))};
	int n = 0, r;

	if (!m->chat)
		return openai_fail(e, 400, "messages", "no_chat_template",
				   "The model has no chat template that this server knows; use /v1/completions.");
	if (tools && !json_is_null(tools) && !json_is_array(tools))
		return openai_fail(e, 400, "tools", "invalid_type", "tools must be a list.");
	if (json_is_string(choice) && strcmp(json_string_value(choice), "none") == 0)
		tools = NULL;
	r = chat_render_with(m->chat, json_object_get(body, "messages"), tools, generation, &options, &text, &seg, &n, &why);
	if (r < 0) {
		buf_done(&text);
		return r == -ENOMEM ? out_of_memory(e) : openai_fail(e, 400, "messages", "invalid_value", "%s.", why.text);
	}
	r = check_bytes(m, "messages", text.len, most, e);
	for (int i = 0; i < n && r == 0; i++) {
		int bad = encode(m, (const char *)text.data + seg[i].offset, seg[i].len, seg[i].special, (size_t)most, &p);
		r = bad < 0 ? encode_failed(m, "messages", most, bad, e) : 0;
	}
	free(seg);
	buf_done(&text);
	if (r < 0) {
		free(p.ids);
		return r;
	}
	*ret = p;
	return 0;
}

int openai_append_text(const struct openai_model *m, const char *text, struct openai_prompt *p, struct openai_error *e)
{
	return encode(m, text, strlen(text), false, SIZE_MAX, p) < 0 ? out_of_memory(e) : 0;
}
