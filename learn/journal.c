/* The journal on disk (learn/journal.h).
 *
 * A line is "<word> <fields> #<16 hex>\n": the first 64 bits of the SHA-256 of
 * the text before " #". The first line of a batch has "@" in the place of "#" (journals of older
 * programs have none: there only the last line may be torn). Opening scans the file once, so that damage shows at the
 * start, not after an hour of repeating. Appends are kept in memory until
 * journal_sync, which writes them with one write and one fdatasync.
 */
#include "learn/journal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/buf.h"
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/sha.h"

enum { LINE_MAX_BYTES = JOURNAL_TEXT + 160, BATCH_MAX_BYTES = 1 << 20 };

struct journal {
	_Atomic uint64_t *beats; /* borrowed, may be NULL */
	int fd;
	int64_t end;      /* durable bytes */
	struct buf tail;  /* appended since */
	bool broken;      /* a write or sync failed: nothing after it can be believed */
	uint64_t waited_us;
};

static const char *const words[J_N] = {"config", "take", "gap", "init", "rebase", "step", "publish", "submitted", "withdraw", "verdict", "pause", "resume", "drift", "expire", "purge"};

const char *journal_word(enum journal_kind k)
{
	return k < J_N ? words[k] : "?";
}

static void checksum(const char *s, size_t n, char ret[17])
{
	char hex[SHA_HEX];
	sha_hex(s, n, hex);
	memcpy(ret, hex, 16);
	ret[16] = 0;
}

static int print(const struct journal_entry *x, char *line, size_t size)
{
	switch (x->kind) {
	case J_TAKE:
		return snprintf(line, size, "take %d %" PRId64 " %" PRId64, x->partition, x->offset, x->count);
	case J_GAP:
		return snprintf(line, size, "gap %d %" PRId64 " %" PRId64, x->partition, x->offset, x->to);
	case J_STEP:
	case J_DRIFT:
	case J_EXPIRE:
		return snprintf(line, size, "%s %" PRId64, words[x->kind], x->number);
	case J_SUBMITTED:
		return snprintf(line, size, "submitted %u", x->version);
	case J_REBASE:
	case J_VERDICT:
		return snprintf(line, size, "%s %u %s", words[x->kind], x->version, x->text);
	case J_CONFIG:
	case J_PUBLISH:
	case J_INIT:
	case J_PURGE:
		return snprintf(line, size, "%s %s", words[x->kind], x->text);
	default:
		return snprintf(line, size, "%s", words[x->kind]);
	}
}

/* One line without its newline; 0 or -EINVAL. */
static int parse(char *line, struct journal_entry *ret, bool *ret_first)
{
	size_t len = strlen(line);
	char *mark = line + len - 17, sum[17];
	if (len < 19 || mark[-1] != ' ' || (*mark != '#' && *mark != '@'))
		return -EINVAL;
	*ret_first = *mark == '@';
	mark[-1] = 0;
	checksum(line, strlen(line), sum);
	if (strcmp(sum, mark + 1) != 0)
		return -EINVAL;
	struct journal_entry x = {.kind = J_N};
	char *args = strchr(line, ' ');
	if (args)
		*args++ = 0;
	else
		args = line + strlen(line);
	for (int k = 0; k < J_N; k++)
		if (strcmp(line, words[k]) == 0)
			x.kind = (enum journal_kind)k;
	int used = 0, ok = 1;
	switch (x.kind) {
	case J_TAKE:
		ok = sscanf(args, "%d %" SCNd64 " %" SCNd64, &x.partition, &x.offset, &x.count) == 3;
		break;
	case J_GAP:
		ok = sscanf(args, "%d %" SCNd64 " %" SCNd64, &x.partition, &x.offset, &x.to) == 3;
		break;
	case J_STEP:
	case J_DRIFT:
	case J_EXPIRE:
		ok = sscanf(args, "%" SCNd64, &x.number) == 1;
		break;
	case J_SUBMITTED:
		ok = sscanf(args, "%u", &x.version) == 1;
		break;
	case J_REBASE:
	case J_VERDICT:
		ok = sscanf(args, "%u %n", &x.version, &used) == 1;
		args += used;
		/* fall through */
	case J_CONFIG:
	case J_PUBLISH:
	case J_INIT:
	case J_PURGE:
		ok = ok && strlen(args) < sizeof x.text;
		if (ok)
			memcpy(x.text, args, strlen(args) + 1);
		break;
	case J_N:
		ok = 0;
		break;
	default:
		break;
	}
	if (!ok)
		return -EINVAL;
	*ret = x;
	return 0;
}

