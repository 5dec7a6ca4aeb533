/* config.json of a draft, read and written.
 *
 * Engines disagree about two things, and this file is where we take sides
 * (eagle3.md §1.3 to §1.5). Layer ids: a top-level list holds boundaries, a nested
 * one ids "after layer i" when it starts with 1 and boundaries otherwise; we
 * write no list at all for the default boundaries. RoPE: older readers want
 * rope_theta and rope_scaling, newer ones rope_parameters; we write both and
 * read either. What the serving code cannot run (biases, more than one layer, a tied
 * head, the speculators format) is refused here by name.
 */
#include "schemas/draft_config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"
#include "schemas/json_reader.h"
#include "schemas/draft_layout.h"

enum { SIZE_LIMIT = 1 << 20 /* any single dimension */, CONFIG_LIMIT = 1 << 20 };

static const char *const rope_names[] = {"default", "linear", "llama3", "yarn"};

/* ---- reading ---- */

static double number(struct reader *d, const json_t *o, const char *key, double fallback)
{
	const json_t *v = reader_get(o, key);
	double x = v ? json_number_value(v) : fallback;

	if (d->rc == 0 && v && (!json_is_number(v) || !isfinite(x)))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s is not a number", key);
	return x;
}

static double positive(struct reader *d, const json_t *o, const char *key, double fallback)
{
	double x = number(d, o, key, fallback);

	if (d->rc == 0 && !(x > 0))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s must be above 0", key);
	return x;
}

static bool flag(struct reader *d, const json_t *o, const char *key)
{
	const json_t *v = reader_get(o, key);

	if (d->rc == 0 && v && !json_is_boolean(v))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s is not true or false", key);
	return json_is_true(v);
}

static int64_t token_id(const json_t *o, const char *key)
{
	const json_t *v = reader_get(o, key);

	if (json_is_array(v))
		v = json_array_get(v, 0);
	return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
}

static void refuse_unsupported(struct reader *d)
{
	static const char *const must_be_false[] = {"attention_bias", "mlp_bias", "bias", "tie_word_embeddings"};
	const json_t *act = reader_get(d->o, "hidden_act"), *layers = reader_get(d->o, "num_hidden_layers");
	const json_t *aux = reader_get(reader_get(d->o, "eagle_config"), "use_aux_hidden_state");

	if (reader_get(d->o, "speculators_config") || reader_get(d->o, "transformer_layer_config"))
		d->rc = errtext_set(d->e, -EINVAL,
				    "config.json is in the speculators format; convert the draft to a plain EAGLE-3 folder first");
	for (size_t i = 0; d->rc == 0 && i < sizeof must_be_false / sizeof must_be_false[0]; i++) {
		if (flag(d, d->o, must_be_false[i]))
			d->rc = errtext_set(d->e, -EINVAL, "config.json: %s true is not supported", must_be_false[i]);
	}
	if (d->rc == 0 && act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: hidden_act must be silu");
	if (d->rc == 0 && layers && json_integer_value(layers) != 1)
		d->rc = errtext_set(d->e, -EINVAL, "config.json: num_hidden_layers must be 1");
	if (d->rc == 0 && json_is_false(aux))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: use_aux_hidden_state false is not EAGLE-3");
}

static void read_sizes(struct reader *d, struct draft_config *c)
{
	c->hidden_size = reader_whole(d, "hidden_size", 0, SIZE_LIMIT);
	c->target_hidden_size = reader_whole(d, "target_hidden_size", c->hidden_size, SIZE_LIMIT);
	c->intermediate_size = reader_whole(d, "intermediate_size", 0, SIZE_LIMIT);
	c->n_head = reader_whole(d, "num_attention_heads", 0, 4096);
	c->n_kv_head = reader_whole(d, "num_key_value_heads", c->n_head, 4096);
	int64_t hd = c->hidden_size / c->n_head;
	c->head_dim = reader_whole(d, "head_dim", hd ? hd : 1, 4096);
	c->vocab_size = reader_whole(d, "vocab_size", 0, 1 << 24);
	c->draft_vocab_size = reader_whole(d, "draft_vocab_size", c->vocab_size, c->vocab_size);
	c->max_position = reader_whole(d, "max_position_embeddings", 2048, 1 << 30);
	c->rms_eps = positive(d, d->o, "rms_norm_eps", 1e-6);
	if (d->rc == 0 && (c->n_head % c->n_kv_head || c->head_dim % 2))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %d heads, %d key/value heads, head_dim %d do not fit each other",
				    c->n_head, c->n_kv_head, c->head_dim);
}

