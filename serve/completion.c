/* The life of one request.
 *
 * It asks the engine for n choices a prompt, each a sequence of its own. The engine's
 * thread puts tokens into a choice's inbox, which was sized for all there can be, and
 * posts at most one drain at a time to the loop; everything else happens there. The
 * struct is freed when the engine is done with every choice, no drain is on its way and
 * the client has been answered or is gone.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"
#include "serve/front_metrics.h"
#include "serve/http.h"
#include "serve/openai_live.h"
#include "serve/tokenizer.h"

static const char PAST_DEADLINE[] = "The request's deadline has passed.";

/* --- engine's thread --- */

static void on_loop(void *arg)
{
	completion_drain(arg);
}

/* After the inbox changed, with c->lock held; gives it back. */
static void post_and_unlock(struct completion *c)
{
	bool post = !c->posted;

	c->posted = true;
	pthread_mutex_unlock(&c->lock);
	if (post && loop_post(c->o->o.loop, on_loop, c) < 0) {
		pthread_mutex_lock(&c->lock);
		c->posted = false; /* the sweep will find it */
		pthread_mutex_unlock(&c->lock);
	}
}

static void on_tokens(void *arg, const uint32_t *ids, int n)
{
	struct choice *x = arg;

	pthread_mutex_lock(&x->c->lock);
	if (n > x->cap - x->n_in)
		n = x->cap - x->n_in;
	memcpy(x->inbox + x->n_in, ids, (size_t)n * sizeof *ids);
	x->n_in += n;
	post_and_unlock(x->c);
}

/* Right before on_tokens: what lies above n_in is the engine's to write. */
static void on_logprobs(void *arg, const struct token_logprob *lp, int n)
{
	struct choice *x = arg;
	size_t width = (size_t)x->c->q.top_logprobs + 1;

	if (n > x->cap - x->n_in)
		n = x->cap - x->n_in;
	memcpy(x->lp + (size_t)x->n_in * width, lp, (size_t)n * width * sizeof *lp);
}

static void on_done(void *arg, enum finish why, const struct request_stats *s, const char *error)
{
	struct choice *x = arg;

	pthread_mutex_lock(&x->c->lock);
	x->in_done = true;
	x->in_why = why;
	if (s)
		x->in_stats = *s;
	(void)snprintf(x->in_error, sizeof x->in_error, "%s", error ? error : "");
	post_and_unlock(x->c);
}

/* --- loop's thread --- */

static void completion_free(struct completion *c)
{
	struct openai *o = c->o;

	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	o->n_live--;
	for (int i = 0; i < c->n_choices; i++) {
		textout_done(&c->choices[i].out);
		free(c->choices[i].inbox);
		free(c->choices[i].lp);
		json_decref(c->choices[i].calls);
	}
	if (c->deadline)
		loop_timer_free(c->deadline);
	free(c->choices);
	openai_request_done(&c->q);
	pthread_mutex_destroy(&c->lock);
	free(c);
	if (o->n_live == 0 && o->on_idle)
		o->on_idle(o->idle_arg);
}

void completion_cancel(struct completion *c)
{
	for (int i = 0; i < c->n_choices; i++)
		if (c->choices[i].submitted && !c->choices[i].ended)
			c->o->o.calls->cancel(c->o->o.engine, c->choices[i].handle);
}

/* Frees c when nothing refers to it any more; true then. */
static bool free_if_over(struct completion *c)
{
	bool posted;

	for (int i = 0; i < c->n_choices; i++)
		if (c->choices[i].submitted && !c->choices[i].ended)
			return false;
	pthread_mutex_lock(&c->lock);
	posted = c->posted;
	pthread_mutex_unlock(&c->lock);
	if (posted || c->http)
		return false;
	completion_free(c);
	return true;
}

/* The client hung up (or was cut for reading too slowly). */
static void on_gone(void *arg)
{
	struct completion *c = arg;

	c->http = NULL;
	completion_cancel(c);
}

static void note_times(struct choice *x, int n)
{
	struct completion *c = x->c;
	uint64_t now = clock_us();

	if (n <= 0)
		return;
	if (x->last_us == 0) {
		x->first_us = now;
		front_metrics_first_token(c->o->metrics, (double)(now - c->start_us) / 1e6);
		n--;
	} else {
		front_metrics_tokens(c->o->metrics, n, (double)(now - x->last_us) / 1e6 / n);
	}
	x->last_us = now;
}

