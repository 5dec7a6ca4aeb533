/* Building a batch (learn/batch.h).
 *
 * Generated rows carry the target's top-K over the whole vocabulary: what of it
 * lies in the draft vocabulary is renormalised there. Prompt rows carry the
 * final state z: logits are the frozen head times z, y their argmax, Q the
 * softmax of the TEACHER_K largest of the draft vocabulary, or (whole_teacher) of
 * all of it: then z itself goes to the trainer, which makes Q a chunk at a time.
 * mass is the probability that Q was renormalised from.
 */
#include "learn/batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 };

int batcher_init(struct batcher *b, struct dev *d, const struct frozen *fz, bool prompt_rows, struct errtext *e)
{
	struct batcher n = {.d = d, .fz = fz, .prompt_rows = prompt_rows, .reject_weight = 1};
	int r = 0;
	n.draft_of = malloc((size_t)fz->V * sizeof *n.draft_of);
	if (!n.draft_of)
		r = -ENOMEM;
	if (!r) { /* also when prompts are not trained: the option may change while we run */
		n.z = d->ops->alloc(d, (size_t)CHUNK * (size_t)fz->H * sizeof(real));
		n.logits = d->ops->alloc(d, (size_t)CHUNK * (size_t)fz->V * sizeof(real));
		r = n.z && n.logits ? d->ops->weight_pack(d, &n.head, DT_BF16, fz->V, fz->H, fz->head, DT_BF16) : -ENOMEM;
	}
	if (r) {
		batcher_done(&n);
		return errtext_set(e, r, "teacher: not enough memory for the head of %d x %d", fz->V, fz->H);
	}
	*b = n;
	return 0;
}

void batcher_trim(struct batcher *b)
{
	free(b->ids);
	free(b->pos);
	free(b->seg);
	free(b->t_ids);
	free(b->y);
	free(b->features);
	free(b->t_p);
	free(b->mass);
	free(b->weight);
	free(b->state_z);
	free(b->state_row);
	free(b->mask);
	free(b->in_vocab);
	b->ids = b->pos = b->seg = b->t_ids = b->y = NULL;
	b->features = b->t_p = b->mass = b->weight = b->state_z = NULL;
	b->state_row = NULL;
	b->mask = b->in_vocab = NULL;
	b->n = b->windows = b->n_z = b->cap = b->cap_z = 0;
}

void batcher_done(struct batcher *b)
{
	if (b->d) {
		b->d->ops->weight_free(b->d, &b->head);
		b->d->ops->weight_free(b->d, &b->head_d);
		b->d->ops->free(b->d, b->z);
		b->d->ops->free(b->d, b->logits);
	}
	batcher_trim(b);
	free(b->draft_of);
	memset(b, 0, sizeof *b);
}

int batcher_set_vocab(struct batcher *b, const int64_t *d2t, int V_d)
{
	size_t H = (size_t)b->fz->H;
	uint16_t *rows = malloc((size_t)V_d * H * sizeof *rows);
	if (!rows)
		return -ENOMEM;
	for (int i = 0; i < b->fz->V; i++)
		b->draft_of[i] = -1;
	for (int i = 0; i < V_d; i++) {
		int64_t id = i + d2t[i];
		if (id < 0 || id >= b->fz->V) {
			free(rows);
			return -EINVAL;
		}
		b->draft_of[id] = i;
		memcpy(rows + (size_t)i * H, b->fz->head + (size_t)id * H, H * sizeof *rows);
	}
	b->V_d = V_d;
	int r = 0;
	b->d->ops->weight_free(b->d, &b->head_d);
	memset(&b->head_d, 0, sizeof b->head_d);
	r = b->d->ops->weight_pack(b->d, &b->head_d, DT_BF16, V_d, b->fz->H, rows, DT_BF16);
	free(rows);
	return r;
}

static bool grow(void *array, size_t bytes)
{
	void **p = array, *q = realloc(*p, bytes);
	if (q)
		*p = q;
	return q;
}

static int reserve(struct batcher *b, int n, int H3)
{
	size_t k = (size_t)n;
	if (n <= b->cap)
		return 0;
	if (!grow(&b->ids, (k + 1) * sizeof *b->ids) || !grow(&b->pos, k * sizeof *b->pos) || !grow(&b->seg, k * sizeof *b->seg) || !grow(&b->y, k * sizeof *b->y) ||
	    !grow(&b->t_ids, k * TEACHER_K * sizeof *b->t_ids) || !grow(&b->t_p, k * TEACHER_K * sizeof *b->t_p) ||
	    !grow(&b->features, k * (size_t)H3 * sizeof *b->features) || !grow(&b->mass, k * sizeof *b->mass) || !grow(&b->weight, k * sizeof *b->weight) ||
	    !grow(&b->state_row, k * sizeof *b->state_row) || !grow(&b->mask, k) || !grow(&b->in_vocab, k))
		return -ENOMEM;
	b->cap = n;
	return 0;
}

