/* Version folders and the store's one state file.
 *
 * Everything is JSON, written whole by temp + fsync + rename. Readers are
 * strict: a state that does not add up (a live version that is not in the
 * list, two versions with one number) is refused, because rollback depends on it.
 */
#include "schemas/manifest.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fs.h"
#include "schemas/json_reader.h"

enum { FILE_MAX = 4 << 20, VERSIONS_MAX = 100000 };
static const uint64_t GENERATION_MAX = UINT64_C(1) << 53; /* of a state edited by hand: there is room to count on, and any JSON reader can */

static const char *const state_names[VS_N] = {"candidate", "gated", "canary", "live", "previous", "retired", "rejected", "quarantined"};

const char *version_state_name(enum version_state s)
{
	return s < VS_N ? state_names[s] : "?";
}

int version_state_parse(const char *name, enum version_state *ret)
{
	for (int i = 0; name && i < VS_N; i++) {
		if (strcmp(name, state_names[i]) == 0) {
			*ret = (enum version_state)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- paths ---- */

static int PRINTF(3, 4) path_print(char *ret, size_t size, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int n = vsnprintf(ret, size, fmt, ap);
	va_end(ap);
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

int store_version_dir(const char *store, uint32_t n, char *ret, size_t size)
{
	return path_print(ret, size, "%s/versions/%u", store, n);
}

int store_frozen_file(const char *store, const char *target_fp, char *ret, size_t size)
{
	if (!*target_fp || strpbrk(target_fp, "/."))
		return -EINVAL; /* never out of the store */
	return path_print(ret, size, "%s/frozen/%s/frozen.safetensors", store, target_fp);
}

/* ---- reading ---- */

/* A whole JSON object from a file, its schema checked. */
static int load(const char *path, json_t **ret, struct errtext *e)
{
	json_error_t je;
	char *text;
	int r = fs_read_text(path, FILE_MAX, &text);

	if (r < 0)
		return errtext_set(e, fs_text_fault(r), "%.160s: %s", path, fs_text_why(r));
	json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &je);
	free(text);
	if (!json_is_object(o)) {
		r = errtext_set(e, -EINVAL, "%.120s, line %d: %.80s", path, o ? 1 : je.line, o ? "not a JSON object" : je.text);
		json_decref(o);
		return r;
	}
	const json_t *schema = json_object_get(o, "schema");
	if (!json_is_integer(schema) || json_integer_value(schema) != 1) {
		json_decref(o);
		return errtext_set(e, -EINVAL, "%.160s: schema is not 1", path);
	}
	*ret = o;
	return 0;
}

static int save(const char *path, json_t *o, struct errtext *e)
{
	if (!o)
		return errtext_set(e, -EINVAL, "%.160s: a string is not UTF-8", path);
	char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	json_decref(o);
	if (!text)
		return errtext_set(e, -ENOMEM, "out of memory");
	int r = fs_write_atomic(path, text, strlen(text));
	free(text);
	return r < 0 ? errtext_set(e, r, "%.160s: %s", path, strerror(-r)) : 0;
}

/* ---- manifest ---- */

int manifest_read(const char *dir, struct manifest *ret, struct errtext *e)
{
	struct manifest m = {.number = 0};
	char path[PATH_MAX];
	json_t *o;
	int r = path_print(path, sizeof path, "%s/manifest.json", dir);

	if (r == 0)
		r = load(path, &o, e);
	if (r < 0)
		return r;
	struct reader d = {.o = o, .path = path, .e = e};
	m.number = reader_u32(&d, "number");
	m.parent = reader_u32(&d, "parent");
	reader_text(&d, "target_fp", READER_NOT_EMPTY, m.target_fp, sizeof m.target_fp);
	reader_text(&d, "draft_fp", READER_NOT_EMPTY, m.draft_fp, sizeof m.draft_fp);
	reader_text(&d, "weights_sha", READER_NOT_EMPTY, m.weights_sha, sizeof m.weights_sha);
	reader_text(&d, "model_sha", READER_NOT_EMPTY, m.model_sha, sizeof m.model_sha);
	reader_text(&d, "config_sha", READER_NOT_EMPTY, m.config_sha, sizeof m.config_sha);
	reader_text(&d, "created", READER_MAY_BE_ABSENT, m.created, sizeof m.created);
	if (d.rc == 0) {
		m.cut = json_incref(json_object_get(o, "cut"));
		m.training = json_incref(json_object_get(o, "training"));
		*ret = m;
	}
	json_decref(o);
	return d.rc;
}

int manifest_write(const char *dir, const struct manifest *m, struct errtext *e)
{
	char path[PATH_MAX];
	int r = path_print(path, sizeof path, "%s/manifest.json", dir);

	if (r < 0)
		return errtext_set(e, r, "path too long");
	return save(path,
		    json_pack("{s:i, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:O*, s:O*}", "schema", 1, "number", (json_int_t)m->number,
			      "parent", (json_int_t)m->parent, "target_fp", m->target_fp, "draft_fp", m->draft_fp, "weights_sha",
			      m->weights_sha, "model_sha", m->model_sha, "config_sha", m->config_sha, "created", m->created, "cut", m->cut,
			      "training", m->training),
		    e);
}

void manifest_done(struct manifest *m)
{
	json_decref(m->cut);
	json_decref(m->training);
	*m = (struct manifest){.number = 0};
}

/* ---- state ---- */

static const struct version_entry *entry(const struct store_state *s, uint32_t number)
{
	for (int i = 0; i < s->n_versions; i++) {
		if (s->versions[i].number == number)
			return &s->versions[i];
	}
	return NULL;
}

static int check_state(const struct store_state *s, const char *path, struct errtext *e)
{
	const struct {
		const char *name;
		uint32_t number;
	} roles[] = {{"live", s->live}, {"previous", s->previous}, {"base", s->base}, {"pin", s->pin}, {"canary", s->canary.version}};

	for (int i = 1; i < s->n_versions; i++) {
		if (s->versions[i].number <= s->versions[i - 1].number)
			return errtext_set(e, -EINVAL, "%.120s: versions are not in ascending order", path);
	}
	if (s->n_versions && s->versions[s->n_versions - 1].number >= s->next_number)
		return errtext_set(e, -EINVAL, "%.120s: next_number %u is taken", path, s->next_number);
	for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
		if (roles[i].number && !entry(s, roles[i].number))
			return errtext_set(e, -EINVAL, "%.120s: %s is version %u, which is not in the list", path, roles[i].name,
					   roles[i].number);
	}
	return 0;
}

static void read_versions(struct reader *d, struct store_state *s)
{
	const json_t *list = json_object_get(d->o, "versions"), *v;
	size_t i, n = json_array_size(list);

	if (d->rc < 0)
		return;
	if (!json_is_array(list) || n > VERSIONS_MAX) {
		d->rc = errtext_set(d->e, -EINVAL, "%.120s: versions is not a list", d->path);
		return;
	}
	s->versions = calloc(n ? n : 1, sizeof *s->versions);
	if (!s->versions) {
		d->rc = -ENOMEM;
		return;
	}
	json_array_foreach(list, i, v)
	{
		struct reader dv = {.o = v, .path = d->path, .e = d->e};
		struct version_entry *x = &s->versions[s->n_versions++];
		char state[16] = "";
		x->number = reader_u32(&dv, "number");
		reader_text(&dv, "state", READER_NOT_EMPTY, state, sizeof state);
		reader_text(&dv, "reason", READER_MAY_BE_ABSENT, x->reason, sizeof x->reason);
		if (dv.rc == 0 && version_state_parse(state, &x->state) < 0)
			dv.rc = errtext_set(d->e, -EINVAL, "%.120s: version %u is in no known state: %s", d->path, x->number, state);
		if (dv.rc < 0) {
			d->rc = dv.rc;
			return;
		}
	}
}

static void read_canary(struct reader *d, struct store_state *s)
{
	const json_t *c = json_object_get(d->o, "canary");
	struct reader dc = {.o = c, .path = d->path, .e = d->e, .rc = d->rc};

	if (!c || json_is_null(c))
		return;
	s->canary.version = reader_u32(&dc, "version");
	s->canary.permille = (uint32_t)reader_count(&dc, "permille", 1000);
	reader_text(&dc, "salt", READER_MAY_BE_ABSENT, s->canary.salt, sizeof s->canary.salt);
	reader_text(&dc, "since", READER_MAY_BE_ABSENT, s->canary.since, sizeof s->canary.since);
	d->rc = dc.rc;
}

int store_state_read(const char *store, struct store_state *ret, struct errtext *e)
{
	struct store_state s = {.generation = 0};
	char path[PATH_MAX];
	json_t *o;
	int r = path_print(path, sizeof path, "%s/state.json", store);

	if (r == 0)
		r = load(path, &o, e);
	if (r < 0)
		return r;
	struct reader d = {.o = o, .path = path, .e = e};
	s.generation = reader_count(&d, "generation", GENERATION_MAX);
	s.next_number = reader_u32(&d, "next_number");
	s.live = reader_u32(&d, "live");
	s.previous = reader_u32(&d, "previous");
	s.base = reader_u32(&d, "base");
	s.pin = reader_u32(&d, "pin");
	s.hold = reader_bool(&d, "hold");
	s.paused = reader_bool(&d, "paused");
	reader_text(&d, "alarm", READER_MAY_BE_ABSENT, s.alarm, sizeof s.alarm);
	read_canary(&d, &s);
	read_versions(&d, &s);
	json_decref(o);
	if (d.rc == 0)
		d.rc = check_state(&s, path, e);
	if (d.rc < 0) {
		store_state_done(&s);
		return d.rc;
	}
	*ret = s;
	return 0;
}

static json_t *version_list(const struct store_state *s)
{
	json_t *list = json_array();

	for (int i = 0; i < s->n_versions; i++) {
		const struct version_entry *x = &s->versions[i];
		json_t *v = json_pack("{s:I, s:s, s:s}", "number", (json_int_t)x->number, "state", version_state_name(x->state), "reason",
				      x->reason);
		if (json_array_append_new(list, v) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

int store_state_write(const char *store, const struct store_state *s, struct errtext *e)
{
	char path[PATH_MAX];
	int r = path_print(path, sizeof path, "%s/state.json", store);

	if (r == 0)
		r = check_state(s, path, e);
	if (r < 0)
		return r;
	return save(path,
		    json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s, s:{s:I, s:I, s:s, s:s}, s:o}", "schema", 1, "generation",
			      (json_int_t)s->generation, "next_number", (json_int_t)s->next_number, "live", (json_int_t)s->live, "previous",
			      (json_int_t)s->previous, "base", (json_int_t)s->base, "pin", (json_int_t)s->pin, "hold", (int)s->hold,
			      "paused", (int)s->paused, "alarm", s->alarm, "canary", "version", (json_int_t)s->canary.version, "permille",
			      (json_int_t)s->canary.permille, "salt", s->canary.salt, "since", s->canary.since, "versions",
			      version_list(s)),
		    e);
}

int store_state_copy(struct store_state *dst, const struct store_state *src)
{
	struct version_entry *v = calloc(src->n_versions ? (size_t)src->n_versions : 1, sizeof *v);

	if (!v)
		return -ENOMEM;
	if (src->n_versions)
		memcpy(v, src->versions, (size_t)src->n_versions * sizeof *v);
	*dst = *src;
	dst->versions = v;
	return 0;
}

void store_state_done(struct store_state *s)
{
	free(s->versions);
	*s = (struct store_state){.generation = 0};
}