static void read_rope(struct reader *d, struct draft_config *c)
{
	const json_t *p = reader_get(d->o, "rope_parameters"), *o = p ? p : reader_get(d->o, "rope_scaling");
	const json_t *type = reader_get(o, "rope_type") ? reader_get(o, "rope_type") : reader_get(o, "type");
	const char *name = type ? json_string_value(type) : "default";

	c->rope_theta = positive(d, d->o, "rope_theta", positive(d, p, "rope_theta", 10000));
	c->rope_kind = -1;
	for (int i = 0; name && i < 4; i++) {
		if (strcmp(name, rope_names[i]) == 0)
			c->rope_kind = i;
	}
	if (d->rc == 0 && c->rope_kind < 0)
		d->rc = errtext_set(d->e, -EINVAL, "config.json: rope type %.32s is not one of default, linear, llama3, yarn",
				    name ? name : "?");
	c->rope_factor = positive(d, o, "factor", 1);
	c->rope_low = positive(d, o, "low_freq_factor", 1);
	c->rope_high = positive(d, o, "high_freq_factor", 4);
	c->rope_orig_max = positive(d, o, "original_max_position_embeddings", c->max_position);
	c->rope_beta_fast = positive(d, o, "beta_fast", 32);
	c->rope_beta_slow = positive(d, o, "beta_slow", 1);
	c->rope_mscale = number(d, o, "mscale", 1);
	c->rope_mscale_all = number(d, o, "mscale_all_dim", 0);
	if (d->rc == 0 && c->rope_kind == 2 && !(c->rope_high > c->rope_low))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: high_freq_factor must be above low_freq_factor");
}

static void read_boundaries(struct reader *d, int L, struct draft_config *c)
{
	const char *key = "eagle_aux_hidden_state_layer_ids";
	const json_t *top = reader_get(d->o, key), *nested = reader_get(reader_get(d->o, "eagle_config"), key), *ids = top ? top : nested;
	int64_t b[3] = {2, L / 2, L - 3};

	if (ids && json_array_size(ids) != 3 && d->rc == 0)
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s is not a list of three layer ids", key);
	c->boundaries_default = !ids;
	int64_t shift = !top && nested && json_integer_value(json_array_get(nested, 0)) == 1 ? 1 : 0;
	for (size_t i = 0; i < 3; i++) {
		const json_t *v = json_array_get(ids, i);
		if (ids && !json_is_integer(v) && d->rc == 0)
			d->rc = errtext_set(d->e, -EINVAL, "config.json: %s holds something that is not a layer id", key);
		if (ids)
			b[i] = json_integer_value(v) < 1 << 20 ? json_integer_value(v) + shift : -1;
		if (d->rc == 0 && (b[i] < 0 || (i && b[i] <= b[i - 1]) || b[i] > (L > 0 ? L : 1 << 20)))
			d->rc = errtext_set(d->e, -EINVAL, "boundaries %lld, %lld, %lld are not ascending within 0 to %d target layers",
					    (long long)b[0], (long long)b[1], (long long)b[2], L);
		c->boundaries[i] = (int)b[i];
	}
}

