/* GGUF tensors under their Hugging Face names and in Hugging Face row order.
 *
 * Arch `llama` stores the q and k rows of each head as [d/2, 2] (the pairs that
 * rotate together side by side); Hugging Face and rotate-half RoPE want [2, d/2].
 * Rows are put back while they are expanded, so nothing is copied twice. Other
 * architectures (qwen2, qwen3) are stored un-permuted already.
 */
#include "schemas/gguf_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *hf, *gguf; /* of a layer, without its number */
} layer_names[] =
	{
		{"input_layernorm.weight", "attn_norm.weight"},
		{"self_attn.q_proj.weight", "attn_q.weight"},
		{"self_attn.k_proj.weight", "attn_k.weight"},
		{"self_attn.v_proj.weight", "attn_v.weight"},
		{"self_attn.o_proj.weight", "attn_output.weight"},
		{"self_attn.q_proj.bias", "attn_q.bias"},
		{"self_attn.k_proj.bias", "attn_k.bias"},
		{"self_attn.v_proj.bias", "attn_v.bias"},
		{"self_attn.q_norm.weight", "attn_q_norm.weight"},
		{"self_attn.k_norm.weight", "attn_k_norm.weight"},
		{"post_attention_layernorm.weight", "ffn_norm.weight"},
		{"mlp.gate_proj.weight", "ffn_gate.weight"},
		{"mlp.up_proj.weight", "ffn_up.weight"},
		{"mlp.down_proj.weight", "ffn_down.weight"},
},
  model_names[] = {
	  {"model.embed_tokens.weight", "token_embd.weight"},
	  {"model.norm.weight", "output_norm.weight"},
	  {"lm_head.weight", "output.weight"},
};

/* 0 and the file's name for an HF name; a name that is in neither table stands for itself. */
static int translate(const char *hf, char *ret, size_t size)
{
	unsigned layer;
	int used = 0, n = -1;

	if (sscanf(hf, "model.layers.%7u.%n", &layer, &used) == 1 && used > 0) {
		for (size_t i = 0; i < sizeof layer_names / sizeof layer_names[0]; i++) {
			if (strcmp(hf + used, layer_names[i].hf) == 0)
				n = snprintf(ret, size, "blk.%u.%s", layer, layer_names[i].gguf);
		}
		return n < 0 ? -ENOENT : 0;
	}
	for (size_t i = 0; i < sizeof model_names / sizeof model_names[0]; i++) {
		if (strcmp(hf, model_names[i].hf) == 0)
			hf = model_names[i].gguf;
	}
	n = snprintf(ret, size, "%s", hf);
	return n < 0 || (size_t)n >= size ? -ENOENT : 0;
}

/* Heads whose rows are interleaved in the file, 0 = none. */
static int interleaved_heads(const struct gguf *g, const char *hf, uint64_t *ret, struct errtext *e)
{
	const char *arch;
	size_t len;
	uint64_t heads, kv;

	*ret = 0;
	bool q = strstr(hf, "self_attn.q_proj.") != NULL, k = strstr(hf, "self_attn.k_proj.") != NULL;
	if ((!q && !k) || gguf_str(g, "general.architecture", &arch, &len) < 0 || len != 5 || memcmp(arch, "llama", 5) != 0)
		return 0;
	if (gguf_u64(g, "llama.attention.head_count", &heads) < 0 || heads == 0)
		return errtext_set(e, -EINVAL, "GGUF: llama.attention.head_count is missing");
	if (gguf_u64(g, "llama.attention.head_count_kv", &kv) < 0)
		kv = heads;
	*ret = q ? heads : kv;
	if (*ret == 0)
		return errtext_set(e, -EINVAL, "GGUF: llama.attention.head_count_kv is 0");
	return 0;
}

static int check_finite(const uint16_t *v, size_t n, const char *name, struct errtext *e)
{
	unsigned bad = 0;

	for (size_t i = 0; i < n; i++)
		bad |= (v[i] & 0x7f80u) == 0x7f80u;
	return bad ? errtext_set(e, -EINVAL, "GGUF tensor %.80s: a value is not finite", name) : 0;
}

