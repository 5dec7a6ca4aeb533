/* The engine's thread, its queue and its commands.
 *
 * A boundary lies between two rounds. There, and only there, commands are obeyed,
 * cancelled requests leave, and waiting ones enter while a seat and all the pages they can
 * need are free. The lock guards the queue, the list of active sessions, the commands and
 * the published numbers; it is never held while anything is computed.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "serve/engine_core.h"

/* ---- requests, any thread ---- */

int engine_submit(struct engine *g, const struct engine_request *r, uint64_t *ret_handle)
{
	struct session *s = NULL;
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
	int res = session_new(r, &s);
	if (res)
		return res;
	pthread_mutex_lock(&g->lock);
	if (g->stop || g->n_waiting >= g->o.max_queue) {
		res = g->stop ? -ECANCELED : ENGINE_E_FULL;
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
	for (int i = 0; i < g->n_active; i++)
		if (g->active[i]->handle == handle)
			atomic_store(&g->active[i]->cancelled, true);
	pthread_cond_signal(&g->wake);
	pthread_mutex_unlock(&g->lock);
}

void engine_set_draft_k(struct engine *g, int k)
{
	k = k < 1 ? 1 : k > ENGINE_MAX_K ? ENGINE_MAX_K : k;
	atomic_store(&g->draft_k, k);
}

/* ---- the engine's thread ---- */

static void publish(struct engine *g, float round_ms);

/* on_done comes last: whoever hears of it finds the numbers up to date. */
static void finish(struct engine *g, struct session *s, enum finish why, const char *error)
{
	if (s->slot >= 0)
		draft_drop(g, s);
	if (s->seat >= 0) {
		pages_give(&g->pages, s->pages, s->n_pages);
		g->seat_used[s->seat] = false;
		capture_end(g, s);
	}
	publish(g, -1);
	s->req.on_done(s->req.arg, why, &s->stats, error);
	session_free(s);
}

static void remove_active(struct engine *g, int i)
{
	pthread_mutex_lock(&g->lock);
	memmove(&g->active[i], &g->active[i + 1], (size_t)(g->n_active - i - 1) * sizeof g->active[0]);
	g->n_active--;
	pthread_mutex_unlock(&g->lock);
}

/* Sessions keep their order: it is the order in which prompts get their rows. */
static void end_session(struct engine *g, struct session *s, enum finish why, const char *error)
{
	for (int i = 0; i < g->n_active; i++)
		if (g->active[i] == s) {
			remove_active(g, i);
			finish(g, s, why, error);
			return;
		}
}

static struct session *take_cancelled(struct engine *g)
{
	struct session *gone = NULL, **at = &g->waiting;
	while (*at) {
		struct session *s = *at;
		if (!atomic_load(&s->cancelled)) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		s->next = gone;
		gone = s;
		g->n_waiting--;
	}
	g->waiting_tail = at;
	return gone;
}

static void reap(struct engine *g)
{
	pthread_mutex_lock(&g->lock);
	struct session *gone = take_cancelled(g);
	pthread_mutex_unlock(&g->lock);
	while (gone) {
		struct session *next = gone->next;
		finish(g, gone, FINISH_CANCELLED, "");
		gone = next;
	}
	for (int i = g->n_active - 1; i >= 0; i--)
		if (atomic_load(&g->active[i]->cancelled))
			end_session(g, g->active[i], FINISH_CANCELLED, "");
}

static void seat_session(struct engine *g, struct session *s)
{
	while (g->seat_used[++s->seat])
		;
	g->seat_used[s->seat] = true;
	if (!s->req.no_draft && g->slots.live >= 0) {
		s->slot = g->slots.live;
		s->draft_ok = true;
		g->slots.s[s->slot].requests++;
	}
	capture_begin(g, s);
}

/* First come, first served: a request that does not fit yet holds back those behind it. */
static void admit(struct engine *g)
{
	for (;;) {
		pthread_mutex_lock(&g->lock);
		struct session *s = g->waiting;
		bool fits = s && g->n_active < g->o.max_seqs && pages_take(&g->pages, s->pages, s->n_pages);
		if (fits) {
			g->waiting = s->next;
			if (!g->waiting)
				g->waiting_tail = &g->waiting;
			g->n_waiting--;
			s->next = NULL;
			g->active[g->n_active++] = s;
		}
		pthread_mutex_unlock(&g->lock);
		if (!fits)
			return;
		seat_session(g, s);
	}
}

static int cmd_activate(struct engine *g, const struct cmd *c)
{
	int to = -1;
	if (c->version) {
		to = slots_find(&g->slots, c->version);
		if (to < 0 || g->slots.s[to].state != SLOT_READY)
			return errtext_set(c->e, -ENOENT, "version %u is not loaded", c->version);
	}
	slots_activate(&g->slots, to, c->move_all && to == g->slots.previous);
	uint64_t at = c->deadline_ms ? clock_us() + (uint64_t)c->deadline_ms * 1000 : 0;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		if (c->move_all)
			draft_move(g, s, to);
		else
			s->move_at = s->slot != to ? at : 0;
	}
	return 0;
}

