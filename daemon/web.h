/* The daemon over HTTP: its page, what the page reads, and what scrapers and probes read.
 *
 *   GET /             the page; /page.css /page.js /icon.svg belong to it
 *   GET /api/status   {now_ms, can_change, back_to, status, versions, drift} as the control socket gives them
 *   GET /api/history  accept length over the last day, marks and events (history.h)
 *   GET /events       Server-Sent Events: "status" once a second and when something happens (data: as /api/status),
 *                     "history" when there is a new point
 *   POST /api/rollback {live}   POST /api/hold {reason}   POST /api/release {}
 *                     with Authorization: Bearer TOKEN (web_change.c)
 *   GET /metrics, /health, /healthz
 *
 * Everything but the last line is asked for by address, as localhost or by the name `host`; another
 * name in Host is a page of somebody else who points his name here. Threads: the loop's.
 */
#pragma once
#include "daemon/base/err.h"

struct act;
struct audit;
struct news;
struct loop;
struct metrics;
struct watch;
struct web;

struct web_options {
	const char *listen;     /* "host:port" or "[v6]:port"; "" = off */
	const char *host;       /* a further name that it is asked for by; "" = none */
	const char *token_file; /* "": the credential web_token; neither: nobody can change anything */
	struct metrics *metrics;
	struct act *act; /* these four are borrowed; act is freed first, since it answers those who wait, through here */
	struct watch *watch;
	struct news *news;
	struct audit *audit;
};

int MUSTCHECK web_check(const char *listen, struct errtext *e); /* can it be listened at? -EINVAL with e */
/* *ret = NULL when off. -EINVAL, -EADDRINUSE, what the token's file gives; with e. */
int MUSTCHECK web_new(struct loop *l, const struct web_options *o, struct web **ret, struct errtext *e);
struct web *web_free(struct web *w);
int web_port(const struct web *w); /* the one bound, for port 0 */
