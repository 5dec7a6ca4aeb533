/* From row groups and rounds to trace records: the tap thread's side of one request.
 *
 * Rows gather in fixed arrays. A record is handed out when the next row would
 * take it over the limit, or at the end: so late that every round whose row t lies
 * in it has arrived, because a round is told before the rows that follow from it.
 * Memory is bounded: one record's worth a request.
 */
#pragma once
#include <stdbool.h>
#include "schemas/record.h"

struct tap_open {
	struct trace_meta meta; /* but for seq and last; run counts up here */
	enum record_payload payload;
	int H_t, K, cap; /* cap: rows the arrays hold */
	int T, T_gen, n_hidden, S;
	bool started; /* next_token and next_pos say what must follow */
	uint32_t next_token, next_pos;
	uint32_t *ids, *pos, *topk_ids;
	uint16_t *features, *hidden, *topk_lp; /* features: bf16; of an 8-bit payload NULL, and in their place: */
	uint8_t *codes;
	float *scales; /* [cap,3] */
	uint8_t *mask;
	uint32_t *round_start, *round_version, *draft_ids; /* draft_ids [S, RECORD_MAX_K] */
	uint8_t *round_len, *accepted, *round_flags, *draft_parent; /* draft_parent as draft_ids */
	void *memory; /* owned; all of the arrays */
};

struct tap_rows { /* consecutive rows, already in the record's number formats */
	int n;
	bool prompt;
	const uint32_t *ids, *pos;
	const uint16_t *features; /* bf16 [n,3*H_t]; NULL: */
	const uint8_t *codes;     /* [n,3*H_t] of the payload's kind, */
	const float *scales;      /* [n,3] */
	const uint16_t *hidden; /* bf16 [n,H_t] or NULL */
	const uint32_t *topk_ids; /* [n,K] of generated rows */
	const uint16_t *topk_lp; /* f16 [n,K] */
	uint32_t next_token;
};

struct tap_round {
	uint32_t row_pos, version;
	int len, accepted;
	bool mixed_kv;
	uint32_t ids[RECORD_MAX_K];
	uint8_t parent[RECORD_MAX_K]; /* 255 = the root */
};

/* Where finished records go. r points into the request's arrays; emit sets meta.seq. */
struct tap_sink {
	int (*emit)(void *arg, struct trace_record *r);
	void *arg;
};

/* max_rows: no record holds more, as no request has more; 0 = not known. */
int MUSTCHECK tap_open_init(struct tap_open *o, int H_t, int K, bool with_hidden, int max_rows, enum record_payload payload);
void tap_open_done(struct tap_open *o);
void tap_open_reset(struct tap_open *o, const struct trace_meta *meta); /* a new request in the same memory */
/* -EPROTO: rows do not follow those before; else emit's failure. */
int MUSTCHECK tap_open_rows(struct tap_open *o, const struct tap_rows *g, const struct tap_sink *to);
void tap_open_round(struct tap_open *o, const struct tap_round *r); /* one that starts outside the rows held is ignored */
int MUSTCHECK tap_open_end(struct tap_open *o, const struct tap_sink *to);
