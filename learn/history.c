/* Finding what came before (learn/history.h). Runs are some thousands and links few: scans do. */
#include "learn/history.h"

#include <string.h>

#include "learn/join.h"

static const char *const words[HISTORY_N] = {"whole", "unnamed", "missing", "open", "short", "deep"};

const char *history_word(enum history_kind k)
{
	return k < HISTORY_N ? words[k] : "?";
}

/* The run of that request which holds position pos; *ret_known: some part of the request is there. */
static const struct run *covering(const struct runs *s, const struct run *child, uint32_t pos, bool *ret_known)
{
	*ret_known = false;
	for (int i = s->n - 1; i >= 0; i--) { /* parents are recent */
		const struct run *x = &s->v[i];
		if (x->name != child->parent || x->partition != child->partition || x == child)
			continue;
		*ret_known = true;
		if (x->pos0 <= pos && pos - x->pos0 < (uint32_t)x->n)
			return x;
	}
	return NULL;
}

void history_find(const struct runs *s, const struct join *open, const struct run *r, struct history *ret)
{
	const struct run *at = r;
	struct history h = {.kind = HISTORY_WHOLE};
	while (at->pos0) {
		bool known = false;
		h.kind = HISTORY_UNNAMED;
		if (!at->parent || at->parent_rows != at->pos0)
			break;
		const struct run *up = covering(s, at, at->pos0 - 1, &known);
		h.kind = known ? HISTORY_SHORT : open && join_find(open, at->parent) ? HISTORY_OPEN : HISTORY_MISSING;
		if (!up)
			break;
		int rows = (int)(at->pos0 - up->pos0);
		h.kind = HISTORY_DEEP;
		if (h.n == HISTORY_MAX_LINKS)
			break;
		h.link[h.n] = up;
		h.rows[h.n++] = rows;
		h.total += rows;
		if (h.total + r->n > HISTORY_MAX_ROWS) /* the nearest of them are of use as context */
			break;
		h.kind = HISTORY_WHOLE;
		at = up;
	}
	*ret = h;
}

/* ---- repeated prefixes ---- */

/* The chained hash at position pos (a multiple of RUN_BLOCK) of a run, or 0. */
static uint64_t hash_at(const struct run *x, uint32_t pos)
{
	if (pos <= x->pos0 || (pos - x->pos0) % RUN_BLOCK)
		return 0;
	uint32_t i = (pos - x->pos0) / RUN_BLOCK - 1;
	return i < (uint32_t)x->n_path ? x->path[i] : 0;
}

void history_chain(const struct runs *s, struct run *r)
{
	bool known;
	uint64_t h = r->conversation;
	if (r->pos0) {
		const struct run *up = h && r->parent && r->parent_rows == r->pos0 ? covering(s, r, r->pos0 - 1, &known) : NULL;
		h = up && up->conversation == r->conversation ? hash_at(up, r->pos0) : 0;
	}
	if (!h) { /* nothing to compare it by */
		r->n_path = 0;
		return;
	}
	for (int i = 0; i < r->n_path; i++)
		h = r->path[i] = run_hash(h, &r->path[i], sizeof r->path[i]);
}

static bool held(const struct runs *s, const struct run *r, uint32_t pos, uint64_t hash)
{
	for (int i = s->n - 1; i >= 0; i--)
		if (s->v[i].conversation == r->conversation && !s->v[i].bad && hash_at(&s->v[i], pos) == hash)
			return true;
	return false;
}

int history_repeated(const struct runs *s, const struct run *r)
{
	int n = 0;
	while (n < r->n_path && held(s, r, r->pos0 + (uint32_t)(n + 1) * RUN_BLOCK, r->path[n]))
		n++;
	return n * RUN_BLOCK;
}
