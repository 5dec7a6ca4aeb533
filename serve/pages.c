/* A stack: the page given back last is handed out first, while it is warm. */
#include <stdlib.h>
#include <string.h>
#include "serve/pages.h"

int pages_init(struct pages *p, int n)
{
	uint32_t *stack = malloc((size_t)n * sizeof *stack);
	if (!stack)
		return -ENOMEM;
	for (int i = 0; i < n; i++)
		stack[i] = (uint32_t)(n - 1 - i);
	*p = (struct pages){.free = stack, .n_free = n, .n_total = n};
	return 0;
}

void pages_done(struct pages *p)
{
	free(p->free);
	*p = (struct pages){0};
}

bool pages_take(struct pages *p, uint32_t *ret, int n)
{
	if (n > p->n_free)
		return false;
	p->n_free -= n;
	memcpy(ret, p->free + p->n_free, (size_t)n * sizeof *ret);
	return true;
}

void pages_give(struct pages *p, const uint32_t *give, int n)
{
	memcpy(p->free + p->n_free, give, (size_t)n * sizeof *give);
	p->n_free += n;
}