/* The answer is complete: calls in it become calls, and what stands before them is its text. */
static void find_calls(struct choice *x)
{
	const struct openai_request *q = &x->c->q;
	const char *text = (const char *)x->out.text.data;
	char seed[80];
	size_t before;

	if (!q->tools || x->calls || (strcmp(x->reason, "stop") != 0 && strcmp(x->reason, "length") != 0))
		return;
	(void)snprintf(seed, sizeof seed, "%s/%d", x->c->id, x->index);
	x->calls = toolcall_find(text ? text : "", x->out.text.len, q->forced != NULL, seed, &before);
	if (!x->calls)
		return;
	x->out.text.len = before;
	if (strcmp(x->reason, "stop") == 0)
		x->reason = "tool_calls";
}

static void end_choice(struct choice *x, enum finish why)
{
	static const char *const names[] = {[FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_CANCELLED] = "abort", [FINISH_ERROR] = "error",
					   [FINISH_DEADLINE] = "deadline"};
	struct completion *c = x->c;

	x->ended = true;
	if (!x->reason) {
		int r = textout_finish(&x->out);
		x->reason = r < 0 ? "error" : r == TEXTOUT_STOP ? "stop" : names[why];
	}
	find_calls(x);
	front_metrics_end(c->o->metrics, x->reason, (double)(clock_us() - c->start_us) / 1e6, x->n_taken, (double)(x->last_us - x->first_us) / 1e6,
			  c->domain, &x->in_stats);
}

static bool stops_at(const struct openai_request *q, uint32_t id)
{
	for (int i = 0; i < q->n_stop_ids; i++)
		if (q->stop_ids[i] == id)
			return true;
	return false;
}

/* Take what has come for one choice: n_in tokens so far, done or not. */
static void take(struct choice *x, int n_in, bool done)
{
	note_times(x, n_in - x->n_taken);
	while (x->n_taken < n_in) {
		uint32_t id = x->inbox[x->n_taken++];
		size_t before = x->out.text.len;
		int r;

		if (x->reason)
			continue; /* past a stop string */
		x->n_tokens++;
		if (stops_at(&x->c->q, id))
			continue; /* the engine ends here, and the text before it */
		r = textout_add(&x->out, id);
		if (r == 0 && x->c->q.forced) {
			toolcall_watch(&x->watch, (const char *)x->out.text.data + before, x->out.text.len - before);
			r = x->watch.over ? TEXTOUT_STOP : 0;
		}
		if (r == 0)
			continue;
		x->reason = r == TEXTOUT_STOP ? "stop" : "error";
		find_calls(x);
		if (!done)
			x->c->o->o.calls->cancel(x->c->o->o.engine, x->handle);
	}
	if (done && !x->ended)
		end_choice(x, x->in_why);
}

static bool all_ended(const struct completion *c)
{
	for (int i = 0; i < c->n_choices; i++)
		if (!c->choices[i].ended)
			return false;
	return true;
}

/* A sentence when some choice could not be finished, else NULL. */
static const char *trouble(struct completion *c)
{
	for (int i = 0; i < c->n_choices; i++) {
		const struct choice *x = &c->choices[i];
		if (x->reason && strcmp(x->reason, "error") == 0)
			return x->ended && *x->in_error ? x->in_error : "The request could not be finished."; /* until then it is the engine's */
		if (x->reason && strcmp(x->reason, "abort") == 0)
			return c->late ? PAST_DEADLINE : "The server is shutting down.";
		c->late = c->late || (x->reason && strcmp(x->reason, "deadline") == 0);
	}
	return c->late ? PAST_DEADLINE : NULL;
}

