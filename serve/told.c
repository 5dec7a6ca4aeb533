/* A small table, searched from end to end: once a request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fnv.h"
#include "serve/told.h"

int told_init(struct told *t, size_t max_paths)
{
	*t = (struct told){.all = calloc(TOLD_MAX, sizeof *t->all), .max_paths = max_paths};
	return t->all ? 0 : -ENOMEM;
}

void told_done(struct told *t)
{
	for (int i = 0; t->all && i < TOLD_MAX; i++)
		free(t->all[i].path);
	free(t->all);
	*t = (struct told){0};
}

uint64_t told_hash(const char *text)
{
	uint64_t h = fnv1a_text(FNV1A, text);
	h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
	return h ^ (h >> 32);
}

static struct told_one *find(const struct told *t, uint64_t conversation)
{
	for (int i = 0; t->all && i < TOLD_MAX; i++)
		if (t->all[i].stamp && t->all[i].conversation == conversation)
			return &t->all[i];
	return NULL;
}

const struct told_one *told_find(const struct told *t, uint64_t conversation)
{
	return find(t, conversation);
}

static void forget(struct told *t, struct told_one *x)
{
	t->n_paths -= (size_t)x->n;
	free(x->path);
	*x = (struct told_one){0};
}

static struct told_one *oldest(struct told *t)
{
	struct told_one *x = &t->all[0];
	for (int i = 1; i < TOLD_MAX; i++)
		if (t->all[i].stamp < x->stamp)
			x = &t->all[i];
	return x;
}

/* The conversation not heard of for longest, of those that hold anything. */
static struct told_one *oldest_used(struct told *t)
{
	struct told_one *x = NULL;
	for (int i = 0; i < TOLD_MAX; i++)
		if (t->all[i].stamp && (!x || t->all[i].stamp < x->stamp))
			x = &t->all[i];
	return x;
}

void told_note(struct told *t, uint64_t conversation, const char *request, const uint64_t *path, int n)
{
	struct told_one *x = find(t, conversation);
	if (x)
		forget(t, x);
	uint64_t *copy = n > 0 && (size_t)n <= t->max_paths ? malloc((size_t)n * sizeof *copy) : NULL;
	if (!copy)
		return;
	memcpy(copy, path, (size_t)n * sizeof *copy);
	while (t->n_paths + (size_t)n > t->max_paths)
		forget(t, oldest_used(t));
	x = oldest(t); /* an unused one has stamp 0 */
	forget(t, x);
	*x = (struct told_one){.conversation = conversation, .stamp = ++t->clock, .path = copy, .n = n};
	snprintf(x->request, sizeof x->request, "%s", request);
	t->n_paths += (size_t)n;
}
