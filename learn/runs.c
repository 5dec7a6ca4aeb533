/* The array of joined runs (learn/runs.h), ascending by id, and its JSON form in checkpoints. */
#include "learn/runs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void run_done(struct run *r)
{
	free(r->refs);
	free(r->rows);
	free(r->path);
	r->refs = NULL;
	r->rows = NULL;
	r->path = NULL;
	r->n_refs = r->n_path = 0;
}

uint64_t run_hash(uint64_t h, const void *p, size_t n)
{
	h = fnv1a(h, p, n);
	h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
	h ^= h >> 32;
	return h ? h : 1;
}

int run_path_add(struct run *r, uint64_t hash)
{
	if ((r->n_path & (r->n_path - 1)) == 0) { /* at each power of two */
		uint64_t *v = realloc(r->path, (size_t)(r->n_path ? 2 * r->n_path : 1) * sizeof *v);
		if (!v)
			return -ENOMEM;
		r->path = v;
	}
	r->path[r->n_path++] = hash;
	return 0;
}

int run_ref_add(struct run *r, struct pool_ref ref, int rows)
{
	if (r->n_refs >= RUN_MAX_RECORDS)
		return -E2BIG;
	struct pool_ref *v = realloc(r->refs, (size_t)(r->n_refs + 1) * sizeof *v);
	if (!v)
		return -ENOMEM;
	r->refs = v;
	int *n = realloc(r->rows, (size_t)(r->n_refs + 1) * sizeof *n);
	if (!n)
		return -ENOMEM;
	r->rows = n;
	r->refs[r->n_refs] = ref;
	r->rows[r->n_refs++] = rows;
	return 0;
}

int runs_add(struct runs *s, const struct run *r)
{
	if (s->n == s->cap) {
		int cap = s->cap ? s->cap * 2 : 256;
		struct run *v = realloc(s->v, (size_t)cap * sizeof *v);
		if (!v)
			return -ENOMEM;
		s->v = v;
		s->cap = cap;
	}
	s->v[s->n++] = *r;
	return 0;
}

