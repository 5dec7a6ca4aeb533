/* load: a load generator for servers that speak OpenAI's chat API.
 *
 *   load --target 127.0.0.1:8080 --traffic agent --file prompts.jsonl --clients 8 --requests 40
 *   load --target ... --rate 2 --seconds 60                     an open loop, Poisson arrivals
 *   printf '%s\n' warmup A B B A | load --slices on ...         alternating arms: each line is run when it is read,
 *                                                               and answered with {"ended":LABEL}
 *
 * JSON lines on standard output, a table on standard error (report.h says what is what).
 * Exit 0 when all requests were answered, 1 when some failed, 2 usage.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/conf.h"
#include "tests/bench/load/report.h"

struct conf {
	char *target, *model, *bearer, *file, *domain, *times, *each, *label, *beside_file;
	int64_t clients, rounds, long_tokens, max_chars, requests, max_tokens, context, think_ms, seed, timeout_s, only_round;
	int64_t beside_long_tokens, beside_max_tokens;
	double rate, seconds, temperature, beside_rate;
	int traffic, arrivals, beside;
	bool unique, ignore_eos, token_ids, slices;
};

#define AT(field) offsetof(struct conf, field)
static const struct conf_entry entries[] = {
	{"target", CONF_STRING, AT(target), NULL, 0, 0, NULL, false, "", "Address and port of the server, numeric."},
	{"model", CONF_STRING, AT(model), "", 0, 0, NULL, false, "", "Sent as model; empty sends none."},
	{"bearer", CONF_STRING, AT(bearer), "", 0, 0, NULL, false, "", "API key; empty sends none."},
	{"clients", CONF_INT, AT(clients), "1", 0, 1024, NULL, false, "", "Closed loop of so many clients; 0 is an open loop."},
	{"rate", CONF_REAL, AT(rate), "0", 0, 10000, NULL, false, "/s", "Open loop: arrivals a second."},
	{"arrivals", CONF_ENUM, AT(arrivals), "poisson", 0, 0, "poisson|even", false, "", "Open loop: how they are spaced."},
	{"times", CONF_STRING, AT(times), "", 0, 0, NULL, false, "", "Open loop: a file of arrival times in seconds, replayed instead."},
	{"traffic", CONF_ENUM, AT(traffic), "prompts", 0, 0, TRAFFIC_KINDS, false, "", "What is asked."},
	{"file", CONF_STRING, AT(file), "", 0, 0, NULL, false, "", "Prompts as JSON lines, or ShareGPT's list for dialogues."},
	{"domain", CONF_STRING, AT(domain), "", 0, 0, NULL, false, "", "Only prompts of this domain."},
	{"rounds", CONF_INT, AT(rounds), "4", 1, 100, NULL, false, "", "Rounds of an agent or a dialogue, at most."},
	{"long_tokens", CONF_INT, AT(long_tokens), "4000", 1, 1000000, NULL, false, "tok", "About the length of a long prompt."},
	{"max_chars", CONF_INT, AT(max_chars), "4000", 1, 1000000, NULL, false, "", "Longer messages are left out."},
	{"requests", CONF_INT, AT(requests), "0", 0, 1000000, NULL, false, "", "Dialogues of a slice; 0 goes by seconds alone."},
	{"seconds", CONF_REAL, AT(seconds), "0", 0, 86400, NULL, false, "s", "No new dialogue after so long; 0 goes by requests alone."},
	{"max_tokens", CONF_INT, AT(max_tokens), "64", 1, 100000, NULL, false, "tok", "Of an answer."},
	{"context", CONF_INT, AT(context), "2048", 16, 10000000, NULL, false, "tok", "A dialogue ends before it outgrows this."},
	{"think_ms", CONF_INT, AT(think_ms), "0", 0, 600000, NULL, false, "ms", "A client's pause between rounds."},
	{"temperature", CONF_REAL, AT(temperature), "0", 0, 2, NULL, false, "", "0 is greedy."},
	{"seed", CONF_INT, AT(seed), "1", 0, 0, NULL, false, "", "Of order, arrivals and sampling."},
	{"unique", CONF_BOOL, AT(unique), "on", 0, 0, NULL, false, "", "A dialogue begins with words of its own, so only its own rounds share a prefix."},
	{"ignore_eos", CONF_BOOL, AT(ignore_eos), "on", 0, 0, NULL, false, "", "Every answer has max_tokens tokens."},
	{"token_ids", CONF_BOOL, AT(token_ids), "on", 0, 0, NULL, false, "", "Ask for token ids, so that a piece's tokens are known; off counts one a piece."},
	{"timeout_s", CONF_INT, AT(timeout_s), "120", 1, 86400, NULL, false, "s", "Silence after which a request has failed."},
	{"beside", CONF_ENUM, AT(beside), "off", 0, 0, "off|" TRAFFIC_KINDS, false, "", "An open loop of other traffic beside the clients, reported apart."},
	{"beside.file", CONF_STRING, AT(beside_file), "", 0, 0, NULL, false, "", "Its prompts; empty takes file."},
	{"beside.rate", CONF_REAL, AT(beside_rate), "0.5", 0, 10000, NULL, false, "/s", "Its arrivals a second."},
	{"beside.long_tokens", CONF_INT, AT(beside_long_tokens), "4000", 1, 1000000, NULL, false, "tok", "About the length of its long prompts."},
	{"beside.max_tokens", CONF_INT, AT(beside_max_tokens), "4", 1, 100000, NULL, false, "tok", "Of its answers."},
	{"slices", CONF_BOOL, AT(slices), "off", 0, 0, NULL, false, "", "Read labels from standard input, a slice each: LABEL [draft=off] [trace=off] [beside=off] [cold=on] [at=HOST:PORT]."},
	{"label", CONF_STRING, AT(label), "run", 0, 0, NULL, false, "", "The label, without slices."},
	{"only_round", CONF_INT, AT(only_round), "0", 0, 100, NULL, false, "", "Report only answers of this round of their dialogues; 0 is all."},
	{"each", CONF_STRING, AT(each), "", 0, 0, NULL, false, "", "Also write each request to this file, as JSON lines."},
	{NULL},
};
static const struct conf_program program = {
	.name = "load", .summary = "Loads a server of OpenAI's chat API and reports latencies and rates.",
	.entries = entries, .struct_size = sizeof(struct conf)};

static struct stream_options main_stream(const struct conf *c)
{
	return (struct stream_options){
		.traffic = {(enum traffic_kind)c->traffic, c->file, c->domain, (int)c->rounds, (int)c->long_tokens, (int)c->max_chars, (uint64_t)c->seed},
		.clients = (int)c->clients, .rate = c->rate, .even = c->arrivals == 1, .times = c->times, .requests = (size_t)c->requests,
		.seconds = c->seconds, .max_tokens = (int)c->max_tokens, .context = (int)c->context, .think_ms = (int)c->think_ms,
		.temperature = c->temperature, .unique = c->unique, .ignore_eos = c->ignore_eos, .token_ids = c->token_ids, .seed = (uint64_t)c->seed,
	};
}

static struct stream_options beside_stream(const struct conf *c)
{
	struct stream_options o = main_stream(c);

	o.traffic.kind = (enum traffic_kind)(c->beside - 1);
	o.traffic.file = *c->beside_file ? c->beside_file : c->file;
	o.traffic.long_tokens = (int)c->beside_long_tokens;
	o.traffic.max_chars = 1 << 24;
	o.clients = 0;
	o.rate = c->beside_rate;
	o.times = "";
	o.requests = 0;
	o.seconds = 0;
	o.max_tokens = (int)c->beside_max_tokens;
	o.context = 1 << 24;
	return o;
}

static int run_all(struct run *r, const struct conf *c, struct errtext *e)
{
	char line[256];
	int x = 0;

	if (!c->slices)
		return run_slice(r, c->label, e);
	while (x == 0 && fgets(line, sizeof line, stdin)) {
		x = run_slice(r, line, e);
		if (x == 0)
			printf("{\"ended\":\"%.*s\"}\n", (int)strcspn(line, " \t\n"), line);
		(void)fflush(stdout);
	}
	return x;
}

static int write_each(const struct run *r, const char *path, struct errtext *e)
{
	FILE *f = fopen(path, "we");
	int x;

	if (!f)
		return errtext_set(e, -errno, "%s cannot be written: %s", path, strerror(errno));
	x = report_each(r, f);
	if (fclose(f) != 0 || x < 0)
		return errtext_set(e, -EIO, "%s cannot be written", path);
	return 0;
}

static int go(struct conf *c, struct errtext *e)
{
	struct run r = {.main = main_stream(c), .beside = beside_stream(c), .has_beside = c->beside > 0};
	char host[64] = "";
	int x, failed = 0;

	r.to = (struct target){host, 0, (int)c->timeout_s, c->bearer, c->model};
	x = run_address(c->target, host, sizeof host, &r.to.port, e);
	if (x == 0 && c->requests == 0 && !(c->seconds > 0))
		x = errtext_set(e, -EINVAL, "say when to stop: --requests, --seconds or both");
	if (x == 0)
		x = run_init(&r, e);
	if (x == 0)
		x = run_all(&r, c, e);
	if (x == 0)
		failed = x = report_write(&r, (int)c->only_round, stdout, stderr);
	if (x >= 0 && *c->each)
		x = write_each(&r, c->each, e);
	run_done(&r);
	return x < 0 ? x : failed > 0;
}

int main(int argc, char **argv)
{
	struct conf c = {0};
	struct errtext e = {0};
	int r = conf_load(&program, argc, argv, &c, NULL, 0, NULL, &e);

	if (r > 0)
		return 0;
	(void)signal(SIGPIPE, SIG_IGN);
	if (r == 0)
		r = go(&c, &e);
	if (r < 0)
		fprintf(stderr, "load: %s\n", *e.text ? e.text : strerror(-r));
	conf_done(&program, &c);
	return r < 0 ? 2 : r;
}
