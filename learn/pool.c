/* Append-only segments (learn/pool.h).
 *
 * Segment files are pool/%08u.seg. An entry is a 40-byte header and the blob:
 * magic, length, partition, offset, the first 16 bytes of the SHA-256 of the
 * blob. Writes go at an explicit place and never truncate: after a crash the
 * tail beyond the checkpoint is old but whole entries of the same run, which
 * pool_peek offers to the repeat of the journal. An entry past its time keeps its
 * header, so that those behind it are still found; its blob is a hole.
 */
#include "learn/pool.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fs.h"
#include "daemon/base/sha.h"

enum { MAGIC = 0x314c5052 /* "RPL1" */, ERASED = 0x304c5052 /* "RPL0" */, BLOB_MAX = 16 << 20, ON_ITS_WAY = 4 << 20 };

struct entry {
	uint32_t magic, len;
	int32_t partition;
	uint32_t time_s;
	int64_t offset;
	uint8_t sum[16];
};
_Static_assert(sizeof(struct entry) == 40, "layout on disk");

struct pool {
	char *dir;
	_Atomic uint64_t *beats; /* borrowed, may be NULL */
	uint32_t segment_bytes;
	uint64_t max_bytes;
	struct pool_where at;
	int fd;              /* of the segment being written, or -1 */
	uint32_t fd_segment;
	int rfd;             /* of the segment last read, or -1 */
	uint32_t rfd_segment;
};

