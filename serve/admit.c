/* The queue: who is taken in next, and who leaves.
 *
 * Fair between clients: each (client, priority) is a flow with a virtual time that its prompt rows
 * and tokens move forward, four times slower for each step of priority; the flow that is furthest behind is
 * served next, first come first served inside it. A flow that was away starts at the present, so silence
 * earns nothing. A client alone gets everything; two get half each, however many requests
 * either has waiting; a low priority gets little, but never nothing.
 *
 * Memory goes by rank: the time of submit, a step of priority counting as RANK_US of waiting. A session
 * that lost its pages (room.c) goes before new ones of larger rank; a new one of higher priority
 * takes the seat of the last in rank when all are taken. What does not fit yet holds back those
 * behind it.
 */
#include <math.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "serve/engine_core.h"

enum { RANK_US = 10000000, LEAD = 512 /* tokens: what a priority is ahead of a lower one, before weights tell */ };

/* ---- any thread ---- */

static int check(const struct engine *g, const struct engine_request *r)
{
	if (r->n_prompt < 1 || r->max_tokens < 1)
		return -EINVAL;
	if (r->max_tokens > g->o.max_context || r->n_prompt > g->o.max_context - r->max_tokens ||
	    pages_for(r->n_prompt + r->max_tokens) > g->pages.n_total)
		return ENGINE_E_TOO_LONG;
	for (int i = 0; i < r->n_prompt; i++)
		if (r->prompt[i] >= (uint32_t)g->V)
			return -EINVAL;
	if (r->sampling.n_bias < 0 || r->sampling.n_bias > ENGINE_MAX_BIAS || r->top_logprobs < 0 || r->top_logprobs > ENGINE_MAX_LOGPROBS)
		return -EINVAL;
	for (int i = 0; i < r->sampling.n_bias; i++)
		if (r->sampling.bias[i].id >= (uint32_t)g->V)
			return -EINVAL;
	if (r->n_stop_ids < 0 || r->n_stop_ids > ENGINE_MAX_STOP_IDS || r->min_tokens < 0 || r->min_tokens > r->max_tokens)
		return -EINVAL;
	for (int i = 0; i < r->n_stop_ids; i++)
		if (r->stop_ids[i] >= (uint32_t)g->V)
			return -EINVAL;
	return 0;
}

int engine_submit(struct engine *g, const struct engine_request *r, uint64_t *ret_handle)
{
	struct session *s = NULL;
	int res = check(g, r);
	if (!res)
		res = session_new(r, g->o.eog_ids, g->o.n_eog, &s);
	if (res)
		return res;
	int p = r->priority;
	p = p > ENGINE_MAX_PRIORITY ? ENGINE_MAX_PRIORITY : p < -ENGINE_MAX_PRIORITY ? -ENGINE_MAX_PRIORITY : p;
	s->req.priority = p;
	s->rank = (int64_t)s->born_us - (int64_t)p * RANK_US;
	s->salt = g->o.prefix == PREFIX_TENANT ? told_hash(r->tenant) : 0;
	pthread_mutex_lock(&g->lock);
	if (g->stop || g->draining || g->n_waiting >= g->o.max_queue) {
		res = g->stop || g->draining ? -ECANCELED : ENGINE_E_FULL;
	} else {
		s->handle = ++g->next_handle;
		*g->waiting_tail = s;
		g->waiting_tail = &s->next;
		g->n_waiting++;
		*ret_handle = s->handle;
		pthread_cond_signal(&g->wake);
	}
	pthread_mutex_unlock(&g->lock);
	if (res)
		session_free(s);
	return res;
}

void engine_cancel(struct engine *g, uint64_t handle)
{
	pthread_mutex_lock(&g->lock);
	for (struct session *s = g->waiting; s; s = s->next)
		if (s->handle == handle)
			atomic_store(&s->cancelled, true);
	for (struct session *s = g->resting; s; s = s->next)
		if (s->handle == handle)
			atomic_store(&s->cancelled, true);
	for (int i = 0; i < g->n_active; i++)
		if (g->active[i]->handle == handle)
			atomic_store(&g->active[i]->cancelled, true);
	pthread_cond_signal(&g->wake);
	pthread_mutex_unlock(&g->lock);
}

void engine_drain(struct engine *g, uint64_t until_us)
{
	pthread_mutex_lock(&g->lock);
	g->draining = true;
	g->drain_until = until_us;
	pthread_cond_signal(&g->wake);
	pthread_mutex_unlock(&g->lock);
}

/* ---- flows; the engine's thread from here on ---- */

static int flow_join(struct engine *g, const struct session *s)
{
	uint64_t client = told_hash(s->req.client);
	int best = -1;
	for (int i = 0; i < N_FLOWS; i++) {
		struct flow *f = &g->flows[i];
		if (f->client == client && f->priority == s->req.priority && (f->users || f->vtime > 0)) {
			best = i;
			break;
		}
		if (!f->users && (best < 0 || f->vtime < g->flows[best].vtime))
			best = i;
	}
	if (best < 0)
		best = (int)(client % N_FLOWS); /* more clients than accounts: some share one */
	struct flow *f = &g->flows[best];
	if (!f->users && (f->client != client || f->priority != s->req.priority))
		*f = (struct flow){.client = client, .priority = s->req.priority};
	if (!f->users++ && f->vtime < g->vnow)
		f->vtime = g->vnow;
	return best;
}

