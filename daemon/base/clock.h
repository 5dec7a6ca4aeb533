/* Time: microseconds, monotonic. Wall-clock time only for people and files. */
#pragma once
#include <stdint.h>

uint64_t clock_us(void);      /* CLOCK_MONOTONIC, µs */
int64_t clock_wall_ms(void);  /* CLOCK_REALTIME, ms since 1970 */
void clock_iso8601(int64_t wall_ms, char ret[static 32]); /* 2026-01-31T12:00:00.123Z */
