/* State, versions, drift: what is asked for most. The rest is in print_more.c. */
#include "daemon/ctl/print.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/ctl/table.h"

static void print_version_name(FILE *out, const char *name, long long n)
{
	if (n)
		fprintf(out, "%s %lld", name, n);
	else
		fprintf(out, "%s none", name);
}

static void print_domains(FILE *out, const json_t *domains)
{
	static const char *const heads[] = {"DOMAIN", "VERSION", "ACCEPT LENGTH", "LAST 64", "REQUESTS", "ROUNDS"};
	struct table t;
	const char *name, *version;
	json_t *d, *v;

	if (!json_object_size(domains) || table_init(&t, 6, "lrrrrr") < 0)
		return;
	table_heads(&t, heads);
	json_object_foreach((json_t *)(uintptr_t)domains, name, d)
	{
		json_object_foreach(json_object_get(d, "versions"), version, v)
		{
			table_set(&t, 0, "%s", name);
			table_set(&t, 1, "%s", strcmp(version, "0") ? version : "plain");
			table_set(&t, 2, "%s", al(v, "accept_length"));
			table_set(&t, 3, "%s", al(v, "recent"));
			table_set(&t, 4, "%lld", num(v, "requests"));
			table_set(&t, 5, "%lld", num(v, "rounds"));
			table_next(&t);
		}
	}
	fputc('\n', out);
	table_print(&t, out);
}

/* How far the two readers are behind, and what Kafka last complained of. */
static void print_records(FILE *out, const json_t *learn, const json_t *watch)
{
	const json_t *r = json_object_get(learn, "records");
	const char *why = str(r, "trouble");

	if (json_is_true(json_object_get(learn, "up")) && r)
		fprintf(out, "traces   %lld records behind, %.0f s%s%s\n", num(r, "lag"), json_number_value(json_object_get(r, "lag_s")), *why == '-' ? "" : "; ",
			*why == '-' ? "" : plain(why));
	if (!json_is_true(json_object_get(watch, "on")))
		return;
	why = str(watch, "trouble");
	fprintf(out, "rounds   %s", json_is_true(json_object_get(watch, "up")) ? "" : "Kafka does not answer; ");
	if (num(watch, "lag") >= 0)
		fprintf(out, "%lld records behind, %.0f s", num(watch, "lag"), json_number_value(json_object_get(watch, "lag_s")));
	else
		fputs("nothing read yet", out);
	fprintf(out, "%s%s\n", *why == '-' ? "" : "; ", *why == '-' ? "" : plain(why));
}

/* Older requests that no version was trained on, by domain. */
static void print_pinned(FILE *out, json_t *pinned)
{
	const char *name, *between = "pinned   ";
	json_t *n;

	json_object_foreach(pinned, name, n)
	{
		fprintf(out, "%s%lld of %s", between, (long long)json_integer_value(n), plain(name));
		between = ", ";
	}
	if (json_object_size(pinned))
		fputs(": older requests, never trained, that candidates are judged on\n", out);
}

