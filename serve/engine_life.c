/* Making and ending the engine: everything the rounds need is sized and taken here
 * once. Commands from other threads, and the numbers they may read.
 */
#include <stdlib.h>
#include <string.h>
#include "serve/engine_core.h"
#include "serve/tap.h"

static void rows_free(struct rows *b)
{
	free(b->ids);
	free(b->pos);
	free(b->slots);
	free(b->logit_rows);
	free(b->out_rows);
}

static int rows_alloc(struct rows *b, int cap)
{
	size_t n = (size_t)cap * sizeof(uint32_t);
	b->ids = malloc(n);
	b->pos = malloc(n);
	b->slots = malloc(n);
	b->logit_rows = malloc(n);
	b->out_rows = malloc(n);
	return b->ids && b->pos && b->slots && b->logit_rows && b->out_rows ? 0 : -ENOMEM;
}

static int check(const struct engine_options *o, struct errtext *e)
{
	if (o->max_seqs < 1 || o->max_seqs > ENGINE_MAX_SEQS)
		return errtext_set(e, -EINVAL, "max_seqs %d is outside 1..%d", o->max_seqs, ENGINE_MAX_SEQS);
	if (o->draft_k < 1 || o->draft_k > ENGINE_MAX_K)
		return errtext_set(e, -EINVAL, "draft_k %d is outside 1..%d", o->draft_k, ENGINE_MAX_K);
	if (o->slowdown != 0 && !(o->slowdown >= 1))
		return errtext_set(e, -EINVAL, "slowdown %g is below 1", o->slowdown);
	if (o->draft_nodes < 0 || o->draft_nodes > ENGINE_MAX_NODES || (o->draft_mode == DRAFT_TREE && o->draft_nodes < 2))
		return errtext_set(e, -EINVAL, "draft.nodes %d is outside 2..%d", o->draft_nodes, ENGINE_MAX_NODES);
	if (o->prefill_chunk < 1 || o->max_queue < 1)
		return errtext_set(e, -EINVAL, "prefill_chunk and max_queue must be positive");
	if (o->max_context < 2)
		return errtext_set(e, -EINVAL, "max_context %d has no room for a prompt and an answer: 2 at least", o->max_context);
	if (o->kv_tokens < PAGE_TOK)
		return errtext_set(e, -EINVAL, "kv_tokens %d is less than one page of %d", o->kv_tokens, PAGE_TOK);
	if (o->n_eog < 0 || o->n_eog > (int)(sizeof o->eog_ids / sizeof *o->eog_ids))
		return errtext_set(e, -EINVAL, "too many end-of-text tokens");
	return 0;
}

static int alloc_arrays(struct engine *g)
{
	int r = reads_new(g, g->o.max_seqs * g->max_piece);
	r = r ? r : words_new(g);
	g->sampler = sampler_new(g->V);
	if (r || !g->sampler)
		return -ENOMEM;
	if (g->o.tap) {
		size_t n = (size_t)g->max_piece * (size_t)tap_topk(g->o.tap);
		g->cap_ids = malloc(n * sizeof *g->cap_ids);
		g->cap_val = malloc(n * sizeof *g->cap_val);
		if (!g->cap_ids || !g->cap_val)
			return -ENOMEM;
	}
	r = rows_alloc(&g->tb, g->max_rows);
	return r ? r : rows_alloc(&g->db, g->max_rows);
}

static int start(struct engine *g, struct errtext *e)
{
	const struct llama_config *c = llama_cfg(g->o.target);
	int n_pages = g->o.kv_tokens / PAGE_TOK;
	g->kv = (struct kv_pool){.n_layer = c->n_layer, .n_kv = c->n_kv, .d = c->hd, .page_tok = PAGE_TOK, .n_pages = n_pages,
				 .type = g->o.f32_kv ? DT_F32 : DT_BF16};
	int r = g->o.dev->ops->kv_new(g->o.dev, &g->kv);
	if (r) {
		g->kv = (struct kv_pool){0};
		return errtext_set(e, r, "no memory for keys and values of %d tokens: lower kv_tokens", g->o.kv_tokens);
	}
	r = pages_init(&g->pages, n_pages);
	if (!r)
		r = prefix_init(&g->prefix, &g->pages);
	if (!r)
		r = told_init(&g->told, 8 * (size_t)n_pages);
	if (!r && g->o.tap && g->o.prefix != PREFIX_OFF)
		r = keep_init(&g->keep, n_pages * PAGE_TOK, N_BOUNDARIES * g->H, tap_wants_hidden(g->o.tap) ? g->H : 0);
	if (!r)
		r = alloc_arrays(g);
	if (r)
		return errtext_set(e, r, "no memory for the engine's arrays");
	r = -pthread_create(&g->thread, NULL, engine_main, g);
	if (r)
		return errtext_set(e, r, "the engine's thread cannot be started: %s", strerror(-r));
	g->started = true;
	return 0;
}

