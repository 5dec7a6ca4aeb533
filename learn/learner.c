/* The state machine (learn/learner.h): applying entries, from the first one on. What a step trains: learner_step.c. */
#include "learn/learner.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "learn/init.h"
#include "learn/pinned.h"
#include "learn/purge.h"

/* ---- the draft comes and goes ---- */

/* Token ids of a text file, any white space between them, added to the counts (dry: only checked). */
static int count_file(struct learner *l, const char *path, bool dry, struct errtext *e)
{
	char *text = NULL, *end;
	int r = fs_read_text(path, 256u << 20, &text);
	if (r)
		return errtext_set(e, -EINVAL, "init.vocab_from %.150s: %s", path, fs_text_why(r));
	const char *s = text;
	for (;;) {
		s += strspn(s, " \t\r\n,");
		if (!*s)
			break;
		unsigned long id = strtoul(s, &end, 10);
		if (end == s || id >= (unsigned long)l->fz->V) {
			r = errtext_set(e, -EINVAL, "init.vocab_from: \"%.*s\" is no token id below %d", (int)strcspn(s, " \t\r\n,"), s, l->fz->V);
			break;
		}
		l->counts[id] += !dry;
		l->counted += !dry;
		s = end;
	}
	free(text);
	return r;
}

static int apply_init(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	struct draft_config c;
	struct eagle3_config ec;
	int r = frozen_draft_config(l->fz, l->o.draft_vocab, &c, e);
	if (!r && *x->text)
		r = count_file(l, x->text, false, e);
	if (r)
		return r;
	draft_eagle3_config(&c, &ec);
	int64_t *d2t = malloc((size_t)ec.V_d * sizeof *d2t);
	real *w = malloc(draft_params(&ec) * sizeof *w);
	r = d2t && w ? draft_vocab_from_counts(l->counts, l->fz->V, ec.V_d, d2t) : -ENOMEM;
	if (!r) {
		l->fresh = true;
		draft_init_warm(&ec, d2t, l->fz->head, NULL, l->o.seed, w); /* the target's last norm starts overconfident: loss 34 against 27 after 3k tokens */
		r = learner_set_draft(l, &c, d2t, w, NULL, e);
	}
	l->base = 0;
	l->anchored = false;
	free(d2t);
	free(w);
	return r;
}

static int apply_rebase(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	struct draft d = {0};
	int r = publish_read_version(l->o.store, x->version, l->fz, &d, e);
	if (r)
		return r;
	if (*x->text && strcmp(x->text, d.weights_sha) != 0)
		r = errtext_set(e, -EINVAL, "version %u in the store is not the one the journal names", x->version);
	if (!r) {
		l->fresh = false;
		r = learner_set_draft(l, &d.file, d.d2t, d.w, NULL, e);
	}
	if (!r) {
		l->base = x->version;
		l->anchored = true;
		l->pending.left = *l->pending.name;
	}
	draft_done(&d);
	return r;
}

json_t *learner_cut(const struct learner *l)
{
	json_t *parts = json_object();
	for (int p = 0; p < l->n_parts; p++) {
		char key[16];
		(void)snprintf(key, sizeof key, "%d", p);
		(void)json_object_set_new(parts, key, json_integer((json_int_t)l->at[p].next));
	}
	return json_pack("{s:s,s:o}", "cluster", l->cluster, "partitions", parts);
}

static void no_candidate(struct learner *l)
{
	json_decref(l->pending.cut);
	memset(&l->pending, 0, sizeof l->pending);
	l->turned_away = 0;
}

void learner_release(struct learner *l)
{
	pinned_draw(l);
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_HELD_OUT)
			l->runs.v[i].state = RUN_QUEUED;
	no_candidate(l);
}

/* An entry repeated after a crash: the candidate's folder may be there, whole, since submit.json is written last. */
static bool find_candidate(struct learner *l)
{
	char path[PATH_MAX + 16], *text = NULL;
	if (publish_path(l->o.store, l->pending.name, path, PATH_MAX))
		return false;
	strcat(path, "/submit.json");
	json_t *j = fs_read_text(path, 1 << 20, &text) ? NULL : json_loads(text, 0, NULL);
	const char *sha = json_string_value(json_object_get(j, "weights_sha"));
	bool there = sha && strlen(sha) == sizeof l->pending.sha - 1;
	if (there)
		memcpy(l->pending.sha, sha, sizeof l->pending.sha);
	json_decref(j);
	free(text);
	return there;
}

