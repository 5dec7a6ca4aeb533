/* Sequences in a pool of pages, for the tests of paged attention, and what attention over them is in double. */
#pragma once
#include "kt.h"

struct shape {
	int nh, nkv, hd;
};

enum { PAGES = 80, TOK = 32, LAYERS = 2 };

/* A sequence of T positions whose keys and values sit in a pool at scattered pages */
struct sequence {
	int T;
	uint32_t pages[PAGES];
	real *q, *k, *v; /* [T, heads*hd] */
};

static inline void sequence_new(struct sequence *s, const struct shape *sh, int T, uint32_t first_page, uint32_t step)
{
	*s = (struct sequence){.T = T};
	for (uint32_t i = 0; i < PAGES; i++)
		s->pages[i] = (first_page + i * step) % PAGES;
	s->q = kt_reals((size_t)(T * sh->nh * sh->hd), 2);
	s->k = kt_reals((size_t)(T * sh->nkv * sh->hd), 2);
	s->v = kt_reals((size_t)(T * sh->nkv * sh->hd), 1);
}

static inline void sequence_write(struct dev *d, struct kv_pool *p, int layer, const struct sequence *s)
{
	uint32_t *slots = malloc((size_t)s->T * sizeof *slots);
	assert_non_null(slots);
	for (int t = 0; t < s->T; t++)
		slots[t] = s->pages[t / TOK] * TOK + (uint32_t)(t % TOK);
	assert_int_equal(d->ops->kv_write(d, p, layer, s->k, s->v, p->n_kv * p->d, slots, s->T), 0);
	kt_free(slots);
}

static inline void sequence_done(struct sequence *s)
{
	kt_free(s->q);
	kt_free(s->k);
	kt_free(s->v);
}

static inline void pool_new_of(struct dev *d, struct kv_pool *p, const struct shape *sh, enum dtype type)
{
	*p = (struct kv_pool){.n_layer = LAYERS, .n_kv = sh->nkv, .d = sh->hd, .page_tok = TOK, .n_pages = PAGES, .type = type};
	assert_int_equal(d->ops->kv_new(d, p), 0);
}

static inline double held(double x, enum dtype type)
{
	return type == DT_BF16 ? (double)bf16_to_f32(f32_to_bf16((float)x)) : x;
}

/* out [n, heads*hd] += rows from .. from+n-1 of s */
static inline void reference(double *out, const struct sequence *s, int from, int n, const struct shape *sh, enum dtype type, double scale)
{
	int group = sh->nh / sh->nkv, hd = sh->hd;
	double *p = kt_doubles((size_t)s->T);
	for (int t = from; t < from + n; t++)
		for (int h = 0; h < sh->nh; h++) {
			const real *q = s->q + (t * sh->nh + h) * hd;
			double max = -1e300, sum = 0, *o = out + ((t - from) * sh->nh + h) * hd;
			for (int i = 0; i <= t; i++) {
				p[i] = 0;
				for (int c = 0; c < hd; c++)
					p[i] += (double)q[c] * held((double)s->k[(i * sh->nkv + h / group) * hd + c], type) * scale;
				max = p[i] > max ? p[i] : max;
			}
			for (int i = 0; i <= t; i++)
				sum += p[i] = exp(p[i] - max);
			for (int i = 0; i <= t; i++)
				for (int c = 0; c < hd; c++)
					o[c] += p[i] / sum * held((double)s->v[(i * sh->nkv + h / group) * hd + c], type);
		}
	kt_free(p);
}