void print_status(FILE *out, const json_t *params)
{
	const json_t *serve = json_object_get(params, "serve"), *learn = json_object_get(params, "learn");
	const json_t *canary = json_object_get(params, "canary"), *moving = json_object_get(params, "moving"), *fleet = json_object_get(params, "fleet");
	bool held = json_is_true(json_object_get(params, "hold"));

	fputs("drafts   ", out);
	print_version_name(out, "live", num(params, "live"));
	print_version_name(out, ", previous", num(params, "previous"));
	print_version_name(out, ", base", num(params, "base"));
	fprintf(out, ", generation %lld\n", num(params, "generation"));
	if (num(params, "pin") || held)
		fprintf(out, "rollout  %s%s\n", num(params, "pin") ? "live is pinned" : "",
			held ? (num(params, "pin") ? ", promotions are held" : "promotions are held (release or promote ends that)") : "");
	if (json_is_true(json_object_get(params, "paused")))
		fputs("rollout  is paused: candidates wait, unjudged (resume ends that)\n", out);
	if (str(moving, "phase")[0] != '-')
		fprintf(out, "moving   version %lld: %s for %.0f s (%s)\n", num(moving, "version"), str(moving, "phase"),
			json_number_value(json_object_get(moving, "since_s")), str(moving, "why"));
	if (str(fleet, "role")[0] != '-')
		fprintf(out, "fleet    %s, epoch %lld, led by %s at version %lld%s%s%s\n", str(fleet, "role"), num(fleet, "epoch"), plain(str(fleet, "leader")), num(fleet, "live"),
			json_is_true(json_object_get(fleet, "behind")) ? ", not there yet" : "", *str(fleet, "trouble") == '-' ? "" : "; ",
			*str(fleet, "trouble") == '-' ? "" : plain(str(fleet, "trouble")));
	if (num(canary, "version"))
		fprintf(out, "canary   version %lld, %.4g %% of the conversations since %s: %s\n", num(canary, "version"),
			(double)num(canary, "permille") / 10, str(canary, "since"), plain(str(canary, "seen")));
	if (json_is_true(json_object_get(params, "frozen")))
		fputs("freeze   nothing goes live now (rollout.freeze)\n", out);
	if (json_is_true(json_object_get(serve, "up")))
		fprintf(out, "server   up, %s, live %lld, %lld running, %lld waiting\n", str(serve, "model"), num(serve, "live"),
			num(serve, "running"), num(serve, "waiting"));
	else
		fputs("server   absent\n", out);
	if (json_is_true(json_object_get(learn, "up")))
		fprintf(out, "learner  up, step %lld, %lld tokens trained, loss %s%s\n", num(learn, "step"), num(learn, "trained_tokens"),
			al(learn, "loss"), json_is_true(json_object_get(learn, "paused")) ? ", paused" : "");
	else
		fputs("learner  absent\n", out);
	print_pinned(out, json_object_get(learn, "pinned"));
	print_records(out, learn, json_object_get(params, "watch"));
	if (num(json_object_get(params, "audit"), "unwritten") || num(json_object_get(params, "audit"), "lost"))
		fprintf(out, "audit    %lld lines wait for room on the disk, %lld found none\n", num(json_object_get(params, "audit"), "unwritten"),
			num(json_object_get(params, "audit"), "lost"));
	if (str(json_object_get(params, "audit"), "broken")[0] != '-')
		fprintf(out, "audit    the chain does not fit: %s\n", plain(str(json_object_get(params, "audit"), "broken")));
	fprintf(out, "target   %.16s\nlast     %s\n", str(params, "target_fp"), plain(str(params, "last_event")));
	print_domains(out, json_object_get(params, "domains"));
}

void print_versions(FILE *out, const json_t *params)
{
	static const char *const heads[] = {"VERSION", "STATE", "PARENT", "CREATED", "GATE AL", "AGAINST", "REASON"};
	const json_t *list = json_object_get(params, "versions");
	struct table t;

	if (!json_array_size(list)) {
		fputs("no versions yet\n", out);
		return;
	}
	if (table_init(&t, 7, "rlrlrrl") < 0)
		return;
	table_heads(&t, heads);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i), *verdict = json_object_get(v, "verdict");

		table_set(&t, 0, "%lld", num(v, "version"));
		table_set(&t, 1, "%s", str(v, "state"));
		table_set(&t, 2, num(v, "parent") ? "%lld" : "-", num(v, "parent"));
		table_set(&t, 3, "%.19s", str(v, "created"));
		table_set(&t, 4, "%s", al(verdict, "candidate_al"));
		table_set(&t, 5, "%s", al(verdict, "live_al"));
		table_set(&t, 6, "%.100s", strcmp(str(v, "reason"), "-") ? str(v, "reason") : "");
		table_next(&t);
	}
	table_print(&t, out);
}

static void print_parts(FILE *out, json_t *parts, const char *what)
{
	const char *name;
	json_t *d;

	json_object_foreach(parts, name, d)
		fprintf(out, "          %-12s %s against %s on %lld %s (between %s and %s)\n", plain(name), al(d, "candidate_al"),
			al(d, "live_al"), num(d, "requests"), what, al(d, "lower"), al(d, "upper"));
}

