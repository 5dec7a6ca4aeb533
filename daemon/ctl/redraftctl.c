/* redraftctl: the operator's word. One verb, one call, one answer; the table of verbs is all there is to know.
 *
 * Rollback is special: when redraftd does not answer, the server is asked itself, under the same request id, so that
 * nothing is rolled back twice when redraftd had moved the server before it died.
 * Exit: 0 done, 1 refused or failed (the sentence says why), 2 usage or bad input,
 * 3 nobody answers, 4 it goes on: redraftd is at it still, and nothing is known of how it will end.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/base/buf.h"
#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "daemon/base/rpc.h"
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/print.h"
#include "schemas/audit.h"

enum { CTL_PING_MS = 3000 };

#define F(field) offsetof(struct ctl_conf, field)
static const struct conf_entry ctl_entries[] = {
	{"socket", CONF_STRING, F(socket), "/run/redraft/daemon/control.sock", 0, 0, NULL, false, "", "redraftd's control socket."},
	{"serve-socket", CONF_STRING, F(serve_socket), "/run/redraft/serve/control.sock", 0, 0, NULL, false, "", "The server's: rollback when redraftd is dead, config show."},
	{"learn-socket", CONF_STRING, F(learn_socket), "/run/redraft/learn/control.sock", 0, 0, NULL, false, "", "The learner's, for config show."},
	{"store", CONF_STRING, F(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "The version store: backup, restore, and audit when redraftd is dead."},
	{"json", CONF_BOOL, F(json), "off", 0, 0, NULL, false, "", "Print exactly the reply, as one JSON object a line."},
	{"timeout", CONF_REAL, F(timeout), "30", 0.01, 3600, NULL, false, "s", "How long to wait for an answer."},
	{"reason", CONF_STRING, F(reason), "", 0, 0, NULL, false, "", "What a change is made for; it stands in the audit log."},
	{"generation", CONF_INT, F(generation), "-1", -1, 9e15, NULL, false, "", "promote: refuse unless this is the generation; -1: no check."},
	{"last", CONF_INT, F(last), "20", 0, 1000, NULL, false, "", "audit, tail: how many of the past."},
	{"verify", CONF_BOOL, F(verify), "off", 0, 0, NULL, false, "", "audit: fail when the chain does not fit."},
	{"create", CONF_BOOL, F(create), "off", 0, 0, NULL, false, "", "topics: make those that are missing."},
	{"record", CONF_BOOL, F(record), "off", 0, 0, NULL, false, "", "probe: what is seen becomes the reference."},
	{"tenant", CONF_STRING, F(tenant), "", 0, 0, NULL, false, "", "purge: the keyed hash of the tenant, as records carry it."},
	{"requests", CONF_INT, F(requests), "64", 1, 4096, NULL, false, "", "replay: on how many of the newest requests."},
	{"interval", CONF_REAL, F(interval), "1", 0.1, 3600, NULL, false, "s", "top: time between two looks."},
	{"for", CONF_ENUM, F(program), "serve", 0, 0, "serve|learn|redraftd", false, "", "config: whose."},
	{0},
};

static int ctl_rollback(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
static int ctl_audit(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
static int ctl_topics(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
static int ctl_purge(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
static int ctl_config(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);

#define D "io.redraft.Daemon."
static const struct ctl_verb ctl_verbs[] = {
	{"status", "", "what is live, who is there, accept length by domain", D "Status", true, "", "", print_status, NULL},
	{"top", "", "the same, live: curves, events as they come; q ends it", D "Status", true, "", "", NULL, ctl_top},
	{"tail", "", "what happens, as it happens", D "Tail", true, "", "last", NULL, ctl_tail},
	{"versions", "", "every version and its state", D "Versions", true, "", "", print_versions, NULL},
	{"show", "N", "one version: manifest, verdict, training", D "Show", true, "version", "", print_show, NULL},
	{"explain", "N", "why is version N not live?", D "Explain", true, "version", "", print_explain, NULL},
	{"diff", "N M", "where two versions differ: manifest, configuration, verdict, weights", D "Diff", true, "a b", "", print_diff, NULL},
	{"promote", "N", "make version N live now, past the gate", D "Promote", false, "version", "generation request_id reason", print_moved, NULL},
	{"rollback", "", "back to the previous version; again: to the next older, then to no draft", D "Rollback", false, "", "request_id reason", print_moved, ctl_rollback},
	{"pin", "[N]", "live stays what it is", D "Pin", false, "version?", "reason", print_pin, NULL},
	{"unpin", "", "and may change again", D "Unpin", false, "", "reason", print_pin, NULL},
	{"hold", "", "judge candidates, promote none", D "Hold", false, "", "reason", print_done, NULL},
	{"release", "", "promote again", D "Release", false, "", "reason", print_done, NULL},
	{"pause", "", "the rollout does nothing: candidates wait, unjudged", D "PauseRollout", false, "", "reason", print_done, NULL},
	{"resume", "", "and goes on", D "ResumeRollout", false, "", "reason", print_done, NULL},
	{"probe", "", "serve the pinned prompts now: is the target side what it was? --record: it is right as it is now", D "Probe", false, "", "record reason", print_probe, NULL},
	{"drift", "", "has accept length fallen: the traffic or the engine?", D "Drift", true, "", "", print_drift, NULL},
	{"replay", "N", "what would version N have done on the newest requests?", D "Replay", false, "version", "requests", print_replay, NULL},
	{"audit", "", "what was changed, by whom and why; --verify: is the log whole?", D "Audit", false, "", "last", print_audit, ctl_audit},
	{"topics", "", "the Kafka topics and what is wrong with them; --create makes those that are missing", D "Topics", false, "", "create reason", print_topics, ctl_topics},
	{"purge", "", "--tenant HASH: forget a tenant's records, and say what that does not reach", D "Purge", false, "", "tenant reason", print_purge, ctl_purge},
	{"backup", "DIR", "copy the version store, while everything runs, into a new folder", NULL, true, "", "", NULL, ctl_backup},
	{"restore", "DIR", "put such a copy into an empty store, every file checked", NULL, true, "", "", NULL, ctl_restore},
	{"config", "WORD [FILE]", "check FILE --for PROGRAM: is this configuration good? show --for PROGRAM: the running one", D "Config", true, "", "", print_config, ctl_config},
	{0},
};

/* ---- the table as a help page ---- */

