/* Reading tests/reference/ttt/NAME.{txt,bin} (format: make_vectors.py there), or DIR/NAME where the name
 * has a slash. Fails the running test when something is missing. */
#pragma once
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "learn/ttt.h"

struct vector_entry {
	char name[32], type[8];
	size_t offset, count;
	double number;
};

struct vectors {
	struct vector_entry entry[128];
	int n;
	unsigned char *blob;
	size_t size;
};

static inline struct vectors *vectors_open(const char *name)
{
	char path[400], line[256];
	struct vectors *v = calloc(1, sizeof *v);
	assert_non_null(v);
	const char *dir = strchr(name, '/') ? "" : "tests/reference/ttt/";
	snprintf(path, sizeof path, "%s%s.txt", dir, name);
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		struct vector_entry *e = &v->entry[v->n];
		assert_true(v->n < 128);
		if (sscanf(line, "number %31s %lf", e->name, &e->number) == 2 ||
		    sscanf(line, "array %31s %7s %zu %zu", e->name, e->type, &e->offset, &e->count) == 4)
			v->n++;
	}
	fclose(f);
	snprintf(path, sizeof path, "%s%s.bin", dir, name);
	f = fopen(path, "rb");
	assert_non_null(f);
	fseek(f, 0, SEEK_END);
	v->size = (size_t)ftell(f);
	rewind(f);
	v->blob = malloc(v->size);
	assert_non_null(v->blob);
	assert_int_equal(fread(v->blob, 1, v->size, f), v->size);
	fclose(f);
	return v;
}

static inline void vectors_close(struct vectors *v)
{
	free(v->blob);
	free(v);
}

/* NULL where the case does not have it. */
static inline const struct vector_entry *vectors_maybe(const struct vectors *v, const char *name)
{
	for (int i = 0; i < v->n; i++)
		if (!strcmp(v->entry[i].name, name))
			return &v->entry[i];
	return NULL;
}

static inline const struct vector_entry *vectors_find(const struct vectors *v, const char *name)
{
	const struct vector_entry *e = vectors_maybe(v, name);
	if (!e)
		fail_msg("no vector named %s", name);
	return e;
}

/* 0 where the case does not have it. */
static inline double vectors_optional(const struct vectors *v, const char *name)
{
	const struct vector_entry *e = vectors_maybe(v, name);
	return e ? e->number : 0;
}

static inline double vectors_number(const struct vectors *v, const char *name)
{
	return vectors_find(v, name)->number;
}

static inline const void *vectors_array(const struct vectors *v, const char *name, const char *type, size_t *ret_count)
{
	const struct vector_entry *e = vectors_find(v, name);
	assert_string_equal(e->type, type);
	assert_true(e->offset < v->size);
	*ret_count = e->count;
	return v->blob + e->offset;
}

/* An f32 array widened to real; malloc'd. */
static inline real *vectors_reals(const struct vectors *v, const char *name, size_t *ret_count)
{
	size_t n;
	const float *f = vectors_array(v, name, "f32", &n);
	real *r = malloc(n * sizeof *r);
	assert_non_null(r);
	for (size_t i = 0; i < n; i++)
		r[i] = (real)f[i];
	if (ret_count)
		*ret_count = n;
	return r;
}

static inline struct eagle3_config vectors_config(const struct vectors *v)
{
	struct eagle3_config c = {
		.H = (int)vectors_number(v, "H"),
		.H_t = (int)vectors_number(v, "Ht"),
		.I = (int)vectors_number(v, "I"),
		.n_head = (int)vectors_number(v, "nh"),
		.n_kv = (int)vectors_number(v, "nkv"),
		.hd = (int)vectors_number(v, "d"),
		.V = (int)vectors_number(v, "V"),
		.V_d = (int)vectors_number(v, "Vd"),
		.rms_eps = (real)vectors_number(v, "eps"),
		.max_ctx = 4096,
		.rope = {.theta = vectors_number(v, "theta"), .kind = ROPE_DEFAULT},
		.norm_before_residual = vectors_optional(v, "norm_before_residual") > 0, .norm_before_fc = vectors_optional(v, "norm_before_fc") > 0,
		.fc_norm = vectors_optional(v, "fc_norm") > 0, .norm_output = vectors_optional(v, "norm_output") > 0,
	};
	return c;
}

