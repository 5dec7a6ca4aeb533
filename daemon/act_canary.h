/* The canary that runs, judged by the round records that the watcher reads (canary.h). */
#pragma once
#include "daemon/act.h"

struct watch;
void act_canary(struct act *a, struct watch *w);   /* once a second */
const char *act_canary_text(const struct act *a);  /* what was seen of it so far; "" when none runs */