/* Row t's teacher from a recorded top-K row (log-probabilities over the whole vocabulary, sorted). */
static void teach_from_topk(struct batcher *b, int t, const uint32_t *ids, const uint16_t *lp, int K)
{
	uint32_t *out = b->t_ids + (size_t)t * TEACHER_K;
	real *p = b->t_p + (size_t)t * TEACHER_K;
	double sum = 0;
	int n = 0;
	for (int i = 0; i < K && n < TEACHER_K; i++) {
		int32_t d = b->draft_of[ids[i]];
		if (d < 0)
			continue;
		out[n] = (uint32_t)d;
		p[n] = (real)exp((double)f16_to_f32(lp[i]));
		sum += p[n++];
	}
	b->y[t] = ids[0];
	b->in_vocab[t] = sum > 0 && b->draft_of[ids[0]] >= 0;
	b->mass[t] = (real)(sum < 1 ? sum : 1);
	for (int i = 0; i < n && sum > 0; i++)
		p[i] = (real)(p[i] / sum);
}

/* Rows whose teacher comes from a final state: states gathered, two products, softmax on the host. */
static int teach_from_hidden(struct batcher *b, const struct joined *j, const int *rows, const int *src, int m)
{
	const struct ops *o = b->d->ops;
	int H = b->fz->H, V = b->fz->V, K = b->V_d < TEACHER_K ? b->V_d : TEACHER_K;
	real *host = malloc((size_t)CHUNK * (size_t)H * sizeof *host);
	float *vals = malloc((size_t)CHUNK * TEACHER_K * sizeof *vals), lse[CHUNK], lse_d[CHUNK];
	uint32_t *ids = malloc((size_t)CHUNK * TEACHER_K * sizeof *ids), *y = malloc(CHUNK * sizeof *y);
	int r = host && vals && ids && y ? 0 : -ENOMEM;
	for (int at = 0; at < m && !r; at += CHUNK) {
		int c = m - at < CHUNK ? m - at : CHUNK;
		for (int i = 0; i < c; i++)
			for (int h = 0; h < H; h++)
				host[i * H + h] = (real)bf16_to_f32(j->hidden[(size_t)src[at + i] * (size_t)H + (size_t)h]);
		r = o->upload(b->d, b->z, host, (size_t)c * (size_t)H * sizeof *host);
		if (!r)
			r = o->linear(b->d, b->logits, V, &b->head, b->z, H, c, false);
		if (!r)
			r = o->topk(b->d, y, vals, lse, b->logits, V, c, V, 1);
		if (!r)
			r = o->linear(b->d, b->logits, b->V_d, &b->head_d, b->z, H, c, false);
		if (!r)
			r = o->topk(b->d, ids, vals, lse_d, b->logits, b->V_d, c, b->V_d, K);
		for (int i = 0; i < c && !r; i++) {
			int t = rows[at + i];
			const float *v = vals + (size_t)i * (size_t)K;
			double sum = 0;
			for (int k = 0; k < K; k++)
				sum += exp((double)v[k] - (double)v[0]);
			for (int k = 0; k < K; k++) {
				b->t_ids[(size_t)t * TEACHER_K + (size_t)k] = ids[(size_t)i * (size_t)K + (size_t)k];
				b->t_p[(size_t)t * TEACHER_K + (size_t)k] = (real)(exp((double)v[k] - (double)v[0]) / sum);
			}
			b->y[t] = y[i];
			b->in_vocab[t] = b->draft_of[y[i]] >= 0;
			b->mass[t] = (real)exp((b->whole_teacher ? (double)lse_d[i] : (double)v[0] + log(sum)) - (double)lse[i]);
		}
	}
	free(host);
	free(vals);
	free(ids);
	free(y);
	return r;
}

/* Was token j of the run generated by the target? The one after the last row goes with that row. */
static bool generated(const struct joined *j, int i)
{
	return j->mask[i < j->n ? i : j->n - 1];
}

/* Rows [at, at+n) of the batch have no teacher. */
static void teach_nothing(struct batcher *b, size_t at, size_t n)
{
	memset(b->t_ids + at * TEACHER_K, 0, n * TEACHER_K * sizeof *b->t_ids);
	memset(b->t_p + at * TEACHER_K, 0, n * TEACHER_K * sizeof *b->t_p);
	memset(b->mask + at, 0, n);
	memset(b->in_vocab + at, 0, n);
	memset(b->y + at, 0, n * sizeof *b->y);
	memset(b->mass + at, 0, n * sizeof *b->mass);
}

