/* The table of resident drafts and of draft families.
 *
 * All versions share one KV pool, because a running request that is moved keeps
 * its draft KV. The pool is made for the first version and remade only
 * while no version is resident (then no request has draft KV either).
 */
#include <string.h>
#include "serve/slots.h"

/* The families. A version folder is read by the first; there is one so far. */
static const struct draft_kind *const kinds[] = {&draft_eagle3};

int slots_find(const struct slots *t, uint32_t version)
{
	for (int i = 0; i < N_SLOTS; i++)
		if (t->s[i].state != SLOT_EMPTY && t->s[i].version == version)
			return i;
	return -1;
}

int slots_reserve(struct slots *t, uint32_t version)
{
	int i = slots_find(t, version);
	if (i >= 0)
		return t->s[i].state == SLOT_LOADING ? -EBUSY : -EEXIST;
	for (i = 0; i < N_SLOTS; i++)
		if (t->s[i].state == SLOT_EMPTY) {
			t->s[i] = (struct slot){.state = SLOT_LOADING, .version = version};
			return i;
		}
	return -ENOSPC;
}

void slots_abandon(struct slots *t, int i)
{
	t->s[i] = (struct slot){0};
}

int slot_read(const struct slot_spec *spec, const char *dir, struct slot_load *ret, struct errtext *e)
{
	struct slot_load l = {.kind = kinds[0]};
	int r = dev_again(spec->dev, &l.d);
	if (r)
		return errtext_set(e, r, "no device to load a draft on");
	r = l.kind->load(l.d, dir, spec->embedding, spec->n_target_layers, spec->boundaries, spec->type, &l.x, e);
	if (!r)
		r = l.kind->weights_sha(l.x, l.sha);
	if (!r)
		r = l.kind->warm(l.x, spec->M, spec->n);
	if (!r)
		r = l.d->ops->sync(l.d); /* what it holds is used, and may be freed, on the engine's stream from here on */
	if (r) {
		slot_read_done(&l);
		if (e && !e->text[0])
			errtext_set(e, r, "draft in %s: %s", dir, strerror(-r));
		return r;
	}
	*ret = l;
	return 0;
}

void slot_read_done(struct slot_load *l)
{
	if (l->x)
		l->kind->free(l->x);
	if (l->d)
		dev_free(l->d);
	*l = (struct slot_load){0};
}

static bool any_ready(const struct slots *t)
{
	for (int i = 0; i < N_SLOTS; i++)
		if (t->s[i].state == SLOT_READY)
			return true;
	return false;
}

static int fit_pool(struct slots *t, const struct slot_load *l, struct dev *d, struct kv_pool want, struct errtext *e)
{
	int r = l->kind->kv_shape(l->x, &want);
	struct kv_pool *have = &t->kv;
	if (r)
		return r;
	if (have->n_pages && have->n_layer == want.n_layer && have->n_kv == want.n_kv && have->d == want.d)
		return 0;
	if (have->n_pages && any_ready(t))
		return errtext_set(e, -EINVAL, "draft has %d layer(s) of %d key/value heads x %d, the resident ones have %d of %d x %d: unload them first",
				   want.n_layer, want.n_kv, want.d, have->n_layer, have->n_kv, have->d);
	if (have->n_pages)
		d->ops->kv_free(d, have);
	*have = (struct kv_pool){0};
	r = d->ops->kv_new(d, &want);
	if (r)
		return errtext_set(e, r, "no memory for the draft's keys and values");
	*have = want;
	return 0;
}

/* The weights in the place where the slot's last ones lay, if they fit there; else where they are. */
static struct draft *settle(struct slots *t, int i, const struct slot_load *l)
{
	struct draft *old = t->spare[i].x;
	const struct draft_kind *kind = t->spare[i].kind;
	t->spare[i].x = NULL;
	if (!old)
		return l->x;
	bool there = kind == l->kind && kind->adopt(old, l->x) == 0;
	kind->free(there ? l->x : old);
	return there ? old : l->x;
}

int slots_install(struct slots *t, int i, struct slot_load *l, struct dev *d, int n_pages, int page_tok, enum dtype kv_type, struct errtext *e)
{
	struct kv_pool want = {.n_pages = n_pages, .page_tok = page_tok, .type = kv_type};
	int r = fit_pool(t, l, d, want, e);
	if (r)
		return r;
	l->kind->bind(l->x, d);
	struct slot *s = &t->s[i];
	s->kind = l->kind;
	s->x = settle(t, i, l);
	memcpy(s->sha, l->sha, sizeof s->sha);
	s->requests = 0;
	s->state = SLOT_READY;
	l->x = NULL;
	return 0;
}

int slots_arm(const struct slots *t, const char *conversation, const char *request)
{
	return t->canary >= 0 && arm_is_canary(t->salt, t->permille, conversation, request) ? t->canary : t->live;
}

void slots_canary(struct slots *t, int i, uint32_t permille, const char *salt)
{
	t->canary = permille ? i : -1;
	t->permille = t->canary < 0 ? 0 : permille;
	(void)snprintf(t->salt, sizeof t->salt, "%s", t->canary < 0 ? "" : salt);
}

void slots_activate(struct slots *t, int i, bool back)
{
	slots_canary(t, -1, 0, "");
	if (i == t->live)
		return;
	t->previous = back ? -1 : t->live;
	t->live = i;
}

int slots_unload(struct slots *t, uint32_t version, bool keep, struct errtext *e)
{
	int i = slots_find(t, version);
	if (i < 0 || t->s[i].state != SLOT_READY)
		return errtext_set(e, -ENOENT, "version %u is not loaded", version);
	if (i == t->live)
		return errtext_set(e, -EBUSY, "version %u is live", version);
	if (i == t->canary)
		return errtext_set(e, -EBUSY, "version %u is on canary", version);
	if (t->s[i].requests)
		return errtext_set(e, -EBUSY, "version %u still drafts for %d request(s)", version, t->s[i].requests);
	if (keep) {
		t->spare[i].kind = t->s[i].kind;
		t->spare[i].x = t->s[i].x;
	} else
		t->s[i].kind->free(t->s[i].x);
	t->s[i] = (struct slot){0};
	if (t->previous == i)
		t->previous = -1;
	return 0;
}

void slots_trim(struct slots *t)
{
	for (int i = 0; i < N_SLOTS; i++) {
		if (t->spare[i].x)
			t->spare[i].kind->free(t->spare[i].x);
		t->spare[i].x = NULL;
	}
}

void slots_done(struct slots *t, struct dev *d)
{
	for (int i = 0; i < N_SLOTS; i++)
		if (t->s[i].state == SLOT_READY)
			t->s[i].kind->free(t->s[i].x);
	slots_trim(t);
	if (t->kv.n_pages)
		d->ops->kv_free(d, &t->kv);
	*t = (struct slots){.live = -1, .previous = -1, .canary = -1};
}

const char *slot_state_name(const struct slots *t, int i, int requests)
{
	const struct slot *s = &t->s[i];
	if (s->state == SLOT_EMPTY)
		return "empty";
	if (s->state == SLOT_LOADING)
		return "loading";
	if (i == t->live)
		return "live";
	if (i == t->canary)
		return "canary";
	return requests ? "draining" : "ready";
}
