/* One request's rows on their way into records (serve/tap_encode.h). */
#include "serve/tap_encode.h"

#include <stdlib.h>
#include <string.h>
#include "schemas/record_payload.h"

enum { MAX_ROWS = 8192 };

/* Does the record stay under the limit with these counts, and one round more? */
static bool fits(const struct tap_open *o, int T, int T_gen, int n_hidden)
{
	return T <= o->cap && record_bytes(o->payload, T, T_gen, n_hidden, o->S + 1, o->K, RECORD_MAX_K, o->H_t) <= RECORD_MAX_BYTES;
}

static void *take(uint8_t **at, size_t bytes)
{
	void *p = *at;

	*at += (bytes + 63) / 64 * 64;
	return p;
}

int tap_open_init(struct tap_open *o, int H_t, int K, bool with_hidden, int max_rows, enum record_payload payload)
{
	memset(o, 0, sizeof *o);
	o->H_t = H_t;
	o->K = K;
	o->payload = payload;
	o->cap = max_rows > 0 && max_rows < MAX_ROWS ? max_rows : MAX_ROWS;
	while (o->cap > 0 && !fits(o, o->cap, 0, 0))
		o->cap--;
	if (o->cap == 0)
		return -E2BIG; /* not even one row of this model fits into a record */
	size_t n = (size_t)o->cap, H = (size_t)H_t, k = (size_t)K;
	bool coded = payload >= RECORD_FP8;
	size_t bytes = n * (4 * 4 + 4 + (coded ? 3 * H + 12 : 6 * H) + k * 6 + (with_hidden ? 2 * H : 0) + 5 * RECORD_MAX_K) + 18 * 64;
	uint8_t *at = o->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!at)
		return -ENOMEM;
	o->ids = take(&at, n * 4);
	o->pos = take(&at, n * 4);
	o->topk_ids = take(&at, n * k * 4);
	o->draft_ids = take(&at, n * 4 * RECORD_MAX_K);
	o->round_start = take(&at, n * 4);
	o->round_version = take(&at, n * 4);
	o->scales = coded ? take(&at, n * 3 * sizeof(float)) : NULL;
	o->codes = coded ? take(&at, n * 3 * H) : NULL;
	o->features = coded ? NULL : take(&at, n * 6 * H);
	o->topk_lp = take(&at, n * k * 2);
	o->hidden = with_hidden ? take(&at, n * 2 * H) : NULL;
	o->mask = take(&at, n);
	o->round_len = take(&at, n);
	o->accepted = take(&at, n);
	o->round_flags = take(&at, n);
	o->draft_parent = take(&at, n * RECORD_MAX_K);
	return 0;
}

void tap_open_done(struct tap_open *o)
{
	free(o->memory);
	memset(o, 0, sizeof *o);
}

void tap_open_reset(struct tap_open *o, const struct trace_meta *meta)
{
	o->meta = *meta;
	o->meta.run = 0;
	o->started = false;
	o->T = o->T_gen = o->n_hidden = o->S = 0;
}

/* Hand out what is held. */
static int flush(struct tap_open *o, bool last, const struct tap_sink *to)
{
	int k = 0;
	bool trees = false;

	for (int s = 0; s < o->S; s++) {
		k = o->round_len[s] > k ? o->round_len[s] : k;
		for (int j = 0; j < o->round_len[s]; j++)
			trees = trees || o->draft_parent[(size_t)s * RECORD_MAX_K + (size_t)j] != (uint8_t)(j - 1);
	}
	for (int s = 1; s < o->S; s++) { /* pack in place: rows only move down */
		memmove(o->draft_ids + (size_t)s * (size_t)k, o->draft_ids + (size_t)s * RECORD_MAX_K, (size_t)k * 4);
		memmove(o->draft_parent + (size_t)s * (size_t)k, o->draft_parent + (size_t)s * RECORD_MAX_K, (size_t)k);
	}
	struct trace_record r = {
		.meta = o->meta,
		.payload = o->payload,
		.T = o->T,
		.T_gen = o->T_gen,
		.T_prompt = o->T - o->T_gen,
		.S = o->S,
		.K = o->T_gen ? o->K : 0,
		.k = k,
		.H_t = o->H_t,
		.token_ids = o->ids,
		.positions = o->pos,
		.next_token = o->next_token,
		.loss_mask = o->mask,
		.features = o->features,
		.codes = o->codes,
		.scales = o->scales,
		.topk_ids = o->topk_ids,
		.topk_logprob = o->topk_lp,
		.last_hidden = o->hidden && o->n_hidden && o->n_hidden == o->T - o->T_gen ? o->hidden : NULL,
		.round_start = o->round_start,
		.round_len = o->round_len,
		.accepted = o->accepted,
		.round_version = o->round_version,
		.round_flags = o->round_flags,
		.draft_ids = o->draft_ids,
		.draft_parent = trees ? o->draft_parent : NULL,
	};
	r.meta.last = last;
	int rc = to->emit(to->arg, &r);
	o->meta.run++;
	o->T = o->T_gen = o->n_hidden = o->S = 0;
	return rc;
}

