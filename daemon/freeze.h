/* Freeze windows: times in which nothing is promoted and no canary starts or grows.
 *
 * A list, by commas, in UTC:
 *   fri 16:00-mon 08:00       every week; the first minute belongs to it, the last one does not
 *   daily 02:00-03:30         every day, over midnight too
 *   2026-12-24..2027-01-02    these days, both whole
 * Rollback, and what is taken back for harm, never wait.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { FREEZE_MAX = 24 };

struct freeze {
	int n;
	struct freeze_window {
		bool dated;
		int64_t from, to; /* dated: days since 1970, to is the last one; else minutes of the week from Monday */
	} window[FREEZE_MAX];
};
int MUSTCHECK freeze_parse(const char *text, struct freeze *ret, struct errtext *e); /* -EINVAL with e; "" is no window */
bool freeze_at(const struct freeze *f, int64_t wall_ms);
