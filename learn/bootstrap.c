/* Questions for a first draft (learn/bootstrap.h).
 *
 * Three kinds, so that a draft meets prose, code and calls: chat (from nothing or from a first word), code (a
 * task's usual opening, then the model writes the function) and tools (a made-up list of functions as JSON in the
 * system message, a request that fits one of them most of the time). Temperatures vary from question to question.
 */
#include "learn/bootstrap.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mix.h"

#define COUNT(a) (sizeof(a) / sizeof (a)[0])

static const char SMOLLM2_SYSTEM[] = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
static const char TOOLS_SYSTEM[] =
	"You can call the functions below. Answer with the calls that serve the question, in the format "
	"[name1(param1=value1, param2=value2), name2(params)], and with nothing else. If none fits, or a required parameter is missing, say so.\n"
	"The functions, as JSON:\n";

static const char *const chat_openings[] = {
	"", "", "", "", "What", "How do I", "Explain", "Write", "Give me", "Why", "Summarize", "List", "Tell me about", "I", "Can you", "Describe", "Compare",
	"Is it", "My", "In", "When", "Who", "Rewrite the following text", "Translate", "Suggest", "Help me", "What are the", "Create", "Generate", "The",
};
static const char *const code_openings[] = {
	"Complete this function.\n```python\ndef", "Complete the following code.\n```python\ndef", "Write a Python function that",
	"Complete this function.\n```python\nfrom typing import List\n\n\ndef", "Explain step by step how this function works.\n```python\ndef",
	"Write tests with assert for this function.\n```python\ndef", "Write tests for the following function.\n```python\ndef", "Write a program in Python to",
	"Find the error in this function.\n```python\ndef", "Explain how to implement a function that", "Write a class in Python for", "Convert this function to JavaScript.\n```python\ndef",
	"Complete this function.\n```python\ndef is_", "Complete this function.\n```python\ndef count_", "Complete this function.\n```python\ndef get_",
	"Complete this function.\n```python\ndef find_", "Complete this function.\n```python\ndef sum_", "Complete this function.\n```python\ndef remove_",
	"Complete this function.\n```python\ndef sort_", "Complete this function.\n```python\ndef string_", "Write a Python function to check",
};

static const char *const verbs[] = {
	"get", "find", "search", "create", "update", "delete", "book", "list", "calculate", "convert", "send", "schedule", "estimate", "check", "compare", "translate",
	"play", "set", "analyze", "predict", "fetch", "add", "generate", "track", "retrieve", "compute",
};
static const char *const nouns[] = {
	"weather", "stock price", "flight", "hotel", "recipe", "user", "order", "invoice", "route", "distance", "temperature", "currency", "loan payment", "calendar event",
	"email", "song", "playlist", "movie", "restaurant", "area", "volume", "population", "translation", "exchange rate", "ticket", "news", "patient record", "sensor",
	"account balance", "budget", "game score", "crop yield", "dna sequence", "matrix", "triangle", "interest", "property", "museum", "concert", "car", "book",
	"phone number", "password", "file", "directory", "service", "cluster", "velocity", "force", "circuit", "molecule", "planet", "lawsuit", "probability",
};

