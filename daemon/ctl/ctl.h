/* Shared between the files of redraftctl: its settings, and how a verb runs. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "daemon/base/err.h"

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_NOBODY = 3, EXIT_GOES_ON = 4 };
enum { CTL_POSITIONAL = 4 };

struct ctl_conf {
	char *socket, *serve_socket, *learn_socket, *store, *reason, *tenant;
	bool json, create, verify, record;
	double timeout, interval;
	int64_t generation, last, requests;
	int program; /* of serve, learn, redraftd */
};

/* One verb: a row of the table in redraftctl.c, from which --help, the manual and the completions come too. */
struct ctl_verb {
	const char *name, *args, *what;
	const char *method; /* NULL: run does it all */
	bool reads;         /* the status socket will do */
	const char *numbers; /* names of the parameters that the positional numbers are, "version" or "a b"; "version?" may be left out */
	const char *flags;   /* settings that are parameters too: "reason last" */
	void (*print)(FILE *out, const json_t *params);
	int (*run)(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos); /* an exit status; NULL: call method and print */
};

/* Ask; who may only read finds status.sock beside control.sock. As rpc_call_sync. params is borrowed. */
int ctl_call(const struct ctl_conf *c, const char *method, bool reads, json_t *params, json_t **ret, struct errtext *e);
int ctl_failed(const struct ctl_conf *c, int r, const struct errtext *e); /* says it; the exit status */
int ctl_say(const struct ctl_conf *c, int status, const char *text);      /* a sentence on stderr, as JSON if asked; the status */
/* A reply, as JSON or printed; status unless it could not be written. Takes reply. */
int ctl_print(const struct ctl_conf *c, const struct ctl_verb *v, json_t *reply, int status);
/* The parameters that the table names; NULL: said on stderr. */
json_t *ctl_params(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
/* control.sock's path with status.sock instead, into ret. */
void ctl_status_socket(const char *control, char *ret, size_t size);

int ctl_tail(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
int ctl_top(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
int ctl_backup(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
int ctl_restore(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos);