static inline void vectors_rope(const struct vectors *v, struct rope_config *r)
{
	switch ((int)vectors_number(v, "rope_kind")) {
	case 1: r->kind = ROPE_LINEAR; break;
	case 2: r->kind = ROPE_LLAMA3; break;
	case 3: r->kind = ROPE_YARN; break;
	default: break;
	}
	r->factor = vectors_number(v, "rope_factor");
	r->low_freq_factor = vectors_number(v, "rope_low");
	r->high_freq_factor = vectors_number(v, "rope_high");
	r->orig_max = vectors_number(v, "rope_orig");
	r->beta_fast = vectors_number(v, "rope_beta_fast");
	r->beta_slow = vectors_number(v, "rope_beta_slow");
	r->mscale = vectors_number(v, "rope_mscale");
	r->mscale_all_dim = vectors_number(v, "rope_mscale_all");
}

/* A whole case: shape, weights and one batch. */
struct ttt_case {
	struct vectors *v;
	struct eagle3_config c;
	struct train_options opt;
	struct train_batch b;
	real *params, *features, *p;
	const int64_t *d2t;
	const uint16_t *embedding;
};

static inline struct train_options options_default(void)
{
	return (struct train_options){.ttt_steps = 7, .decay = (real)0.8, .optimizer = OPT_ADAMW, .lr = (real)1e-3, .muon_lr = (real)0.02,
				      .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8, .clip = (real)0.5,
				      .muon_momentum = (real)0.95, .muon_iters = 5};
}

static inline void ttt_case_open(struct ttt_case *k, const char *name)
{
	size_t n;
	struct vectors *v = vectors_open(name);
	*k = (struct ttt_case){.v = v, .c = vectors_config(v), .opt = options_default()};
	vectors_rope(v, &k->c.rope);
	k->opt.ttt_steps = (int)vectors_number(v, "L");
	k->opt.decay = (real)vectors_number(v, "decay");
	k->params = vectors_reals(v, "params", NULL);
	k->features = vectors_reals(v, "features", NULL);
	k->p = vectors_reals(v, "teacher_p", NULL);
	k->d2t = vectors_array(v, "d2t", "i64", &n);
	k->embedding = vectors_array(v, "embedding", "u16", &n);
	int topk = (int)vectors_number(v, "topk");
	k->b = (struct train_batch){
		.n = (int)vectors_number(v, "n"),
		.ids = vectors_array(v, "ids", "u32", &n),
		.pos = vectors_array(v, "pos", "u32", &n),
		.seg = vectors_array(v, "seg", "u32", &n),
		.features = k->features,
		.mask = vectors_array(v, "mask", "u8", &n),
		.y = vectors_array(v, "y", "u32", &n),
		.in_vocab = vectors_array(v, "in_vocab", "u8", &n),
	};
	k->b.teacher = (struct teacher){.n = k->b.n, .K = topk ? topk : k->c.V_d, .p = k->p};
	if (topk)
		k->b.teacher.ids = vectors_array(v, "teacher_ids", "u32", &n);
}

static inline void ttt_case_close(struct ttt_case *k)
{
	free(k->params);
	free(k->features);
	free(k->p);
	vectors_close(k->v);
}

static inline struct trainer *ttt_case_trainer(const struct ttt_case *k, struct dev *d)
{
	struct trainer *t = NULL;
	struct errtext e = {""};
	int r = trainer_eagle3.new(d, &k->c, &k->opt, k->d2t, k->embedding, &t, &e);
	if (r < 0)
		fail_msg("trainer: %s (%d)", e.text, r);
	memcpy(trainer_eagle3.params(t), k->params, trainer_eagle3.n_params(t) * sizeof(real));
	trainer_eagle3.params_changed(t);
	return t;
}

/* Largest |a-b| over the largest |b|; NaN anywhere gives NaN or infinity. */
static inline double worst(const real *a, const real *b, size_t n)
{
	double diff = 0, top = 0;
	for (size_t i = 0; i < n; i++) {
		double e = fabs((double)a[i] - (double)b[i]);
		if (!(e <= diff))
			diff = e;
		if (fabs((double)b[i]) > top)
			top = fabs((double)b[i]);
	}
	return top > 0 ? diff / top : diff;
}

/* A device, or NULL when this CPU or build lacks the path. */
static inline struct dev *dev_or_null(int threads, enum dev_isa isa)
{
	struct dev *d = NULL;
	int r = dev_cpu_new(threads, isa, &d);
	if (r == -ENOTSUP)
		return NULL;
	assert_int_equal(r, 0);
	return d;
}

/* The same, of products in bf16, or NULL when the path has none. */
static inline struct dev *fast_or_null(int threads, enum dev_isa isa)
{
	struct dev *d = dev_or_null(threads, isa);
	if (d)
		dev_cpu_math(d, MATH_FAST);
	return d && d->math == MATH_STRICT ? dev_free(d) : d;
}
