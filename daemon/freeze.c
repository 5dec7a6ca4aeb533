/* Freeze windows (freeze.h). */
#include "daemon/freeze.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { DAY = 24 * 60, WEEK = 7 * DAY };
static const char *const days[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun"};

/* Days since 1970. */
static bool read_date(const char **at, int64_t *ret)
{
	struct tm tm = {0};
	int y, m, d, n = 0;
	time_t at_midnight;

	if (sscanf(*at, "%4d-%2d-%2d%n", &y, &m, &d, &n) != 3 || n != 10 || y < 1970)
		return false;
	tm.tm_year = y - 1900;
	tm.tm_mon = m - 1;
	tm.tm_mday = d;
	at_midnight = timegm(&tm);
	if (tm.tm_mon != m - 1 || tm.tm_mday != d) /* there is no 31st of June, nor a 29th of February in most years */
		return false;
	*at += n;
	*ret = (int64_t)at_midnight / (24 * 3600);
	return true;
}

/* "fri 16:00": day -1 = none was said, 7 = daily. */
static bool read_time(const char **at, int *ret_day, int *ret_minute)
{
	int h, m, n = 0;

	*ret_day = -1;
	if (!strncasecmp(*at, "daily ", 6)) {
		*ret_day = 7;
		*at += 6;
	}
	for (int i = 0; i < 7 && *ret_day < 0; i++)
		if (!strncasecmp(*at, days[i], 3) && (*at)[3] == ' ') {
			*ret_day = i;
			*at += 4;
		}
	if (sscanf(*at, "%2d:%2d%n", &h, &m, &n) != 2 || h < 0 || h > 24 || m < 0 || m > 59 || (h == 24 && m))
		return false;
	*at += n;
	*ret_minute = h * 60 + m;
	return true;
}

static bool add(struct freeze *f, struct freeze_window w)
{
	if (f->n == FREEZE_MAX)
		return false;
	f->window[f->n++] = w;
	return true;
}

static bool read_weekly(const char **at, struct freeze *f)
{
	int from_day, to_day, from, to;

	if (!read_time(at, &from_day, &from) || from_day < 0 || **at != '-')
		return false;
	++*at;
	if (!read_time(at, &to_day, &to))
		return false;
	if (from_day < 7) {
		to_day = to_day < 0 ? from_day : to_day;
		return to_day < 7 && add(f, (struct freeze_window){.from = from_day * DAY + from, .to = (to_day * DAY + to) % WEEK});
	}
	for (int d = 0; d < 7; d++) { /* to_day: none may be said */
		int end = d * DAY + to + (to <= from ? DAY : 0);

		if (to_day >= 0 || !add(f, (struct freeze_window){.from = d * DAY + from, .to = end % WEEK}))
			return false;
	}
	return true;
}

int freeze_parse(const char *text, struct freeze *ret, struct errtext *e)
{
	struct freeze f = {0};
	const char *at = text;

	for (;;) {
		struct freeze_window w = {.dated = true};
		const char *item = at += strspn(at, " ");
		bool ok;

		if (!*at && at == text + strspn(text, " "))
			break;
		if (read_date(&at, &w.from))
			ok = !strncmp(at, "..", 2) && (at += 2, read_date(&at, &w.to)) && w.to >= w.from && add(&f, w);
		else
			ok = read_weekly(&at, &f);
		at += strspn(at, " ");
		if (!ok || (*at && *at != ','))
			return errtext_set(e, -EINVAL, "rollout.freeze: '%.40s' is none of \"fri 16:00-mon 08:00\", \"daily 02:00-03:30\", \"2026-12-24..2027-01-02\" (at most %d, a daily one counts as seven)",
					   item, FREEZE_MAX);
		if (!*at++)
			break;
	}
	*ret = f;
	return 0;
}

bool freeze_at(const struct freeze *f, int64_t wall_ms)
{
	int64_t minute = wall_ms / 60000 - (wall_ms % 60000 < 0), day = minute / DAY - (minute % DAY < 0);
	int64_t of_week = ((minute + 3 * DAY) % WEEK + WEEK) % WEEK; /* 1970 began on a Thursday */

	for (int i = 0; i < f->n; i++) {
		const struct freeze_window *w = &f->window[i];

		if (w->dated ? day >= w->from && day <= w->to
			     : w->from < w->to ? of_week >= w->from && of_week < w->to : of_week >= w->from || of_week < w->to)
			return true;
	}
	return false;
}