static const char ctl_first[] = "asks and commands redraftd\n\n", ctl_last[] = "\nExit status: 0 done, 1 refused or failed, 2 usage, 3 nobody answers, 4 it goes on and is not done yet.";

static char *ctl_summary(void)
{
	struct buf b = BUF_INIT(16 << 10);
	int r = buf_puts(&b, ctl_first);

	for (const struct ctl_verb *v = ctl_verbs; !r && v->name; v++) {
		char head[64];

		snprintf(head, sizeof head, "%s%s%s", v->name, v->args[0] ? " " : "", v->args);
		r = buf_printf(&b, "  redraftctl %-20s  %s\n", head, v->what);
	}
	if (!r)
		r = buf_puts(&b, ctl_last);
	if (!r)
		r = buf_append(&b, "", 1);
	if (r < 0)
		buf_done(&b);
	return (char *)b.data;
}

static const struct ctl_verb *ctl_find(const char *name, struct errtext *e)
{
	const char *names[sizeof ctl_verbs / sizeof *ctl_verbs] = {NULL}, *near;
	int n = 0;

	for (const struct ctl_verb *v = ctl_verbs; v->name; v++) {
		if (!strcmp(v->name, name))
			return v;
		names[n++] = v->name;
	}
	near = conf_nearest(name, names);
	if (near)
		errtext_set(e, 0, "%.60s is unknown; did you mean %s?", name, near);
	else
		errtext_set(e, 0, "%.60s is unknown; redraftctl --help lists what there is", name);
	return NULL;
}

