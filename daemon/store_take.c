/* A submission becomes a version. The learner's folder is taken out of its reach by
 * a rename, verified where nobody else writes, completed with a manifest, pushed to
 * the disk and named by one more rename. Until that last rename it is not a version;
 * after it nothing in it changes but verdict.json being added.
 *
 * What becomes no version goes back by a rename too, and that can fail as everything else on a disk that failed before.
 * Then it stays where it is, versions/.take-N-NAME, and every submission that follows begins with giving it back, as a start does.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/sha.h"
#include "daemon/store_inside.h"
#include "schemas/draft_config.h"

enum { SUBMIT_MAX_BYTES = 4 << 20, LAYERS_UNKNOWN = 1 << 20 };

/* What is in the folder is wrong, whichever call it was noticed by. A disk that is full, no memory, no right to read say nothing of it. */
static int take_error(int r)
{
	switch (-r) {
	case ENOENT: case ENOTDIR: case EISDIR: case ELOOP: case ENXIO: case ENAMETOOLONG: case E2BIG: case EFBIG: case EILSEQ: case EOVERFLOW: case ERANGE: case ENOTSUP:
		return -EINVAL;
	default:
		return r;
	}
}

/* NAME of incoming/NAME; nothing outside incoming can be named. */
static int take_name(const struct store *s, const char *path, char *ret, size_t size, struct errtext *e)
{
	char given[PATH_MAX], incoming[PATH_MAX], real[PATH_MAX];
	const char *name;

	snprintf(incoming, sizeof incoming, "%s/incoming", store_path(s));
	if (!realpath(incoming, real))
		return errtext_set(e, -errno, "%.150s: %s", incoming, strerror(errno));
	if (strchr(path, '/')) {
		if (!realpath(path, given))
			return errtext_set(e, -errno, "%.150s: %s", path, strerror(errno));
		name = strrchr(given, '/');
		if (strncmp(given, real, strlen(real)) || given + strlen(real) != name)
			return errtext_set(e, -EINVAL, "%.120s is not a folder of %.100s", path, incoming);
		name++;
	} else {
		name = path;
	}
	if (!name[0] || name[0] == '.' || strlen(name) >= size)
		return errtext_set(e, -EINVAL, "%.100s is not a name for a submission", path);
	snprintf(ret, size, "%s", name);
	return 0;
}

/* Ours to read and nobody's to change, and on the disk. */
static int take_file(const char *dir, const char *name, char ret_sha[static 65], struct errtext *e)
{
	char path[PATH_MAX];
	struct stat st;
	int r = 0, fd;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errtext_set(e, -errno, "%s: %s", name, errno == ELOOP ? "is a link; submit the file itself" : strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		r = errtext_set(e, -EINVAL, "%s is not a file", name);
	if (!r && fchmod(fd, 0440) < 0 && errno != EPERM) /* EPERM: another owner's file, still readable */
		r = errtext_set(e, -errno, "%s: %s", name, strerror(errno));
	if (!r && fsync(fd) < 0)
		r = errtext_set(e, -errno, "%s: %s", name, strerror(errno));
	close(fd);
	if (!r) {
		r = sha_file_hex(path, ret_sha);
		if (r < 0)
			errtext_set(e, r, "%s: %s", name, strerror(-r));
	}
	return r;
}

struct take_submit {
	json_t *json; /* owned */
	const char *target_fp, *weights_sha;
	int layers;
};

static int take_read_submit(const char *dir, struct take_submit *ret, struct manifest *m, struct errtext *e)
{
	char path[PATH_MAX], *text = NULL;
	json_error_t je;
	json_t *j, *v;
	int r;

	snprintf(path, sizeof path, "%s/submit.json", dir);
	r = fs_read_text(path, SUBMIT_MAX_BYTES, &text);
	if (r < 0)
		return errtext_set(e, r, "submit.json: %s", fs_text_why(r));
	j = json_loads(text, JSON_REJECT_DUPLICATES, &je);
	free(text);
	if (!json_is_object(j)) {
		json_decref(j);
		return errtext_set(e, -EINVAL, "submit.json, line %d: %.100s", j ? 1 : je.line, j ? "not an object" : je.text);
	}
	ret->json = j;
	ret->target_fp = json_string_value(json_object_get(j, "target_fp"));
	ret->weights_sha = json_string_value(json_object_get(j, "weights_sha"));
	v = json_object_get(j, "target_layers");
	ret->layers = json_is_integer(v) && json_integer_value(v) > 4 && json_integer_value(v) < LAYERS_UNKNOWN
			      ? (int)json_integer_value(v)
			      : LAYERS_UNKNOWN;
	v = json_object_get(j, "parent");
	if (!sha_is_hex(ret->target_fp) || !sha_is_hex(ret->weights_sha))
		return errtext_set(e, -EINVAL, "submit.json: target_fp and weights_sha are 64 hex digits each");
	if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= m->number))
		return errtext_set(e, -EINVAL, "submit.json: parent is not an older version");
	m->parent = (uint32_t)json_integer_value(v);
	v = json_object_get(j, "cut");
	m->cut = json_is_object(v) ? json_incref(v) : NULL;
	v = json_object_get(j, "training");
	m->training = json_is_object(v) ? json_incref(v) : NULL;
	v = json_object_get(j, "program_commit");
	if (m->training && json_is_string(v))
		(void)json_object_set(m->training, "program_commit", v);
	memcpy(m->target_fp, ret->target_fp, sizeof m->target_fp);
	return 0;
}