int engine_new(const struct engine_options *o, struct engine **ret, struct errtext *e)
{
	int r = check(o, e);
	if (r)
		return r;
	struct engine *g = calloc(1, sizeof *g);
	if (!g)
		return -ENOMEM;
	g->o = *o;
	g->V = llama_cfg(o->target)->V;
	g->H = llama_cfg(o->target)->H;
	g->max_piece = (o->draft_nodes > ENGINE_MAX_K ? o->draft_nodes : ENGINE_MAX_K) + 1;
	g->max_rows = o->max_seqs * g->max_piece + o->prefill_chunk;
	g->max_rows = g->max_rows > SESSION_PENDING ? g->max_rows : SESSION_PENDING; /* rebuilding goes page by page, or what was kept at once */
	g->budget.slowdown = o->slowdown > 0 ? o->slowdown : 2;
	controller_init(&g->ctl, o->draft_mode, o->draft_k, o->draft_nodes);
	atomic_init(&g->draft_k, o->draft_k);
	atomic_init(&g->draft_mode, (int)o->draft_mode);
	g->waiting_tail = &g->waiting;
	g->cmds_tail = &g->cmds;
	g->slots.live = g->slots.previous = g->slots.canary = -1;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->wake, NULL);
	pthread_cond_init(&g->answered, NULL);
	r = start(g, e);
	if (r) {
		engine_free(g);
		return r;
	}
	*ret = g;
	return 0;
}

struct engine *engine_free(struct engine *g)
{
	if (!g)
		return NULL;
	if (g->started) {
		pthread_mutex_lock(&g->lock);
		g->stop = true;
		pthread_cond_signal(&g->wake);
		pthread_mutex_unlock(&g->lock);
		pthread_join(g->thread, NULL);
	}
	struct dev *d = g->o.dev;
	real *const arrays[] = {g->pending, g->fb, g->fb_out, g->chain[0], g->chain[1]};
	slots_done(&g->slots, d);
	reads_free(g);
	words_free(g);
	for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
		d->ops->free(d, arrays[i]);
	if (g->kv.n_pages)
		d->ops->kv_free(d, &g->kv);
	keep_done(&g->keep);
	told_done(&g->told);
	prefix_done(&g->prefix);
	pages_done(&g->pages);
	sampler_free(g->sampler);
	rows_free(&g->tb);
	rows_free(&g->db);
	free(g->cap_ids);
	free(g->cap_val);
	pthread_cond_destroy(&g->wake);
	pthread_cond_destroy(&g->answered);
	pthread_mutex_destroy(&g->lock);
	free(g);
	return NULL;
}

/* ---- commands: handed to the engine, answered at a round boundary ---- */

static int command(struct engine *g, struct cmd *c)
{
	pthread_mutex_lock(&g->lock);
	if (g->stop) {
		pthread_mutex_unlock(&g->lock);
		return errtext_set(c->e, -ECANCELED, "the engine is stopping");
	}
	*g->cmds_tail = c;
	g->cmds_tail = &c->next;
	pthread_cond_signal(&g->wake);
	while (!c->done)
		pthread_cond_wait(&g->answered, &g->lock);
	pthread_mutex_unlock(&g->lock);
	return c->result;
}

static int reserve(struct engine *g, uint32_t version, char ret_sha[static 65], struct errtext *e)
{
	pthread_mutex_lock(&g->lock);
	int i = slots_reserve(&g->slots, version);
	if (i == -EEXIST)
		memcpy(ret_sha, g->slots.s[slots_find(&g->slots, version)].sha, 65);
	pthread_mutex_unlock(&g->lock);
	if (i == -EBUSY)
		return errtext_set(e, i, "version %u is being loaded", version);
	if (i == -ENOSPC)
		return errtext_set(e, i, "all %d slots hold a draft: unload one first", N_SLOTS);
	return i;
}

static int load_into(struct engine *g, int slot, const struct slot_spec *spec, const char *dir, char ret_sha[static 65], struct errtext *e)
{
	char sha[65];
	struct slot_load l;
	int r = slot_read(spec, dir, &l, e);
	if (r)
		return r;
	memcpy(sha, l.sha, sizeof sha);
	r = command(g, &(struct cmd){.kind = CMD_INSTALL, .slot = slot, .load = &l, .e = e});
	slot_read_done(&l);
	if (!r)
		memcpy(ret_sha, sha, sizeof sha);
	return r;
}