/* Teacher, y, in_vocab and mask of rows row0..row0+n-1, the batch's from base on. */
static int teach(struct batcher *b, const struct joined *j, int base, int row0, int n, int lead)
{
	int *rows = malloc((size_t)n * 2 * sizeof *rows), *src = rows ? rows + n : NULL, m = 0;
	if (!rows)
		return -ENOMEM;
	teach_nothing(b, (size_t)base, (size_t)n);
	for (int t = lead; t < n && row0 + t + 1 < j->n; t++) { /* nobody recorded what follows the run's last row's next token */
		int next = row0 + t + 1;
		if (!b->prompt_rows && !generated(j, next + 1))
			continue;
		if (j->gen_row[next] >= 0) {
			size_t g = (size_t)j->gen_row[next] * (size_t)j->K;
			teach_from_topk(b, base + t, j->topk_ids + g, j->topk_lp + g, j->K);
			b->mask[base + t] = 1;
		} else if (j->hid_row[next] >= 0 && b->prompt_rows) {
			rows[m] = base + t;
			src[m++] = j->hid_row[next];
			b->mask[base + t] = 1;
		}
	}
	int r = m ? teach_from_hidden(b, j, rows, src, m) : 0;
	free(rows);
	return r;
}

/* The final states of rows row0.. that whole teachers are made of. */
static int fill_states(struct batcher *b, const struct joined *j, int base, int row0, int n)
{
	size_t H = (size_t)j->H;
	int m = b->n_z;
	for (int t = 0; t < n; t++) {
		int next = row0 + t + 1;
		bool is = b->whole_teacher && b->prompt_rows && next < j->n && j->gen_row[next] < 0 && j->hid_row[next] >= 0;
		b->state_row[base + t] = is ? m++ : -1;
	}
	if (m > b->cap_z) {
		if (!grow(&b->state_z, (size_t)m * H * sizeof *b->state_z))
			return -ENOMEM;
		b->cap_z = m;
	}
	for (int t = 0; t < n; t++) {
		int32_t z = b->state_row[base + t];
		const uint16_t *from = z < 0 ? NULL : j->hidden + (size_t)j->hid_row[row0 + t + 1] * H;
		for (size_t h = 0; from && h < H; h++)
			b->state_z[(size_t)z * H + h] = (real)bf16_to_f32(from[h]);
	}
	b->n_z = m;
	return 0;
}

/* A round from row t that had a accepted was refused x_{t+2+a}, which row t+a teaches. */
static void weigh(struct batcher *b, const struct joined *j, int base, int row0, int n)
{
	for (int t = 0; t < n; t++)
		b->weight[base + t] = 1;
	for (int s = 0; s < j->n_rounds; s++) {
		int64_t row = (int64_t)j->round_start[s] + j->round_accepted[s] - row0;
		if (j->round_accepted[s] < j->round_len[s] && row >= 0 && row < n)
			b->weight[base + (int)row] = (real)b->reject_weight;
	}
}

/* A window's last token is the next row's, which it must not share with another window: behind it comes a row that carries
 * that token, belongs to the window before and weighs nothing. */
static void close_window(struct batcher *b, int H3)
{
	size_t at = (size_t)b->n;
	b->pos[at] = b->pos[at - 1] + 1;
	b->seg[at] = b->seg[at - 1];
	memset(b->features + at * (size_t)H3, 0, (size_t)H3 * sizeof *b->features);
	b->weight[at] = 1;
	b->state_row[at] = -1;
	teach_nothing(b, at, 1);
}

/* Tokens, positions, features, states and weights of a window whose first row is *ret_base of the batch; its teacher comes next,
 * then b->n. Until then the batch is as it was. */
static int fill(struct batcher *b, const struct joined *j, int row0, int n, int *ret_base)
{
	if (n < 2 || row0 < 0 || row0 + n > j->n || j->H != b->fz->H)
		return -EINVAL;
	int gap = b->windows ? 1 : 0, base = b->n + gap, r = base > INT32_MAX - 1 - n ? -EINVAL : reserve(b, base + n, j->H3);
	if (r)
		return r;
	if (gap)
		close_window(b, j->H3);
	const uint16_t *f = j->features + (size_t)row0 * (size_t)j->H3;
	real *to = b->features + (size_t)base * (size_t)j->H3;
	for (size_t i = 0; i < (size_t)n * (size_t)j->H3; i++)
		to[i] = (real)bf16_to_f32(f[i]);
	memcpy(b->pos + base, j->pos + row0, (size_t)n * sizeof *b->pos);
	for (int t = 0; t < n; t++)
		b->seg[base + t] = (uint32_t)base;
	weigh(b, j, base, row0, n);
	r = fill_states(b, j, base, row0, n);
	*ret_base = base;
	return r;
}

