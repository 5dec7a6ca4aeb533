/* The store: opened, repaired, saved, swept. What a submission goes through is in
 * store_take.c.
 *
 * Repair looks at folder names only, because every step of a submission and of a
 * removal is a rename: a .take folder was not yet a version and goes back to
 * incoming; a version that the state does not know was named but not journalled and
 * becomes a candidate; a .gone folder was on its way out. No file is judged by its
 * content here except that a version must have a manifest that reads.
 */
#include "daemon/store_inside.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"

const char *store_path(const struct store *s)
{
	return s->path;
}

/* A positive decimal without sign, zeros in front or anything behind. */
static uint32_t store_number(const char *name)
{
	char *end;
	unsigned long n = name[0] >= '1' && name[0] <= '9' ? strtoul(name, &end, 10) : 0;

	return n && n < UINT32_MAX && !*end ? (uint32_t)n : 0;
}

static int store_lock(struct store *s, struct errtext *e)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/.lock", s->path);
	s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
	if (s->lock_fd < 0)
		return errtext_set(e, -errno, "store %.150s: %s", s->path, strerror(errno));
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0)
		return errtext_set(e, -EBUSY, "store %.150s is in use by another redraftd; stop it first", s->path);
	snprintf(path, sizeof path, "%s/.restoring", s->path);
	if (access(path, F_OK) == 0)
		return errtext_set(e, -EINVAL, "store %.120s: a restore was cut short; run redraftctl restore again", s->path);
	return 0;
}

static int store_folders(struct store *s, struct errtext *e)
{
	static const char *const names[] = {"versions", "incoming", "frozen"};
	char path[PATH_MAX];
	int r = 0;

	for (size_t i = 0; !r && i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", s->path, names[i]);
		r = fs_mkdirs(path);
	}
	return r < 0 ? errtext_set(e, r, "store %.150s: %s", path, strerror(-r)) : 0;
}

void store_drop(const char *path)
{
	if (fs_remove_tree(path) < 0)
		return; /* busy or read-only: not worth failing anything */
}

/* Other processes get these paths and have other working folders. */
static int store_absolute(struct store *s, struct errtext *e)
{
	char *real = realpath(s->path, NULL);
	int r = real ? 0 : -errno;

	if (real && snprintf(s->path, sizeof s->path, "%s", real) >= (int)sizeof s->path)
		r = -ENAMETOOLONG;
	free(real);
	return r < 0 ? errtext_set(e, r, "store %.150s: %s", s->path, strerror(-r)) : 0;
}

static int store_by_number(const void *a, const void *b)
{
	const struct version_entry *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

static int store_add(struct store_state *st, uint32_t number, enum version_state state, const char *reason)
{
	size_t n = (size_t)st->n_versions;
	struct version_entry *v = realloc(st->versions, (n + 1) * sizeof *v);

	if (!v)
		return -ENOMEM;
	st->versions = v;
	v[n] = (struct version_entry){.number = number, .state = state};
	snprintf(v[n].reason, sizeof v[n].reason, "%s", reason);
	st->n_versions++;
	qsort(v, n + 1, sizeof *v, store_by_number);
	if (st->next_number <= number)
		st->next_number = number + 1;
	return 0;
}

static struct version_entry *store_entry(struct store_state *st, uint32_t number)
{
	for (int i = 0; number && i < st->n_versions; i++)
		if (st->versions[i].number == number)
			return &st->versions[i];
	return NULL;
}

static bool store_readable(struct store *s, uint32_t number)
{
	char dir[PATH_MAX];
	struct manifest m;
	bool ok = store_version_dir(s->path, number, dir, sizeof dir) == 0 && manifest_read(dir, &m, NULL) == 0;

	if (ok) {
		ok = m.number == number;
		manifest_done(&m);
	}
	return ok;
}

static int store_scan(struct store *s, struct store_state *st, struct store_found *found, struct errtext *e)
{
	char path[PATH_MAX];
	struct dirent *d;
	DIR *dir;
	int r = 0;

	snprintf(path, sizeof path, "%s/versions", s->path);
	dir = opendir(path);
	if (!dir)
		return errtext_set(e, -errno, "%.150s: %s", path, strerror(errno));
	while (!r && (d = readdir(dir))) {
		uint32_t number = store_number(d->d_name);

		if (!strncmp(d->d_name, STORE_TAKE, strlen(STORE_TAKE))) {
			int k = store_give_back(s, d->d_name);

			found->given_back += !k;
			found->stuck += k < 0;
		} else if (number && !store_entry(st, number) && store_readable(s, number)) {
			/* Named, then the crash. Without any state its history is unknown. */
			r = found->new_state ? store_add(st, number, VS_RETIRED, "found in the store; its history is lost")
					     : store_add(st, number, VS_CANDIDATE, "");
			found->adopted++;
		}
		if (number) { /* nor may the next submission want the name of a folder that cannot be read */
			st->next_number = st->next_number > number ? st->next_number : number + 1;
			snprintf(path, sizeof path, "%s/versions/%u/submit.json", s->path, number);
			(void)unlink(path);
		}
	}
	closedir(dir);
	return r;
}

/* A removal that a crash cut short: the folder is aside, the entry is not. */
static bool store_is_going(struct store *s, uint32_t number)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/versions/.gone-%u", s->path, number);
	return access(path, F_OK) == 0;
}

