/* The EAGLE-3 layer over ops.h. Inference only; the learner has its own forward
 * that keeps what a backward pass needs, over the same names and shapes.
 *
 * A row has two uses: its key and value, for the rows after it, and its output. Most rows have only the first (a prompt's, all but
 * the last of what was accepted), and for them fc, two norms and the products of k and v are all there is to do: about a seventh of
 * a row with an output. So k and v are one packed weight and q another.
 * Gate and up are one, as in llama.c; eagle3_unpack cuts what is packed together apart again, so that the hash of what is held is
 * taken over the tensors a checkpoint names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/model/eagle3.h"
#include "kernels/model/load.h"

struct eagle3 {
	struct dev *d;
	struct eagle3_config c;
	enum dtype type;
	const struct weight *embedding; /* borrowed */
	int64_t *d2t;                   /* [V_d] */
	struct weight fc, q, kv, o, gu, down, head;
	real *norm_in, *norm_hidden, *norm_post, *norm; /* [H] */
	real *norm_fc;                                  /* [3 H_t]; NULL: none */
	real *inv_freq, mscale;                         /* [hd/2] */
	/* scratch, one block cut for the largest M seen */
	real *scratch;
	size_t n_scratch;
	uint64_t version; /* of the addresses: no two are alike */
};

static const char *const tensor_names[E3_N_ALL] = {
	[E3_FC] = "fc.weight",
	[E3_NORM_IN] = "midlayer.input_layernorm.weight",
	[E3_NORM_HIDDEN] = "midlayer.hidden_norm.weight",
	[E3_Q] = "midlayer.self_attn.q_proj.weight",
	[E3_K] = "midlayer.self_attn.k_proj.weight",
	[E3_V] = "midlayer.self_attn.v_proj.weight",
	[E3_O] = "midlayer.self_attn.o_proj.weight",
	[E3_NORM_POST] = "midlayer.post_attention_layernorm.weight",
	[E3_GATE] = "midlayer.mlp.gate_proj.weight",
	[E3_UP] = "midlayer.mlp.up_proj.weight",
	[E3_DOWN] = "midlayer.mlp.down_proj.weight",
	[E3_NORM] = "norm.weight",
	[E3_HEAD] = "lm_head.weight",
	[E3_NORM_FC] = "input_norm.weight",
};

const char *eagle3_tensor_name(enum eagle3_tensor t)
{
	return tensor_names[t];
}

void eagle3_tensor_shape(const struct eagle3_config *c, enum eagle3_tensor t, int *ret_rows, int *ret_cols)
{
	int rows = 1, cols = c->H;
	switch (t) {
	case E3_FC: rows = c->H; cols = 3 * c->H_t; break;
	case E3_Q: rows = c->n_head * c->hd; cols = 2 * c->H; break;
	case E3_K:
	case E3_V: rows = c->n_kv * c->hd; cols = 2 * c->H; break;
	case E3_O: rows = c->H; cols = c->n_head * c->hd; break;
	case E3_GATE:
	case E3_UP: rows = c->I; break;
	case E3_DOWN: rows = c->H; cols = c->I; break;
	case E3_HEAD: rows = c->V_d; break;
	case E3_NORM_FC: cols = c->norm_before_fc || c->fc_norm ? 3 * c->H_t : 0; break;
	default: break; /* the norms: vectors of H */
	}
	*ret_rows = rows;
	*ret_cols = cols;
}

int eagle3_tensor_parts(const struct eagle3_config *c, enum eagle3_tensor t)
{
	return t != E3_NORM_FC ? 1 : c->fc_norm ? 3 : c->norm_before_fc;
}