/* Its folder, where it is still ours: what has a number is the store's. */
static void drop_candidate(struct learner *l)
{
	if (*l->pending.name && !l->pending.version && !l->o.follow)
		publish_remove(l->o.store, l->pending.name);
}

/* Have the candidate written, and remember where we stand: what closes from here on is kept to judge it by.
 * A store that cannot be written changes nothing of that: the state may not depend on it. */
static int apply_publish(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	size_t len = strlen(x->text);
	if (!l->t || len >= sizeof l->pending.name || strchr(x->text, '/'))
		return errtext_set(e, -EINVAL, "journal: publish without a draft, or a bad name");
	json_t *cut = learner_cut(l);
	if (!cut)
		return -ENOMEM;
	learner_candidate_wait(l); /* a repeat may be here before the last one is written */
	drop_candidate(l); /* one without a number gives way, by this entry and no other: an end between two could lose both */
	learner_release(l);
	memcpy(l->pending.name, x->text, len + 1);
	l->pending.cut = cut;
	l->published_step = l->step;
	if (!l->o.follow && !(l->repeating && find_candidate(l)))
		learner_candidate_begin(l);
	return 0;
}

static int apply_verdict(struct learner *l, const struct journal_entry *x)
{
	bool waited = l->pending.version == x->version && *l->pending.name, ours = waited && !l->pending.left;
	if (waited)
		learner_release(l);
	bool good = strncmp(x->text, "accepted", 8) == 0 || strcmp(x->text, "live") == 0; /* live: the verdict was lost, the store knew it */
	if (ours && l->anchor && good) { /* what is good enough to serve is not to be forgotten from now on */
		const real *w = learner_draft(l);
		if (!w)
			return -ENOMEM;
		memcpy(l->anchor, w, l->o.kind->n_params(l->t) * sizeof *w);
		l->anchored = true;
	}
	bool quarantined = strncmp(x->text, "quarantined", 11) == 0;
	rules_verdict(&l->rules, x->version, quarantined);
	if (quarantined)
		pinned_quarantine(l, x->version);
	return 0;
}

/* ---- entries ---- */

int learner_apply(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	if (l->o.beats)
		++*l->o.beats;
	switch (x->kind) {
	case J_CONFIG:
		return learner_set_config(l, x->text, e);
	case J_TAKE:
		return learner_repeat_take(l, x, &l->taken, e);
	case J_GAP: {
		int r = x->partition < 0 ? -EINVAL : learner_cursors(l, x->partition + 1);
		if (r)
			return r;
		struct cursor *c = &l->at[x->partition];
		l->n.offset_gaps++;
		l->n.lost += x->to > c->next ? (uint64_t)(x->to - c->next) : 0;
		if (x->to < c->next)
			c->n_seen = 0; /* another log under the same name: its producers count anew */
		c->next = x->to;
		c->last_offset = c->mark.offset = -1;
		return 0;
	}
	case J_INIT:
		return apply_init(l, x, e);
	case J_REBASE:
		return apply_rebase(l, x, e);
	case J_STEP:
		return learner_apply_step(l, x, e);
	case J_PUBLISH:
		return apply_publish(l, x, e);
	case J_SUBMITTED:
		l->pending.version = x->version;
		if (!l->pending.left) /* a Rebase that overtook the answer to Submit */
			l->base = x->version;
		learner_candidate_wait(l);
		if (l->repeating && !l->o.follow)
			publish_remove(l->o.store, l->pending.name); /* written again by the entry before */
		return 0;
	case J_WITHDRAW:
		learner_candidate_wait(l);
		drop_candidate(l);
		learner_release(l);
		return 0;
	case J_VERDICT:
		return apply_verdict(l, x);
	case J_PAUSE:
	case J_RESUME:
		l->paused = x->kind == J_PAUSE;
		return 0;
	case J_DRIFT:
		l->drift = x->number;
		return 0;
	case J_EXPIRE:
		l->n.out[OUT_EXPIRED] += (uint64_t)runs_drop(&l->runs, run_older, x->number);
		join_drop(&l->join, run_older, x->number);
		return 0;
	case J_PURGE:
		purge_index(l, x->text);
		return 0;
	default:
		return errtext_set(e, -EINVAL, "journal: entry of kind %d", (int)x->kind);
	}
}

