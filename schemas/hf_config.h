/* config.json of a Hugging Face target: Llama, Qwen2, Qwen3.
 *
 * Anything that would change the answers and that we do not compute (other architectures, sliding
 * windows, quantised weights, biases elsewhere, unknown RoPE types) is refused by name.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum hf_arch { HF_LLAMA, HF_QWEN2, HF_QWEN3 };
enum hf_rope { HF_ROPE_DEFAULT, HF_ROPE_LINEAR, HF_ROPE_LLAMA3, HF_ROPE_YARN };
enum hf_tied { HF_TIED_NO, HF_TIED_YES, HF_TIED_UNSAID /* as lm_head.weight is there or not */ };
enum { HF_MAX_EOS = 8 };

struct hf_config {
	enum hf_arch arch;
	int n_layer, hidden, intermediate, n_head, n_kv_head, head_dim, vocab, max_position;
	double rms_eps;
	enum hf_tied tied;
	enum hf_rope rope;
	double rope_theta, rope_factor, rope_low, rope_high, rope_orig_max, rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all;
	int64_t bos_id;           /* -1 = not said */
	int64_t eos_ids[HF_MAX_EOS];
	int n_eos;
};

const char *hf_arch_name(enum hf_arch a); /* "llama", "qwen2", "qwen3": as GGUF names them too */
int MUSTCHECK hf_config_parse(const char *json, size_t len, struct hf_config *ret, struct errtext *e); /* -EINVAL, -ENOTSUP with e */
/* eos ids of generation_config.json join those in c (without doubles). */
int MUSTCHECK hf_generation_parse(const char *json, size_t len, struct hf_config *c, struct errtext *e);
