/* Feeding the watchdog, and only with a reason (service.h). */
#include "daemon/base/service.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/loop.h"
#include "daemon/base/notify.h"

enum { SERVICE_STATUS_US = 5000000 };

struct service {
	struct service_options o;
	struct loop_timer *timer; /* owned */
	uint64_t every_us;
	bool watched;
	char said[256];
};

static void service_tick(void *arg)
{
	struct service *s = arg;
	char text[sizeof s->said] = "";

	if (s->o.status)
		s->o.status(s->o.arg, text, sizeof text);
	if (strcmp(text, s->said)) {
		memcpy(s->said, text, sizeof text);
		notify_state("STATUS=%s", text);
	}
	if (s->watched && (!s->o.alive || s->o.alive(s->o.arg)))
		notify_state("WATCHDOG=1");
	loop_timer_set(s->timer, s->every_us);
}

/* 0 = nobody watches us. */
static uint64_t service_watchdog_us(void)
{
	const char *text = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

	if (pid && strtol(pid, NULL, 10) != (long)getpid())
		return 0;
	return text ? strtoull(text, NULL, 10) : 0;
}

int service_new(const struct service_options *o, struct service **ret)
{
	uint64_t us = service_watchdog_us();
	struct service *s;

	*ret = NULL;
	if (!getenv("NOTIFY_SOCKET"))
		return 0;
	s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->o = *o;
	s->watched = us > 0;
	s->every_us = us > 0 && us / 4 < SERVICE_STATUS_US ? us / 4 : SERVICE_STATUS_US;
	if (loop_timer_new(o->loop, service_tick, s, &s->timer) < 0) {
		free(s);
		return -ENOMEM;
	}
	loop_timer_set(s->timer, 0);
	*ret = s;
	return 0;
}

struct service *service_free(struct service *s)
{
	if (s)
		loop_timer_free(s->timer);
	free(s);
	return NULL;
}

bool pulse_moves(struct pulse *p, uint64_t beats, bool busy)
{
	bool moves = !busy || !p->busy || beats != p->beats;

	*p = (struct pulse){.beats = beats, .busy = busy};
	return moves;
}
