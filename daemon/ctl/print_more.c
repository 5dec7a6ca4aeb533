/* Replies that explain, compare and account for. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/ctl/print.h"
#include "daemon/ctl/table.h"

enum { WIDTH = 100 };

/* A paragraph, broken at blanks. */
static void paragraph(FILE *out, const char *text)
{
	int column = 0;

	for (const char *p = text; *p;) {
		size_t n = strcspn(p, " ");

		if (column && column + 1 + (int)n > WIDTH) {
			fputc('\n', out);
			column = 0;
		} else if (column) {
			fputc(' ', out);
			column++;
		}
		for (size_t i = 0; i < n; i++)
			fputc((unsigned char)p[i] < 32 ? '?' : p[i], out);
		column += (int)n;
		p += n + strspn(p + n, " ");
	}
	fputc('\n', out);
}

void print_explain(FILE *out, const json_t *params)
{
	const char *text = json_string_value(json_object_get(params, "text"));

	paragraph(out, text && *text ? text : "nothing is known of it");
}

static void print_value(FILE *out, const json_t *v)
{
	char *text = json_is_null(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));

	fprintf(out, "%.60s", text ? plain(text) : "-");
	free(text);
}

static void print_differences(FILE *out, const char *title, json_t *object)
{
	const char *key;
	json_t *pair;

	fprintf(out, "%s%s\n", title, json_object_size(object) ? "" : ": the same");
	json_object_foreach(object, key, pair)
	{
		fprintf(out, "  %-32s ", plain(key));
		print_value(out, json_array_get(pair, 0));
		fputs("  ->  ", out);
		print_value(out, json_array_get(pair, 1));
		fputc('\n', out);
	}
}

void print_diff(FILE *out, const json_t *params)
{
	json_t *w = json_object_get(params, "weights"), *t;
	size_t i;

	fprintf(out, "version %lld -> version %lld\n\n", num(params, "a"), num(params, "b"));
	print_differences(out, "manifest", json_object_get(params, "manifest"));
	print_differences(out, "config", json_object_get(params, "config"));
	print_differences(out, "verdict", json_object_get(params, "verdict"));
	if (json_is_true(json_object_get(w, "same")))
		fputs("weights: the same, byte for byte\n", out);
	else if (json_is_object(w))
		fprintf(out, "weights: apart by %.4g, %.3g %% of their length\n", json_number_value(json_object_get(w, "distance")),
			100 * json_number_value(json_object_get(w, "relative")));
	else
		fputs("weights: a file cannot be read\n", out);
	if (json_is_true(json_object_get(w, "same")))
		return;
	json_array_foreach(json_object_get(w, "tensors"), i, t)
		fprintf(out, "  %-40s %7.3f %%\n", plain(str(t, "name")), 100 * json_number_value(json_object_get(t, "relative")));
}

static void print_place(FILE *out, const json_t *from, const json_t *to)
{
	if (num(from, "live") != num(to, "live"))
		fprintf(out, ", live %lld -> %lld", num(from, "live"), num(to, "live"));
	if (num(from, "pin") != num(to, "pin"))
		fprintf(out, ", pin %lld -> %lld", num(from, "pin"), num(to, "pin"));
	if (json_is_true(json_object_get(from, "hold")) != json_is_true(json_object_get(to, "hold")))
		fprintf(out, ", hold %s", json_is_true(json_object_get(to, "hold")) ? "on" : "off");
}

