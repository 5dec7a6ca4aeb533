/* Dialogues are all made at the start (at most MAX_DIALOGUES), so that nothing is read or parsed
 * while times are taken. */
#include "tests/bench/load/traffic.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/buf.h"
#include "tests/bench/load/arrivals.h"
#include "tests/bench/load/json_list.h"

enum { MAX_DIALOGUES = 4000, MAX_SHARED = 600, MAX_ITEM = 1 << 22, N_LONG = 64 };

static json_t *message(const char *role, const char *content)
{
	return json_pack("{s:s,s:s}", "role", role, "content", content);
}

/* Takes over the reference to rounds. */
static int add(struct traffic *t, const char *name, const char *domain, json_t *rounds)
{
	struct dialogue *grown = t->n < MAX_DIALOGUES && rounds ? realloc(t->d, (t->n + 1) * sizeof *grown) : NULL;

	if (!grown) {
		json_decref(rounds);
		return -ENOMEM;
	}
	t->d = grown;
	grown += t->n++;
	*grown = (struct dialogue){.rounds = rounds};
	(void)snprintf(grown->name, sizeof grown->name, "%s", name);
	(void)snprintf(grown->domain, sizeof grown->domain, "%s", domain);
	return 0;
}

static size_t longest(const json_t *messages)
{
	size_t at, n = 0;
	json_t *m;

	json_array_foreach(messages, at, m)
		if (json_string_length(json_object_get(m, "content")) > n)
			n = json_string_length(json_object_get(m, "content"));
	return n;
}

static int read_prompts(struct traffic *t, const struct traffic_options *o, const char *domain, struct errtext *e)
{
	FILE *f = fopen(o->file, "re");
	char *line = NULL;
	size_t cap = 0;
	int r = 0;

	if (!f)
		return errtext_set(e, -errno, "%s cannot be opened: %s (deploy/demo/prompts.py --jsonl writes one)", o->file, strerror(errno));
	for (long at = 1; r == 0 && getline(&line, &cap, f) > 0; at++) {
		json_t *j = json_loads(line, 0, NULL), *messages = json_object_get(j, "messages");
		const char *name = json_string_value(json_object_get(j, "name")), *of = json_string_value(json_object_get(j, "domain"));

		if (!name || !of || json_array_size(messages) == 0)
			r = errtext_set(e, -EINVAL, "%s, line %ld: no object with name, domain and messages", o->file, at);
		else if ((!*domain || strcmp(of, domain) == 0) && longest(messages) <= (size_t)o->max_chars && t->n < MAX_DIALOGUES)
			r = add(t, name, of, json_pack("[O]", messages));
		json_decref(j);
	}
	free(line);
	(void)fclose(f);
	return r;
}

/* What a tool might answer: a JSON object of a few dozen to a few hundred tokens. */
static json_t *tool_result(struct rng *rng)
{
	static const char *const keys[] = {"name", "price", "status", "city", "count", "score", "date", "owner", "unit", "total"};
	static const char *const words[] = {"ready", "north", "Berlin", "open", "metric", "monthly", "Lisbon", "closed", "late", "basic"};
	json_t *items = json_array();

	for (size_t i = 0, n = 2 + rng_below(rng, 6); i < n; i++) {
		json_t *item = json_object();
		for (int k = 0; k < 5; k++) {
			const char *key = keys[rng_below(rng, 10)];
			json_object_set_new(item, key, rng_unit(rng) < .5 ? json_string(words[rng_below(rng, 10)]) : json_integer((json_int_t)rng_below(rng, 5000)));
		}
		json_array_append_new(items, item);
	}
	return json_pack("{s:I,s:s,s:o}", "call", (json_int_t)rng_below(rng, 100000), "status", "success", "result", items);
}

static json_t *agent_round(struct rng *rng)
{
	static const char *const asks[] = {
		"Which entry has the highest value? Then call the function again for that one.",
		"Summarise the result in one sentence and propose the next call.",
		"One value looks wrong. Say which, and call the function with corrected parameters.",
		"Do the same for the city of Lisbon.",
		"Write the result as a short list.",
	};
	json_t *result = tool_result(rng);
	char *text = json_dumps(result, JSON_COMPACT);
	json_t *round = json_pack("[o,o]", message("tool", text ? text : "{}"), message("user", asks[rng_below(rng, 5)]));

	json_decref(result);
	free(text);
	return round;
}