/* Of this store's target? Known from the server, or from what it exported. */
static int take_check_target(const struct store *s, const char *target_fp, const char *expect_fp, struct errtext *e)
{
	char path[PATH_MAX];

	if (expect_fp[0] && strcmp(expect_fp, target_fp))
		return errtext_set(e, -EINVAL, "a draft of another target: %.12s, the server has %.12s", target_fp, expect_fp);
	if (!expect_fp[0] && store_frozen_file(store_path(s), target_fp, path, sizeof path) == 0 && access(path, F_OK) < 0)
		return errtext_set(e, -EINVAL, "a draft of a target this store does not know: %.12s", target_fp);
	return 0;
}

static int take_verify(const struct store *s, const char *dir, const char *expect_fp, struct manifest *m, struct errtext *e)
{
	struct take_submit sub = {0};
	struct draft_files *f = NULL;
	int r = take_read_submit(dir, &sub, m, e);

	if (!r)
		r = take_check_target(s, sub.target_fp, expect_fp, e);
	if (!r)
		r = take_file(dir, "model.safetensors", m->model_sha, e);
	if (!r)
		r = take_file(dir, "config.json", m->config_sha, e);
	if (!r)
		r = draft_open(dir, sub.layers, &f, e);
	if (!r) {
		r = draft_weights_sha(f, m->weights_sha);
		if (!r)
			r = draft_fp(m->target_fp, draft_files_config(f), draft_files_d2t(f), m->draft_fp);
		if (r < 0)
			errtext_set(e, r, "hashing the draft: %s", strerror(-r));
	}
	if (!r && strcmp(m->weights_sha, sub.weights_sha))
		r = errtext_set(e, -EINVAL, "weights_sha is %.12s in submit.json and %.12s in the file: damaged on the way",
				sub.weights_sha, m->weights_sha);
	draft_close(f);
	json_decref(sub.json);
	return r;
}

/* ---- back to incoming ---- */

int store_give_back(const struct store *s, const char *entry)
{
	const char *dash = strchr(entry + strlen(STORE_TAKE), '-');
	char from[PATH_MAX], to[PATH_MAX];
	int r;

	snprintf(from, sizeof from, "%s/versions/%s", s->path, entry);
	if (!dash || !dash[1]) { /* nobody's: no name of ours looks like that */
		store_drop(from);
		return STORE_E_REPLACED;
	}
	snprintf(to, sizeof to, "%s/versions/%s/manifest.json", s->path, entry);
	(void)unlink(to);
	snprintf(to, sizeof to, "%s/incoming/%s", s->path, dash + 1);
	r = rename(from, to) < 0 ? -errno : 0;
	if (r != -EEXIST && r != -ENOTEMPTY)
		return r;
	snprintf(to, sizeof to, "%s/incoming/%s/submit.json", s->path, dash + 1);
	if (access(to, F_OK) < 0) /* being written, or a part of it left by who was killed: not to be relied on */
		return r;
	store_drop(from); /* somebody has written that name anew, and submit.json is last: theirs is the newer, and whole */
	return STORE_E_REPLACED;
}

