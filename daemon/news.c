/* A ring of what was said, and who wants to hear it (news.h). Who joins or leaves from inside an item's telling is
 * taken into account by the next.
 */
#include "daemon/news.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "daemon/report.h"

struct news {
	struct news_item item[NEWS_KEPT];
	uint64_t last;
	struct {
		news_heard *heard; /* NULL = a free place */
		void *arg;
	} listener[NEWS_LISTENERS];
};

int news_new(struct news **ret)
{
	*ret = calloc(1, sizeof **ret);
	return *ret ? 0 : -ENOMEM;
}

struct news *news_free(struct news *n)
{
	free(n);
	return NULL;
}

void news_say(struct news *n, const char *kind, uint32_t version, const char *fmt, ...)
{
	struct news_item x = {.seq = n->last + 1, .wall_ms = clock_wall_ms(), .kind = kind, .version = version};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(x.text, sizeof x.text, fmt, ap);
	va_end(ap);
	n->item[n->last++ % NEWS_KEPT] = x;
	for (int i = 0; i < NEWS_LISTENERS; i++)
		if (n->listener[i].heard)
			n->listener[i].heard(n->listener[i].arg, &x);
}

int news_listen(struct news *n, news_heard *heard, void *arg)
{
	for (int i = 0; i < NEWS_LISTENERS; i++)
		if (!n->listener[i].heard) {
			n->listener[i].heard = heard;
			n->listener[i].arg = arg;
			return 0;
		}
	return -EMFILE;
}

void news_leave(struct news *n, void *arg)
{
	for (int i = 0; i < NEWS_LISTENERS; i++)
		if (n->listener[i].heard && n->listener[i].arg == arg)
			n->listener[i].heard = NULL;
}

uint64_t news_last(const struct news *n)
{
	return n->last;
}

const struct news_item *news_get(const struct news *n, uint64_t seq)
{
	return seq && seq <= n->last && seq + NEWS_KEPT > n->last ? &n->item[(seq - 1) % NEWS_KEPT] : NULL;
}

json_t *news_json(const struct news_item *x)
{
	char time[32];

	clock_iso8601(x->wall_ms, time);
	return json_pack("{s:I, s:s, s:s, s:I, s:o}", "seq", (json_int_t)x->seq, "time", time, "kind", x->kind, "version", (json_int_t)x->version, "text",
			 report_text(x->text));
}
