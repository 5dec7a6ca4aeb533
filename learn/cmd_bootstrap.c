/* redraft-learn bootstrap: traffic for a model that has none yet, so that a first draft can be made without user data.
 *
 * It only asks: the server answers, captures and produces as for any client, and what is made of the records is
 * another program's job (the learner that runs beside it, or collect and train). So there is one way from text
 * to draft, and this can be stopped, repeated and pointed at any OpenAI-style server at any time.
 *
 * A request is two calls. The model first writes the rest of a question behind its chat template's user prefix
 * (/v1/completions, not traced), then answers it (/v1/chat/completions, traced). Request i depends on (seed, i)
 * and the model alone, so a corpus can be made again.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "learn/ask.h"
#include "learn/bootstrap.h"
#include "learn/cmd.h"

enum { MAX_CLIENTS = 256, TIMEOUT_S = 600, GIVE_UP_AFTER = 20 };

struct conf {
	char *server, *texts;
	int family;
	int64_t tokens, clients, seed, first;
};

#define AT(f) offsetof(struct conf, f)
static const struct conf_entry entries[] = {
	{"server", CONF_STRING, AT(server), NULL, 0, 0, NULL, false, "", "http://HOST:PORT of redraft-serve, with capture on"},
	{"tokens", CONF_INT, AT(tokens), "100000", 1, 1e12, NULL, false, "tok", "end after so many tokens of questions and answers"},
	{"clients", CONF_INT, AT(clients), "8", 1, MAX_CLIENTS, NULL, false, "", "requests at a time"},
	{"seed", CONF_INT, AT(seed), "1", 0, 9007199254740991.0, NULL, false, "", "seed of every random choice"},
	{"first", CONF_INT, AT(first), "0", 0, 9007199254740991.0, NULL, false, "", "number of the first request: where an earlier run of this seed ended"},
	{"family", CONF_ENUM, AT(family), "smollm2", 0, 0, "smollm2|chatml", false, "", "the model's chat template"},
	{"texts", CONF_STRING, AT(texts), "", 0, 0, NULL, false, "", "file that takes questions and answers as JSON lines; empty = none"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program program = {
	.name = "redraft-learn bootstrap", .summary = "Has a model ask and answer itself through its server, so that records for a first draft come to be.",
	.entries = entries, .struct_size = sizeof(struct conf)};

static volatile sig_atomic_t stopped;

static void on_signal(int s)
{
	stopped = 1;
	(void)signal(s, SIG_DFL); /* again: at once, without the answers on their way */
}

struct session {
	const struct conf *c;
	struct ask_server server;
	FILE *texts;
	pthread_mutex_t lock;       /* of what follows */
	uint64_t next;
	int64_t asked, tokens, generated, failed, failed_running;
	struct errtext e;           /* the last failure */
};

/* The rest of the question in the model's words, malloc'd. */
static int write_question(struct session *s, const struct bootstrap_question *q, char **ret, struct errtext *e)
{
	json_t *body = json_pack("{s:s%,s:i,s:f,s:f,s:I}", "prompt", (const char *)q->prefix.data, q->prefix.len, "max_tokens", q->write_tokens, "temperature", q->write_temperature,
				 "top_p", 0.95, "seed", (json_int_t)q->seed);
	json_t *reply = NULL;
	int r = body ? ask_post(&s->server, "/v1/completions", "X-Redraft-Trace: off\r\n", body, TIMEOUT_S, &reply, e) : -ENOMEM;
	json_decref(body);
	if (r)
		return r;
	const char *text = json_string_value(json_object_get(json_array_get(json_object_get(reply, "choices"), 0), "text"));
	*ret = strdup(text ? text : "");
	json_decref(reply);
	return *ret ? 0 : -ENOMEM;
}

static int answer(struct session *s, const struct bootstrap_question *q, const struct buf *question, uint64_t i, json_t **ret, struct errtext *e)
{
	char headers[128];
	json_t *messages = json_array();
	if (q->system.len)
		(void)json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "system", "content", (const char *)q->system.data, q->system.len));
	(void)json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "user", "content", (const char *)question->data, question->len));
	json_t *body = json_pack("{s:o,s:i,s:f,s:f,s:I}", "messages", messages, "max_tokens", q->answer_tokens, "temperature", q->answer_temperature, "top_p", 0.95, "seed",
				 (json_int_t)q->seed);
	(void)snprintf(headers, sizeof headers, "X-Redraft-Domain: %s\r\nX-Redraft-Conversation: bootstrap-%" PRId64 "-%" PRIu64 "\r\n", q->domain, s->c->seed, i);
	int r = body ? ask_post(&s->server, "/v1/chat/completions", headers, body, TIMEOUT_S, ret, e) : -ENOMEM;
	json_decref(body);
	return r;
}

