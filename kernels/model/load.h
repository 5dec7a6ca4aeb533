/* Internal to kernels/model: taking tensors from a source into device memory. */
#pragma once
#include "kernels/model/model.h"

/* One tensor of the shape asked for, or an error that names it. */
int MUSTCHECK model_get(const struct tensor_source *s, const char *name, int rows, int cols,
			struct tensor_view *ret, struct errtext *e);
/* A norm vector as reals on the device, rounded to `type` as a weight would be. */
int MUSTCHECK model_load_vector(struct dev *d, const struct tensor_source *s, const char *name, int n,
				enum dtype type, real **ret, struct errtext *e);
/* n vectors end to end, likewise. */
int MUSTCHECK model_load_vectors(struct dev *d, const struct tensor_source *s, int n, const char *const *names,
				 const int *sizes, enum dtype type, real **ret, struct errtext *e);
/* n matrices with the same K stacked by rows into one packed weight. */
int MUSTCHECK model_load_stacked(struct dev *d, const struct tensor_source *s, int n, const char *const *names,
				 const int *rows, int K, enum dtype type, struct weight *ret, struct errtext *e);
/* 1, 2, ...: for what must be told from all that was before it. Any thread. */
uint64_t model_version(void);
/* A scratch array of reals that only grows. *have and need are counts of reals. */
int MUSTCHECK model_grow(struct dev *d, real **p, size_t *have, size_t need);
