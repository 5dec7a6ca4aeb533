/* Routes and the small endpoints. */
#include "serve/openai.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "serve/chat.h"
#include "serve/front_metrics.h"
#include "serve/http.h"
#include "serve/keys.h"
#include "serve/openai_live.h"
#include "serve/tokenizer.h"

enum { SWEEP_US = 1000000, RETIRE_EACH = 60 /* sweeps */ };

const struct openai_engine openai_real_engine = {engine_submit, engine_cancel, engine_status};

/* A drain that could not be posted (out of memory) is made up for here. */
static void on_sweep(void *arg)
{
	struct openai *o = arg;

	for (struct completion *c = o->live, *next; c; c = next) {
		next = c->next;
		completion_sweep(c);
	}
	if (o->o.calls && ++o->sweeps % RETIRE_EACH == 0) {
		struct engine_status s = {0};
		o->o.calls->status(o->o.engine, &s);
		front_metrics_retire(o->metrics, &s);
	}
	loop_timer_set(o->sweep, SWEEP_US);
}

struct domains {
	char name[OPENAI_MAX_DOMAINS][32];
	int n;
};

static int read_domains(struct domains *o, const char *list, struct errtext *e)
{
	const char *p = list ? list : "";

	*o = (struct domains){.n = 0};

	while (*p) {
		size_t n = strcspn(p, ", ");
		if (n >= sizeof o->name[0] || (n > 0 && o->n == OPENAI_MAX_DOMAINS))
			return errtext_set(e, -EINVAL, "domains: at most %d names of at most 31 characters", OPENAI_MAX_DOMAINS);
		if (n > 0)
			memcpy(o->name[o->n++], p, n);
		p += n + (p[n] != 0);
	}
	return 0;
}

int openai_check_domains(const char *list, struct errtext *e)
{
	struct domains d;

	return read_domains(&d, list, e);
}

int openai_set_domains(struct openai *o, const char *list, struct errtext *e)
{
	struct domains d;
	int r = read_domains(&d, list, e);

	if (r < 0)
		return r;
	memcpy(o->domains, d.name, sizeof o->domains);
	o->n_domains = d.n;
	return 0;
}

int openai_new(const struct openai_options *opt, struct openai **ret, struct errtext *e)
{
	struct openai *o = calloc(1, sizeof *o);
	int r;

	if (!o)
		return errtext_set(e, -ENOMEM, "out of memory");
	o->o = *opt;
	o->o.model.name = opt->model_name;
	o->created = clock_wall_ms() / 1000;
	r = openai_set_domains(o, opt->domains, e);
	if (r == 0 && !(o->metrics = front_metrics_new(opt->metrics, opt->model_name)))
		r = errtext_set(e, -ENOMEM, "out of memory");
	if (r == 0 && (r = loop_timer_new(opt->loop, on_sweep, o, &o->sweep)) < 0)
		errtext_set(e, r, "out of memory");
	if (r < 0) {
		openai_free(o);
		return r;
	}
	loop_timer_set(o->sweep, SWEEP_US);
	*ret = o;
	return 0;
}

struct openai *openai_free(struct openai *o)
{
	if (!o)
		return NULL;
	o->on_idle = NULL;
	while (o->live) /* the loop has stopped, so a drain that is on its way will not run */
		completion_drain(o->live);
	if (o->sweep)
		loop_timer_free(o->sweep);
	front_metrics_free(o->metrics);
	free(o);
	return NULL;
}

/* --- endpoints --- */

static json_t *model_json(const struct openai *o)
{
	return json_pack("{s:s,s:s,s:I,s:s,s:s,s:n,s:i,s:[]}", "id", o->o.model.name, "object", "model", "created", (json_int_t)o->created,
			 "owned_by", "redraft", "root", o->o.model.name, "parent", "max_model_len", o->o.model.max_context, "permission");
}

