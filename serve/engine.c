/* The engine's thread, its queue and its commands.
 *
 * A boundary lies between two rounds. There, and only there, commands are obeyed,
 * cancelled requests leave, and waiting ones enter (admit.c). The lock guards the queue, the list of active sessions, the commands and
 * the published numbers; it is never held while anything is computed.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "serve/engine_core.h"
#include "serve/fault.h"

void engine_set_draft_k(struct engine *g, int k)
{
	k = k < 1 ? 1 : k > ENGINE_MAX_K ? ENGINE_MAX_K : k;
	atomic_store(&g->draft_k, k);
}

uint64_t engine_beats(struct engine *g, bool *ret_busy)
{
	pthread_mutex_lock(&g->lock);
	uint64_t rounds = g->ring_n;
	*ret_busy = g->waiting || g->n_active || g->cmds;
	pthread_mutex_unlock(&g->lock);
	return rounds + atomic_load_explicit(&g->o.dev->beats, memory_order_relaxed);
}

void engine_set_draft_mode(struct engine *g, enum draft_mode mode)
{
	atomic_store(&g->draft_mode, (int)(mode == DRAFT_TREE && g->o.draft_nodes < 2 ? DRAFT_CHAIN : mode));
}

/* ---- the engine's thread ---- */

static void publish(struct engine *g, float round_ms);

/* on_done comes last: whoever hears of it finds the numbers up to date. */
void finish(struct engine *g, struct session *s, enum finish why, const char *error)
{
	if (s->slot >= 0)
		draft_drop(g, s);
	if (s->begun)
		capture_end(g, s);
	if (s->seat >= 0) {
		reuse_leave(g, s);
		g->seat_used[s->seat] = false;
	}
	flow_leave(g, s);
	publish(g, -1);
	s->req.on_done(s->req.arg, why, &s->stats, error);
	session_free(s);
}

void remove_active(struct engine *g, struct session *s)
{
	int i = 0;
	while (g->active[i] != s)
		i++;
	memmove(&g->active[i], &g->active[i + 1], (size_t)(g->n_active - i - 1) * sizeof g->active[0]);
	g->n_active--;
}

/* Those that drafted with a canary that is over go to live; its own KV stays theirs and is flagged. */
static void leave_canary(struct engine *g, int was)
{
	for (int i = 0; i < g->n_active; i++)
		if (was >= 0 && was != g->slots.live && g->active[i]->slot == was)
			g->active[i]->move_at = 1;
}

/* Who moves is marked here and moved when the lock is given back. */
static int cmd_activate(struct engine *g, const struct cmd *c)
{
	int to = -1;
	if (c->version) {
		to = slots_find(&g->slots, c->version);
		if (to < 0 || g->slots.s[to].state != SLOT_READY)
			return errtext_set(c->e, -ENOENT, "version %u is not loaded", c->version);
	}
	int canary = g->slots.canary;
	slots_activate(&g->slots, to, c->move_all && to == g->slots.previous);
	uint64_t at = c->deadline_ms ? clock_us() + (uint64_t)c->deadline_ms * 1000 : 0;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		s->move_at = s->slot == to ? 0 : c->move_all || s->slot < 0 ? 1 : at; /* who has no draft has none to keep */
	}
	leave_canary(g, canary);
	return 0;
}

static int cmd_canary(struct engine *g, const struct cmd *c)
{
	int to = -1, was = g->slots.canary;
	if (c->version) {
		to = slots_find(&g->slots, c->version);
		if (to < 0 || g->slots.s[to].state != SLOT_READY)
			return errtext_set(c->e, -ENOENT, "version %u is not loaded", c->version);
		if (to == g->slots.live)
			return errtext_set(c->e, -EINVAL, "version %u is live already", c->version);
	}
	slots_canary(&g->slots, to, c->permille, c->salt ? c->salt : "");
	if (was != g->slots.canary)
		leave_canary(g, was);
	return 0;
}

/* Under the lock, as others read the table of slots: nothing here computes. */
static int obey(struct engine *g, const struct cmd *c)
{
	enum dtype kv = g->o.f32_kv ? DT_F32 : DT_BF16;
	int slot, r;
	switch (c->kind) {
	case CMD_INSTALL:
		return slots_install(&g->slots, c->slot, c->load, g->o.dev, N_SLOTS * g->pages.n_total, PAGE_TOK, kv, c->e);
	case CMD_ACTIVATE:
		return cmd_activate(g, c);
	case CMD_CANARY:
		return cmd_canary(g, c);
	case CMD_UNLOAD:
		slot = slots_find(&g->slots, c->version);
		r = slots_unload(&g->slots, c->version, g->o.dev->remembers, c->e);
		if (!r)
			pages_forget_draft(&g->pages, slot);
		return r;
	case CMD_TRIM:
		slots_trim(&g->slots);
		return g->o.dev->ops->sync(g->o.dev); /* now it is there for other streams too */
	}
	return -EINVAL;
}

