/* What a request leaves in Kafka is what happened.
 *
 * Requests run through an engine with a real tap against librdkafka's mock cluster; the
 * records are read back, joined and held against a second run of the target over the
 * whole text: every position but the last has exactly one row with its token, mask, features (bit
 * for bit as bf16 or what the payload makes of that), hidden state (prompt) or top-k (generated); rounds follow one another by
 * accepted + 1, their accepted proposals are the text, their sums are the
 * request's own numbers; what was proposed is what the draft says when it is run once over
 * the whole prefix with the target's features (eagle3.md, alignment). A request that opted out leaves round records only.
 * tests/unit/cross/test_cuda_capture.c is the same on a GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include "schemas/record.h"
#include "serve/draft.h"
#include "serve/tap.h"
#include "tests/unit/serve/harness.h"

#ifndef CAPTURE_ON
#define CAPTURE_ON DEV_CPU
#define CAPTURE_EVERY 1 /* which rounds are proposed once more, */
#define CAPTURE_LEAST 60 /* and how many proposals that is at least: by how the switch falls, 110 and more here */
#define CAPTURE_PAYLOADS {RECORD_PLANES, RECORD_FP8, RECORD_BF16}
#define CAPTURE_TOKENS(job) (10 + 4 * (job))
#endif

enum { JOBS = 12, TOPK = 16, MAX_RECORDS = 400, PARTITIONS = 4 };

static struct {
	struct dev *d[2];
	struct llama *target[2];
	char dir[2][64];
	struct job jobs[JOBS];
	struct { void *data; struct trace_record r; } traces[MAX_RECORDS];
	int n_traces;
	struct round_record rounds[64];
	int n_rounds;
	real *features, *hidden, *logits, *fb; /* of the second device, and read here */
} x;

static rd_kafka_t *client(rd_kafka_type_t type, const char *brokers)
{
	char err[256];
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	if (brokers && rd_kafka_conf_set(c, "bootstrap.servers", brokers, err, sizeof err))
		fail_msg("%s", err);
	if (rd_kafka_conf_set(c, "log_level", "3", err, sizeof err) ||
	    (type == RD_KAFKA_CONSUMER && rd_kafka_conf_set(c, "group.id", "test", err, sizeof err)))
		fail_msg("%s", err);
	rd_kafka_t *k = rd_kafka_new(type, c, err, sizeof err);
	assert_non_null(k);
	return k;
}

enum { ENGINES = 3 };
static const enum record_payload payloads[ENGINES] = CAPTURE_PAYLOADS;

/* Which engine runs it: of chains, of trees, of chains that keep prefixes */
static int engine_of(int job)
{
	return job % 4 == 2 ? 1 : job % 4 == 3 ? 2 : 0;
}

static bool in_trees(int job)
{
	return engine_of(job) == 1;
}

