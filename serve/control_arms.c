/* Canary: a share of the conversations drafts with another version than live (serve/arm.h).
 *
 * The share and the salt are the daemon's; nothing of it is persisted here: a server that starts anew has no
 * canary until the daemon, which keeps the books, asks for it again.
 */
#include <string.h>
#include "serve/control_inside.h"

json_t *canary_json(const struct engine_status *s)
{
	return json_pack("{s:I,s:I,s:s}", "version", (json_int_t)s->canary, "permille", (json_int_t)s->permille, "salt", s->salt);
}

void on_canary(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const char *salt = json_string_value(json_object_get(p, "salt"));
	uint32_t version, permille = 0;
	struct engine_status s;
	struct errtext e = {""};
	int r;

	if (!control_u32(p, "version", true, &version)) {
		control_invalid(call, "version");
		return;
	}
	if (!control_u32(p, "permille", version != 0, &permille) || permille > 1000 || (version && !permille)) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "permille must be 1 to 1000");
		return;
	}
	if (version && (!salt || !*salt || strlen(salt) >= sizeof s.salt)) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "salt must be a string of 1 to 32 bytes");
		return;
	}
	if (!control_generation_fits(c, call, p))
		return;
	if (control_loading(c, call, version))
		return;
	r = engine_canary(c->o.engine, version, permille, salt, &e);
	if (r < 0) {
		rpc_error(call, "io.redraft.BadVersion", "%s", *e.text ? e.text : "the engine is stopping");
		return;
	}
	if (version)
		control_note(c, false, "canary: version %u drafts for %u of 1000 conversations", version, permille);
	else
		control_note(c, false, "canary over: everybody drafts with what is live");
	engine_status(c->o.engine, &s);
	rpc_reply(call, json_pack("{s:I,s:o}", "generation", (json_int_t)c->generation, "canary", canary_json(&s)));
}
