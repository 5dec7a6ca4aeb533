/* POST /api/rollback, hold, release: the page's three buttons. Who may: whoever knows the token of web.token_file, or
 * of the credential web_token; without one nobody may. The token travels in Authorization, which a page of somebody else
 * cannot set without asking us first (we answer no such question); there are no cookies to ride on. Origin, where
 * a browser sends it, must be the address asked. Hashes are compared, in the same time wherever they differ.
 *
 * A rollback names the version it leaves: a page that is behind, or a request sent twice, goes
 * back once.
 */
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "daemon/act.h"
#include "daemon/audit.h"
#include "daemon/base/clock.h"
#include "daemon/base/credential.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/web_inside.h"

enum { TOKEN_LEAST = 16, TOKEN_MOST = 512, REASON_MOST = 120 };

int web_token(struct web *w, struct errtext *e)
{
	const char *path = w->o.token_file, *where = path[0] ? path : "(the credential web_token)";
	struct stat st;
	char *text = NULL;
	size_t n;
	int r = path[0] ? fs_read_text(path, 4096, &text) : credential_read("web_token", 4096, &text);

	if (r == -ENOENT && !path[0])
		return 0;
	if (r < 0)
		return errtext_set(e, r, "web.token_file = %.150s: %s", where, fs_text_why(r));
	n = strcspn(text, "\r\n");
	if (path[0] && (stat(path, &st) < 0 || st.st_mode & S_IRWXO))
		r = errtext_set(e, -EPERM, "web.token_file = %.150s is open to every user; chmod o= it", where);
	else if (text[n + strspn(text + n, "\r\n")] || n < TOKEN_LEAST || n > TOKEN_MOST)
		r = errtext_set(e, -EINVAL, "web.token_file = %.150s: expected one line of %d to %d characters", where, TOKEN_LEAST, TOKEN_MOST);
	for (size_t i = 0; !r && i < n; i++)
		if (text[i] <= ' ' || text[i] > '~')
			r = errtext_set(e, -EINVAL, "web.token_file = %.150s: a token is printable ASCII without blanks", where);
	if (!r)
		sha_hex(text, n, w->token);
	explicit_bzero(text, strlen(text));
	free(text);
	return r;
}

static bool web_knows(const struct web *w, struct evhttp_request *q)
{
	const char *given = evhttp_find_header(evhttp_request_get_input_headers(q), "Authorization");
	char hash[SHA_HEX];

	if (!given || strncasecmp(given, "Bearer ", 7) != 0)
		return false;
	given += 7 + strspn(given + 7, " ");
	sha_hex(given, strlen(given), hash);
	return sha_same(hash, w->token);
}

/* Absent is good: only browsers send it, and they always do. */
static bool web_same_origin(struct evhttp_request *q)
{
	struct evkeyvalq *in = evhttp_request_get_input_headers(q);
	const char *origin = evhttp_find_header(in, "Origin"), *host = evhttp_find_header(in, "Host");
	const char *rest = !origin			      ? NULL
			   : !strncasecmp(origin, "http://", 7)	      ? origin + 7
			   : !strncasecmp(origin, "https://", 8)	      ? origin + 8
									      : "";

	return !origin || (host && *rest && !strcasecmp(rest, host));
}

/* One change on its way: lives until answered. */
struct web_request {
	struct evhttp_request *q; /* NULL: hung up */
	struct web *w;
	json_t *from; /* owned: where things stood when it came */
	const char *what; /* "Rollback", as the control socket calls it: static */
	char who[80], detail[32], why[REASON_MOST + 1];
};

static void web_request_gone(struct evhttp_connection *c, void *arg)
{
	struct web_request *x = arg;

	(void)c;
	web_let_go(x->q);
	x->q = NULL;
}

static bool web_write(const struct web_request *x, const char *error, const char *text)
{
	return audit_change(x->w->o.audit, x->w->o.news, &act_rollout(x->w->o.act)->s,
			    &(struct audit_change){.what = x->what, .who = x->who, .detail = x->detail, .why = x->why, .from = x->from}, error, text);
}

static void web_answered(void *arg, const char *error, const char *text, uint32_t quarantined)
{
	struct web_request *x = arg;
	const struct store_state *s = &act_rollout(x->w->o.act)->s;
	bool first = !strcmp(x->what, "Rollback"); /* is answered before anything is written */
	bool audited = first || web_write(x, error, text);

	if (x->q) {
		evhttp_connection_set_closecb(evhttp_request_get_connection(x->q), NULL, NULL);
		if (error)
			web_fail(x->q, strcmp(error, "io.redraft.Busy") ? 409 : 503, "%s", text);
		else
			web_send_json(x->q, 200,
				      json_pack("{s:I, s:I, s:I, s:b, s:I, s:o}", "generation", (json_int_t)s->generation, "live", (json_int_t)s->live,
						"previous", (json_int_t)s->previous, "hold", (int)s->hold, "quarantined", (json_int_t)quarantined, "audited",
						first ? json_null() : json_boolean(audited)));
	}
	if (first)
		(void)web_write(x, error, text);
	json_decref(x->from);
	free(x);
}