static void get_models(struct openai *o, struct http_request *h)
{
	reply_json(h, 200, json_pack("{s:s,s:[o]}", "object", "list", "data", model_json(o)));
}

static void get_model(struct openai *o, struct http_request *h, const char *id)
{
	struct openai_error e;

	if (strcmp(id, o->o.model.name) == 0) {
		reply_json(h, 200, model_json(o));
		return;
	}
	(void)openai_fail(&e, 404, "model", "model_not_found", "The model '%.80s' does not exist; this server holds '%.80s'.", id, o->o.model.name);
	reply_error(o, h, &e);
}

static void get_version(struct openai *o, struct http_request *h)
{
	(void)o;
	reply_json(h, 200, json_pack("{s:s,s:s}", "version", REDRAFT_COMMIT, "program", "redraft-serve"));
}

static void get_load(struct openai *o, struct http_request *h)
{
	struct engine_status s = {0};

	if (o->o.calls)
		o->o.calls->status(o->o.engine, &s);
	reply_json(h, 200, json_pack("{s:i,s:i}", "running", s.running, "waiting", s.waiting));
}

static void get_metrics(struct openai *o, struct http_request *h)
{
	bool open = metrics_wants_open(http_header(h, "accept"));
	struct buf b = BUF_INIT(4 << 20), strict = BUF_INIT(4 << 20);
	struct engine_status s = {0};
	struct tap_stats t = {0};
	struct http_stats held = http_stats(http_of(h));

	if (o->o.calls)
		o->o.calls->status(o->o.engine, &s);
	if (o->o.tap)
		tap_stats(o->o.tap, &t);
	front_metrics_refresh(o->metrics, &s, o->o.tap ? &t : NULL);
	front_metrics_process(o->metrics, &held);
	if (o->o.calls)
		front_metrics_retire(o->metrics, &s);
	if (metrics_print(o->o.metrics, &b) < 0 || (open && metrics_openmetrics(&b, &strict) < 0))
		http_reply(h, 500, "text/plain", "out of memory\n", 14);
	else
		http_reply(h, 200, open ? METRICS_OPEN : METRICS_PLAIN, open ? strict.data : b.data, open ? strict.len : b.len);
	buf_done(&strict);
	buf_done(&b);
}

static void post_generate(struct openai *o, struct http_request *h, const json_t *body, bool chat)
{
	struct openai_request q;
	struct openai_error e;

	if (o->draining) {
		(void)openai_fail(&e, 503, "", "unavailable", "The server is shutting down.");
		http_set_header(h, "Retry-After", "1");
		reply_error(o, h, &e);
	} else if (openai_request_parse(&o->o.model, body, chat, &q, &e) < 0) {
		reply_error(o, h, &e);
	} else {
		completion_start(o, h, &q);
	}
}

static void post_chat(struct openai *o, struct http_request *h, const json_t *body)
{
	post_generate(o, h, body, true);
}

static void post_completions(struct openai *o, struct http_request *h, const json_t *body)
{
	post_generate(o, h, body, false);
}

static void post_tokenize(struct openai *o, struct http_request *h, const json_t *body)
{
	const json_t *prompt = json_object_get(body, "prompt"), *gen = json_object_get(body, "add_generation_prompt");
	bool strings = json_is_true(json_object_get(body, "return_token_strs"));
	struct openai_prompt p;
	struct openai_error e;
	json_t *ids, *texts, *j;
	int r = openai_check_model(&o->o.model, body, &e);

	if (r == 0 && json_object_get(body, "messages"))
		r = openai_encode_chat(&o->o.model, body, !json_is_false(gen), openai_most_ids(&o->o.model), &p, &e);
	else if (r == 0 && json_is_string(prompt))
		r = openai_encode_text(&o->o.model, "prompt", prompt, openai_most_ids(&o->o.model), &p, &e);
	else if (r == 0)
		r = openai_fail(&e, 400, "prompt", "invalid_value", "prompt must be a string, or messages a list.");
	if (r < 0) {
		reply_error(o, h, &e);
		return;
	}
	ids = json_array();
	texts = json_array();
	for (int i = 0; i < p.n; i++) {
		json_array_append_new(ids, json_integer(p.ids[i]));
		if (strings)
			json_array_append_new(texts, json_string(tokenizer_text(o->o.model.tokenizer, p.ids[i])));
	}
	j = json_pack("{s:i,s:i,s:o}", "count", p.n, "max_model_len", o->o.model.max_context, "tokens", ids);
	if (j && strings)
		json_object_set(j, "token_strs", texts);
	json_decref(texts);
	free(p.ids);
	reply_json(h, 200, j);
}

