/* Whole files or none. A writer fills a file that has no name yet,
 * fsyncs it, names it beside the target, renames it and fsyncs the folder: after a crash at any moment the
 * name holds either all of the old bytes or all of the new, and of a half-written one
 * nothing is left. Readers that mapped the old file keep it, because nothing is ever written in place.
 */
#include "daemon/base/fs.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void fs_crash_point(const char *name)
{
	static _Atomic(const char *) at; /* asked once per process: a forked child may differ */
	static _Atomic pid_t asked;

	if (asked != getpid()) {
		at = getenv("REDRAFT_CRASH_AT");
		asked = getpid();
	}
	if (at && !strcmp(at, name))
		_exit(137);
}

int fs_map(const char *path, struct fs_map *ret)
{
	struct stat st;
	void *p = NULL;
	int r = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (S_ISDIR(st.st_mode))
		r = -EISDIR;
	else if (!S_ISREG(st.st_mode))
		r = -EINVAL;
	else if (st.st_size > 0) {
		p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p == MAP_FAILED)
			r = -errno;
	}
	close(fd);
	if (r < 0)
		return r;
	*ret = (struct fs_map){.data = p, .len = (size_t)st.st_size};
	return 0;
}

void fs_unmap(struct fs_map *m)
{
	if (m->data)
		munmap((void *)(uintptr_t)m->data, m->len);
	*m = (struct fs_map){0};
}

void fs_map_rest(const struct fs_map *m)
{
	if (m->data)
		(void)madvise((void *)(uintptr_t)m->data, m->len, MADV_DONTNEED); /* nothing of ours is lost: the mapping is read-only */
}

const char *fs_text_why(int r)
{
	return r == -EILSEQ ? "it holds a NUL byte and is no text" : r == -E2BIG ? "it is too large" : strerror(-r);
}

int fs_text_fault(int r)
{
	return r == -EILSEQ || r == -E2BIG ? -EINVAL : r;
}