struct parameter {
	const char *name, *type, *description, *values[6];
};
static const struct parameter parameters[] = {
	{"location", "string", "The city and state, for example San Francisco, CA.", {"Boston, MA", "Chicago, IL", "Austin, TX", "Seattle, WA", "Denver, CO", "Miami, FL"}},
	{"city", "string", "Name of the city.", {"Paris", "London", "Tokyo", "Berlin", "Sydney", "New York"}},
	{"country", "string", "The country to look in.", {"France", "Japan", "Brazil", "Canada", "India", "Germany"}},
	{"date", "string", "The date in the format YYYY-MM-DD.", {"2024-03-15", "2023-10-01", "2024-12-24", "2022-06-30", "2024-01-02", "2023-07-04"}},
	{"limit", "integer", "The maximum number of results to return. Default is 10.", {"5", "10", "3", "20", "50", "1"}},
	{"unit", "string", "The unit of the result.", {"metric", "imperial", "celsius", "fahrenheit", "kilometers", "miles"}},
	{"name", "string", "The full name.", {"John Smith", "Alice Brown", "Maria Garcia", "David Lee", "Emma Wilson", "Peter Jones"}},
	{"user_id", "integer", "The unique identifier of the user.", {"12345", "7890", "42", "1001", "56789", "314"}},
	{"amount", "float", "The amount of money.", {"250.00", "1000", "49.99", "5000", "120.5", "75"}},
	{"start_time", "string", "The start time.", {"9 am", "14:00", "noon", "8:30", "6 pm", "10:15"}},
	{"category", "string", "The category to search in.", {"electronics", "fiction", "Italian", "sports", "jazz", "science"}},
	{"language", "string", "The language to use.", {"Spanish", "English", "French", "Chinese", "German", "Korean"}},
	{"radius", "float", "The radius in meters.", {"5", "10", "2.5", "100", "7", "12"}},
	{"height", "integer", "The height of the object in meters.", {"10", "3", "25", "8", "100", "15"}},
	{"width", "integer", "The width of the object in meters.", {"5", "20", "4", "12", "7", "30"}},
	{"year", "integer", "The year of interest.", {"2020", "1999", "2015", "2024", "1945", "2008"}},
	{"include_details", "boolean", "Whether to include details. Default is false.", {"true", "false", "true", "false", "true", "false"}},
	{"email", "string", "The email address.", {"anna@example.com", "info@company.org", "bob@mail.com", "team@work.io", "sales@shop.net", "me@home.com"}},
	{"rate", "float", "The yearly rate in per cent.", {"3.5", "5", "0.04", "7.25", "2", "6.8"}},
	{"destination", "string", "Where the journey ends.", {"Los Angeles", "Rome", "Madrid", "Toronto", "Hong Kong", "Dubai"}},
	{"query", "string", "The text to search for.", {"climate change", "best pizza", "machine learning", "used cars", "World Cup", "solar panels"}},
	{"title", "string", "The title.", {"The Great Gatsby", "Inception", "Yesterday", "Team meeting", "Monthly report", "Hamlet"}},
	{"years", "integer", "The number of years.", {"5", "10", "30", "15", "2", "20"}},
	{"speed", "float", "The speed in km/h.", {"60", "120", "25", "300", "80", "45.5"}},
};

static uint64_t next(uint64_t *s)
{
	return mix64(*s += MIX_GOLDEN);
}

static size_t below(uint64_t *s, size_t n)
{
	return (size_t)(next(s) % n);
}

/* One made-up function: its JSON, and which parameters it took. */
struct function {
	const char *verb, *noun;
	int n;
	const struct parameter *p[4];
};

static void make_function(uint64_t *s, struct function *f)
{
	*f = (struct function){.verb = verbs[below(s, COUNT(verbs))], .noun = nouns[below(s, COUNT(nouns))], .n = 1 + (int)below(s, 4)};
	for (int i = 0; i < f->n; i++) {
		bool again;
		do {
			f->p[i] = &parameters[below(s, COUNT(parameters))];
			again = false;
			for (int k = 0; k < i; k++)
				again = again || f->p[k] == f->p[i];
		} while (again);
	}
}

static json_t *function_json(uint64_t *s, const struct function *f)
{
	char name[64], text[160];
	json_t *properties = json_object(), *required = json_array();
	int needed = 1 + (int)below(s, (size_t)f->n);
	(void)snprintf(name, sizeof name, "%s_%s", f->verb, f->noun);
	if (below(s, 4) == 0)
		(void)snprintf(name, sizeof name, "%s.%s", f->noun, f->verb);
	for (char *c = name; *c; c++)
		*c = *c == ' ' ? '_' : *c;
	(void)snprintf(text, sizeof text, "%c%s the %s for the given %s.", f->verb[0] - 'a' + 'A', f->verb + 1, f->noun, f->p[0]->name);
	for (int i = 0; i < f->n; i++) {
		(void)json_object_set_new(properties, f->p[i]->name, json_pack("{s:s,s:s}", "type", f->p[i]->type, "description", f->p[i]->description));
		if (i < needed)
			(void)json_array_append_new(required, json_string(f->p[i]->name));
	}
	return json_pack("{s:s,s:s,s:{s:s,s:o,s:o}}", "name", name, "description", text, "parameters", "type", "dict", "properties", properties, "required", required);
}

