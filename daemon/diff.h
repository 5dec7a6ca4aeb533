/* Two versions side by side: manifests, configurations, verdicts, and how far apart their weights are. Reads files only;
 * takes a second or so for a large draft. Threads: any.
 */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "daemon/base/err.h"

/* *ret: {a, b, manifest, config, verdict: {key: [a's, b's]}, where they differ, weights: {same, distance, relative, tensors:
 * [{name, relative}]}}. distance is Euclidean over all float tensors that both have in one shape; relative is to the length of a's.
 * -ENOENT with e: a version that cannot be read. */
int MUSTCHECK diff_versions(const char *store, uint32_t a, uint32_t b, json_t **ret, struct errtext *e);
