/* Tail: what happens, as it happens. With "more" the first reply holds the last so many events and each further one
 * what has come since; without it there is that one reply. Sixteen may listen; who does not read is hung up on (rpc_more).
 */
#include "daemon/admin_inside.h"
#include "daemon/news.h"

enum { TAIL_LAST = 10 };

static json_t *tail_events(const struct news_item *item)
{
	return json_pack("{s:[o]}", "events", news_json(item));
}

static void tail_heard(void *arg, const struct news_item *item)
{
	struct admin *a = arg;

	for (int i = 0; i < ADMIN_TAILS; i++) {
		struct rpc_call *call = a->tail[i];

		if (call && rpc_more(call, tail_events(item)) < 0) {
			a->tail[i] = NULL;
			rpc_reply(call, NULL);
		}
	}
}

/* A free place; ADMIN_TAILS: there is none. Who hung up while there was nothing to tell gives up his. */
static int tail_place(struct admin *a)
{
	int free = ADMIN_TAILS;

	for (int i = ADMIN_TAILS - 1; i >= 0; i--) {
		if (a->tail[i] && rpc_is_gone(a->tail[i])) {
			rpc_reply(a->tail[i], NULL);
			a->tail[i] = NULL;
		}
		free = a->tail[i] ? free : i;
	}
	return free;
}

void admin_tail(void *ctx, struct rpc_call *call, json_t *params)
{
	const json_t *v = json_object_get(params, "last");
	struct admin *a = ctx;
	json_t *events = json_array();
	uint64_t last = news_last(a->o.news), n = TAIL_LAST;
	int place;

	if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) < 0)) {
		json_decref(events);
		(void)admin_bad(call, "last: how many of the past, from 0");
		return;
	}
	if (json_is_integer(v))
		n = json_integer_value(v) < NEWS_KEPT ? (uint64_t)json_integer_value(v) : NEWS_KEPT;
	for (uint64_t i = last > n ? last - n + 1 : 1; i <= last; i++)
		if (news_get(a->o.news, i))
			(void)json_array_append_new(events, news_json(news_get(a->o.news, i)));
	if (!rpc_wants_more(call)) {
		rpc_reply(call, json_pack("{s:o}", "events", events));
		return;
	}
	place = tail_place(a);
	if (!a->tail_listens)
		a->tail_listens = news_listen(a->o.news, tail_heard, a) == 0;
	if (place == ADMIN_TAILS || !a->tail_listens) {
		json_decref(events);
		rpc_error(call, "io.redraft.Busy", "%d listen already", ADMIN_TAILS);
		return;
	}
	if (rpc_more(call, json_pack("{s:o}", "events", events)) < 0)
		rpc_reply(call, NULL);
	else
		a->tail[place] = call;
}

void admin_tail_end(struct admin *a)
{
	if (a->tail_listens)
		news_leave(a->o.news, a);
	for (int i = 0; i < ADMIN_TAILS; i++)
		if (a->tail[i])
			rpc_reply(a->tail[i], NULL);
}
