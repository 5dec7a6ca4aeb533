/* The EAGLE-3 row of the draft table: a checkpoint folder becomes a packed layer
 * with its own reduced vocabulary; rows in, target ids out.
 *
 * Proposals are the largest logits over the draft's vocabulary, ties by lower draft id; the device turns them into the
 * target's ids, so that a chain can go on without the host. Logits that are
 * not finite (a corrupt checkpoint, an overflow) give DRAFT_NONE, and the engine decodes
 * that sequence plainly from there: a draft can cost speed, never an answer.
 */
#include <stdlib.h>
#include <string.h>
#include "kernels/model/eagle3.h"
#include "kernels/model/load.h"
#include "schemas/draft_config.h"
#include "serve/draft.h"
#include "serve/tree.h"

struct draft {
	struct dev *d;
	struct eagle3 *m;
	int64_t *d2t;                 /* [V_d], for the hash */
	uint32_t *names;              /* [V_d] device: the target's id of each */
	real *logits;                 /* [n,V_d] */
	size_t n_logits;              /* reals held */
	uint32_t *last_pos;           /* [cap] positions of an extend's rows that continue */
	int cap;
};

static int source_get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	bool bf16;
	int r = draft_files_tensor(ctx, name, &bf16, &ret->rows, &ret->cols, &ret->data);
	if (r)
		return r == -ENOENT ? r : errtext_set(e, r, "draft tensor %s cannot be read", name);
	ret->type = bf16 ? DT_BF16 : DT_F32;
	return 0;
}

static void copy_config(const struct draft_config *f, struct eagle3_config *c)
{
	static const int kinds[] = {ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN};
	*c = (struct eagle3_config){
		.H = f->hidden_size, .H_t = f->target_hidden_size, .I = f->intermediate_size,
		.n_head = f->n_head, .n_kv = f->n_kv_head, .hd = f->head_dim,
		.V = f->vocab_size, .V_d = f->draft_vocab_size, .rms_eps = (real)f->rms_eps,
		.rope = {.theta = f->rope_theta, .kind = (unsigned)kinds[f->rope_kind & 3], .factor = f->rope_factor,
			 .low_freq_factor = f->rope_low, .high_freq_factor = f->rope_high, .orig_max = f->rope_orig_max,
			 .beta_fast = f->rope_beta_fast, .beta_slow = f->rope_beta_slow,
			 .mscale = f->rope_mscale, .mscale_all_dim = f->rope_mscale_all},
		.max_ctx = f->max_position,
		.norm_before_residual = f->norm_before_residual, .norm_before_fc = f->norm_before_fc,
		.fc_norm = f->fc_norm, .norm_output = f->norm_output,
	};
	memcpy(c->boundaries, f->boundaries, sizeof c->boundaries);
}

static int check_target(const struct eagle3_config *c, const struct weight *embedding, const int *b, struct errtext *e)
{
	if (c->H_t != embedding->K || c->V != embedding->N)
		return errtext_set(e, -EINVAL, "draft is for a target %d wide with %d tokens, this one is %d wide with %d",
				   c->H_t, c->V, embedding->K, embedding->N);
	if (c->H != c->H_t)
		return errtext_set(e, -EINVAL, "draft is %d wide and its target %d: only drafts of the target's width share its embedding", c->H, c->H_t);
	if (c->boundaries[0] != b[0] || c->boundaries[1] != b[1] || c->boundaries[2] != b[2])
		return errtext_set(e, -EINVAL, "draft reads boundaries {%d, %d, %d}, the target is tapped at {%d, %d, %d}",
				   c->boundaries[0], c->boundaries[1], c->boundaries[2], b[0], b[1], b[2]);
	return 0;
}

static struct draft *e3_free(struct draft *x)
{
	if (!x)
		return NULL;
	eagle3_free(x->m);
	x->d->ops->free(x->d, x->logits);
	x->d->ops->free(x->d, x->names);
	free(x->d2t);
	free(x->last_pos);
	free(x);
	return NULL;
}

/* d2t as the device names its proposals: there once this returns */
static int load_names(struct draft *x, int V_d)
{
	size_t bytes = (size_t)V_d * sizeof *x->names;
	uint32_t *host = malloc(bytes);
	x->names = x->d->ops->alloc(x->d, bytes);
	int r = host && x->names ? 0 : -ENOMEM;
	for (int i = 0; i < V_d && !r; i++)
		host[i] = eagle3_target_id(x->m, (uint32_t)i);
	r = r ? r : x->d->ops->upload(x->d, x->names, host, bytes);
	r = r ? r : x->d->ops->sync(x->d);
	free(host);
	return r;
}