void flow_leave(struct engine *g, struct session *s)
{
	if (s->flow >= 0)
		g->flows[s->flow].users--;
	s->flow = -1;
}

void flow_charge(struct engine *g, const struct session *s, double cost)
{
	g->flows[s->flow].vtime += ldexp(cost, -2 * s->req.priority);
}

static double when(const struct engine *g, const struct session *s)
{
	return g->flows[s->flow].vtime + ldexp(LEAD, -2 * s->req.priority);
}

/* Under the lock. The first of the flow that is furthest behind. */
static struct session *pick(struct engine *g)
{
	struct session *best = NULL;
	for (struct session *s = g->waiting; s; s = s->next) {
		if (s->flow < 0)
			s->flow = flow_join(g, s);
		if (!best || when(g, s) < when(g, best))
			best = s;
	}
	return best;
}

/* ---- in ---- */

static void unqueue(struct engine *g, const struct session *s)
{
	bool rests = s == g->resting;
	struct session **at = rests ? &g->resting : &g->waiting;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (rests) {
		g->n_resting--;
		return;
	}
	if (!*at)
		g->waiting_tail = at;
	g->n_waiting--;
}

static void seat(struct engine *g, struct session *s)
{
	int at = g->n_active;
	pthread_mutex_lock(&g->lock);
	unqueue(g, s);
	s->next = NULL;
	while (at > 0 && g->active[at - 1]->rank > s->rank) {
		g->active[at] = g->active[at - 1];
		at--;
	}
	g->active[at] = s;
	g->n_active++;
	pthread_mutex_unlock(&g->lock);
	for (s->seat = 0; g->seat_used[s->seat]; s->seat++)
		;
	g->seat_used[s->seat] = true;
	if (s->slot >= 0)
		g->slots.s[s->slot].requests++;
	if (s->begun)
		return;
	s->begun = true;
	g->vnow = fmax(g->vnow, g->flows[s->flow].vtime);
	g->sum.asked += s->req.probe ? 0 : (uint64_t)s->n_prompt;
	g->sum.reused += s->stats.cached = (uint32_t)s->n_kv;
	capture_begin(g, s);
}

static struct session *next(struct engine *g)
{
	pthread_mutex_lock(&g->lock);
	struct session *s = pick(g);
	if (g->resting && (!s || g->resting->rank <= s->rank))
		s = g->resting;
	pthread_mutex_unlock(&g->lock);
	return s;
}

void admit(struct engine *g)
{
	for (;;) {
		struct session *s = next(g), *last = g->n_active ? g->active[g->n_active - 1] : NULL;
		if (!s)
			return;
		if (g->n_active == g->o.max_seqs) {
			if (s->begun || last->req.priority >= s->req.priority || last->rank < s->rank)
				return;
			room_preempt(g, last);
		}
		if (!reuse_enter(g, s))
			return;
		seat(g, s);
	}
}

/* ---- out ---- */

static bool over(const struct engine *g, struct session *s, uint64_t now, enum finish *why)
{
	*why = FINISH_CANCELLED;
	if (atomic_load(&s->cancelled) || (g->draining && now >= g->drain_until))
		return true;
	*why = FINISH_DEADLINE;
	return s->req.deadline_us && now >= s->req.deadline_us;
}

/* Takes those that are over out of a queue, in order. */
static struct session *sift(struct engine *g, struct session **at, uint64_t now, int *n)
{
	struct session *gone = NULL, **tail = &gone;
	enum finish why;
	while (*at) {
		struct session *s = *at;
		if (!over(g, s, now, &why)) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		s->next = NULL;
		*tail = s;
		tail = &s->next;
		--*n;
	}
	return gone;
}

static void finish_all(struct engine *g, struct session *gone, uint64_t now)
{
	enum finish why;
	while (gone) {
		struct session *following = gone->next;
		(void)over(g, gone, now, &why);
		finish(g, gone, why, "");
		gone = following;
	}
}

void reap(struct engine *g)
{
	uint64_t now = clock_us();
	enum finish why;
	pthread_mutex_lock(&g->lock);
	struct session *gone = sift(g, &g->waiting, now, &g->n_waiting);
	struct session *rested = sift(g, &g->resting, now, &g->n_resting);
	g->waiting_tail = &g->waiting;
	while (*g->waiting_tail)
		g->waiting_tail = &(*g->waiting_tail)->next;
	pthread_mutex_unlock(&g->lock);
	finish_all(g, gone, now);
	finish_all(g, rested, now);
	for (int i = g->n_active - 1; i >= 0; i--) {
		struct session *s = g->active[i];
		if (!over(g, s, now, &why))
			continue;
		pthread_mutex_lock(&g->lock);
		remove_active(g, s);
		pthread_mutex_unlock(&g->lock);
		finish(g, s, why, "");
	}
}
