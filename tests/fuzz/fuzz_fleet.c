/* A leader's word that decodes can be encoded again and decodes to the same. */
#include <string.h>
#include "schemas/fleet.h"
#include "tests/fuzz/fuzz.h"

FUZZ(fleet)
{
	struct fleet_word w, again;
	struct errtext e = {""};
	char text[4096]; /* escapes may make it longer than what was read */

	if (fleet_word_decode(data, size, &w, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return 0;
	}
	FUZZ_CHECK(w.epoch > 0 && w.run[0] && strlen(w.target_fp) == 64 && strlen(w.weights_sha) == (w.live ? 64u : 0u));
	FUZZ_CHECK(fleet_word_encode(&w, text, sizeof text) == 0);
	if (strlen(text) > 1024)
		return 0;
	FUZZ_CHECK(fleet_word_decode(text, strlen(text), &again, &e) == 0);
	FUZZ_CHECK(again.epoch == w.epoch && again.live == w.live && again.generation == w.generation && !strcmp(again.run, w.run) && !strcmp(again.host, w.host));
	return 0;
}
