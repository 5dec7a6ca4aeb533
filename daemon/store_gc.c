/* What leaves the store: by count, by age, and when the disk is nearly full.
 *
 * A removal is a rename to .gone-N, then the state without it, then the deletion: a crash
 * between any two is finished at the next start (store.c).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "daemon/store_inside.h"

static bool store_held(const struct store_state *st, const struct version_entry *v)
{
	return v->number == st->live || v->number == st->previous || v->number == st->base || v->number == st->pin ||
	       v->number == st->canary.version || v->state == VS_CANDIDATE || v->state == VS_GATED || v->state == VS_CANARY;
}

int64_t store_missing(const struct store *s, double min_free)
{
	struct statvfs v;
	double need;

	if (min_free <= 0 || statvfs(s->path, &v) < 0 || !v.f_blocks)
		return 0;
	need = min_free * (double)v.f_blocks - (double)v.f_bavail;
	return need > 0 ? (int64_t)(need * (double)v.f_frsize) : 0;
}

static bool store_refused(const struct version_entry *v)
{
	return v->state == VS_REJECTED || v->state == VS_QUARANTINED;
}

/* Made longer ago than that; what cannot be looked at is not old. */
static bool store_older(const struct store *s, uint32_t number, const struct store_limits *l)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof path, "%s/versions/%u/manifest.json", s->path, number);
	return l->max_age_s && stat(path, &st) == 0 && l->now_s - (int64_t)st.st_mtime > l->max_age_s;
}

static int64_t store_bytes(const struct store *s, uint32_t number)
{
	char path[PATH_MAX];
	struct stat st;
	int64_t n = 0;
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof path, "%s/versions/%u", s->path, number);
	dir = opendir(path);
	while (dir && (d = readdir(dir)))
		if (d->d_name[0] != '.' && fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			n += (int64_t)st.st_blocks * 512;
	if (dir)
		closedir(dir);
	return n;
}

/* Sets one aside and marks its entry with 0. */
static bool store_set_aside(struct store *s, struct version_entry *v)
{
	char from[PATH_MAX], to[PATH_MAX];

	snprintf(from, sizeof from, "%s/versions/%u", s->path, v->number);
	snprintf(to, sizeof to, "%s/versions/.gone-%u", s->path, v->number);
	if (rename(from, to) < 0 && errno != ENOENT)
		return false; /* next time */
	v->number = 0;
	return true;
}

/* Oldest first: those that were refused, then those one could go back to. */
static int store_make_room(struct store *s, struct store_state *state, int64_t need)
{
	int removed = 0;

	for (int refused = 1; refused >= 0; refused--)
		for (int i = 0; i < state->n_versions && need > 0; i++) {
			struct version_entry *v = &state->versions[i];
			int64_t bytes = v->number && store_refused(v) == refused && !store_held(state, v) ? store_bytes(s, v->number) : 0;

			if (bytes && store_set_aside(s, v)) {
				need -= bytes;
				removed++;
			}
		}
	return removed;
}

int store_collect(struct store *s, struct store_state *state, const struct store_limits *l)
{
	int removed = 0, n = 0, kept[2] = {0}; /* those that were refused must not push out those one can go back to */

	for (int i = state->n_versions - 1; i >= 0; i--) { /* newest first */
		struct version_entry *v = &state->versions[i];

		if (store_held(state, v) || (kept[store_refused(v)]++ < l->keep && !store_older(s, v->number, l)))
			continue;
		removed += store_set_aside(s, v);
	}
	removed += store_make_room(s, state, l->need_bytes);
	for (int i = 0; i < state->n_versions; i++)
		if (state->versions[i].number)
			state->versions[n++] = state->versions[i];
	state->n_versions = n;
	return removed;
}

void store_sweep(struct store *s)
{
	char path[PATH_MAX];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof path, "%s/versions", s->path);
	dir = opendir(path);
	while (dir && (d = readdir(dir))) {
		if (strncmp(d->d_name, ".gone-", 6))
			continue;
		snprintf(path, sizeof path, "%s/versions/%.64s", s->path, d->d_name);
		store_drop(path);
	}
	if (dir)
		closedir(dir);
}