void print_audit(FILE *out, const json_t *params)
{
	const json_t *list = json_object_get(params, "records"), *head = json_object_get(params, "head");

	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *r = json_array_get(list, i);
		const char *detail = str(r, "detail"), *why = str(r, "why"), *message = str(r, "message");

		fprintf(out, "%6lld  %.19s  %s", num(r, "seq"), str(r, "time"), plain(str(r, "what")));
		if (*detail != '-')
			fprintf(out, " of %s", plain(detail));
		fprintf(out, " by %s: %s", plain(str(r, "who")), plain(str(r, "result")));
		if (json_object_get(r, "from") && json_object_get(r, "to"))
			print_place(out, json_object_get(r, "from"), json_object_get(r, "to"));
		if (*message != '-')
			fprintf(out, ": %s", plain(message));
		if (*why != '-')
			fprintf(out, "; why: %s", plain(why));
		fputc('\n', out);
	}
	if (json_is_true(json_object_get(params, "whole")))
		fprintf(out, "the chain is whole: lines %lld to %lld in %lld files; head %s\n", num(params, "first"), num(head, "seq"), num(params, "files"),
			str(head, "hash"));
	else
		fprintf(out, "the chain DOES NOT FIT at %s (%lld such lines): somebody has changed it; compare with the topic redraft.audit\n",
			plain(str(params, "broken_at")), num(params, "broken"));
}

void print_topics(FILE *out, const json_t *params)
{
	const json_t *list = json_object_get(params, "topics");

	fprintf(out, "at %s\n", plain(str(params, "brokers")));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *t = json_array_get(list, i), *problems = json_object_get(t, "problems");
		bool exists = json_is_true(json_object_get(t, "exists"));

		fprintf(out, "%-20s ", plain(str(t, "topic")));
		if (exists)
			fprintf(out, "%s, %lld partitions, %lld copies", json_is_true(json_object_get(t, "made")) ? "made" : "there", num(t, "partitions"),
				num(t, "replication"));
		else
			fputs("missing", out);
		fprintf(out, "%s\n", exists && !json_array_size(problems) ? ", good" : "");
		for (size_t j = 0; j < json_array_size(problems); j++)
			fprintf(out, "  %s\n", plain(json_string_value(json_array_get(problems, j))));
	}
}

void print_replay(FILE *out, const json_t *params)
{
	static const char *const heads[] = {"DOMAIN", "REQUESTS", "ROUNDS", "ACCEPT LENGTH"};
	const json_t *list = json_object_get(params, "table");
	struct table t;

	fprintf(out, "version %lld on the newest %lld requests of the pool, chains of %lld\n", num(params, "version"), num(params, "requests"), num(params, "k"));
	if (table_init(&t, 4, "lrrr") < 0)
		return;
	table_heads(&t, heads);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *r = json_array_get(list, i);

		table_set(&t, 0, "%s", str(r, "domain"));
		table_set(&t, 1, "%lld", num(r, "requests"));
		table_set(&t, 2, "%lld", num(r, "rounds"));
		table_set(&t, 3, "%s", al(r, "accept_length"));
		table_next(&t);
	}
	table_print(&t, out);
}

void print_purge(FILE *out, const json_t *params)
{
	const char *kept = json_string_value(json_object_get(params, "kept"));

	fprintf(out, "%lld runs forgotten, %lld records (%lld bytes) wiped from the learner's pool\n", num(params, "runs"), num(params, "records"),
		num(params, "bytes"));
	if (kept)
		paragraph(out, kept);
}

/* A value as the configuration file writes it. */
static const char *config_value(const json_t *v)
{
	static char text[2][300];
	static int at;

	at = !at;
	if (json_is_string(v))
		return json_string_value(v);
	if (json_is_boolean(v))
		return json_is_true(v) ? "on" : "off";
	snprintf(text[at], sizeof text[at], json_is_integer(v) ? "%.0f" : "%g", json_number_value(v));
	return text[at];
}

void print_config(FILE *out, const json_t *params)
{
	const char *key;
	json_t *x;

	json_object_foreach(json_object_get(params, "config"), key, x)
	{
		const char *value = config_value(json_object_get(x, "value")), *def = str(x, "default"), *unit = str(x, "unit");

		fprintf(out, "%s = %s", plain(key), plain(value));
		if (*unit != '-')
			fprintf(out, " %s", unit);
		if (strcmp(value, *def == '-' && !def[1] ? "" : def) != 0)
			fprintf(out, "   (default %s)", *def ? plain(def) : "-");
		fputc('\n', out);
	}
}

void print_event(FILE *out, const json_t *event)
{
	fprintf(out, "%.19s  %-8s %s\n", str(event, "time"), plain(str(event, "kind")), plain(str(event, "text")));
}