/* Row i's features in the form in which they travel. */
static void add_features(struct tap_open *o, const struct tap_rows *g, size_t i)
{
	size_t H = (size_t)o->H_t, T = (size_t)o->T;

	if (o->features) {
		memcpy(o->features + T * 3 * H, g->features + i * 3 * H, 6 * H);
	} else if (g->features) {
		record_code_rows(o->payload, g->features + i * 3 * H, 3 * H, H, o->codes + T * 3 * H, o->scales + T * 3);
	} else {
		memcpy(o->codes + T * 3 * H, g->codes + i * 3 * H, 3 * H);
		memcpy(o->scales + T * 3, g->scales + i * 3, 3 * sizeof(float));
	}
}

static void add_row(struct tap_open *o, const struct tap_rows *g, int i)
{
	size_t H = (size_t)o->H_t, K = (size_t)o->K, T = (size_t)o->T;

	o->ids[T] = g->ids[i];
	o->pos[T] = g->pos[i];
	o->mask[T] = !g->prompt;
	add_features(o, g, (size_t)i);
	if (g->prompt && g->hidden && o->hidden)
		memcpy(o->hidden + (size_t)o->n_hidden++ * H, g->hidden + (size_t)i * H, 2 * H);
	if (!g->prompt) {
		memcpy(o->topk_ids + (size_t)o->T_gen * K, g->topk_ids + (size_t)i * K, 4 * K);
		memcpy(o->topk_lp + (size_t)o->T_gen * K, g->topk_lp + (size_t)i * K, 2 * K);
		o->T_gen++;
	}
	o->T++;
	o->started = true;
	o->next_pos = g->pos[i] + 1;
	o->next_token = i + 1 < g->n ? g->ids[i + 1] : g->next_token;
}

int tap_open_rows(struct tap_open *o, const struct tap_rows *g, const struct tap_sink *to)
{
	for (int i = 0; i < g->n; i++) {
		if (o->started && (g->pos[i] != o->next_pos || g->ids[i] != o->next_token))
			return -EPROTO;
		bool hidden = g->prompt && g->hidden && o->hidden;
		if (o->T && !fits(o, o->T + 1, o->T_gen + !g->prompt, o->n_hidden + hidden)) {
			int rc = flush(o, false, to);
			if (rc < 0)
				return rc;
		}
		add_row(o, g, i);
	}
	return 0;
}

void tap_open_round(struct tap_open *o, const struct tap_round *r)
{
	if (!o->T || r->row_pos < o->pos[0] || r->row_pos > o->pos[o->T - 1] || o->S == o->cap || r->len < 1)
		return;
	uint32_t start = r->row_pos - o->pos[0];
	if (o->S && start <= o->round_start[o->S - 1] + o->accepted[o->S - 1])
		return;
	o->round_start[o->S] = start;
	o->round_len[o->S] = (uint8_t)r->len;
	o->accepted[o->S] = (uint8_t)r->accepted;
	o->round_version[o->S] = r->version;
	o->round_flags[o->S] = r->mixed_kv;
	for (int j = 0; j < RECORD_MAX_K; j++)
		o->draft_ids[(size_t)o->S * RECORD_MAX_K + (size_t)j] = j < r->len ? r->ids[j] : RECORD_PAD;
	for (int j = 0; j < RECORD_MAX_K; j++)
		o->draft_parent[(size_t)o->S * RECORD_MAX_K + (size_t)j] = j < r->len ? r->parent[j] : 0xff;
	o->S++;
}

int tap_open_end(struct tap_open *o, const struct tap_sink *to)
{
	return o->T ? flush(o, true, to) : 0;
}
