/* Time. Everything that waits or measures uses the monotonic clock; the wall
 * clock only labels things for people.
 */
#include "daemon/base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { JUMP_MS = 60000 };
static const uint64_t believed_us = 86400000000u;

uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

uint64_t clock_thread_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

int64_t clock_wall_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void clock_iso8601(int64_t wall_ms, char ret[static 32])
{
	int64_t ms = wall_ms % 1000;
	time_t s = (time_t)(wall_ms / 1000);
	struct tm tm;
	char day[24];

	if (ms < 0) { /* before 1970: the fraction still counts forwards */
		ms += 1000;
		s--;
	}
	if (!gmtime_r(&s, &tm) || !strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm)) {
		snprintf(ret, 32, "1970-01-01T00:00:00.000Z");
		return;
	}
	snprintf(ret, 32, "%s.%03dZ", day, (int)ms);
}

int64_t clock_sure_at(struct clock_sure *c, int64_t wall_ms, uint64_t boot_us, int64_t *ret_jump_ms)
{
	int64_t offset = wall_ms - (int64_t)(boot_us / 1000), jump = 0;

	if (!c->begun)
		*c = (struct clock_sure){.begun = true, .sure_ms = offset, .seen_ms = offset};
	if (llabs(offset - c->seen_ms) > JUMP_MS) {
		jump = offset - c->seen_ms;
		c->since_us = boot_us; /* also when it jumps a second time */
	}
	c->seen_ms = offset;
	if (llabs(offset - c->sure_ms) <= JUMP_MS || boot_us - c->since_us >= believed_us)
		c->sure_ms = offset;
	if (ret_jump_ms)
		*ret_jump_ms = jump;
	return c->sure_ms + (int64_t)(boot_us / 1000);
}

int64_t clock_sure_ms(struct clock_sure *c, int64_t *ret_jump_ms)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return clock_sure_at(c, clock_wall_ms(), (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u, ret_jump_ms);
}
