/* A round record that decodes can be encoded again and decodes to the same. */
#include <string.h>
#include "schemas/round.h"
#include "tests/fuzz/fuzz.h"

FUZZ(round)
{
	struct round_record r, again;
	struct errtext e = {""};
	struct buf out = BUF_INIT(0);

	if (round_decode(data, size, &r, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return 0;
	}
	FUZZ_CHECK(r.k >= 0 && r.k <= ROUND_MAX_K && r.ttft_ms >= 0);
	for (int i = 0; i < r.k; i++)
		FUZZ_CHECK(r.accepted[i] <= r.proposed[i] && r.proposed[i] <= r.rounds);
	FUZZ_CHECK(round_encode(&out, &r) == 0);
	FUZZ_CHECK(round_decode(out.data, out.len, &again, &e) == 0);
	FUZZ_CHECK(again.seq == r.seq && again.k == r.k && !strcmp(again.request, r.request) && !memcmp(again.proposed, r.proposed, sizeof r.proposed));
	buf_done(&out);
	return 0;
}
