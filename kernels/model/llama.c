/* The Llama block over ops.h, with boundary features tapped.
 *
 * The residual stream x [M,H] is copied out at boundary b before block b runs
 * (b = n_layer: before the final norm). Rotation covers q and k in one call, as
 * their heads lie side by side in the fused projection. Only the rows whose
 * logits are wanted meet the head, which is a quarter of a small model, and only rows with an output go through the
 * last block beyond their keys and values.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/model/llama.h"
#include "kernels/model/load.h"

struct block {
	struct weight qkv, o, gu, down;
	real *norm_attn, *norm_mlp; /* [H] */
	real *bias;                 /* [nq + 2 nkv], or NULL */
	real *norm_q, *norm_k;      /* [hd], or NULL */
};

struct llama {
	struct dev *d;
	struct llama_config c;
	struct weight embedding, head; /* head unused when tied */
	real *norm;                    /* [H] */
	real *inv_freq, mscale;        /* [hd/2] */
	struct block *blocks;          /* [n_layer] */
	real *scratch;                 /* one block, cut for the largest batch seen */
	size_t n_scratch;
	uint64_t version;              /* of the addresses: no two are alike */
};

static int check(const struct llama_config *c, struct errtext *e)
{
	if (c->n_layer < 1 || c->H < 1 || c->I < 1 || c->n_head < 1 || c->n_kv < 1 || c->hd < 2 || c->hd % 2 || c->V < 1 ||
	    c->n_head % c->n_kv)
		return errtext_set(e, -EINVAL, "target has an impossible shape (%d blocks, H %d, heads %d/%d x %d, vocabulary %d)",
				   c->n_layer, c->H, c->n_head, c->n_kv, c->hd, c->V);
	int last = -1;
	for (int i = 0; i < N_BOUNDARIES; i++) {
		if (c->boundaries[i] <= last || c->boundaries[i] > c->n_layer)
			return errtext_set(e, -EINVAL, "boundaries {%d, %d, %d} are not strictly increasing within 0..%d",
					   c->boundaries[0], c->boundaries[1], c->boundaries[2], c->n_layer);
		last = c->boundaries[i];
	}
	return 0;
}

/* Names are built per layer; the loader wants plain C strings. */
static int load_block(struct llama *m, const struct tensor_source *s, int layer, enum dtype type, struct errtext *e)
{
	static const char *const suffix[] = {
		"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
		"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
	};
	enum { N = sizeof suffix / sizeof *suffix };
	const struct llama_config *c = &m->c;
	struct block *b = &m->blocks[layer];
	char text[N][80];
	const char *names[N];
	for (int i = 0; i < N; i++) {
		snprintf(text[i], sizeof text[i], "model.layers.%d.%s.weight", layer, suffix[i]);
		names[i] = text[i];
	}
	int nq = c->n_head * c->hd, nkv = c->n_kv * c->hd;
	int r = model_load_stacked(m->d, s, 3, &names[0], (const int[]){nq, nkv, nkv}, c->H, type, &b->qkv, e);
	if (!r)
		r = model_load_stacked(m->d, s, 1, &names[3], (const int[]){c->H}, nq, type, &b->o, e);
	if (!r)
		r = model_load_stacked(m->d, s, 2, &names[4], (const int[]){c->I, c->I}, c->H, type, &b->gu, e);
	if (!r)
		r = model_load_stacked(m->d, s, 1, &names[6], (const int[]){c->H}, c->I, type, &b->down, e);
	if (!r)
		r = model_load_vector(m->d, s, names[7], c->H, type, &b->norm_attn, e);
	if (!r)
		r = model_load_vector(m->d, s, names[8], c->H, type, &b->norm_mlp, e);
	return r;
}

/* What Qwen2 and Qwen3 add to a block. */
static int load_extras(struct llama *m, const struct tensor_source *s, int layer, enum dtype type, struct errtext *e)
{
	const struct llama_config *c = &m->c;
	struct block *b = &m->blocks[layer];
	char text[3][80];
	int nq = c->n_head * c->hd, nkv = c->n_kv * c->hd, r = 0;
	for (int i = 0; i < 3; i++)
		snprintf(text[i], sizeof text[i], "model.layers.%d.self_attn.%c_proj.bias", layer, "qkv"[i]);
	if (c->qkv_bias)
		r = model_load_vectors(m->d, s, 3, (const char *const[]){text[0], text[1], text[2]}, (const int[]){nq, nkv, nkv}, type, &b->bias, e);
	for (int i = 0; !r && c->qk_norm && i < 2; i++) {
		snprintf(text[i], sizeof text[i], "model.layers.%d.self_attn.%c_norm.weight", layer, "qk"[i]);
		r = model_load_vector(m->d, s, text[i], c->hd, type, i ? &b->norm_k : &b->norm_q, e);
	}
	return r;
}

