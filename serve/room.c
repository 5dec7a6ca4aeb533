/* Pages as they are needed, and who gives way when there are none.
 *
 * A prompt has its pages when it is admitted; a decoding session takes one when it comes to the end of
 * its last. What is short is found in this order: free pages; pages of the prefix tree that nobody
 * reads; the pages of the session with the largest rank, which rests and is recomputed later from the
 * tokens it has. Draws depend on position and history only, so its answer does not change.
 *
 * Ranks are fixed at submit, so whoever has the smallest always gets what it needs
 * (one request never needs more than all pages), ends, and makes room: nobody rests for ever.
 */
#include <string.h>
#include "serve/engine_core.h"

bool room_take(struct engine *g, struct session *s, int n)
{
	if (n > s->cap_pages - s->n_pages || n > g->pages.n_free + g->prefix.n_idle)
		return false;
	while (g->pages.n_free < n && prefix_evict(&g->prefix))
		;
	if (n < 1 || !pages_take(&g->pages, s->pages + s->n_pages, n))
		return n < 1;
	s->n_pages += n;
	session_point(s, g->pages.n_total);
	return true;
}

void room_preempt(struct engine *g, struct session *s)
{
	struct session **at = &g->resting;
	draft_drop(g, s);
	reuse_leave(g, s);
	g->seat_used[s->seat] = false;
	s->seat = -1;
	s->n_kv = 0;
	s->mixed = false;
	s->n_proposed = 0;
	g->sum.preempted++;
	pthread_mutex_lock(&g->lock);
	remove_active(g, s);
	while (*at && (*at)->rank < s->rank)
		at = &(*at)->next;
	s->next = *at;
	*at = s;
	g->n_resting++;
	pthread_mutex_unlock(&g->lock);
}

/* The root of its next round; false when s itself had to give way. */
static bool root_room(struct engine *g, struct session *s)
{
	while (session_room(s) < 0 && !room_take(g, s, 1)) {
		struct session *last = g->active[g->n_active - 1];
		room_preempt(g, last);
		if (last == s)
			return false;
	}
	return true;
}

/* Proposals are worth pages that nobody misses, but nobody's place. */
void room_plan(struct engine *g)
{
	for (int i = 0; i < g->n_active; i++)
		if (!session_prefilling(g->active[i]) && !root_room(g, g->active[i]))
			break; /* it was the last */
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		int want = s->shape.depth < 1 || session_left(s) < 2 ? 0 : s->shape.nodes;
		if (s->slot >= 0 && !session_prefilling(s) && session_room(s) < want)
			(void)room_take(g, s, pages_for(want - session_room(s)));
	}
}
