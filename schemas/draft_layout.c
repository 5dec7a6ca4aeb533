/* Which tensors a draft has, and what other tools call them. */
#include "schemas/draft_layout.h"

#include <stdbool.h>
#include <string.h>

int draft_layout(const struct draft_config *c, struct draft_slot ret[static DRAFT_MAX_TENSORS])
{
	int H = c->hidden_size, Ht = c->target_hidden_size, q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
	int I = c->intermediate_size, n = 0;
	const struct draft_slot all[] = {
		{"fc.weight", H, 3 * Ht},
		{"midlayer.input_layernorm.weight", 1, H},
		{"midlayer.hidden_norm.weight", 1, H},
		{"midlayer.self_attn.q_proj.weight", q, 2 * H},
		{"midlayer.self_attn.k_proj.weight", kv, 2 * H},
		{"midlayer.self_attn.v_proj.weight", kv, 2 * H},
		{"midlayer.self_attn.o_proj.weight", H, q},
		{"midlayer.post_attention_layernorm.weight", 1, H},
		{"midlayer.mlp.gate_proj.weight", I, H},
		{"midlayer.mlp.up_proj.weight", I, H},
		{"midlayer.mlp.down_proj.weight", H, I},
		{"norm.weight", 1, H},
		{"lm_head.weight", c->draft_vocab_size, H},
		{c->norm_before_fc ? "input_norm.weight" : NULL, 1, 3 * Ht},
		{c->fc_norm ? "fc_norm.0.weight" : NULL, 1, Ht},
		{c->fc_norm ? "fc_norm.1.weight" : NULL, 1, Ht},
		{c->fc_norm ? "fc_norm.2.weight" : NULL, 1, Ht},
	};

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		if (all[i].name)
			ret[n++] = all[i];
	}
	return n;
}

static bool starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

int draft_canonical_name(const char *name, char *ret, size_t size)
{
	static const struct {
		const char *from, *to;
	} alias[] = {
		{"draft_id_to_target_id", "d2t"},
		{"aux_norm_low.weight", "fc_norm.0.weight"},
		{"aux_norm_mid.weight", "fc_norm.1.weight"},
		{"aux_norm_high.weight", "fc_norm.2.weight"},
	};

	if (starts(name, "model."))
		name += 6;
	if (starts(name, "verifier_") || strstr(name, "rotary_emb."))
		return 1;
	for (size_t i = 0; i < sizeof alias / sizeof alias[0]; i++) {
		if (strcmp(name, alias[i].from) == 0)
			name = alias[i].to;
	}
	bool layer0 = starts(name, "layers.0.");
	int n = snprintf(ret, size, "%s%s", layer0 ? "midlayer." : "", layer0 ? name + 9 : name);
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

int draft_check_d2t(const int64_t *d2t, int n, int vocab, struct errtext *e)
{
	int64_t before = -1;

	for (int i = 0; i < n; i++) {
		if (d2t[i] < 0 || d2t[i] >= vocab || d2t[i] + i <= before || d2t[i] + i >= vocab)
			return errtext_set(e, -EINVAL,
					   "d2t: draft id %d stands for target id %lld, which is not above the one before and below %d", i,
					   (long long)(d2t[i] + i), vocab);
		before = d2t[i] + i;
	}
	return 0;
}