/* Under the lock, as others read the table of slots: nothing here computes. */
static int obey(struct engine *g, const struct cmd *c)
{
	enum dtype kv = g->o.f32_kv ? DT_F32 : DT_BF16;
	switch (c->kind) {
	case CMD_INSTALL:
		return slots_install(&g->slots, c->slot, c->load, g->o.dev, g->pages.n_total, PAGE_TOK, kv, c->e);
	case CMD_ACTIVATE:
		return cmd_activate(g, c);
	case CMD_UNLOAD:
		return slots_unload(&g->slots, c->version, c->e);
	}
	return -EINVAL;
}

/* The per-sequence feedback arrays are as wide as the drafts; made with the first one. */
static int fit_feedback(struct engine *g, const struct slot_load *l)
{
	struct dev *d = g->o.dev;
	int H = l->kind->hidden(l->x);
	real **const arrays[] = {&g->fb, &g->fb_out, &g->chain[0], &g->chain[1]};
	if (H <= g->Hd)
		return H == g->Hd ? 0 : -EINVAL; /* drafts are as wide as their target: cannot differ */
	for (int i = 0; i < 4; i++) {
		*arrays[i] = d->ops->alloc(d, (size_t)g->o.max_seqs * (size_t)H * sizeof(real));
		if (!*arrays[i])
			return -ENOMEM;
	}
	g->Hd = H;
	return 0;
}

static void run_commands(struct engine *g)
{
	for (;;) {
		pthread_mutex_lock(&g->lock);
		struct cmd *c = g->cmds;
		if (c) {
			g->cmds = c->next;
			if (!g->cmds)
				g->cmds_tail = &g->cmds;
		}
		bool stopping = g->stop;
		pthread_mutex_unlock(&g->lock);
		if (!c)
			return;
		int r = stopping ? -ECANCELED : c->kind == CMD_INSTALL ? fit_feedback(g, c->load) : 0;
		pthread_mutex_lock(&g->lock);
		c->result = r ? r : obey(g, c);
		c->done = true;
		pthread_cond_broadcast(&g->answered);
		pthread_mutex_unlock(&g->lock);
	}
}

static void move_overdue(struct engine *g)
{
	uint64_t now = 0;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		if (!s->move_at)
			continue;
		now = now ? now : clock_us();
		if (now >= s->move_at)
			draft_move(g, s, g->slots.live);
	}
}

static void publish(struct engine *g, float round_ms)
{
	pthread_mutex_lock(&g->lock);
	struct engine_status *p = &g->pub;
	p->tokens_prompt = g->sum.prompt;
	p->tokens_generated = g->sum.generated;
	p->rounds = g->sum.rounds;
	p->proposing_rounds = g->sum.proposing;
	p->proposed = g->sum.proposed;
	p->accepted = g->sum.accepted;
	memcpy(p->accepted_at, g->sum.at, sizeof p->accepted_at);
	memcpy(p->proposed_at, g->sum.prop_at, sizeof p->proposed_at);
	p->live = g->slots.live < 0 ? 0 : g->slots.s[g->slots.live].version;
	p->previous = g->slots.previous < 0 ? 0 : g->slots.s[g->slots.previous].version;
	for (int i = 0; i < N_SLOTS; i++)
		p->slots[i].requests = g->slots.s[i].requests;
	if (round_ms >= 0) {
		g->ring_ms[g->ring_n % ENGINE_RING] = round_ms;
		g->ring_gap[g->ring_n++ % ENGINE_RING] = g->round_gap_ms;
	}
	pthread_mutex_unlock(&g->lock);
}

static void one_round(struct engine *g)
{
	uint64_t start = clock_us();
	int r = round_run(g);
	publish(g, (float)(clock_us() - start) / 1e3f);
	for (int i = 0; i < g->n_pieces; i++)
		if (g->pieces[i].done)
			end_session(g, g->pieces[i].s, g->pieces[i].why, r ? "the model could not be run" : "");
}

static bool wait_for_work(struct engine *g)
{
	pthread_mutex_lock(&g->lock);
	while (!g->stop && !g->cmds && !g->waiting && !g->n_active)
		pthread_cond_wait(&g->wake, &g->lock);
	bool go = !g->stop;
	pthread_mutex_unlock(&g->lock);
	return go;
}

void *engine_main(void *arg)
{
	struct engine *g = arg;
	while (wait_for_work(g)) {
		run_commands(g);
		reap(g);
		move_overdue(g);
		admit(g);
		if (g->n_active)
			one_round(g);
		else
			publish(g, -1);
	}
	run_commands(g);
	pthread_mutex_lock(&g->lock);
	for (struct session *s = g->waiting; s; s = s->next)
		atomic_store(&s->cancelled, true);
	for (int i = 0; i < g->n_active; i++)
		atomic_store(&g->active[i]->cancelled, true);
	pthread_mutex_unlock(&g->lock);
	reap(g);
	return NULL;
}
