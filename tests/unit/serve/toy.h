/* Toy models for the serving tests, made in memory from a seed: a Llama of 8 blocks,
 * 64 wide, vocabulary 512, and EAGLE-3 drafts for it.
 *
 * `residual` scales o_proj and down_proj: at 0 the target repeats its last token; small
 * values give text that mostly repeats but depends on context. toy_draft TOY_AGREES
 * answers with the target's head over its high feature, so it is right when the target
 * repeats and wrong otherwise; TOY_RANDOM knows nothing; TOY_OVERFLOW makes inf and NaN; TOY_LEANS agrees
 * less, because its attention and FFN have their say.
 */
#pragma once
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "kernels/model/eagle3.h"
#include "kernels/model/llama.h"
#include "schemas/draft_config.h"

enum { TOY_V = 512, TOY_H = 64, TOY_I = 128, TOY_LAYERS = 8 };
enum toy_kind { TOY_RANDOM, TOY_AGREES, TOY_OVERFLOW, TOY_LEANS };

struct toy_source {
	uint64_t seed;
	float residual;
	bool one_head; /* of 64 */
	float *made; /* the tensor last asked for */
};

static inline uint64_t toy_mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline float toy_noise(uint64_t seed, uint64_t i) /* about normal, variance 1 */
{
	float s = 0;
	for (uint64_t j = 0; j < 4; j++)
		s += (float)(toy_mix(seed + 0x9e3779b97f4a7c15u * (4 * i + j + 1)) >> 40) / (float)(1 << 24) - 0.5f;
	return s * 1.7320508f;
}

static inline uint64_t toy_name_seed(uint64_t seed, const char *name)
{
	for (; *name; name++)
		seed = toy_mix(seed ^ (uint8_t)*name);
	return seed;
}

static inline void toy_fill(float *p, size_t n, uint64_t seed, float scale)
{
	for (size_t i = 0; i < n; i++)
		p[i] = scale * toy_noise(seed, i);
}

static inline void toy_shape(const char *name, int *rows, int *cols)
{
	*cols = TOY_H;
	if (strstr(name, "norm"))
		*rows = 1;
	else if (strstr(name, "embed_tokens"))
		*rows = TOY_V;
	else if (strstr(name, "k_proj") || strstr(name, "v_proj"))
		*rows = 32;
	else if (strstr(name, "gate") || strstr(name, "up_proj"))
		*rows = TOY_I;
	else
		*rows = TOY_H;
	if (strstr(name, "down_proj"))
		*cols = TOY_I;
}

static inline int toy_get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	struct toy_source *t = ctx;
	(void)e;
	toy_shape(name, &ret->rows, &ret->cols);
	if (t->one_head && (strstr(name, "k_proj") || strstr(name, "v_proj")))
		ret->rows = TOY_H;
	size_t n = (size_t)ret->rows * (size_t)ret->cols;
	free(t->made);
	t->made = malloc(n * sizeof *t->made);
	float scale = 0.125f; /* 1/sqrt(H) */
	if (strstr(name, "o_proj") || strstr(name, "down_proj"))
		scale *= t->residual;
	toy_fill(t->made, n, toy_name_seed(t->seed, name), scale);
	for (size_t i = 0; ret->rows == 1 && i < n; i++)
		t->made[i] = 1 + 0.1f * t->made[i];
	ret->type = DT_F32;
	ret->data = t->made;
	return 0;
}

static inline struct llama_config toy_config(void)
{
	struct llama_config c = {.n_layer = TOY_LAYERS, .H = TOY_H, .I = TOY_I, .n_head = 4, .n_kv = 2, .hd = 16, .V = TOY_V,
				 .rms_eps = (real)1e-5, .rope = {.theta = 10000}, .max_ctx = 1024, .tied = true};
	default_boundaries(TOY_LAYERS, c.boundaries);
	return c;
}

