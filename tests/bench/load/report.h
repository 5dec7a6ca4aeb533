/* What came of a run: JSON lines for programs, a table for people.
 *
 * A line for each label (and for what ran beside it), then one for each label against the first, as ratios.
 *   ttft_ms   due time to the first piece, a request
 *   tpot_ms   a token after the first: time since the piece before its own, shared by the tokens of the piece
 *   gap_ms    between two pieces: what a person sees stall
 *   e2e_ms    due time to the last piece, a request
 * Each as mean, P50, P95, P99 and P99/P50 with 95 % bootstrap intervals: over requests within a label, over pairs of slices in ratios.
 * Slices labelled "warmup" are left out.
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include "daemon/base/err.h"
#include "tests/bench/load/run.h"

/* round: 0 = all, else only answers of the n-th round. Returns how many requests failed, or -errno. */
int MUSTCHECK report_write(struct run *r, int round, FILE *json, FILE *table);
/* One line a request, with its times in ms and its pieces. */
int MUSTCHECK report_each(const struct run *r, FILE *json);