/* The same older requests under the last version that was judged while they were asked. */
static void print_before(FILE *out, json_t *pinned)
{
	const char *name;
	json_t *d, *before;

	json_object_foreach(pinned, name, d)
		if ((before = json_object_get(d, "before")))
			fprintf(out, "          %-12s %s under version %lld on the same (difference between %s and %s)\n", plain(name), al(before, "accept_length"),
				num(before, "version"), al(before, "lower"), al(before, "upper"));
}

static void print_gate(FILE *out, const json_t *verdict)
{
	if (!json_is_object(verdict)) {
		fputs("gate      no verdict\n", out);
		return;
	}
	fprintf(out, "gate      %s against version %lld: %s\n", str(verdict, "verdict"), num(verdict, "against"), plain(str(verdict, "reason")));
	print_parts(out, json_object_get(verdict, "domains"), "requests");
	print_parts(out, json_object_get(verdict, "pinned"), "pinned older ones");
	print_before(out, json_object_get(verdict, "pinned"));
}

void print_show(FILE *out, const json_t *params)
{
	const json_t *v = json_object_get(params, "version"), *m = json_object_get(params, "manifest"), *x;
	const char *key;

	fprintf(out, "version   %lld, %s%s%s\n", num(v, "version"), str(v, "state"), strcmp(str(v, "reason"), "-") ? ": " : "",
		strcmp(str(v, "reason"), "-") ? plain(str(v, "reason")) : "");
	fprintf(out, "parent    %lld\ncreated   %s\nweights   %s\ntarget    %s\n", num(v, "parent"), str(v, "created"),
		str(v, "weights_sha"), str(m, "target_fp"));
	print_gate(out, json_object_get(params, "verdict"));
	json_object_foreach(json_object_get(m, "training"), key, x)
	{
		char *text = json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));

		fprintf(out, "training  %s %s\n", plain(key), text ? text : "-");
		free(text);
	}
}

void print_moved(FILE *out, const json_t *params)
{
	print_version_name(out, "live", num(params, "live"));
	print_version_name(out, ", previous", num(params, "previous"));
	fprintf(out, ", generation %lld", num(params, "generation"));
	if (num(params, "quarantined"))
		fprintf(out, "; version %lld is quarantined", num(params, "quarantined"));
	fputc('\n', out);
}

void print_pin(FILE *out, const json_t *params)
{
	if (num(params, "pin"))
		fprintf(out, "version %lld is pinned\n", num(params, "pin"));
	else
		fputs("nothing is pinned\n", out);
}

void print_done(FILE *out, const json_t *params)
{
	fprintf(out, "done, generation %lld\n", num(params, "generation"));
}

void print_probe(FILE *out, const json_t *params)
{
	fprintf(out, "%s\n", str(params, "text"));
}

void print_drift(FILE *out, const json_t *params)
{
	static const char *const heads[] = {"DOMAIN", "CONTEXT", "VERSION", "REQUESTS", "MEAN", "RECENT", "P50", "P95", "ALARM"};
	static const char *const levels[] = {"no drift", "drift in one stream", "drift in several streams", "drift in most of the traffic"};
	const json_t *list = json_object_get(params, "streams");
	long long level = num(params, "level");
	struct table t;

	fprintf(out, "%s\n", levels[level < 0 || level > 3 ? 3 : level]);
	if (str(params, "decay")[0] != '-')
		fprintf(out, "%s\n", plain(str(params, "decay")));
	if (!json_array_size(list) || table_init(&t, 9, "lrrrrrrrl") < 0)
		return;
	table_heads(&t, heads);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *s = json_array_get(list, i);

		table_set(&t, 0, "%s", str(s, "domain"));
		table_set(&t, 1, "<=%lld", 128ll << (num(s, "context") + 1));
		table_set(&t, 2, "%lld", num(s, "version"));
		table_set(&t, 3, "%lld", num(s, "requests"));
		table_set(&t, 4, "%s", al(s, "mean"));
		table_set(&t, 5, "%s", al(s, "recent"));
		table_set(&t, 6, "%s", al(s, "p50"));
		table_set(&t, 7, "%s", al(s, "p95"));
		table_set(&t, 8, "%s", json_is_true(json_object_get(s, "alarm")) ? "fallen" : "");
		table_next(&t);
	}
	table_print(&t, out);
}
