/* What happened, told to whoever listens: the page, `redraftctl tail`, the audit log.
 *
 * The last 256 items are kept, numbered from 1 since the start. Threads: the loop's.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { NEWS_KEPT = 256, NEWS_LISTENERS = 24, NEWS_TEXT = 256 };

struct news;
struct news_item {
	uint64_t seq;
	int64_t wall_ms;
	const char *kind;      /* "rollout", "switch", "drift", "decay", "audit", "kafka", "learner", "daemon": static */
	uint32_t version;      /* live at that time; 0 = none */
	char text[NEWS_TEXT];  /* UTF-8 is not sure: report_text() */
};
typedef void news_heard(void *arg, const struct news_item *item);

int MUSTCHECK news_new(struct news **ret);
struct news *news_free(struct news *n);
void PRINTF(4, 5) news_say(struct news *n, const char *kind, uint32_t version, const char *fmt, ...);
int MUSTCHECK news_listen(struct news *n, news_heard *heard, void *arg); /* -EMFILE: too many */
void news_leave(struct news *n, void *arg); /* also from inside heard */
uint64_t news_last(const struct news *n);   /* number of the last item; 0 = none */
/* Item number seq, NULL when it is gone or to come. */
const struct news_item *news_get(const struct news *n, uint64_t seq);
/* Of who has one sentence to tell and waits to be asked: it, once; false = none. */
static inline bool news_take(char *said, char *ret, size_t size)
{
	bool some = said[0] != '\0';

	if (some)
		snprintf(ret, size, "%s", said);
	said[0] = '\0';
	return some;
}
json_t *news_json(const struct news_item *item); /* {seq, time, kind, version, text} */
