/* The JSON that clients get back: whole replies, stream chunks, usage, errors.
 *
 * Streams are server-sent events: "data: {...}" and a blank line, "data: [DONE]" at
 * the end, never a comment line (some clients choke on those). A choice's last chunk
 * carries its finish_reason; usage comes in a chunk without choices, only when it
 * was asked for.
 */
#include <stdlib.h>
#include <string.h>
#include "serve/front_metrics.h"
#include "serve/http.h"
#include "serve/openai_live.h"

static const char JSON[] = "application/json";

void reply_json(struct http_request *h, int status, json_t *j)
{
	char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	static const char fallback[] = "{\"error\":{\"message\":\"The server is out of memory.\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";

	json_decref(j);
	if (text)
		http_reply(h, status, JSON, text, strlen(text));
	else
		http_reply(h, 500, JSON, fallback, strlen(fallback));
	free(text);
}

void reply_error(struct openai *o, struct http_request *h, const struct openai_error *e)
{
	front_metrics_refused(o->metrics, e->status);
	reply_json(h, e->status, openai_error_json(e));
}

static json_t *usage_redraft(const struct completion *c)
{
	json_t *versions = json_array();
	json_int_t rounds = 0, proposed = 0, accepted = 0;

	for (int i = 0; i < c->n_choices; i++) {
		const struct request_stats *s = &c->choices[i].in_stats;
		rounds += s->rounds;
		proposed += s->proposed;
		accepted += s->accepted;
		for (int k = 0; k < s->n_versions; k++) {
			size_t at;
			json_t *v;
			bool known = false;
			json_array_foreach(versions, at, v) known |= json_integer_value(v) == (json_int_t)s->versions[k];
			if (!known)
				json_array_append_new(versions, json_integer(s->versions[k]));
		}
	}
	return json_pack("{s:o,s:I,s:I,s:I}", "versions", versions, "rounds", rounds, "proposed", proposed, "accepted", accepted);
}

static json_t *usage(const struct completion *c)
{
	json_int_t prompt = 0, generated = 0, cached = 0;

	for (int i = 0; i < c->q.n_prompts; i++)
		prompt += c->q.prompts[i].n;
	for (int i = 0; i < c->n_choices; i++)
		generated += c->choices[i].n_tokens;
	for (int i = 0; i < c->n_choices; i += c->q.n) /* the others of a prompt repeat it anyway */
		cached += c->choices[i].in_stats.cached;
	return json_pack("{s:I,s:I,s:I,s:{s:I},s:o}", "prompt_tokens", prompt, "completion_tokens", generated, "total_tokens", prompt + generated,
			 "prompt_tokens_details", "cached_tokens", cached, "redraft", usage_redraft(c));
}

static json_t *ids_json(const uint32_t *ids, int n)
{
	json_t *a = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(a, json_integer(ids[i]));
	return a;
}

static json_t *envelope(const struct completion *c, const char *object, json_t *choices)
{
	return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", c->id, "object", object, "created", (json_int_t)c->created, "model", c->o->o.model.name,
			 "choices", choices);
}

static json_t *whole_message(struct choice *x, json_t *text)
{
	json_t *m = json_pack("{s:s,s:o}", "role", "assistant", "content", text);

	if (m && x->calls) {
		json_object_set(m, "tool_calls", x->calls);
		if (json_string_length(text) == 0)
			json_object_set_new(m, "content", json_null());
	}
	return m;
}

static json_t *whole_choice(struct choice *x)
{
	const struct openai_request *q = &x->c->q;
	json_t *text, *j;
	size_t n;
	const char *p;

	x->out.shown = 0;
	p = textout_take(&x->out, true, &n);
	text = json_stringn(p, n);
	j = json_pack("{s:i,s:o,s:o,s:s}", "index", x->index, q->chat ? "message" : "text", q->chat ? whole_message(x, text) : text, "logprobs",
		      logprobs_json(x, 0), "finish_reason", x->reason);
	if (j && q->return_ids) {
		json_object_set_new(j, "token_ids", ids_json(x->inbox, x->n_tokens));
		json_object_set_new(j, "prompt_token_ids", ids_json(q->prompts[x->prompt].ids, q->prompts[x->prompt].n));
	}
	return j;
}

void reply_whole(struct completion *c)
{
	json_t *choices = json_array(), *j;

	for (int i = 0; i < c->n_choices; i++)
		json_array_append_new(choices, whole_choice(&c->choices[i]));
	j = envelope(c, c->q.chat ? "chat.completion" : "text_completion", choices);
	if (j)
		json_object_set_new(j, "usage", usage(c));
	reply_json(c->http, 200, j);
	c->http = NULL;
}

