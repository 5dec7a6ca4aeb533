/* Reused prefixes change neither what is served nor what is recorded.
 *
 * Requests run one after the other through an engine with a prefix tree and a tap against librdkafka's mock
 * cluster: a dialogue of four rounds that resends its history, another conversation with the same
 * beginning, one that opted out and one that says the same traced, another tenant, and requests that
 * leave pages without draft KV or without features. Everything served is held against plain decoding
 * without reuse; the records against a second run of the target: a request's rows go on where those end that
 * `parent` names, from position 0 on when it names nobody, each once, with its features and hidden state bit for
 * bit whoever computed it; rows of a request that opted out are computed again before they are told for another. What was
 * proposed is what the draft says when run over the whole text: to the token by the version that
 * wrote the draft KV, nearly always where it was rebuilt from kept (bf16) features. A request that began before there was
 * a draft gets one in mid-answer when its features were kept, and proposes as well as one that had it from the start.
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

enum { TOPK = 8, MAX_RECORDS = 100, PARTITIONS = 4, TEXT = 320, MAX_ASKS = 20 };

struct ask {
	char id[8], conversation[8], tenant[8];
	bool no_trace, no_draft;
	int after; /* the request whose whole text comes first, -1 = none */
	int begins, own; /* else: text number `begins`, 70 tokens; then so many of its own */
	int out, version;
	int least, most; /* tokens that must be, may be, reused */
	const char *parent; /* NULL = recorded from its first row on */
};

static const struct ask asks[] = {
	{"a1", "A", "t", false, false, -1, 1, 10, 20, 1, 0, 0, NULL},
	{"a2", "A", "t", false, false, 0, 0, 15, 20, 1, 96, 96, "a1"},
	{"a3", "A", "t", false, false, 1, 0, 12, 20, 1, 128, 128, "a2"},
	{"b1", "B", "t", false, false, -1, 1, 25, 10, 1, 64, 64, NULL},
	{"o1", "O", "t", true, false, -1, 2, 10, 20, 1, 0, 0, NULL},
	{"o2", "O", "t", true, false, 4, 0, 10, 10, 1, 96, 96, NULL},
	{"q1", "Q", "t", false, false, -1, 2, 10, 20, 1, 0, 0, NULL},
	{"q2", "P", "t", false, false, -1, 2, 12, 10, 1, 64, 64, NULL},
	{"u1", "A", "u", false, false, -1, 1, 10, 10, 1, 0, 0, NULL},
	{"a4", "A", "t", false, false, 2, 0, 12, 30, 2, 160, 160, "a3"},
	{"d1", "D", "t", true, true, -1, 3, 10, 10, 2, 0, 0, NULL},
	{"d2", "D", "t", true, false, -1, 3, 10, 10, 2, 0, 0, NULL},
	{"d3", "D", "t", true, false, -1, 3, 10, 10, 2, 64, 64, NULL},
	{"d4", "D", "t", true, false, -1, 3, 10, 30, 1, 64, 64, NULL},
	{"a5", "A", "t", false, false, 2, 0, 12, 30, 1, 160, 160, "a4"},
};
enum { ASKS = sizeof asks / sizeof *asks };

struct got { uint32_t text[TEXT]; int n_prompt, n; struct request_stats stats; atomic_int done; enum finish why; };

static struct {
	struct dev *d[2];
	struct llama *target[2];
	char dir[2][64];
	struct got got[ASKS], plain[ASKS];
	struct { struct trace_record r; } rec[MAX_RECORDS];
	int n_rec;
} x;

/* ---- asking ---- */

static void on_tokens(void *arg, const uint32_t *ids, int n)
{
	struct got *q = arg;
	memcpy(q->text + q->n, ids, (size_t)n * sizeof *ids);
	q->n += n;
}

static void on_done(void *arg, enum finish why, const struct request_stats *s, const char *error)
{
	struct got *q = arg;
	(void)error;
	q->why = why;
	q->stats = *s;
	atomic_store(&q->done, 1);
}

