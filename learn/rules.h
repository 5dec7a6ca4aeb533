/* Who may be learned from: what is left out, and why, counted.
 *
 * Everything here is a function of the records taken and the verdicts journalled, so it is the same after a crash.
 */
#pragma once
#include "learn/runs.h"
#include "learn/scale.h"

enum rule_out {
	OUT_SCALE,       /* records: features of another scale than this target's */
	OUT_QUARANTINED, /* records: rounds that a quarantined version proposed */
	OUT_REPEATED,    /* runs: all of it is in the pool already */
	OUT_TENANT,      /* runs: their tenant is above its share of the window */
	OUT_REQUEST,     /* runs: their request has given its most rows already */
	OUT_EXPIRED,     /* runs: past the age limit */
	OUT_N
};
const char *rule_word(enum rule_out x); /* "scale", "quarantined", ... */

enum { RULES_TENANTS = 64, RULES_QUARANTINED = 64 };

struct rules {
	struct scale scale;
	int n_quarantined;
	uint32_t quarantined[RULES_QUARANTINED]; /* the newest named */
	int n_tenants;
	struct { uint64_t tenant; int64_t rows; } tenants[RULES_TENANTS];
	int64_t window;  /* rows of all tenants, as they are counted now */
};

void rules_verdict(struct rules *x, uint32_t version, bool quarantined);
bool rules_quarantined(const struct rules *x, const struct trace_record *r, uint32_t *ret_version);
/* Is there room for n rows of that tenant in a window of so many rows? Counted when there is. share 0 or 1, or no tenant:
 * always. Half the window must have come before anybody is refused. */
bool rules_tenant(struct rules *x, uint64_t tenant, int n, double share, int64_t window);
/* Of one request at most so many rows are lessons, the newest: its parts that still wait give way from their oldest row on, then r itself, by
 * moving `first`. What was trained or is held out counts, and stays. *ret_rows: so many gave way, of *ret_runs runs; r has less than
 * JOIN_MIN_ROWS lessons left when there was no room for it. */
void rules_request(struct runs *s, struct run *r, int64_t most, uint64_t *ret_rows, uint64_t *ret_runs);

json_t *rules_to_json(const struct rules *x);                    /* NULL = out of memory */
int MUSTCHECK rules_from_json(struct rules *x, const json_t *j); /* NULL: stays as it is */
