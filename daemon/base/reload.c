/* Build, check, compare, take (reload.h). */
#include "daemon/base/reload.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "daemon/base/notify.h"

enum { RELOAD_MAX_POS = 4 };

static int reload_take(struct reload *r, void *fresh, struct errtext *e)
{
	char taken[96], waits[96];
	int n = conf_differing(r->program, r->conf, fresh, true, taken, sizeof taken);
	int m = conf_differing(r->program, r->conf, fresh, false, waits, sizeof waits);
	int res = n ? r->apply(r->arg, fresh, e) : 0;

	if (res < 0)
		return res;
	conf_swap_reloadable(r->program, r->conf, fresh);
	return errtext_set(e, 0, "reloaded: %s%s%s", n ? taken : "nothing changed that a reload takes up", m ? "; after a restart: " : "",
			   m ? waits : "");
}

void reload_count(struct reload *r, struct metrics *m)
{
	for (int i = 0; i < 2; i++)
		r->counted[i] = metrics_counter(m, "redraft_reloads_total", i ? "result=\"refused\"" : "result=\"done\"",
						"Configurations read again, and whether they were taken.");
}

int reload_now(struct reload *r, struct errtext *ret_sentence)
{
	const char *pos[RELOAD_MAX_POS];
	struct errtext e = {.text = ""};
	void *fresh = calloc(1, r->program->struct_size);
	int n_pos = 0, res = fresh ? 0 : errtext_set(&e, -ENOMEM, "out of memory");

	notify_state("RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_us());
	if (!res)
		res = conf_load(r->program, r->argc, r->argv, fresh, r->max_pos ? pos : NULL, r->max_pos, &n_pos, &e);
	if (!res) {
		res = reload_take(r, fresh, &e);
		conf_done(r->program, fresh);
	}
	free(fresh);
	if (res < 0)
		(void)errtext_set(ret_sentence, 0, "not reloaded, the running configuration stands: %.190s", e.text);
	else
		*ret_sentence = e;
	r->refused += res < 0;
	if (r->counted[res < 0])
		metric_add(r->counted[res < 0], 1);
	notify_state("READY=1");
	return res;
}