/* The line at `at` without its newline. 0, JOURNAL_E_END (nothing, or no newline yet), -EINVAL, -errno. */
static int line_at(const struct journal *j, int64_t at, char line[LINE_MAX_BYTES + 1], int64_t *ret_next)
{
	ssize_t n = pread(j->fd, line, LINE_MAX_BYTES, at);
	if (n < 0)
		return -errno;
	char *nl = memchr(line, '\n', (size_t)n);
	if (!nl)
		return n == LINE_MAX_BYTES ? -EINVAL : JOURNAL_E_END;
	*nl = 0;
	*ret_next = at + (nl - line) + 1;
	return 0;
}

static int read_line(const struct journal *j, int64_t at, struct journal_entry *ret, int64_t *ret_next, bool *ret_first)
{
	char line[LINE_MAX_BYTES + 1];
	int64_t next = 0;
	if (at >= j->end)
		return JOURNAL_E_END;
	int r = line_at(j, at, line, &next);
	if (!r)
		r = parse(line, ret, ret_first);
	if (!r)
		*ret_next = next;
	return r;
}

/* *ret_batches: does it say where batches begin? */
static int64_t count_entries(struct journal *j, int64_t *ret_end, bool *ret_batches, int *ret_r)
{
	struct journal_entry x;
	int64_t at = 0, next = 0, n = 0;
	bool first = false;
	*ret_batches = false;
	while (!(*ret_r = read_line(j, at, &x, &next, &first))) {
		at = next, n++;
		*ret_batches |= first;
		if (j->beats)
			++*j->beats;
	}
	*ret_end = at;
	return n;
}

/* Does a batch begin behind the damaged place at `from`? Then what is damaged was durable once. */
static int batch_begins_behind(const struct journal *j, int64_t from, bool *ret)
{
	struct journal_entry x;
	int64_t n = j->end - from;
	*ret = true;
	if (n > BATCH_MAX_BYTES + LINE_MAX_BYTES)
		return 0;
	char *text = malloc((size_t)n + 1), *s = text;
	ssize_t got = text ? pread(j->fd, text, (size_t)n, from) : 0;
	if (!text || got < 0) {
		free(text);
		return text ? -errno : -ENOMEM;
	}
	bool found = false, first = false;
	text[got] = 0;
	for (char *end = text + got, *nl; !found && (nl = memchr(s, '\n', (size_t)(end - s))); s = nl + 1) {
		*nl = 0;
		found = (size_t)(nl - s) == strlen(s) && nl - s <= LINE_MAX_BYTES && !parse(s, &x, &first) && first;
	}
	free(text);
	*ret = found;
	return 0;
}

/* Cut a torn tail: what follows the last good line, where no whole batch follows it. */
static int scan(struct journal *j, const char *path, bool read_only, struct errtext *e)
{
	struct stat st;
	if (fstat(j->fd, &st))
		return -errno;
	j->end = st.st_size;
	int64_t end;
	int r;
	bool batches, durable = true;
	int64_t n = count_entries(j, &end, &batches, &r);
	if (r < 0) {
		char line[LINE_MAX_BYTES + 1];
		int64_t next = 0;
		int k = line_at(j, end, line, &next);
		bool last = k == JOURNAL_E_END || (k == 0 && next >= st.st_size);
		if (!last && batches && (k = batch_begins_behind(j, end, &durable)))
			return k;
		if (!last && durable)
			return errtext_set(e, -EINVAL, "%.150s: line %" PRId64 " is damaged: move the state folder away to start anew", path, n + 1);
	}
	if (end < st.st_size && !read_only && (ftruncate(j->fd, end) || fdatasync(j->fd)))
		return -errno;
	j->end = end;
	return 0;
}

