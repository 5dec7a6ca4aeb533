/* The shape of a target from a GGUF file's metadata.
 *
 * Every tensor is then held against it by llama_load.
 */
#include <stdlib.h>
#include <string.h>
#include "schemas/gguf.h"
#include "serve/target_source.h"

static int number(const struct gguf *g, const char *key, long min, long max, int *ret, struct errtext *e)
{
	uint64_t v = 0;
	int r = gguf_u64(g, key, &v);
	if (r)
		return errtext_set(e, -EINVAL, "model file: %s is %s", key, r == -ENOENT ? "missing" : "no whole number");
	if (v < (uint64_t)min || v > (uint64_t)max)
		return errtext_set(e, -EINVAL, "model file: %s is %llu, expected %ld..%ld", key, (unsigned long long)v, min, max);
	*ret = (int)v;
	return 0;
}

static double optional(const struct gguf *g, const char *key, double otherwise)
{
	double v;
	return gguf_f64(g, key, &v) ? otherwise : v;
}

static bool text_is(const char *s, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(s, want, len) == 0;
}

/* "llama.block_count" and the like: every key but a few begins with the architecture's name. */
struct key {
	char text[80];
};

static struct key key_of(const char *arch, const char *rest)
{
	struct key k;
	snprintf(k.text, sizeof k.text, "%s.%s", arch, rest);
	return k;
}

/* Llama 3's scaling comes as a tensor of one divisor a frequency. */
static int read_factors(const struct gguf *g, int hd, struct rope_config *r, struct errtext *e)
{
	const char *name = "rope_freqs.weight";
	int rows, cols;
	float *f;
	int rc = gguf_read_f32(g, name, &rows, &cols, &f, e);
	if (rc == -ENOENT)
		return 0;
	if (rc)
		return rc;
	bool good = rows == 1 && cols == hd / 2 && cols <= ROPE_MAX_FACTORS;
	for (int i = 0; good && i < cols; i++) {
		r->factors[i] = f[i];
		good = f[i] > 0;
	}
	free(f);
	if (!good)
		return errtext_set(e, -EINVAL, "model file: %s is not %d positive numbers", name, hd / 2);
	r->kind = ROPE_FACTORS;
	return 0;
}

static int read_rope(const struct gguf *g, const char *arch, int hd, struct rope_config *r, struct errtext *e)
{
	const char *kind;
	size_t len;
	r->theta = optional(g, key_of(arch, "rope.freq_base").text, 10000);
	r->kind = ROPE_DEFAULT;
	if (gguf_str(g, key_of(arch, "rope.scaling.type").text, &kind, &len) || text_is(kind, len, "none"))
		return read_factors(g, hd, r, e);
	r->factor = optional(g, key_of(arch, "rope.scaling.factor").text, 1);
	r->orig_max = optional(g, key_of(arch, "rope.scaling.original_context_length").text, 0);
	if (text_is(kind, len, "linear")) {
		r->kind = ROPE_LINEAR;
	} else if (text_is(kind, len, "yarn") && r->orig_max > 0) {
		r->kind = ROPE_YARN;
		r->beta_fast = optional(g, key_of(arch, "rope.scaling.yarn_beta_fast").text, 32);
		r->beta_slow = optional(g, key_of(arch, "rope.scaling.yarn_beta_slow").text, 1);
		r->mscale = 1;
	} else {
		return errtext_set(e, -ENOTSUP, "model file: RoPE scaling \"%.*s\" is not supported", (int)(len < 32 ? len : 32), kind);
	}
	return r->factor > 0 ? 0 : errtext_set(e, -EINVAL, "model file: rope.scaling.factor must be positive");
}

static int read_arch(const struct gguf *g, const char **ret, struct llama_config *c, struct errtext *e)
{
	static const char *const known[] = {"llama", "qwen2", "qwen3"};
	const char *arch;
	size_t len;
	if (gguf_str(g, "general.architecture", &arch, &len))
		return errtext_set(e, -EINVAL, "model file: general.architecture is missing");
	for (int i = 0; i < 3; i++)
		if (text_is(arch, len, known[i])) {
			*ret = known[i];
			c->qkv_bias = i == 1;
			c->qk_norm = i == 2;
			return 0;
		}
	return errtext_set(e, -ENOTSUP, "model file: architecture \"%.*s\" is not served; llama, qwen2 and qwen3 are", (int)(len < 40 ? len : 40), arch);
}

/* A head of its own, or the embedding again? */
static int read_tied(const struct gguf *g, bool *ret, struct errtext *e)
{
	int rows, cols;
	uint16_t *data;
	int r = gguf_read_hf(g, "lm_head.weight", &rows, &cols, &data, e);
	if (r == -ENOENT) {
		*ret = true;
		return 0;
	}
	if (r)
		return r;
	free(data);
	*ret = false;
	return 0;
}

int target_gguf_config(const struct gguf *g, struct llama_config *c, int *ret_context, struct errtext *e)
{
	const char *arch = NULL;
	int r = read_arch(g, &arch, c, e);
	if (r)
		return r;
	const struct { const char *key; int *at; long max; } need[] = {
		{"block_count", &c->n_layer, 1000},
		{"embedding_length", &c->H, 1 << 17},
		{"feed_forward_length", &c->I, 1 << 19},
		{"attention.head_count", &c->n_head, 1024},
		{"attention.head_count_kv", &c->n_kv, 1024},
		{"context_length", ret_context, 1 << 24},
	};
	for (size_t i = 0; !r && i < sizeof need / sizeof *need; i++)
		r = number(g, key_of(arch, need[i].key).text, 1, need[i].max, need[i].at, e);
	if (r)
		return r;
	uint64_t v = gguf_array_len(g, "tokenizer.ggml.tokens");
	if (v < 1 || v > 1 << 22)
		return errtext_set(e, -EINVAL, "model file: it holds no vocabulary");
	c->V = (int)v;
	c->hd = gguf_u64(g, key_of(arch, "attention.key_length").text, &v) == 0 && v < 4096 ? (int)v : c->H / c->n_head;
	c->rms_eps = (real)optional(g, key_of(arch, "attention.layer_norm_rms_epsilon").text, 1e-5);
	r = read_rope(g, arch, c->hd, &c->rope, e);
	return r ? r : read_tied(g, &c->tied, e);
}