static inline struct llama *toy_target_of(struct dev *d, float residual, enum dtype type, bool one_head)
{
	struct toy_source t = {.seed = 7, .residual = residual, .one_head = one_head};
	struct tensor_source s = {.get = toy_get, .ctx = &t};
	struct llama_config c = toy_config();
	if (one_head)
		c.n_head = c.n_kv = 1, c.hd = TOY_H;
	struct llama *m = NULL;
	struct errtext e = {0};
	if (llama_load(d, &c, &s, type, &m, &e))
		fprintf(stderr, "toy target: %s\n", e.text);
	free(t.made);
	return m;
}

static inline struct llama *toy_target(struct dev *d, float residual, enum dtype type)
{
	return toy_target_of(d, residual, type, false);
}

/* A checkpoint folder for the toy target; n_kv 2 is the family's shape. dir is made. */
static inline int toy_draft(const char *dir, enum toy_kind kind, uint64_t seed, int n_kv, struct errtext *e)
{
	bool agrees = kind == TOY_AGREES || kind == TOY_LEANS;
	struct draft_config c = {.hidden_size = TOY_H, .target_hidden_size = TOY_H, .intermediate_size = TOY_I, .n_head = 4,
				 .n_kv_head = n_kv, .head_dim = 16, .vocab_size = TOY_V, .draft_vocab_size = agrees ? TOY_V : 128,
				 .max_position = 1024, .rms_eps = 1e-5, .rope_theta = 10000, .boundaries_default = true,
				 .bos_id = 1, .eos_id = 2, .pad_id = 2};
	struct eagle3_config k = {.H = TOY_H, .H_t = TOY_H, .I = TOY_I, .n_head = 4, .n_kv = n_kv, .hd = 16, .V = TOY_V,
				  .V_d = c.draft_vocab_size};
	struct draft_tensor t[E3_N_TENSORS];
	float *data[E3_N_TENSORS];
	int64_t *d2t = calloc((size_t)k.V_d, sizeof *d2t);
	default_boundaries(TOY_LAYERS, c.boundaries);
	for (int i = 0; i < k.V_d; i++)
		d2t[i] = agrees ? 0 : 3 * i + (i % 2); /* used ids 0, 5, 8, 13, ... */
	for (int i = 0; i < E3_N_TENSORS; i++) {
		int rows, cols;
		eagle3_tensor_shape(&k, (enum eagle3_tensor)i, &rows, &cols);
		size_t n = (size_t)rows * (size_t)cols;
		data[i] = malloc(n * sizeof(float));
		toy_fill(data[i], n, toy_mix(seed + (uint64_t)i), rows == 1 ? 0.02f : 0.125f);
		for (size_t j = 0; rows == 1 && j < n; j++)
			data[i][j] += 1;
		for (size_t j = 0; agrees && (i == E3_O || i == E3_DOWN) && j < n; j++)
			data[i][j] *= kind == TOY_LEANS ? 0.25f : 0;
		if (agrees && i == E3_FC)
			for (size_t j = 0; j < n; j++)
				data[i][j] = j % (3 * TOY_H) == 2 * TOY_H + j / (3 * TOY_H) ? 1 : 0;
		if (kind == TOY_OVERFLOW && i == E3_FC)
			for (size_t j = 0; j < n; j++)
				data[i][j] = 3e38f;
		t[i] = (struct draft_tensor){eagle3_tensor_name((enum eagle3_tensor)i), rows, cols, data[i]};
	}
	if (agrees) { /* the target's head is its embedding */
		struct toy_source src = {.seed = 7};
		struct tensor_view v;
		if (toy_get(&src, "model.embed_tokens.weight", &v, NULL) == 0)
			memcpy(data[E3_HEAD], v.data, sizeof(float) * TOY_V * TOY_H);
		free(src.made);
	}
	int r = fs_mkdirs(dir);
	if (!r)
		r = draft_save(dir, &c, d2t, t, E3_N_TENSORS, true, e);
	for (int i = 0; i < E3_N_TENSORS; i++)
		free(data[i]);
	free(d2t);
	return r;
}
