/* What this proves: config.json is read as eagle3.md §1.3 to §1.8 says (layer ids in all
 * their spellings, both RoPE forms, defaults), what we write reads back the same and
 * holds what the engines need, and what we cannot serve is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schemas/draft_config.h"

#define BASE                                                                                                                               \
	"\"hidden_size\":64,\"intermediate_size\":128,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":600,\"draft_"     \
	"vocab_size\":100"

static struct draft_config parse(const char *more, int L)
{
	struct draft_config c;
	struct errtext e = {""};
	char text[2048];

	(void)snprintf(text, sizeof text, "{" BASE "%s%s}", *more ? "," : "", more);
	if (draft_config_parse(text, L, &c, &e) < 0)
		fail_msg("%s: %s", more, e.text);
	return c;
}

static void refuse(const char *more, int L, const char *word)
{
	struct draft_config c = {.vocab_size = -5};
	struct errtext e = {""};
	char text[2048];

	(void)snprintf(text, sizeof text, "{" BASE "%s%s}", *more ? "," : "", more);
	assert_int_equal(draft_config_parse(text, L, &c, &e), -EINVAL);
	assert_int_equal(c.vocab_size, -5);
	if (!strstr(e.text, word))
		fail_msg("\"%s\" does not name %s", e.text, word);
}

static void expect_boundaries(struct draft_config c, int a, int b, int d, bool is_default)
{
	assert_true(c.boundaries[0] == a && c.boundaries[1] == b && c.boundaries[2] == d && c.boundaries_default == is_default);
}

static void test_defaults(void **state)
{
	(void)state;
	struct draft_config c = parse("", 30);

	assert_true(c.head_dim == 16 && c.target_hidden_size == 64 && c.max_position == 2048 && c.n_kv_head == 2);
	assert_true(c.rope_theta == 10000 && c.rope_kind == 0 && c.rms_eps == 1e-6);
	assert_true(!c.norm_before_residual && !c.norm_before_fc && !c.fc_norm && !c.norm_output && c.bos_id == -1);
	assert_int_equal(parse("\"head_dim\":32", 30).head_dim, 32);
	assert_int_equal(draft_config_parse("{\"hidden_size\":64,\"intermediate_size\":128,\"num_attention_heads\":4,\"vocab_size\":600,"
					    "\"draft_vocab_size\":null}",
					    30, &c, NULL),
			 0);
	assert_true(c.draft_vocab_size == 600 && c.n_kv_head == 4);
}

static void test_boundaries(void **state)
{
	(void)state;
	expect_boundaries(parse("", 30), 2, 15, 27, true);
	expect_boundaries(parse("", 8), 2, 4, 5, true);
	refuse("", 6, "boundaries"); /* 2, 3, 3 */
	expect_boundaries(parse("\"eagle_aux_hidden_state_layer_ids\":[1,14,26]", 30), 1, 14, 26, false);
	expect_boundaries(parse("\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[1,14,26]}", 30), 2, 15, 27, false);
	expect_boundaries(parse("\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[3,14,26]}", 30), 3, 14, 26, false);
	expect_boundaries(
		parse("\"eagle_aux_hidden_state_layer_ids\":[2,4,6],\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[1,3,5]}", 8), 2,
		4, 6, false);
	refuse("\"eagle_aux_hidden_state_layer_ids\":[2,14]", 30, "three");
	refuse("\"eagle_aux_hidden_state_layer_ids\":[2,27,14]", 30, "ascending");
	refuse("\"eagle_aux_hidden_state_layer_ids\":[2,14,31]", 30, "30");
	refuse("\"eagle_aux_hidden_state_layer_ids\":[2,\"x\",31]", 30, "layer id");
	refuse("\"eagle_aux_hidden_state_layer_ids\":[2,3,9223372036854775807]", 30, "ascending");
}

static void test_rope(void **state)
{
	(void)state;
	struct draft_config c = parse("\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
				      "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
				      30);

	assert_true(c.rope_kind == 2 && c.rope_theta == 500000 && c.rope_factor == 8 && c.rope_orig_max == 8192);
	c = parse("\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6,\"factor\":4}", 30);
	assert_true(c.rope_kind == 3 && c.rope_theta == 1e6 && c.rope_beta_fast == 32 && c.rope_beta_slow == 1 && c.rope_mscale == 1 &&
		    c.rope_mscale_all == 0);
	assert_int_equal(parse("\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", 30).rope_kind, 1);
	refuse("\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", 30, "dynamic");
	refuse("\"rope_theta\":0", 30, "rope_theta");
	refuse("\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}", 30, "factor");
	refuse("\"rope_scaling\":{\"type\":\"llama3\",\"low_freq_factor\":4}", 30, "high_freq_factor");
}