static void ask(struct engine *g, const struct ask *a, struct got *all, struct got *q)
{
	static struct job words;
	uint64_t handle;
	if (a->after >= 0) {
		memcpy(q->text, all[a->after].text, (size_t)all[a->after].n * sizeof *q->text);
		q->n = all[a->after].n;
	} else {
		job_random(&words, 500 + (uint64_t)a->begins, 70, 1);
		memcpy(q->text, words.prompt, 70 * sizeof *q->text);
		q->n = 70;
	}
	job_random(&words, 900 + (uint64_t)(a - asks), a->own, 1);
	memcpy(q->text + q->n, words.prompt, (size_t)a->own * sizeof *q->text);
	q->n_prompt = q->n += a->own;
	struct engine_request r = {.prompt = q->text, .n_prompt = q->n_prompt, .max_tokens = a->out, .ignore_eos = true, .no_trace = a->no_trace,
				   .no_draft = a->no_draft, .domain = "chat", .on_tokens = on_tokens, .on_done = on_done, .arg = q};
	r.sampling = (struct sampling){.temperature = a->own % 2 ? 0.7f : 0, .top_p = 1, .seed = 3};
	snprintf(r.request_id, sizeof r.request_id, "%s", a->id);
	snprintf(r.conversation, sizeof r.conversation, "%s", a->conversation);
	snprintf(r.tenant, sizeof r.tenant, "%s", a->tenant);
	assert_int_equal(engine_submit(g, &r, &handle), 0);
	while (!atomic_load(&q->done))
		usleep(500);
	assert_int_equal(q->why, FINISH_LENGTH);
}

static struct engine *make(int side, enum prefix_sharing prefix, struct tap *tap)
{
	struct engine_options o = {.dev = x.d[side], .target = x.target[side], .f32_kv = true, .max_seqs = 2, .max_queue = 4, .max_context = TEXT,
				   .kv_tokens = 1280, .prefix = prefix, .prefill_chunk = 48, .draft_k = 3, .tap = tap};
	struct engine *g = NULL;
	struct errtext e = {0};
	if (engine_new(&o, &g, &e))
		fail_msg("%s", e.text);
	return g;
}

static void run(const char *brokers)
{
	struct errtext e = {0};
	struct tap_options to = {.brokers = brokers, .traces_topic = "traces", .rounds_topic = "rounds", .H_t = TOY_H, .topk = TOPK, .prompt_hidden = true,
				 .sample = 1, .ring_bytes = 8 << 20, .queue_bytes = 16 << 20};
	struct tap *tap = NULL;
	char sha[65];
	memset(to.target_fp, 'a', 64);
	if (tap_new(&to, &tap, &e))
		fail_msg("%s", e.text);
	struct engine *g = make(0, PREFIX_TENANT, tap), *plain = make(1, PREFIX_OFF, NULL);
	for (uint32_t v = 1; v <= 2; v++)
		if (engine_load(g, v, x.dir[v - 1], sha, &e))
			fail_msg("%s", e.text);
	for (int i = 0; i < ASKS; i++) {
		assert_int_equal(engine_activate(g, (uint32_t)asks[i].version, true, 0, &e), 0);
		ask(g, &asks[i], x.got, &x.got[i]);
		ask(plain, &asks[i], x.plain, &x.plain[i]);
	}
	struct engine_status s;
	engine_status(g, &s);
	assert_int_equal(s.pages_free + s.pages_cached, s.pages);
	engine_free(plain);
	engine_free(g);
	tap_free(tap);
}

/* ---- reading ---- */

static rd_kafka_t *client(rd_kafka_type_t type, const char *brokers)
{
	char err[256];
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	if (brokers && (rd_kafka_conf_set(c, "bootstrap.servers", brokers, err, sizeof err) || rd_kafka_conf_set(c, "group.id", "test", err, sizeof err)))
		fail_msg("%s", err);
	rd_kafka_t *k = rd_kafka_new(type, c, err, sizeof err);
	assert_non_null(k);
	return k;
}

