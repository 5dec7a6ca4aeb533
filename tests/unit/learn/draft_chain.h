/* The served draft chain, made of kernels/model/eagle3.c with f32 weights and a
 * paged f32 cache: prefill real rows, then propose token by token. What the TTT
 * computation is held to. */
#pragma once
#include "tests/unit/learn/vectors.h"

enum { CHAIN_MAX_ROWS = 512 };

struct chain {
	struct dev *d;
	const struct eagle3_config *c;
	struct eagle3 *draft;
	struct weight embedding;
	struct kv_pool kv;
	uint32_t pages[CHAIN_MAX_ROWS / 32];
	real *features, *feedback, *logits; /* device */
	float *weights;
	struct draft_layout lay;
};

static inline int chain_get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	const struct chain *s = ctx;
	(void)e;
	for (int i = 0; i < E3_N_ALL; i++)
		for (int part = 0, parts = eagle3_tensor_parts(s->c, (enum eagle3_tensor)i); part < parts; part++) {
			int cols = s->lay.cols[i] / parts;
			if (strcmp(name, eagle3_part_name(s->c, (enum eagle3_tensor)i, part)))
				continue;
			*ret = (struct tensor_view){.type = DT_F32, .rows = s->lay.rows[i], .cols = cols, .data = s->weights + s->lay.off[i] + (size_t)part * (size_t)cols};
			return 0;
		}
	return -ENOENT;
}

static inline void chain_open(struct chain *s, struct dev *d, const struct eagle3_config *c, const real *weights, const int64_t *d2t,
			      const uint16_t *embedding)
{
	struct errtext e = {""};
	*s = (struct chain){.d = d, .c = c};
	draft_layout_init(c, &s->lay);
	s->weights = malloc(s->lay.total * sizeof *s->weights);
	assert_non_null(s->weights);
	for (size_t i = 0; i < s->lay.total; i++)
		s->weights[i] = (float)weights[i];
	assert_int_equal(d->ops->weight_pack(d, &s->embedding, DT_BF16, c->V, c->H, embedding, DT_BF16), 0);
	const struct tensor_source source = {.get = chain_get, .ctx = s};
	int r = eagle3_load(d, c, &source, d2t, &s->embedding, DT_F32, &s->draft, &e);
	if (r)
		fail_msg("eagle3_load: %s (%d)", e.text, r);
	s->kv = (struct kv_pool){.n_layer = 1, .n_kv = c->n_kv, .d = c->hd, .page_tok = 32, .n_pages = CHAIN_MAX_ROWS / 32, .type = DT_F32};
	assert_int_equal(d->ops->kv_new(d, &s->kv), 0);
	for (uint32_t i = 0; i < CHAIN_MAX_ROWS / 32; i++)
		s->pages[i] = i;
	s->features = d->ops->alloc(d, CHAIN_MAX_ROWS * 3 * (size_t)c->H_t * sizeof(real));
	s->feedback = d->ops->alloc(d, CHAIN_MAX_ROWS * (size_t)c->H * sizeof(real));
	s->logits = d->ops->alloc(d, (size_t)c->V_d * sizeof(real));
	assert_true(s->features && s->feedback && s->logits);
}

static inline void chain_close(struct chain *s)
{
	eagle3_free(s->draft);
	s->d->ops->weight_free(s->d, &s->embedding);
	s->d->ops->kv_free(s->d, &s->kv);
	s->d->ops->free(s->d, s->features);
	s->d->ops->free(s->d, s->feedback);
	s->d->ops->free(s->d, s->logits);
	free(s->weights);
}

/* Rows from..t of true tokens and features (the rows before are in the cache);
 * s->logits afterwards are the first proposal's after row t. */
static inline void chain_extend(struct chain *s, const uint32_t *ids, const uint32_t *pos, const real *features, int from, int t)
{
	int m = t - from + 1, F = 3 * s->c->H_t;
	uint32_t slots[CHAIN_MAX_ROWS], last = (uint32_t)(m - 1), at = pos[t];
	assert_true(t < CHAIN_MAX_ROWS - TTT_MAX_STEPS);
	for (int i = 0; i < m; i++)
		slots[i] = (uint32_t)(from + i);
	const struct attn_seq seq = {.pages = s->pages, .n_past = t, .row0 = 0, .n_rows = 1};
	const struct eagle3_batch b = {.M = m, .ids = ids + from + 1, .pos = pos + from, .slots = slots, .n_out = 1, .out_rows = &last, .out_pos = &at,
				       .seqs = &seq, .n_seqs = 1};
	assert_int_equal(s->d->ops->upload(s->d, s->features, features + (size_t)from * (size_t)F, (size_t)m * (size_t)F * sizeof(real)), 0);
	assert_int_equal(eagle3_forward(s->draft, &s->kv, &b, s->features, NULL, s->feedback, s->logits), 0);
}

/* Chain step k >= 1 from row t: its token goes in, the next proposal's logits come out. */
static inline void chain_step(struct chain *s, const uint32_t *pos, int t, int k, uint32_t token)
{
	uint32_t slot = (uint32_t)(t + k), p = pos[t] + (uint32_t)k;
	const struct attn_seq seq = {.pages = s->pages, .n_past = t + k, .row0 = 0, .n_rows = 1};
	const struct eagle3_batch b = {.M = 1, .ids = &token, .pos = &p, .slots = &slot, .n_out = 1, .seqs = &seq, .n_seqs = 1};
	real *next = s->feedback + s->c->H;
	assert_int_equal(eagle3_forward(s->draft, &s->kv, &b, NULL, s->feedback, next, s->logits), 0);
	assert_int_equal(s->d->ops->copy_rows(s->d, s->feedback, s->c->H, next, s->c->H, NULL, 1, s->c->H), 0);
}

static inline uint32_t chain_argmax(const struct chain *s)
{
	uint32_t best;
	assert_int_equal(s->d->ops->topk(s->d, &best, NULL, NULL, s->logits, s->c->V_d, 1, s->c->V_d, 1), 0);
	return eagle3_target_id(s->draft, best);
}