const char *eagle3_part_name(const struct eagle3_config *c, enum eagle3_tensor t, int part)
{
	static const char *const chunk[] = {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"};
	return t == E3_NORM_FC && c->fc_norm ? chunk[part] : tensor_names[t];
}

static int check(const struct eagle3_config *c, const int64_t *d2t, const struct weight *embedding, struct errtext *e)
{
	if (c->norm_before_fc && c->fc_norm)
		return errtext_set(e, -EINVAL, "draft has both norm_before_fc and fc_norm, which exclude each other");
	if (c->H < 1 || c->H_t < 1 || c->I < 1 || c->n_head < 1 || c->n_kv < 1 || c->hd < 2 || c->V_d < 1 ||
	    c->n_head % c->n_kv || c->hd % 2 || c->V_d > c->V)
		return errtext_set(e, -EINVAL, "draft has an impossible shape (H %d, heads %d/%d x %d, vocabulary %d of %d)",
				   c->H, c->n_head, c->n_kv, c->hd, c->V_d, c->V);
	if (embedding->N != c->V || embedding->K != c->H)
		return errtext_set(e, -EINVAL, "draft is %d wide with a vocabulary of %d, the target's embedding is %d x %d",
				   c->H, c->V, embedding->N, embedding->K);
	for (int i = 0; i < c->V_d; i++)
		if (i + d2t[i] < 0 || i + d2t[i] >= c->V)
			return errtext_set(e, -EINVAL, "d2t[%d] points outside the target's vocabulary", i);
	return 0;
}

static int load_weights(struct eagle3 *m, const struct tensor_source *s, struct errtext *e)
{
	const struct { struct weight *w; int n; enum eagle3_tensor t[2]; } mats[] = {
		{&m->fc, 1, {E3_FC}}, {&m->q, 1, {E3_Q}}, {&m->kv, 2, {E3_K, E3_V}}, {&m->o, 1, {E3_O}},
		{&m->gu, 2, {E3_GATE, E3_UP}}, {&m->down, 1, {E3_DOWN}}, {&m->head, 1, {E3_HEAD}},
	};
	const struct { real **v; enum eagle3_tensor t; } vecs[] = {
		{&m->norm_in, E3_NORM_IN}, {&m->norm_hidden, E3_NORM_HIDDEN},
		{&m->norm_post, E3_NORM_POST}, {&m->norm, E3_NORM},
	};
	for (size_t i = 0; i < sizeof mats / sizeof *mats; i++) {
		const char *names[2];
		int rows[2], K = 0;
		for (int j = 0; j < mats[i].n; j++) {
			names[j] = tensor_names[mats[i].t[j]];
			eagle3_tensor_shape(&m->c, mats[i].t[j], &rows[j], &K);
		}
		int r = model_load_stacked(m->d, s, mats[i].n, names, rows, K, m->type, mats[i].w, e);
		if (r)
			return r;
	}
	for (size_t i = 0; i < sizeof vecs / sizeof *vecs; i++) {
		int r = model_load_vector(m->d, s, tensor_names[vecs[i].t], m->c.H, m->type, vecs[i].v, e);
		if (r)
			return r;
	}
	const char *names[3];
	int sizes[3], n = eagle3_tensor_parts(&m->c, E3_NORM_FC);
	for (int i = 0; i < n; i++) {
		names[i] = eagle3_part_name(&m->c, E3_NORM_FC, i);
		sizes[i] = 3 * m->c.H_t / n;
	}
	return n ? model_load_vectors(m->d, s, n, names, sizes, m->type, &m->norm_fc, e) : 0;
}

int eagle3_load(struct dev *d, const struct eagle3_config *c, const struct tensor_source *s,
		const int64_t *d2t, const struct weight *embedding, enum dtype type,
		struct eagle3 **ret, struct errtext *e)
{
	int r = check(c, d2t, embedding, e);
	if (r)
		return r;
	struct eagle3 *m = calloc(1, sizeof *m);
	if (!m)
		return -ENOMEM;
	m->d = d;
	m->c = *c;
	m->type = type;
	m->embedding = embedding;
	m->d2t = malloc((size_t)c->V_d * sizeof *m->d2t);
	m->inv_freq = malloc((size_t)(c->hd / 2) * sizeof *m->inv_freq);
	if (!m->d2t || !m->inv_freq) {
		eagle3_free(m);
		return -ENOMEM;
	}
	memcpy(m->d2t, d2t, (size_t)c->V_d * sizeof *m->d2t);
	rope_table(&c->rope, c->hd, m->inv_freq, &m->mscale);
	r = load_weights(m, s, e);
	if (r) {
		eagle3_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

struct eagle3 *eagle3_free(struct eagle3 *m)
{
	if (!m)
		return NULL;
	struct weight *const mats[] = {&m->fc, &m->q, &m->kv, &m->o, &m->gu, &m->down, &m->head};
	real *const vecs[] = {m->norm_in, m->norm_hidden, m->norm_post, m->norm, m->norm_fc, m->scratch};
	for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
		m->d->ops->weight_free(m->d, mats[i]);
	for (size_t i = 0; i < sizeof vecs / sizeof *vecs; i++)
		m->d->ops->free(m->d, vecs[i]);
	free(m->d2t);
	free(m->inv_freq);
	free(m);
	return NULL;
}

const struct eagle3_config *eagle3_cfg(const struct eagle3 *m)
{
	return &m->c;
}

enum dtype eagle3_type(const struct eagle3 *m)
{
	return m->type;
}

uint64_t eagle3_version(const struct eagle3 *m)
{
	return m->version;
}

void eagle3_set_dev(struct eagle3 *m, struct dev *d)
{
	m->d = d;
}

/* What operations are given by value, and sizes. */
static bool same_shape(const struct eagle3 *a, const struct eagle3 *b)
{
	const struct eagle3_config *x = &a->c, *y = &b->c;
	return a->type == b->type && a->embedding == b->embedding && a->mscale == b->mscale && x->H == y->H && x->H_t == y->H_t && x->I == y->I && x->n_head == y->n_head &&
	       x->n_kv == y->n_kv && x->hd == y->hd && x->V == y->V && x->V_d == y->V_d && x->rms_eps == y->rms_eps &&
	       x->norm_before_residual == y->norm_before_residual && x->norm_before_fc == y->norm_before_fc && x->fc_norm == y->fc_norm &&
	       x->norm_output == y->norm_output;
}

int eagle3_adopt(struct eagle3 *into, const struct eagle3 *from)
{
	const struct eagle3_config *c = &from->c;
	struct dev *d = into->d;
	if (!same_shape(into, from))
		return -EINVAL;
	const struct weight *const to_w[] = {&into->fc, &into->q, &into->kv, &into->o, &into->gu, &into->down, &into->head};
	const struct weight *const from_w[] = {&from->fc, &from->q, &from->kv, &from->o, &from->gu, &from->down, &from->head};
	real *const to_v[] = {into->norm_in, into->norm_hidden, into->norm_post, into->norm, into->norm_fc};
	const real *const from_v[] = {from->norm_in, from->norm_hidden, from->norm_post, from->norm, from->norm_fc};
	int r = 0;
	for (size_t i = 0; i < sizeof to_w / sizeof *to_w && !r; i++)
		r = d->ops->upload(d, to_w[i]->packed, from_w[i]->packed, from_w[i]->bytes);
	for (size_t i = 0; i < sizeof to_v / sizeof *to_v && !r; i++)
		r = from_v[i] ? d->ops->upload(d, to_v[i], from_v[i], (size_t)(i < 4 ? c->H : 3 * c->H_t) * sizeof(real)) : 0;
	memcpy(into->d2t, from->d2t, (size_t)c->V_d * sizeof *into->d2t);
	memcpy(into->inv_freq, from->inv_freq, (size_t)(c->hd / 2) * sizeof *into->inv_freq);
	into->c = *c;
	return r;
}

uint32_t eagle3_target_id(const struct eagle3 *m, uint32_t draft_id)
{
	return (uint32_t)(draft_id + m->d2t[draft_id]);
}

/* ---- unpacking ---- */

static int unpack_vector(const struct eagle3 *m, const real *v, int n, void *ret_host)
{
	real *host = malloc((size_t)n * sizeof *host);
	if (!host)
		return -ENOMEM;
	int r = m->d->ops->download(m->d, host, v, (size_t)n * sizeof *host);
	for (int i = 0; !r && i < n; i++) {
		if (m->type == DT_BF16)
			((uint16_t *)ret_host)[i] = f32_to_bf16((float)host[i]);
		else
			((float *)ret_host)[i] = (float)host[i];
	}
	free(host);
	return r;
}

static int unpack_part(const struct eagle3 *m, const struct weight *w, int row0, void *ret_host, size_t bytes)
{
	size_t row = (size_t)w->K * (m->type == DT_BF16 ? 2 : 4);
	if (bytes == row * (size_t)w->N)
		return m->d->ops->weight_unpack(m->d, ret_host, w);
	uint8_t *all = malloc(row * (size_t)w->N);
	if (!all)
		return -ENOMEM;
	int r = m->d->ops->weight_unpack(m->d, all, w);
	if (!r)
		memcpy(ret_host, all + row * (size_t)row0, bytes);
	free(all);
	return r;
}

int eagle3_unpack(const struct eagle3 *m, enum eagle3_tensor t, void *ret_host, size_t bytes)
{
	const struct eagle3_config *c = &m->c;
	int rows, cols;
	eagle3_tensor_shape(c, t, &rows, &cols);
	if (bytes != (size_t)rows * (size_t)cols * (m->type == DT_BF16 ? 2 : 4))
		return -EINVAL;
	switch (t) {
	case E3_FC: return unpack_part(m, &m->fc, 0, ret_host, bytes);
	case E3_Q: return unpack_part(m, &m->q, 0, ret_host, bytes);
	case E3_K: return unpack_part(m, &m->kv, 0, ret_host, bytes);
	case E3_V: return unpack_part(m, &m->kv, c->n_kv * c->hd, ret_host, bytes);
	case E3_O: return unpack_part(m, &m->o, 0, ret_host, bytes);
	case E3_GATE: return unpack_part(m, &m->gu, 0, ret_host, bytes);
	case E3_UP: return unpack_part(m, &m->gu, c->I, ret_host, bytes);
	case E3_DOWN: return unpack_part(m, &m->down, 0, ret_host, bytes);
	case E3_HEAD: return unpack_part(m, &m->head, 0, ret_host, bytes);
	case E3_NORM_IN: return unpack_vector(m, m->norm_in, cols, ret_host);
	case E3_NORM_HIDDEN: return unpack_vector(m, m->norm_hidden, cols, ret_host);
	case E3_NORM_POST: return unpack_vector(m, m->norm_post, cols, ret_host);
	case E3_NORM: return unpack_vector(m, m->norm, cols, ret_host);
	case E3_NORM_FC: return cols ? unpack_vector(m, m->norm_fc, cols, ret_host) : 0;
	default: return -EINVAL;
	}
}

/* ---- forward ---- */

/* Of all M rows: h, x2 and kv, and what they are made of; the rest of the `out` rows with an output. */
struct views { real *h, *e, *x2, *kv, *x2_out, *q, *attn, *y, *gu, *act, *f; };

/* Floats a row needs in scratch, cut into the views below. */
static int cut_scratch(struct eagle3 *m, int M, int out, struct views *v)
{
	const struct eagle3_config *c = &m->c;
	size_t n = (size_t)M, k = (size_t)out, H = (size_t)c->H, I = (size_t)c->I, nq = (size_t)(c->n_head * c->hd);
	size_t width[] = {n * H, n * H, n * 2 * H, n * 2 * (size_t)(c->n_kv * c->hd), k * 2 * H, k * nq, k * nq,
			  k * H, k * 2 * I, k * I, m->norm_fc ? n * 3 * (size_t)c->H_t : 0};
	real **at[] = {&v->h, &v->e, &v->x2, &v->kv, &v->x2_out, &v->q, &v->attn, &v->y, &v->gu, &v->act, &v->f};
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

int eagle3_reserve(struct eagle3 *m, int M, int n_out)
{
	struct views v;
	return cut_scratch(m, M, n_out, &v);
}

#define TRY(call) do { int r_ = (call); if (r_) return r_; } while (0)

/* g = fc(f), f normalised first where the draft says so: as a whole, or a third at a time. */
static int fuse(struct eagle3 *m, const struct views *v, const real *features, int M)
{
	int F = 3 * m->c.H_t, n = eagle3_tensor_parts(&m->c, E3_NORM_FC), w = n ? F / n : 0;
	for (int i = 0; i < n; i++)
		TRY(m->d->ops->rmsnorm(m->d, v->f + i * w, F, NULL, features + i * w, F, m->norm_fc + i * w, m->c.rms_eps, M, w));
	return m->d->ops->linear(m->d, v->h, m->c.H, &m->fc, n ? v->f : features, F, M, false);
}

/* h, x2 = [norm_in(e), norm_hidden(h)], and every row's key and value into the pool. */
static int keys(struct eagle3 *m, struct kv_pool *kv, const struct eagle3_batch *b, const real *features, const real *feedback, const struct views *v)
{
	const struct eagle3_config *c = &m->c;
	struct dev *d = m->d;
	const struct ops *o = d->ops;
	int H = c->H, M = b->M, nkv = c->n_kv * c->hd;
	if (features)
		TRY(fuse(m, v, features, M));
	else
		TRY(o->copy_rows(d, v->h, H, feedback, H, NULL, M, H));
	TRY(o->embed(d, v->e, m->embedding, b->ids, b->given, M));
	TRY(o->rmsnorm(d, v->x2, 2 * H, NULL, v->e, H, m->norm_in, c->rms_eps, M, H));
	TRY(o->rmsnorm(d, v->x2 + H, 2 * H, NULL, v->h, H, m->norm_hidden, c->rms_eps, M, H));
	TRY(o->linear(d, v->kv, 2 * nkv, &m->kv, v->x2, 2 * H, M, false));
	TRY(o->rope(d, v->kv, 2 * nkv, c->n_kv, c->hd, b->pos, m->inv_freq, m->mscale, M, false));
	return o->kv_write(d, kv, 0, v->kv, v->kv + nkv, 2 * nkv, b->slots, M);
}

/* From here on only rows with an output: they are brought together unless all are. e has done its work, so h comes to lie there. */
static int gather(struct eagle3 *m, const struct eagle3_batch *b, struct views *v)
{
	int H = m->c.H;
	if (b->out_rows) {
		TRY(m->d->ops->copy_rows(m->d, v->e, H, v->h, H, b->out_rows, b->n_out, H));
		TRY(m->d->ops->copy_rows(m->d, v->x2_out, 2 * H, v->x2, 2 * H, b->out_rows, b->n_out, 2 * H));
		v->h = v->e;
	} else
		v->x2_out = v->x2;
	if (m->c.norm_before_residual)
		return m->d->ops->copy_rows(m->d, v->h, H, v->x2_out + H, 2 * H, NULL, b->n_out, H);
	return 0;
}

/* h += o(attn); h += mlp(norm_post(h)) */
static int layer(struct eagle3 *m, const struct kv_pool *kv, const struct eagle3_batch *b, const struct views *v)
{
	const struct eagle3_config *c = &m->c;
	struct dev *d = m->d;
	const struct ops *o = d->ops;
	int H = c->H, n = b->n_out, nq = c->n_head * c->hd;
	TRY(o->linear(d, v->q, nq, &m->q, v->x2_out, 2 * H, n, false));
	TRY(o->rope(d, v->q, nq, c->n_head, c->hd, b->out_rows ? b->out_pos : b->pos, m->inv_freq, m->mscale, n, false));
	TRY(o->attn(d, v->attn, nq, v->q, nq, kv, 0, b->seqs, b->n_seqs, c->n_head, (real)(1 / sqrt(c->hd))));
	TRY(o->linear(d, v->h, H, &m->o, v->attn, nq, n, true));
	TRY(o->rmsnorm(d, v->y, H, NULL, v->h, H, m->norm_post, c->rms_eps, n, H));
	TRY(o->linear(d, v->gu, 2 * c->I, &m->gu, v->y, H, n, false));
	TRY(o->silu_gate(d, v->act, v->gu, n, c->I));
	return o->linear(d, v->h, H, &m->down, v->act, c->I, n, true);
}

int eagle3_forward(struct eagle3 *m, struct kv_pool *kv, const struct eagle3_batch *b,
		   const real *features, const real *feedback_in, real *feedback_out, real *logits)
{
	const struct eagle3_config *c = &m->c;
	struct dev *d = m->d;
	int H = c->H, n = b->n_out;
	struct views v;
	if (b->M < 1)
		return 0;
	if (!b->out_rows && n && n != b->M)
		return -EINVAL;
	TRY(cut_scratch(m, b->M, n, &v));
	TRY(keys(m, kv, b, features, feedback_in, &v));
	if (!n)
		return 0;
	TRY(gather(m, b, &v));
	TRY(layer(m, kv, b, &v));
	if (logits || c->norm_output)
		TRY(d->ops->rmsnorm(d, v.y, H, NULL, v.h, H, m->norm, c->rms_eps, n, H));
	if (feedback_out)
		TRY(d->ops->copy_rows(d, feedback_out, H, c->norm_output ? v.y : v.h, H, NULL, n, H));
	return logits ? d->ops->linear(d, logits, c->V_d, &m->head, v.y, H, n, false) : 0;
}