static void run_jobs(const char *brokers, int which)
{
	bool trees = which == 1;
	struct errtext e = {0};
	struct tap_options to = {.brokers = brokers, .traces_topic = "traces", .rounds_topic = "rounds", .H_t = TOY_H, .topk = TOPK, .prompt_hidden = true,
				 .sample = 1, .ring_bytes = 8 << 20, .queue_bytes = 16 << 20, .payload = payloads[which]};
	struct tap *tap = NULL;
	struct engine *g = NULL;
	char sha[65];
	memset(to.target_fp, 'a', 64);
	if (tap_new(&to, &tap, &e))
		fail_msg("%s", e.text);
	struct engine_options o = {.dev = x.d[0], .target = x.target[0], .f32_kv = true, .max_seqs = 4, .max_queue = 64, .max_context = 160,
				   .kv_tokens = 640, .prefix = which == 2 ? PREFIX_ALL : PREFIX_OFF, .prefill_chunk = 16, .draft_k = 3,
				   .draft_mode = trees ? DRAFT_TREE : DRAFT_CHAIN, .draft_nodes = 7, .eog_ids = {2}, .n_eog = 1, .tap = tap};
	if (engine_new(&o, &g, &e) || engine_load(g, 1, x.dir[0], sha, &e) || engine_load(g, 2, x.dir[1], sha, &e) ||
	    engine_activate(g, 1, false, 0, &e))
		fail_msg("%s", e.text);
	atomic_int ticks = 0;
	for (int i = 0; i < JOBS; i++) {
		struct job *j = &x.jobs[i];
		if (engine_of(i) != which) {
			atomic_store(&j->done, 1); /* nobody waits for those of another engine */
			continue;
		}
		job_random(j, 300 + (uint64_t)i, 3 + 5 * i, CAPTURE_TOKENS(i));
		j->how = (struct sampling){.temperature = i % 3 == 2 ? 0.6f : 0, .top_p = 1, .seed = (uint64_t)i};
		j->ticks = &ticks;
		j->stall_at = 25;
		struct engine_request r = {.prompt = j->prompt, .n_prompt = j->n_prompt, .max_tokens = j->max_tokens, .sampling = j->how,
					   .no_trace = i == 5, .no_draft = i == 7, .domain = "code", .on_tokens = job_tokens, .on_done = job_done, .arg = j};
		snprintf(r.request_id, sizeof r.request_id, "req-%d", i);
		snprintf(r.conversation, sizeof r.conversation, "conv-%d", i);
		assert_int_equal(engine_submit(g, &r, &j->handle), 0);
	}
	ticks_wait(&ticks, 25, x.jobs, JOBS);
	assert_int_equal(engine_activate(g, 2, true, 0, &e), 0);
	usleep(2000);
	assert_int_equal(engine_activate(g, 1, true, 0, &e), 0);
	for (int i = 0; i < JOBS; i++)
		if (engine_of(i) == which)
			job_wait(&x.jobs[i]);
	engine_free(g);
	tap_free(tap);
}

static void keep(const rd_kafka_message_t *m, bool trace)
{
	struct errtext e = {0};
	if (trace) {
		assert_true(x.n_traces < MAX_RECORDS);
		if (record_decode(m->payload, m->len, TOY_V, &x.traces[x.n_traces].r, &e))
			fail_msg("record: %s", e.text);
		x.n_traces++;
	} else {
		assert_true(x.n_rounds < 64);
		if (round_decode(m->payload, m->len, &x.rounds[x.n_rounds], &e))
			fail_msg("round: %s", e.text);
		x.n_rounds++;
	}
}

static void consume(const char *brokers, const char *topic, bool trace)
{
	rd_kafka_t *k = client(RD_KAFKA_CONSUMER, brokers);
	rd_kafka_topic_partition_list_t *l = rd_kafka_topic_partition_list_new(PARTITIONS);
	for (int p = 0; p < PARTITIONS; p++)
		rd_kafka_topic_partition_list_add(l, topic, p)->offset = RD_KAFKA_OFFSET_BEGINNING;
	assert_int_equal(rd_kafka_assign(k, l), 0);
	rd_kafka_topic_partition_list_destroy(l);
	for (int idle = 0; idle < 15;) {
		rd_kafka_message_t *m = rd_kafka_consumer_poll(k, 100);
		idle = m && !m->err ? 0 : idle + 1;
		if (m && !m->err)
			keep(m, trace);
		if (m)
			rd_kafka_message_destroy(m);
	}
	rd_kafka_consumer_close(k);
	rd_kafka_destroy(k);
}