/* ---- parameters ---- */

static const char *ctl_request_id(void)
{
	static char id[64];

	if (!id[0])
		snprintf(id, sizeof id, "ctl-%d-%llx", (int)getpid(), (unsigned long long)clock_us());
	return id;
}

static bool ctl_listed(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = strstr(list, word); p; p = strstr(p + 1, word))
		if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
			return true;
	return false;
}

static void ctl_flags(const struct ctl_verb *v, const struct ctl_conf *c, json_t *p)
{
	if (ctl_listed(v->flags, "generation") && c->generation >= 0)
		(void)json_object_set_new(p, "expected_generation", json_integer(c->generation));
	if (ctl_listed(v->flags, "request_id"))
		(void)json_object_set_new(p, "request_id", json_string(ctl_request_id()));
	if (ctl_listed(v->flags, "reason") && c->reason[0])
		(void)json_object_set_new(p, "reason", json_string(c->reason));
	if (ctl_listed(v->flags, "last"))
		(void)json_object_set_new(p, "last", json_integer(c->last));
	if (ctl_listed(v->flags, "requests"))
		(void)json_object_set_new(p, "requests", json_integer(c->requests));
	if (ctl_listed(v->flags, "tenant"))
		(void)json_object_set_new(p, "tenant", json_string(c->tenant));
	if (ctl_listed(v->flags, "record") && c->record)
		(void)json_object_set_new(p, "record", json_true());
	if (ctl_listed(v->flags, "create") && c->create)
		(void)json_object_set_new(p, "create", json_true());
}

json_t *ctl_params(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	json_t *p = json_object();
	const char *at = v->numbers;
	int i = 0;

	for (; *at; i++) {
		size_t n = strcspn(at, " ?");
		char name[32], *end = NULL;
		long long number = i < n_pos ? strtoll(pos[i], &end, 10) : 0;

		if (i < n_pos && (end == pos[i] || *end || number < 1 || number >= UINT32_MAX)) {
			fprintf(stderr, "redraftctl: %.60s is not a version number\n", pos[i]);
			goto bad;
		}
		if (i >= n_pos && at[n] != '?') {
			fprintf(stderr, "redraftctl: %s takes %s\n", v->name, strchr(v->numbers, ' ') ? "two version numbers" : "one version number");
			goto bad;
		}
		snprintf(name, sizeof name, "%.*s", (int)n, at);
		if (i < n_pos)
			(void)json_object_set_new(p, name, json_integer(number));
		at += n;
		at += strspn(at, " ?");
	}
	if (n_pos > i) {
		fprintf(stderr, "redraftctl: %s takes %s\n", v->name, i == 0 ? "nothing more" : i == 1 ? "one version number" : "two version numbers");
		goto bad;
	}
	ctl_flags(v, c, p);
	return p;
bad:
	json_decref(p);
	return NULL;
}

/* ---- asking and answering ---- */

void ctl_status_socket(const char *control, char *ret, size_t size)
{
	const char *slash = strrchr(control, '/');

	snprintf(ret, size, "%.*s/status.sock", slash ? (int)(slash - control) : 1, slash ? control : ".");
}

int ctl_call(const struct ctl_conf *c, const char *method, bool reads, json_t *params, json_t **ret, struct errtext *e)
{
	int ms = (int)(c->timeout * 1000), r;
	char other[PATH_MAX];

	r = rpc_call_sync(c->socket, method, json_incref(params), ms, ret, e);
	if (r != -EACCES || !reads)
		return r;
	ctl_status_socket(c->socket, other, sizeof other);
	return rpc_call_sync(other, method, json_incref(params), ms, ret, e);
}