/* Those that could not go back when it was their time. What still keeps the one of this path from going is the error. */
static int take_give_back(const struct store *s, const char *path, struct errtext *e)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dash;
	char versions[PATH_MAX];
	struct dirent *d;
	DIR *dir;
	int r = 0, k;

	snprintf(versions, sizeof versions, "%s/versions", s->path);
	dir = opendir(versions);
	if (!dir)
		return errtext_set(e, -errno, "%.150s: %s", versions, strerror(errno));
	while ((d = readdir(dir)))
		if (!strncmp(d->d_name, STORE_TAKE, strlen(STORE_TAKE)) && (k = store_give_back(s, d->d_name)) < 0 &&
		    (dash = strchr(d->d_name + strlen(STORE_TAKE), '-')) && !strcmp(dash + 1, name))
			r = errtext_set(e, k, "versions/%.100s cannot go back to incoming: %s", d->d_name, strerror(-k));
	closedir(dir);
	return r;
}

/* After a failure r, of which e tells. */
static int take_fails(const struct store *s, struct store_taken *t, int r, struct errtext *e)
{
	char why[sizeof e->text];
	const char *entry = strrchr(t->dir, '/') + 1;
	int k = store_give_back(s, entry);

	if (k < 0) {
		snprintf(why, sizeof why, "%s", e->text);
		errtext_set(e, r, "%.100s; versions/%.50s could not go back to incoming (%s): it does at the next submission or start", why, entry, strerror(-k));
	}
	store_taken_done(t);
	return r;
}

/* ---- the two steps ---- */

void store_taken_done(struct store_taken *t)
{
	manifest_done(&t->manifest);
	*t = (struct store_taken){.dir = ""};
}

int store_take(const struct store *s, const char *path, uint32_t number, const char *expect_fp, struct store_taken *ret,
	       struct errtext *e)
{
	struct store_taken t = {.manifest = {.number = number}};
	char from[PATH_MAX], versions[PATH_MAX];
	int r = take_give_back(s, path, e);

	if (r < 0)
		return r;
	r = take_name(s, path, t.origin, sizeof t.origin - 32, e);
	if (r < 0)
		return take_error(r);
	snprintf(from, sizeof from, "%s/incoming/%s", store_path(s), t.origin);
	snprintf(versions, sizeof versions, "%s/versions", store_path(s));
	if (snprintf(t.dir, sizeof t.dir, "%s/" STORE_TAKE "%u-%s", versions, number, t.origin) >= (int)sizeof t.dir)
		return errtext_set(e, -EINVAL, "%.100s: the path is too long", t.origin);
	if (rename(from, t.dir) < 0)
		return errtext_set(e, take_error(-errno), "incoming/%.100s: %s", t.origin, strerror(errno));
	fs_crash_point("store-taken");
	r = take_verify(s, t.dir, expect_fp, &t.manifest, e);
	fs_crash_point("store-verified");
	if (!r) {
		clock_iso8601(clock_wall_ms(), t.manifest.created);
		r = manifest_write(t.dir, &t.manifest, e); /* fsyncs the folder too */
	}
	fs_crash_point("store-manifest");
	if (r < 0)
		return take_fails(s, &t, take_error(r), e);
	*ret = t;
	return 0;
}

int store_name(struct store *s, struct store_taken *t, struct errtext *e)
{
	uint32_t number = t->manifest.number;
	char dir[PATH_MAX - 16], path[PATH_MAX];
	int r = store_version_dir(store_path(s), number, dir, sizeof dir);

	if (!r && rename(t->dir, dir) < 0)
		r = -errno;
	if (!r) {
		fs_crash_point("store-named");
		snprintf(path, sizeof path, "%s/versions", store_path(s));
		r = fs_sync_dir(path);
		if (r < 0 && rename(dir, t->dir) < 0) { /* it has its name, which a start takes up */
			store_taken_done(t);
			return errtext_set(e, r, "versions/%u: %s; it cannot go back to incoming: it is a version at the next start", number, strerror(-r));
		}
	}
	if (r < 0) {
		errtext_set(e, r, "versions/%u: %s", number, strerror(-r));
		return take_fails(s, t, r, e);
	}
	snprintf(path, sizeof path, "%s/submit.json", dir);
	(void)unlink(path); /* its content is in the manifest; a leftover is removed at the next start */
	return 0;
}
