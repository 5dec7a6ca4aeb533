/* Log-probabilities in OpenAI's two shapes.
 *
 * A token's name is its bytes as text, with U+FFFD where they are part of a character; `bytes` has them
 * exactly. What is not finite (a forbidden token) is told as -9999, as OpenAI does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "serve/openai_live.h"
#include "serve/tokenizer.h"

static json_t *number(float lp)
{
	return json_real(isfinite(lp) ? (double)lp : -9999.0);
}

static json_t *name_json(const struct choice *x, uint32_t id, size_t *ret_chars)
{
	struct textout o = {.tokenizer = x->out.tokenizer, .text = BUF_INIT(64 << 10)};
	json_t *name = NULL;

	if (textout_add_shown(&o, id) == 0 && textout_finish(&o) == 0)
		name = json_stringn(o.text.len ? (const char *)o.text.data : "", o.text.len);
	for (size_t i = 0; ret_chars && i < o.text.len; i++)
		*ret_chars += (o.text.data[i] & 0xc0) != 0x80;
	textout_done(&o);
	return name ? name : json_string("");
}

static json_t *bytes_json(const struct choice *x, uint32_t id)
{
	size_t n;
	const char *p = tokenizer_token(x->out.tokenizer, id, &n);
	json_t *a = json_array();

	if (n == 0) {
		p = tokenizer_text(x->out.tokenizer, id);
		n = strlen(p);
	}
	for (size_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer((uint8_t)p[i]));
	return a;
}

static json_t *entry(const struct choice *x, const struct token_logprob *t)
{
	return json_pack("{s:o,s:o,s:o}", "token", name_json(x, t->id, NULL), "logprob", number(t->logprob), "bytes", bytes_json(x, t->id));
}

static json_t *chat_shape(struct choice *x, int from)
{
	int top = x->c->q.top_logprobs;
	json_t *content = json_array();

	for (int i = from; i < x->n_tokens; i++) {
		const struct token_logprob *lp = x->lp + (size_t)i * (size_t)(top + 1);
		json_t *one = entry(x, lp), *list = json_array();
		for (int k = 1; k <= top; k++)
			json_array_append_new(list, entry(x, lp + k));
		json_object_set_new(one, "top_logprobs", list);
		json_array_append_new(content, one);
	}
	return json_pack("{s:o,s:n}", "content", content, "refusal");
}

static json_t *completions_shape(struct choice *x, int from)
{
	int top = x->c->q.top_logprobs;
	json_t *tokens = json_array(), *own = json_array(), *tops = json_array(), *offsets = json_array();

	for (int i = from; i < x->n_tokens; i++) {
		const struct token_logprob *lp = x->lp + (size_t)i * (size_t)(top + 1);
		json_t *best = json_object();
		json_array_append_new(offsets, json_integer((json_int_t)x->offset));
		json_array_append_new(tokens, name_json(x, lp->id, &x->offset));
		json_array_append_new(own, number(lp->logprob));
		for (int k = 1; k <= top; k++) {
			json_t *name = name_json(x, lp[k].id, NULL);
			if (!json_object_get(best, json_string_value(name))) /* two halves of characters may share a name: the likelier stays */
				json_object_set_new(best, json_string_value(name), number(lp[k].logprob));
			json_decref(name);
		}
		if (top > 0)
			json_array_append_new(tops, best);
		else
			json_decref(best);
	}
	if (top == 0) {
		json_decref(tops);
		tops = json_null();
	}
	return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", own, "top_logprobs", tops, "text_offset", offsets);
}

json_t *logprobs_json(struct choice *x, int from)
{
	if (!x->lp)
		return json_null();
	return x->c->q.chat ? chat_shape(x, from) : completions_shape(x, from);
}
