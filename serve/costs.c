/* What the parts of a round cost, for the controller, where the host does not wait between them.
 *
 * Each part lies between two stamps that the device takes in the order of its work; they are read after the round's one wait. On a
 * CPU a stamp is the time itself. A round that has more parts than there are stamps leaves the last out.
 */
#include "serve/engine_core.h"

int cost_begin(struct engine *g, enum ctl_cost what, int rows)
{
	struct costs *c = &g->costs;
	if (c->n == OP_STAMPS / 2)
		return -1;
	c->of[c->n].what = what;
	c->of[c->n].rows = rows;
	g->o.dev->ops->stamp(g->o.dev, 2 * c->n);
	return c->n++;
}

void cost_end(struct engine *g, int i)
{
	if (i >= 0)
		g->o.dev->ops->stamp(g->o.dev, 2 * i + 1);
}

double costs_take(struct engine *g)
{
	struct costs *c = &g->costs;
	double verify = -1;
	for (int i = 0; i < c->n; i++) {
		double ms = g->o.dev->ops->lapse(g->o.dev, 2 * i, 2 * i + 1);
		if (c->of[i].what == CTL_VERIFY)
			verify = ms;
		else if (ms >= 0)
			controller_cost(&g->ctl, c->of[i].what, c->of[i].rows, ms);
	}
	c->n = 0;
	return verify;
}
