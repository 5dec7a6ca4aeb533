/* What the server says of its own state: live (it answers), ready (it takes requests), and in which
 * way it is less than it could be.
 *
 *   loading   503  the model is not there yet
 *   ready     200
 *   degraded  200  answers are right and complete, but no draft makes them faster, or no broker takes traces
 *   draining  503  what runs may end, nothing new is taken
 */
#include "serve/http.h"
#include "serve/openai_live.h"
#include "serve/tap.h"

static void add_reasons(struct openai *o, json_t *reasons)
{
	struct engine_status s = {0};
	struct tap_stats t = {0};

	o->o.calls->status(o->o.engine, &s);
	if (s.live == 0)
		json_array_append_new(reasons, json_string("no draft is live: decoding plainly"));
	if (o->o.tap)
		tap_stats(o->o.tap, &t);
	if (t.broker_down)
		json_array_append_new(reasons, json_string("no broker can be reached: traces are dropped when the queue is full"));
}

void reply_ready(struct openai *o, struct http_request *h)
{
	json_t *reasons = json_array();
	const char *state = "ready";

	if (o->draining) {
		state = "draining";
	} else if (!o->o.calls) {
		state = "loading";
	} else {
		add_reasons(o, reasons);
		state = json_array_size(reasons) ? "degraded" : "ready";
	}
	bool takes = !o->draining && o->o.calls;
	if (!takes)
		http_set_header(h, "Retry-After", "1");
	http_set_header(h, "Cache-Control", "no-store");
	reply_json(h, takes ? 200 : 503, json_pack("{s:s,s:o}", "status", state, "reasons", reasons));
}

void reply_live(struct openai *o, struct http_request *h)
{
	(void)o;
	http_set_header(h, "Cache-Control", "no-store");
	reply_json(h, 200, json_pack("{s:s}", "status", "live"));
}
