/* Attention's tables: who sees whom, for the kernels of attn.cu (plan.c). Host memory only; nothing here asks the device. */
#pragma once
#include "kernels/cuda/kern.h"
#include "kernels/ops.h"

/* What they depend on beside the sequences */
struct plan_of {
	struct kv_pool pool;
	int nh;
	bool tensor; /* a prompt's rows go over tensor cores (prompt.cu), which cuts them otherwise */
};

/* What the tables of a batch need at most. */
struct plan_room {
	int M;                    /* rows */
	int tiles, prompt;        /* on FP32 units, on tensor cores */
	int pages, paths;
	int parts;                /* partial results of nh heads; 0: every row has one split */
};

struct plan {
	struct ck_row *rows;   /* [M] */
	struct ck_tile *tiles, *prompt;
	uint32_t *pages;
	int16_t *paths;
	int n_tiles, n_prompt, n_pages, n_paths, n_parts;
};

/* NULL, or what is wrong with the sequences. */
const char *plan_room(const struct attn_seq *seqs, int n_seqs, const struct plan_of *of, struct plan_room *ret);
/* Room for somewhat longer contexts too: rounded up to powers of two. */
struct plan_room plan_round_up(struct plan_room r);
bool plan_fits(const struct plan_room *r, const struct plan_room *in);
size_t plan_bytes(const struct plan_room *r);
/* Into plan_bytes at `to`; tiles that are not needed have no rows. */
struct plan plan_fill(char *to, const struct plan_room *r, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of);
/* Where the tables lie in a copy of that at `on_dev`. */
void plan_point(struct ck_attn *a, const char *on_dev, const struct plan_room *r);