int engine_load(struct engine *g, uint32_t version, const char *dir, char ret_sha[static 65], struct errtext *e)
{
	const struct llama_config *c = llama_cfg(g->o.target);
	struct slot_spec spec = {.dev = g->o.dev, .embedding = llama_embedding(g->o.target), .n_target_layers = c->n_layer,
				 .boundaries = c->boundaries, .type = g->o.f32_kv ? DT_F32 : DT_BF16, .M = g->max_rows,
				 .n = g->o.max_seqs * TREE_WIDTH};
	if (!version)
		return errtext_set(e, -EINVAL, "version 0 means no draft: it cannot be loaded");
	int i = reserve(g, version, ret_sha, e);
	if (i < 0)
		return i == -EEXIST ? 0 : i;
	int r = load_into(g, i, &spec, dir, ret_sha, e);
	if (r == -ENOMEM && command(g, &(struct cmd){.kind = CMD_TRIM, .e = e}) == 0) /* what unloaded ones left may be what is lacking */
		r = load_into(g, i, &spec, dir, ret_sha, e);
	if (r) {
		pthread_mutex_lock(&g->lock);
		slots_abandon(&g->slots, i);
		pthread_mutex_unlock(&g->lock);
	}
	return r;
}

int engine_activate(struct engine *g, uint32_t version, bool move_all, uint32_t deadline_ms, struct errtext *e)
{
	struct cmd c = {.kind = CMD_ACTIVATE, .version = version, .move_all = move_all, .deadline_ms = deadline_ms, .e = e};
	return command(g, &c);
}

int engine_canary(struct engine *g, uint32_t version, uint32_t permille, const char *salt, struct errtext *e)
{
	struct cmd c = {.kind = CMD_CANARY, .version = version, .permille = permille, .salt = salt, .e = e};
	return command(g, &c);
}

int engine_unload(struct engine *g, uint32_t version, struct errtext *e)
{
	struct cmd c = {.kind = CMD_UNLOAD, .version = version, .e = e};
	return command(g, &c);
}

/* ---- numbers ---- */

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

void engine_status(struct engine *g, struct engine_status *ret)
{
	enum { RECENT = 128 };
	float ms[ENGINE_RING], recent[RECENT] = {0};
	pthread_mutex_lock(&g->lock);
	struct engine_status s = g->pub;
	s.running = g->n_active;
	s.waiting = g->n_waiting + g->n_resting;
	s.live = g->slots.live < 0 ? 0 : g->slots.s[g->slots.live].version;
	s.previous = g->slots.previous < 0 ? 0 : g->slots.s[g->slots.previous].version;
	s.canary = g->slots.canary < 0 ? 0 : g->slots.s[g->slots.canary].version;
	s.permille = g->slots.permille;
	memcpy(s.salt, g->slots.salt, sizeof s.salt);
	for (int i = 0; i < N_SLOTS; i++) {
		const struct slot *sl = &g->slots.s[i];
		s.slots[i].version = sl->version;
		snprintf(s.slots[i].state, sizeof s.slots[i].state, "%s", slot_state_name(&g->slots, i, s.slots[i].requests));
		memcpy(s.slots[i].weights_sha, sl->sha, sizeof s.slots[i].weights_sha);
	}
	unsigned n = g->ring_n < ENGINE_RING ? g->ring_n : ENGINE_RING;
	memcpy(ms, g->ring_ms, n * sizeof *ms);
	unsigned n_recent = n < RECENT ? n : RECENT;
	for (unsigned i = 0; i < n_recent; i++)
		recent[i] = g->ring_ms[(g->ring_n - 1 - i) % ENGINE_RING];
	s.max_gap_ms = 0;
	for (unsigned i = 0; i < n; i++)
		s.max_gap_ms = g->ring_gap[i] > s.max_gap_ms ? (double)g->ring_gap[i] : s.max_gap_ms;
	pthread_mutex_unlock(&g->lock);
	s.draft_k = atomic_load(&g->draft_k);
	qsort(ms, n, sizeof *ms, by_value);
	s.round_ms_p50 = n ? (double)ms[n / 2] : 0;
	s.round_ms_p95 = n ? (double)ms[n * 95 / 100] : 0;
	qsort(recent, n_recent, sizeof *recent, by_value);
	s.recent_ms_p95 = n_recent ? (double)recent[n_recent * 95 / 100] : 0;
	*ret = s;
}
