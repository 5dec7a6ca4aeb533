/* Probes: is the target side what it was when the references were taken?
 *
 * Now and then the pinned prompts are served by the live engine with the base draft (serve/probe.h says what is told of them)
 * and compared with references in the store (probe.json), which the first run makes, or `redraftctl probe --record`. Features that have moved by more
 * than `features` of their own size, or an accept length by more than `al` of its own, seen twice in a row, are an alarm: whatever drafts
 * for it, the engine no longer gives what it gave. Other references are made by themselves only for another target, base, chain length or set of prompts.
 */
#pragma once
#include <jansson.h>
#include "daemon/act.h"

/* Once a second. */
void act_probe(struct act *a);
/* Now. record: what is seen becomes the reference. done: once, with the outcome (taken) or an error's name and text. */
void act_probe_now(struct act *a, bool record, act_probed *done, void *arg);

/* Pure: both are answers of Serve.Probe. text: what moved, or that nothing did. moved: features or accept length beyond the rules; -EINVAL: an
 * answer that is no use, with text. */
int MUSTCHECK probe_compare(const struct probe_rules *r, const json_t *reference, const json_t *seen, bool *ret_moved, char *ret_text, size_t size);
