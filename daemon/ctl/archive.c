/* redraftctl backup and restore: the version store as a folder of files, without redraftd.
 *
 * A backup runs beside everything: versions are immutable and state.json is replaced whole, so the state is read, every version
 * that it names is copied and checked against its manifest, and the state is read again; when it names others by then, those are
 * copied too, until nothing has changed meanwhile. The folder gets its name when all of it is on disk. The state comes last
 * in a restore as well, and the store is locked and marked until it is whole: a restore that was cut short is begun again,
 * and no daemon starts on it. Frozen embeddings and what the learner keeps are not in it: the server writes the first anew, the
 * learner goes on from the live version.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "daemon/base/sha.h"
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/print.h"
#include "schemas/audit.h"
#include "schemas/manifest.h"

enum { ROUNDS = 20 };
static const char *const version_files[] = {"model.safetensors", "config.json", "manifest.json", "verdict.json"};

struct archive {
	const struct ctl_conf *c;
	const char *from, *to; /* folders with versions/ and state.json */
	int versions;
	long long bytes;
	struct errtext e;
};

static int joined(char ret[PATH_MAX], const char *a, const char *b)
{
	return snprintf(ret, PATH_MAX, "%s/%s", a, b) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* -ENOENT: there is none to copy. */
static int copy_file(struct archive *a, const char *from, const char *to)
{
	int64_t n = fs_copy(from, to);

	a->bytes += n > 0 ? n : 0;
	return n < 0 ? (int)n : 0;
}

/* Are the files what the manifest says? */
static int check_version(struct archive *a, const char *dir, uint32_t number)
{
	char path[PATH_MAX], sha[SHA_HEX];
	struct manifest m;
	int r = manifest_read(dir, &m, &a->e);

	if (r < 0)
		return r;
	if (m.number != number)
		r = errtext_set(&a->e, -EINVAL, "version %u: its manifest says %u", number, m.number);
	for (int i = 0; i < 2 && !r; i++) {
		r = joined(path, dir, version_files[i]);
		if (!r)
			r = sha_file_hex(path, sha);
		if (!r && strcmp(sha, i ? m.config_sha : m.model_sha) != 0)
			r = -EIO;
		if (r < 0)
			errtext_set(&a->e, r, "version %u: %s is not what its manifest says; it is damaged", number, version_files[i]);
	}
	manifest_done(&m);
	return r;
}

/* versions/N of one to the other, whole or not at all. -ENOENT: it has been collected meanwhile. */
static int copy_version(struct archive *a, uint32_t number)
{
	char from[PATH_MAX], to[PATH_MAX], part[PATH_MAX], in[PATH_MAX], out[PATH_MAX];
	int r = store_version_dir(a->from, number, from, sizeof from);

	if (!r)
		r = store_version_dir(a->to, number, to, sizeof to);
	if (!r && snprintf(part, sizeof part, "%s/versions/.copy-%u", a->to, number) >= (int)sizeof part)
		r = -ENAMETOOLONG;
	if (!r && access(to, F_OK) == 0)
		return 0; /* of an earlier round */
	if (!r)
		r = fs_remove_tree(part);
	if (!r)
		r = fs_mkdirs(part);
	for (size_t i = 0; !r && i < sizeof version_files / sizeof *version_files; i++) {
		r = joined(in, from, version_files[i]);
		if (!r)
			r = joined(out, part, version_files[i]);
		if (!r)
			r = copy_file(a, in, out);
		if (r == -ENOENT && !strcmp(version_files[i], "verdict.json"))
			r = 0; /* not judged yet */
	}
	if (!r)
		r = check_version(a, part, number);
	if (!r)
		r = fs_sync_dir(part);
	if (!r && rename(part, to) < 0)
		r = -errno;
	if (r < 0)
		(void)!fs_remove_tree(part);
	a->versions += !r;
	return r < 0 && r != -ENOENT && !a->e.text[0] ? errtext_set(&a->e, r, "version %u: %s", number, strerror(-r)) : r;
}

/* All versions that the state names and that can be copied; those that are damaged there are damaged already. */
static int copy_versions(struct archive *a, const struct store_state *s)
{
	int r = 0;

	for (int i = 0; i < s->n_versions && !r; i++) {
		const struct version_entry *v = &s->versions[i];
		bool needed = v->number == s->live || v->number == s->previous || v->number == s->base || v->number == s->pin;

		r = copy_version(a, v->number);
		if (r == -ENOENT || (r < 0 && !needed && (v->state == VS_QUARANTINED || v->state == VS_REJECTED))) {
			a->e.text[0] = '\0';
			r = 0;
		}
	}
	return r;
}

/* The first version that a restore would miss; 0: none. One that was refused may be without its files. */
static uint32_t missing_version(const struct archive *a, const struct store_state *s)
{
	char dir[PATH_MAX];

	for (int i = 0; i < s->n_versions; i++)
		if (s->versions[i].state < VS_REJECTED &&
		    (store_version_dir(a->to, s->versions[i].number, dir, sizeof dir) < 0 || access(dir, F_OK) < 0))
			return s->versions[i].number;
	return 0;
}

static int copy_audit(struct archive *a)
{
	char from[PATH_MAX], to[PATH_MAX], name[32];
	int r = joined(to, a->to, "audit");

	if (!r)
		r = fs_mkdirs(to);
	for (int i = AUDIT_MAX_FILES; i >= 0 && !r; i--) {
		snprintf(name, sizeof name, i ? "audit/audit.%d" : "audit/audit.log", i);
		r = joined(from, a->from, name);
		if (!r)
			r = joined(to, a->to, name);
		if (!r)
			r = copy_file(a, from, to);
		r = r == -ENOENT ? 0 : r;
	}
	return r < 0 ? errtext_set(&a->e, r, "audit log: %s", strerror(-r)) : 0;
}

static int sync_all(struct archive *a)
{
	char path[PATH_MAX];
	int r = joined(path, a->to, "versions");

	if (!r)
		r = fs_sync_dir(path);
	return r ? r : fs_sync_dir(a->to);
}

static int finish(const struct ctl_conf *c, const struct ctl_verb *v, struct archive *a, int r, const char *word, const char *dir)
{
	char text[400];

	if (r < 0) {
		snprintf(text, sizeof text, "%s", a->e.text[0] ? a->e.text : strerror(-r));
		return ctl_say(c, EXIT_REFUSED, text);
	}
	if (c->json)
		return ctl_print(c, v, json_pack("{s:s, s:i, s:I}", "folder", dir, "versions", a->versions, "bytes", (json_int_t)a->bytes), EXIT_DONE);
	printf("%s %s: %d versions, %.1f MB\n", word, dir, a->versions, (double)a->bytes / 1e6);
	return EXIT_DONE;
}

/* ---- backup ---- */

static int backup_rounds(struct archive *a)
{
	struct store_state s = {0}, again = {0};
	uint32_t missing = 0;
	bool same = false;
	int r = store_state_read(a->from, &s, &a->e);

	if (r < 0)
		return a->e.text[0] ? r : errtext_set(&a->e, r, "%.150s holds no version store: %s", a->from, strerror(-r));
	for (int i = 0; i < ROUNDS && !same && !r; i++) {
		r = copy_versions(a, &s);
		if (!r)
			r = store_state_read(a->from, &again, &a->e);
		if (r < 0)
			break;
		same = again.next_number == s.next_number && again.n_versions == s.n_versions;
		missing = same ? missing_version(a, &again) : 0;
		if (missing) { /* perhaps it is being collected: its files go before the state forgets it */
			same = false;
			usleep(50000);
		}
		store_state_done(&s);
		s = again;
	}
	if (!r && missing)
		r = errtext_set(&a->e, -ENOENT, "version %u is in the state and its files are not there; restart redraftd, which quarantines it", missing);
	else if (!r && !same)
		r = errtext_set(&a->e, -EAGAIN, "versions come faster than they can be copied; try again");
	if (!r)
		r = copy_audit(a);
	if (!r)
		r = store_state_write(a->to, &s, &a->e);
	store_state_done(&s);
	return r ? r : sync_all(a);
}

int ctl_backup(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	struct archive a = {.c = c, .from = c->store};
	char dir[PATH_MAX], part[PATH_MAX], versions[PATH_MAX + 16];
	size_t n = n_pos == 1 ? strlen(pos[0]) : 0;
	int r = 0;

	while (n > 1 && pos[0][n - 1] == '/') /* "DIR/" is DIR, not something in it */
		n--;
	if (!n)
		return ctl_say(c, EXIT_USAGE, "backup DIR: the folder to be made");
	if (snprintf(dir, sizeof dir, "%.*s", (int)n, pos[0]) >= (int)sizeof dir || snprintf(part, sizeof part, "%s.part", dir) >= (int)sizeof part)
		return ctl_say(c, EXIT_USAGE, "backup DIR: the path is too long");
	snprintf(versions, sizeof versions, "%s/versions", part);
	a.to = part;
	if (access(dir, F_OK) == 0)
		return ctl_say(c, EXIT_REFUSED, "that folder exists; a backup is a new one");
	r = fs_remove_tree(part); /* of a backup that was cut short */
	if (!r)
		r = fs_mkdirs(versions);
	if (!r)
		r = backup_rounds(&a);
	if (!r && rename(part, dir) < 0)
		r = -errno;
	if (r < 0)
		(void)!fs_remove_tree(part);
	return finish(c, v, &a, r, "copied into", dir);
}

/* ---- restore ---- */

/* May we write there? Empty but for what a daemon makes by itself, and nobody's. */
static int restore_room(const char *store, int *ret_lock, struct errtext *e)
{
	char path[PATH_MAX], mark[PATH_MAX];
	struct dirent *d;
	struct stat st;
	DIR *dir;
	int r = snprintf(path, sizeof path, "%s/.lock", store) < (int)sizeof path ? fs_mkdirs(store) : -ENAMETOOLONG;

	*ret_lock = r < 0 ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
	if (r < 0 || *ret_lock < 0)
		return errtext_set(e, r < 0 ? r : -errno, "%.150s: %s", store, strerror(r < 0 ? -r : errno));
	if (flock(*ret_lock, LOCK_EX | LOCK_NB) < 0)
		return errtext_set(e, -EBUSY, "%.150s is in use by redraftd; stop it first (systemctl stop redraftd.socket redraftd)", store);
	if (joined(mark, store, ".restoring") < 0 || access(mark, F_OK) == 0)
		return 0; /* one that was cut short: begun again */
	if (joined(path, store, "state.json") == 0 && access(path, F_OK) == 0) {
		struct store_state s;
		bool empty = store_state_read(store, &s, e) == 0 && s.n_versions == 0;

		if (empty)
			store_state_done(&s);
		if (!empty)
			return errtext_set(e, -EEXIST, "%.120s holds versions; restore into an empty store (move it aside first)", store);
	}
	if (joined(path, store, "versions") < 0 || stat(path, &st) < 0)
		return 0;
	dir = opendir(path);
	while (dir && r == 0 && (d = readdir(dir)))
		if (d->d_name[0] != '.')
			r = errtext_set(e, -EEXIST, "%.120s holds versions; restore into an empty store (move it aside first)", store);
	if (dir)
		closedir(dir);
	return r;
}

static int restore_all(struct archive *a, const struct store_state *s)
{
	char mark[PATH_MAX], path[PATH_MAX];
	json_t *j = NULL;
	char who[64];
	int r = joined(mark, a->to, ".restoring");

	if (!r)
		r = joined(path, a->to, "versions");
	if (!r)
		r = fs_write_atomic(mark, "", 0);
	if (!r)
		r = fs_remove_tree(path);
	if (!r)
		r = fs_mkdirs(path);
	for (int i = 0; i < s->n_versions && !r; i++) {
		r = copy_version(a, s->versions[i].number);
		if (r == -ENOENT && s->versions[i].state >= VS_REJECTED) /* the backup had none of it either */
			r = 0;
		else if (r == -ENOENT)
			r = errtext_set(&a->e, r, "version %u is not in the backup", s->versions[i].number);
	}
	if (!r)
		r = copy_audit(a);
	if (!r)
		r = sync_all(a);
	if (!r)
		r = store_state_write(a->to, s, &a->e);
	if (!r && unlink(mark) < 0)
		r = -errno;
	if (!r)
		r = fs_sync_dir(a->to);
	snprintf(who, sizeof who, "uid %u, pid %d", (unsigned)getuid(), (int)getpid());
	if (!r && joined(path, a->to, "audit") == 0) {
		j = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s}", "what", "Restore", "who", who, "uid", (json_int_t)getuid(), "pid", (json_int_t)getpid(),
			      "detail", a->from, "why", a->c->reason, "result", "done");
		r = j ? audit_append(path, j, &a->e) : -ENOMEM;
		json_decref(j);
	}
	return r;
}

