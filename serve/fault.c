/* Injected faults (fault.h): empty in every build but one. */
#include "serve/fault.h"
#ifdef REDRAFT_FAULTS
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[FAULT_N] = {"none", "stale-page", "wrong-boundary", "shifted-features", "wrong-weights", "corrupt-d2t", "overflow", "not-updated"};
static atomic_int now;

bool fault_on(enum fault f)
{
	return atomic_load_explicit(&now, memory_order_relaxed) == (int)f;
}

void fault_poll(void)
{
	const char *path = getenv("REDRAFT_FAULT_FILE");
	char word[32] = "";
	int f = 0;
	FILE *in = path ? fopen(path, "r") : NULL;

	if (in && fscanf(in, "%31s", word) == 1)
		for (int i = 0; i < FAULT_N; i++)
			if (!strcmp(word, names[i]))
				f = i;
	if (in)
		fclose(in);
	if (f != atomic_exchange(&now, f))
		fprintf(stderr, "fault: %s\n", names[f]);
}
#endif
