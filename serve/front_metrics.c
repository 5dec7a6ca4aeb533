/* Series are made at start; those by version and domain when first used, and retired when
 * their version has left its slot. Totals that the engine keeps are copied when
 * somebody asks, so the engine's thread knows nothing of metrics.
 */
#include "serve/front_metrics.h"
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/metrics.h"

/* by version: the controller's */
#define DEPTH    "redraft_draft_depth"
#define NODES    "redraft_draft_nodes"
#define EXPECTED "redraft_draft_accept_length_expected"
#define MEASURED "redraft_draft_accept_length_measured"

struct front_metrics {
	struct metrics *m;
	char labels[160];
	struct metric *prefix_queries, *prefix_hits, *preemptions, *evictions, *kv_usage, *kv_cached;
	struct metric *running, *waiting, *prompt, *generation;
	struct metric *ttft, *tpot, *itl, *request_tpot, *e2e, *prompt_tokens, *generated_tokens, *n, *max_tokens;
	struct metric *drafts, *draft_tokens, *accepted, *accepted_at[ENGINE_MAX_K], *proposed_at[ENGINE_MAX_K];
	struct metric *live, *previous, *draft_k, *round_p50, *round_p95, *max_gap;
	struct metric *records, *bytes, *delivered, *rounds, *traced, *skipped, *dropped[4];
	struct metric *connections, *bodies, *unread, *heap_used, *heap_free;
};

/* vLLM's edges and more between them: a step is at most a third, about a tenth where it matters, so that P95 and P99
 * can be read off. */
static const double latency_edges[] = {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14,
				       0.16, 0.18, 0.2, 0.225, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.75, 0.85, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3,
				       3.5, 4, 5, 6, 7.5, 10, 12.5, 15, 20, 30, 40, 60, 80, 120, 160, 320, 640, 2560};
static const double token_edges[] = {0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.0115, 0.013, 0.015, 0.0175, 0.02, 0.0225,
				     0.025, 0.0275, 0.03, 0.0325, 0.035, 0.0375, 0.04, 0.045, 0.05, 0.055, 0.06, 0.065, 0.07, 0.075, 0.08, 0.09, 0.1,
				     0.115, 0.13, 0.15, 0.175, 0.2, 0.225, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 1, 1.5, 2.5, 5, 7.5, 10, 20, 40, 80};