static int expand_rows(const struct gguf *g, const struct gguf_tensor *t, const char *hf, uint16_t *out, struct errtext *e)
{
	size_t cols = (size_t)t->cols, rows = (size_t)t->rows;
	uint64_t heads;
	int r = interleaved_heads(g, hf, &heads, e);

	if (r < 0)
		return r;
	if (heads && t->n_dims == 1) /* a bias: its values are the rows */
		return errtext_set(e, -EINVAL, "GGUF tensor %.80s: q and k biases are not supported for arch llama", hf);
	if (!heads) {
		gguf_expand(t->type, t->data, rows * cols, out);
		return check_finite(out, rows * cols, hf, e);
	}
	if (rows % heads || rows / heads % 2)
		return errtext_set(e, -EINVAL, "GGUF tensor %.80s: %zu rows do not divide into %llu heads", hf, rows,
				   (unsigned long long)heads);
	size_t d = rows / (size_t)heads, row_bytes = cols / gguf_block_values(t->type) * gguf_block_bytes(t->type);
	for (size_t row = 0; row < rows; row++) {
		size_t within = row % d, from = row - within + within % (d / 2) * 2 + within / (d / 2);
		gguf_expand(t->type, t->data + from * row_bytes, cols, out + row * cols);
	}
	return check_finite(out, rows * cols, hf, e);
}

int gguf_read_hf(const struct gguf *g, const char *hf_name, int *ret_rows, int *ret_cols, uint16_t **ret_bf16, struct errtext *e)
{
	char name[256];

	if (translate(hf_name, name, sizeof name) < 0)
		return errtext_set(e, -ENOENT, "GGUF: no tensor %.80s", hf_name);
	const struct gguf_tensor *t = gguf_find_tensor(g, name);
	if (!t)
		return errtext_set(e, -ENOENT, "GGUF: no tensor %.80s", name);
	if (t->n_dims > 2 || t->type == GT_I64)
		return errtext_set(e, -EINVAL, "GGUF tensor %.80s has %d dimensions and is of type %s", name, t->n_dims, gguf_type_name(t->type));
	size_t n = (size_t)(t->rows * t->cols); /* bounded at open: the file holds them all */
	uint16_t *out = malloc(n * 2 + 1);
	if (!out)
		return errtext_set(e, -ENOMEM, "out of memory for %.80s", name);
	int r = expand_rows(g, t, hf_name, out, e);
	if (r < 0) {
		free(out);
		return r;
	}
	*ret_rows = (int)t->rows;
	*ret_cols = (int)t->cols;
	*ret_bf16 = out;
	return 0;
}

int gguf_read_i64(const struct gguf *g, const char *name, int *ret_n, int64_t **ret)
{
	const struct gguf_tensor *t = gguf_find_tensor(g, name);

	if (!t)
		return -ENOENT;
	if (t->type != GT_I64 || t->rows != 1 || t->cols > INT_MAX)
		return -EINVAL;
	int64_t *out = malloc((size_t)t->cols * sizeof *out + 1);
	if (!out)
		return -ENOMEM;
	memcpy(out, t->data, (size_t)t->cols * sizeof *out);
	*ret_n = (int)t->cols;
	*ret = out;
	return 0;
}

int gguf_read_f32(const struct gguf *g, const char *name, int *ret_rows, int *ret_cols, float **ret, struct errtext *e)
{
	const struct gguf_tensor *t = gguf_find_tensor(g, name);

	if (!t)
		return errtext_set(e, -ENOENT, "GGUF: no tensor %.80s", name);
	if (t->type != GT_F32 || t->n_dims > 2)
		return errtext_set(e, -EINVAL, "GGUF tensor %.80s is not F32", name);
	float *out = malloc((size_t)(t->rows * t->cols) * sizeof *out);
	if (!out)
		return errtext_set(e, -ENOMEM, "out of memory for %.80s", name);
	memcpy(out, t->data, (size_t)(t->rows * t->cols) * sizeof *out);
	*ret_rows = (int)t->rows;
	*ret_cols = (int)t->cols;
	*ret = out;
	return 0;
}