static int seg_path(const struct pool *p, uint32_t segment, char ret[PATH_MAX])
{
	return snprintf(ret, PATH_MAX, "%s/%08u.seg", p->dir, segment) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

int pool_open(const struct pool_options *o, struct pool **ret, struct errtext *e)
{
	int r = fs_mkdirs(o->dir);
	if (r)
		return errtext_set(e, r, "state_dir: cannot make %.150s: %s", o->dir, strerror(-r));
	struct pool *p = calloc(1, sizeof *p);
	if (!p || !(p->dir = strdup(o->dir))) {
		free(p);
		return -ENOMEM;
	}
	p->segment_bytes = o->segment_bytes;
	p->max_bytes = o->max_bytes;
	p->beats = o->beats;
	p->fd = p->rfd = -1;
	*ret = p;
	return 0;
}

struct pool *pool_close(struct pool *p)
{
	if (!p)
		return NULL;
	if (p->fd >= 0)
		(void)close(p->fd);
	if (p->rfd >= 0)
		(void)close(p->rfd);
	free(p->dir);
	free(p);
	return NULL;
}

struct pool_where pool_where(const struct pool *p)
{
	return p->at;
}

void pool_rewind(struct pool *p, struct pool_where w)
{
	p->at = w;
}

void pool_set_sizes(struct pool *p, uint32_t segment_bytes, uint64_t max_bytes)
{
	p->segment_bytes = segment_bytes;
	p->max_bytes = max_bytes;
}

/* By whole segments, so that it is a function of where we are alone. */
uint64_t pool_bytes(const struct pool *p)
{
	return (uint64_t)(p->at.segment - p->at.first) * p->segment_bytes + p->at.offset;
}

static int open_segment(struct pool *p, uint32_t segment, bool write, int *ret)
{
	int *fd = write ? &p->fd : &p->rfd;
	uint32_t *which = write ? &p->fd_segment : &p->rfd_segment;
	if (*fd < 0 || *which != segment) {
		char path[PATH_MAX];
		int r = seg_path(p, segment, path);
		if (r)
			return r;
		int n = open(path, write ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0640);
		if (n < 0)
			return -errno;
		if (*fd >= 0) {
			if (write && fdatasync(*fd)) { /* a full segment is durable before we leave it */
				r = -errno;
				(void)close(n);
				return r;
			}
			(void)close(*fd);
		}
		*fd = n;
		*which = segment;
	}
	*ret = *fd;
	return 0;
}

static int write_at(int fd, const void *buf, size_t n, off_t at)
{
	for (const uint8_t *b = buf; n;) {
		ssize_t w = pwrite(fd, b, n, at);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return w < 0 ? -errno : -EIO;
		b += w, n -= (size_t)w, at += w;
	}
	return 0;
}

static int read_at(int fd, void *buf, size_t n, off_t at)
{
	for (uint8_t *b = buf; n;) {
		ssize_t w = pread(fd, b, n, at);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return w < 0 ? -errno : -EIO;
		b += w, n -= (size_t)w, at += w;
	}
	return 0;
}

static void checksum(const void *blob, size_t len, uint8_t ret[16])
{
	char hex[SHA_HEX];
	sha_hex(blob, len, hex);
	memcpy(ret, hex, 16); /* 64 bits as hex digits: enough against torn writes */
}

/* Entry at (segment, offset) into *h and its blob appended to *out, checked. */
static int read_entry(struct pool *p, uint32_t segment, uint32_t offset, struct entry *h, struct buf *out)
{
	int fd, r = open_segment(p, segment, false, &fd);
	*h = (struct entry){0}; /* behind the last one nothing is read: not the one before again */
	if (r)
		return r;
	if ((r = read_at(fd, h, sizeof *h, offset)))
		return r;
	if (h->magic != MAGIC || h->len > BLOB_MAX)
		return -EIO;
	buf_clear(out);
	if ((r = buf_reserve(out, h->len)))
		return r;
	if ((r = read_at(fd, out->data, h->len, (off_t)offset + (off_t)sizeof *h)))
		return r;
	uint8_t sum[16];
	checksum(out->data, h->len, sum);
	if (memcmp(sum, h->sum, sizeof sum) != 0)
		return -EIO;
	out->len = h->len;
	return 0;
}

static bool fits(const struct pool *p, uint32_t len)
{
	return p->at.offset == 0 || (uint64_t)p->at.offset + sizeof(struct entry) + len <= p->segment_bytes;
}

int pool_append(struct pool *p, int partition, int64_t offset, int64_t time_s, const void *blob, uint32_t len, struct pool_ref *ret)
{
	struct pool_where at = p->at;
	if (!fits(p, len)) {
		at.segment++;
		at.offset = 0;
	}
	uint32_t when = time_s > 0 && time_s <= UINT32_MAX ? (uint32_t)time_s : 0;
	struct entry h = {.magic = MAGIC, .len = len, .partition = partition, .time_s = when, .offset = offset};
	checksum(blob, len, h.sum);
	int fd, r = open_segment(p, at.segment, true, &fd);
	if (!r)
		r = write_at(fd, blob, len, (off_t)at.offset + (off_t)sizeof h);
	if (!r)
		r = write_at(fd, &h, sizeof h, at.offset);
	if (r)
		return r;
	*ret = (struct pool_ref){at.segment, at.offset, len};
	at.offset += (uint32_t)sizeof h + len;
	if (at.offset / ON_ITS_WAY != ret->offset / ON_ITS_WAY) /* so that who syncs later waits for little */
		(void)sync_file_range(fd, 0, at.offset, SYNC_FILE_RANGE_WRITE);
	p->at = at;
	return 0;
}

int pool_peek(struct pool *p, int partition, int64_t offset, struct buf *out, int64_t *ret_time_s)
{
	struct entry h;
	bool got = !read_entry(p, p->at.segment, p->at.offset, &h, out) && h.partition == partition && h.offset == offset && fits(p, h.len);
	if (!got)
		got = p->at.offset && !read_entry(p, p->at.segment + 1, 0, &h, out) && h.partition == partition && h.offset == offset && !fits(p, h.len);
	if (!got)
		return -ENOENT;
	*ret_time_s = h.time_s;
	return 0;
}

int pool_read(struct pool *p, struct pool_ref ref, struct buf *out)
{
	struct entry h;
	int r = read_entry(p, ref.segment, ref.offset, &h, out);
	return r ? r : h.len == ref.len ? 0 : -EIO;
}

/* A header whose blob was erased: what read_entry refused, but not the end of anything. */
static bool erased(const struct entry *h)
{
	return h->magic == ERASED && h->len <= BLOB_MAX;
}

/* The oldest segment there is, or 0 in an empty folder. */
static int oldest_segment(const struct pool *p, uint32_t *ret)
{
	DIR *d = opendir(p->dir);
	uint32_t best = UINT32_MAX, n;
	int used = 0;
	if (!d)
		return -errno;
	for (struct dirent *x; (x = readdir(d));)
		if (sscanf(x->d_name, "%8" SCNu32 ".seg%n", &n, &used) == 1 && used == 12 && !x->d_name[used] && n < best)
			best = n;
	(void)closedir(d);
	*ret = best == UINT32_MAX ? 0 : best;
	return 0;
}

int pool_scan(struct pool *p, int (*each)(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref), void *arg)
{
	struct buf blob = BUF_INIT(0);
	struct pool_where at = {0};
	struct entry h;
	int r = oldest_segment(p, &at.first);
	at.segment = at.first;
	while (!r) {
		int k = read_entry(p, at.segment, at.offset, &h, &blob);
		if (k && k != -ENOMEM && !erased(&h)) { /* the segment's last is behind us */
			k = read_entry(p, at.segment + 1, 0, &h, &blob);
			if (k && k != -ENOMEM && !erased(&h))
				break;
			at.segment++;
			at.offset = 0;
		}
		if (k == -ENOMEM)
			r = k;
		else if (!k)
			r = each(arg, h.partition, h.offset, blob.data, h.len, (struct pool_ref){at.segment, at.offset, h.len});
		at.offset += (uint32_t)sizeof h + h.len;
	}
	buf_done(&blob);
	if (!r)
		p->at = at;
	return r;
}

int pool_copy(struct pool *p, struct pool_ref ref, struct pool_ref *ret)
{
	struct buf blob = BUF_INIT(0);
	struct entry h;
	int r = read_entry(p, ref.segment, ref.offset, &h, &blob);
	if (!r)
		r = h.len == ref.len ? pool_append(p, h.partition, h.offset, h.time_s, blob.data, h.len, ret) : -EIO;
	buf_done(&blob);
	return r;
}

/* ---- retention ---- */

/* The header at (segment, offset) without its blob. -EIO: none. */
static int read_header(struct pool *p, uint32_t segment, uint32_t offset, struct entry *h)
{
	int fd, r = open_segment(p, segment, false, &fd);
	if (!r)
		r = read_at(fd, h, sizeof *h, offset);
	return r ? r : erased(h) || (h->magic == MAGIC && h->len <= BLOB_MAX) ? 0 : -EIO;
}

static int each_header(struct pool *p, int (*each)(struct pool *p, uint32_t segment, uint32_t offset, struct entry *h, void *arg), void *arg)
{
	uint32_t segment;
	struct entry h = {0};
	int r = oldest_segment(p, &segment);
	for (; !r && segment <= p->at.segment; segment++)
		for (uint32_t at = 0; !r && (segment < p->at.segment || at < p->at.offset); at += (uint32_t)sizeof h + h.len) {
			int k = read_header(p, segment, at, &h);
			if (k == -EIO || k == -ENOENT) /* no further one in this segment */
				break;
			r = k ? k : each(p, segment, at, &h, arg);
			if (p->beats)
				++*p->beats;
		}
	return r;
}

static int note_oldest(struct pool *p, uint32_t segment, uint32_t offset, struct entry *h, void *arg)
{
	int64_t *oldest = arg;
	(void)p, (void)segment, (void)offset;
	if (h->magic == MAGIC && h->time_s < *oldest)
		*oldest = h->time_s;
	return 0;
}

int pool_oldest(struct pool *p, int64_t *ret_time_s)
{
	int64_t oldest = INT64_MAX;
	int r = each_header(p, note_oldest, &oldest);
	if (!r)
		*ret_time_s = oldest;
	return r;
}

struct erasing { int64_t before; uint64_t n; };

static int zero(int fd, uint32_t offset, uint32_t len)
{
	static const uint8_t nothing[4096];
	if (!len || !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, len))
		return 0;
	for (uint32_t at = 0; at < len;) { /* a file system without holes */
		uint32_t n = len - at < sizeof nothing ? len - at : (uint32_t)sizeof nothing;
		int r = write_at(fd, nothing, n, (off_t)offset + at);
		if (r)
			return r;
		at += n;
	}
	return 0;
}