static void ctl_error(const struct ctl_conf *c, const char *name, const char *text)
{
	json_t *j = c->json ? json_pack("{s:s, s:{s:s}}", "error", name, "parameters", "message", text) : NULL;

	if (j)
		json_dumpf(j, stderr, JSON_COMPACT);
	else
		fprintf(stderr, "redraftctl: %s%s%s", name && !strchr(name, ' ') ? name : "", name && !strchr(name, ' ') ? ": " : "", text);
	fputc('\n', stderr);
	json_decref(j);
}

int ctl_say(const struct ctl_conf *c, int status, const char *text)
{
	ctl_error(c, status == EXIT_NOBODY ? "nobody answers" : status == EXIT_USAGE ? "bad input" : status == EXIT_GOES_ON ? "not done yet" : "not done", text);
	return status;
}

int ctl_failed(const struct ctl_conf *c, int r, const struct errtext *e)
{
	char name[128] = "";
	const char *text = e->text;
	size_t n = strcspn(text, ":");

	if (r == RPC_E_REMOTE && n < sizeof name) {
		snprintf(name, sizeof name, "%.*s", (int)n, text);
		text += text[n] ? n + 2 : n;
	}
	ctl_error(c, name[0] ? name : "nobody answers", text);
	return r < 0 && r != -EPROTO ? EXIT_NOBODY : EXIT_REFUSED;
}

int ctl_print(const struct ctl_conf *c, const struct ctl_verb *v, json_t *reply, int status)
{
	if (c->json || !v->print) {
		json_dumpf(reply, stdout, JSON_COMPACT);
		fputc('\n', stdout);
	} else {
		v->print(stdout, reply);
	}
	if (json_is_false(json_object_get(reply, "audited")))
		fputs("redraftctl: done, but not in the audit log yet: its line waits for room on the disk (redraftctl status tells)\n", stderr);
	json_decref(reply);
	if (fflush(stdout) != 0) {
		fprintf(stderr, "redraftctl: the answer could not be printed: %s\n", strerror(errno));
		return EXIT_REFUSED;
	}
	return status;
}

/* Under socket activation a daemon that cannot start still has a socket that takes calls and never answers. Who does not say its
 * name soon is dead. */
static int ctl_is_there(const struct ctl_conf *c, int ms, struct errtext *e)
{
	json_t *info = NULL;
	int r = rpc_call_sync(c->socket, "org.varlink.service.GetInfo", NULL, ms, &info, e);

	json_decref(info);
	return r < 0 ? r : 0;
}

/* No answer to a change in time. Whoever is there is at it still: that is no failure, and must not be taken for one. */
static int ctl_unanswered(const struct ctl_verb *v, const struct ctl_conf *c, int r, const struct errtext *e)
{
	struct errtext ignored = {.text = ""};
	char text[300];

	if (r != -ETIMEDOUT || v->reads || ctl_is_there(c, CTL_PING_MS, &ignored) < 0)
		return ctl_failed(c, r, e);
	snprintf(text, sizeof text, "%s goes on: redraftd has not answered within %.4g s and is at it still. %s tells how it ends; --timeout SECONDS waits longer", v->name,
		 c->timeout, !strcmp(v->name, "promote") ? "redraftctl status (what is being switched to, what is live) or explain N" : "redraftctl audit, or tail,");
	return ctl_say(c, EXIT_GOES_ON, text);
}

static int ctl_plain(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	json_t *params = ctl_params(v, c, pos, n_pos), *reply = NULL;
	struct errtext e = {.text = ""};
	int r;

	if (!params)
		return EXIT_USAGE;
	r = ctl_call(c, v->method, v->reads, params, &reply, &e);
	json_decref(params);
	return r ? ctl_unanswered(v, c, r, &e) : ctl_print(c, v, reply, EXIT_DONE);
}

/* ---- verbs with a way of their own ---- */

