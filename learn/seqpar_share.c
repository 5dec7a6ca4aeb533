/* Rank 0 hands each rank its rows of a batch (learn/seqpar.h).
 *
 * An array is sent span by span straight out of the whole one; on arrival it lies
 * as one rank's rows, halos included. Rows of nobody read as 0: no mask, no weight.
 */
#include <stdlib.h>
#include <string.h>

#include "learn/seqpar_priv.h"
#include "learn/ttt.h"

struct head { /* what the others must know first */
	int K, feature;
	bool seg, sparse, weight, mass, states;
	double loss_max;
};

/* Rows of an array of `size` bytes each, to every rank those that `part` says are its; ids are read one row ahead, so
 * theirs is shifted by the caller. */
static int deal(struct seqpar *sp, void (*part)(const struct seqpar *, int, struct seq_span *), const void *whole, void *mine, size_t size)
{
	struct comm_out out[COMM_MAX_RANKS * SEQ_SPANS];
	struct comm_in in[SEQ_SPANS];
	int n_out = 0, n_in = 0;
	for (int rank = 0; rank < sp->c->size; rank++) {
		struct seq_span span[SEQ_SPANS];
		part(sp, rank, span);
		for (int s = 0; s < sp->n_spans; s++) {
			size_t bytes = (size_t)span[s].rows * size;
			void *to = (char *)mine + (size_t)span[s].at * size;
			const void *from = whole ? (const char *)whole + (size_t)span[s].first * size : NULL;
			if (sp->c->rank == 0 && rank)
				out[n_out++] = (struct comm_out){rank, from, bytes};
			else if (sp->c->rank == rank && rank)
				in[n_in++] = (struct comm_in){0, to, bytes};
			else if (sp->c->rank == rank && bytes)
				memcpy(to, from, bytes);
		}
	}
	TRY(comm_post(sp->c, COMM_HOST, out, n_out, in, n_in));
	return comm_wait(sp->c);
}

static bool grow(const void *field, size_t n, size_t size)
{
	void **p = (void **)(uintptr_t)field; /* the batch's arrays are const to everybody else */
	free(*p);
	return (*p = calloc(n, size)) != NULL;
}

/* Arrays for my rows, all 0; kept when they are large enough. */
static int reserve(struct seqpar *sp, const struct head *h)
{
	struct train_batch *b = &sp->batch;
	size_t n = (size_t)sp->n_local, K = (size_t)h->K;
	if (sp->n_local > sp->cap_rows || h->K > sp->cap_k) {
		n = (n + 127) / 128 * 128; /* a batch a little longer than the last one finds room */
		sp->cap_rows = 0;
		if (!grow(&b->ids, n + 1, sizeof *b->ids) || !grow(&b->pos, n, sizeof *b->pos) || !grow(&b->seg, n, sizeof *b->seg) ||
		    !grow(&b->features, n * (size_t)h->feature, sizeof *b->features) || !grow(&b->mask, n, 1) || !grow(&b->weight, n, sizeof *b->weight) ||
		    !grow(&b->teacher.ids, n * K, sizeof *b->teacher.ids) || !grow(&b->teacher.p, n * K, sizeof *b->teacher.p) ||
		    !grow(&b->teacher.mass, n, sizeof *b->teacher.mass) || !grow(&b->y, n, sizeof *b->y) || !grow(&b->in_vocab, n, 1))
			return -ENOMEM;
		sp->cap_rows = (int)n;
		sp->cap_k = h->K;
	}
	return 0;
}

/* Rows of nobody, where the sequence is shorter than its steps are many. */
static void clear_dead(struct seqpar *sp, const struct head *h)
{
	const struct seq_span *last = &sp->span[sp->n_spans - 1];
	size_t from = (size_t)(last->at + last->rows), n = (size_t)sp->n_local - from;
	struct train_batch *b = &sp->batch;
	memset((void *)(uintptr_t)(b->ids + from), 0, (n + 1) * sizeof *b->ids);
	memset((void *)(uintptr_t)(b->pos + from), 0, n * sizeof *b->pos);
	memset((void *)(uintptr_t)(b->mask + from), 0, n);
	memset((void *)(uintptr_t)(b->features + from * (size_t)h->feature), 0, n * (size_t)h->feature * sizeof *b->features);
}

/* ---- teachers that are final states still: each rank makes its own rows' of them ---- */

/* Which of z's rows belong to a rank's rows, and where; the count. to (may be NULL): they, one behind the other. */
static int pick_states(const struct seq_span *span, int n_spans, int n_local, const struct teacher_states *from, size_t H, int32_t *map, real *to)
{
	int m = 0;
	for (int i = 0; i < n_local; i++)
		map[i] = -1;
	for (int s = 0; s < n_spans; s++)
		for (int i = 0; i < span[s].rows; i++) {
			int32_t row = from->row[span[s].first + i];
			if (row < 0)
				continue;
			if (to)
				memcpy(to + (size_t)m * H, from->z + (size_t)row * H, H * sizeof *to);
			map[span[s].at + i] = m++;
		}
	return m;
}

static int reserve_states(struct seqpar *sp, int rows, int z, size_t H)
{
	if (rows > sp->cap_states && (sp->cap_states = grow(&sp->states.row, (size_t)rows, sizeof *sp->states.row) ? rows : 0) == 0)
		return -ENOMEM;
	if (z > sp->cap_z && (sp->cap_z = grow(&sp->states.z, (size_t)z * H, sizeof *sp->states.z) ? z : 0) == 0)
		return -ENOMEM;
	return 0;
}

