/* What the bits of a step depend on beside its inputs (learn/trainer.h). */
#include "learn/trainer.h"

#include <stdio.h>
#include <string.h>

void trainer_name_device(const struct dev *d, char ret[static TRAINER_DEVICE_NAME])
{
	int model = (int)strcspn(d->about, ",");
	if (d->kind == DEV_CPU)
		(void)snprintf(ret, TRAINER_DEVICE_NAME, "cpu %s%s, sums %d", dev_isa_name(d->isa), d->math == MATH_FAST ? " fast" : "", TRAINER_SUMS);
	else
		(void)snprintf(ret, TRAINER_DEVICE_NAME, "%.*s, %s, sums %d", model < 40 ? model : 40, d->about, d->math == MATH_STRICT ? "strict" : "fast", TRAINER_SUMS);
	for (char *c = ret; *c; c++)
		*c = *c < ' ' || *c > '~' || *c == '"' || *c == '\\' ? '?' : *c;
}
