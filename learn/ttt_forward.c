/* TTT forward: the draft layer unrolled over steps (eagle3.md §1.2, §3.2, §3.3).
 *
 * Step k at row t embeds the true token x_{t+1+k}, takes the feature the step
 * before it made at the SAME row, and attends to the trunk (step 0, rows up to
 * t) and to row t of the steps since. Nothing is detached.
 */
#include "learn/ttt.h"

static int load_tokens(struct ttt *t, int n, const uint32_t *ids)
{
	size_t H = (size_t)t->c.H;
	for (int j = 0; j < n; j++) {
		if (ids[j + 1] >= (uint32_t)t->c.V)
			return -EINVAL;
		const uint16_t *from = t->embedding + (size_t)ids[j + 1] * H;
		real *to = t->host_e + (size_t)j * H;
		for (size_t i = 0; i < H; i++)
			to[i] = bf16_to_f32(from[i]);
	}
	return t->d->ops->upload(t->d, t->e, t->host_e, (size_t)n * H * sizeof(real));
}

/* What fc takes: the features, normalised first where the draft says so, as a whole or a third at a time. */
static int normalise_features(struct ttt *t, const real **ret)
{
	int F = 3 * t->c.H_t, parts = eagle3_tensor_parts(&t->c, E3_NORM_FC), w = parts ? F / parts : 0;
	*ret = parts ? t->fn : t->f;
	/* fn = norm_fc(f)                                [n,3H_t] */
	for (int i = 0; i < parts; i++)
		TRY(t->d->ops->rmsnorm(t->d, t->fn + i * w, F, t->frstd + (size_t)i * (size_t)t->n, t->f + i * w, F, ttt_w(t, E3_NORM_FC) + i * w, t->c.rms_eps, t->n, w));
	return 0;
}

int ttt_begin(struct ttt *t, int n, int n_steps, const uint32_t *ids, const real *features)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, F = 3 * t->c.H_t, QKV = ttt_width_qkv(t);
	if (t->sp && seqpar_alone(t->sp))
		TRY(seqpar_plan(t->sp, &(struct seq_part){.n = n}, n_steps));
	TRY(ttt_reserve(t, n, n_steps));
	t->n = n;
	t->lead = 0;
	t->n_steps = n_steps < n ? n_steps : n;
	TRY(load_tokens(t, n, ids));
	TRY(o->upload(t->d, t->f, features, (size_t)n * (size_t)F * sizeof(real)));
	const real *f;
	TRY(normalise_features(t, &f));
	/* g_0 = f fc^T                                   [n,H] */
	TRY(o->gemm(t->d, t->step[0].g, H, false, f, F, true, ttt_w(t, E3_FC), F, n, H, F, false));
	/* ew = norm_in(e) Wqkv[:, :H]^T                  [n,QKV] */
	TRY(o->rmsnorm(t->d, t->en, H, NULL, t->e, H, ttt_w(t, E3_NORM_IN), t->c.rms_eps, n, H));
	TRY(o->gemm(t->d, t->ew, QKV, false, t->en, H, true, ttt_w(t, E3_Q), 2 * H, n, QKV, H, false));
	return 0;
}

void ttt_lead(struct ttt *t, const struct train_batch *b)
{
	int first = 0, most = t->n - t->n_steps; /* each step keeps a row */
	while (first < t->n && !(b->mask[first] && b->in_vocab[first]))
		first++;
	first -= t->n_steps - 1; /* row t of step k is weighed as row t+k is */
	t->lead = !seqpar_alone(t->sp) || first < 0 ? 0 : first < most ? first : most;
}

int ttt_project(struct ttt *t, int k, const real *g, const uint32_t *rows, int first, int m, const uint32_t *pos)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, QKV = ttt_width_qkv(t);
	real *qkv = t->qkv + (size_t)first * (size_t)QKV;
	for (int i = 0; i < m; i++)
		t->pos_k[i] = pos[rows ? rows[i] : (uint32_t)(first + i)] + (uint32_t)k;
	/* qkv = ew[row+k] + norm_hidden(g) Wqkv[:, H:]^T [m,QKV] */
	TRY(o->copy_rows(t->d, qkv, QKV, t->ew + (size_t)(first + k) * (size_t)QKV, QKV, rows, m, QKV));
	TRY(o->rmsnorm(t->d, t->norm, H, t->rstd, g, H, ttt_w(t, E3_NORM_HIDDEN), t->c.rms_eps, m, H));
	TRY(o->gemm(t->d, qkv, QKV, false, t->norm, H, true, ttt_w(t, E3_Q) + H, 2 * H, m, QKV, H, true));
	/* the heads of q and k lie side by side: one rotation */
	TRY(o->rope(t->d, qkv, QKV, t->c.n_head + t->c.n_kv, t->c.hd, t->pos_k, t->inv_freq, t->mscale, m, false));
	return 0;
}