static void test_refusals(void **state)
{
	(void)state;
	struct draft_config c;
	struct errtext e = {""};

	refuse("\"num_hidden_layers\":2", 30, "num_hidden_layers");
	refuse("\"tie_word_embeddings\":true", 30, "tie_word_embeddings");
	refuse("\"attention_bias\":true", 30, "attention_bias");
	refuse("\"hidden_act\":\"gelu\"", 30, "hidden_act");
	refuse("\"eagle_config\":{\"use_aux_hidden_state\":false}", 30, "use_aux_hidden_state");
	refuse("\"speculators_config\":{}", 30, "speculators");
	refuse("\"norm_before_fc\":true,\"fc_norm\":true", 30, "exclude");
	refuse("\"norm_output\":1", 30, "norm_output");
	refuse("\"head_dim\":15", 30, "head_dim");
	refuse("\"head_dim\":0", 30, "head_dim");
	refuse("\"target_hidden_size\":1e3", 30, "target_hidden_size");
	refuse("\"rms_norm_eps\":\"1\"", 30, "rms_norm_eps");
	refuse("\"max_position_embeddings\":4294967296", 30, "max_position_embeddings");
	assert_int_equal(draft_config_parse("{\"hidden_size\":64}", 30, &c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "intermediate_size"));
	assert_int_equal(draft_config_parse("[]", 30, &c, &e), -EINVAL);
	assert_int_equal(draft_config_parse("{", 30, &c, &e), -EINVAL);
	assert_int_equal(draft_config_parse("{" BASE ",\"draft_vocab_size\":601}", 30, &c, &e), -EINVAL); /* twice */
}

static void round_trip(struct draft_config c, int L)
{
	struct draft_config d;
	struct errtext e = {""};
	char *text, *again;

	assert_int_equal(draft_config_print(&c, &text, &e), 0);
	memset(&d, 0, sizeof d);
	assert_int_equal(draft_config_parse(text, L, &d, &e), 0);
	assert_int_equal(draft_config_print(&d, &again, &e), 0);
	assert_string_equal(text, again);
	assert_memory_equal(c.boundaries, d.boundaries, sizeof c.boundaries);
	assert_true(c.hidden_size == d.hidden_size && c.target_hidden_size == d.target_hidden_size && c.rope_theta == d.rope_theta &&
		    c.rms_eps == d.rms_eps);
	assert_true(c.norm_before_fc == d.norm_before_fc && c.fc_norm == d.fc_norm && c.norm_output == d.norm_output &&
		    c.norm_before_residual == d.norm_before_residual);
	free(text);
	free(again);
}

static void test_print(void **state)
{
	(void)state;
	struct draft_config c = parse("\"rms_norm_eps\":1e-5,\"bos_token_id\":1,\"eos_token_id\":[2,3],\"rope_theta\":100000.1", 30);
	struct errtext e = {""};
	char *text;

	assert_int_equal(draft_config_print(&c, &text, &e), 0);
	json_t *o = json_loads(text, 0, NULL);
	assert_string_equal(json_string_value(json_array_get(json_object_get(o, "architectures"), 0)), "LlamaForCausalLMEagle3");
	assert_null(json_object_get(o, "eagle_aux_hidden_state_layer_ids")); /* default boundaries: no key anywhere */
	assert_null(json_object_get(json_object_get(o, "eagle_config"), "eagle_aux_hidden_state_layer_ids"));
	assert_null(json_object_get(o, "norm_output"));
	assert_null(json_object_get(o, "target_hidden_size"));
	assert_true(json_is_null(json_object_get(o, "rope_scaling")));
	assert_true(json_is_null(json_object_get(o, "pad_token_id")));
	assert_int_equal(json_integer_value(json_object_get(o, "eos_token_id")), 2);
	assert_int_equal(json_integer_value(json_object_get(o, "num_hidden_layers")), 1);
	json_decref(o);
	free(text);
	round_trip(c, 30);
	round_trip(parse("\"eagle_aux_hidden_state_layer_ids\":[2,5,7],\"target_hidden_size\":128,\"norm_before_fc\":true", 8), 8);
	round_trip(parse("\"fc_norm\":true,\"norm_output\":true,\"norm_before_residual\":true", 8), 8);
	round_trip(parse("\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"original_max_position_embeddings\":8192}", 8), 8);
	round_trip(parse("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"mscale\":0.7}", 8), 8);
	c = parse("\"eagle_aux_hidden_state_layer_ids\":[3,5,7]", 8); /* no file says this to every engine */
	assert_int_equal(draft_config_print(&c, &text, &e), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults), cmocka_unit_test(test_boundaries), cmocka_unit_test(test_rope),
		cmocka_unit_test(test_refusals), cmocka_unit_test(test_print),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
