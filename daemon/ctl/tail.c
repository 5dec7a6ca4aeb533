/* redraftctl tail: events as they happen, one a line, until it is interrupted. When redraftd goes, it says so and waits for it:
 * whoever leaves a terminal open over night finds it still telling in the morning. With --json each event is one object a line.
 */
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/rpc.h"
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/print.h"

enum { AGAIN_S = 1 };

struct tail {
	const struct ctl_conf *c;
	bool heard, broken; /* something came on this connection; stdout is gone */
};

static bool tail_each(void *arg, const json_t *params)
{
	const json_t *events = json_object_get(params, "events");
	struct tail *t = arg;

	t->heard = true;
	for (size_t i = 0; i < json_array_size(events); i++) {
		if (t->c->json) {
			json_dumpf(json_array_get(events, i), stdout, JSON_COMPACT);
			fputc('\n', stdout);
		} else {
			print_event(stdout, json_array_get(events, i));
		}
	}
	t->broken = fflush(stdout) != 0;
	return !t->broken;
}

int ctl_tail(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	json_t *params = ctl_params(v, c, pos, n_pos);
	struct tail t = {.c = c};
	struct errtext e = {.text = ""};
	char status[PATH_MAX];
	bool ever = false;
	int r;

	if (!params)
		return EXIT_USAGE;
	ctl_status_socket(c->socket, status, sizeof status);
	for (;;) {
		t.heard = false;
		r = rpc_call_stream(c->socket, v->method, json_incref(params), (int)(c->timeout * 1000), tail_each, &t, &e);
		if (r == -EACCES)
			r = rpc_call_stream(status, v->method, json_incref(params), (int)(c->timeout * 1000), tail_each, &t, &e);
		if (t.broken || r > 0 || (r < 0 && !ever && !t.heard))
			break;
		if (t.heard)
			fprintf(stderr, "redraftctl: redraftd has gone; waiting for it\n");
		ever = true;
		(void)json_object_set_new(params, "last", json_integer(0)); /* a daemon that comes back begins anew */
		sleep(AGAIN_S);
	}
	json_decref(params);
	return t.broken ? EXIT_REFUSED : ctl_failed(c, r, &e);
}