/* Token ids to text; control tokens are written out, as they would be typed. */
static int detokenize(struct openai *o, const json_t *tokens, struct textout *out)
{
	const json_t *v;
	size_t i;

	json_array_foreach((json_t *)tokens, i, v)
	{
		json_int_t id = json_integer_value(v);
		int r;

		if (!json_is_integer(v) || id < 0 || id >= (json_int_t)tokenizer_vocab(o->o.model.tokenizer))
			return -EINVAL;
		if ((r = textout_add_shown(out, (uint32_t)id)) < 0)
			return r;
	}
	return textout_finish(out);
}

static void post_detokenize(struct openai *o, struct http_request *h, const json_t *body)
{
	const json_t *tokens = json_object_get(body, "tokens");
	struct textout out = {.tokenizer = o->o.model.tokenizer, .text = BUF_INIT(16 << 20)};
	struct openai_error e;
	const char *p;
	size_t n;

	if (!json_is_array(tokens) || detokenize(o, tokens, &out) < 0) {
		(void)openai_fail(&e, 400, "tokens", "invalid_value", "tokens must be a list of token ids below %u.",
				  tokenizer_vocab(o->o.model.tokenizer));
		reply_error(o, h, &e);
	} else {
		p = textout_take(&out, true, &n);
		reply_json(h, 200, json_pack("{s:o}", "prompt", json_stringn(p, n)));
	}
	textout_done(&out);
}

/* --- routes --- */

/* always: also while loading and without a key, as probes and scrapers have none. */
static const struct route {
	const char *path;
	bool always;
	void (*get)(struct openai *o, struct http_request *h);
	void (*post)(struct openai *o, struct http_request *h, const json_t *body);
} routes[] = {
	{"/v1/chat/completions", false, NULL, post_chat},
	{"/v1/completions", false, NULL, post_completions},
	{"/v1/models", false, get_models, NULL},
	{"/live", true, reply_live, NULL},
	{"/ready", true, reply_ready, NULL},
	{"/health", true, reply_ready, NULL},
	{"/healthz", true, reply_ready, NULL},
	{"/ping", true, reply_ready, NULL},
	{"/version", true, get_version, NULL},
	{"/load", true, get_load, NULL},
	{"/metrics", true, get_metrics, NULL},
	{"/tokenize", false, NULL, post_tokenize},
	{"/detokenize", false, NULL, post_detokenize},
};

static const struct route *find_route(const char *path)
{
	for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
		if (strcmp(routes[i].path, path) == 0)
			return &routes[i];
	return NULL;
}

static void common_headers(struct http_request *h)
{
	const char *id = http_header(h, "X-Request-Id");

	http_set_header(h, "Access-Control-Allow-Origin", "*");
	http_set_header(h, "X-Redraft-Commit", REDRAFT_COMMIT);
	if (id && strlen(id) <= 128)
		http_set_header(h, "X-Request-Id", id);
}

static void preflight(struct http_request *h)
{
	http_set_header(h, "Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS");
	http_set_header(h, "Access-Control-Allow-Headers", "*");
	http_set_header(h, "Access-Control-Max-Age", "86400");
	http_reply(h, 204, NULL, "", 0);
}