static int load_into(struct draft *x, const struct draft_files *f, const struct weight *embedding, const int *boundaries,
		     enum dtype type, struct errtext *e)
{
	struct eagle3_config c;
	struct tensor_source src = {.get = source_get, .ctx = (void *)(uintptr_t)f};
	copy_config(draft_files_config(f), &c);
	int r = check_target(&c, embedding, boundaries, e);
	if (r)
		return r;
	size_t bytes = (size_t)c.V_d * sizeof *x->d2t;
	x->d2t = malloc(bytes);
	if (!x->d2t)
		return -ENOMEM;
	memcpy(x->d2t, draft_files_d2t(f), bytes);
	r = eagle3_load(x->d, &c, &src, x->d2t, embedding, type, &x->m, e);
	return r ? r : load_names(x, c.V_d);
}

static int e3_load(struct dev *d, const char *dir, const struct weight *embedding, int n_target_layers, const int *boundaries,
		   enum dtype type, struct draft **ret, struct errtext *e)
{
	struct draft_files *f = NULL;
	int r = draft_open(dir, n_target_layers, &f, e);
	if (r)
		return r;
	struct draft *x = calloc(1, sizeof *x);
	if (x) {
		x->d = d;
		r = load_into(x, f, embedding, boundaries, type, e);
	} else
		r = -ENOMEM;
	draft_close(f);
	if (r) {
		e3_free(x);
		return r;
	}
	*ret = x;
	return 0;
}

static int reserve(struct draft *x, int n)
{
	int r = model_grow(x->d, &x->logits, &x->n_logits, (size_t)n * (size_t)eagle3_cfg(x->m)->V_d);
	if (r || n <= x->cap)
		return r;
	free(x->last_pos);
	x->cap = 0;
	x->last_pos = malloc((size_t)n * sizeof *x->last_pos);
	if (!x->last_pos)
		return -ENOMEM;
	x->cap = n;
	return 0;
}

static int e3_warm(struct draft *x, int M, int n)
{
	int r = eagle3_reserve(x->m, M, n);
	return r ? r : reserve(x, n);
}

static void e3_bind(struct draft *x, struct dev *d)
{
	x->d = d;
	eagle3_set_dev(x->m, d);
}

static int e3_adopt(struct draft *into, const struct draft *from)
{
	size_t V_d = (size_t)eagle3_cfg(from->m)->V_d;
	int r = eagle3_adopt(into->m, from->m);
	if (r)
		return r;
	memcpy(into->d2t, from->d2t, V_d * sizeof *into->d2t);
	return into->d->ops->upload(into->d, into->names, from->names, V_d * sizeof *into->names);
}

/* One held tensor as bf16, which is what draft_weights_sha hashes whatever the file's type was. */
static int held_bf16(const struct draft *x, enum eagle3_tensor t, size_t n, uint16_t **ret)
{
	bool wide = eagle3_type(x->m) == DT_F32;
	void *raw = malloc(n * (wide ? 4 : 2));
	if (!raw)
		return -ENOMEM;
	int r = eagle3_unpack(x->m, t, raw, n * (wide ? 4 : 2));
	for (size_t i = 0; !r && wide && i < n; i++) {
		float f;
		memcpy(&f, (char *)raw + 4 * i, 4);
		uint16_t h = f32_to_bf16(f);
		memcpy((char *)raw + 2 * i, &h, 2);
	}
	if (r)
		free(raw);
	else
		*ret = raw;
	return r;
}

static int e3_weights_sha(const struct draft *x, char ret_hex[static 65])
{
	const struct eagle3_config *c = eagle3_cfg(x->m);
	uint16_t *held[E3_N_ALL] = {0};
	struct fp *f = fp_new();
	uint64_t n_d2t = (uint64_t)c->V_d;
	int r = f ? fp_add(f, "d2t", "I64", &n_d2t, 1, x->d2t, (size_t)n_d2t * sizeof *x->d2t) : -ENOMEM;
	for (int t = 0; !r && t < E3_N_ALL; t++) {
		int rows, cols, vector, parts = eagle3_tensor_parts(c, t);
		eagle3_tensor_shape(c, t, &rows, &cols);
		if (!parts)
			continue;
		size_t n = (size_t)rows * (size_t)cols, each = n / (size_t)parts;
		uint64_t shape[2] = {(uint64_t)rows, (uint64_t)(cols / parts)};
		vector = rows == 1;
		r = held_bf16(x, t, n, &held[t]);
		for (int i = 0; !r && i < parts; i++)
			r = fp_add(f, eagle3_part_name(c, t, i), "BF16", shape + vector, 2 - vector, held[t] + (size_t)i * each, each * 2);
	}
	if (!r)
		r = fp_final_hex(f, ret_hex);
	fp_free(f);
	for (int t = 0; t < E3_N_ALL; t++)
		free(held[t]);
	return r;
}

