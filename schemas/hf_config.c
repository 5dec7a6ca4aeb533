/* config.json and generation_config.json of a target.
 *
 * RoPE is written in two ways: rope_theta beside rope_scaling (null for none), and, newer, both in
 * rope_parameters; either is read. Defaults are those of the three model classes in `transformers`.
 */
#include "schemas/hf_config.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include "schemas/json_reader.h"

static const struct {
	const char *class, *type;
} archs[] = {
	[HF_LLAMA] = {"LlamaForCausalLM", "llama"},
	[HF_QWEN2] = {"Qwen2ForCausalLM", "qwen2"},
	[HF_QWEN3] = {"Qwen3ForCausalLM", "qwen3"},
};

const char *hf_arch_name(enum hf_arch a)
{
	return archs[a].type;
}

static double positive(struct reader *d, const json_t *o, const char *key, double fallback)
{
	const json_t *v = reader_get(o, key);
	double x = v ? json_number_value(v) : fallback;

	if (d->rc == 0 && ((v && !json_is_number(v)) || !isfinite(x) || !(x > 0)))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s is not a number above 0", key);
	return x;
}

static void refuse(struct reader *d, const char *what)
{
	if (d->rc == 0)
		d->rc = errtext_set(d->e, -ENOTSUP, "config.json: %.100s is not supported", what);
}

static void read_arch(struct reader *d, struct hf_config *c)
{
	const json_t *list = reader_get(d->o, "architectures"), *type = reader_get(d->o, "model_type");
	const char *name = json_string_value(json_array_get(list, 0));

	for (int i = 0; i < 3; i++) {
		bool same = name ? strcmp(name, archs[i].class) == 0 : type && json_is_string(type) && strcmp(json_string_value(type), archs[i].type) == 0;
		if (same) {
			c->arch = (enum hf_arch)i;
			return;
		}
	}
	if (!name)
		name = type && json_is_string(type) ? json_string_value(type) : "(none named)";
	d->rc = errtext_set(d->e, -ENOTSUP, "config.json: architecture %.60s is not served; LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM are",
			    name);
}

/* What we would silently compute wrongly. */
static void refuse_unsupported(struct reader *d)
{
	static const char *const must_be_false[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
	const json_t *act = reader_get(d->o, "hidden_act"), *types = reader_get(d->o, "layer_types"), *v;

	for (size_t i = 0; i < sizeof must_be_false / sizeof must_be_false[0]; i++) {
		v = reader_get(d->o, must_be_false[i]);
		if (v && !json_is_false(v))
			refuse(d, must_be_false[i]);
	}
	if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
		refuse(d, "a hidden_act other than silu");
	if (reader_get(d->o, "quantization_config"))
		refuse(d, "quantization_config (weights must be BF16, F16 or F32)");
	for (size_t i = 0; i < json_array_size(types); i++) {
		v = json_array_get(types, i);
		if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention") != 0)
			refuse(d, "a layer type other than full_attention");
	}
}

static void read_sizes(struct reader *d, struct hf_config *c)
{
	c->hidden = reader_whole(d, "hidden_size", 0, 1 << 17);
	c->intermediate = reader_whole(d, "intermediate_size", 0, 1 << 19);
	c->n_layer = reader_whole(d, "num_hidden_layers", 0, 1000);
	c->n_head = reader_whole(d, "num_attention_heads", 0, 1024);
	c->n_kv_head = reader_whole(d, "num_key_value_heads", c->n_head, 1024);
	int hd = c->arch == HF_QWEN3 ? 128 : c->hidden / c->n_head;
	c->head_dim = reader_whole(d, "head_dim", hd ? hd : 1, 512);
	c->vocab = reader_whole(d, "vocab_size", 0, 1 << 21);
	c->max_position = reader_whole(d, "max_position_embeddings", c->arch == HF_LLAMA ? 2048 : 32768, 1 << 24);
	c->rms_eps = positive(d, d->o, "rms_norm_eps", 1e-6);
	const json_t *tied = reader_get(d->o, "tie_word_embeddings");
	c->tied = !tied ? HF_TIED_UNSAID : json_is_true(tied) ? HF_TIED_YES : HF_TIED_NO;
	if (d->rc == 0 && (c->n_head % c->n_kv_head || c->head_dim % 2))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %d heads, %d key/value heads, head_dim %d do not fit each other", c->n_head,
				    c->n_kv_head, c->head_dim);
}

