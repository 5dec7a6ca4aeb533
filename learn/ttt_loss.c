/* The loss of one step, and the head's share of its backward pass (eagle3.md §3.4).
 *
 * Logits exist for a chunk of rows at a time: forward, soft cross-entropy, and
 * both products of the backward pass, then the next chunk. Only rows whose
 * weight is not zero get logits at all; since a token outside the draft
 * vocabulary can be no hit, accuracy needs no others either.
 *
 * loss_k = -1/n sum_t kappa_{t+k} Q_{t+k} . log softmax(logits_t), n = all rows.
 * acc_k  = hits / rows whose mask_{t+k} is set. Row t+k must lie in row t's run.
 */
#include "learn/ttt.h"

/* Rows t of step k with weight, ascending, into t->rows; how many rows the mask covers into *ret_masked. */
static int weighted_rows(struct ttt *t, int k, const struct train_batch *b, int64_t *ret_masked)
{
	int m = 0;
	*ret_masked = 0;
	for (int row = 0; row + k < t->n; row++) {
		int j = row + k;
		if (!b->mask[j] || (b->seg && b->seg[j] != b->seg[row]))
			continue;
		++*ret_masked;
		if (b->in_vocab[j])
			t->rows[m++] = (uint32_t)row;
	}
	return m;
}

/* Teacher rows are the rows t+k: consecutive while the rows are, so one call per run. */
static int cross_entropy(struct ttt *t, int k, real weight, const struct train_batch *b, const uint32_t *rows, int m)
{
	int V = t->c.V_d;
	for (int i = 0; i < m; i++)
		t->weight[i] = weight;
	for (int i = 0, end; i < m; i = end) {
		for (end = i + 1; end < m && rows[end] == rows[end - 1] + 1; end++)
			;
		TRY(t->d->ops->soft_ce(t->d, t->logits + (size_t)i * (size_t)V, t->row_loss + i, t->argmax + i, t->row_alpha + i, &b->teacher,
				       (int)rows[i] + k, t->weight + i, end - i, V));
	}
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

int ttt_head_backward(struct ttt *t, int k, real decay_k, const struct train_batch *b, struct train_result *ret)
{
	size_t H = (size_t)t->c.H;
	int64_t masked, hits = 0;
	double loss = 0, alpha = 0;
	int m = weighted_rows(t, k, b, &masked);
	TRY(ttt_zero(t, t->dhead, (size_t)m * H));
	for (int at = 0, part; at < m; at += part) {
		part = m - at < t->head_chunk ? m - at : t->head_chunk;
		const uint32_t *rows = t->rows + at;
		TRY(ttt_logits(t, t->step[k + 1].g, rows, part));
		TRY(cross_entropy(t, k, decay_k / (real)t->n, b, rows, part));
		for (int i = 0; i < part; i++) {
			loss += (double)t->row_loss[i];
			alpha += (double)t->row_alpha[i];
			hits += t->d2t[t->argmax[i]] + (int64_t)t->argmax[i] == (int64_t)b->y[rows[i] + (uint32_t)k];
		}
		TRY(head_chunk_backward(t, t->dhead + (size_t)at * H, part));
	}
	TRY(scatter_add(t, t->n - k, m));
	ret->step_loss[k] = loss / (double)t->n;
	ret->step_acc[k] = masked ? (double)hits / (double)masked : 0;
	ret->step_alpha[k] = m ? alpha / (double)m : 0;
	if (k == 0)
		ret->tokens = m;
	return 0;
}