int ttt_block(struct ttt *t, const real *g, const real *attn, real *h1, real *gu, real *h2, int m)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, I = t->c.I, Q = ttt_width_q(t);
	/* h1 = g + attn Wo^T, or norm_hidden(g) + ...    [m,H] */
	if (t->c.norm_before_residual)
		TRY(o->rmsnorm(t->d, h1, H, NULL, g, H, ttt_w(t, E3_NORM_HIDDEN), t->c.rms_eps, m, H));
	else
		TRY(o->copy_rows(t->d, h1, H, g, H, NULL, m, H));
	TRY(o->gemm(t->d, h1, H, false, attn, Q, true, ttt_w(t, E3_O), Q, m, H, Q, true));
	/* gu = norm_post(h1) Wgu^T                       [m,2I], gate and up lie side by side in the flat array */
	TRY(o->rmsnorm(t->d, t->norm, H, NULL, h1, H, ttt_w(t, E3_NORM_POST), t->c.rms_eps, m, H));
	TRY(o->gemm(t->d, gu, 2 * I, false, t->norm, H, true, ttt_w(t, E3_GATE), H, m, 2 * I, H, false));
	/* h2 = h1 + (silu(gate) * up) Wdown^T            [m,H] */
	TRY(o->silu_gate(t->d, t->act, gu, m, I));
	TRY(o->copy_rows(t->d, h2, H, h1, H, NULL, m, H));
	TRY(o->gemm(t->d, h2, H, false, t->act, I, true, ttt_w(t, E3_DOWN), I, m, H, I, true));
	return 0;
}

void ttt_kv_of(const struct ttt *t, int k, struct ttt_kv *ret)
{
	*ret = (struct ttt_kv){.n_steps = k + 1};
	for (int j = 0; j <= k; j++) {
		ret->k[j] = t->step[j].k;
		ret->v[j] = t->step[j].v;
		ret->dk[j] = t->step[j].dk;
		ret->dv[j] = t->step[j].dv;
	}
}

int ttt_attend(struct ttt *t, int k)
{
	struct ttt_step *s = &t->step[k];
	int Q = ttt_width_q(t), KV = ttt_width_kv(t), QKV = ttt_width_qkv(t);
	bool alone = seqpar_alone(t->sp);
	const struct seq_field qkv[] = {{t->qkv, QKV, 0, false, s->q}, {t->qkv, QKV, Q, true, s->k}, {t->qkv, QKV, Q + KV, true, s->v}};
	const struct seq_field attn = {s->attn, Q, 0, false, t->mix};
	TRY(seqpar_to_heads(t->sp, k, qkv, 3));
	TRY(seqpar_attend(t->sp, t, k, alone ? s->attn : t->mix, s->lse, s->q));
	return alone ? 0 : seqpar_to_rows(t->sp, k, &attn, 1);
}

/* What rows see: those that lead are asked for nothing, and see themselves alone, which is least work. */
static const uint32_t *segments(struct ttt *t, const uint32_t *seg)
{
	for (int i = 0; t->lead && i < t->n; i++)
		t->seg[i] = i < t->lead ? (uint32_t)i : seg ? seg[i] : 0;
	return t->lead ? t->seg : seg;
}

int ttt_forward(struct ttt *t, const uint32_t *pos, const uint32_t *seg)
{
	size_t H = (size_t)t->c.H, Q = (size_t)ttt_width_q(t), I = (size_t)t->c.I, lead = (size_t)t->lead;
	if (seqpar_alone(t->sp))
		t->sp->seg = segments(t, seg);
	for (int k = 0; k < t->n_steps; k++) {
		struct ttt_step *s = &t->step[k];
		int m = t->n - k, first = k ? t->lead : 0;
		TRY(ttt_project(t, k, s->g + (size_t)first * H, NULL, first, m - first, pos)); /* rows before the first keep what step 0 left: any numbers do */
		TRY(ttt_attend(t, k));
		TRY(ttt_block(t, s->g + lead * H, s->attn + lead * Q, s->h1 + lead * H, s->gu + lead * 2 * I, s->h2 + lead * H, m - t->lead));
		if (t->c.norm_output) /* what the head reads is what is fed back */
			TRY(ttt_feed_back(t, t->step[k + 1].g + lead * H, s->h2 + lead * H, m - t->lead));
	}
	return 0;
}

int ttt_feed_back(struct ttt *t, real *g, const real *h2, int m)
{
	return t->d->ops->rmsnorm(t->d, g, t->c.H, NULL, h2, t->c.H, ttt_w(t, E3_NORM), t->c.rms_eps, m, t->c.H);
}

int ttt_logits(struct ttt *t, const real *h2, const uint32_t *rows, int m)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, V = t->c.V_d;
	/* logits = norm(h2) head^T                       [m,V_d] */
	TRY(o->copy_rows(t->d, t->hrows, H, h2, H, rows, m, H));
	TRY(o->rmsnorm(t->d, t->hnorm, H, t->hrstd, t->hrows, H, ttt_w(t, E3_NORM), t->c.rms_eps, m, H));
	TRY(o->gemm(t->d, t->logits, V, false, t->hnorm, H, true, ttt_w(t, E3_HEAD), H, m, V, H, false));
	return 0;
}