/* One event; `opening`: it repeats the prompt, which may be long. false: the reader was cut (on_gone has cleared c->http). */
static bool send_event(struct completion *c, json_t *j, bool opening)
{
	char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	struct buf b = BUF_INIT(0);
	int r = -ENOMEM;

	json_decref(j);
	if (!c->streaming)
		http_stream_start(c->http, "text/event-stream; charset=utf-8");
	c->streaming = true;
	if (text)
		r = buf_puts(&b, "data: ");
	if (r == 0 && (r = buf_puts(&b, text)) == 0)
		r = buf_puts(&b, "\n\n");
	if (opening)
		http_stream_allow(c->http, b.len);
	if (r == 0)
		r = http_stream_send(c->http, b.data, b.len);
	buf_done(&b);
	free(text);
	return r == 0 || c->http != NULL; /* out of memory drops an event, not the stream */
}

static bool send_choice(struct completion *c, json_t *choice, bool opening)
{
	json_t *choices = json_array();

	json_array_append_new(choices, choice);
	return send_event(c, envelope(c, c->q.chat ? "chat.completion.chunk" : "text_completion", choices), opening);
}

static json_t *chunk_choice(const struct choice *x, json_t *delta_or_text, json_t *logprobs, const char *reason)
{
	return json_pack("{s:i,s:o,s:o,s:s?}", "index", x->index, x->c->q.chat ? "delta" : "text", delta_or_text, "logprobs", logprobs,
			 "finish_reason", reason);
}

static bool send_role(struct completion *c, struct choice *x)
{
	json_t *j;

	if (x->role_sent)
		return true;
	x->role_sent = true;
	if (!c->q.chat && !c->q.return_ids)
		return true;
	j = chunk_choice(x, c->q.chat ? json_pack("{s:s,s:s}", "role", "assistant", "content", "") : json_string(""), json_null(), NULL);
	if (j && c->q.return_ids)
		json_object_set_new(j, "prompt_token_ids", ids_json(c->q.prompts[x->prompt].ids, c->q.prompts[x->prompt].n));
	return send_choice(c, j, c->q.return_ids);
}

static bool send_text(struct completion *c, struct choice *x, const char *p, size_t n)
{
	json_t *text = json_stringn(p, n), *j;
	bool opening = c->q.echo && x->n_told == 0;

	j = chunk_choice(x, c->q.chat ? json_pack("{s:o}", "content", text) : text, logprobs_json(x, x->n_told), NULL);
	if (j && c->q.return_ids)
		json_object_set_new(j, "token_ids", ids_json(x->inbox + x->n_told, x->n_tokens - x->n_told));
	x->n_told = x->n_tokens;
	return send_choice(c, j, opening);
}

/* Calls go out whole: the deltas that clients join are one a call. */
static bool send_calls(struct completion *c, struct choice *x)
{
	json_t *list = json_array(), *call;
	size_t i;

	json_array_foreach(x->calls, i, call)
	{
		json_t *one = json_copy(call);
		json_object_set_new(one, "index", json_integer((json_int_t)i));
		json_array_append_new(list, one);
	}
	return send_choice(c, chunk_choice(x, json_pack("{s:o}", "tool_calls", list), json_null(), NULL), false);
}

bool reply_chunk(struct completion *c, struct choice *x)
{
	bool per_token = c->q.return_ids || c->q.logprobs;
	size_t n;
	const char *p;

	if (x->finish_sent || (x->n_tokens == 0 && !x->reason))
		return true;
	if (!send_role(c, x))
		return false;
	p = textout_take(&x->out, x->reason != NULL, &n);
	if ((n > 0 || (per_token && x->n_told < x->n_tokens)) && !send_text(c, x, p, n))
		return false;
	if (!x->reason)
		return true;
	if (x->calls && !send_calls(c, x))
		return false;
	x->finish_sent = true;
	return send_choice(c, chunk_choice(x, c->q.chat ? json_object() : json_string(""), json_null(), x->reason), false);
}

static bool send_done(struct completion *c)
{
	static const char done[] = "data: [DONE]\n\n";

	if (http_stream_send(c->http, done, sizeof done - 1) < 0)
		return false;
	http_stream_end(c->http);
	c->http = NULL;
	return true;
}

bool reply_end(struct completion *c)
{
	if (c->q.include_usage) {
		json_t *j = envelope(c, c->q.chat ? "chat.completion.chunk" : "text_completion", json_array());
		if (j)
			json_object_set_new(j, "usage", usage(c));
		if (!send_event(c, j, false))
			return false;
	}
	return send_done(c);
}

void reply_broken(struct completion *c, int status, const char *message)
{
	struct openai_error e;

	(void)openai_fail(&e, status, "", status == 504 ? "deadline_exceeded" : "engine_error", "%s", message);
	front_metrics_refused(c->o->metrics, e.status);
	if (send_event(c, openai_error_json(&e), false))
		(void)send_done(c);
}
