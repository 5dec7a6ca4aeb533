/* A stack: the page given back last is handed out first, while it is warm. */
#include <stdlib.h>
#include <string.h>
#include "serve/pages.h"

int pages_init(struct pages *p, int n)
{
	uint32_t *stack = malloc((size_t)n * sizeof *stack);
	struct page *info = calloc((size_t)n, sizeof *info);
	if (!stack || !info) {
		free(stack);
		free(info);
		return -ENOMEM;
	}
	for (int i = 0; i < n; i++)
		stack[i] = (uint32_t)(n - 1 - i);
	*p = (struct pages){.free = stack, .info = info, .n_free = n, .n_total = n};
	return 0;
}

void pages_done(struct pages *p)
{
	free(p->free);
	free(p->info);
	*p = (struct pages){0};
}

bool pages_take(struct pages *p, uint32_t *ret, int n)
{
	if (n > p->n_free)
		return false;
	p->n_free -= n;
	memcpy(ret, p->free + p->n_free, (size_t)n * sizeof *ret);
	for (int i = 0; i < n; i++)
		p->info[ret[i]] = (struct page){.refs = 1, .node = -1};
	return true;
}

void pages_ref(struct pages *p, uint32_t page)
{
	p->info[page].refs++;
}

int pages_unref(struct pages *p, uint32_t page)
{
	int left = --p->info[page].refs;
	if (!left)
		p->free[p->n_free++] = page;
	return left;
}

void pages_forget_draft(struct pages *p, int slot)
{
	for (int i = 0; i < p->n_total; i++)
		p->info[i].drafted &= (uint8_t)~(1u << slot);
}
