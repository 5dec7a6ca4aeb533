/* Is a record's feature scale what this target's is? A robust check against features that are broken or made up.
 *
 * Per boundary: the median over the record's rows of log2 of a row's root mean square, against a running median of
 * those of the records accepted before. Single rows may stick out a thousandfold (a sequence's first token does in
 * many models), so a row alone only counts far beyond that. A target's scale does not drift: its weights are fixed.
 */
#pragma once
#include <jansson.h>
#include "schemas/record.h"

enum { SCALE_BOUNDARIES = 3, SCALE_LEARNING = 32 /* records before anything is refused */ };

struct scale {
	int64_t records;
	double median[SCALE_BOUNDARIES]; /* of log2 rms */
};

/* limit: how many times larger or smaller than usual a record may be. true: it fits, and the medians have moved;
 * false: why says what is wrong, nothing has changed. -ENOMEM in *ret_r. */
bool scale_fits(struct scale *s, const struct trace_record *r, double limit, int *ret_r, struct errtext *why);
