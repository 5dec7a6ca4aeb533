/* redraftctl: the operator's word. One verb, one call, one answer.
 *
 * Rollback is special: when redraftd does not answer, the server is asked itself.
 * Exit: 0 done, 1 refused or failed (the sentence says why), 2 usage or bad input,
 * 3 nobody answers.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "daemon/base/rpc.h"
#include "daemon/ctl/print.h"

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_NOBODY = 3 };
enum { CTL_PING_MS = 3000 };

struct ctl_conf {
	char *socket, *serve_socket;
	bool json;
	double timeout;
	int64_t generation;
	int program; /* of ctl_programs */
};

#define F(field) offsetof(struct ctl_conf, field)
static const struct conf_entry ctl_entries[] = {
	{"socket", CONF_STRING, F(socket), "/run/redraft/daemon/control.sock", 0, 0, NULL, false, "", "redraftd's control socket."},
	{"serve-socket", CONF_STRING, F(serve_socket), "/run/redraft/serve/control.sock", 0, 0, NULL, false, "", "The server's, for rollback when redraftd is dead."},
	{"json", CONF_BOOL, F(json), "off", 0, 0, NULL, false, "", "Print exactly the reply, as one JSON object."},
	{"timeout", CONF_REAL, F(timeout), "30", 0.01, 3600, NULL, false, "s", "How long to wait for an answer."},
	{"generation", CONF_INT, F(generation), "-1", -1, 9e15, NULL, false, "", "promote: refuse unless this is the generation; -1: no check."},
	{"for", CONF_ENUM, F(program), "serve", 0, 0, "serve|learn|redraftd", false, "", "config check: whose configuration the file is."},
	{0},
};
static const struct conf_program ctl_program = {
	.name = "redraftctl",
	.summary = "asks and commands redraftd\n\n"
	"  redraftctl status        what is live, who is there, accept length by domain\n"
	"  redraftctl versions      every version and its state\n"
	"  redraftctl show N        one version: manifest, verdict, training\n"
	"  redraftctl promote N     make version N live now, past the gate\n"
	"  redraftctl rollback      back to the previous version; again: to the next older, then to no draft\n"
	"  redraftctl pin [N]       live stays what it is\n"
	"  redraftctl unpin         and may change again\n"
	"  redraftctl hold          judge candidates, promote none\n"
	"  redraftctl release       promote again\n"
	"  redraftctl drift         has accept length fallen: the traffic or the engine?\n"
	"  redraftctl config        check FILE --for serve|learn|redraftd: is this configuration good?\n\n"
	"Exit status: 0 done, 1 refused or failed, 2 usage, 3 nobody answers.",
	.entries = ctl_entries,
	.struct_size = sizeof(struct ctl_conf),
};

struct ctl_verb {
	const char *name, *method;
	bool reads;       /* the status socket will do */
	int min_n, max_n; /* how many version numbers follow */
	void (*print)(FILE *out, const json_t *params);
};

static const struct ctl_verb ctl_verbs[] = {
	{"status", "io.redraft.Daemon.Status", true, 0, 0, print_status},
	{"versions", "io.redraft.Daemon.Versions", true, 0, 0, print_versions},
	{"show", "io.redraft.Daemon.Show", true, 1, 1, print_show},
	{"promote", "io.redraft.Daemon.Promote", false, 1, 1, print_moved},
	{"rollback", "io.redraft.Daemon.Rollback", false, 0, 0, print_moved},
	{"pin", "io.redraft.Daemon.Pin", false, 0, 1, print_pin},
	{"unpin", "io.redraft.Daemon.Unpin", false, 0, 0, print_pin},
	{"hold", "io.redraft.Daemon.Hold", false, 0, 0, print_done},
	{"release", "io.redraft.Daemon.Release", false, 0, 0, print_done},
	{"drift", "io.redraft.Daemon.Drift", true, 0, 0, print_drift},
};
enum { CTL_N_VERBS = sizeof ctl_verbs / sizeof *ctl_verbs };

