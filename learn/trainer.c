/* What the bits of a step depend on beside its inputs (learn/trainer.h). */
#include "learn/trainer.h"

#include <stdio.h>
#include <string.h>

void trainer_name_device(const struct dev *d, char ret[static TRAINER_DEVICE_NAME])
{
	int model = (int)strcspn(d->about, ",");
	if (d->kind == DEV_CPU)
		(void)snprintf(ret, TRAINER_DEVICE_NAME, "cpu %s, sums %d", dev_isa_name(d->isa), TRAINER_SUMS);
	else
		(void)snprintf(ret, TRAINER_DEVICE_NAME, "%.*s, %s, sums %d", model < 40 ? model : 40, d->about, strstr(d->about, ", strict") ? "strict" : "fast", TRAINER_SUMS);
	for (char *c = ret; *c; c++)
		*c = *c < ' ' || *c > '~' || *c == '"' || *c == '\\' ? '?' : *c;
}