static void read_flags(struct reader *d, struct draft_config *c)
{
	const json_t *nested = reader_get(d->o, "eagle_config");

	c->norm_before_residual = flag(d, d->o, "norm_before_residual");
	c->norm_before_fc = reader_get(nested, "norm_before_fc") ? flag(d, nested, "norm_before_fc") : flag(d, d->o, "norm_before_fc");
	c->fc_norm = flag(d, d->o, "fc_norm") || flag(d, d->o, "use_aux_norm");
	c->norm_output = flag(d, d->o, "norm_output");
	if (d->rc == 0 && c->fc_norm && c->norm_before_fc)
		d->rc = errtext_set(d->e, -EINVAL, "config.json: fc_norm and norm_before_fc exclude each other");
	c->bos_id = token_id(d->o, "bos_token_id");
	c->eos_id = token_id(d->o, "eos_token_id");
	c->pad_id = token_id(d->o, "pad_token_id");
}

int draft_config_parse(const char *json, int n_target_layers, struct draft_config *ret, struct errtext *e)
{
	struct draft_config c = {.hidden_size = 0};
	json_error_t je;

	if (strlen(json) > CONFIG_LIMIT)
		return errtext_set(e, -E2BIG, "config.json is longer than %d bytes", CONFIG_LIMIT);
	json_t *o = json_loads(json, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(o)) {
		int r = errtext_set(e, -EINVAL, "config.json, line %d: %.120s", o ? 1 : je.line, o ? "not an object" : je.text);
		json_decref(o);
		return r;
	}
	struct reader d = {.o = o, .e = e};
	refuse_unsupported(&d);
	read_sizes(&d, &c);
	read_rope(&d, &c);
	read_boundaries(&d, n_target_layers, &c);
	read_flags(&d, &c);
	json_decref(o);
	if (d.rc == 0)
		*ret = c;
	return d.rc;
}

/* ---- writing ---- */

/* The scaling keys of one rope form; yarn names all of them, because SpecForge fills in no defaults. */
static json_t *rope_object(const struct draft_config *c, bool with_theta)
{
	json_t *o = json_pack("{s:s}", "rope_type", rope_names[c->rope_kind]);
	bool ok = o != NULL;

	if (with_theta)
		ok &= json_object_set_new(o, "rope_theta", json_real(c->rope_theta)) == 0;
	if (c->rope_kind)
		ok &= json_object_set_new(o, "factor", json_real(c->rope_factor)) == 0;
	if (c->rope_kind == 2) {
		ok &= json_object_set_new(o, "low_freq_factor", json_real(c->rope_low)) == 0;
		ok &= json_object_set_new(o, "high_freq_factor", json_real(c->rope_high)) == 0;
	}
	if (c->rope_kind >= 2)
		ok &= json_object_set_new(o, "original_max_position_embeddings", json_integer((json_int_t)c->rope_orig_max)) == 0;
	if (c->rope_kind == 3) {
		ok &= json_object_set_new(o, "beta_fast", json_real(c->rope_beta_fast)) == 0;
		ok &= json_object_set_new(o, "beta_slow", json_real(c->rope_beta_slow)) == 0;
		ok &= json_object_set_new(o, "mscale", json_real(c->rope_mscale)) == 0;
		ok &= json_object_set_new(o, "mscale_all_dim", json_real(c->rope_mscale_all)) == 0;
	}
	if (!ok) {
		json_decref(o);
		return NULL;
	}
	return o;
}

static json_t *id_or_null(int64_t id)
{
	return id < 0 ? json_null() : json_integer(id);
}

