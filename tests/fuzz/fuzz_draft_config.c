/* A config that parses has sizes one can allocate by, and what we print of it parses to the same print. */
#include <string.h>
#include "schemas/draft_config.h"
#include "tests/fuzz/fuzz.h"

FUZZ(draft_config)
{
	struct draft_config c, again;
	struct errtext e = {""};
	char *json = malloc(size + 1), *text, *text2;

	FUZZ_CHECK(json != NULL);
	memcpy(json, data, size);
	json[size] = 0;
	int rc = draft_config_parse(json, 30, &c, &e);
	free(json);
	if (rc < 0) {
		FUZZ_CHECK(e.text[0]);
		return 0;
	}
	FUZZ_CHECK(c.hidden_size > 0 && c.head_dim > 0 && c.n_kv_head > 0 && c.n_head % c.n_kv_head == 0);
	FUZZ_CHECK(c.draft_vocab_size > 0 && c.draft_vocab_size <= c.vocab_size && c.rms_eps > 0 && c.rope_theta > 0);
	FUZZ_CHECK(c.boundaries[0] < c.boundaries[1] && c.boundaries[1] < c.boundaries[2] && c.boundaries[2] <= 30);
	if (draft_config_print(&c, &text, &e) < 0)
		return 0; /* boundaries that no file says to every engine */
	FUZZ_CHECK(draft_config_parse(text, 30, &again, &e) == 0);
	FUZZ_CHECK(draft_config_print(&again, &text2, &e) == 0);
	FUZZ_CHECK(strcmp(text, text2) == 0);
	free(text);
	free(text2);
	return 0;
}