static const double count_edges[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
static const double n_edges[] = {1, 2, 5, 10, 20};

/* by version and domain */
static const char ROUNDS[] = "redraft_draft_rounds_total", PROPOSED[] = "redraft_draft_proposed_total", ACCEPTED[] = "redraft_draft_accepted_total",
		  LENGTH[] = "redraft_accept_length";

#define N_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* A label value: quotes, backslashes and controls do not survive. */
static void clean(const char *in, char *out, size_t size)
{
	size_t n = 0;

	for (; *in && n + 1 < size; in++)
		if ((unsigned char)*in >= 0x20 && *in != '"' && *in != '\\')
			out[n++] = *in;
	out[n] = 0;
}

static void make_requests(struct front_metrics *f)
{
	const char *l = f->labels;

	f->running = metrics_gauge(f->m, "vllm:num_requests_running", l, "Requests being decoded.");
	f->waiting = metrics_gauge(f->m, "vllm:num_requests_waiting", l, "Requests waiting for a place.");
	f->prompt = metrics_counter(f->m, "vllm:prompt_tokens_total", l, "Prompt tokens processed.");
	f->generation = metrics_counter(f->m, "vllm:generation_tokens_total", l, "Tokens generated.");
	f->prefix_queries = metrics_counter(f->m, "vllm:prefix_cache_queries_total", l, "Prompt tokens of requests that began.");
	f->prefix_hits = metrics_counter(f->m, "vllm:prefix_cache_hits_total", l, "Those of them that were not computed again.");
	f->preemptions = metrics_counter(f->m, "vllm:num_preemptions_total", l, "Requests that lost their pages and were recomputed.");
	f->kv_usage = metrics_gauge(f->m, "vllm:kv_cache_usage_perc", l, "Share of the pages that requests hold; 1 = all.");
	f->kv_cached = metrics_gauge(f->m, "redraft_prefix_pages", NULL, "Pages kept for prefixes that no request holds.");
	f->evictions = metrics_counter(f->m, "redraft_prefix_evictions_total", NULL, "Pages of kept prefixes thrown out for others.");
	f->ttft = metrics_histogram(f->m, "vllm:time_to_first_token_seconds", l, "From request to first token.", latency_edges, N_OF(latency_edges));
	f->request_tpot = metrics_histogram(f->m, "vllm:request_time_per_output_token_seconds", l, "Mean time per token after the first, of a request.",
					    token_edges, N_OF(token_edges));
	f->prompt_tokens = metrics_histogram(f->m, "vllm:request_prompt_tokens", l, "Prompt tokens of a request.", count_edges, N_OF(count_edges));
	f->generated_tokens = metrics_histogram(f->m, "vllm:request_generation_tokens", l, "Tokens generated for a request.", count_edges, N_OF(count_edges));
	f->n = metrics_histogram(f->m, "vllm:request_params_n", l, "n of a request.", n_edges, N_OF(n_edges));
	f->max_tokens = metrics_histogram(f->m, "vllm:request_params_max_tokens", l, "max_tokens of a request that names it.", count_edges, N_OF(count_edges));
	f->tpot = metrics_histogram(f->m, "vllm:time_per_output_token_seconds", l, "Time per token after the first.", token_edges, N_OF(token_edges));
	f->itl = metrics_histogram(f->m, "vllm:inter_token_latency_seconds", l, "Time per token after the first.", token_edges, N_OF(token_edges));
	f->e2e = metrics_histogram(f->m, "vllm:e2e_request_latency_seconds", l, "From request to its end.", latency_edges, N_OF(latency_edges));
}

static void make_drafts(struct front_metrics *f)
{
	const char *l = f->labels;
	char at[200];

	f->drafts = metrics_counter(f->m, "vllm:spec_decode_num_drafts_total", l, "Rounds that proposed.");
	f->draft_tokens = metrics_counter(f->m, "vllm:spec_decode_num_draft_tokens_total", l, "Tokens proposed.");
	f->accepted = metrics_counter(f->m, "vllm:spec_decode_num_accepted_tokens_total", l, "Proposals accepted.");
	for (int i = 0; i < ENGINE_MAX_K; i++) {
		(void)snprintf(at, sizeof at, "%s,position=\"%d\"", l, i);
		f->accepted_at[i] = metrics_counter(f->m, "vllm:spec_decode_num_accepted_tokens_per_pos_total", at, "Proposals accepted, by place.");
		(void)snprintf(at, sizeof at, "position=\"%d\"", i);
		f->proposed_at[i] = metrics_counter(f->m, "redraft_proposed_per_pos_total", at, "Tokens proposed, by place.");
	}
	f->live = metrics_gauge(f->m, "redraft_live_version", NULL, "Version that new requests draft with; 0 = none.");
	f->previous = metrics_gauge(f->m, "redraft_previous_version", NULL, "Version that a rollback goes to; 0 = none.");
	f->draft_k = metrics_gauge(f->m, "redraft_draft_k", NULL, "Most tokens proposed for one path, a round.");
	f->round_p50 = metrics_gauge(f->m, "redraft_round_seconds", "quantile=\"0.5\"", "Time of a round over the last 1,024.");
	f->round_p95 = metrics_gauge(f->m, "redraft_round_seconds", "quantile=\"0.95\"", "Time of a round over the last 1,024.");
	f->max_gap = metrics_gauge(f->m, "redraft_max_gap_seconds", NULL, "Longest gap between rounds of the last 1,024.");
}

static void make_capture(struct front_metrics *f)
{
	static const char *const reasons[] = {"reason=\"ring\"", "reason=\"queue\"", "reason=\"broker\"", "reason=\"size\""};

	f->records = metrics_counter(f->m, "redraft_capture_records_total", NULL, "Trace records made.");
	f->bytes = metrics_counter(f->m, "redraft_capture_bytes_total", NULL, "Bytes of trace records made.");
	f->delivered = metrics_counter(f->m, "redraft_capture_delivered_total", NULL, "Trace records that a broker has taken.");
	f->rounds = metrics_counter(f->m, "redraft_capture_rounds_total", NULL, "Round records made.");
	f->traced = metrics_counter(f->m, "redraft_capture_requests_total", "traced=\"yes\"", "Requests, by whether they were traced.");
	f->skipped = metrics_counter(f->m, "redraft_capture_requests_total", "traced=\"no\"", "Requests, by whether they were traced.");
	for (int i = 0; i < 4; i++)
		f->dropped[i] = metrics_counter(f->m, "redraft_capture_dropped_total", reasons[i], "Trace records dropped, by reason.");
}

static void make_process(struct front_metrics *f)
{
	static const char heap[] = "redraft_heap_bytes", help[] = "Memory of the allocator: in use by us, or free and kept. A leak shows in used.";

	f->connections = metrics_gauge(f->m, "redraft_http_connections", NULL, "Connections that are open.");
	f->bodies = metrics_gauge(f->m, "redraft_http_body_bytes", NULL, "Bytes of request bodies held, as counted against bodies_mb.");
	f->unread = metrics_gauge(f->m, "redraft_http_unread_bytes", NULL, "Bytes of answers that wait for their readers.");
	f->heap_used = metrics_gauge(f->m, heap, "state=\"used\"", help);
	f->heap_free = metrics_gauge(f->m, heap, "state=\"free\"", help);
}

struct front_metrics *front_metrics_new(struct metrics *m, const char *model_name)
{
	struct front_metrics *f = calloc(1, sizeof *f);
	char name[100];

	if (!f)
		return NULL;
	f->m = m;
	clean(model_name, name, sizeof name);
	(void)snprintf(f->labels, sizeof f->labels, "model_name=\"%s\",engine=\"0\"", name);
	make_requests(f);
	make_drafts(f);
	make_capture(f);
	make_process(f);
	return f;
}

struct front_metrics *front_metrics_free(struct front_metrics *f)
{
	free(f);
	return NULL;
}

void front_metrics_first_token(struct front_metrics *f, double seconds)
{
	metric_observe(f->ttft, seconds);
}

void front_metrics_tokens(struct front_metrics *f, int n, double seconds_each)
{
	metric_observe_n(f->tpot, seconds_each, (unsigned)n);
	metric_observe_n(f->itl, seconds_each, (unsigned)n);
}

/* Accept length by version and domain. A request that several versions served is
 * nobody's: its counts cannot be told apart here (the round records can). */
static void accept_length(struct front_metrics *f, const char *domain, const struct request_stats *s)
{
	char labels[96], clean_domain[32];
	struct metric *rounds, *accepted;
	uint32_t version = 0;
	int n = 0;

	for (int i = 0; i < s->n_versions; i++)
		if (s->versions[i] != 0) {
			version = s->versions[i];
			n++;
		}
	if (n != 1 || s->proposing_rounds == 0)
		return;
	clean(domain, clean_domain, sizeof clean_domain);
	(void)snprintf(labels, sizeof labels, "version=\"%u\",domain=\"%s\"", version, clean_domain);
	rounds = metrics_counter(f->m, ROUNDS, labels, "Rounds that proposed, of requests with one version.");
	accepted = metrics_counter(f->m, ACCEPTED, labels, "Proposals accepted, of requests with one version.");
	metric_add(metrics_counter(f->m, PROPOSED, labels, "Tokens proposed, of requests with one version."), s->proposed);
	metric_add(rounds, s->proposing_rounds);
	metric_add(accepted, s->accepted);
	metric_set(metrics_gauge(f->m, LENGTH, labels, "Tokens a proposing round, bonus token included, since start."),
		   1 + metric_get(accepted) / fmax(1, metric_get(rounds)));
}

/* vLLM's words for how a request ended. */
static const char *finished(const char *reason)
{
	return strcmp(reason, "tool_calls") == 0 ? "stop" : strcmp(reason, "deadline") == 0 ? "abort" : reason;
}

void front_metrics_end(struct front_metrics *f, const char *reason, double seconds, int tokens, double decode_s, const char *domain,
		       const struct request_stats *s)
{
	char labels[220];

	(void)snprintf(labels, sizeof labels, "%s,finished_reason=\"%s\"", f->labels, finished(reason));
	metric_add(metrics_counter(f->m, "vllm:request_success_total", labels, "Requests ended, by reason."), 1);
	metric_observe(f->e2e, seconds);
	metric_observe(f->generated_tokens, tokens);
	if (tokens > 1)
		metric_observe(f->request_tpot, decode_s / (tokens - 1));
	if (s)
		accept_length(f, domain, s);
}

void front_metrics_taken(struct front_metrics *f, int prompt, int n, int max_tokens)
{
	metric_observe(f->prompt_tokens, prompt);
	metric_observe(f->n, n);
	if (max_tokens > 0)
		metric_observe(f->max_tokens, max_tokens);
}

static bool resident(void *arg, const char *labels)
{
	const struct engine_status *s = arg;
	unsigned version;

	if (sscanf(labels, "version=\"%u\"", &version) != 1)
		return true;
	for (size_t i = 0; i < sizeof s->slots / sizeof s->slots[0]; i++)
		if (s->slots[i].version == version)
			return true;
	return version == s->live || version == s->previous;
}

void front_metrics_retire(struct front_metrics *f, const struct engine_status *s)
{
	const char *const names[] = {ROUNDS, PROPOSED, ACCEPTED, LENGTH, DEPTH, NODES, EXPECTED, MEASURED};

	for (int i = 0; i < N_OF(names); i++)
		metrics_retire(f->m, names[i], resident, (void *)(uintptr_t)s);
}

void front_metrics_refused(struct front_metrics *f, int status)
{
	char labels[32];

	(void)snprintf(labels, sizeof labels, "status=\"%d\"", status);
	metric_add(metrics_counter(f->m, "redraft_http_errors_total", labels, "Requests answered with an error, by status."), 1);
}

/* What the controller does with each version (its domain last served). */
static void refresh_drafts(struct front_metrics *f, const struct engine_status *s)
{
	char labels[32];
	for (size_t i = 0; i < sizeof s->slots / sizeof s->slots[0]; i++) {
		const struct engine_slot *x = &s->slots[i];
		if (!x->version || (!x->requests && x->version != s->live))
			continue;
		(void)snprintf(labels, sizeof labels, "version=\"%u\"", x->version);
		metric_set(metrics_gauge(f->m, DEPTH, labels, "Depth chosen for the next rounds; 0 = proposing does not pay."), x->depth);
		metric_set(metrics_gauge(f->m, NODES, labels, "Nodes chosen for the next rounds."), x->nodes);
		metric_set(metrics_gauge(f->m, EXPECTED, labels, "Accept length that the controller expected of late."), x->expected);
		metric_set(metrics_gauge(f->m, MEASURED, labels, "Accept length of late, probes included."), x->measured);
	}
}

void front_metrics_process(struct front_metrics *f, const struct http_stats *h)
{
	struct mallinfo2 m = mallinfo2();

	metric_set(f->connections, h->connections);
	metric_set(f->bodies, (double)h->bodies);
	metric_set(f->unread, (double)h->unread);
	metric_set(f->heap_used, (double)m.uordblks + (double)m.hblkhd);
	metric_set(f->heap_free, (double)m.fordblks);
}

void front_metrics_refresh(struct front_metrics *f, const struct engine_status *s, const struct tap_stats *t)
{
	metric_set(f->running, s->running);
	metric_set(f->waiting, s->waiting);
	metric_set(f->prefix_queries, (double)s->prefix_asked);
	metric_set(f->prefix_hits, (double)s->prefix_reused);
	metric_set(f->preemptions, (double)s->preemptions);
	metric_set(f->evictions, (double)s->evictions);
	metric_set(f->kv_usage, s->pages ? 1 - (double)(s->pages_free + s->pages_cached) / s->pages : 0);
	metric_set(f->kv_cached, s->pages_cached);
	metric_set(f->prompt, (double)s->tokens_prompt);
	metric_set(f->generation, (double)s->tokens_generated);
	metric_set(f->drafts, (double)s->proposing_rounds);
	metric_set(f->draft_tokens, (double)s->proposed);
	metric_set(f->accepted, (double)s->accepted);
	for (int i = 0; i < ENGINE_MAX_K; i++)
		metric_set(f->accepted_at[i], (double)s->accepted_at[i]), metric_set(f->proposed_at[i], (double)s->proposed_at[i]);
	metric_set(f->live, s->live);
	metric_set(f->previous, s->previous);
	metric_set(f->draft_k, s->draft_k);
	refresh_drafts(f, s);
	metric_set(f->round_p50, s->round_ms_p50 / 1000);
	metric_set(f->round_p95, s->round_ms_p95 / 1000);
	metric_set(f->max_gap, s->max_gap_ms / 1000);
	if (!t)
		return;
	metric_set(f->records, (double)t->records);
	metric_set(f->bytes, (double)t->bytes);
	metric_set(f->delivered, (double)t->delivered);
	metric_set(f->rounds, (double)t->rounds);
	metric_set(f->traced, (double)t->requests_traced);
	metric_set(f->skipped, (double)t->requests_skipped);
	metric_set(f->dropped[0], (double)t->dropped_ring);
	metric_set(f->dropped[1], (double)t->dropped_queue);
	metric_set(f->dropped[2], (double)t->dropped_broker);
	metric_set(f->dropped[3], (double)t->dropped_size);
}
