/* Choosing a device, and what all devices have. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "kernels/dev.h"

int dev_all_threads(int share)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN) / share;
	return n < 1 ? 1 : n > DEV_MAX_THREADS ? DEV_MAX_THREADS : (int)n;
}

int dev_new(const struct dev_options *o, struct dev **ret, struct errtext *e)
{
	struct errtext why = {""};
	struct dev *d = NULL;
	int r = -ENODEV;
	if (o->kind != DEV_CPU)
		r = dev_cuda_new(o, &d, &why);
	if (r && o->kind == DEV_CUDA)
		return errtext_set(e, r, "%s", why.text);
	if (r) {
		r = dev_cpu_new(o->threads, o->isa, &d);
		if (r == -ENOTSUP)
			return errtext_set(e, r, "this CPU lacks what isa %s needs; use auto", dev_isa_name(o->isa));
		if (r)
			return errtext_set(e, r, "%d threads cannot be started: %s", o->threads, strerror(-r));
		dev_cpu_math(d, o->math);
		size_t n = strlen(d->about);
		if (*why.text)
			(void)snprintf(d->about + n, sizeof d->about - n, " (%s)", why.text);
	}
	*ret = d;
	return 0;
}

int dev_again(struct dev *d, struct dev **ret)
{
	return d->again(d, ret);
}

struct dev *dev_free(struct dev *d)
{
	return d ? d->close(d) : NULL;
}

static const char *const isa_names[] = {
	[ISA_AUTO] = "auto",
	[ISA_PORTABLE] = "portable",
	[ISA_AVX2] = "avx2",
	[ISA_AVX512] = "avx512",
	[ISA_AVX512_BF16] = "avx512-bf16",
};

const char *dev_isa_name(enum dev_isa isa)
{
	return (size_t)isa < sizeof isa_names / sizeof *isa_names ? isa_names[isa] : "?";
}

int dev_isa_parse(const char *name, enum dev_isa *ret)
{
	for (size_t i = 0; i < sizeof isa_names / sizeof *isa_names; i++)
		if (strcmp(name, isa_names[i]) == 0) {
			*ret = (enum dev_isa)i;
			return 0;
		}
	return -EINVAL;
}