static int e3_kv_shape(const struct draft *x, struct kv_pool *ret)
{
	const struct eagle3_config *c = eagle3_cfg(x->m);
	ret->n_layer = 1;
	ret->n_kv = c->n_kv;
	ret->d = c->hd;
	return 0;
}

static int propose(struct draft *x, int n, const struct draft_word *w)
{
	int V_d = eagle3_cfg(x->m)->V_d;
	if (w->width < 1 || w->width > TREE_WIDTH || w->width > V_d)
		return -EINVAL;
	return x->d->ops->topk_named(x->d, w->ids, w->logp, w->first, x->logits, V_d, n, V_d, w->width, x->names);
}

/* A forward and what it proposes: what may be repeated from memory (ops.h). */
struct run {
	struct draft *x;
	struct kv_pool *kv;
	struct eagle3_batch b;
	const struct draft_word *w;
	const real *features; /* extend; NULL: a step, whose feedback comes from and goes to `feedback` */
	real *feedback;
};

static int run(void *arg)
{
	struct run *c = arg;
	struct draft *x = c->x;
	int r = eagle3_forward(x->m, c->kv, &c->b, c->features, c->features ? NULL : c->feedback, c->feedback, x->logits);
	return r || !c->b.n_out ? r : propose(x, c->b.n_out, c->w);
}

static int repeat(struct run *c)
{
	struct key { uint64_t version; const void *at[18]; int n[6]; } key;
	const struct draft *x = c->x;
	const struct eagle3_batch *b = &c->b;
	int r = eagle3_reserve(x->m, b->M, b->n_out);
	if (r)
		return r;
	if (b->M > MODEL_REPEAT_ROWS)
		return run(c);
	memset(&key, 0, sizeof key);
	key = (struct key){.version = eagle3_version(x->m),
			   .at = {c->kv->k, c->kv->v, b->ids, b->pos, b->slots, b->given, b->seqs, b->out_rows, b->out_pos, c->features, c->feedback, x->logits, x->names},
			   .n = {b->M, b->n_seqs, b->n_out, c->kv->n_pages}};
	if (b->n_out) {
		key.at[13] = c->w->ids;
		key.at[14] = c->w->logp;
		key.at[15] = c->w->first;
		key.n[4] = c->w->width;
	}
	return x->d->ops->repeat(x->d, &key, sizeof key, run, c);
}

static struct eagle3_batch batch_of(const struct draft_rows *r, int n)
{
	return (struct eagle3_batch){.M = r->M, .ids = r->ids, .pos = r->pos, .slots = r->slots, .given = r->given, .n_out = n, .seqs = r->seqs, .n_seqs = r->n_seqs};
}

static int e3_extend(struct draft *x, struct kv_pool *kv, const struct draft_rows *rows, const struct draft_word *w, real *ret_feedback)
{
	int n = rows->n_seqs, r = reserve(x, n);
	if (r)
		return r;
	for (int i = 0; i < n; i++)
		x->last_pos[i] = rows->pos[rows->last_rows[i]];
	struct run c = {.x = x, .kv = kv, .b = batch_of(rows, n), .w = w, .features = rows->features, .feedback = ret_feedback};
	c.b.out_rows = rows->last_rows;
	c.b.out_pos = x->last_pos;
	return repeat(&c);
}

static int e3_step(struct draft *x, struct kv_pool *kv, const struct draft_rows *rows, const struct draft_word *w, real *feedback)
{
	int r = reserve(x, rows->M);
	if (r)
		return r;
	struct run c = {.x = x, .kv = kv, .b = batch_of(rows, rows->M), .w = w, .feedback = feedback};
	return repeat(&c);
}

static int e3_hidden(const struct draft *x)
{
	return eagle3_cfg(x->m)->H;
}

const struct draft_kind draft_eagle3 = {
	.name = "eagle3",
	.load = e3_load,
	.free = e3_free,
	.warm = e3_warm,
	.bind = e3_bind,
	.adopt = e3_adopt,
	.weights_sha = e3_weights_sha,
	.kv_shape = e3_kv_shape,
	.extend = e3_extend,
	.step = e3_step,
	.hidden = e3_hidden,
};
