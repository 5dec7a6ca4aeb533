/* A learner in a toy world (toyworld.h): a store, a log, options that make everything happen soon, and what redraftd and the
 * worker do to it. */
#pragma once
#include "tests/unit/learn/toyworld.h"
#include "learn/learner.h"

struct world {
	char dir[256], store[300];
	struct frozen fz;
	struct tw_source src;
	bool muon; /* and averaged weights, and several runs a step */
	int ranks, groups; /* that share each step, as so many groups (0 = 1); 0: one process as ever */
};

static inline void world_init(struct world *w, int requests)
{
	struct errtext e = {""};
	memset(w, 0, sizeof *w);
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, "", &w->fz, &e), 0);
	tw_source_init(&w->src);
	tw_script(&w->src, requests, 4242);
	w->src.visible = w->src.n;
}

static inline void world_done(struct world *w)
{
	frozen_close(&w->fz);
	tw_source_done(&w->src);
	assert_int_equal(fs_remove_tree(w->dir), 0);
}

static inline struct learner_options options(const struct world *w, const char *state)
{
	return (struct learner_options){
		.state_dir = state, .store = w->store, .kind = &trainer_eagle3, .seed = 99,
		.train = {.ttt_steps = 3, .decay = (real)0.8, .optimizer = w->muon ? OPT_MUON : OPT_ADAMW, .muon_iters = 3, .lr = (real)1e-3, .muon_lr = (real)0.02, .first = w->muon ? 3 : 0, .beta1 = (real)0.9,
			  .beta2 = (real)0.999, .eps = (real)1e-8, .clip = (real)0.5, .muon_momentum = (real)0.95, .warmup_steps = 5},
		.draft_vocab = 48, .max_rows = w->muon ? 72 : 24, .pack_rows = w->muon ? 72 : 0, .max_epochs = 2, .queue_max = 6, .heldout_max = 4, .heldout_domain_max = 3, .heldout_pinned = 2,
		.prompt_rows = true, .auto_init = true, .replay_share = 0.3, .init_min_tokens = 150, .pool_bytes = 220000, .segment_bytes = 40000,
		.replay_wait_ms = 1, .history_rows = 16, .dedup = true, .ema = w->muon ? 0.9 : 0, .anchor = w->muon ? 0.01 : 0, .max_scale = 8, .tenant_share = 1,
		.tenant_window = 1000, .request_rows = 100000, .spike = 3,
	};
}

static inline struct learner *open_ok(const struct learner_options *o, struct dev *d, struct world *w, int want)
{
	struct learner *l = NULL;
	struct errtext e = {""};
	int r = learner_open(o, d, w ? &w->src.base : NULL, &w->fz, &l, &e);
	if (r != want)
		print_message("learner_open: %d %s\n", r, e.text);
	assert_int_equal(r, want);
	return l;
}

/* A version as the daemon would have numbered it: manifest in place, then the folder renamed (who calls it may be killed). */
static inline uint32_t accept_candidate(struct world *w, const char *name, uint32_t n)
{
	char from[512], to[512], versions[400];
	struct errtext e = {""};
	struct manifest m = {.number = n};
	(void)snprintf(from, sizeof from, "%s/incoming/%s", w->store, name);
	(void)snprintf(versions, sizeof versions, "%s/versions", w->store);
	(void)snprintf(to, sizeof to, "%s/%u", versions, n);
	assert_int_equal(fs_mkdirs(versions), 0);
	if (access(from, F_OK))
		return n;
	memcpy(m.target_fp, TW_FP, 65);
	memcpy(m.draft_fp, TW_FP, 65);
	memcpy(m.weights_sha, TW_FP, 65);
	memcpy(m.model_sha, TW_FP, 65);
	memcpy(m.config_sha, TW_FP, 65);
	(void)snprintf(m.created, sizeof m.created, "2026-01-01T00:00:00.000Z");
	assert_int_equal(manifest_write(from, &m, &e), 0);
	(void)!rename(from, to); /* there already: numbered in an earlier life, and written again by the journal's repeat */
	return n;
}

/* Who is pinned, as one number. */
static inline uint64_t pinned_members(const struct learner *l)
{
	uint64_t h = RUN_HASH;
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_PINNED)
			h = run_hash(h, &l->runs.v[i].id, sizeof l->runs.v[i].id);
	return h;
}

static inline int entry_or(struct learner *l, enum journal_kind kind, uint32_t version, const char *text, struct errtext *e)
{
	struct journal_entry x = {.kind = kind, .version = version, .number = 1};
	(void)snprintf(x.text, sizeof x.text, "%s", text);
	return learner_do(l, &x, e);
}

static inline int entry(struct learner *l, enum journal_kind kind, uint32_t version, const char *text)
{
	struct errtext e = {""};
	int r = entry_or(l, kind, version, text, &e);
	if (r)
		print_message("entry: %d %s\n", r, e.text);
	return r;
}

/* A candidate, whose folder is there. */
static inline void publish(struct learner *l)
{
	struct errtext e = {""};
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(learner_write_end(l, true, &e), 0);
	assert_true(*l->pending.name && *l->pending.sha);
}

/* Entries of a kind in the journal. */
static inline int entries(const char *state_dir, enum journal_kind kind)
{
	char path[400];
	struct journal *j = NULL;
	struct journal_entry x;
	struct errtext e = {""};
	int64_t at = 0;
	int n = 0;
	(void)snprintf(path, sizeof path, "%s/journal", state_dir);
	assert_int_equal(journal_open(path, true, NULL, &j, &e), 0);
	while (!journal_read(j, at, &x, &at))
		n += x.kind == kind;
	journal_close(j);
	return n;
}