static int make_agents(struct traffic *t, const struct traffic_options *o, struct errtext *e)
{
	int r = read_prompts(t, o, "tools", e);
	struct rng rng = {o->seed ^ 0xa6e47};

	for (size_t i = 0; r == 0 && i < t->n; i++)
		for (int k = 1; r == 0 && k < o->rounds; k++)
			if (json_array_append_new(t->d[i].rounds, agent_round(&rng)) < 0)
				r = -ENOMEM;
	return r;
}

/* The human's turns of one ShareGPT item, or NULL when it is not usable. */
static json_t *human_rounds(const json_t *item, const struct traffic_options *o)
{
	json_t *turns = json_object_get(item, "conversations"), *rounds = json_array(), *turn;
	size_t at;

	json_array_foreach(turns, at, turn) {
		const char *from = json_string_value(json_object_get(turn, "from"));
		json_t *value = json_object_get(turn, "value");
		if (!from || strcmp(from, "human") != 0)
			continue;
		if (json_string_length(value) == 0 || json_string_length(value) > (size_t)o->max_chars || json_array_size(rounds) >= (size_t)o->rounds)
			break;
		json_array_append_new(rounds, json_pack("[o]", message("user", json_string_value(value))));
	}
	if (json_array_size(rounds) == 0) {
		json_decref(rounds);
		return NULL;
	}
	return rounds;
}

static int read_dialogues(struct traffic *t, const struct traffic_options *o, struct errtext *e)
{
	struct json_list *l = NULL;
	json_t *item = NULL;
	int r = json_list_open(o->file, MAX_ITEM, &l, e);

	while (r == 0 && t->n < MAX_SHARED && (r = json_list_next(l, &item, e)) == 0) {
		const char *id = json_string_value(json_object_get(item, "id"));
		json_t *rounds = human_rounds(item, o);
		if (rounds)
			r = add(t, id ? id : "dialogue", "chat", rounds);
		json_decref(item);
	}
	json_list_close(l);
	return r < 0 ? r : 0; /* the list's end, or its cut: what came is whole */
}

static int make_long(struct traffic *t, const struct traffic_options *o)
{
	static const char *const words[] = {"the", "server", "reads", "a", "question", "and", "writes", "its", "answer", "one", "word", "after", "another",
					    "while", "many", "people", "wait", "for", "their", "turn", "in", "this", "long", "house", "of", "paper"};
	struct rng rng = {o->seed ^ 0x10e6};
	struct buf b = BUF_INIT(1 << 24);
	int r = 0;

	for (int i = 0; r == 0 && i < N_LONG; i++) {
		char name[32];
		buf_clear(&b);
		r = buf_printf(&b, "Document %d.", i);
		for (int k = 0; r == 0 && k < o->long_tokens; k++)
			r = buf_printf(&b, " %s", words[rng_below(&rng, sizeof words / sizeof *words)]);
		if (r == 0)
			r = buf_append(&b, "\nWhat is it about?", sizeof "\nWhat is it about?");
		(void)snprintf(name, sizeof name, "long-%d", i);
		if (r == 0)
			r = add(t, name, "other", json_pack("[[o]]", message("user", (char *)b.data)));
	}
	buf_done(&b);
	return r;
}

static void shuffle(struct traffic *t, uint64_t seed)
{
	struct rng rng = {seed};

	for (size_t i = t->n; i > 1; i--) {
		size_t k = rng_below(&rng, i);
		struct dialogue d = t->d[i - 1];
		t->d[i - 1] = t->d[k];
		t->d[k] = d;
	}
}

int traffic_init(struct traffic *t, const struct traffic_options *o, struct errtext *e)
{
	int r = 0;

	*t = (struct traffic){0};
	switch (o->kind) {
	case TRAFFIC_PROMPTS:
		r = read_prompts(t, o, o->domain, e);
		break;
	case TRAFFIC_AGENT:
		r = make_agents(t, o, e);
		break;
	case TRAFFIC_DIALOGUES:
		r = read_dialogues(t, o, e);
		break;
	case TRAFFIC_LONG:
		r = make_long(t, o);
		break;
	}
	if (r == 0 && t->n == 0)
		r = errtext_set(e, -EINVAL, "%s holds nothing of this kind (messages of at most %d characters)", o->file, o->max_chars);
	else if (r == -ENOMEM)
		r = errtext_set(e, r, "out of memory while making the traffic");
	if (r < 0)
		traffic_done(t);
	else
		shuffle(t, o->seed);
	return r;
}

void traffic_done(struct traffic *t)
{
	for (size_t i = 0; i < t->n; i++)
		json_decref(t->d[i].rounds);
	free(t->d);
	*t = (struct traffic){0};
}

const struct dialogue *traffic_at(const struct traffic *t, size_t i)
{
	return &t->d[i % t->n];
}