/* What redraftd says instead of an answer when it is stopping: as good as none. */
static bool ctl_is_leaving(int r, const struct errtext *e)
{
	return r == RPC_E_REMOTE && !strncmp(e->text, "io.redraft.Daemon.Busy", 22);
}

static int ctl_rollback(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	json_t *params = ctl_params(v, c, pos, n_pos), *reply = NULL;
	struct errtext e = {.text = ""};
	int r;

	if (!params)
		return EXIT_USAGE;
	r = ctl_is_there(c, c->timeout * 1000 < CTL_PING_MS ? (int)(c->timeout * 1000) : CTL_PING_MS, &e);
	if (!r)
		r = ctl_call(c, v->method, false, params, &reply, &e);
	json_decref(params);
	if (r < 0 || ctl_is_leaving(r, &e)) {
		fprintf(stderr, "redraftctl: redraftd does not answer (%.150s); asking the server itself\n", e.text);
		r = rpc_call_sync(c->serve_socket, "io.redraft.Serve.Rollback", json_pack("{s:s}", "request_id", ctl_request_id()),
				  (int)(c->timeout * 1000), &reply, &e);
	}
	return r ? ctl_failed(c, r, &e) : ctl_print(c, v, reply, EXIT_DONE);
}

/* The same reply, made here of the files. NULL: they cannot be read, or there are none. */
static json_t *ctl_audit_files(const struct ctl_conf *c)
{
	struct audit_seen s;
	json_t *records;
	char dir[PATH_MAX];
	struct errtext e;

	snprintf(dir, sizeof dir, "%s/audit", c->store);
	if (audit_last(dir, (size_t)c->last, &s, &records, &e) < 0)
		return NULL;
	if (s.files)
		return audit_reply(&s, records);
	json_decref(records);
	return NULL;
}

static int ctl_audit(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	json_t *params = ctl_params(v, c, pos, n_pos), *reply = NULL;
	struct errtext e = {.text = ""};
	bool whole;
	int r;

	if (!params)
		return EXIT_USAGE;
	r = ctl_call(c, v->method, false, params, &reply, &e);
	json_decref(params);
	if (r < 0 && (reply = ctl_audit_files(c))) {
		fprintf(stderr, "redraftctl: redraftd does not answer; read from %s/audit\n", c->store);
		r = 0;
	}
	if (r)
		return ctl_failed(c, r, &e);
	whole = json_is_true(json_object_get(reply, "whole"));
	return ctl_print(c, v, reply, c->verify && !whole ? EXIT_REFUSED : EXIT_DONE);
}

static int ctl_topics(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	json_t *params = ctl_params(v, c, pos, n_pos), *reply = NULL;
	struct errtext e = {.text = ""};
	bool good;
	int r;

	if (!params)
		return EXIT_USAGE;
	r = ctl_call(c, v->method, false, params, &reply, &e);
	json_decref(params);
	if (r)
		return ctl_unanswered(v, c, r, &e);
	good = json_is_true(json_object_get(reply, "good"));
	return ctl_print(c, v, reply, good ? EXIT_DONE : EXIT_REFUSED);
}

static int ctl_purge(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	if (!c->tenant[0])
		return ctl_say(c, EXIT_USAGE, "purge --tenant HASH: the keyed hash of the tenant, as records carry it");
	return ctl_plain(v, c, pos, n_pos);
}

static void ctl_become(const char *path, const char *program, const char *file)
{
	execl(path, program, "--config", file, "--check", (char *)NULL);
	execlp(program, program, "--config", file, "--check", (char *)NULL);
	fprintf(stderr, "redraftctl: %s cannot be started: %s\n", program, strerror(errno));
}