static bool put_optional(json_t *o, const struct draft_config *c)
{
	json_t *eagle = json_pack("{s:b}", "use_aux_hidden_state", 1);
	const int *b = c->boundaries;
	bool ok = json_object_set_new(o, "eagle_config", eagle) == 0;

	if (c->target_hidden_size != c->hidden_size)
		ok &= json_object_set_new(o, "target_hidden_size", json_integer(c->target_hidden_size)) == 0;
	if (!c->boundaries_default) {
		const char *key = "eagle_aux_hidden_state_layer_ids";
		ok &= json_object_set_new(eagle, key, json_pack("[i,i,i]", b[0] - 1, b[1] - 1, b[2] - 1)) == 0;
		ok &= json_object_set_new(o, key, json_pack("[i,i,i]", b[0], b[1], b[2])) == 0;
	}
	/* a flag that is off is left out: that reads the same in every version of every engine */
	if (c->norm_before_fc) {
		ok &= json_object_set_new(eagle, "norm_before_fc", json_true()) == 0;
		ok &= json_object_set_new(o, "norm_before_fc", json_true()) == 0;
	}
	if (c->norm_before_residual)
		ok &= json_object_set_new(o, "norm_before_residual", json_true()) == 0;
	if (c->fc_norm)
		ok &= json_object_set_new(o, "fc_norm", json_true()) == 0;
	if (c->norm_output)
		ok &= json_object_set_new(o, "norm_output", json_true()) == 0;
	return ok;
}

int draft_config_text(const struct draft_config *c, const char *torch_dtype, char **ret, struct errtext *e)
{
	if (c->rope_kind < 0 || c->rope_kind > 3)
		return errtext_set(e, -EINVAL, "draft config: unknown rope kind %d", c->rope_kind);
	if (!c->boundaries_default && c->boundaries[0] != 2)
		return errtext_set(e, -EINVAL, "boundaries %d, %d, %d: no config.json says this to every engine; the first must be 2",
				   c->boundaries[0], c->boundaries[1], c->boundaries[2]);
	json_t *o = json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:i, s:f, s:o, s:o, s:i, s:i, s:b, s:s, s:b, s:b}",
			      "architectures", "LlamaForCausalLMEagle3", "model_type", "llama", "hidden_size", c->hidden_size,
			      "intermediate_size", c->intermediate_size, "num_attention_heads", c->n_head, "num_key_value_heads",
			      c->n_kv_head, "head_dim", c->head_dim, "num_hidden_layers", 1, "hidden_act", "silu", "rms_norm_eps",
			      c->rms_eps, "max_position_embeddings", c->max_position, "rope_theta", c->rope_theta, "rope_scaling",
			      c->rope_kind ? rope_object(c, false) : json_null(), "rope_parameters", rope_object(c, true), "vocab_size",
			      c->vocab_size, "draft_vocab_size", c->draft_vocab_size, "tie_word_embeddings", 0, "torch_dtype", torch_dtype,
			      "attention_bias", 0, "use_cache", 1);
	bool ok = o && json_object_set_new(o, "bos_token_id", id_or_null(c->bos_id)) == 0;
	ok = ok && json_object_set_new(o, "eos_token_id", id_or_null(c->eos_id)) == 0;
	ok = ok && json_object_set_new(o, "pad_token_id", id_or_null(c->pad_id)) == 0;
	ok = ok && put_optional(o, c);
	char *text = ok ? json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	json_decref(o);
	if (!text)
		return errtext_set(e, -ENOMEM, "out of memory, or a number of the draft config is not finite");
	*ret = text;
	return 0;
}

int draft_config_print(const struct draft_config *c, char **ret, struct errtext *e)
{
	return draft_config_text(c, "bfloat16", ret, e);
}

int draft_fp(const char *target_fp, const struct draft_config *c, const int64_t *d2t, char ret_hex[static 65])
{
	char *config;
	int r = draft_config_print(c, &config, NULL);

	if (r < 0)
		return r;
	struct sha *s = sha_new();
	if (!s) {
		free(config);
		return -ENOMEM;
	}
	sha_update(s, target_fp, strlen(target_fp));
	sha_update(s, d2t, (size_t)c->draft_vocab_size * 8);
	sha_update(s, config, strlen(config));
	sha_final_hex(s, ret_hex);
	sha_free(s);
	free(config);
	return 0;
}
