/* Why is version N not live? The chain of reasons, in the order in which they hold, as sentences for a person. Threads: the loop's. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "daemon/rollout.h"

/* {version, live, state, text, reasons: [sentence]}; NULL: there is no such version. verdict: its verdict.json, borrowed, or NULL. */
json_t *explain_version(const struct rollout *r, uint32_t version, const json_t *verdict, const char *decay, uint64_t now_us);