static void consume(const char *brokers)
{
	struct errtext e = {0};
	rd_kafka_t *k = client(RD_KAFKA_CONSUMER, brokers);
	rd_kafka_topic_partition_list_t *l = rd_kafka_topic_partition_list_new(PARTITIONS);
	for (int p = 0; p < PARTITIONS; p++)
		rd_kafka_topic_partition_list_add(l, "traces", p)->offset = RD_KAFKA_OFFSET_BEGINNING;
	assert_int_equal(rd_kafka_assign(k, l), 0);
	rd_kafka_topic_partition_list_destroy(l);
	for (int idle = 0; idle < 15;) {
		rd_kafka_message_t *m = rd_kafka_consumer_poll(k, 100);
		idle = m && !m->err ? 0 : idle + 1;
		if (m && !m->err) {
			assert_true(x.n_rec < MAX_RECORDS);
			if (record_decode(m->payload, m->len, TOY_V, &x.rec[x.n_rec++].r, &e))
				fail_msg("record: %s", e.text);
		}
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
	char brokers[128];
	for (int i = 0; i < 2; i++) {
		if (dev_cpu_new(1, ISA_AUTO, &x.d[i]))
			return -1;
		x.target[i] = toy_target(x.d[i], 0.05f, DT_F32);
		snprintf(x.dir[i], sizeof x.dir[i], "/tmp/redraft-reuse-%d-%d", (int)getpid(), i);
		if (toy_draft(x.dir[i], TOY_LEANS, 3 + (uint64_t)i, 2, &e))
			return -1;
	}
	rd_kafka_t *k = client(RD_KAFKA_PRODUCER, NULL);
	rd_kafka_mock_cluster_t *m = rd_kafka_mock_cluster_new(k, 1);
	rd_kafka_mock_topic_create(m, "traces", PARTITIONS, 1);
	rd_kafka_mock_topic_create(m, "rounds", PARTITIONS, 1);
	snprintf(brokers, sizeof brokers, "%s", rd_kafka_mock_cluster_bootstraps(m));
	run(brokers);
	consume(brokers);
	rd_kafka_mock_cluster_destroy(m);
	rd_kafka_destroy(k);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	int r = 0;
	for (int i = 0; i < x.n_rec; i++)
		record_done(&x.rec[i].r);
	for (int i = 0; i < 2; i++) {
		llama_free(x.target[i]);
		dev_free(x.d[i]);
		r |= fs_remove_tree(x.dir[i]);
	}
	return r;
}

/* ---- the oracle: the target once more over the whole text ---- */

static real features[TEXT * 3 * TOY_H], hidden[TEXT * TOY_H], logits[TEXT * TOY_V];
static uint32_t table[TEXT / 32 + 1], upto[TEXT];

static void again(const struct got *q)
{
	struct kv_pool kv = {.n_layer = TOY_LAYERS, .n_kv = 2, .d = 16, .page_tok = 32, .n_pages = TEXT / 32 + 1, .type = DT_F32};
	for (uint32_t i = 0; i < TEXT; i++)
		upto[i] = i;
	for (uint32_t i = 0; i < TEXT / 32 + 1; i++)
		table[i] = i;
	struct attn_seq s = {.pages = table, .n_rows = q->n};
	struct llama_batch b = {.M = q->n, .ids = q->text, .pos = upto, .slots = upto, .seqs = &s, .n_seqs = 1, .logit_rows = upto, .n_logits = q->n};
	assert_int_equal(x.d[1]->ops->kv_new(x.d[1], &kv), 0);
	assert_int_equal(llama_forward(x.target[1], &kv, &b, features, hidden, logits), 0);
	x.d[1]->ops->kv_free(x.d[1], &kv);
}

static int by_run(const void *a, const void *b)
{
	const struct trace_record *const *p = a, *const *q = b;
	return (int)(*p)->meta.run - (int)(*q)->meta.run;
}

static int records_of(const char *id, const struct trace_record **ret)
{
	int n = 0;
	for (int i = 0; i < x.n_rec; i++)
		if (!strcmp(x.rec[i].r.meta.request, id))
			ret[n++] = &x.rec[i].r;
	qsort(ret, (size_t)n, sizeof *ret, by_run);
	return n;
}

static void check_bf16(const uint16_t *got, const real *want, int n)
{
	for (int i = 0; i < n; i++)
		assert_int_equal(got[i], f32_to_bf16((float)want[i]));
}

/* ---- the tests ---- */

static void test_served(void **state)
{
	(void)state;
	for (int i = 0; i < ASKS; i++) {
		if (x.got[i].n != x.plain[i].n || memcmp(x.got[i].text, x.plain[i].text, (size_t)x.got[i].n * sizeof(uint32_t)) != 0)
			fail_msg("%s differs from plain decoding", asks[i].id);
		if ((int)x.got[i].stats.cached < asks[i].least || (int)x.got[i].stats.cached > asks[i].most)
			fail_msg("%s: %u tokens reused", asks[i].id, x.got[i].stats.cached);
		assert_int_equal(x.plain[i].stats.cached, 0);
		assert_true(asks[i].no_draft || x.got[i].stats.proposed > 0);
	}
}

static int first_row(int i, const struct trace_record *t)
{
	char name[64] = "";
	int rows = 0;
	if (!asks[i].parent) {
		assert_string_equal(t->meta.parent, "");
		return 0;
	}
	assert_int_equal(sscanf(t->meta.parent, "%63s %d", name, &rows), 2);
	assert_string_equal(name, asks[i].parent);
	assert_int_equal(rows, (int)x.got[i].stats.cached);
	return rows;
}

static void test_recorded(void **state)
{
	(void)state;
	for (int i = 0; i < ASKS; i++) {
		const struct trace_record *rec[MAX_RECORDS];
		const struct got *q = &x.got[i];
		int n = records_of(asks[i].id, rec);
		if (asks[i].no_trace) {
			assert_int_equal(n, 0);
			continue;
		}
		assert_true(n > 0);
		again(q);
		int at = first_row(i, rec[0]);
		for (int r = 0; r < n; r++) {
			const struct trace_record *t = rec[r];
			int prompt = 0;
			assert_int_equal(t->meta.run, r);
			assert_int_equal(t->meta.last, r == n - 1);
			for (int row = 0; row < t->T; row++, at++) {
				assert_int_equal(t->positions[row], at);
				assert_int_equal(t->token_ids[row], q->text[at]);
				assert_int_equal(t->loss_mask[row], at >= q->n_prompt);
				check_bf16(t->features + row * 3 * TOY_H, features + at * 3 * TOY_H, 3 * TOY_H);
				if (at < q->n_prompt)
					check_bf16(t->last_hidden + prompt++ * TOY_H, hidden + at * TOY_H, TOY_H);
			}
			assert_int_equal(t->next_token, q->text[at]);
		}
		assert_int_equal(at, q->n - 1);
	}
}

static void propose_again(struct draft *d, const uint32_t *text, int t, int len, uint32_t *ret)
{
	uint32_t last = (uint32_t)t;
	real fb[TOY_H];
	float logp;
	struct kv_pool kv = {.page_tok = 32, .n_pages = TEXT / 32 + 1, .type = DT_F32};
	assert_int_equal(draft_eagle3.kv_shape(d, &kv), 0);
	assert_int_equal(x.d[1]->ops->kv_new(x.d[1], &kv), 0);
	struct attn_seq s = {.pages = table, .n_past = t, .n_rows = 1};
	struct draft_rows r = {.M = t + 1, .ids = text + 1, .pos = upto, .slots = upto, .seqs = &s, .n_seqs = 1, .features = features, .last_rows = &last};
	assert_int_equal(draft_eagle3.extend(d, &kv, &r, &(struct draft_word){.width = 1, .ids = ret, .logp = &logp}, fb), 0);
	for (int i = 1; i < len; i++) {
		s = (struct attn_seq){.pages = table, .n_past = t + i, .n_rows = 1};
		r = (struct draft_rows){.M = 1, .ids = ret + i - 1, .pos = upto + t + i, .slots = upto + t + i, .seqs = &s, .n_seqs = 1};
		assert_int_equal(draft_eagle3.step(d, &kv, &r, &(struct draft_word){.width = 1, .ids = ret + i, .logp = &logp}, fb), 0);
	}
	x.d[1]->ops->kv_free(x.d[1], &kv);
}

static void test_proposed(void **state)
{
	(void)state;
	struct draft *d[2] = {NULL};
	struct errtext e = {0};
	int boundaries[N_BOUNDARIES], checked[2] = {0}, off[2] = {0};
	default_boundaries(TOY_LAYERS, boundaries);
	for (int v = 0; v < 2; v++)
		assert_int_equal(draft_eagle3.load(x.d[1], x.dir[v], llama_embedding(x.target[1]), TOY_LAYERS, boundaries, DT_F32, &d[v], &e), 0);
	for (int i = 0; i < ASKS; i++) {
		const struct trace_record *rec[MAX_RECORDS];
		uint32_t want[ROUND_MAX_K];
		int n = records_of(asks[i].id, rec), rounds = 0;
		if (n)
			again(&x.got[i]);
		for (int r = 0; r < n; r++)
			for (int s = 0; s < rec[r]->S; s++) {
				const struct trace_record *t = rec[r];
				int v = (int)t->round_version[s] - 1;
				rounds++;
				assert_int_equal(v + 1, asks[i].version);
				assert_int_equal(t->round_flags[s], 0);
				propose_again(d[v], x.got[i].text, (int)t->positions[t->round_start[s]], t->round_len[s], want);
				for (int a = 0; a < t->round_len[s]; a++) {
					checked[v]++;
					off[v] += t->draft_ids[s * t->k + a] != want[a];
				}
			}
		assert_int_equal(rounds, n ? (int)x.got[i].stats.proposing_rounds : 0);
	}
	print_message("proposals that differ: %d of %d as written, %d of %d rebuilt\n", off[0], checked[0], off[1], checked[1]);
	assert_true(checked[0] > 100 && checked[1] > 20);
	assert_int_equal(off[0], 0);
	assert_true(off[1] * 20 <= checked[1]);
	for (int v = 0; v < 2; v++)
		draft_eagle3.free(d[v]);
}

/* ---- a draft in mid-answer ---- */

/* The answer to a long prompt; late: version 1 comes after nine tokens. */
static void answer(struct engine *g, struct job *j, bool late, bool draft, bool trace)
{
	static atomic_int ticks;
	struct errtext e = {0};
	atomic_store(&ticks, 0);
	job_random(j, 77, 100, 60);
	j->how = (struct sampling){.top_p = 1};
	j->ignore_eos = true;
	j->no_draft = !draft;
	j->no_trace = !trace;
	j->ticks = &ticks;
	j->stall_at = 9;
	assert_int_equal(engine_activate(g, late ? 0 : 1, true, 0, &e), 0);
	assert_int_equal(job_submit(g, j), 0);
	ticks_wait(&ticks, 9, j, 1);
	assert_int_equal(engine_activate(g, 1, false, 0, &e), 0);
	job_wait(j);
}

static void test_a_draft_in_mid_answer(void **state)
{
	static struct job plain, whole, late, untraced;
	struct tap_options to = {.brokers = "127.0.0.1:9", .traces_topic = "traces", .rounds_topic = "rounds", .H_t = TOY_H, .topk = TOPK, .sample = 1,
				 .ring_bytes = 8 << 20, .queue_bytes = 1 << 20}; /* nobody is there: records wait and are lost */
	struct errtext e = {0};
	struct tap *tap = NULL;
	char sha[65];
	(void)state;
	assert_int_equal(tap_new(&to, &tap, &e), 0);
	struct engine *g[] = {make(0, PREFIX_TENANT, tap), make(0, PREFIX_TENANT, tap), make(0, PREFIX_TENANT, tap)};
	for (int i = 0; i < 3; i++)
		assert_int_equal(engine_load(g[i], 1, x.dir[0], sha, &e), 0);
	answer(g[0], &whole, false, true, true);
	answer(g[1], &late, true, true, true);
	answer(g[2], &untraced, true, true, false);
	answer(g[2], &plain, false, false, false);
	assert_true(job_same(&plain, &whole) && job_same(&plain, &late) && job_same(&plain, &untraced));
	assert_int_equal(untraced.stats.proposed, 0);
	assert_true(whole.stats.accepted > 10);
	assert_true(late.stats.proposing_rounds > 5);
	double was = (double)whole.stats.accepted / whole.stats.proposing_rounds, is = (double)late.stats.accepted / late.stats.proposing_rounds;
	assert_true(is > 0.8 * was);
	for (int i = 0; i < 3; i++)
		engine_free(g[i]);
	tap_free(tap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_served), cmocka_unit_test(test_recorded), cmocka_unit_test(test_proposed),
					  cmocka_unit_test(test_a_draft_in_mid_answer)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