static const struct ctl_verb *ctl_find(const char *name, struct errtext *e)
{
	const char *names[CTL_N_VERBS + 1] = {NULL}, *near;

	for (int i = 0; i < CTL_N_VERBS; i++) {
		if (!strcmp(ctl_verbs[i].name, name))
			return &ctl_verbs[i];
		names[i] = ctl_verbs[i].name;
	}
	near = conf_nearest(name, names);
	if (near)
		errtext_set(e, 0, "%.60s is unknown; did you mean %s?", name, near);
	else
		errtext_set(e, 0, "%.60s is unknown; redraftctl --help lists what there is", name);
	return NULL;
}

static int ctl_params(const struct ctl_verb *v, const char **pos, int n_pos, const struct ctl_conf *c, const char *request_id,
		      json_t **ret, struct errtext *e)
{
	json_t *p = json_object();
	char *end;
	long long number;

	if (n_pos < v->min_n || n_pos > v->max_n) {
		json_decref(p);
		return errtext_set(e, -EINVAL, "%s takes %s", v->name,
				   v->max_n == 0 ? "nothing more" : v->min_n ? "one version number" : "at most one version number");
	}
	if (n_pos) {
		number = strtoll(pos[0], &end, 10);
		if (end == pos[0] || *end || number < 1 || number >= UINT32_MAX) {
			json_decref(p);
			return errtext_set(e, -EINVAL, "%.60s is not a version number", pos[0]);
		}
		(void)json_object_set_new(p, "version", json_integer(number));
	}
	if (!strcmp(v->name, "promote") && c->generation >= 0)
		(void)json_object_set_new(p, "expected_generation", json_integer(c->generation));
	if (!strcmp(v->name, "promote") || !strcmp(v->name, "rollback"))
		(void)json_object_set_new(p, "request_id", json_string(request_id));
	*ret = p;
	return 0;
}

/* control.sock is for operators; who may only read finds status.sock beside it. */
static int ctl_call(const struct ctl_verb *v, const struct ctl_conf *c, json_t *params, json_t **ret, struct errtext *e)
{
	int ms = (int)(c->timeout * 1000), r;
	const char *slash = strrchr(c->socket, '/');
	char other[PATH_MAX];

	r = rpc_call_sync(c->socket, v->method, json_incref(params), ms, ret, e);
	if (r != -EACCES || !v->reads || !slash)
		return r;
	snprintf(other, sizeof other, "%.*s/status.sock", (int)(slash - c->socket), c->socket);
	return rpc_call_sync(other, v->method, json_incref(params), ms, ret, e);
}

/* Under socket activation a daemon that cannot start still has a socket that takes calls and never answers. A
 * rollback does not wait for it: who does not say its name at once is dead. */
static int ctl_is_there(const struct ctl_conf *c, struct errtext *e)
{
	json_t *info = NULL;
	int ms = c->timeout * 1000 < CTL_PING_MS ? (int)(c->timeout * 1000) : CTL_PING_MS;
	int r = rpc_call_sync(c->socket, "org.varlink.service.GetInfo", NULL, ms, &info, e);

	json_decref(info);
	return r < 0 ? r : 0;
}

static int ctl_fall_through(const struct ctl_conf *c, const char *request_id, const char *why, json_t **ret, struct errtext *e)
{
	fprintf(stderr, "redraftctl: redraftd does not answer (%s); asking the server itself\n", why);
	return rpc_call_sync(c->serve_socket, "io.redraft.Serve.Rollback", json_pack("{s:s}", "request_id", request_id),
			     (int)(c->timeout * 1000), ret, e);
}