static int setup(void **state)
{
	(void)state;
	struct errtext e = {0};
	for (int i = 0; i < 2; i++) {
		if (dev_new(&(struct dev_options){.kind = CAPTURE_ON, .threads = 1}, &x.d[i], &e))
			return -1;
		x.target[i] = toy_target(x.d[i], 0.05f, DT_F32);
		snprintf(x.dir[i], sizeof x.dir[i], "/tmp/redraft-capture-%d-%d", (int)getpid(), i);
		if (toy_draft(x.dir[i], i ? TOY_RANDOM : TOY_LEANS, 3, 2, &e))
			return -1;
	}
	x.features = x.d[1]->ops->alloc_shared(x.d[1], JOB_MAX * 3 * TOY_H * sizeof(real));
	x.hidden = x.d[1]->ops->alloc_shared(x.d[1], JOB_MAX * TOY_H * sizeof(real));
	x.logits = x.d[1]->ops->alloc_shared(x.d[1], JOB_MAX * TOY_V * sizeof(real));
	x.fb = x.d[1]->ops->alloc(x.d[1], TOY_H * sizeof(real));
	if (!x.features || !x.hidden || !x.logits || !x.fb)
		return -1;
	rd_kafka_t *k = client(RD_KAFKA_PRODUCER, NULL);
	rd_kafka_mock_cluster_t *m = rd_kafka_mock_cluster_new(k, 1);
	rd_kafka_mock_topic_create(m, "traces", PARTITIONS, 1);
	rd_kafka_mock_topic_create(m, "rounds", PARTITIONS, 1);
	char brokers[128];
	snprintf(brokers, sizeof brokers, "%s", rd_kafka_mock_cluster_bootstraps(m));
	for (int i = 0; i < ENGINES; i++)
		run_jobs(brokers, i);
	consume(brokers, "traces", true);
	consume(brokers, "rounds", false);
	rd_kafka_mock_cluster_destroy(m);
	rd_kafka_destroy(k);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	real *const mine[] = {x.features, x.hidden, x.logits, x.fb};
	int r = 0;
	for (int i = 0; i < x.n_traces; i++)
		record_done(&x.traces[i].r);
	for (int i = 0; i < 4; i++)
		x.d[1]->ops->free(x.d[1], mine[i]);
	for (int i = 0; i < 2; i++) {
		llama_free(x.target[i]);
		dev_free(x.d[i]);
		r |= fs_remove_tree(x.dir[i]);
	}
	return r;
}

static int by_run(const void *a, const void *b)
{
	const struct trace_record *const *p = a, *const *q = b;
	return (int)(*p)->meta.run - (int)(*q)->meta.run;
}

static int records_of(int job, struct trace_record **ret)
{
	char id[64];
	int n = 0;
	snprintf(id, sizeof id, "req-%d", job);
	for (int i = 0; i < x.n_traces; i++)
		if (!strcmp(x.traces[i].r.meta.request, id))
			ret[n++] = &x.traces[i].r;
	qsort(ret, (size_t)n, sizeof *ret, by_run);
	return n;
}

