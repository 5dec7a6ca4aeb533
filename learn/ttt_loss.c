/* The loss of one step, and the head's share of its backward pass (eagle3.md §3.4, §6.1).
 *
 * Logits exist for a chunk of rows at a time: forward, soft cross-entropy, and
 * both products of the backward pass, then the next chunk. Only rows whose
 * weight is not zero get logits at all; since a token outside the draft
 * vocabulary can be no hit, accuracy needs no others either.
 *
 * By default loss_k = -1/n sum_t kappa_{t+k} Q_{t+k} . log softmax(logits_t), n = all rows;
 * the other kinds are rows of the table below. kappa is the batch's weight where mask and vocabulary allow.
 * acc_k  = hits / rows whose mask_{t+k} is set. Row t+k must lie in row t's run.
 */
#include <math.h>
#include "learn/ttt.h"

/* Rows t of step k with weight, ascending, into t->rows; how many rows the mask covers into *ret_masked.
 * This rank's own rows, not their halos: those are others'. */
static int weighted_rows(struct ttt *t, int k, const struct train_batch *b, int64_t *ret_masked)
{
	int m = 0;
	*ret_masked = 0;
	for (int s = 0; s < t->sp->n_spans; s++)
		for (int row = t->sp->span[s].at, end = row + seqpar_own(t->sp, s, k); row < end; row++) {
			int j = row + k;
			if (!b->mask[j] || (b->seg && b->seg[j] != b->seg[row]))
				continue;
			++*ret_masked;
			if (b->in_vocab[j])
				t->rows[m++] = (uint32_t)row;
		}
	return m;
}

/* Where the six kinds differ: what the op is asked for, and what their sums are divided by. */
static const struct {
	struct distill to;
	bool by_kappa; /* the mean is over kappa, not over all n rows */
} kinds[N_LOSS] = {
	[LOSS_KL] = {{DISTILL_MIX, 1}, false},
	[LOSS_REVERSE_KL] = {{DISTILL_REVERSE_KL, 0}, false},
	[LOSS_TV] = {{DISTILL_MIX, 0}, false},
	[LOSS_CE] = {{DISTILL_HARD, 0}, false},
	[LOSS_LK_ALPHA] = {{DISTILL_LOG_ALPHA, 0}, true},
	[LOSS_LK_LAMBDA] = {{DISTILL_MIX, 0}, true}, /* step_loss() puts kl in, once alpha is known */
};

/* One step's loss: what each of its rows is given. */
struct step_loss {
	struct distill to;
	double unit; /* weight of a row with kappa 1, without the step's decay */
	double kappa; /* sum over the weighted rows of all ranks */
};

static real kappa_of(const struct train_batch *b, uint32_t j)
{
	return b->weight ? b->weight[j] : 1;
}

/* Row j's teacher is made of a final state. */
static bool has_state(const struct train_batch *b, uint32_t j)
{
	return b->states && b->states->row[j] >= 0;
}

/* The dense teacher of rows [j, j+m), at most head_chunk, in t->tp: from final states, or handed in whole. */
static int dense_teacher(struct ttt *t, const struct train_batch *b, uint32_t j, int m, struct teacher *ret)
{
	const struct ops *o = t->d->ops;
	int V = t->c.V_d, Z = t->c.H_t;
	size_t chunk = (size_t)t->head_chunk;
	if (!t->tp && !(t->tp = o->alloc(t->d, chunk * (size_t)V * sizeof(real))))
		return -ENOMEM;
	if (!t->tz && !(t->tz = o->alloc(t->d, chunk * (size_t)Z * sizeof(real))))
		return -ENOMEM;
	if (has_state(b, j)) {
		for (int i = 0; i < m; i++)
			TRY(o->upload(t->d, t->tz + (size_t)i * (size_t)Z, b->states->z + (size_t)b->states->row[j + (uint32_t)i] * (size_t)Z, (size_t)Z * sizeof(real)));
		TRY(o->linear(t->d, t->tp, V, b->states->head, t->tz, Z, m, false));
		TRY(o->softmax(t->d, t->tp, V, t->tp, V, m, V));
	} else {
		TRY(o->upload(t->d, t->tp, b->teacher.p + (size_t)j * (size_t)V, (size_t)m * (size_t)V * sizeof(real)));
	}
	*ret = (struct teacher){.n = m, .K = V, .p = t->tp, .mass = b->teacher.mass ? b->teacher.mass + j : NULL};
	return 0;
}

/* The op on rows i..end-1 of a chunk, whose teachers are the rows j.. and of one sort. */
static int distill_run(struct ttt *t, const struct train_batch *b, struct distill to, uint32_t j, int i, int end)
{
	struct teacher q = b->teacher;
	int V = t->c.V_d, r0 = (int)j;
	if (has_state(b, j) || !q.ids) {
		TRY(dense_teacher(t, b, j, end - i, &q));
		r0 = 0;
	}
	return t->d->ops->distill(t->d, t->logits + (size_t)i * (size_t)V, t->row_loss + i, t->argmax + i, t->row_alpha + i, &q, r0, t->weight + i,
				  end - i, V, to);
}

/* Logits of `m` of step k's weighted rows from t->rows[at] on, and the op on them with weights unit*kappa.
 * Teacher rows are the rows t+k: consecutive while the rows are, so one call per run. */
