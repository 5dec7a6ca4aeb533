/* Checkpoint files (learn/checkpoint.h): %012d.ckpt, the number grows with each. */
#include "learn/checkpoint.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/fs.h"
#include "daemon/base/sha.h"
#include "schemas/safetensors.h"

enum { KEEP = 2 };

static const enum st_dtype real_type = sizeof(real) == 8 ? ST_F64 : ST_F32;

void checkpoint_done(struct checkpoint *c)
{
	json_decref(c->state);
	if (c->room) {
		(void)munmap(c->room, c->room_bytes);
	} else {
		free(c->params);
		free(c->moments);
		free(c->average);
		free(c->anchor);
		free(c->d2t);
		free(c->counts);
	}
	memset(c, 0, sizeof *c);
}

/* Where the next array of the room lies; base NULL: only counted. */
static void *place(uint8_t *base, size_t *at, size_t bytes)
{
	void *p = base ? base + *at : NULL;
	*at += (bytes + 63) / 64 * 64;
	return p;
}

static size_t lay_out(struct checkpoint *c, uint8_t *base, bool average, bool anchor)
{
	size_t at = 0, params = c->n_params * sizeof *c->params;
	c->counts = place(base, &at, (size_t)c->V * sizeof *c->counts);
	if (c->n_params) {
		c->d2t = place(base, &at, (size_t)c->V_d * sizeof *c->d2t);
		c->params = place(base, &at, params);
		c->moments = place(base, &at, c->n_moments * sizeof *c->moments);
	}
	c->average = c->n_params && average ? place(base, &at, params) : NULL;
	c->anchor = c->n_params && anchor ? place(base, &at, params) : NULL;
	return at;
}

int checkpoint_room(struct checkpoint *c, bool average, bool anchor)
{
	size_t bytes = lay_out(c, NULL, average, anchor);
	if (c->room_bytes != bytes) {
		void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return -ENOMEM;
		if (c->room)
			(void)munmap(c->room, c->room_bytes);
		(void)madvise(p, bytes, MADV_HUGEPAGE);
		c->room = p;
		c->room_bytes = bytes;
	}
	(void)lay_out(c, c->room, average, anchor);
	return 0;
}

void checkpoint_make_pages(struct checkpoint *c)
{
	enum { PAGE = 4096 };
	for (size_t at = 0; at < c->room_bytes; at += PAGE)
		((volatile uint8_t *)c->room)[at] = 0;
}

/* Serial numbers present, newest first, at most max. */
static int list(const char *dir, int64_t *ret, int max)
{
	DIR *d = opendir(dir);
	int n = 0;
	for (const struct dirent *de; d && (de = readdir(d));) {
		int64_t s;
		int used = 0;
		if (sscanf(de->d_name, "%12" SCNd64 ".ckpt%n", &s, &used) != 1 || used == 0 || de->d_name[used])
			continue;
		int i = n < max ? n++ : max - 1;
		for (; i > 0 && ret[i - 1] < s; i--)
			ret[i] = ret[i - 1];
		if (i < max)
			ret[i] = s;
	}
	if (d)
		closedir(d);
	return n;
}