static void handle_post(struct openai *o, struct http_request *h, const struct route *route)
{
	struct openai_error e;
	size_t len;
	const char *body = http_body(h, &len);
	json_t *j;

	if (openai_parse_json(body, len, &j, &e) < 0) {
		reply_error(o, h, &e);
	} else {
		route->post(o, h, j);
		json_decref(j);
	}
}

/* May this request be answered at all? false: it has been refused. */
static bool admitted(struct openai *o, struct http_request *h)
{
	const char *key = openai_bearer(h);
	struct openai_error e;

	if (o->o.keys && !(key && api_keys_match(o->o.keys, key))) {
		(void)openai_fail(&e, 401, "", "invalid_api_key", key ? "The API key is not one of this server's." :
				  "This server asks for an API key: Authorization: Bearer KEY.");
		http_set_header(h, "WWW-Authenticate", "Bearer");
	} else if (!o->o.calls) {
		(void)openai_fail(&e, 503, "", "loading", "The server is loading its model; try again soon.");
		http_set_header(h, "Retry-After", "1");
	} else {
		return true;
	}
	reply_error(o, h, &e);
	return false;
}

size_t openai_refusal(void *ctx, int status, const char *sentence, char *out, size_t size)
{
	static const struct { int status; const char *code; } codes[] = {{408, "timeout"}, {413, "request_too_large"}, {431, "headers_too_large"},
									 {501, "not_implemented"}, {503, "overloaded"}, {505, "http_version"}};
	struct openai *o = ctx;
	const char *code = "invalid_request";
	struct openai_error e;
	json_t *j;
	size_t n;

	for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
		if (codes[i].status == status)
			code = codes[i].code;
	(void)openai_fail(&e, status, "", code, "%s", sentence);
	front_metrics_refused(o->metrics, status);
	j = openai_error_json(&e);
	n = j ? json_dumpb(j, out, size, JSON_COMPACT) : 0;
	json_decref(j);
	return n <= size ? n : 0;
}

void openai_open(struct openai *o, const struct openai_engine *calls, struct engine *engine, struct tap *tap, const struct openai_model *model)
{
	o->o.model = *model;
	o->o.model.name = o->o.model_name;
	o->o.engine = engine;
	o->o.tap = tap;
	o->o.calls = calls;
}

void openai_handle(void *ctx, struct http_request *h)
{
	struct openai *o = ctx;
	const char *path = http_path(h), *method = http_method(h);
	const struct route *route = find_route(path);
	bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, post = strcmp(method, "POST") == 0;
	struct openai_error e;

	common_headers(h);
	if (strcmp(method, "OPTIONS") == 0) {
		preflight(h);
	} else if (!(route && route->always) && !admitted(o, h)) {
		return;
	} else if (get && strncmp(path, "/v1/models/", 11) == 0) {
		get_model(o, h, path + 11);
	} else if (!route) {
		(void)openai_fail(&e, 404, "", "not_found", "There is no %.100s here.", path);
		reply_error(o, h, &e);
	} else if (get && route->get) {
		route->get(o, h);
	} else if (post && route->post) {
		handle_post(o, h, route);
	} else {
		(void)openai_fail(&e, 405, "", "method_not_allowed", "%.100s takes %s, not %s.", path, route->get ? "GET" : "POST", method);
		http_set_header(h, "Allow", route->get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
		reply_error(o, h, &e);
	}
}

/* --- shutdown --- */

void openai_drain(struct openai *o, void (*on_idle)(void *arg), void *arg)
{
	o->draining = true;
	o->on_idle = on_idle;
	o->idle_arg = arg;
	if (o->n_live == 0)
		on_idle(arg);
}

void openai_cancel_all(struct openai *o)
{
	for (struct completion *c = o->live; c; c = c->next)
		completion_cancel(c);
}

int openai_running(const struct openai *o)
{
	return o->n_live;
}