int fs_read_text(const char *path, size_t max_bytes, char **ret)
{
	struct stat st;
	char *text = NULL;
	size_t len = 0, size;
	ssize_t n;
	int r = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max_bytes)
		r = -E2BIG;
	size = S_ISREG(st.st_mode) ? (size_t)st.st_size : max_bytes; /* /proc says 0: see below */
	if (!r && S_ISREG(st.st_mode) && !st.st_size)
		size = max_bytes < 65536 ? max_bytes : 65536;
	if (!r && !(text = malloc(size + 1)))
		r = -ENOMEM;
	while (!r && len < size) {
		n = read(fd, text + len, size - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			r = -errno;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	close(fd);
	if (r < 0) {
		free(text);
		return r;
	}
	if (memchr(text, '\0', len)) { /* what stands behind it would be passed over */
		free(text);
		return -EILSEQ;
	}
	text[len] = '\0';
	*ret = text;
	return 0;
}

static int fs_write_all(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = write(fd, p, n);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

static void fs_parent(const char *path, char *ret, size_t size)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		snprintf(ret, size, ".");
	else if (slash == path)
		snprintf(ret, size, "/");
	else
		snprintf(ret, size, "%.*s", (int)(slash - path), path);
}

int fs_sync_dir(const char *path)
{
	int r = 0, fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: this file system has no fsync of folders */
		r = -errno;
	close(fd);
	return r;
}

static int64_t fs_copy_bytes(int in, int out)
{
	enum { COPY = 1 << 20 };
	uint8_t *buf = malloc(COPY);
	ssize_t n = 1;
	int64_t all = 0;
	int r = buf ? 0 : -ENOMEM;

	while (!r && n) {
		n = read(in, buf, COPY);
		if (n < 0 && errno == EINTR)
			continue;
		r = n < 0 ? -errno : fs_write_all(out, buf, (size_t)n);
		all += n;
	}
	if (!r && fsync(out) < 0)
		r = -errno;
	free(buf);
	return r ? r : all;
}

int64_t fs_copy(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out;
	int64_t r = in < 0 ? -errno : 0;

	if (r < 0)
		return r;
	(void)unlink(to); /* it may be one that we must not write to */
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
	r = out < 0 ? -errno : fs_copy_bytes(in, out);
	close(in);
	if (out >= 0)
		close(out);
	if (out >= 0 && r < 0)
		(void)unlink(to);
	return r;
}

int fs_write_atomic(const char *path, const void *p, size_t n)
{
	return fs_write_parts(path, &(struct fs_part){p, n}, 1);
}

enum { FS_PIECE = 8 << 20 };

/* Bytes [from, to) of the parts laid end to end. */
static int fs_write_range(int fd, const struct fs_part *v, int n, size_t from, size_t to)
{
	int r = 0;

	for (size_t at = 0; n > 0 && !r; at += v->len, v++, n--) {
		size_t lo = from > at ? from - at : 0, hi = to > at ? to - at : 0;

		hi = hi < v->len ? hi : v->len;
		if (lo < hi)
			r = fs_write_all(fd, (const uint8_t *)v->data + lo, hi - lo);
	}
	return r;
}

/* And on their way to the disk, a piece at a time; what is less than one is left to the fsync. */
static int fs_write_pieces(int fd, const struct fs_part *v, int n, size_t from, size_t to)
{
	const unsigned on_disk = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
	int r = 0;

	for (size_t end; from < to && !r; from = end) {
		end = to - from > FS_PIECE ? from + FS_PIECE : to;
		r = fs_write_range(fd, v, n, from, end);
		if (!r && end - from == FS_PIECE && sync_file_range(fd, (off_t)from, FS_PIECE, on_disk) < 0 && errno != ENOSYS && errno != EINVAL && errno != ESPIPE)
			r = -errno;
	}
	return r;
}

/* A new file in dir: without a name, so that a writer who is killed leaves nothing behind; or, where the file system or a missing /proc
 * does not let us name it later, with a temporary one. *temp: "" or that name. */
static int fs_open_new(const char *path, const char *dir, bool nameless, char temp[static PATH_MAX])
{
	int fd = nameless && access("/proc/self/fd", X_OK) == 0 ? open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600) : -1;

	temp[0] = '\0';
	if (fd >= 0)
		return fd;
	if (snprintf(temp, PATH_MAX, "%s.tmp-XXXXXX", path) >= PATH_MAX)
		return -ENAMETOOLONG;
	fd = mkostemp(temp, O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* A temporary name for a whole file that has none. */
static int fs_name(int fd, const char *path, char temp[static PATH_MAX])
{
	static atomic_uint count;
	char self[32];
	int r;

	snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
	do { /* another machine's process may have our number, and have left a name like ours */
		if (snprintf(temp, PATH_MAX, "%s.tmp-%x-%x", path, (unsigned)getpid(), atomic_fetch_add(&count, 1)) >= PATH_MAX)
			return -ENAMETOOLONG;
		r = linkat(AT_FDCWD, self, AT_FDCWD, temp, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
	} while (r == -EEXIST);
	return r;
}

/* All bytes on the disk, the mode right; the file is not closed. */
static int fs_fill(int fd, const struct fs_part *v, int n)
{
	size_t all = 0;
	int r;

	for (int i = 0; i < n; i++)
		all += v[i].len;
	fs_crash_point("fs-created");
	r = fs_write_pieces(fd, v, n, 0, all / 2);
	fs_crash_point("fs-half");
	if (!r)
		r = fs_write_pieces(fd, v, n, all / 2, all);
	if (!r && fchmod(fd, 0640) < 0)
		r = -errno;
	fs_crash_point("fs-written");
	if (!r && fsync(fd) < 0)
		r = -errno;
	fs_crash_point("fs-synced");
	return r;
}

enum { FS_NO_NAME = 1 }; /* a nameless file could not be named */

/* *temp: the new file under its temporary name, when 0 is returned. */
static int fs_write_temp(const char *path, const char *dir, const struct fs_part *v, int n, bool nameless, char temp[static PATH_MAX])
{
	int fd = fs_open_new(path, dir, nameless, temp), r = fd < 0 ? fd : fs_fill(fd, v, n);

	if (!r && !temp[0] && fs_name(fd, path, temp) < 0) {
		temp[0] = '\0';
		r = FS_NO_NAME;
	}
	if (fd >= 0 && close(fd) < 0 && !r)
		r = -errno;
	if (r && fd >= 0 && temp[0])
		(void)unlink(temp);
	return r;
}

int fs_write_parts(const char *path, const struct fs_part *v, int n)
{
	char temp[PATH_MAX], dir[PATH_MAX];
	int r;

	fs_parent(path, dir, sizeof dir);
	r = fs_write_temp(path, dir, v, n, true, temp);
	if (r == FS_NO_NAME)
		r = fs_write_temp(path, dir, v, n, false, temp);
	if (r)
		return r;
	if (rename(temp, path) < 0) {
		r = -errno;
		(void)unlink(temp);
		return r;
	}
	fs_crash_point("fs-renamed");
	return fs_sync_dir(dir);
}

int fs_mkdirs(const char *path)
{
	char part[PATH_MAX];
	size_t n = strlen(path);
	struct stat st;

	if (!n || n >= sizeof part)
		return n ? -ENAMETOOLONG : -ENOENT;
	memcpy(part, path, n + 1);
	for (size_t i = 1; i <= n; i++) {
		if (part[i] != '/' && part[i] != '\0')
			continue;
		part[i] = '\0';
		if (mkdir(part, 0750) < 0 && errno != EEXIST)
			return -errno;
		part[i] = path[i];
	}
	if (stat(path, &st) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* By descriptors and without following links: a link planted inside the folder
 * cannot make us remove something outside it. */
static int fs_remove_at(int dirfd, const char *name, int depth)
{
	struct dirent *d;
	DIR *dir;
	int r = 0, fd;

	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (depth > 64)
		return -ELOOP;
	fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	dir = fdopendir(fd);
	if (!dir) {
		r = -errno;
		close(fd);
		return r;
	}
	while (!r && (d = readdir(dir)))
		if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
			r = fs_remove_at(fd, d->d_name, depth + 1);
	closedir(dir);
	if (!r && unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		r = -errno;
	return r;
}

int fs_remove_tree(const char *path)
{
	return fs_remove_at(AT_FDCWD, path, 0);
}