int journal_open(const char *path, bool read_only, _Atomic uint64_t *beats, struct journal **ret, struct errtext *e)
{
	struct journal *j = calloc(1, sizeof *j);
	if (!j)
		return -ENOMEM;
	j->beats = beats;
	j->tail = BUF_INIT(BATCH_MAX_BYTES);
	j->fd = open(path, (read_only ? O_RDONLY : O_RDWR | O_CREAT) | O_CLOEXEC, 0640);
	int r = j->fd < 0 ? errtext_set(e, -errno, "%.150s: %s", path, strerror(errno)) : 0;
	if (!r && !read_only && flock(j->fd, LOCK_EX | LOCK_NB)) /* before the scan, which cuts what it takes for torn */
		r = errno == EWOULDBLOCK ? errtext_set(e, -EBUSY, "%.150s is in use by another redraft-learn: stop it first, or use another state_dir", path) : -errno;
	if (!r)
		r = scan(j, path, read_only, e);
	if (!r && !read_only) {
		char dir[4096];
		(void)snprintf(dir, sizeof dir, "%s", path);
		char *slash = strrchr(dir, '/');
		if (slash) {
			*slash = 0;
			r = fs_sync_dir(dir);
		}
	}
	if (r) {
		journal_close(j);
		return r;
	}
	*ret = j;
	return 0;
}

struct journal *journal_close(struct journal *j)
{
	if (!j)
		return NULL;
	if (j->fd >= 0)
		(void)close(j->fd);
	buf_done(&j->tail);
	free(j);
	return NULL;
}

int64_t journal_end(const struct journal *j)
{
	return j->end + (int64_t)j->tail.len;
}

int journal_append(struct journal *j, const struct journal_entry *x)
{
	char line[LINE_MAX_BYTES], sum[17];
	int n = print(x, line, sizeof line - 32);
	if (n < 0 || n >= (int)sizeof line - 32 || memchr(line, '\n', (size_t)n))
		return -EINVAL;
	checksum(line, (size_t)n, sum);
	return buf_printf(&j->tail, "%s %c%s\n", line, j->tail.len ? '#' : '@', sum);
}

int journal_sync(struct journal *j)
{
	if (j->broken)
		return -EIO;
	size_t done = 0;
	uint64_t began = clock_us();
	while (done < j->tail.len) {
		ssize_t w = pwrite(j->fd, j->tail.data + done, j->tail.len - done, j->end + (int64_t)done);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0) {
			j->broken = true;
			return w < 0 ? -errno : -EIO;
		}
		done += (size_t)w;
		if (done < j->tail.len)
			continue;
	}
	if (done) {
		fs_crash_point("journal-written");
		if (fdatasync(j->fd)) {
			j->broken = true;
			return -errno;
		}
		fs_crash_point("journal-synced");
		j->waited_us += clock_us() - began;
	}
	j->end += (int64_t)done;
	buf_clear(&j->tail);
	return 0;
}

uint64_t journal_waited_us(const struct journal *j)
{
	return j->waited_us;
}

int journal_cut(struct journal *j, int64_t at)
{
	buf_clear(&j->tail);
	if (ftruncate(j->fd, at) || fdatasync(j->fd))
		return -errno;
	j->end = at;
	return 0;
}

int journal_read(struct journal *j, int64_t at, struct journal_entry *ret, int64_t *ret_next)
{
	bool first;
	return read_line(j, at, ret, ret_next, &first);
}