/* Rank 0 sends one rank after the other its share, the last one (its own) stays where it was laid out. */
static int send_states(struct seqpar *sp, const struct teacher_states *from, size_t H)
{
	for (int rank = sp->c->size - 1; rank >= 0; rank--) {
		struct seq_span span[SEQ_SPANS];
		int n = 0;
		seqpar_spans(sp, rank, span);
		for (int s = 0; s < sp->n_spans; s++)
			n += span[s].rows;
		n = n < sp->n_steps ? sp->n_steps : n;
		TRY(reserve_states(sp, n, 0, H));
		int m = pick_states(span, sp->n_spans, n, from, H, (int32_t *)(uintptr_t)sp->states.row, NULL);
		TRY(reserve_states(sp, n, m, H));
		(void)pick_states(span, sp->n_spans, n, from, H, (int32_t *)(uintptr_t)sp->states.row, (real *)(uintptr_t)sp->states.z);
		if (!rank)
			break;
		const struct comm_out out[] = {{rank, &m, sizeof m}, {rank, sp->states.row, (size_t)n * sizeof *sp->states.row}, {rank, sp->states.z, (size_t)m * H * sizeof *sp->states.z}};
		TRY(comm_post(sp->c, COMM_HOST, out, 3, NULL, 0));
		TRY(comm_wait(sp->c));
	}
	return 0;
}

static int receive_states(struct seqpar *sp, size_t H)
{
	int m = 0;
	TRY(reserve_states(sp, sp->n_local, 0, H));
	const struct comm_in in[] = {{0, &m, sizeof m}, {0, (void *)(uintptr_t)sp->states.row, (size_t)sp->n_local * sizeof *sp->states.row}};
	TRY(comm_post(sp->c, COMM_HOST, NULL, 0, in, 2));
	TRY(comm_wait(sp->c));
	TRY(reserve_states(sp, 0, m, H));
	const struct comm_in z = {0, (void *)(uintptr_t)sp->states.z, (size_t)m * H * sizeof *sp->states.z};
	TRY(comm_post(sp->c, COMM_HOST, NULL, 0, &z, 1));
	return comm_wait(sp->c);
}

#define SHARE(field, size) TRY(deal(sp, seqpar_spans, whole ? whole->field : NULL, (void *)(uintptr_t)sp->batch.field, size))

static int share_arrays(struct seqpar *sp, const struct train_batch *whole, const struct head *h)
{
	size_t K = (size_t)h->K;
	/* row t embeds ids[t+1]: ids are dealt from the second one on */
	TRY(deal(sp, seqpar_spans, whole ? whole->ids + 1 : NULL, (void *)(uintptr_t)(sp->batch.ids + 1), sizeof(uint32_t)));
	SHARE(pos, sizeof(uint32_t));
	SHARE(features, (size_t)h->feature * sizeof(real));
	SHARE(mask, 1);
	SHARE(in_vocab, 1);
	SHARE(y, sizeof(uint32_t));
	SHARE(teacher.p, K * sizeof(real));
	if (h->sparse)
		SHARE(teacher.ids, K * sizeof(uint32_t));
	if (h->mass)
		SHARE(teacher.mass, sizeof(real));
	if (h->weight)
		SHARE(weight, sizeof(real));
	if (h->states)
		TRY(whole ? send_states(sp, whole->states, (size_t)h->feature / 3) : receive_states(sp, (size_t)h->feature / 3));
	if (h->seg) {
		SHARE(seg, sizeof(uint32_t));
		TRY(deal(sp, seqpar_blocks, whole ? whole->seg : NULL, sp->att_seg, sizeof(uint32_t))); /* of the rows my team attends with */
		for (int i = 0; i < sp->att_rows; i++)
			sp->att_seg[i] -= (uint32_t)sp->part[sp->group].first;
	}
	return 0;
}

int seqpar_share(struct seqpar *sp, const struct train_batch *whole, int feature, int steps, struct train_batch *ret)
{
	struct head h = {0};
	struct seq_part part[COMM_MAX_RANKS] = {{0}};
	if (seqpar_alone(sp)) {
		TRY(seqpar_plan(sp, &(struct seq_part){.n = whole->n}, steps));
		sp->seg = whole->seg;
		*ret = *whole;
		return 0;
	}
	if (whole)
		seqpar_cut(whole->seg, whole->n, sp->n_groups, part);
	TRY(comm_broadcast(sp->c, part, (size_t)sp->n_groups * sizeof *part));
	if (whole)
		h = (struct head){.K = whole->teacher.K, .feature = feature, .seg = whole->seg, .sparse = whole->teacher.ids, .weight = whole->weight, .mass = whole->teacher.mass, .states = whole->states,
				  .loss_max = whole->loss_max};
	TRY(comm_broadcast(sp->c, &h, sizeof h));
	TRY(seqpar_plan(sp, part, steps));
	TRY(reserve(sp, &h));
	sp->has_seg = h.seg;
	clear_dead(sp, &h);
	TRY(share_arrays(sp, whole, &h));
	*ret = sp->batch;
	ret->n = sp->n_local;
	ret->loss_max = h.loss_max;
	ret->teacher.n = sp->n_local;
	ret->teacher.K = h.K;
	sp->states.head = whole && whole->states ? whole->states->head : sp->head;
	ret->states = h.states ? &sp->states : NULL;
	if (!h.sparse)
		ret->teacher.ids = NULL;
	if (!h.mass)
		ret->teacher.mass = NULL;
	if (!h.weight)
		ret->weight = NULL;
	if (!h.seg)
		ret->seg = NULL;
	return 0;
}
