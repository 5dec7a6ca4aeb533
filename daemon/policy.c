/* Rollout settings as text (policy.h). */
#include "daemon/policy.h"
#include <stdlib.h>
#include <string.h>

int policy_steps(const char *text, struct rollout_rules *ret, struct errtext *e)
{
	const char *at = text + strspn(text, " ");
	uint32_t permille[RO_MAX_STEPS] = {0};
	int n = 0;

	while (*at) {
		char *end;
		long v = strtol(at, &end, 10);

		end += strspn(end, " ");
		if (end == at || v < 1 || v > 1000 || n == RO_MAX_STEPS || (n && v <= (long)permille[n - 1]) || (*end && *end != ',') || (*end && !end[1]))
			return errtext_set(e, -EINVAL, "canary.steps: '%.40s' is no list of at most %d growing shares of 1000, such as \"50,250\"", text,
					   RO_MAX_STEPS);
		permille[n++] = (uint32_t)v;
		at = *end ? end + 1 : end;
	}
	ret->n_steps = n;
	memcpy(ret->permille, permille, (size_t)n * sizeof *permille);
	return 0;
}
