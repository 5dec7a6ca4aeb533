/* The learning rate's course (eagle3.md §3.7). A continual learner has no last
 * step, so it ends at a constant rate; cosine is for fixed runs. A draft that starts
 * from nothing has far to go and may begin faster. */
#include <math.h>
#include "learn/schedule.h"

enum { FIRST_STEPS = 100 };

double schedule_factor(int64_t i, int64_t warmup, int64_t total, double first)
{
	double from = first > 1 ? fmax(1, first / sqrt(1 + (double)i / FIRST_STEPS)) : 1;
	if (i < warmup)
		return from * (double)(i + 1) / (double)warmup;
	if (total <= warmup)
		return from;
	if (i >= total)
		return 0;
	return 0.5 * (1 + cos(M_PI * (double)(i - warmup) / (double)(total - warmup)));
}
