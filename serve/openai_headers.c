/* Headers of a generating request: labels of its records, who shares fairly with whom, priority, deadline. */
#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"
#include "serve/http.h"
#include "serve/openai_live.h"

enum { MAX_DEADLINE_MS = 86400000, MAX_PRIORITY = 2 };

static bool readable(const char *s, size_t max)
{
	size_t n = strlen(s);

	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] <= 0x20 || (unsigned char)s[i] >= 0x7f)
			return false;
	return n > 0 && n <= max;
}

const char *openai_bearer(const struct http_request *h)
{
	const char *auth = http_header(h, "Authorization");

	return auth && strncasecmp(auth, "Bearer ", 7) == 0 && auth[7] ? auth + 7 : NULL;
}

/* Who asks, in which conversation, about what: labels of the records. */
static void name_request(struct completion *c, struct engine_request *r)
{
	struct openai *o = c->o;
	const char *key = openai_bearer(c->http), *conv = http_header(c->http, "X-Redraft-Conversation"),
		   *domain = http_header(c->http, "X-Redraft-Domain"), *trace = http_header(c->http, "X-Redraft-Trace"),
		   *draft = http_header(c->http, "X-Redraft-Draft");
	const void *words = c->q.first_words;
	size_t n = c->q.first_words ? strlen(c->q.first_words) : 0;

	(void)snprintf(r->tenant, sizeof r->tenant, "anonymous");
	if (key)
		sha_hmac_hex(o->o.tenant_key, sizeof o->o.tenant_key, key, strlen(key), r->tenant);
	if (key && o->o.keys) /* a key that was checked; others could be made up at will */
		(void)snprintf(r->client, sizeof r->client, "key:%.24s", r->tenant);
	else
		(void)snprintf(r->client, sizeof r->client, "%s", http_peer(c->http));
	if (!words) {
		words = c->q.prompts[0].ids;
		n = (size_t)c->q.prompts[0].n * sizeof(uint32_t);
	}
	if (conv && readable(conv, 64))
		(void)snprintf(r->conversation, sizeof r->conversation, "%s", conv);
	else if (conv && *conv)
		sha_hmac_hex(o->o.tenant_key, sizeof o->o.tenant_key, conv, strlen(conv), r->conversation);
	else
		sha_hmac_hex(r->tenant, strlen(r->tenant), words, n, r->conversation);
	(void)snprintf(r->domain, sizeof r->domain, "other");
	for (int i = 0; domain && i < o->n_domains; i++)
		if (strcmp(domain, o->domains[i]) == 0)
			(void)snprintf(r->domain, sizeof r->domain, "%s", domain);
	(void)snprintf(c->domain, sizeof c->domain, "%s", r->domain);
	r->no_trace = trace && strcasecmp(trace, "off") == 0;
	r->no_draft = draft && strcasecmp(draft, "off") == 0;
}

/* A whole number in a header, absent = untouched. */
static int read_number(const struct http_request *h, const char *name, long min, long max, long *ret, struct openai_error *e)
{
	const char *v = http_header(h, name);
	char *end;
	long x;

	if (!v)
		return 0;
	errno = 0;
	x = strtol(v, &end, 10);
	if (end == v || *end || errno || x < min || x > max)
		return openai_fail(e, 400, name, "invalid_value", "%s must be a whole number from %ld to %ld.", name, min, max);
	*ret = x;
	return 0;
}

static int read_priority(const struct http_request *h, int *ret, struct openai_error *e)
{
	static const struct { const char *word; int value; } words[] = {{"high", 1}, {"normal", 0}, {"low", -1}};
	const char *v = http_header(h, "X-Redraft-Priority");
	long x = 0;

	for (size_t i = 0; v && i < sizeof words / sizeof words[0]; i++)
		if (strcasecmp(v, words[i].word) == 0) {
			*ret = words[i].value;
			return 0;
		}
	if (read_number(h, "X-Redraft-Priority", -MAX_PRIORITY, MAX_PRIORITY, &x, e) < 0)
		return -EINVAL;
	*ret = (int)x;
	return 0;
}

int openai_read_headers(struct completion *c, struct engine_request *r, struct openai_error *e)
{
	long ms = (long)c->o->o.deadline_ms;

	if (read_priority(c->http, &r->priority, e) < 0 ||
	    read_number(c->http, "X-Redraft-Deadline-Ms", 1, MAX_DEADLINE_MS, &ms, e) < 0)
		return -EINVAL;
	c->deadline_us = ms > 0 ? c->start_us + (uint64_t)ms * 1000 : 0;
	r->deadline_us = c->deadline_us;
	name_request(c, r);
	return 0;
}