/* Tell the client what is new. */
static void show(struct completion *c)
{
	const char *wrong = trouble(c);
	bool over = all_ended(c);
	struct openai_error e;

	if (wrong && !c->streaming) {
		completion_cancel(c);
		(void)openai_fail(&e, c->late ? 504 : c->o->draining ? 503 : 500, "", c->late ? "deadline_exceeded" : "engine_error", "%s", wrong);
		reply_error(c->o, c->http, &e);
		c->http = NULL;
	} else if (wrong) {
		completion_cancel(c);
		reply_broken(c, c->late ? 504 : 500, wrong);
	} else if (c->q.stream) {
		for (int i = 0; i < c->n_choices; i++)
			if (!reply_chunk(c, &c->choices[i]))
				return;
		if (over)
			(void)reply_end(c);
	} else if (over) {
		reply_whole(c);
	}
}

/* Only a drain that was posted may take the mark away: while it is on its way, c must live. The
 * engine may post one right after the sweep has looked, so the sweep looks and takes under one lock. */
static void drain(struct completion *c, bool was_posted)
{
	int n_in[OPENAI_MAX_CHOICES];
	bool done[OPENAI_MAX_CHOICES];

	pthread_mutex_lock(&c->lock);
	if (!was_posted && c->posted) {
		pthread_mutex_unlock(&c->lock);
		return;
	}
	if (was_posted)
		c->posted = false;
	for (int i = 0; i < c->n_choices; i++) {
		n_in[i] = c->choices[i].n_in;
		done[i] = c->choices[i].in_done;
	}
	pthread_mutex_unlock(&c->lock);
	for (int i = 0; i < c->n_choices; i++)
		take(&c->choices[i], n_in[i], done[i]);
	if (c->http)
		show(c);
	(void)free_if_over(c);
}

void completion_drain(struct completion *c)
{
	drain(c, true);
}

static void on_deadline(void *arg)
{
	struct completion *c = arg;

	if (all_ended(c))
		return;
	c->late = true;
	completion_cancel(c);
	if (c->http)
		show(c);
	(void)free_if_over(c);
}

void completion_sweep(struct completion *c)
{
	drain(c, false);
}

/* --- start --- */

static void hex_id(const char *prefix, char *out, size_t size)
{
	unsigned char b[12] = {0};
	int n = snprintf(out, size, "%s", prefix);

	if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b) {
		uint64_t t = clock_us();
		memcpy(b, &t, sizeof t);
	}
	for (size_t i = 0; i < sizeof b && (size_t)n + 2 < size; i++)
		n += snprintf(out + n, size - (size_t)n, "%02x", b[i]);
}

/* What the answer's text has before its first token. */
static int begin_text(struct choice *x)
{
	const struct openai_request *q = &x->c->q;
	struct textout prompt = {.tokenizer = x->c->o->o.model.tokenizer, .text = BUF_INIT(16 << 20)};
	int r = 0;

	if (q->forced) {
		x->watch = toolcall_watch_start(q->forced);
		return textout_begin(&x->out, q->forced, strlen(q->forced));
	}
	if (!q->echo)
		return 0;
	for (int i = 0; i < q->prompts[x->prompt].n && r == 0; i++)
		r = textout_add_shown(&prompt, q->prompts[x->prompt].ids[i]);
	if (r == 0)
		r = textout_finish(&prompt);
	if (r == 0)
		r = textout_begin(&x->out, (const char *)prompt.text.data, prompt.text.len);
	textout_done(&prompt);
	return r;
}