static int path_of(const char *dir, int64_t serial, char ret[PATH_MAX])
{
	return snprintf(ret, PATH_MAX, "%s/%012" PRId64 ".ckpt", dir, serial) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Only one is written at a time, so what has a temporary name was being written by a process that was killed. */
static void sweep(const char *dir)
{
	char path[PATH_MAX];
	DIR *d = opendir(dir);
	for (const struct dirent *de; d && (de = readdir(d));) {
		int used = 0;
		if (sscanf(de->d_name, "%*12[0-9].ckpt.tmp-%n", &used) == 0 && used && snprintf(path, sizeof path, "%s/%s", dir, de->d_name) < PATH_MAX)
			(void)unlink(path);
	}
	if (d)
		closedir(d);
}

static void prune(const char *dir)
{
	int64_t s[64];
	char path[PATH_MAX];
	int n = list(dir, s, 64);
	for (int i = KEEP; i < n; i++)
		if (!path_of(dir, s[i], path))
			(void)unlink(path);
}

static void hash_tensor(struct sha *sha, const char *name, const void *data, size_t bytes)
{
	sha_update(sha, name, strlen(name) + 1);
	sha_update(sha, data, bytes);
}

enum { TENSORS = 7 };

/* What the file holds, in the order in which it is hashed. */
static int tensors(const struct checkpoint *c, const char *state, struct st_out t[TENSORS])
{
	int n = 0;
	t[n++] = (struct st_out){"counts", ST_U64, 1, {(uint64_t)c->V}, c->counts};
	if (c->params) {
		t[n++] = (struct st_out){"d2t", ST_I64, 1, {(uint64_t)c->V_d}, c->d2t};
		t[n++] = (struct st_out){"params", real_type, 1, {c->n_params}, c->params};
		t[n++] = (struct st_out){"moments", real_type, 1, {c->n_moments}, c->moments};
	}
	if (c->average)
		t[n++] = (struct st_out){"average", real_type, 1, {c->n_params}, c->average};
	if (c->anchor)
		t[n++] = (struct st_out){"anchor", real_type, 1, {c->n_params}, c->anchor};
	t[n++] = (struct st_out){"state", ST_U8, 1, {strlen(state)}, state};
	return n;
}

/* The file's parts: its head, and the arrays where they lie. */
static int lay_out_file(const struct st_out *t, int n, struct buf *head, struct fs_part ret[TENSORS + 1])
{
	struct sha *sha = sha_new();
	char hex[SHA_HEX];
	if (!sha)
		return -ENOMEM;
	for (int i = 0; i < n; i++)
		hash_tensor(sha, t[i].name, t[i].data, (size_t)t[i].shape[0] * st_dtype_size(t[i].dtype));
	sha_final_hex(sha, hex);
	sha_free(sha);
	const struct st_meta_kv meta[] = {{"schema", "1"}, {"sha256", hex}};
	return st_lay_out(head, t, n, meta, 2, 8, ret);
}

int checkpoint_write(const char *dir, int64_t serial, const struct checkpoint *c, struct errtext *e)
{
	char *state = json_dumps(c->state, JSON_COMPACT | JSON_SORT_KEYS), path[PATH_MAX];
	struct buf head = BUF_INIT(0);
	struct st_out t[TENSORS];
	struct fs_part part[TENSORS + 1];
	int n = state ? tensors(c, state, t) : 0, r = state ? path_of(dir, serial, path) : -ENOMEM;
	if (!r)
		r = lay_out_file(t, n, &head, part);
	if (!r)
		r = fs_mkdirs(dir);
	sweep(dir);
	fs_crash_point("checkpoint-before");
	if (!r)
		r = fs_write_parts(path, part, n + 1);
	fs_crash_point("checkpoint-after");
	if (r)
		r = errtext_set(e, r, "checkpoint %.150s: %s", dir, strerror(-r));
	else
		prune(dir);
	free(state);
	buf_done(&head);
	return r;
}

/* A copy of one 1-D tensor; *ret NULL when the file has none. */
static int take(const struct st_file *st, const char *name, enum st_dtype type, struct sha *sha, void **ret, size_t *ret_n)
{
	const struct st_tensor *t = st_find(st, name);
	if (!t)
		return 0;
	if (t->dtype != type || t->n_dims != 1)
		return -EINVAL;
	void *p = malloc(t->bytes + 1);
	if (!p)
		return -ENOMEM;
	memcpy(p, t->data, t->bytes);
	((char *)p)[t->bytes] = 0;
	hash_tensor(sha, name, p, t->bytes);
	*ret = p;
	*ret_n = (size_t)t->shape[0];
	return 0;
}

static int parse(const struct fs_map *map, struct checkpoint *c, struct errtext *e)
{
	struct st_file *st = NULL;
	struct sha *sha = sha_new();
	char *state = NULL, hex[SHA_HEX];
	size_t n_state = 0, n_counts = 0, n_d2t = 0, n_average = 0, n_anchor = 0;
	int r = sha ? st_parse(map->data, map->len, &st, e) : -ENOMEM;
	if (!r)
		r = take(st, "counts", ST_U64, sha, (void **)&c->counts, &n_counts);
	if (!r)
		r = take(st, "d2t", ST_I64, sha, (void **)&c->d2t, &n_d2t);
	if (!r)
		r = take(st, "params", real_type, sha, (void **)&c->params, &c->n_params);
	if (!r)
		r = take(st, "moments", real_type, sha, (void **)&c->moments, &c->n_moments);
	if (!r)
		r = take(st, "average", real_type, sha, (void **)&c->average, &n_average);
	if (!r)
		r = take(st, "anchor", real_type, sha, (void **)&c->anchor, &n_anchor);
	if (!r && ((c->average && n_average != c->n_params) || (c->anchor && n_anchor != c->n_params)))
		r = -EINVAL;
	if (!r)
		r = take(st, "state", ST_U8, sha, (void **)&state, &n_state);
	if (!r) {
		sha_final_hex(sha, hex);
		const char *want = st_meta(st, "sha256"), *schema = st_meta(st, "schema");
		bool whole = want && strcmp(want, hex) == 0;
		if (whole && schema && strcmp(schema, "1") != 0)
			r = errtext_set(e, -ENOTSUP, "the newest checkpoint is of schema %.20s, this program knows 1: start the program that wrote it, or use another state_dir", schema);
		else if (!whole || !schema || !state)
			r = -EINVAL;
		else if (!(c->state = json_loads(state, JSON_REJECT_DUPLICATES, NULL)))
			r = -EINVAL;
	}
	c->V = (int)n_counts;
	c->V_d = (int)n_d2t;
	sha_free(sha);
	free(state);
	st_free(st);
	return r;
}

int checkpoint_load(const char *dir, struct checkpoint *ret, int64_t *ret_serial, int *ret_damaged, struct errtext *e)
{
	int64_t s[16];
	int n = list(dir, s, 16);
	*ret_damaged = 0;
	for (int i = 0; i < n; i++) {
		struct checkpoint c = {0};
		struct fs_map map = {0};
		char path[PATH_MAX];
		int r = path_of(dir, s[i], path);
		if (!r)
			r = fs_map(path, &map);
		if (!r)
			r = parse(&map, &c, e);
		fs_unmap(&map);
		if (!r) {
			*ret = c;
			*ret_serial = s[i];
			return 0;
		}
		checkpoint_done(&c);
		if (r == -ENOMEM || r == -ENOTSUP)
			return r;
		++*ret_damaged;
	}
	return -ENOENT;
}