static void keep(struct batcher *b, const struct joined *j, int base, int row0, int n)
{
	memcpy(b->ids + base, j->ids + row0, ((size_t)n + 1) * sizeof *b->ids);
	b->n = base + n;
	b->windows++;
}

void batch_begin(struct batcher *b)
{
	b->n = b->windows = b->n_z = 0;
}

int batch_add(struct batcher *b, const struct joined *j, int row0, int n, int lead)
{
	int base = 0, had_z = b->n_z, r = lead >= 0 && lead < n ? fill(b, j, row0, n, &base) : -EINVAL;
	if (!r)
		r = teach(b, j, base, row0, n, lead);
	if (r)
		b->n_z = had_z;
	else
		keep(b, j, base, row0, n);
	return r;
}

void batch_end(struct batcher *b, struct train_batch *ret, int *ret_weighted)
{
	int weighted = 0;
	bool even = !(b->reject_weight < 1) && !(b->reject_weight > 1);
	for (int t = 0; t < b->n; t++)
		weighted += b->mask[t] && b->in_vocab[t];
	*ret_weighted = weighted;
	b->states = (struct teacher_states){.row = b->state_row, .z = b->state_z, .head = &b->head_d};
	*ret = (struct train_batch){
		.n = b->n, .ids = b->ids, .pos = b->pos, .seg = b->windows > 1 ? b->seg : NULL, .features = b->features, .mask = b->mask, .weight = even ? NULL : b->weight,
		.teacher = {.n = b->n, .K = TEACHER_K, .ids = b->t_ids, .p = b->t_p, .mass = b->mass}, .states = b->whole_teacher ? &b->states : NULL, .y = b->y, .in_vocab = b->in_vocab,
	};
}

int batch_build(struct batcher *b, const struct joined *j, int row0, int n, int lead, struct train_batch *ret, int *ret_weighted)
{
	batch_begin(b);
	int r = batch_add(b, j, row0, n, lead);
	if (!r)
		batch_end(b, ret, ret_weighted);
	return r;
}

/* ---- teachers that are kept ---- */

size_t batch_teacher_bytes(int n)
{
	return sizeof(struct batch_teacher) + (size_t)n * (TEACHER_K * (sizeof(uint32_t) + sizeof(real)) + sizeof(real) + sizeof(uint32_t) + 2);
}

/* The arrays of a block of batch_teacher_bytes(n), largest element first. */
static void cut(struct batch_teacher *t, int n)
{
	size_t k = (size_t)n;
	t->n = n;
	t->t_p = (real *)(t + 1);
	t->mass = t->t_p + k * TEACHER_K;
	t->t_ids = (uint32_t *)(t->mass + k);
	t->y = t->t_ids + k * TEACHER_K;
	t->mask = (uint8_t *)(t->y + k);
	t->in_vocab = t->mask + k;
}

struct batch_teacher *batch_teacher_copy(const struct batcher *b, int n)
{
	size_t k = (size_t)n, at = (size_t)(b->n - n);
	struct batch_teacher *t = malloc(batch_teacher_bytes(n));
	if (!t)
		return NULL;
	cut(t, n);
	memcpy(t->t_p, b->t_p + at * TEACHER_K, k * TEACHER_K * sizeof *t->t_p);
	memcpy(t->t_ids, b->t_ids + at * TEACHER_K, k * TEACHER_K * sizeof *t->t_ids);
	memcpy(t->mass, b->mass + at, k * sizeof *t->mass);
	memcpy(t->y, b->y + at, k * sizeof *t->y);
	memcpy(t->mask, b->mask + at, k);
	memcpy(t->in_vocab, b->in_vocab + at, k);
	return t;
}

void batch_teacher_free(struct batch_teacher *t)
{
	free(t);
}

int batch_add_taught(struct batcher *b, const struct joined *j, int row0, int n, const struct batch_teacher *t)
{
	int base = 0, had_z = b->n_z, r = n == t->n ? fill(b, j, row0, n, &base) : -EINVAL;
	size_t k = (size_t)n, at = (size_t)base;
	if (r) {
		b->n_z = had_z;
		return r;
	}
	memcpy(b->t_p + at * TEACHER_K, t->t_p, k * TEACHER_K * sizeof *t->t_p);
	memcpy(b->t_ids + at * TEACHER_K, t->t_ids, k * TEACHER_K * sizeof *t->t_ids);
	memcpy(b->mass + at, t->mass, k * sizeof *t->mass);
	memcpy(b->y + at, t->y, k * sizeof *t->y);
	memcpy(b->mask + at, t->mask, k);
	memcpy(b->in_vocab + at, t->in_vocab, k);
	keep(b, j, base, row0, n);
	return 0;
}
