/* What the learner knows of the target: its frozen embedding and head.
 *
 * The server exports store/frozen/<target_fp>/frozen.safetensors once; this maps
 * it. Its __metadata__ carries the target's shape, from which a first draft is
 * sized. Threads: read-only after frozen_open.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/fs.h"
#include "schemas/draft_config.h"

struct frozen {
	char target_fp[65];
	int V, H;                  /* vocabulary, target hidden */
	bool tied;
	const uint16_t *embedding; /* bf16 [V,H]; into the mapping or `copy` */
	const uint16_t *head;      /* bf16 [V,H]; == embedding when tied */
	int n_layer, n_head, n_kv_head, head_dim, intermediate_size, max_ctx; /* 0 = not told */
	double rms_eps, rope_theta;
	int64_t bos_id, eos_id, pad_id;
	struct fs_map map;
	void *copy;                /* aligned copy when the mapping is not; owned */
};

/* target_fp "" = the only one there is. No file: -ENOENT with a sentence that says
 * how it comes to be; several and none named, or a wrong file: -EINVAL. */
int MUSTCHECK frozen_open(const char *store, const char *target_fp, struct frozen *ret, struct errtext *e);
void frozen_close(struct frozen *f); /* safe on a zeroed struct and twice */

/* The shape of a first draft for this target: one Llama layer as wide as the target. */
int MUSTCHECK frozen_draft_config(const struct frozen *f, int draft_vocab, struct draft_config *ret, struct errtext *e);
