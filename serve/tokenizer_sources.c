/* A vocabulary in a GGUF file and in a Hugging Face folder. */
#include <string.h>
#include "schemas/gguf.h"
#include "schemas/hf_tokenizer.h"
#include "serve/tokenizer_build.h"

/* ---- GGUF ---- */

static int gguf_token(const void *ctx, uint64_t i, const char **ret, size_t *ret_len, int64_t *ret_type)
{
	const char *types = "tokenizer.ggml.token_type";

	if (gguf_array_len(ctx, types) > 0 && gguf_array_i64(ctx, types, i, ret_type) < 0)
		return -EINVAL;
	return gguf_array_str(ctx, "tokenizer.ggml.tokens", i, ret, ret_len);
}

static int gguf_merge(const void *ctx, uint64_t i, const char **ret, size_t *ret_len)
{
	return gguf_array_str(ctx, "tokenizer.ggml.merges", i, ret, ret_len);
}

static int64_t gguf_id(const struct gguf *g, const char *key)
{
	uint64_t id;

	return gguf_u64(g, key, &id) == 0 && id < UINT32_MAX ? (int64_t)id : -1;
}

int tokenizer_load(const struct gguf *g, struct tokenizer **ret, struct errtext *e)
{
	const char *model;
	size_t n;
	uint64_t add;
	struct vocab v = {
		.ctx = g,
		.n_tokens = gguf_array_len(g, "tokenizer.ggml.tokens"),
		.n_merges = gguf_array_len(g, "tokenizer.ggml.merges"),
		.token = gguf_token,
		.merge = gguf_merge,
		.bos = gguf_id(g, "tokenizer.ggml.bos_token_id"),
		.eos = gguf_id(g, "tokenizer.ggml.eos_token_id"),
		.eog = {gguf_id(g, "tokenizer.ggml.eot_token_id"), gguf_id(g, "tokenizer.ggml.eom_token_id")},
		.n_eog = 2,
	};

	if (gguf_str(g, "tokenizer.ggml.model", &model, &n) < 0 || n != 4 || memcmp(model, "gpt2", 4) != 0)
		return errtext_set(e, -EINVAL, "the model file's tokenizer is not a byte-level BPE (tokenizer.ggml.model gpt2)");
	if (gguf_str(g, "tokenizer.ggml.pre", &v.pre, &v.n_pre) < 0) {
		v.pre = "gpt-2";
		v.n_pre = 5;
	}
	/* files that do not say: Llama 3 begins a text with its token, the others do not */
	v.add_bos = gguf_u64(g, "tokenizer.ggml.add_bos_token", &add) == 0 ? add != 0 : v.n_pre == 9 && memcmp(v.pre, "llama-bpe", 9) == 0;
	return tokenizer_build(&v, ret, e);
}

/* ---- Hugging Face ---- */

static int hf_token(const void *ctx, uint64_t i, const char **ret, size_t *ret_len, int64_t *ret_type)
{
	const struct hf_token *k = &((const struct hf_tokenizer *)ctx)->tokens[i];

	*ret = k->text;
	*ret_len = k->len;
	*ret_type = k->kind;
	return 0;
}

static int hf_merge(const void *ctx, uint64_t i, const char **ret, size_t *ret_len)
{
	*ret = ((const struct hf_tokenizer *)ctx)->merges[i];
	*ret_len = strlen(*ret);
	return 0;
}

int tokenizer_from_hf(const struct hf_tokenizer *h, const int64_t *eog, int n_eog, struct tokenizer **ret, struct errtext *e)
{
	struct vocab v = {
		.ctx = h,
		.n_tokens = h->n_tokens,
		.n_merges = h->n_merges,
		.token = hf_token,
		.merge = hf_merge,
		.pre = h->pre,
		.n_pre = strlen(h->pre),
		.bos = h->bos_id,
		.eos = h->eos_id,
		.add_bos = h->add_bos,
	};

	for (int i = 0; i < n_eog && v.n_eog < MAX_EOG; i++)
		v.eog[v.n_eog++] = eog[i];
	return tokenizer_build(&v, ret, e);
}
