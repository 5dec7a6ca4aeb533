/* A small HTTP listener for scrapers: /metrics, and /health or /healthz. */
#pragma once
#include "daemon/base/err.h"

struct loop;
struct metrics;
struct watch;
struct web;

/* listen: "host:port" or "[v6]:port"; "" = off (*ret = NULL). -EINVAL, -EADDRINUSE with e. */
int MUSTCHECK web_new(struct loop *l, const char *listen, struct metrics *m, struct watch *w, struct web **ret,
		      struct errtext *e);
struct web *web_free(struct web *w);
int web_port(const struct web *w); /* the one bound, for port 0 */