/* The program checks its own file. With --json what it says is caught and told as an object; else we become it. */
static int ctl_check(const struct ctl_conf *c, const char *path, const char *program, const char *file)
{
	char said[1024];
	int pipe_fd[2], status = 0;
	size_t n = 0;
	ssize_t k;
	pid_t pid;

	if (!c->json || pipe(pipe_fd) < 0) {
		ctl_become(path, program, file);
		return EXIT_REFUSED;
	}
	pid = fork();
	if (pid == 0) {
		(void)dup2(pipe_fd[1], 1);
		(void)dup2(pipe_fd[1], 2);
		close(pipe_fd[0]);
		close(pipe_fd[1]);
		ctl_become(path, program, file);
		_exit(EXIT_REFUSED);
	}
	close(pipe_fd[1]);
	while (n < sizeof said - 1 && (k = read(pipe_fd[0], said + n, sizeof said - 1 - n)) > 0)
		n += (size_t)k;
	close(pipe_fd[0]);
	said[n] = '\0';
	said[strcspn(said, "\n")] = '\0';
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return ctl_say(c, EXIT_REFUSED, "no process could be started");
	status = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_REFUSED;
	return ctl_print(c, &(struct ctl_verb){.print = NULL}, json_pack("{s:s, s:s, s:b, s:s}", "program", program, "file", file, "good", status == 0, "text", said),
			 status);
}

/* A program knows its own settings, so it is asked: the running one at its socket; to check a file, the one beside us, else
 * the one on the PATH. */
static int ctl_config(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	static const char *const programs[] = {"redraft-serve", "redraft-learn", "redraftd"}, *const interfaces[] = {"Serve", "Learn", "Daemon"};
	const char *sockets[] = {c->serve_socket, c->learn_socket, c->socket}, *program = programs[c->program];
	char here[PATH_MAX], path[PATH_MAX + 32], method[64];
	struct errtext e = {.text = ""};
	json_t *reply = NULL;
	ssize_t n;
	char *slash;
	int r;

	if (n_pos == 1 && !strcmp(pos[0], "show")) {
		struct ctl_conf other = *c;

		other.socket = (char *)(uintptr_t)sockets[c->program];
		snprintf(method, sizeof method, "io.redraft.%s.Config", interfaces[c->program]);
		r = ctl_call(&other, method, true, NULL, &reply, &e);
		return r ? ctl_failed(c, r, &e) : ctl_print(c, v, reply, EXIT_DONE);
	}
	if (n_pos != 2 || strcmp(pos[0], "check") != 0)
		return ctl_say(c, EXIT_USAGE, "config check FILE --for serve|learn|redraftd, or config show --for serve|learn|redraftd");
	n = readlink("/proc/self/exe", here, sizeof here - 1);
	here[n > 0 ? n : 0] = '\0';
	slash = strrchr(here, '/');
	snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - here + 1) : 0, here, program);
	return ctl_check(c, path, program, pos[1]);
}

int main(int argc, char **argv)
{
	struct conf_program program = {.name = "redraftctl", .entries = ctl_entries, .struct_size = sizeof(struct ctl_conf)};
	const char *pos[CTL_POSITIONAL];
	const struct ctl_verb *v = NULL;
	struct ctl_conf c;
	struct errtext e = {.text = ""};
	char *summary = ctl_summary();
	int n_pos = 0, r, status = EXIT_USAGE;

	program.summary = summary ? summary : "";
	r = conf_load(&program, argc, argv, &c, pos, CTL_POSITIONAL, &n_pos, &e);
	if (r) {
		if (r < 0)
			fprintf(stderr, "redraftctl: %s\n", e.text);
		free(summary);
		return r < 0 ? EXIT_USAGE : EXIT_DONE;
	}
	if (!n_pos)
		errtext_set(&e, 0, "what is to be done? redraftctl --help lists the verbs");
	else
		v = ctl_find(pos[0], &e);
	if (!v)
		fprintf(stderr, "redraftctl: %s\n", e.text);
	else
		status = (v->run ? v->run : ctl_plain)(v, &c, pos + 1, n_pos - 1);
	conf_done(&program, &c);
	free(summary);
	return status;
}