static void store_finish_collect(struct store *s, struct store_state *st, struct store_found *found)
{
	int n = 0;

	for (int i = 0; i < st->n_versions; i++) {
		if (!store_is_going(s, st->versions[i].number))
			st->versions[n++] = st->versions[i];
	}
	found->removed = st->n_versions - n;
	st->n_versions = n;
}

/* A version whose files are gone cannot be loaded: nothing may point at it. */
static void store_check_files(struct store *s, struct store_state *st, struct store_found *found)
{
	for (int i = 0; i < st->n_versions; i++) {
		struct version_entry *v = &st->versions[i];

		if (v->state == VS_QUARANTINED || v->state == VS_REJECTED || store_readable(s, v->number))
			continue;
		found->lost++;
		v->state = VS_QUARANTINED;
		snprintf(v->reason, sizeof v->reason, "its files are missing or damaged");
		st->live = st->live == v->number ? 0 : st->live;
		st->previous = st->previous == v->number ? 0 : st->previous;
		st->pin = st->pin == v->number ? 0 : st->pin;
		st->base = st->base == v->number ? 0 : st->base;
		if (st->canary.version == v->number)
			memset(&st->canary, 0, sizeof st->canary);
	}
	if (!st->live && st->previous) {
		st->live = st->previous;
		st->previous = 0;
		store_entry(st, st->live)->state = VS_LIVE;
	}
}

static int store_repair(struct store *s, struct store_state *st, struct store_found *found, struct errtext *e)
{
	int r = store_scan(s, st, found, e);

	if (!r) {
		store_finish_collect(s, st, found);
		store_check_files(s, st, found);
	}
	if (!r && !st->next_number)
		st->next_number = 1;
	if (!r && (found->adopted || found->lost || found->removed || found->new_state))
		r = store_save(s, st, e);
	if (!r)
		store_sweep(s);
	return r;
}

int store_open(const char *path, struct store **ret, struct store_state *ret_state, struct store_found *ret_found,
	       struct errtext *e)
{
	struct store *s = calloc(1, sizeof *s);
	struct store_state st = {0};
	struct store_found found = {0};
	int r;

	if (!s)
		return -ENOMEM;
	s->lock_fd = -1;
	if (snprintf(s->path, sizeof s->path, "%s", path) >= (int)sizeof s->path)
		r = errtext_set(e, -ENAMETOOLONG, "store: the path is too long");
	else
		r = store_folders(s, e);
	if (!r)
		r = store_absolute(s, e);
	if (!r)
		r = store_lock(s, e);
	if (!r) {
		r = store_state_read(s->path, &st, e);
		found.new_state = r == -ENOENT;
		if (found.new_state)
			r = 0;
	}
	if (!r)
		r = store_repair(s, &st, &found, e);
	if (r < 0) {
		store_state_done(&st);
		store_close(s);
		return r;
	}
	*ret = s;
	*ret_state = st;
	*ret_found = found;
	return 0;
}

struct store *store_close(struct store *s)
{
	if (s && s->lock_fd >= 0)
		close(s->lock_fd);
	free(s);
	return NULL;
}

int store_save(struct store *s, const struct store_state *state, struct errtext *e)
{
	return store_state_write(s->path, state, e);
}

int store_write_verdict(struct store *s, uint32_t number, json_t *verdict, struct errtext *e)
{
	char path[PATH_MAX], dir[PATH_MAX], now[32], *text = NULL;
	int r = verdict ? store_version_dir(s->path, number, dir, sizeof dir) : -ENOMEM;

	clock_iso8601(clock_wall_ms(), now);
	if (!r && (json_object_set_new(verdict, "schema", json_integer(1)) < 0 ||
		   json_object_set_new(verdict, "version", json_integer(number)) < 0 ||
		   json_object_set_new(verdict, "created", json_string(now)) < 0))
		r = -ENOMEM;
	if (!r && snprintf(path, sizeof path, "%s/verdict.json", dir) >= (int)sizeof path)
		r = -ENAMETOOLONG;
	if (!r && access(path, F_OK) == 0)
		r = -EEXIST;
	if (!r && !(text = json_dumps(verdict, JSON_INDENT(2) | JSON_REAL_PRECISION(9))))
		r = -ENOMEM;
	if (!r)
		r = fs_write_atomic(path, text, strlen(text));
	free(text);
	json_decref(verdict);
	return r < 0 ? errtext_set(e, r, "verdict of version %u: %s", number, strerror(-r)) : 0;
}

json_t *store_read_json(const struct store *s, uint32_t number, const char *file)
{
	char dir[PATH_MAX];

	return store_version_dir(s->path, number, dir, sizeof dir) < 0 ? NULL : store_json_in(dir, file);
}

json_t *store_json_in(const char *dir, const char *file)
{
	char path[PATH_MAX], *text = NULL;
	json_t *j;

	if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path ||
	    fs_read_text(path, 4 << 20, &text) < 0)
		return NULL;
	j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	return j;
}