static int ctl_failed(const struct ctl_conf *c, int r, const struct errtext *e)
{
	if (c->json) {
		char name[128] = "";
		const char *text = e->text;
		size_t n = strcspn(text, ":");
		json_t *j;

		if (r == RPC_E_REMOTE && n < sizeof name) {
			snprintf(name, sizeof name, "%.*s", (int)n, text);
			text += text[n] ? n + 2 : n;
		}
		j = json_pack("{s:s, s:{s:s}}", "error", name[0] ? name : "nobody answers", "parameters", "message", text);
		if (j)
			json_dumpf(j, stderr, JSON_COMPACT);
		fputc('\n', stderr);
		json_decref(j);
	} else {
		fprintf(stderr, "redraftctl: %s\n", e->text);
	}
	return r < 0 && r != -EPROTO ? EXIT_NOBODY : EXIT_REFUSED;
}

static int ctl_run(const struct ctl_verb *v, const struct ctl_conf *c, json_t *params, const char *request_id)
{
	bool rollback = !strcmp(v->name, "rollback");
	struct errtext e = {.text = ""};
	json_t *reply = NULL;
	int r = rollback ? ctl_is_there(c, &e) : 0;

	if (!r)
		r = ctl_call(v, c, params, &reply, &e);
	if (r < 0 && rollback) {
		char why[160];

		snprintf(why, sizeof why, "%.150s", e.text);
		r = ctl_fall_through(c, request_id, why, &reply, &e);
	}
	if (r)
		return ctl_failed(c, r, &e);
	if (c->json) {
		json_dumpf(reply, stdout, JSON_COMPACT);
		fputc('\n', stdout);
	} else {
		v->print(stdout, reply);
	}
	json_decref(reply);
	if (fflush(stdout) != 0) {
		fprintf(stderr, "redraftctl: the answer could not be printed: %s\n", strerror(errno));
		return EXIT_REFUSED;
	}
	return EXIT_DONE;
}

/* A program knows its own settings, so it is asked: the one beside us, else the one on the PATH. Does not return when it
 * could be started. */
static int ctl_config(const char **pos, int n_pos, int program)
{
	static const char *const programs[] = {"redraft-serve", "redraft-learn", "redraftd"};
	char here[PATH_MAX], path[PATH_MAX + 32];
	ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
	char *slash;

	if (n_pos != 2 || strcmp(pos[0], "check") != 0) {
		fprintf(stderr, "redraftctl: config check FILE --for serve|learn|redraftd\n");
		return EXIT_USAGE;
	}
	here[n > 0 ? n : 0] = '\0';
	slash = strrchr(here, '/');
	snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - here + 1) : 0, here, programs[program]);
	execl(path, programs[program], "--config", pos[1], "--check", (char *)NULL);
	execlp(programs[program], programs[program], "--config", pos[1], "--check", (char *)NULL);
	fprintf(stderr, "redraftctl: %s cannot be started: %s\n", programs[program], strerror(errno));
	return EXIT_REFUSED;
}

int main(int argc, char **argv)
{
	const char *pos[3];
	const struct ctl_verb *v = NULL;
	struct ctl_conf c;
	struct errtext e = {.text = ""};
	char request_id[64];
	json_t *params = NULL;
	int n_pos = 0, r, status;

	r = conf_load(&ctl_program, argc, argv, &c, pos, 3, &n_pos, &e);
	if (r > 0)
		return EXIT_DONE;
	if (r < 0) {
		fprintf(stderr, "redraftctl: %s\n", e.text);
		return EXIT_USAGE;
	}
	snprintf(request_id, sizeof request_id, "ctl-%d-%llx", (int)getpid(), (unsigned long long)clock_us());
	if (n_pos && !strcmp(pos[0], "config")) {
		status = ctl_config(pos + 1, n_pos - 1, c.program);
		conf_done(&ctl_program, &c);
		return status;
	}
	if (!n_pos)
		errtext_set(&e, 0, "what is to be done? redraftctl --help lists the verbs");
	else
		v = ctl_find(pos[0], &e);
	if (!v || ctl_params(v, pos + 1, n_pos - 1, &c, request_id, &params, &e) < 0) {
		fprintf(stderr, "redraftctl: %s\n", e.text);
		status = EXIT_USAGE;
	} else {
		status = ctl_run(v, &c, params, request_id);
	}
	json_decref(params);
	conf_done(&ctl_program, &c);
	return status;
}