static int chunk_loss(struct ttt *t, int k, double unit, struct distill to, const struct train_batch *b, int at, int m)
{
	const uint32_t *rows = t->rows + at, K = (uint32_t)k;
	TRY(ttt_logits(t, t->step[k].h2, rows, m));
	for (int i = 0; i < m; i++)
		t->weight[i] = (real)(unit * (double)kappa_of(b, rows[i] + K));
	for (int i = 0, end; i < m; i = end) {
		for (end = i + 1; end < m && rows[end] == rows[end - 1] + 1 && has_state(b, rows[end] + K) == has_state(b, rows[i] + K); end++)
			;
		TRY(distill_run(t, b, to, rows[i] + K, i, end));
	}
	return 0;
}

/* Mean over kappa of alpha: a pass over the logits of its own, for the one kind that mixes by it. */
static int mean_alpha(struct ttt *t, int k, const struct train_batch *b, int m, double kappa, double *ret)
{
	double sum = 0;
	for (int at = 0, part; at < m; at += part) {
		part = m - at < t->head_chunk ? m - at : t->head_chunk;
		TRY(chunk_loss(t, k, 0, (struct distill){DISTILL_MIX, 0}, b, at, part));
		for (int i = 0; i < part; i++)
			sum += (double)t->row_alpha[i] * (double)kappa_of(b, t->rows[at + i] + (uint32_t)k);
	}
	TRY(seqpar_total(t->sp, &sum, 1));
	*ret = sum / kappa;
	return 0;
}

static int step_loss(struct ttt *t, int k, enum loss_kind kind, const struct train_batch *b, int m, struct step_loss *ret)
{
	struct step_loss s = {.to = kinds[kind].to, .unit = 1 / (double)t->sp->n};
	for (int i = 0; i < m; i++)
		s.kappa += (double)kappa_of(b, t->rows[i] + (uint32_t)k);
	TRY(seqpar_total(t->sp, &s.kappa, 1));
	if (kinds[kind].by_kappa && s.kappa > 0)
		s.unit = 1 / s.kappa;
	if (kind == LOSS_LK_LAMBDA && s.kappa > 0) {
		double alpha;
		TRY(mean_alpha(t, k, b, m, s.kappa, &alpha));
		/* l/n of the cross-entropy and (1-l)/kappa of the rest, as one unit and one mix */
		double ce = exp(-alpha) / (double)t->sp->n, rest = (1 - exp(-alpha)) / s.kappa;
		s.unit = ce + rest;
		s.to.kl = (real)(ce / s.unit);
	}
	*ret = s;
	return 0;
}

/* dx is the chunk's part of t->dhead, [m,H], zero on entry. */
static int head_chunk_backward(struct ttt *t, real *dx, int m)
{
	const struct ops *o = t->d->ops;
	int H = t->c.H, V = t->c.V_d;
	/* logits = hnorm head^T  =>  dhead += dlogits^T hnorm, dhnorm = dlogits head */
	TRY(o->gemm(t->d, ttt_dw(t, E3_HEAD), H, true, t->logits, V, false, t->hnorm, H, V, H, m, true));
	TRY(o->gemm(t->d, t->dhnorm, H, false, t->logits, V, false, ttt_w(t, E3_HEAD), H, m, H, V, false));
	/* hnorm = rmsnorm(h2; norm) */
	return o->rmsnorm_backward(t->d, dx, H, ttt_dw(t, E3_NORM), t->dhnorm, H, t->hrows, H, ttt_w(t, E3_NORM), t->hrstd, m, H);
}

/* dh[row] += dhead[i] for row = rows[i]: gathered through the inverse map, whose other entries name the row of zeros. */
static int scatter_add(struct ttt *t, int n_k, int m)
{
	int H = t->c.H;
	for (int row = 0; row < n_k; row++)
		t->inverse[row] = (uint32_t)t->cap_rows;
	for (int i = 0; i < m; i++)
		t->inverse[t->rows[i]] = (uint32_t)i;
	TRY(t->d->ops->copy_rows(t->d, t->norm, H, t->dhead, H, t->inverse, n_k, H));
	return t->d->ops->add(t->d, t->dh, t->norm, (size_t)n_k * (size_t)H);
}

int ttt_head_backward(struct ttt *t, int k, real decay_k, enum loss_kind kind, const struct train_batch *b, struct train_result *ret)
{
	size_t H = (size_t)t->c.H;
	int64_t masked;
	double loss = 0, alpha = 0, hits = 0;
	struct step_loss s;
	int m = weighted_rows(t, k, b, &masked);
	TRY(step_loss(t, k, kind, b, m, &s));
	TRY(ttt_zero(t, t->dhead, (size_t)m * H));
	for (int at = 0, part; at < m; at += part) {
		part = m - at < t->head_chunk ? m - at : t->head_chunk;
		const uint32_t *rows = t->rows + at;
		TRY(chunk_loss(t, k, s.unit * (double)decay_k, s.to, b, at, part));
		for (int i = 0; i < part; i++) {
			double kappa = (double)kappa_of(b, rows[i] + (uint32_t)k);
			loss += kappa * (double)t->row_loss[i];
			alpha += kappa * (double)t->row_alpha[i];
			hits += (double)(t->d2t[t->argmax[i]] + (int64_t)t->argmax[i] == (int64_t)b->y[rows[i] + (uint32_t)k]);
		}
		TRY(head_chunk_backward(t, t->dhead + (size_t)at * H, part));
	}
	TRY(scatter_add(t, t->n - k, m));
	double all[] = {loss, alpha, hits, (double)masked, m};
	TRY(seqpar_total(t->sp, all, 5));
	ret->step_loss[k] = all[0] * s.unit;
	ret->step_acc[k] = all[3] > 0 ? all[2] / all[3] : 0;
	ret->step_alpha[k] = s.kappa > 0 ? all[1] / s.kappa : 0;
	if (k == 0)
		ret->tokens = (int64_t)all[4];
	return 0;
}
