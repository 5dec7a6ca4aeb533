/* Weights on their way in: every tensor is asked for by name and must have the
 * shape the configuration implies; q, k, v (and gate, up) are stacked by rows so
 * that one multiplication serves them all.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/model/load.h"

int model_get(const struct tensor_source *s, const char *name, int rows, int cols,
	      struct tensor_view *ret, struct errtext *e)
{
	struct tensor_view v = {0};
	int r = s->get(s->ctx, name, &v, e);
	if (r == -ENOENT)
		return errtext_set(e, -EINVAL, "tensor %s is missing", name);
	if (r)
		return r;
	if (v.rows != rows || v.cols != cols)
		return errtext_set(e, -EINVAL, "tensor %s is %d x %d, expected %d x %d", name, v.rows, v.cols, rows, cols);
	*ret = v;
	return 0;
}

int model_load_vectors(struct dev *d, const struct tensor_source *s, int n, const char *const *names,
		       const int *sizes, enum dtype type, real **ret, struct errtext *e)
{
	int total = 0, at = 0, r = 0;
	for (int i = 0; i < n; i++)
		total += sizes[i];
	real *host = malloc((size_t)total * sizeof *host);
	real *dev = d->ops->alloc(d, (size_t)total * sizeof *dev);
	if (!host || !dev)
		r = errtext_set(e, -ENOMEM, "out of memory for tensor %s", names[0]);
	for (int i = 0; !r && i < n; i++) {
		struct tensor_view v;
		r = model_get(s, names[i], 1, sizes[i], &v, e);
		for (int j = 0; !r && j < sizes[i]; j++) {
			float f = v.type == DT_BF16 ? bf16_to_f32(((const uint16_t *)v.data)[j]) : ((const float *)v.data)[j];
			host[at++] = (real)(type == DT_BF16 ? bf16_to_f32(f32_to_bf16(f)) : f);
		}
	}
	if (!r)
		r = d->ops->upload(d, dev, host, (size_t)total * sizeof *dev);
	free(host);
	if (r) {
		d->ops->free(d, dev);
		return r;
	}
	*ret = dev;
	return 0;
}

int model_load_vector(struct dev *d, const struct tensor_source *s, const char *name, int n,
		      enum dtype type, real **ret, struct errtext *e)
{
	return model_load_vectors(d, s, 1, &name, &n, type, ret, e);
}

int model_load_stacked(struct dev *d, const struct tensor_source *s, int n, const char *const *names,
		       const int *rows, int K, enum dtype type, struct weight *ret, struct errtext *e)
{
	struct tensor_view v;
	int r, N = 0;
	if (n == 1) {
		r = model_get(s, names[0], rows[0], K, &v, e);
		return r ? r : d->ops->weight_pack(d, ret, type, rows[0], K, v.data, v.type);
	}
	for (int i = 0; i < n; i++)
		N += rows[i];
	/* Sources may give f32 and bf16 mixed: stack in f32, which both reach exactly. */
	float *all = malloc((size_t)N * (size_t)K * sizeof *all);
	if (!all)
		return errtext_set(e, -ENOMEM, "out of memory for tensor %s", names[0]);
	float *at = all;
	for (int i = 0; i < n; i++) {
		r = model_get(s, names[i], rows[i], K, &v, e);
		if (r)
			goto out;
		size_t count = (size_t)rows[i] * (size_t)K;
		if (v.type == DT_F32)
			memcpy(at, v.data, count * sizeof(float));
		else
			for (size_t j = 0; j < count; j++)
				at[j] = bf16_to_f32(((const uint16_t *)v.data)[j]);
		at += count;
	}
	r = d->ops->weight_pack(d, ret, type, N, K, all, DT_F32);
	if (r)
		r = errtext_set(e, r, "tensor %s could not be packed", names[0]);
out:
	free(all);
	return r;
}

int model_grow(struct dev *d, real **p, size_t *have, size_t need)
{
	if (need <= *have)
		return 0;
	real *q = d->ops->alloc(d, need * sizeof *q);
	if (!q)
		return -ENOMEM;
	d->ops->free(d, *p);
	*p = q;
	*have = need;
	return 0;
}

uint64_t model_version(void)
{
	static atomic_uint_fast64_t last;
	return atomic_fetch_add(&last, 1) + 1;
}
