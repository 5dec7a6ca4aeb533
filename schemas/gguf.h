/* GGUF v3 reader: metadata, tokenizer arrays, tensors expanded to bf16.
 *
 * mmap'd; every count, length and offset is checked before use. Types F32, F16,
 * BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, and lists of I64; others are refused by name. Arch `llama` stores the q and k
 * rows of each head interleaved: gguf_read_hf gives them back in Hugging Face order. A
 * name that is no Hugging Face name is looked up as it stands ("rope_freqs.weight").
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

/* The format's own numbers: kinds of metadata values, and of tensors. */
enum gguf_value { GV_U8, GV_I8, GV_U16, GV_I16, GV_U32, GV_I32, GV_F32, GV_BOOL, GV_STRING, GV_ARRAY, GV_U64, GV_I64, GV_F64, GV_N };
enum gguf_type {
	GT_F32 = 0, GT_F16 = 1, GT_Q4_0 = 2, GT_Q4_1 = 3, GT_Q5_0 = 6, GT_Q5_1 = 7, GT_Q8_0 = 8,
	GT_Q2_K = 10, GT_Q3_K = 11, GT_Q4_K = 12, GT_Q5_K = 13, GT_Q6_K = 14, GT_I64 = 27 /* d2t of a draft */, GT_BF16 = 30,
};

struct gguf;
int MUSTCHECK gguf_open(const char *path, struct gguf **ret, struct errtext *e);
struct gguf *gguf_free(struct gguf *g);
void gguf_rest(const struct gguf *g); /* it may be long until it is read again: its pages are given back */

/* Metadata. -ENOENT when absent, -EINVAL when of another type. Strings are not
 * NUL-terminated in the file: ret points into the mapping, with its length. */
int MUSTCHECK gguf_u64(const struct gguf *g, const char *key, uint64_t *ret); /* any integer type, non-negative */
int MUSTCHECK gguf_f64(const struct gguf *g, const char *key, double *ret); /* any number */
int MUSTCHECK gguf_str(const struct gguf *g, const char *key, const char **ret, size_t *ret_len);
uint64_t gguf_array_len(const struct gguf *g, const char *key); /* 0 when absent */
/* i-th string / integer of an array; arrays are indexed once at open */
int MUSTCHECK gguf_array_str(const struct gguf *g, const char *key, uint64_t i, const char **ret, size_t *ret_len);
int MUSTCHECK gguf_array_i64(const struct gguf *g, const char *key, uint64_t i, int64_t *ret);

/* One tensor by its Hugging Face name ("model.layers.0.self_attn.q_proj.weight",
 * "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", ...), rows x
 * cols, as bf16 in a malloc'd array the caller frees. q/k rows un-permuted
 * for arch llama. Norm vectors have rows 1. -ENOENT when absent. */
int MUSTCHECK gguf_read_hf(const struct gguf *g, const char *hf_name, int *ret_rows, int *ret_cols, uint16_t **ret_bf16, struct errtext *e);
/* A list of integers under its own name (d2t); malloc'd. -ENOENT, -EINVAL: of another type or shape. */
int MUSTCHECK gguf_read_i64(const struct gguf *g, const char *name, int *ret_n, int64_t **ret);
/* A small F32 tensor under its own name ("rope_freqs.weight"), as floats; -EINVAL when it is of another type. */
int MUSTCHECK gguf_read_f32(const struct gguf *g, const char *name, int *ret_rows, int *ret_cols, float **ret, struct errtext *e);