int learner_do(struct learner *l, const struct journal_entry *x, struct errtext *e)
{
	int r = journal_append(l->journal, x);
	if (r == -E2BIG) { /* the unwritten tail is full */
		r = journal_sync(l->journal);
		if (!r)
			r = journal_append(l->journal, x);
	}
	if (!r)
		r = journal_sync(l->journal);
	if (r)
		return errtext_set(e, r, "journal: %s", strerror(-r));
	r = learner_apply(l, x, e);
	if (r < 0 && e && !*e->text)
		(void)errtext_set(e, r, "%s: %s", journal_word(x->kind), strerror(-r));
	return r;
}

int learner_step(struct learner *l, struct errtext *e)
{
	struct journal_entry x = {.kind = J_STEP, .number = l->step};
	int r = learner_do(l, &x, e);
	fs_crash_point("step-done");
	return r;
}

int learner_expire(struct learner *l, int64_t before_s, struct errtext *e)
{
	struct journal_entry x = {.kind = J_EXPIRE, .number = before_s};
	uint64_t n;
	int r = learner_do(l, &x, e);
	for (int i = 0; i < 2 && !r; i++) /* two checkpoints are kept, and neither may need what goes */
		r = learner_checkpoint(l, e);
	if (!r && (r = pool_erase_older(l->pool, before_s, &n)))
		r = errtext_set(e, r, "pool: %s", strerror(-r));
	return r;
}

int learner_rebase(struct learner *l, uint32_t n, struct errtext *e)
{
	struct journal_entry x = {.kind = J_REBASE, .version = n};
	struct draft d = {0};
	int r = publish_read_version(l->o.store, n, l->fz, &d, e);
	if (r == -ENOMEM || r == -ENOENT)
		return r;
	if (r) /* whatever it is, it is that version's, and the learner can do without it */
		return *e->text ? -EINVAL : errtext_set(e, -EINVAL, "version %u cannot be read: %s", n, strerror(-r));
	memcpy(x.text, d.weights_sha, sizeof d.weights_sha);
	draft_done(&d);
	r = learner_do(l, &x, e);
	return r ? r : learner_checkpoint(l, e); /* the store may forget that version, the checkpoint not */
}

int learner_begin(struct learner *l, const char *vocab_from, bool *ret_done, struct errtext *e)
{
	struct journal_entry x = {.kind = J_INIT};
	uint32_t newest = l->t || vocab_from ? 0 : publish_newest(l->o.store);
	int r = 0;
	*ret_done = false;
	if (l->t)
		return 0;
	if (newest)
		r = learner_rebase(l, newest, e);
	else if (vocab_from || (l->o.auto_init && l->counted >= l->o.init_min_tokens)) {
		struct draft_config c; /* what would fail must not be journalled */
		(void)snprintf(x.text, sizeof x.text, "%.500s", vocab_from ? vocab_from : "");
		r = frozen_draft_config(l->fz, l->o.draft_vocab, &c, e);
		if (!r && *x.text)
			r = count_file(l, x.text, true, e);
		if (!r)
			r = learner_do(l, &x, e);
		if (!r)
			r = learner_checkpoint(l, e);
	}
	*ret_done = l->t;
	return r;
}

/* ---- opening ---- */

/* Entries from byte `at` on, applied again. *ret_bad: where it could not go on for lack of records. */
static int repeat(struct learner *l, int64_t at, int64_t *ret_bad, struct errtext *e)
{
	struct journal_entry x;
	int64_t next = 0;
	int r;
	l->repeating = true;
	while (!(r = journal_read(l->journal, at, &x, &next)) && !(r = learner_apply(l, &x, e)))
		at = next;
	l->repeating = false;
	*ret_bad = at;
	return r == JOURNAL_E_END ? 0 : r;
}

/* Records of the journal are gone: keep what could be repeated, and journal that much. */
static int go_on_inexactly(struct learner *l, int64_t at, struct errtext *e)
{
	struct journal_entry x;
	int64_t next;
	int r = journal_read(l->journal, at, &x, &next);
	if (!r)
		r = journal_cut(l->journal, at);
	x.count = l->taken;
	if (!r && x.count)
		r = journal_append(l->journal, &x);
	if (!r)
		r = journal_sync(l->journal);
	l->n.inexact++;
	return r ? errtext_set(e, r, "journal: %s", strerror(-r)) : LEARNER_E_INEXACT;
}