/* A request that f serves, in one of a few shapes; sometimes only begun, for the model to go on. */
static int tools_request(uint64_t *s, const struct function *f, struct bootstrap_question *q)
{
	static const char *const starts[] = {"%s the %s", "Can you %s the %s", "I want to %s the %s", "Please %s the %s", "I need you to %s the %s", "Could you %s a %s"};
	char text[96];
	int given = 1 + (int)below(s, (size_t)f->n), r;
	switch (below(s, 4)) {
	case 0:
		(void)snprintf(text, sizeof text, "What is the %s", f->noun);
		break;
	default: /* a literal format for each: the words are ours */
		(void)snprintf(text, sizeof text, starts[below(s, COUNT(starts))], f->verb, f->noun);
	}
	if (*text >= 'a' && *text <= 'z')
		*text = (char)(*text - 'a' + 'A');
	if ((r = buf_puts(&q->opening, text)))
		return r;
	if (below(s, 5) == 0) { /* the model knows how it goes on */
		q->write_tokens = 24;
		return buf_puts(&q->opening, " for");
	}
	for (int i = 0; i < given && !r; i++) {
		const char *label = f->p[i]->name, *value = f->p[i]->values[below(s, 6)];
		r = buf_printf(&q->opening, "%s %.*s %s", i == 0 ? " for" : i == given - 1 ? " and" : ",", (int)strcspn(label, "_"), label, value);
	}
	return r ? r : buf_puts(&q->opening, below(s, 3) ? "?" : ".");
}

static int tools(uint64_t *s, struct bootstrap_question *q)
{
	static const int how_many[] = {1, 1, 1, 2, 2, 3};
	int n = how_many[below(s, COUNT(how_many))], meant = (int)below(s, (size_t)n), r = 0;
	struct function f = {0}, wanted = {0};
	json_t *list = json_array();
	for (int i = 0; i < n; i++) {
		make_function(s, &f);
		if (i == meant)
			wanted = f;
		(void)json_array_append_new(list, function_json(s, &f));
	}
	char *text = json_dumps(list, 0);
	json_decref(list);
	if (!text)
		return -ENOMEM;
	r = buf_puts(&q->system, TOOLS_SYSTEM);
	if (!r)
		r = buf_puts(&q->system, text);
	free(text);
	q->domain = "tools";
	q->answer_tokens = 80;
	return r ? r : tools_request(s, &wanted, q);
}

static int code(uint64_t *s, struct bootstrap_question *q)
{
	static const int write[] = {40, 70, 100, 130};
	q->domain = "code";
	q->write_tokens = write[below(s, COUNT(write))];
	q->answer_tokens = 120;
	return buf_puts(&q->opening, code_openings[below(s, COUNT(code_openings))]);
}

static int chat(uint64_t *s, struct bootstrap_question *q)
{
	q->domain = "chat";
	q->write_tokens = 60;
	q->answer_tokens = 120;
	return buf_puts(&q->opening, chat_openings[below(s, COUNT(chat_openings))]);
}

void bootstrap_done(struct bootstrap_question *q)
{
	buf_done(&q->system);
	buf_done(&q->opening);
	buf_done(&q->prefix);
}

static int begun(enum bootstrap_family family, struct bootstrap_question *q)
{
	struct buf *b = &q->prefix;
	int r = 0;
	if (q->system.len)
		r = buf_printf(b, "<|im_start|>system\n%.*s<|im_end|>\n", (int)q->system.len, (const char *)q->system.data);
	else if (family == BOOTSTRAP_SMOLLM2)
		r = buf_printf(b, "<|im_start|>system\n%s<|im_end|>\n", SMOLLM2_SYSTEM);
	return r ? r : buf_printf(b, "<|im_start|>user\n%.*s", (int)q->opening.len, q->opening.len ? (const char *)q->opening.data : "");
}

int bootstrap_question(enum bootstrap_family family, uint64_t seed, uint64_t i, struct bootstrap_question *ret)
{
	static const double hot[] = {0.7, 0.9, 1.0, 1.1}, cool[] = {0, 0, 0, 0.7};
	struct bootstrap_question q = {.system = BUF_INIT(1 << 16), .opening = BUF_INIT(1 << 16), .prefix = BUF_INIT(1 << 17)};
	uint64_t s = seed * 0xd1342543de82ef95u + i;
	size_t kind = below(&s, 100);
	q.write_temperature = hot[below(&s, COUNT(hot))];
	q.answer_temperature = cool[below(&s, COUNT(cool))];
	q.seed = next(&s) >> 33;
	int r = kind < 40 ? tools(&s, &q) : kind < 75 ? code(&s, &q) : chat(&s, &q);
	if (!r)
		r = begun(family, &q);
	if (r) {
		bootstrap_done(&q);
		return r;
	}
	*ret = q;
	return 0;
}

int bootstrap_whole(const struct bootstrap_question *q, const char *written, struct buf *out)
{
	int fences = 0, r = q->opening.len ? buf_append(out, q->opening.data, q->opening.len) : 0;
	if (!r)
		r = buf_puts(out, written);
	for (size_t i = 0; !r && i + 3 <= out->len; i++)
		if (memcmp(out->data + i, "```", 3) == 0) {
			fences++;
			i += 2;
		}
	return r ? r : fences % 2 ? buf_puts(out, "\n```") : 0;
}
