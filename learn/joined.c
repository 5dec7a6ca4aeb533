/* Reading a run back (learn/join.h): its records decoded and laid end to end. */
#include <stdlib.h>
#include <string.h>

#include "learn/join.h"

void joined_done(struct joined *j)
{
	free(j->ids);
	free(j->pos);
	free(j->mask);
	free(j->features);
	free(j->gen_row);
	free(j->topk_ids);
	free(j->topk_lp);
	free(j->hid_row);
	free(j->hidden);
	free(j->round_start);
	free(j->round_len);
	free(j->round_accepted);
	free(j->round_version);
	memset(j, 0, sizeof *j);
}

/* Room for what the records hold together. */
static int reserve(struct joined *j, const struct trace_record *v, int n)
{
	size_t rows = 0, gen = 0, hid = 0, rounds = 0;
	for (int i = 0; i < n; i++) {
		rows += (size_t)v[i].T;
		gen += (size_t)v[i].T_gen;
		hid += v[i].last_hidden ? (size_t)v[i].T_prompt : 0;
		rounds += (size_t)v[i].S;
		if (v[i].T_gen)
			j->K = v[i].K;
	}
	j->H = v[0].H_t;
	j->H3 = 3 * j->H;
	j->ids = malloc((rows + 1) * sizeof *j->ids);
	j->pos = malloc(rows * sizeof *j->pos);
	j->mask = malloc(rows);
	j->features = malloc(rows * (size_t)j->H3 * sizeof *j->features);
	j->gen_row = malloc(rows * sizeof *j->gen_row);
	j->topk_ids = malloc((gen * (size_t)j->K + 1) * sizeof *j->topk_ids);
	j->topk_lp = malloc((gen * (size_t)j->K + 1) * sizeof *j->topk_lp);
	j->hid_row = malloc(rows * sizeof *j->hid_row);
	j->hidden = malloc((hid * (size_t)j->H + 1) * sizeof *j->hidden);
	j->round_start = malloc((rounds + 1) * sizeof *j->round_start);
	j->round_len = malloc(rounds + 1);
	j->round_accepted = malloc(rounds + 1);
	j->round_version = malloc((rounds + 1) * sizeof *j->round_version);
	return j->ids && j->pos && j->mask && j->features && j->gen_row && j->topk_ids && j->topk_lp && j->hid_row && j->hidden && j->round_start && j->round_len && j->round_accepted &&
			       j->round_version
		       ? 0 : -ENOMEM;
}

/* Each proposal but the first hangs from the one before it. */
static bool is_chain(const struct trace_record *r, int s)
{
	for (int i = 0; r->draft_parent && i < r->round_len[s]; i++)
		if (r->draft_parent[(size_t)s * (size_t)r->k + (size_t)i] != (uint8_t)(i - 1))
			return false;
	return true;
}

static void append(struct joined *j, const struct trace_record *r)
{
	size_t T = (size_t)r->T, at = (size_t)j->n;
	memcpy(j->ids + at, r->token_ids, T * sizeof *j->ids);
	j->ids[at + T] = r->next_token;
	memcpy(j->pos + at, r->positions, T * sizeof *j->pos);
	memcpy(j->mask + at, r->loss_mask, T);
	memcpy(j->features + at * (size_t)j->H3, r->features, T * (size_t)j->H3 * sizeof *j->features);
	int gen = j->n_gen, hid = j->n_hid;
	for (size_t t = 0; t < T; t++) {
		bool g = r->loss_mask[t];
		j->gen_row[at + t] = g && r->T_gen && r->K ? gen++ : -1;
		j->hid_row[at + t] = !g && r->last_hidden ? hid++ : -1;
	}
	if (r->T_gen && r->K) {
		memcpy(j->topk_ids + (size_t)j->n_gen * (size_t)j->K, r->topk_ids, (size_t)r->T_gen * (size_t)j->K * sizeof *j->topk_ids);
		memcpy(j->topk_lp + (size_t)j->n_gen * (size_t)j->K, r->topk_logprob, (size_t)r->T_gen * (size_t)j->K * sizeof *j->topk_lp);
	}
	if (r->last_hidden)
		memcpy(j->hidden + (size_t)j->n_hid * (size_t)j->H, r->last_hidden, (size_t)r->T_prompt * (size_t)j->H * sizeof *j->hidden);
	for (int s = 0; s < r->S; s++) {
		if (!record_round_is_chain(r, s))
			continue;
		j->round_start[j->n_rounds] = (uint32_t)at + r->round_start[s];
		j->round_len[j->n_rounds] = r->round_len[s];
		j->round_accepted[j->n_rounds] = r->accepted[s];
		j->round_version[j->n_rounds++] = r->round_flags[s] & 1 || !is_chain(r, s) ? 0 : r->round_version[s];
	}
	j->n_gen = gen;
	j->n_hid = hid;
	j->n += r->T;
}

int joined_load(struct pool *p, const struct run *r, uint32_t vocab, struct joined *ret)
{
	struct trace_record *v = calloc((size_t)r->n_refs, sizeof *v);
	struct buf blob = BUF_INIT(0);
	struct joined j = {0};
	int got = 0, k = v ? 0 : -ENOMEM;
	for (; got < r->n_refs && !k; got += !k) {
		k = pool_read(p, r->refs[got], &blob);
		if (!k && record_decode(blob.data, blob.len, vocab, &v[got], NULL))
			k = -EIO;
		if (!k && (v[got].H_t != v[0].H_t || (got && v[got].T_gen && v[got - 1].T_gen && v[got].K != v[got - 1].K))) {
			record_done(&v[got]);
			k = -EIO;
		}
	}
	if (!k)
		k = reserve(&j, v, got);
	for (int i = 0; i < got && !k; i++)
		append(&j, &v[i]);
	for (int i = 0; i < got; i++)
		record_done(&v[i]);
	free(v);
	buf_done(&blob);
	if (k) {
		joined_done(&j);
		return k;
	}
	*ret = j;
	return 0;
}