static int make_choices(struct completion *c)
{
	const struct openai_request *q = &c->q;

	c->choices = calloc((size_t)(q->n_prompts * q->n), sizeof *c->choices);
	if (!c->choices)
		return -ENOMEM;
	for (int i = 0; i < q->n_prompts * q->n; i++) {
		struct choice *x = &c->choices[c->n_choices++];
		int room = c->o->o.model.max_context - q->prompts[i / q->n].n;
		x->c = c;
		x->index = i;
		x->prompt = i / q->n;
		x->cap = q->max_tokens > 0 ? q->max_tokens : room;
		x->out = (struct textout){.tokenizer = c->o->o.model.tokenizer, .stops = q->stops, .n_stops = q->n_stops, .quiet = q->min_tokens,
					  .fence = q->tools ? TOOLCALL_OPEN : NULL, .text = BUF_INIT(16 << 20)};
		x->inbox = malloc(((size_t)x->cap + ENGINE_MAX_K + 1) * sizeof *x->inbox);
		if (q->logprobs)
			x->lp = malloc(((size_t)x->cap + ENGINE_MAX_K + 1) * ((size_t)q->top_logprobs + 1) * sizeof *x->lp);
		if (!x->inbox || (q->logprobs && !x->lp) || begin_text(x) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Hand the choices to the engine; its verdict on the first that it refuses. */
static int submit(struct completion *c, struct engine_request r)
{
	int e = 0;

	r.ignore_eos = c->q.ignore_eos;
	r.stop_ids = c->q.stop_ids;
	r.n_stop_ids = c->q.n_stop_ids;
	r.min_tokens = c->q.min_tokens;
	r.on_tokens = on_tokens;
	r.on_done = on_done;
	r.on_logprobs = c->q.logprobs ? on_logprobs : NULL;
	r.top_logprobs = c->q.top_logprobs;
	for (int i = 0; i < c->n_choices && e == 0; i++) {
		struct choice *x = &c->choices[i];
		r.prompt = c->q.prompts[x->prompt].ids;
		r.n_prompt = c->q.prompts[x->prompt].n;
		r.max_tokens = x->cap;
		r.sampling = c->q.sampling;
		r.sampling.choice = (uint32_t)(x->index % c->q.n);
		r.arg = x;
		if (c->n_choices > 1)
			(void)snprintf(r.request_id, sizeof r.request_id, "%s-%d", c->id, i);
		else
			(void)snprintf(r.request_id, sizeof r.request_id, "%s", c->id);
		e = c->o->o.calls->submit(c->o->o.engine, &r, &x->handle);
		x->submitted = e == 0;
		if (e == 0 && i % c->q.n == 0)
			front_metrics_taken(c->o->metrics, r.n_prompt, c->q.n, c->q.max_tokens);
	}
	return e;
}

static void refuse(struct completion *c, int verdict)
{
	struct openai_error e;

	completion_cancel(c);
	if (verdict == ENGINE_E_FULL) {
		(void)openai_fail(&e, 429, "", "queue_full", "The server's queue is full; try again later.");
		http_set_header(c->http, "Retry-After", "1");
	} else if (verdict == ENGINE_E_TOO_LONG) {
		(void)openai_fail(&e, 400, c->q.chat ? "messages" : "prompt", "context_length_exceeded",
				  "The prompt and the tokens asked for are more than the server can hold (%d).", c->o->o.model.max_context);
	} else {
		(void)openai_fail(&e, 503, "", "unavailable", "The server cannot take the request now (%s).", strerror(-verdict));
		http_set_header(c->http, "Retry-After", "1");
	}
	reply_error(c->o, c->http, &e);
	c->http = NULL;
}

static int start_clock(struct completion *c)
{
	int r;

	if (!c->deadline_us)
		return 0;
	r = loop_timer_new(c->o->o.loop, on_deadline, c, &c->deadline);
	if (r == 0)
		loop_timer_set(c->deadline, c->deadline_us - c->start_us);
	return r;
}

void completion_start(struct openai *o, struct http_request *h, struct openai_request *q)
{
	struct completion *c = calloc(1, sizeof *c);
	struct engine_request named = {0};
	struct openai_error bad;
	int r;

	if (!c) {
		struct openai_error e;
		openai_request_done(q);
		(void)openai_fail(&e, 503, "", "overloaded", "The server is out of memory; try again.");
		reply_error(o, h, &e);
		return;
	}
	c->o = o;
	c->http = h;
	c->q = *q;
	*q = (struct openai_request){0};
	c->created = clock_wall_ms() / 1000;
	c->start_us = clock_us();
	pthread_mutex_init(&c->lock, NULL);
	hex_id(c->q.chat ? "chatcmpl-" : "cmpl-", c->id, sizeof c->id);
	c->next = o->live;
	c->link = &o->live;
	if (o->live)
		o->live->link = &c->next;
	o->live = c;
	o->n_live++;
	http_on_gone(h, on_gone, c);
	if (openai_read_headers(c, &named, &bad) < 0) {
		reply_error(o, h, &bad);
		c->http = NULL;
	} else if ((r = make_choices(c)) != 0 || (r = start_clock(c)) != 0 || (r = submit(c, named)) != 0) {
		refuse(c, r);
	}
	(void)free_if_over(c);
}
