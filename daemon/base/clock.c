/* Time. Everything that waits or measures uses the monotonic clock; the wall
 * clock only labels things for people.
 */
#include "daemon/base/clock.h"
#include <stdio.h>
#include <time.h>

uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
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
