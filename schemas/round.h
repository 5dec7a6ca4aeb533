/* Round records (topic redraft.rounds): one JSON object per request, version and
 * part: accept counts and latencies, no tensors. Every request sends it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"

enum { ROUND_MAX_K = 16, ROUND_TPOT_EDGES = 16 };
/* TPOT histogram edges in ms: fixed, part of the schema; one bin more for the rest */
extern const double round_tpot_edges_ms[ROUND_TPOT_EDGES];

struct round_record {
	char target_fp[65], producer[40], request[64], conversation[65], domain[32], tenant[65];
	uint64_t seq;
	uint32_t part, version;
	bool last;
	int context_bucket; /* round_bucket() */
	int k;
	uint32_t rounds;                    /* decoding rounds, those without proposals included */
	uint32_t proposed[ROUND_MAX_K];     /* proposed[i]: rounds that proposed at position i */
	uint32_t accepted[ROUND_MAX_K];
	uint32_t tree_proposed[ROUND_MAX_K], tree_accepted[ROUND_MAX_K]; /* of those: in rounds whose proposals branched */
	uint32_t tokens, prompt_tokens;
	double ttft_ms;
	uint32_t tpot_ms[ROUND_TPOT_EDGES + 1];
	uint32_t dropped_records;
};
enum { ROUND_BUCKETS = 8 };
int round_bucket(int64_t context_tokens); /* log2 of tokens / 128, clipped to 0..7 */
/* Accept length = 1 + sum(accepted) / proposed[0]; NaN when nothing was proposed. */
double round_accept_length(const struct round_record *r);
int MUSTCHECK round_encode(struct buf *out, const struct round_record *r);
int MUSTCHECK round_decode(const void *json, size_t len, struct round_record *ret, struct errtext *e);