static void web_rollback(struct web_request *x)
{
	snprintf(x->detail, sizeof x->detail, "version %u", act_rollout(x->w->o.act)->s.live);
	act_rollback(x->w->o.act, x->who, "", web_answered, x);
}

static void web_hold(struct web_request *x)
{
	char why[sizeof x->why];

	memcpy(why, x->why, sizeof why); /* x may be answered and gone while this is looked at */
	act_hold(x->w->o.act, why, web_answered, x);
}

static void web_release(struct web_request *x)
{
	act_release(x->w->o.act, web_answered, x);
}

static const struct web_verb {
	const char *name, *what; /* in the path; in the log */
	bool leaves;             /* the version that is left must be named */
	void (*go)(struct web_request *x);
} web_verbs[] = {
	{"rollback", "Rollback", true, web_rollback},
	{"hold", "Hold", false, web_hold},
	{"release", "Release", false, web_release},
};

static const struct web_verb *web_verb(const char *name)
{
	for (size_t i = 0; i < sizeof web_verbs / sizeof *web_verbs; i++)
		if (!strcmp(web_verbs[i].name, name))
			return &web_verbs[i];
	return NULL;
}

static void web_do(struct web *w, struct evhttp_request *q, const struct web_verb *v, const json_t *body)
{
	struct evhttp_connection *c = evhttp_request_get_connection(q);
	const json_t *from = json_object_get(body, "live"), *reason = json_object_get(body, "reason");
	uint32_t live = act_rollout(w->o.act)->s.live;
	struct web_request *x;
	char *address = NULL;
	uint16_t port = 0;

	if (v->leaves && !json_is_integer(from)) {
		web_fail(q, 400, "live: the number of the version that is left");
		return;
	}
	if (v->leaves && json_integer_value(from) != live) {
		web_fail(q, 409, "version %u is live, not the one you saw; look again", live);
		return;
	}
	if (reason && (!json_is_string(reason) || json_string_length(reason) > REASON_MOST)) {
		web_fail(q, 400, "reason: a string of at most %d bytes", REASON_MOST);
		return;
	}
	x = calloc(1, sizeof *x);
	if (!x) {
		web_fail(q, 503, "out of memory; try again");
		return;
	}
	evhttp_connection_get_peer(c, &address, &port);
	x->q = q;
	x->w = w;
	x->from = audit_place(&act_rollout(w->o.act)->s);
	snprintf(x->why, sizeof x->why, "%s", reason ? json_string_value(reason) : "from the page");
	x->what = v->what;
	snprintf(x->who, sizeof x->who, "the page, from %.45s port %u", address ? address : "?", port);
	evhttp_connection_set_closecb(c, web_request_gone, x);
	v->go(x);
}

static void web_refuse(struct web *w, struct evhttp_request *q, int code, const char *why)
{
	uint64_t now = clock_us();
	char *address = NULL;
	uint16_t port = 0;

	evhttp_connection_get_peer(evhttp_request_get_connection(q), &address, &port);
	if (!w->refusal_us || now - w->refusal_us > 1000000) { /* who guesses fills no log */
		log_warn("audit: %s from %.45s: refused, %s", evhttp_uri_get_path(evhttp_request_get_evhttp_uri(q)), address ? address : "?", why);
		w->refusal_us = now;
	}
	web_fail(q, code, "%s", why);
}

void web_change(struct web *w, struct evhttp_request *q)
{
	const struct web_verb *v = web_verb(evhttp_uri_get_path(evhttp_request_get_evhttp_uri(q)) + strlen("/api/"));
	struct evbuffer *in = evhttp_request_get_input_buffer(q);
	size_t n = evbuffer_get_length(in);
	json_t *body;

	if (!w->token[0]) {
		web_fail(q, 403, "nothing is changed from here: redraftd has no web.token_file");
		return;
	}
	if (!web_same_origin(q)) {
		web_refuse(w, q, 403, "another page's request");
		return;
	}
	if (!web_knows(w, q)) {
		evhttp_add_header(evhttp_request_get_output_headers(q), "WWW-Authenticate", "Bearer realm=\"redraftd\"");
		web_refuse(w, q, 401, "the token is missing or not this daemon's");
		return;
	}
	body = n ? json_loadb((const char *)evbuffer_pullup(in, -1), n, 0, NULL) : json_object();
	if (!v)
		web_fail(q, 404, "there is no such change");
	else if (!json_is_object(body))
		web_fail(q, 400, "the body must be a JSON object");
	else
		web_do(w, q, v, body);
	json_decref(body);
}