/* Everything belongs to whom the store belongs to, not to root who restores. */
static void restore_owner(const char *store)
{
	char path[PATH_MAX], file[PATH_MAX + 300];
	static const char *const folders[] = {"", "versions", "audit"};
	struct stat st;

	if (geteuid() != 0 || stat(store, &st) < 0)
		return;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		struct dirent *d;
		DIR *dir;

		if (joined(path, store, folders[i]) < 0 || lchown(path, st.st_uid, st.st_gid) < 0 || !(dir = opendir(path)))
			continue;
		while ((d = readdir(dir))) {
			if (!strcmp(d->d_name, "..") || !strcmp(d->d_name, "."))
				continue;
			snprintf(file, sizeof file, "%s/%s", path, d->d_name);
			(void)!lchown(file, st.st_uid, st.st_gid);
			for (size_t k = 0; i == 1 && k < sizeof version_files / sizeof *version_files; k++) {
				snprintf(file, sizeof file, "%s/%.200s/%s", path, d->d_name, version_files[k]);
				(void)!lchown(file, st.st_uid, st.st_gid);
			}
		}
		closedir(dir);
	}
}

int ctl_restore(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	struct archive a = {.c = c, .to = c->store};
	struct store_state s = {0};
	int lock = -1, r;

	if (n_pos != 1)
		return ctl_say(c, EXIT_USAGE, "restore DIR: a folder that backup made");
	a.from = pos[0];
	r = store_state_read(a.from, &s, &a.e);
	if (r < 0 && !a.e.text[0])
		errtext_set(&a.e, r, "%.150s holds no backup: %s", a.from, strerror(-r));
	if (!r)
		r = restore_room(c->store, &lock, &a.e);
	if (!r)
		r = restore_all(&a, &s);
	if (!r)
		restore_owner(c->store);
	store_state_done(&s);
	if (lock >= 0)
		close(lock);
	return finish(c, v, &a, r, "restored from", pos[0]);
}