static void note(struct session *s, const struct bootstrap_question *q, const struct buf *question, json_t *reply)
{
	json_t *usage = json_object_get(reply, "usage");
	int64_t prompt = json_integer_value(json_object_get(usage, "prompt_tokens")), made = json_integer_value(json_object_get(usage, "completion_tokens"));
	s->asked++;
	s->failed_running = 0;
	s->tokens += prompt + made;
	s->generated += made;
	if (s->texts) {
		json_t *message = json_object_get(json_object_get(json_array_get(json_object_get(reply, "choices"), 0), "message"), "content");
		json_t *line = json_pack("{s:s,s:s%,s:O}", "domain", q->domain, "question", (const char *)question->data, question->len, "answer", message ? message : json_null());
		if (line)
			(void)json_dumpf(line, s->texts, JSON_COMPACT);
		(void)fputc('\n', s->texts);
		json_decref(line);
	}
}

/* Request i, from opening to answer. */
static int one(struct session *s, uint64_t i, struct errtext *e)
{
	struct bootstrap_question q = {0};
	struct buf question = BUF_INIT(1 << 20);
	char *written = NULL;
	json_t *reply = NULL;
	int r = bootstrap_question((enum bootstrap_family)s->c->family, (uint64_t)s->c->seed, i, &q);
	if (!r && q.write_tokens)
		r = write_question(s, &q, &written, e);
	if (!r)
		r = bootstrap_whole(&q, written ? written : "", &question);
	if (!r && question.len)
		r = answer(s, &q, &question, i, &reply, e);
	if (!r && reply) {
		(void)pthread_mutex_lock(&s->lock);
		note(s, &q, &question, reply);
		(void)pthread_mutex_unlock(&s->lock);
	}
	json_decref(reply);
	free(written);
	buf_done(&question);
	bootstrap_done(&q);
	return r;
}

static bool over(struct session *s)
{
	return stopped || s->tokens >= s->c->tokens || s->failed_running >= GIVE_UP_AFTER;
}

static void *client(void *arg)
{
	struct session *s = arg;
	for (;;) {
		struct errtext e = {""};
		(void)pthread_mutex_lock(&s->lock);
		bool end = over(s);
		uint64_t i = s->next;
		s->next += !end;
		(void)pthread_mutex_unlock(&s->lock);
		if (end)
			return NULL;
		int r = one(s, i, &e);
		if (!r)
			continue;
		(void)pthread_mutex_lock(&s->lock);
		s->failed++;
		s->failed_running++;
		s->e = e;
		(void)pthread_mutex_unlock(&s->lock);
		if (!stopped)
			(void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	}
}

static void watch(struct session *s)
{
	uint64_t began = clock_us();
	bool tty = isatty(2);
	for (int tick = 0;; tick++) {
		(void)nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
		(void)pthread_mutex_lock(&s->lock);
		bool end = over(s);
		double t = (double)(clock_us() - began) / 1e6, left = s->tokens ? t * (double)(s->c->tokens - s->tokens) / (double)s->tokens : 0;
		if (end || tick % (tty ? 5 : 150) == 0)
			fprintf(stderr, "%s%" PRId64 " of %" PRId64 " tokens (%" PRId64 " generated) in %" PRId64 " requests, %" PRId64 " failed  %.0f tok/s  ETA %.0f min  next %" PRIu64 "%s", tty ? "\r" : "",
				s->tokens, s->c->tokens, s->generated, s->asked, s->failed, (double)s->tokens / t, left > 0 ? left / 60 : 0, s->next, tty && !end ? "  " : "\n");
		(void)pthread_mutex_unlock(&s->lock);
		if (end)
			return;
	}
}

static int ask(struct session *s)
{
	pthread_t t[MAX_CLIENTS];
	int n = 0, r = 0;
	while (n < s->c->clients && !r) {
		r = -pthread_create(&t[n], NULL, client, s);
		n += !r;
	}
	if (n)
		watch(s);
	for (int i = 0; i < n; i++)
		(void)pthread_join(t[i], NULL);
	return n ? 0 : r;
}

int cmd_bootstrap(int argc, char **argv)
{
	struct conf c;
	struct session s = {.c = &c, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct errtext e = {""};
	int r = conf_load(&program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r > 0)
		return 0;
	if (r) {
		fprintf(stderr, "redraft-learn bootstrap: %s\n", e.text);
		return 2;
	}
	(void)signal(SIGINT, on_signal);
	(void)signal(SIGTERM, on_signal);
	s.next = (uint64_t)c.first;
	r = ask_parse(c.server, &s.server, &e);
	if (!r && *c.texts && !(s.texts = fopen(c.texts, "a")))
		r = errtext_set(&e, -EINVAL, "texts: %.150s: %s", c.texts, strerror(errno));
	if (!r)
		r = ask(&s);
	if (s.texts && fclose(s.texts) && !r)
		r = errtext_set(&e, -EIO, "texts: %.150s could not be written whole", c.texts);
	int code = r == -EINVAL ? 2 : r ? 1 : s.failed_running >= GIVE_UP_AFTER ? 3 : 0;
	if (!r && s.failed_running >= GIVE_UP_AFTER)
		e = s.e;
	if (code)
		fprintf(stderr, "redraft-learn bootstrap: %s\n", *e.text ? e.text : strerror(-r));
	conf_done(&program, &c);
	return code;
}
