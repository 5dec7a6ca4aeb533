/* Why is N not live? For every state of a version the chain names what the version is and each thing that keeps it there, and
 * nothing else; and news: numbered, kept to a bound, told to who listens, who may leave while being told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/explain.h"
#include "daemon/news.h"

static struct rollout r;
static struct version_entry v[8];

static int setup(void **state)
{
	(void)state;
	memset(&r, 0, sizeof r);
	memset(v, 0, sizeof v);
	for (int i = 0; i < VS_N; i++)
		v[i] = (struct version_entry){.number = (uint32_t)i + 1, .state = (enum version_state)i};
	r.s.versions = v;
	r.s.n_versions = VS_N;
	r.s.live = VS_LIVE + 1;
	r.serve_up = r.learn_up = true;
	r.serve_live = r.s.live;
	return 0;
}

/* The paragraph about a version in this state; *n sentences. Valid until the next call. */
static const char *why(enum version_state state, const json_t *verdict, const char *decay, size_t *n)
{
	static char text[4096];
	json_t *j = explain_version(&r, (uint32_t)state + 1, verdict, decay, 10000000);

	assert_non_null(j);
	snprintf(text, sizeof text, "%s", json_string_value(json_object_get(j, "text")));
	*n = json_array_size(json_object_get(j, "reasons"));
	assert_string_equal(json_string_value(json_object_get(j, "state")), version_state_name(state));
	json_decref(j);
	return text;
}

static void says(const char *text, const char *word)
{
	if (!strstr(text, word))
		fail_msg("\"%s\" does not say \"%s\"", text, word);
}

static void test_every_state(void **state)
{
	static const char *const words[VS_N] = {[VS_CANDIDATE] = "no verdict yet", [VS_GATED] = "accepted by the gate", [VS_CANARY] = "on canary",
						[VS_LIVE] = "is live", [VS_PREVIOUS] = "would go back to it", [VS_RETIRED] = "has served",
						[VS_REJECTED] = "was refused", [VS_QUARANTINED] = "is quarantined"};
	size_t n;

	(void)state;
	for (int i = 0; i < VS_N; i++) {
		says(why((enum version_state)i, NULL, "", &n), words[i]);
		assert_true(n >= 1);
	}
	assert_null(explain_version(&r, 99, NULL, "", 0));
}

static void test_each_block_is_named(void **state)
{
	const char *text;
	size_t n;

	(void)state;
	says(why(VS_GATED, NULL, "", &n), "Nothing stands in its way");
	assert_int_equal(n, 2);
	r.s.canary.version = VS_CANARY + 1;
	text = why(VS_GATED, NULL, "", &n);
	says(text, "is on canary, and there is one");
	assert_null(strstr(text, "Nothing stands"));
	text = why(VS_CANARY, NULL, "", &n);
	says(text, "Its share grows");
	assert_null(strstr(text, "Nothing stands"));
	r.s.canary.version = 0;
	r.s.pin = 4;
	r.s.hold = true;
	r.serve_up = false;
	r.frozen = true;
	text = why(VS_GATED, NULL, "served 1.2, replayed 1.9", &n);
	says(text, "Version 4 is pinned");
	says(text, "held until `redraftctl release`");
	says(text, "served 1.2, replayed 1.9");
	says(text, "freeze window");
	says(text, "server does not answer");
	assert_null(strstr(text, "Nothing stands"));
	r.s.pin = 0;
	r.s.hold = r.frozen = false;
	r.serve_up = true;
	r.next_promotion_us = 70000000;
	says(why(VS_GATED, NULL, "", &n), "in 61 s");
	r.op = (struct ro_op){.phase = RO_LOADING, .version = 1};
	says(why(VS_GATED, NULL, "", &n), "Version 1 is being loaded");
	r.learn_up = false;
	says(why(VS_CANDIDATE, NULL, "", &n), "learner, who replays it");
	r.serve_live = 2;
	says(why(VS_LIVE, NULL, "", &n), "drafts with version 2");
}

static void test_the_domain_that_decided(void **state)
{
	json_t *verdict = json_pack("{s:f, s:f, s:i, s:{s:{s:f, s:f, s:f, s:i}, s:{s:f, s:f, s:f, s:i}}}", "candidate_al", 1.5, "live_al", 1.6, "against", 4, "domains",
				    "code", "candidate_al", 1.1, "live_al", 1.7, "upper", -0.2, "requests", 12, "chat", "candidate_al", 1.9, "live_al", 1.5, "upper", 0.6,
				    "requests", 9);
	const char *text;
	size_t n;

	(void)state;
	text = why(VS_REJECTED, verdict, "", &n);
	says(text, "1.500 against 1.600 of version 4");
	says(text, "domain code it is surely worse");
	assert_null(strstr(text, "chat"));
	json_decref(verdict);
}

/* A reason that was cut inside a character is told all the same. */
static void test_bytes_that_are_no_text(void **state)
{
	size_t n;

	(void)state;
	snprintf(v[VS_REJECTED].reason, sizeof v[VS_REJECTED].reason, "cut here: \xc3");
	says(why(VS_REJECTED, NULL, "", &n), "was refused: cut here: ?");
	assert_int_equal(n, 2);
}

struct ear {
	struct news *news;
	int heard, leave_at;
};

static void hear(void *arg, const struct news_item *item)
{
	struct ear *e = arg;

	assert_true(item->seq > 0);
	if (++e->heard == e->leave_at)
		news_leave(e->news, e);
}

static void test_news(void **state)
{
	struct ear a = {.leave_at = -1}, b = {.leave_at = 3};
	struct ear many[NEWS_LISTENERS];
	struct news *news;

	(void)state;
	assert_int_equal(news_new(&news), 0);
	a.news = b.news = news;
	assert_int_equal(news_listen(news, hear, &a), 0);
	assert_int_equal(news_listen(news, hear, &b), 0);
	for (int i = 1; i <= NEWS_KEPT + 10; i++)
		news_say(news, "rollout", 7, "number %d", i);
	assert_true(a.heard == NEWS_KEPT + 10 && b.heard == 3);
	assert_int_equal(news_last(news), NEWS_KEPT + 10);
	assert_true(!news_get(news, 0) && !news_get(news, 10) && !news_get(news, NEWS_KEPT + 11));
	assert_string_equal(news_get(news, 11)->text, "number 11");
	json_t *j = news_json(news_get(news, NEWS_KEPT + 10));
	assert_int_equal(json_integer_value(json_object_get(j, "version")), 7);
	json_decref(j);
	for (int i = 0; i < NEWS_LISTENERS; i++)
		many[i] = (struct ear){.news = news};
	for (int i = 0; i < NEWS_LISTENERS - 1; i++)
		assert_int_equal(news_listen(news, hear, &many[i]), 0);
	assert_int_equal(news_listen(news, hear, &many[NEWS_LISTENERS - 1]), -EMFILE);
	news_say(news, "kafka", 0, "\xff is no text");
	j = news_json(news_get(news, news_last(news)));
	assert_non_null(j); /* bytes that are no UTF-8 are shown as question marks */
	json_decref(j);
	news_free(news);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_every_state, setup), cmocka_unit_test_setup(test_each_block_is_named, setup),
		cmocka_unit_test_setup(test_the_domain_that_decided, setup), cmocka_unit_test_setup(test_bytes_that_are_no_text, setup), cmocka_unit_test(test_news),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
