/* Settings of the rollout that are written as text, read into its rules. */
#pragma once
#include "daemon/rollout.h"

/* "50,250": shares of 1,000 conversations, growing, at most RO_MAX_STEPS; "" = no canary. -EINVAL with e. */
int MUSTCHECK policy_steps(const char *text, struct rollout_rules *ret, struct errtext *e);
