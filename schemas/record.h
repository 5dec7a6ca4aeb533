/* Trace records (topic redraft.traces): contracts.md, "Trace record". schema "1".
 *
 * T consecutive rows of one request; S rounds whose row t lies in it. Row i holds
 * token x_i, its position and features f_i. A decoded record points into aligned
 * copies it owns. Everything is validated on decode: T equal in all, ids <
 * vocab when given, accepted <= len, finite features scale, sizes under the limit.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"

enum { RECORD_MAX_BYTES = 900000, RECORD_MAX_K = 16, RECORD_MAX_TOPK = 256 };
#define RECORD_PAD 0xFFFFFFFFu

/* How features travel; a decoded record's are bf16 whatever they were. */
enum record_payload {
	RECORD_BF16,
	RECORD_PLANES, /* low bytes, and the high bytes as one zstd frame: lossless */
	RECORD_FP8,    /* e4m3 with a scale a row and boundary */
	RECORD_INT8,
};
#define RECORD_PAYLOADS "bf16|planes|fp8|int8" /* as options spell them, in enum order */

struct trace_meta {
	char target_fp[65];
	char request[64], conversation[65], parent[96], domain[32], tenant[65], producer[40];
	uint64_t seq;  /* of the producer: de-duplication */
	uint32_t run;  /* index of this record within its request: gaps */
	bool last;
	float temperature;
};

struct trace_record {
	struct trace_meta meta;
	enum record_payload payload;           /* encode: wanted; decode: found */
	int T, T_gen, T_prompt, S, K, k, H_t; /* K: teacher depth, k: max draft length of the record */
	const uint32_t *token_ids, *positions; /* [T] */
	uint32_t next_token;
	const uint8_t *loss_mask;              /* [T] */
	const uint16_t *features;              /* bf16 [T,3,H_t] */
	const uint8_t *codes;                  /* encode, 8-bit payloads, instead of features: [T,3,H_t] as they travel, */
	const float *scales;                   /* and their scales [T,3] */
	const uint32_t *topk_ids;              /* [T_gen,K] */
	const uint16_t *topk_logprob;          /* f16 [T_gen,K] */
	const uint16_t *last_hidden;           /* bf16 [T_prompt,H_t] or NULL */
	const uint32_t *round_start;           /* [S] local row index */
	const uint8_t *round_len, *accepted;   /* [S] */
	const uint32_t *round_version;         /* [S] */
	const uint8_t *round_flags;            /* [S] */
	const uint32_t *draft_ids;             /* [S,k] */
	const uint8_t *draft_parent;           /* [S,k] or NULL = chains */
	void *owned;                           /* the aligned copies */
};

int MUSTCHECK record_encode(struct buf *out, const struct trace_record *r); /* -E2BIG over the limit */
/* vocab 0 = unknown. On failure e says which field; nothing is owned. */
int MUSTCHECK record_decode(const void *blob, size_t len, uint32_t vocab, struct trace_record *ret, struct errtext *e);
void record_done(struct trace_record *r);
/* Round s proposed a chain; trees are replayed by nobody. */
bool record_round_is_chain(const struct trace_record *r, int s);
/* Bytes a record of this shape takes, at most: for choosing T before encoding. Planes count as bf16. */
size_t record_bytes(enum record_payload payload, int T, int T_gen, int T_prompt, int S, int K, int k, int H_t);

/* f16 <-> f32, for log-probabilities */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

/* Kafka headers, CloudEvents binary mode; frozen here. */
#define RECORD_CE_TYPE "io.redraft.trace.v1"
#define ROUND_CE_TYPE "io.redraft.round.v1"
