/* How a draft begins: its vocabulary from token counts, its weights from the
 * target or at random. Pure functions of their arguments and the seed. */
#pragma once
#include "learn/ttt.h"

/* d2t of the V_d most frequent tokens (ties: the lower id; ids never seen fill up,
 * smallest first), ascending: ret_d2t[i] = id_i - i. counts [V]. -EINVAL: V_d > V. */
int MUSTCHECK draft_vocab_from_counts(const uint64_t *counts, int V, int V_d, int64_t *ret_d2t);

/* Matrices normal with deviation 0.02, cut at two deviations; norms 1. */
void draft_init_random(const struct eagle3_config *c, uint64_t seed, real *ret_weights);
/* As draft_init_random, then, where draft and target are equally wide: fc passes a
 * tenth of the highest boundary through (on its third block, over noise), and the head
 * takes the target's rows of the draft vocabulary. head_bf16 [V,H_t]: lm_head, or
 * the embedding when tied. final_norm [H_t]: the target's last norm, for the
 * draft's, or NULL for ones. */
void draft_init_warm(const struct eagle3_config *c, const int64_t *d2t, const uint16_t *head_bf16, const real *final_norm, uint64_t seed,
		     real *ret_weights);
