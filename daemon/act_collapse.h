/* Live versions that collapse go back by themselves, where that helps (act_collapse.c). */
#pragma once
#include "daemon/act.h"

struct watch;
void act_collapse(struct act *a, struct watch *w); /* once a second */
