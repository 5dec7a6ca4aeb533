/* TTT backward (eagle3.md §3.5, §3.6): the forward read from its end, step by step.
 *
 * Each part quotes its forward line and derives from it. One buffer, t->dh, walks
 * through it all: at step k it is dL/dh2, then dL/dh1, then dL/dg_k, which is
 * dL/dh2 of step k-1. The keys and values of step j gather gradient from every
 * step k >= j, so dk_j, dv_j are whole when step j's turn comes, and their
 * projection is taken then. The token half's gradient gathers in dew over all
 * steps and is projected once at the end.
 *
 * Rows that lead (ttt_lead) have gradient 0 everywhere but in their keys and values of step 0: only
 * attention, which gathers it there, and what is behind it sees them.
 */
#include "learn/ttt.h"

static int zero_gradients(struct ttt *t)
{
	size_t n = (size_t)t->n, att = (size_t)seqpar_att(t->sp, 0), H = (size_t)t->c.H;
	TRY(ttt_zero(t, t->dw, t->lay.total));
	TRY(ttt_zero(t, t->dh, n * H));
	TRY(ttt_zero(t, t->dew, n * (size_t)ttt_width_qkv(t)));
	TRY(ttt_zero(t, t->dhead + (size_t)t->cap_rows * H, H));
	TRY(ttt_zero(t, t->dattn, (size_t)t->lead * (size_t)ttt_width_q(t)));
	for (int k = 0; k < t->n_steps; k++) {
		TRY(ttt_zero(t, t->step[k].dk, att * (size_t)ttt_att_kv(t)));
		TRY(ttt_zero(t, t->step[k].dv, att * (size_t)ttt_att_kv(t)));
	}
	return 0;
}

/* A step's arrays, and dh, from row `first` on. */
static struct ttt_step from_row(const struct ttt *t, int k, int first, real **ret_dh)
{
	struct ttt_step s = t->step[k];
	size_t row = (size_t)first, h = row * (size_t)t->c.H;
	s.g += h;
	s.h2 += h;
	s.h1 += h;
	s.attn += row * (size_t)ttt_width_q(t);
	s.gu += row * 2 * (size_t)t->c.I;
	*ret_dh = t->dh + h;
	return s;
}

/* dh: dL/dh2 -> dL/dh1 */
static int mlp_backward(struct ttt *t, int k)
{
	const struct ops *o = t->d->ops;
	real *dh;
	const struct ttt_step x = from_row(t, k, t->lead, &dh), *s = &x;
	int H = t->c.H, I = t->c.I, m = t->n - k - t->lead;
	/* h2 = h1 + act Wdown^T  =>  dWdown += dh^T act, dact = dh Wdown */
	TRY(o->silu_gate(t->d, t->act, s->gu, m, I));
	TRY(o->gemm(t->d, ttt_dw(t, E3_DOWN), I, true, dh, H, false, t->act, I, H, I, m, true));
	TRY(o->gemm(t->d, t->act, I, false, dh, H, false, ttt_w(t, E3_DOWN), I, m, I, H, false));
	/* act = silu(gate) * up; its gradient has taken its place in t->act, and dgu takes that of gu, which nobody reads again */
	real *dgu = s->gu;
	TRY(o->silu_gate_backward(t->d, dgu, t->act, s->gu, m, I));
	/* gu = y Wgu^T, y = norm_post(h1)  =>  dWgu += dgu^T y, dy = dgu Wgu */
	TRY(o->rmsnorm(t->d, t->norm, H, t->rstd, s->h1, H, ttt_w(t, E3_NORM_POST), t->c.rms_eps, m, H));
	TRY(o->gemm(t->d, ttt_dw(t, E3_GATE), H, true, dgu, 2 * I, false, t->norm, H, 2 * I, H, m, true));
	TRY(o->gemm(t->d, t->norm, H, false, dgu, 2 * I, false, ttt_w(t, E3_GATE), H, m, H, 2 * I, false));
	/* the residual keeps dh, the norm adds its part: dh1 = dh + d(norm_post) */
	return o->rmsnorm_backward(t->d, dh, H, ttt_dw(t, E3_NORM_POST), t->norm, H, s->h1, H, ttt_w(t, E3_NORM_POST), t->rstd, m, H);
}

