/* The learning rate's course: linear warm-up, then constant, falling to that, or a cosine to 0. */
#pragma once
#include <stdint.h>

/* The factor on the rate at optimizer step i = 0, 1, ...: i < warmup: (i+1)/warmup of what comes; else, when
 * total > warmup, (1 + cos(pi (i-warmup)/(total-warmup)))/2, 0 from total on; total 0: max(1, first / sqrt(1 + i/100)),
 * which is 1 for first <= 1. */
double schedule_factor(int64_t i, int64_t warmup, int64_t total, double first);
