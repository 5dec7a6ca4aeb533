/* A daemon in the test's process, with its control socket, audit log and news, and peers beside it: everything of redraftd but main. */
#pragma once
#include <pthread.h>
#include "daemon/act.h"
#include "daemon/admin.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/watch.h"
#include "daemon/web.h"
#include "tests/unit/daemon/books.h"
#include "tests/unit/daemon/peers.h"

static struct peers peers;
static struct {
	pthread_t thread;
	struct loop *loop;
	struct metrics *metrics;
	struct act *act;
	struct watch *watch;
	struct admin *admin;
	struct web *web;
	struct books books;
	bool running;
} d;

static void *run(void *arg)
{
	(void)loop_run(arg);
	return NULL;
}

static void stop(void *arg)
{
	loop_stop(arg);
}

static int whole_setup(void **state)
{
	static char serve[PATH_MAX], learn[PATH_MAX], store[PATH_MAX];
	struct errtext e = {.text = ""};

	(void)state;
	log_init("test", LOG_ERROR);
	fixture_make();
	peers_start(&peers);
	snprintf(serve, sizeof serve, "%s/serve/control.sock", fixture_dir);
	snprintf(learn, sizeof learn, "%s/learn/control.sock", fixture_dir);
	snprintf(store, sizeof store, "%s/store", fixture_dir);
	memset(&d, 0, sizeof d);
	assert_int_equal(loop_new(&d.loop), 0);
	d.metrics = metrics_new();
	if (act_new(d.loop, &(struct act_options){.store = store, .serve_socket = serve, .learn_socket = learn, .gate_k = 5, .limits = {.keep = 8}, .poll_us = 30000,
						  .gate = {.min_requests = 8, .alpha = 0.05, .clip = 0.5, .first_min_al = 1.2},
						  .rules = {.max_wait_us = 3600000000u, .retry_us = 50000, .rejects_to_rebase = 3}},
		    d.metrics, &d.act, &e) ||
	    watch_new(&(struct watch_options){.brokers = "", .topic = "", .conf = ""}, &d.watch, &e) ||
	    books_open(&d.books, d.loop, d.metrics) ||
	    admin_new(&(struct admin_options){.loop = d.loop, .run_dir = fixture_path("daemon"), .learn_socket = learn, .act = d.act, .watch = d.watch,
					      .audit = d.books.audit, .news = d.books.news}, &d.admin, &e))
		fail_msg("%s", e.text);
	d.books.act = d.act;
	act_on_news(d.act, books_heard, &d.books);
	return 0;
}

static void whole_run(void)
{
	pthread_create(&d.thread, NULL, run, d.loop);
	d.running = true;
}

static int whole_teardown(void **state)
{
	(void)state;
	if (d.running) {
		assert_int_equal(loop_post(d.loop, stop, d.loop), 0);
		pthread_join(d.thread, NULL);
	}
	act_free(d.act);
	admin_free(d.admin);
	web_free(d.web);
	books_close(&d.books);
	watch_free(d.watch);
	loop_free(d.loop);
	metrics_free(d.metrics);
	peers_end(&peers);
	fixture_remove();
	return 0;
}