/* The header says so only once the bytes are gone: what is interrupted in between looks damaged, and is erased again.
 * Durable with cut_tails(). */
static int erase(struct pool *p, uint32_t segment, uint32_t offset, const struct entry *h)
{
	char path[PATH_MAX];
	int r = seg_path(p, segment, path), fd = r ? -1 : open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return r ? r : -errno;
	struct entry gone = {.magic = ERASED, .len = h->len, .partition = h->partition, .offset = h->offset};
	r = zero(fd, offset + (uint32_t)sizeof gone, h->len);
	if (!r && fdatasync(fd))
		r = -errno;
	if (!r)
		r = write_at(fd, &gone, sizeof gone, offset);
	(void)close(fd);
	return r;
}

/* The segment's file ends with its last entry, and is durable; one that is not begun yet goes. -ENOENT: there is none. */
static int cut_tail(struct pool *p, uint32_t segment)
{
	char path[PATH_MAX];
	struct entry h;
	struct stat st;
	uint32_t at = 0;
	int r = seg_path(p, segment, path);
	if (r || stat(path, &st))
		return r ? r : -errno;
	if (segment > p->at.segment) {
		if (p->rfd >= 0 && p->rfd_segment == segment) { /* another file gets that name later */
			(void)close(p->rfd);
			p->rfd = -1;
		}
		return unlink(path) ? -errno : 0;
	}
	while (segment < p->at.segment && !(r = read_header(p, segment, at, &h)))
		at += (uint32_t)sizeof h + h.len;
	if (r && r != -EIO)
		return r;
	at = segment == p->at.segment ? p->at.offset : at;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	r = fd < 0 || (st.st_size > (off_t)at && ftruncate(fd, at)) || fsync(fd) ? -errno : 0;
	if (fd >= 0)
		(void)close(fd);
	return r;
}