/* From dL/dh1 to this step's dL/dqkv (before RoPE) in t->qkv. */
static int attention_backward(struct ttt *t, int k, const uint32_t *pos)
{
	const struct ops *o = t->d->ops;
	const struct eagle3_config *c = &t->c;
	int H = c->H, Q = ttt_width_q(t), KV = ttt_width_kv(t), QKV = ttt_width_qkv(t), m = t->n - k, asked = m - t->lead;
	bool alone = seqpar_alone(t->sp);
	real *dh;
	const struct ttt_step *s = &t->step[k], x = from_row(t, k, t->lead, &dh);
	real *out = alone ? s->attn : t->mix, *dout = alone ? t->dattn : t->dmix;
	const struct seq_field attn[] = {{s->attn, Q, 0, false, t->mix}, {t->dattn, Q, 0, false, t->dmix}};
	const struct seq_field dqkv[] = {{t->qkv, QKV, 0, false, t->dq}, {t->qkv, QKV, Q, true, s->dk}, {t->qkv, QKV, Q + KV, true, s->dv}};
	/* h1 = g + attn Wo^T  =>  dWo += dh^T attn, dattn = dh Wo */
	TRY(o->gemm(t->d, ttt_dw(t, E3_O), Q, true, dh, H, false, x.attn, Q, H, Q, asked, true));
	TRY(o->gemm(t->d, t->dattn + (size_t)t->lead * (size_t)Q, Q, false, dh, H, false, ttt_w(t, E3_O), Q, asked, Q, H, false));
	/* attn = softmax(q [K_0 rows | own row of K_1..K_k]) [V_0 | V_1..V_k] */
	if (!alone)
		TRY(seqpar_to_heads(t->sp, k, attn, 2));
	TRY(seqpar_attend_backward(t->sp, t, k, t->dq, dout, out, s->lse, s->q));
	TRY(seqpar_to_rows(t->sp, k, dqkv, 3));
	/* q, k = rope(q, k; pos+k): a rotation, so its gradient turns back */
	for (int i = 0; i < m; i++)
		t->pos_k[i] = pos[i] + (uint32_t)k;
	return o->rope(t->d, t->qkv, QKV, c->n_head + c->n_kv, c->hd, t->pos_k, t->inv_freq, t->mscale, m, true);
}

/* dh: of what step k fed back -> dL/dh2, before the head adds its own. Only with norm_output is there anything to do. */
static int feedback_backward(struct ttt *t, int k)
{
	const struct ops *o = t->d->ops;
	real *dh;
	const struct ttt_step x = from_row(t, k, t->lead, &dh), *s = &x;
	int H = t->c.H, m = t->n - k - t->lead;
	if (!t->c.norm_output || k == t->n_steps - 1)
		return 0;
	/* g_{k+1} = norm(h2)  =>  dh2 = d(norm)(dg_{k+1}); the row that step k+1 no longer has is 0 in dh */
	TRY(o->copy_rows(t->d, t->norm, H, dh, H, NULL, m, H));
	TRY(ttt_zero(t, dh, (size_t)m * (size_t)H));
	TRY(o->rmsnorm(t->d, t->nx, H, t->rstd, s->h2, H, ttt_w(t, E3_NORM), t->c.rms_eps, m, H));
	return o->rmsnorm_backward(t->d, dh, H, ttt_dw(t, E3_NORM), t->norm, H, s->h2, H, ttt_w(t, E3_NORM), t->rstd, m, H);
}

