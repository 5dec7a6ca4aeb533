/* config.json of an EAGLE-3 draft (eagle3.md §1.3, §1.8) <-> struct eagle3-like fields,
 * and loading a draft folder: names, aliases, shapes, d2t/t2d invariants checked.
 *
 * schemas/ may not include kernels/, so the shape lives here too and the
 * rooms above copy it field by field.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct draft_config {
	int hidden_size, target_hidden_size, intermediate_size, n_head, n_kv_head, head_dim;
	int vocab_size, draft_vocab_size, max_position;
	double rms_eps, rope_theta;
	int rope_kind; /* 0 default 1 linear 2 llama3 3 yarn, as enum in kernels/model/model.h */
	double rope_factor, rope_low, rope_high, rope_orig_max, rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all;
	int boundaries[3];       /* resolved; n_target_layers given to parse when the key is absent */
	bool boundaries_default; /* no layer key in the file */
	bool norm_before_residual, norm_before_fc, fc_norm, norm_output;
	int64_t bos_id, eos_id, pad_id;
};

/* n_target_layers resolves absent layer keys to {2, L/2, L-3}. */
int MUSTCHECK draft_config_parse(const char *json, int n_target_layers, struct draft_config *ret, struct errtext *e);
/* Text of config.json as §1.3 and §1.8 demand (both rope forms, no layer key for defaults). malloc'd. */
int MUSTCHECK draft_config_print(const struct draft_config *c, char **ret, struct errtext *e);

/* A checkpoint folder opened: config + mapped safetensors, aliases resolved. */
struct draft_files;
int MUSTCHECK draft_open(const char *dir, int n_target_layers, struct draft_files **ret, struct errtext *e);
struct draft_files *draft_close(struct draft_files *f);
const struct draft_config *draft_files_config(const struct draft_files *f);
const int64_t *draft_files_d2t(const struct draft_files *f); /* [V_d], aligned copy; target id = draft id + d2t */
/* by canonical name ("fc.weight", "midlayer.…", "norm.weight", "lm_head.weight"):
 * dtype is f32 or bf16 (f16 is widened to f32); data aligned, owned by f. -ENOENT. */
int MUSTCHECK draft_files_tensor(const struct draft_files *f, const char *name, bool *ret_is_bf16,
				 int *ret_rows, int *ret_cols, const void **ret_data);

/* Write model.safetensors (bf16 or f32, d2t I64, t2d BOOL, metadata format=pt) and
 * config.json into dir, each by temp + fsync + rename. tensors: n canonical names. */
struct draft_tensor { const char *name; int rows, cols; const float *data; };
int MUSTCHECK draft_save(const char *dir, const struct draft_config *c, const int64_t *d2t,
			 const struct draft_tensor *t, int n, bool as_bf16, struct errtext *e);

/* Fingerprints (contracts.md): canonical order is names ascending bytewise, each
 * name ‖ dtype ‖ shape ‖ little-endian bytes. */
struct fp;
struct fp *fp_new(void);
/* tensors may be added in any order; data borrowed until fp_final_hex. dtype "BF16", "F32", "I64", ... */
int MUSTCHECK fp_add(struct fp *f, const char *name, const char *dtype, const uint64_t *shape, int n_dims, const void *data, size_t bytes);
/* A weight as every fingerprint sees it: bf16, [rows,cols], or [cols] when rows is 1. */
int MUSTCHECK fp_add_bf16(struct fp *f, const char *name, int rows, int cols, const uint16_t *bf16);
int MUSTCHECK fp_final_hex(struct fp *f, char ret_hex[static 65]); /* then only fp_free */
struct fp *fp_free(struct fp *f);
/* weights_sha of an opened draft: its own tensors, as bf16 whatever the file's dtype is, and
 * d2t ("d2t", "I64", [V_d]); not embed_tokens, not t2d. A server that holds f32 rounds first. */
int MUSTCHECK draft_weights_sha(const struct draft_files *f, char ret_hex[static 65]);
/* draft_fp = SHA-256(target_fp ‖ d2t bytes ‖ canonical config text) */
int MUSTCHECK draft_fp(const char *target_fp, const struct draft_config *c, const int64_t *d2t, char ret_hex[static 65]);