/* The per-sequence feedback arrays are as wide as the drafts; made with the first one. */
static int fit_feedback(struct engine *g, const struct slot_load *l)
{
	struct dev *d = g->o.dev;
	int H = l->kind->hidden(l->x);
	real **const arrays[] = {&g->fb, &g->fb_out, &g->chain[0], &g->chain[1], &g->pending};
	if (H <= g->Hd)
		return H == g->Hd ? 0 : -EINVAL; /* drafts are as wide as their target: cannot differ */
	const size_t wide = (size_t)g->o.max_seqs * TREE_WIDTH * (size_t)H;
	const size_t n[] = {wide, wide, wide, wide, (size_t)g->o.max_seqs * SESSION_PENDING * (size_t)(N_BOUNDARIES * g->H)};
	for (int i = 0; i < 5; i++) {
		if (!*arrays[i]) /* an attempt before may have got some */
			*arrays[i] = d->ops->alloc(d, n[i] * sizeof(real));
		if (!*arrays[i])
			return -ENOMEM;
	}
	g->Hd = H;
	return 0;
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
		if (c->kind == CMD_ACTIVATE || c->kind == CMD_CANARY) {
			pthread_mutex_unlock(&g->lock);
			move_overdue(g); /* draft KV comes along: nothing to do under the lock */
			pthread_mutex_lock(&g->lock);
		}
		c->done = true;
		pthread_cond_broadcast(&g->answered);
		pthread_mutex_unlock(&g->lock);
	}
}

static void publish(struct engine *g, float round_ms)
{
	pthread_mutex_lock(&g->lock);
	struct engine_status *p = &g->pub;
	p->tokens_prompt = g->sum.prompt;
	p->prefix_asked = g->sum.asked;
	p->prefix_reused = g->sum.reused;
	p->evictions = g->prefix.evicted;
	p->preemptions = g->sum.preempted;
	p->pages = g->pages.n_total;
	p->pages_free = g->pages.n_free;
	p->pages_cached = g->prefix.n_idle;
	p->tokens_generated = g->sum.generated;
	memcpy(p->graphs, g->o.dev->graphs, sizeof p->graphs);
	p->rounds = g->sum.rounds;
	p->proposing_rounds = g->sum.proposing;
	p->proposed = g->sum.proposed;
	p->accepted = g->sum.accepted;
	memcpy(p->accepted_at, g->sum.at, sizeof p->accepted_at);
	memcpy(p->proposed_at, g->sum.prop_at, sizeof p->proposed_at);
	p->live = g->slots.live < 0 ? 0 : g->slots.s[g->slots.live].version;
	p->previous = g->slots.previous < 0 ? 0 : g->slots.s[g->slots.previous].version;
	for (int i = 0; i < N_SLOTS; i++) {
		const struct ctl_key *k = controller_last(&g->ctl, g->slots.s[i].version);
		p->slots[i].requests = g->slots.s[i].requests;
		p->slots[i].depth = k ? k->best.depth : 0;
		p->slots[i].nodes = k && k->best.depth ? k->best.nodes : 0;
		p->slots[i].expected = k && k->expected > 0 ? k->expected : 1;
		p->slots[i].measured = k && k->measured > 0 ? k->measured : 1;
	}
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
	double ms = (double)(clock_us() - start) / 1e3;
	publish(g, (float)ms);
	budget_learn(&g->budget, g->n_decode_rows, g->n_prompt_rows, ms);
	for (int i = 0; i < g->n_pieces; i++) {
		struct piece *p = &g->pieces[i];
		if (!p->done)
			continue;
		pthread_mutex_lock(&g->lock);
		remove_active(g, p->s);
		pthread_mutex_unlock(&g->lock);
		finish(g, p->s, p->why, r ? "the model could not be run" : "");
	}
}

static bool wait_for_work(struct engine *g)
{
	pthread_mutex_lock(&g->lock);
	while (!g->stop && !g->cmds && !g->waiting && !g->resting && !g->n_active)
		pthread_cond_wait(&g->wake, &g->lock);
	bool go = !g->stop;
	pthread_mutex_unlock(&g->lock);
	return go;
}

void *engine_main(void *arg)
{
	struct engine *g = arg;
	while (wait_for_work(g)) {
		fault_poll();
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
	for (struct session *s = g->resting; s; s = s->next)
		atomic_store(&s->cancelled, true);
	for (int i = 0; i < g->n_active; i++)
		atomic_store(&g->active[i]->cancelled, true);
	pthread_mutex_unlock(&g->lock);
	reap(g);
	return NULL;
}