/* dh: dL/dh1 -> dL/dg_k */
static int project_backward(struct ttt *t, int k)
{
	const struct ops *o = t->d->ops;
	real *dh;
	int H = t->c.H, QKV = ttt_width_qkv(t), first = k ? t->lead : 0, m = t->n - k - first; /* step 0's keys and values are of all rows */
	const struct ttt_step x = from_row(t, k, first, &dh), *s = &x;
	real *dqkv = t->qkv + (size_t)first * (size_t)QKV;
	/* qkv[t] = ew[t+k] + x Wqkv[:, H:]^T, x = norm_hidden(g)  =>  dew[t+k] += dqkv[t] */
	TRY(o->add(t->d, t->dew + (size_t)(first + k) * (size_t)QKV, dqkv, (size_t)m * (size_t)QKV));
	/* dWqkv[:, H:] += dqkv^T x, dx = dqkv Wqkv[:, H:] */
	TRY(o->rmsnorm(t->d, t->norm, H, t->rstd, s->g, H, ttt_w(t, E3_NORM_HIDDEN), t->c.rms_eps, m, H));
	TRY(o->gemm(t->d, ttt_dw(t, E3_Q) + H, 2 * H, true, dqkv, QKV, false, t->norm, H, QKV, H, m, true));
	TRY(o->gemm(t->d, t->norm, H, false, dqkv, QKV, false, ttt_w(t, E3_Q) + H, 2 * H, m, H, QKV, false));
	if (t->c.norm_before_residual) { /* the residual is x: dx += dh1, and dg = d(norm_hidden) alone */
		TRY(o->add(t->d, t->norm, dh, (size_t)m * (size_t)H));
		TRY(ttt_zero(t, dh, (size_t)m * (size_t)H));
	}
	/* the residual is the un-normalised g: dg = dh1 + d(norm_hidden) */
	return o->rmsnorm_backward(t->d, dh, H, ttt_dw(t, E3_NORM_HIDDEN), t->norm, H, s->g, H, ttt_w(t, E3_NORM_HIDDEN), t->rstd, m, H);
}

/* fc, and the norm of its features where there is one: those are the target's, so their own gradient is thrown away. */
static int features_backward(struct ttt *t)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, F = 3 * t->c.H_t, n = t->n, parts = eagle3_tensor_parts(&t->c, E3_NORM_FC), w = parts ? F / parts : 0;
	/* g_0 = f fc^T  =>  dfc += dg_0^T f */
	TRY(o->gemm(t->d, ttt_dw(t, E3_FC), F, true, t->dh, H, false, parts ? t->fn : t->f, F, H, F, n, true));
	if (!parts)
		return 0;
	/* f = norm_fc(features)  =>  df = dg_0 fc */
	TRY(o->gemm(t->d, t->dfn, F, false, t->dh, H, false, ttt_w(t, E3_FC), F, n, F, H, false));
	for (int i = 0; i < parts; i++)
		TRY(o->rmsnorm_backward(t->d, t->fn + i * w, F, ttt_dw(t, E3_NORM_FC) + i * w, t->dfn + i * w, F, t->f + i * w, F, ttt_w(t, E3_NORM_FC) + i * w,
					t->frstd + (size_t)i * (size_t)n, n, w));
	return 0;
}

/* What the steps share: the token half of q/k/v, and fc. */
static int shared_backward(struct ttt *t)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, QKV = ttt_width_qkv(t), n = t->n;
	/* ew = en Wqkv[:, :H]^T  =>  dWqkv[:, :H] += dew^T en, den = dew Wqkv[:, :H] */
	TRY(o->gemm(t->d, ttt_dw(t, E3_Q), 2 * H, true, t->dew, QKV, false, t->en, H, QKV, H, n, true));
	TRY(o->gemm(t->d, t->norm, H, false, t->dew, QKV, false, ttt_w(t, E3_Q), 2 * H, n, H, QKV, false));
	TRY(features_backward(t)); /* before dh is reused below */
	/* en = norm_in(e): the embedding is frozen, so its own gradient is thrown away with dh */
	TRY(o->rmsnorm(t->d, t->en, H, t->rstd, t->e, H, ttt_w(t, E3_NORM_IN), t->c.rms_eps, n, H));
	return o->rmsnorm_backward(t->d, t->dh, H, ttt_dw(t, E3_NORM_IN), t->norm, H, t->e, H, ttt_w(t, E3_NORM_IN), t->rstd, n, H);
}

int ttt_backward(struct ttt *t, real decay, enum loss_kind kind, const struct train_batch *b, struct train_result *ret)
{
	double weight[TTT_MAX_STEPS] = {1};
	for (int k = 1; k < t->n_steps; k++)
		weight[k] = weight[k - 1] * (double)decay;
	TRY(zero_gradients(t));
	ret->loss = 0;
	for (int k = t->n_steps - 1; k >= 0; k--) {
		TRY(feedback_backward(t, k));
		TRY(ttt_head_backward(t, k, (real)weight[k], kind, b, ret));
		TRY(mlp_backward(t, k));
		TRY(attention_backward(t, k, b->pos));
		TRY(project_backward(t, k));
	}
	TRY(shared_backward(t));
	for (int k = 0; k < t->n_steps; k++)
		ret->loss += weight[k] * ret->step_loss[k];
	return 0;
}