struct run *runs_find(struct runs *s, uint64_t id)
{
	int lo = 0, hi = s->n;
	while (lo < hi) {
		int mid = lo + (hi - lo) / 2;
		if (s->v[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < s->n && s->v[lo].id == id ? &s->v[lo] : NULL;
}

bool run_below(const struct run *r, int64_t segment)
{
	return r->refs[0].segment < segment;
}

bool run_older(const struct run *r, int64_t born)
{
	return r->born < born;
}

bool run_of_tenant(const struct run *r, int64_t tenant)
{
	return r->tenant == (uint64_t)tenant;
}

int runs_drop(struct runs *s, bool (*gone)(const struct run *r, int64_t x), int64_t x)
{
	int keep = 0, n = s->n;
	for (int i = 0; i < s->n; i++) {
		if (gone(&s->v[i], x))
			run_done(&s->v[i]);
		else
			s->v[keep++] = s->v[i];
	}
	s->n = keep;
	return n - keep;
}

uint64_t run_text_hash(const char *text)
{
	return *text ? run_hash(RUN_HASH, text, strlen(text)) : 0;
}

void runs_done(struct runs *s)
{
	for (int i = 0; i < s->n; i++)
		run_done(&s->v[i]);
	free(s->v);
	memset(s, 0, sizeof *s);
}

json_t *run_to_json(const struct run *r)
{
	json_t *refs = json_array();
	for (int i = 0; i < r->n_refs; i++)
		if (json_array_append_new(refs, json_pack("[IIIi]", (json_int_t)r->refs[i].segment, (json_int_t)r->refs[i].offset, (json_int_t)r->refs[i].len, r->rows[i]))) {
			json_decref(refs);
			return NULL;
		}
	json_t *path = json_array();
	for (int i = 0; i < r->n_path; i++)
		if (json_array_append_new(path, json_integer((json_int_t)r->path[i]))) {
			json_decref(refs);
			json_decref(path);
			return NULL;
		}
	/* An older program takes a pinned run for one that is held out, which its next verdict frees. */
	bool pinned = r->state == RUN_PINNED;
	return json_pack("{s:I,s:i,s:i,s:s,s:i,s:i,s:I,s:i,s:b,s:o,s:i,s:[IIIII],s:I,s:o,s:b,s:[II]}", "id", (json_int_t)r->id, "state", (int)(pinned ? RUN_HELD_OUT : r->state),
			 "partition", r->partition, "domain", r->domain, "n", r->n, "n_gen", r->n_gen, "pos0",
			 (json_int_t)r->pos0, "epochs", r->epochs, "bad", r->bad, "refs", refs, "first", r->first, "kin", (json_int_t)r->name,
			 (json_int_t)r->parent, (json_int_t)r->parent_rows, (json_int_t)r->conversation, (json_int_t)r->tenant, "born",
			 (json_int_t)r->born, "path", path, "pinned", pinned, "drafted", (json_int_t)r->drafted[0], (json_int_t)r->drafted[1]);
}

/* What older checkpoints do not hold stays 0. */
static int kin_from_json(const json_t *j, struct run *r)
{
	json_int_t name = 0, parent = 0, rows = 0, conversation = 0, tenant = 0, born = 0, lo = 0, hi = 0;
	int pinned = 0;
	json_t *path = NULL, *x;
	size_t i;
	if (json_unpack((json_t *)(uintptr_t)j, "{s?i,s?[IIIII],s?I,s?o,s?b,s?[II]}", "first", &r->first, "kin", &name, &parent, &rows, &conversation, &tenant,
			"born", &born, "path", &path, "pinned", &pinned, "drafted", &lo, &hi) || rows < 0 || rows > UINT32_MAX || r->first < 0 ||
	    lo < 0 || lo > UINT32_MAX || hi < 0 || hi > UINT32_MAX)
		return -EINVAL;
	if (pinned)
		r->state = RUN_PINNED;
	r->drafted[0] = (uint32_t)lo;
	r->drafted[1] = (uint32_t)hi;
	r->name = (uint64_t)name;
	r->parent = (uint64_t)parent;
	r->parent_rows = (uint32_t)rows;
	r->conversation = (uint64_t)conversation;
	r->tenant = (uint64_t)tenant;
	r->born = born;
	json_array_foreach(path, i, x)
		if (run_path_add(r, (uint64_t)json_integer_value(x)))
			return -ENOMEM;
	return 0;
}

int run_from_json(const json_t *j, struct run *ret)
{
	struct run r = {0};
	json_int_t id, pos0;
	int state, bad;
	const char *domain;
	json_t *refs, *ref;
	size_t i;
	if (json_unpack((json_t *)(uintptr_t)j, "{s:I,s:i,s:i,s:s,s:i,s:i,s:I,s:i,s:b,s:o}", "id", &id, "state", &state, "partition",
			&r.partition, "domain", &domain, "n", &r.n, "n_gen", &r.n_gen, "pos0", &pos0, "epochs", &r.epochs, "bad",
			&bad, "refs", &refs) || state < 0 || state > RUN_TRAINED || strlen(domain) >= sizeof r.domain)
		return -EINVAL;
	r.id = (uint64_t)id;
	r.state = (enum run_state)state;
	r.pos0 = (uint32_t)pos0;
	r.bad = bad;
	memcpy(r.domain, domain, strlen(domain) + 1);
	int kin = kin_from_json(j, &r);
	if (kin) {
		run_done(&r);
		return kin;
	}
	json_array_foreach(refs, i, ref) {
		json_int_t a, b, c;
		int rows = (int)json_integer_value(json_array_get(ref, 3));
		int k = json_unpack(ref, "[III]", &a, &b, &c) || rows < 0 ? -EINVAL : run_ref_add(&r, (struct pool_ref){(uint32_t)a, (uint32_t)b, (uint32_t)c}, rows);
		if (k) {
			run_done(&r);
			return k;
		}
	}
	if (!r.n_refs) {
		run_done(&r);
		return -EINVAL;
	}
	*ret = r;
	return 0;
}