/* The target once more over the whole text. */
static void again(const struct job *j, uint32_t *text)
{
	uint32_t pos[JOB_MAX], slots[JOB_MAX], pages[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	int n = j->n_prompt + j->n_out;
	struct kv_pool kv = {.n_layer = TOY_LAYERS, .n_kv = 2, .d = 16, .page_tok = 32, .n_pages = 8, .type = DT_F32};
	memcpy(text, j->prompt, (size_t)j->n_prompt * sizeof *text);
	memcpy(text + j->n_prompt, j->out, (size_t)j->n_out * sizeof *text);
	for (uint32_t i = 0; i < (uint32_t)n; i++)
		pos[i] = slots[i] = i;
	struct attn_seq s = {.pages = pages, .n_rows = n};
	struct llama_batch b = {.M = n, .ids = text, .pos = pos, .slots = slots, .seqs = &s, .n_seqs = 1, .logit_rows = pos, .n_logits = n};
	assert_int_equal(x.d[1]->ops->kv_new(x.d[1], &kv), 0);
	assert_int_equal(llama_forward(x.target[1], &kv, &b, x.features, x.hidden, x.logits), 0);
	assert_int_equal(x.d[1]->ops->sync(x.d[1]), 0);
	x.d[1]->ops->kv_free(x.d[1], &kv);
}

static void check_teacher(const uint32_t *ids, const uint16_t *lp, const real *logits)
{
	double sum = 0, max = -1e30;
	for (int v = 0; v < TOY_V; v++)
		max = (double)logits[v] > max ? (double)logits[v] : max;
	for (int v = 0; v < TOY_V; v++)
		sum += exp((double)logits[v] - max);
	for (int k = 0; k < TOPK; k++) {
		double want = (double)logits[ids[k]] - max - log(sum);
		if (!(fabs((double)f16_to_f32(lp[k]) - want) <= 2e-3 * fmax(1, fabs(want))))
			fail_msg("logprob %g is not %g", (double)f16_to_f32(lp[k]), want);
		assert_true(k == 0 || logits[ids[k]] <= logits[ids[k - 1]]);
	}
	assert_true(!((double)logits[ids[0]] < max));
}

static void check_bf16(const uint16_t *got, const real *want, int n)
{
	for (int i = 0; i < n; i++)
		assert_int_equal(got[i], f32_to_bf16((float)want[i]));
}

/* What row `at` becomes in a record of that payload: a record of one row, there and back. */
static void expected(enum record_payload payload, int at, uint16_t ret[3 * TOY_H])
{
	const uint32_t zero = 0;
	const uint8_t prompt = 0;
	struct buf b = BUF_INIT(0);
	struct errtext e = {""};
	for (int i = 0; i < 3 * TOY_H; i++)
		ret[i] = f32_to_bf16((float)x.features[at * 3 * TOY_H + i]);
	struct trace_record r = {.payload = payload, .T = 1, .T_prompt = 1, .H_t = TOY_H, .token_ids = &zero, .positions = &zero, .loss_mask = &prompt, .features = ret};
	memset(r.meta.target_fp, 'a', 64);
	snprintf(r.meta.request, sizeof r.meta.request, "r");
	snprintf(r.meta.producer, sizeof r.meta.producer, "p");
	assert_int_equal(record_encode(&b, &r), 0);
	if (record_decode(b.data, b.len, 0, &r, &e))
		fail_msg("%s", e.text);
	memcpy(ret, r.features, 3 * TOY_H * sizeof *ret);
	record_done(&r);
	buf_done(&b);
}

static void test_rows(void **state)
{
	(void)state;
	for (int i = 0; i < JOBS; i++) {
		struct trace_record *rec[MAX_RECORDS];
		struct job *j = &x.jobs[i];
		uint32_t text[JOB_MAX];
		int n = records_of(i, rec), at = 0, total = j->n_prompt + j->n_out;
		if (i == 5) {
			assert_int_equal(n, 0); /* opted out */
			continue;
		}
		assert_true(n > 0);
		again(j, text);
		for (int r = 0; r < n; r++) {
			const struct trace_record *t = rec[r];
			int gen = 0, prompt = 0;
			assert_int_equal(t->meta.run, r);
			assert_int_equal(t->meta.last, r == n - 1);
			assert_string_equal(t->meta.domain, "code");
			for (int row = 0; row < t->T; row++, at++) {
				assert_int_equal(t->positions[row], at);
				assert_int_equal(t->token_ids[row], text[at]);
				assert_int_equal(t->loss_mask[row], at >= j->n_prompt);
				uint16_t want[3 * TOY_H];
				expected(payloads[engine_of(i)], at, want);
				assert_memory_equal(t->features + row * 3 * TOY_H, want, sizeof want);
				if (at >= j->n_prompt) {
					check_teacher(t->topk_ids + gen * TOPK, t->topk_logprob + gen * TOPK, x.logits + at * TOY_V);
					gen++;
				} else {
					check_bf16(t->last_hidden + prompt++ * TOY_H, x.hidden + at * TOY_H, TOY_H);
				}
			}
			assert_int_equal(t->next_token, text[at]);
		}
		assert_int_equal(at, total - 1);
	}
}

/* How many proposals of round s the text from out[at] on agrees with: the path through the tree. */
static int walk(const struct trace_record *t, int s, const struct job *j, int at)
{
	int node = -1, n = 0;
	for (;;) {
		int child = -1;
		for (int a = 0; a < t->round_len[s]; a++) {
			int up = t->draft_parent ? t->draft_parent[s * t->k + a] : a - 1;
			assert_true(t->draft_ids[s * t->k + a] < TOY_V);
			if ((up == 255 ? -1 : up) == node && at + n < j->n_out && t->draft_ids[s * t->k + a] == j->out[at + n])
				child = a;
		}
		if (child < 0)
			return n;
		node = child;
		n++;
	}
}

static void test_rounds(void **state)
{
	(void)state;
	uint64_t accepted_all = 0, flagged = 0, branched = 0;
	for (int i = 0; i < JOBS; i++) {
		struct trace_record *rec[MAX_RECORDS];
		struct job *j = &x.jobs[i];
		int n = records_of(i, rec), rounds = 0, proposed = 0, accepted = 0, last_end = -1;
		for (int r = 0; r < n; r++) {
			const struct trace_record *t = rec[r];
			for (int s = 0; s < t->S; s++) {
				int start = (int)t->positions[t->round_start[s]];
				assert_true(start >= j->n_prompt - 1 && start >= last_end);
				assert_true(t->round_version[s] == 1 || t->round_version[s] == 2);
				flagged += t->round_flags[s] & 1;
				assert_int_equal(t->accepted[s], walk(t, s, j, start + 2 - j->n_prompt)); /* the root is at start + 1 */
				branched += t->draft_parent && t->accepted[s];
				last_end = start + t->accepted[s] + 1;
				rounds++;
				proposed += t->round_len[s];
				accepted += t->accepted[s];
			}
		}
		accepted_all += (uint64_t)accepted;
		if (i == 5)
			continue;
		/* a round whose row t is the request's last row has no record to lie in: there is none, since it would emit nothing */
		assert_int_equal(rounds, j->stats.proposing_rounds);
		assert_int_equal(proposed, j->stats.proposed);
		assert_int_equal(accepted, j->stats.accepted);
	}
	assert_true(accepted_all > 10);
	assert_true(flagged > 0);
	assert_true(branched > 0);
}

/* What version 1 proposes from row t on, with nothing but the prefix before it. */
static void propose_again(struct draft *q, const uint32_t *text, int t, int len, uint32_t *ret)
{
	const struct ops *o = x.d[1]->ops;
	uint32_t pos[JOB_MAX], pages[8] = {0, 1, 2, 3, 4, 5, 6, 7}, last = (uint32_t)t;
	const struct draft_word w = {.width = 1, .ids = o->alloc_shared(x.d[1], sizeof *w.ids), .logp = o->alloc_shared(x.d[1], sizeof *w.logp)};
	assert_true(w.ids && w.logp);
	struct kv_pool kv = {.page_tok = 32, .n_pages = 8, .type = DT_F32};
	for (uint32_t i = 0; i < JOB_MAX; i++)
		pos[i] = i;
	assert_int_equal(draft_eagle3.kv_shape(q, &kv), 0);
	assert_int_equal(x.d[1]->ops->kv_new(x.d[1], &kv), 0);
	struct attn_seq s = {.pages = pages, .n_past = t, .n_rows = 1};
	struct draft_rows r = {.M = t + 1, .ids = text + 1, .pos = pos, .slots = pos, .seqs = &s, .n_seqs = 1, .features = x.features, .last_rows = &last};
	assert_int_equal(draft_eagle3.extend(q, &kv, &r, &w, x.fb), 0);
	assert_int_equal(o->sync(x.d[1]), 0);
	ret[0] = *w.ids;
	for (int i = 1; i < len; i++) {
		s = (struct attn_seq){.pages = pages, .n_past = t + i, .n_rows = 1};
		r = (struct draft_rows){.M = 1, .ids = ret + i - 1, .pos = pos + t + i, .slots = pos + t + i, .seqs = &s, .n_seqs = 1};
		assert_int_equal(draft_eagle3.step(q, &kv, &r, &w, x.fb), 0);
		assert_int_equal(o->sync(x.d[1]), 0);
		ret[i] = *w.ids;
	}
	o->free(x.d[1], w.ids);
	o->free(x.d[1], w.logp);
	x.d[1]->ops->kv_free(x.d[1], &kv);
}

static void test_proposals(void **state)
{
	(void)state;
	struct draft *q = NULL;
	struct errtext e = {0};
	int boundaries[N_BOUNDARIES], checked = 0, kinds = 0;
	bool met[TOY_V] = {false};
	default_boundaries(TOY_LAYERS, boundaries);
	assert_int_equal(draft_eagle3.load(x.d[1], x.dir[0], llama_embedding(x.target[1]), TOY_LAYERS, boundaries, DT_F32, &q, &e), 0);
	for (int i = 0; i < JOBS; i++) {
		struct trace_record *rec[MAX_RECORDS];
		uint32_t text[JOB_MAX], want[ROUND_MAX_K];
		int n = records_of(i, rec);
		again(&x.jobs[i], text);
		for (int r = 0; r < n; r++)
			for (int s = 0; s < rec[r]->S; s++) {
				const struct trace_record *t = rec[r];
				if (t->round_version[s] != 1 || t->round_flags[s] || s % CAPTURE_EVERY)
					continue;
				propose_again(q, text, (int)t->positions[t->round_start[s]], t->round_len[s], want);
				/* of a tree only the first node is the chain's */
				for (int a = 0; a < (t->draft_parent ? 1 : t->round_len[s]); a++) {
					assert_int_equal(t->draft_ids[s * t->k + a], want[a]);
					kinds += !met[want[a]];
					met[want[a]] = true;
					checked++;
				}
			}
	}
	print_message("%d proposals of %d kinds\n", checked, kinds);
	assert_true(checked > CAPTURE_LEAST && kinds > CAPTURE_LEAST / 5);
	draft_eagle3.free(q);
}

static void test_round_records(void **state)
{
	(void)state;
	for (int i = 0; i < JOBS; i++) {
		const struct job *j = &x.jobs[i];
		char id[64];
		uint32_t parts = 0, tokens = 0, accepted = 0, proposed = 0, rounds = 0, last = 0, tpot = 0;
		snprintf(id, sizeof id, "req-%d", i);
		for (int r = 0; r < x.n_rounds; r++) {
			const struct round_record *p = &x.rounds[r];
			if (strcmp(p->request, id))
				continue;
			parts++;
			last += p->last;
			tokens += p->tokens;
			rounds += p->rounds;
			for (int k = 0; k < ROUND_MAX_K; k++) {
				proposed += p->proposed[k];
				accepted += p->accepted[k];
			}
			for (int b = 0; b <= ROUND_TPOT_EDGES; b++)
				tpot += p->tpot_ms[b];
			if (p->part == 0) {
				assert_int_equal(p->prompt_tokens, j->n_prompt);
				assert_true(p->ttft_ms > 0);
			}
			if (i == 7)
				assert_int_equal(p->version, 0);
		}
		assert_int_equal(parts, j->stats.n_versions);
		assert_int_equal(last, 1);
		assert_int_equal(tokens, j->n_out);
		assert_int_equal(rounds, j->stats.rounds);
		if (in_trees(i)) /* a tree proposes several tokens for one position */
			assert_true(proposed > 0 && proposed < j->stats.proposed);
		else
			assert_int_equal(proposed, j->stats.proposed);
		assert_int_equal(accepted, j->stats.accepted);
		assert_int_equal(tpot, j->n_out - 1);
	}
}

static void no_device(void **state)
{
	(void)state;
	skip();
}

int main(void)
{
	struct dev *d = NULL;
	struct errtext e = {""};
	int r = dev_new(&(struct dev_options){.kind = CAPTURE_ON, .threads = 1}, &d, &e);
	if (r == -ENODEV || r == -ENOTSUP) {
		const struct CMUnitTest none[] = {cmocka_unit_test(no_device)};
		print_message("skip: %s\n", e.text);
		return cmocka_run_group_tests(none, NULL, NULL);
	}
	dev_free(d);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_rounds), cmocka_unit_test(test_proposals), cmocka_unit_test(test_round_records)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
