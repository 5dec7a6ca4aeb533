/* The learning rate's course: linear warm-up, then constant or a cosine to 0. */
#pragma once
#include <stdint.h>

/* The factor on the peak rate at optimizer step i = 0, 1, ...: i < warmup:
 * (i+1)/warmup; else, when total > warmup, (1 + cos(pi (i-warmup)/(total-warmup)))/2,
 * 0 from total on; total 0 = 1. */
double schedule_factor(int64_t i, int64_t warmup, int64_t total);
