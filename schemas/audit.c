/* Sealing and reading the audit log (audit.h). Reading never stops at a line that does not fit: it is counted, named
 * if it is the first, and the chain is taken up again from the hash that the line itself carries, so that one change is one finding.
 */
#include "schemas/audit.h"
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"

static const char audit_zero[] = "0000000000000000000000000000000000000000000000000000000000000000";

int audit_seal(json_t *record, struct audit_head *head, struct buf *out)
{
	char hash[SHA_HEX], *text = NULL;
	int r = json_object_set_new(record, "seq", json_integer((json_int_t)head->seq + 1)) < 0 ||
				json_object_set_new(record, "prev", json_string(head->hash[0] ? head->hash : audit_zero)) < 0
			? -ENOMEM : 0;

	if (!r && !(text = json_dumps(record, JSON_COMPACT | JSON_SORT_KEYS)))
		r = -ENOMEM;
	if (!r && strlen(text) + SHA_HEX + 1 > AUDIT_MAX_LINE)
		r = -E2BIG;
	if (!r) {
		sha_hex(text, strlen(text), hash);
		r = buf_printf(out, "%s %s\n", hash, text);
	}
	if (!r) {
		head->seq++;
		memcpy(head->hash, hash, sizeof hash);
	}
	free(text);
	return r;
}

static void audit_misfit(struct audit_seen *s, const char *file, uint64_t line, const char *why)
{
	if (!s->broken++)
		snprintf(s->what, sizeof s->what, "%.80s, line %" PRIu64 ": %s", file, line, why);
}

/* One whole line, without its end. */
static void audit_line(struct audit_seen *s, const char *file, uint64_t n, const char *p, size_t len, void (*each)(void *, const json_t *), void *arg)
{
	const char *prev, *why = NULL;
	char hash[SHA_HEX];
	json_t *j = NULL;
	uint64_t seq;

	if (len < SHA_HEX || p[SHA_HEX - 1] != ' ' || !(j = json_loadb(p + SHA_HEX, len - SHA_HEX, JSON_REJECT_DUPLICATES, NULL)) || !json_is_object(j)) {
		audit_misfit(s, file, n, "it does not read as a hash and an object");
		json_decref(j);
		return;
	}
	sha_hex(p + SHA_HEX, len - SHA_HEX, hash);
	prev = json_string_value(json_object_get(j, "prev"));
	seq = (uint64_t)json_integer_value(json_object_get(j, "seq"));
	if (memcmp(hash, p, SHA_HEX - 1) != 0)
		why = "its text is not what its hash was made of";
	else if (s->head.hash[0] && (!prev || strcmp(prev, s->head.hash) != 0))
		why = "it does not follow the line before it";
	else if (s->head.hash[0] && seq != s->head.seq + 1)
		why = "its number does not follow";
	if (why)
		audit_misfit(s, file, n, why);
	if (!s->first)
		s->first = seq;
	s->lines += !why;
	s->head.seq = seq;
	memcpy(s->head.hash, p, SHA_HEX - 1);
	s->head.hash[SHA_HEX - 1] = '\0';
	if (each)
		each(arg, j);
	json_decref(j);
}

static int audit_file(const char *dir, const char *name, struct audit_seen *s, void (*each)(void *, const json_t *), void *arg)
{
	char path[PATH_MAX];
	struct fs_map m;
	uint64_t line = 0;
	int r = snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path ? fs_map(path, &m) : -ENAMETOOLONG;

	if (r < 0)
		return r;
	s->files++;
	s->whole = 0;
	while ((size_t)s->whole < m.len) {
		const uint8_t *at = m.data + s->whole, *nl = memchr(at, '\n', m.len - (size_t)s->whole);

		if (!nl)
			break;
		audit_line(s, name, ++line, (const char *)at, (size_t)(nl - at), each, arg);
		s->whole = nl + 1 - m.data;
	}
	s->torn = (size_t)s->whole < m.len;
	fs_unmap(&m);
	return 0;
}

int audit_read(const char *dir, struct audit_seen *ret, void (*each)(void *arg, const json_t *record), void *arg, struct errtext *e)
{
	struct audit_seen s = {0};
	char name[24];
	int r = 0;

	for (int i = AUDIT_MAX_FILES; i >= 0 && !r; i--) {
		snprintf(name, sizeof name, i ? "audit.%d" : "audit.log", i);
		if (s.torn) /* only the last file may end in a piece of a line */
			audit_misfit(&s, "an older file", 0, "it ends within a line");
		s.torn = false;
		r = audit_file(dir, name, &s, each, arg);
		if (r == -ENOENT) {
			s.whole = 0;
			r = 0;
		}
	}
	if (r < 0)
		return errtext_set(e, r, "%.120s/%s: %s", dir, name, strerror(-r));
	*ret = s;
	return 0;
}

struct audit_tail {
	json_t *list;
	size_t most;
};

static void audit_keep(void *arg, const json_t *record)
{
	struct audit_tail *t = arg;

	(void)json_array_append(t->list, (json_t *)(uintptr_t)record);
	if (json_array_size(t->list) > t->most)
		(void)json_array_remove(t->list, 0);
}

int audit_last(const char *dir, size_t most, struct audit_seen *ret, json_t **ret_records, struct errtext *e)
{
	struct audit_tail t = {json_array(), most};
	int r = audit_read(dir, ret, audit_keep, &t, e);

	if (r < 0)
		json_decref(t.list);
	else
		*ret_records = t.list;
	return r;
}

json_t *audit_reply(const struct audit_seen *s, json_t *records)
{
	return json_pack("{s:o, s:b, s:s, s:i, s:I, s:I, s:i, s:{s:I, s:s}}", "records", records, "whole", s->broken == 0, "broken_at", s->what, "broken",
			 s->broken, "first", (json_int_t)s->first, "lines", (json_int_t)s->lines, "files", s->files, "head", "seq", (json_int_t)s->head.seq,
			 "hash", s->head.hash);
}

int audit_append(const char *dir, json_t *record, struct errtext *e)
{
	char path[PATH_MAX];
	struct buf line = BUF_INIT(0);
	struct audit_seen s;
	int r = fs_mkdirs(dir), fd = -1;

	if (!r)
		r = audit_read(dir, &s, NULL, NULL, e);
	if (!r)
		r = audit_seal(record, &s.head, &line);
	if (!r && snprintf(path, sizeof path, "%s/audit.log", dir) >= (int)sizeof path)
		r = -ENAMETOOLONG;
	if (!r && (fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640)) < 0)
		r = -errno;
	errno = EIO; /* what a short write is */
	if (!r && (ftruncate(fd, s.whole) < 0 || pwrite(fd, line.data, line.len, s.whole) != (ssize_t)line.len || fsync(fd) < 0))
		r = -errno;
	if (fd >= 0)
		close(fd);
	if (!r)
		r = fs_sync_dir(dir);
	buf_done(&line);
	return r < 0 ? errtext_set(e, r, "%.150s: %s", dir, strerror(-r)) : 0;
}