static void read_rope(struct reader *d, struct hf_config *c)
{
	static const char *const names[] = {"default", "linear", "llama3", "yarn"};
	const json_t *p = reader_get(d->o, "rope_parameters"), *o = p ? p : reader_get(d->o, "rope_scaling");
	const json_t *type = reader_get(o, "rope_type") ? reader_get(o, "rope_type") : reader_get(o, "type");
	const char *name = type ? json_string_value(type) : "default";
	int kind = -1;

	for (int i = 0; name && i < 4; i++)
		if (strcmp(name, names[i]) == 0)
			kind = i;
	if (d->rc == 0 && kind < 0)
		d->rc = errtext_set(d->e, -ENOTSUP, "config.json: RoPE type %.32s is not supported; default, linear, llama3 and yarn are",
				    name ? name : "?");
	c->rope = (enum hf_rope)kind;
	c->rope_theta = positive(d, d->o, "rope_theta", positive(d, p, "rope_theta", 10000));
	c->rope_factor = positive(d, o, "factor", 1);
	c->rope_low = positive(d, o, "low_freq_factor", 1);
	c->rope_high = positive(d, o, "high_freq_factor", 4);
	c->rope_orig_max = positive(d, o, "original_max_position_embeddings", c->max_position);
	c->rope_beta_fast = positive(d, o, "beta_fast", 32);
	c->rope_beta_slow = positive(d, o, "beta_slow", 1);
	c->rope_mscale = positive(d, o, "mscale", 1);
	c->rope_mscale_all = reader_get(o, "mscale_all_dim") ? positive(d, o, "mscale_all_dim", 1) : 0;
	if (kind == HF_ROPE_YARN && (reader_get(o, "attention_factor") || json_is_false(reader_get(o, "truncate"))))
		refuse(d, "yarn with attention_factor or without truncate");
	if (reader_get(d->o, "partial_rotary_factor") || reader_get(p, "partial_rotary_factor"))
		refuse(d, "partial_rotary_factor");
	if (d->rc == 0 && kind == HF_ROPE_LLAMA3 && !(c->rope_high > c->rope_low))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: high_freq_factor must be above low_freq_factor");
}

static void add_eos(struct hf_config *c, const json_t *v)
{
	int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;

	for (int i = 0; i < c->n_eos; i++)
		if (c->eos_ids[i] == id)
			return;
	if (id >= 0 && id < c->vocab && c->n_eos < HF_MAX_EOS)
		c->eos_ids[c->n_eos++] = id;
}

/* A number or a list of them. */
static void add_eos_all(struct hf_config *c, const json_t *v)
{
	for (size_t i = 0; i < json_array_size(v); i++)
		add_eos(c, json_array_get(v, i));
	add_eos(c, v);
}

static json_t *object_of(const char *file, const char *json, size_t len, struct errtext *e)
{
	json_error_t je;
	json_t *o = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);

	if (json_is_object(o))
		return o;
	errtext_set(e, -EINVAL, "%s, line %d: %.120s", file, o ? 1 : je.line, o ? "not an object" : je.text);
	json_decref(o);
	return NULL;
}

int hf_config_parse(const char *json, size_t len, struct hf_config *ret, struct errtext *e)
{
	struct hf_config c = {.bos_id = -1};
	json_t *o = object_of("config.json", json, len, e);

	if (!o)
		return -EINVAL;
	struct reader d = {.o = o, .e = e};
	read_arch(&d, &c);
	refuse_unsupported(&d);
	read_sizes(&d, &c);
	read_rope(&d, &c);
	const json_t *bos = reader_get(o, "bos_token_id");
	if (json_is_integer(bos) && json_integer_value(bos) >= 0 && json_integer_value(bos) < c.vocab)
		c.bos_id = json_integer_value(bos);
	add_eos_all(&c, reader_get(o, "eos_token_id"));
	json_decref(o);
	if (d.rc == 0)
		*ret = c;
	return d.rc;
}

int hf_generation_parse(const char *json, size_t len, struct hf_config *c, struct errtext *e)
{
	json_t *o = object_of("generation_config.json", json, len, e);

	if (!o)
		return -EINVAL;
	add_eos_all(c, reader_get(o, "eos_token_id"));
	json_decref(o);
	return 0;
}