static int load_all(struct llama *m, const struct tensor_source *s, enum dtype type, struct errtext *e)
{
	const struct llama_config *c = &m->c;
	const char *embed = "model.embed_tokens.weight", *head = "lm_head.weight";
	int r = model_load_stacked(m->d, s, 1, &embed, &c->V, c->H, type, &m->embedding, e);
	if (!r && !c->tied)
		r = model_load_stacked(m->d, s, 1, &head, &c->V, c->H, type, &m->head, e);
	if (!r)
		r = model_load_vector(m->d, s, "model.norm.weight", c->H, type, &m->norm, e);
	for (int l = 0; !r && l < c->n_layer; l++) {
		r = load_block(m, s, l, type, e);
		r = r ? r : load_extras(m, s, l, type, e);
	}
	return r;
}

int llama_load(struct dev *d, const struct llama_config *c, const struct tensor_source *s,
	       enum dtype type, struct llama **ret, struct errtext *e)
{
	int r = check(c, e);
	if (r)
		return r;
	struct llama *m = calloc(1, sizeof *m);
	if (!m)
		return -ENOMEM;
	m->d = d;
	m->c = *c;
	m->blocks = calloc((size_t)c->n_layer, sizeof *m->blocks);
	m->inv_freq = malloc((size_t)(c->hd / 2) * sizeof *m->inv_freq);
	if (!m->blocks || !m->inv_freq)
		r = -ENOMEM;
	else {
		rope_table(&c->rope, c->hd, m->inv_freq, &m->mscale);
		r = load_all(m, s, type, e);
	}
	if (r) {
		llama_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

struct llama *llama_free(struct llama *m)
{
	if (!m)
		return NULL;
	const struct ops *o = m->d->ops;
	for (int l = 0; m->blocks && l < m->c.n_layer; l++) {
		struct block *b = &m->blocks[l];
		o->weight_free(m->d, &b->qkv);
		o->weight_free(m->d, &b->o);
		o->weight_free(m->d, &b->gu);
		o->weight_free(m->d, &b->down);
		o->free(m->d, b->norm_attn);
		o->free(m->d, b->norm_mlp);
		o->free(m->d, b->bias);
		o->free(m->d, b->norm_q);
		o->free(m->d, b->norm_k);
	}
	o->weight_free(m->d, &m->embedding);
	o->weight_free(m->d, &m->head);
	o->free(m->d, m->norm);
	o->free(m->d, m->scratch);
	free(m->blocks);
	free(m->inv_freq);
	free(m);
	return NULL;
}

const struct llama_config *llama_cfg(const struct llama *m)
{
	return &m->c;
}

const struct weight *llama_embedding(const struct llama *m)
{
	return &m->embedding;
}

/* ---- forward ---- */

struct views { real *x, *xn, *qkv, *attn, *gu, *act, *top, *x_out, *q_out; };

static int cut_scratch(struct llama *m, const struct llama_batch *b, struct views *v)
{
	const struct llama_config *c = &m->c;
	size_t n = (size_t)b->M, H = (size_t)c->H, I = (size_t)c->I, nq = (size_t)(c->n_head * c->hd), out = b->out_rows ? (size_t)b->n_out : 0;
	size_t width[] = {n * H, n * H, n * (nq + 2 * (size_t)(c->n_kv * c->hd)), n * nq, n * 2 * I, n * I, (size_t)b->n_logits * H, out * H, out * nq};
	real **at[] = {&v->x, &v->xn, &v->qkv, &v->attn, &v->gu, &v->act, &v->top, &v->x_out, &v->q_out};
	size_t total = 0;
	for (size_t i = 0; i < sizeof width / sizeof *width; i++)
		total += (width[i] + 15) & ~(size_t)15;
	const real *before = m->scratch;
	int r = model_grow(m->d, &m->scratch, &m->n_scratch, total);
	if (r)
		return r;
	if (m->scratch != before || !m->version)
		m->version = model_version();
	real *p = m->scratch;
	for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
		*at[i] = p;
		p += (width[i] + 15) & ~(size_t)15;
	}
	return 0;
}

#define TRY(call) do { int r_ = (call); if (r_) return r_; } while (0)

/* Each head's values are a row of their own to rmsnorm: by rows when they are few (decoding), by heads when they are many. */
static int norm_heads(struct dev *d, real *x, int ld, int n_head, int hd, const real *g, real eps, int M)
{
	if (M < n_head)
		for (int m = 0; m < M; m++)
			TRY(d->ops->rmsnorm(d, x + (size_t)m * (size_t)ld, hd, NULL, x + (size_t)m * (size_t)ld, hd, g, eps, n_head, hd));
	else
		for (int h = 0; h < n_head; h++)
			TRY(d->ops->rmsnorm(d, x + h * hd, ld, NULL, x + h * hd, ld, g, eps, M, hd));
	return 0;
}

static int qkv_extras(struct llama *m, const struct block *w, real *qkv, int ld, int M)
{
	const struct llama_config *c = &m->c;
	for (int i = 0; w->bias && i < M; i++)
		TRY(m->d->ops->add(m->d, qkv + (size_t)i * (size_t)ld, w->bias, (size_t)ld));
	if (!w->norm_q)
		return 0;
	TRY(norm_heads(m->d, qkv, ld, c->n_head, c->hd, w->norm_q, c->rms_eps, M));
	return norm_heads(m->d, qkv + c->n_head * c->hd, ld, c->n_kv, c->hd, w->norm_k, c->rms_eps, M);
}

/* Some rows of a batch on their way through a block. */
struct part {
	real *x;                     /* [n,H] */
	const real *q;               /* [n] rows of queries, ldq apart */
	int ldq, n;
	const struct attn_seq *seqs;
	int n_seqs;
};

/* Queries, keys and values of all rows; the latter two into the pool. */
static int block_keys(struct llama *m, struct kv_pool *kv, int layer, const struct llama_batch *b, const struct views *v)
{
	const struct llama_config *c = &m->c;
	const struct block *w = &m->blocks[layer];
	struct dev *d = m->d;
	const struct ops *o = d->ops;
	int H = c->H, M = b->M, nq = c->n_head * c->hd, nkv = c->n_kv * c->hd, ld = nq + 2 * nkv;
	TRY(o->rmsnorm(d, v->xn, H, NULL, v->x, H, w->norm_attn, c->rms_eps, M, H));
	TRY(o->linear(d, v->qkv, ld, &w->qkv, v->xn, H, M, false));
	TRY(qkv_extras(m, w, v->qkv, ld, M));
	TRY(o->rope(d, v->qkv, ld, c->n_head + c->n_kv, c->hd, b->pos, m->inv_freq, m->mscale, M, false));
	return o->kv_write(d, kv, layer, v->qkv + nq, v->qkv + nq + nkv, ld, b->slots, M);
}

/* x += o(attention); x += mlp(norm(x)) */
static int block_rest(struct llama *m, const struct kv_pool *kv, int layer, const struct part *p, const struct views *v)
{
	const struct llama_config *c = &m->c;
	const struct block *w = &m->blocks[layer];
	struct dev *d = m->d;
	const struct ops *o = d->ops;
	int H = c->H, n = p->n, nq = c->n_head * c->hd;
	TRY(o->attn(d, v->attn, nq, p->q, p->ldq, kv, layer, p->seqs, p->n_seqs, c->n_head, (real)(1 / sqrt(c->hd))));
	TRY(o->linear(d, p->x, H, &w->o, v->attn, nq, n, true));
	TRY(o->rmsnorm(d, v->xn, H, NULL, p->x, H, w->norm_mlp, c->rms_eps, n, H));
	TRY(o->linear(d, v->gu, 2 * c->I, &w->gu, v->xn, H, n, false));
	TRY(o->silu_gate(d, v->act, v->gu, n, c->I));
	return o->linear(d, p->x, H, &w->down, v->act, c->I, n, true);
}

static int block_forward(struct llama *m, struct kv_pool *kv, int layer, const struct llama_batch *b, const struct views *v)
{
	struct part all = {.x = v->x, .q = v->qkv, .ldq = (m->c.n_head + 2 * m->c.n_kv) * m->c.hd, .n = b->M, .seqs = b->seqs, .n_seqs = b->n_seqs};
	TRY(block_keys(m, kv, layer, b, v));
	return block_rest(m, kv, layer, &all, v);
}

/* The last block where some rows have no output: the others are brought together once all keys are written. */
static int block_last(struct llama *m, struct kv_pool *kv, int layer, const struct llama_batch *b, const struct views *v)
{
	const struct ops *o = m->d->ops;
	int H = m->c.H, nq = m->c.n_head * m->c.hd, ld = nq + 2 * m->c.n_kv * m->c.hd, n = b->n_out;
	struct part out = {.x = v->x_out, .q = v->q_out, .ldq = nq, .n = n, .seqs = b->out_seqs, .n_seqs = b->n_out_seqs};
	TRY(block_keys(m, kv, layer, b, v));
	if (!n)
		return 0;
	TRY(o->copy_rows(m->d, v->x_out, H, v->x, H, b->out_rows, n, H));
	TRY(o->copy_rows(m->d, v->q_out, nq, v->qkv, ld, b->out_rows, n, nq));
	return block_rest(m, kv, layer, &out, v);
}

static int tap_boundary(struct llama *m, int boundary, const struct llama_batch *b, const real *x, real *features)
{
	int H = m->c.H;
	for (int i = 0; features && i < N_BOUNDARIES; i++) {
		if (m->c.boundaries[i] != boundary)
			continue;
		return m->d->ops->copy_rows(m->d, features + i * H, N_BOUNDARIES * H, x, H, NULL, b->M, H);
	}
	return 0;
}

/* A forward in the two parts that may be repeated from memory (ops.h): up to the last boundary, where the caller is told, and from there on. */
struct run {
	struct llama *m;
	struct kv_pool *kv;
	const struct llama_batch *b;
	real *features, *hidden, *logits;
	struct views v;
};

static int first_part(const struct run *x)
{
	struct llama *m = x->m;
	int last = m->c.boundaries[N_BOUNDARIES - 1];
	TRY(m->d->ops->embed(m->d, x->v.x, &m->embedding, x->b->ids, x->b->given, x->b->M));
	for (int l = 0; l < last; l++) {
		TRY(tap_boundary(m, l, x->b, x->v.x, x->features));
		TRY(block_forward(m, x->kv, l, x->b, &x->v));
	}
	return tap_boundary(m, last, x->b, x->v.x, x->features);
}

static int second_part(const struct run *x)
{
	struct llama *m = x->m;
	const struct llama_config *c = &m->c;
	struct dev *d = m->d;
	const struct ops *o = d->ops;
	const struct llama_batch *b = x->b;
	int H = c->H, from = c->boundaries[N_BOUNDARIES - 1], n = b->out_rows ? b->n_out : b->M;
	const real *out = b->out_rows ? x->v.x_out : x->v.x;
	for (int l = from; l < c->n_layer; l++)
		TRY((b->out_rows && l == c->n_layer - 1 ? block_last : block_forward)(m, x->kv, l, b, &x->v));
	if (b->out_rows && from == c->n_layer) /* the last boundary is what all rows come to */
		TRY(o->copy_rows(d, x->v.x_out, H, x->v.x, H, b->out_rows, n, H));
	if (x->hidden)
		TRY(o->rmsnorm(d, x->hidden, H, NULL, out, H, m->norm, c->rms_eps, n, H));
	if (!x->logits || b->n_logits < 1)
		return 0;
	TRY(o->copy_rows(d, x->v.top, H, out, H, b->logit_rows, b->n_logits, H));
	TRY(o->rmsnorm(d, x->v.top, H, NULL, x->v.top, H, m->norm, c->rms_eps, b->n_logits, H));
	return o->linear(d, x->logits, c->V, c->tied ? &m->embedding : &m->head, x->v.top, H, b->n_logits, false);
}

static int run_first(void *arg)
{
	return first_part(arg);
}

static int run_second(void *arg)
{
	return second_part(arg);
}

static int run_both(void *arg)
{
	TRY(first_part(arg));
	return second_part(arg);
}

static int repeat(struct run *x, int part, int (*run)(void *arg))
{
	struct key { uint64_t version; const void *at[14]; int n[8]; } key;
	const struct llama_batch *b = x->b;
	if (b->M > MODEL_REPEAT_ROWS)
		return run(x);
	memset(&key, 0, sizeof key);
	key = (struct key){.version = x->m->version,
			   .at = {x->kv->k, x->kv->v, b->ids, b->pos, b->slots, b->given, b->seqs, b->logit_rows, x->features, x->hidden, x->logits, x->v.x,
				  b->out_rows, b->out_rows ? b->out_seqs : NULL},
			   .n = {part, b->M, b->n_seqs, b->n_logits, x->kv->n_pages, b->out_rows ? b->n_out : 0, b->out_rows ? b->n_out_seqs : 0}};
	return x->m->d->ops->repeat(x->m->d, &key, sizeof key, run, x);
}

int llama_forward(struct llama *m, struct kv_pool *kv, const struct llama_batch *b,
		  real *features, real *hidden, real *logits)
{
	struct run x = {.m = m, .kv = kv, .b = b, .features = features, .hidden = hidden, .logits = logits};
	if (b->M < 1)
		return 0;
	TRY(cut_scratch(m, b, &x.v));
	if (!features || !b->featured)
		return repeat(&x, 0, run_both);
	TRY(repeat(&x, 1, run_first));
	TRY(b->featured(b->arg));
	return repeat(&x, 2, run_second);
}
