/* config.json, generation_config.json, tokenizer.json and the index of shards: refused with a sentence, or parsed into
 * what can be read to its last byte. The first byte of the input says which. */
#include <string.h>
#include "schemas/hf_config.h"
#include "schemas/hf_folder.h"
#include "tests/fuzz/fuzz.h"

static void hf_tokenizer_one(const char *p, size_t n)
{
	static const char config[] = "{\"eos_token\": {\"content\": \"b\"}, \"bos_token\": \"a\", \"chat_template\": [{\"name\": \"default\", \"template\": \"t\"}]}";
	struct hf_tokenizer *t = NULL;
	struct errtext e = {""};
	volatile size_t sum = 0;

	if (hf_tokenizer_parse(p, n, n % 2 ? config : NULL, n % 2 ? sizeof config - 1 : 0, 40, 1, -1, &t, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return;
	}
	FUZZ_CHECK(t->n_tokens == 40 && t->pre);
	for (uint32_t i = 0; i < t->n_tokens; i++) {
		FUZZ_CHECK(strlen(t->tokens[i].text) == t->tokens[i].len);
		sum += t->tokens[i].len;
	}
	for (uint32_t i = 0; i < t->n_merges; i++)
		sum += strlen(t->merges[i]);
	FUZZ_CHECK(t->bos_id < 40 && t->eos_id < 40 && (!t->add_bos || t->bos_id >= 0));
	(void)sum;
	hf_tokenizer_free(t);
}

static void hf_config_one(const char *p, size_t n, bool generation)
{
	struct hf_config c = {.vocab = 600, .n_eos = 1};
	struct errtext e = {""};

	if ((generation ? hf_generation_parse(p, n, &c, &e) : hf_config_parse(p, n, &c, &e)) < 0) {
		FUZZ_CHECK(e.text[0]);
		return;
	}
	FUZZ_CHECK(c.n_eos <= HF_MAX_EOS && c.vocab > 0);
	for (int i = 0; i < c.n_eos; i++)
		FUZZ_CHECK(c.eos_ids[i] >= 0 && c.eos_ids[i] < c.vocab);
	FUZZ_CHECK(generation || (c.n_head % c.n_kv_head == 0 && c.head_dim % 2 == 0 && c.rope_theta > 0 && c.rope_factor > 0));
}

FUZZ(hf)
{
	const char *p = (const char *)data + 1;
	struct hf_index x = {0};
	struct errtext e = {""};

	if (size == 0)
		return 0;
	switch (data[0]) {
	case 'c':
	case 'g':
		hf_config_one(p, size - 1, data[0] == 'g');
		break;
	case 't':
		hf_tokenizer_one(p, size - 1);
		break;
	default:
		if (hf_index_parse(p, size - 1, &x, &e) < 0) {
			FUZZ_CHECK(e.text[0]);
			break;
		}
		FUZZ_CHECK(x.n > 0);
		for (int i = 0; i < x.n; i++)
			FUZZ_CHECK(!strchr(x.files[i], '/') && x.files[i][0] != '.');
		hf_index_done(&x);
		break;
	}
	return 0;
}