static int cut_tails(struct pool *p)
{
	uint32_t segment;
	int r = oldest_segment(p, &segment);
	for (; !r; segment++) {
		r = cut_tail(p, segment);
		if (r == -ENOENT && segment < p->at.segment)
			r = 0;
	}
	return r == -ENOENT ? 0 : r;
}

static int erase_older(struct pool *p, uint32_t segment, uint32_t offset, struct entry *h, void *arg)
{
	struct erasing *x = arg;
	if (h->magic != MAGIC || h->time_s >= x->before)
		return 0;
	int r = erase(p, segment, offset, h);
	x->n += !r;
	return r;
}

int pool_erase_older(struct pool *p, int64_t time_s, uint64_t *ret_n)
{
	struct erasing x = {.before = time_s};
	int r = each_header(p, erase_older, &x);
	if (!r)
		r = cut_tails(p);
	*ret_n = x.n;
	return r;
}

struct matching {
	bool (*match)(void *arg, const void *blob, uint32_t len);
	void *arg;
	struct buf blob;
	uint64_t n, bytes;
};

static int erase_matching(struct pool *p, uint32_t segment, uint32_t offset, struct entry *h, void *arg)
{
	struct matching *x = arg;
	struct entry again;
	if (h->magic != MAGIC)
		return 0;
	int r = read_entry(p, segment, offset, &again, &x->blob);
	if ((r && r != -EIO) || (!r && !x->match(x->arg, x->blob.data, h->len)))
		return r;
	r = erase(p, segment, offset, h); /* one that is damaged goes too: nobody can say whose it was, and nobody can read it */
	x->n += !r;
	x->bytes += r ? 0 : h->len;
	return r;
}

int pool_erase_if(struct pool *p, bool (*match)(void *arg, const void *blob, uint32_t len), void *arg, uint64_t *ret_n, uint64_t *ret_bytes)
{
	struct matching x = {.match = match, .arg = arg, .blob = BUF_INIT(0)};
	int r = each_header(p, erase_matching, &x);
	if (!r)
		r = cut_tails(p);
	buf_done(&x.blob);
	*ret_n = x.n;
	*ret_bytes = x.bytes;
	return r;
}

int pool_sync(struct pool *p)
{
	if (p->fd >= 0 && fdatasync(p->fd))
		return -errno;
	return fs_sync_dir(p->dir);
}

int pool_sync_later(struct pool *p, int ret_fd[2])
{
	ret_fd[0] = p->fd >= 0 ? fcntl(p->fd, F_DUPFD_CLOEXEC, 0) : -1; /* full segments were synced when they were left */
	ret_fd[1] = p->fd < 0 || ret_fd[0] >= 0 ? open(p->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	return ret_fd[1] < 0 ? -errno : 0;
}

bool pool_shrink(struct pool *p)
{
	if (pool_bytes(p) <= p->max_bytes || p->at.first >= p->at.segment)
		return false;
	p->at.first++;
	return true;
}

void pool_delete_below(struct pool *p, uint32_t segment)
{
	char path[PATH_MAX];
	uint32_t s;
	for (int r = oldest_segment(p, &s); !r && s < segment; s++) /* whoever was killed in the middle of this left some, and perhaps a gap */
		if (!seg_path(p, s, path))
			(void)unlink(path);
}
