/* A record that decodes can be encoded again in every kind of payload, and the lossless ones decode to the same. */
#include <string.h>
#include "schemas/record.h"
#include "tests/fuzz/fuzz.h"

static void record_same(const struct trace_record *a, const struct trace_record *b)
{
	size_t T = (size_t)a->T, S = (size_t)a->S, k = (size_t)a->k, K = (size_t)a->K, G = (size_t)a->T_gen, H = (size_t)a->H_t;

	FUZZ_CHECK(a->T == b->T && a->S == b->S && a->T_gen == b->T_gen && a->H_t == b->H_t && a->next_token == b->next_token);
	FUZZ_CHECK(!memcmp(a->token_ids, b->token_ids, 4 * T) && !memcmp(a->positions, b->positions, 4 * T));
	FUZZ_CHECK(!memcmp(a->loss_mask, b->loss_mask, T) && !memcmp(a->features, b->features, 6 * T * H));
	FUZZ_CHECK(!a->topk_ids || (!memcmp(a->topk_ids, b->topk_ids, 4 * G * K) && !memcmp(a->topk_logprob, b->topk_logprob, 2 * G * K)));
	FUZZ_CHECK(!a->last_hidden || !memcmp(a->last_hidden, b->last_hidden, 2 * (T - G) * H));
	FUZZ_CHECK(!S || (!memcmp(a->round_start, b->round_start, 4 * S) && !memcmp(a->accepted, b->accepted, S)));
	FUZZ_CHECK(!S || !k || !memcmp(a->draft_ids, b->draft_ids, 4 * S * k));
	FUZZ_CHECK(!strcmp(a->meta.request, b->meta.request) && a->meta.seq == b->meta.seq && a->meta.run == b->meta.run);
}

FUZZ(record)
{
	struct trace_record r, again;
	struct errtext e = {""};
	struct buf out = BUF_INIT(0);

	if (record_decode(data, size, 600, &r, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return 0;
	}
	for (int i = 0; i < r.T; i++)
		FUZZ_CHECK(r.token_ids[i] < 600 && r.positions[i] == r.positions[0] + (uint32_t)i);
	for (int s = 0; s < r.S; s++)
		FUZZ_CHECK(r.round_start[s] < (uint32_t)r.T && r.accepted[s] <= r.round_len[s] && r.round_len[s] <= r.k);
	for (int kind = RECORD_BF16; kind <= RECORD_INT8; kind++) {
		out.len = 0;
		r.payload = (enum record_payload)kind;
		int rc = record_encode(&out, &r);
		FUZZ_CHECK(rc == 0 || rc == -E2BIG); /* 8-bit features take twice the room as bf16 */
		if (rc)
			continue;
		FUZZ_CHECK(record_decode(out.data, out.len, 600, &again, &e) == 0);
		if (kind < RECORD_FP8)
			record_same(&r, &again);
		record_done(&again);
	}
	buf_done(&out);
	record_done(&r);
	return 0;
}
