/* Time: microseconds, monotonic. Wall-clock time only for people and files; and, made sure of, for what is old enough to go. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

uint64_t clock_us(void);      /* CLOCK_MONOTONIC, µs */
uint64_t clock_thread_us(void); /* processor time of the calling thread, µs */
int64_t clock_wall_ms(void);  /* CLOCK_REALTIME, ms since 1970 */
void clock_iso8601(int64_t wall_ms, char ret[static 32]); /* 2026-01-31T12:00:00.123Z */

/* The wall clock for what cannot be taken back: a jump, by more than a minute, is followed when it has lasted for a day. Meanwhile time
 * goes on from where it was. {0} before the first call, which believes the clock. Sleep of the machine is no jump. */
struct clock_sure {
	bool begun;
	int64_t sure_ms, seen_ms; /* wall clock less time since boot: as followed; as seen last */
	uint64_t since_us;        /* when they fell apart */
};
/* The time, ms since 1970. ret_jump_ms (may be NULL): how far the clock has jumped since the call before, 0 = not. */
int64_t clock_sure_ms(struct clock_sure *c, int64_t *ret_jump_ms);
int64_t clock_sure_at(struct clock_sure *c, int64_t wall_ms, uint64_t boot_us, int64_t *ret_jump_ms); /* the same, of given clocks */
