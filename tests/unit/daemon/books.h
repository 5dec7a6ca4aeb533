/* An audit log and news in the fixture's folder, as redraftd.c wires them. */
#pragma once
#include "daemon/act.h"
#include "daemon/audit.h"
#include "daemon/news.h"
#include "tests/unit/daemon/fixture.h"

struct books {
	struct news *news;
	struct audit *audit;
	uint32_t live; /* as last heard */
	struct act *act;
};

static inline int books_open(struct books *b, struct loop *l, struct metrics *m)
{
	*b = (struct books){.news = NULL};
	return news_new(&b->news) || audit_new(l, &(struct audit_options){.dir = fixture_path("audit"), .max_bytes = 1 << 20, .keep = 4, .metrics = m}, &b->audit);
}

static inline void books_close(struct books *b)
{
	audit_free(b->audit);
	news_free(b->news);
}

static inline void books_heard(void *arg, enum act_news kind, const char *text)
{
	struct books *b = arg;
	uint32_t live = b->act ? act_rollout(b->act)->s.live : 0;

	news_say(b->news, kind == ACT_NEWS_DRIFT ? "drift" : kind == ACT_NEWS_DECAY ? "decay" : live != b->live ? "switch" : "rollout", live, "%s", text);
	b->live = live;
}
