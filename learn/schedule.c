/* The learning rate's course (eagle3.md §3.7). A continual learner has no last
 * step, so constant after warm-up is the usual choice; cosine is for fixed runs. */
#include <math.h>
#include "learn/schedule.h"

double schedule_factor(int64_t i, int64_t warmup, int64_t total)
{
	if (i < warmup)
		return (double)(i + 1) / (double)warmup;
	if (total <= warmup)
		return 1;
	if (i >= total)
		return 0;
	return 0.5 * (1 + cos(M_PI * (double)(i - warmup) / (double)(total - warmup)));
}