static int open_parts(struct learner *l, struct errtext *e)
{
	char path[PATH_MAX];
	struct pool_options po = {.dir = path, .segment_bytes = l->o.segment_bytes, .max_bytes = l->o.pool_bytes, .beats = l->o.beats};
	join_init(&l->join, learner_run_closed, l);
	l->counts = calloc((size_t)l->fz->V, sizeof *l->counts);
	int r = l->counts ? fs_mkdirs(l->o.state_dir) : -ENOMEM;
	if (r)
		return errtext_set(e, r, "state_dir %.150s: %s", l->o.state_dir, strerror(-r));
	r = snprintf(path, sizeof path, "%s/pool", l->o.state_dir) < (int)sizeof path ? pool_open(&po, &l->pool, e) : -ENAMETOOLONG;
	if (!r)
		r = batcher_init(&l->batcher, l->d, l->fz, l->o.prompt_rows, e);
	l->batcher.whole_teacher = l->o.whole_teacher;
	if (!r)
		r = snprintf(path, sizeof path, "%s/journal", l->o.state_dir) < (int)sizeof path ? journal_open(path, false, l->o.beats, &l->journal, e) : -ENAMETOOLONG;
	return r;
}

static int repeated_elsewhere(struct learner *l, const char *taken_on, struct errtext *e)
{
	l->n.inexact++;
	return errtext_set(e, LEARNER_E_INEXACT, "%" PRId64 " steps of the journal were taken on %s and repeated on %s, which rounds otherwise", l->elsewhere,
			   *taken_on ? taken_on : "a device that it does not name", l->device);
}

/* The options of this start, when they are not the journalled ones. */
static int enter_config(struct learner *l, const struct learner_options *now, struct errtext *e)
{
	struct journal_entry x = {.kind = J_CONFIG};
	int r = learner_print_config(now, x.text, sizeof x.text);
	if (r || strcmp(x.text, l->config) == 0)
		return r;
	return learner_do(l, &x, e);
}

int learner_open(const struct learner_options *o, struct dev *d, struct source *src, const struct frozen *fz, struct learner **ret, struct errtext *e)
{
	struct learner *l = calloc(1, sizeof *l);
	struct learner_options now = *o;
	int64_t at = 0;
	if (!l)
		return -ENOMEM;
	trainer_name_device(d, l->device);
	memcpy(now.device, l->device, sizeof now.device);
	l->o = now;
	l->saved.step = l->candidate.step = -1;
	l->d = d;
	l->src = src;
	l->fz = fz;
	int r = open_parts(l, e), inexact = 0;
	if (!r)
		r = learner_restore(l, &at, e);
	if (!r && at > journal_end(l->journal))
		r = errtext_set(e, -EINVAL, "the journal in %.150s ends before its checkpoint: use another state_dir", o->state_dir);
	if (!r)
		r = repeat(l, at, &at, e);
	if (r == -ENODATA) {
		inexact = go_on_inexactly(l, at, e);
		r = inexact < 0 ? inexact : 0;
	}
	if (!r && !inexact && l->elsewhere)
		inexact = repeated_elsewhere(l, l->o.device, e);
	learner_look_back(l);
	if (!r && !o->follow)
		r = enter_config(l, &now, e);
	if (r) {
		if (e && !*e->text)
			(void)errtext_set(e, r, "state_dir %.150s: %s", o->state_dir, strerror(-r));
		learner_close(l);
		return r;
	}
	*ret = l;
	return inexact;
}

struct learner *learner_close(struct learner *l)
{
	if (!l)
		return NULL;
	learner_write_leave(l);
	if (l->o.kind)
		l->o.kind->free(l->t);
	json_decref(l->pending.cut);
	free(l->d2t);
	free(l->average);
	free(l->anchor);
	batcher_done(&l->batcher);
	join_done(&l->join);
	runs_done(&l->runs);
	pool_close(l->pool);
	journal_close(l->journal);
	free(l->at);
	free(l->counts);
	free(l->replayed);
	free(l);
	return NULL;
}

int learner_follow(struct learner *l, const char *path, void (*each)(void *arg, struct learner *l), void *arg, struct errtext *e)
{
	struct journal *j = NULL;
	struct journal_entry x;
	int64_t at = 0, next = 0;
	int r = journal_open(path, true, l->o.beats, &j, e);
	l->repeating = true;
	while (!r && !(r = journal_read(j, at, &x, &next)) && !(r = learner_apply(l, &x, e))) {
		at = next;
		if (each && x.kind == J_STEP)
			each(arg, l);
		if (l->o.stop && *l->o.stop)
			r = -EINTR;
	}
	l->repeating = false;
	journal_close(j);
	return r == JOURNAL_E_END ? 0 : r;
}
