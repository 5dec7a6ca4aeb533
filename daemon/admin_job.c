/* What takes a while and changes nothing of the rollout: comparing two versions' weights, asking the broker for its topics,
 * reading the audit log through. One at a time, on a thread, so that a rollback never waits for it; a second caller
 * hears Busy at once.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/act.h"
#include "daemon/admin_inside.h"
#include "daemon/audit.h"
#include "daemon/base/loop.h"
#include "daemon/diff.h"
#include "schemas/audit.h"

enum { AUDIT_LAST = 20, AUDIT_MOST = 1000 };

struct admin_job {
	struct admin *admin;
	struct rpc_call *call;
	struct admin_request *change; /* when it is a change: answered through this, else NULL */
	pthread_t thread;
	int (*work)(struct admin_job *j);
	char store[400], dir[400];
	uint32_t a, b;
	bool create;
	int last;
	uint64_t seq; /* the audit log must reach this far; 0 = lines wait, so no telling */
	json_t *reply; /* what it found; owned */
	int r;
	struct errtext e;
};

static void job_over(void *arg)
{
	struct admin_job *j = arg;
	const char *error = j->r == -ENOENT ? "io.redraft.BadVersion" : "io.redraft.Failed";
	const char *text = j->e.text[0] ? j->e.text : strerror(j->r < 0 ? -j->r : 0);

	pthread_join(j->thread, NULL);
	j->admin->job = NULL;
	if (j->change)
		admin_end(j->change, j->reply, j->r < 0 ? error : NULL, text);
	else if (j->r < 0)
		rpc_error(j->call, error, "%s", text);
	else
		rpc_reply(j->call, j->reply);
	free(j);
}

static void *job_main(void *arg)
{
	struct admin_job *j = arg;

	j->r = j->work(j);
	while (loop_post(j->admin->o.loop, job_over, j) < 0)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 10000000}, NULL);
	return NULL;
}

static struct admin_job *job_new(struct admin *a, struct rpc_call *call, int (*work)(struct admin_job *j))
{
	struct admin_job *j = a->job ? NULL : calloc(1, sizeof *j);

	if (!j) {
		rpc_error(call, "io.redraft.Busy", a->job ? "another long question is being answered; try again" : "out of memory");
		return NULL;
	}
	j->admin = a;
	j->call = call;
	j->work = work;
	snprintf(j->store, sizeof j->store, "%s", store_path(act_store(a->o.act)));
	snprintf(j->dir, sizeof j->dir, "%s", audit_dir(a->o.audit));
	return j;
}

static void job_go(struct admin_job *j)
{
	j->admin->job = j;
	if (pthread_create(&j->thread, NULL, job_main, j) == 0)
		return;
	j->admin->job = NULL;
	if (j->change)
		admin_end(j->change, NULL, "io.redraft.Busy", "no thread could be started");
	else
		rpc_error(j->call, "io.redraft.Busy", "no thread could be started");
	free(j);
}

void admin_job_end(struct admin *a)
{
	struct admin_job *j = a->job;

	if (!j)
		return;
	pthread_join(j->thread, NULL);
	rpc_reply(j->call, NULL);
	admin_forget(j->change);
	json_decref(j->r < 0 ? NULL : j->reply);
	free(j);
	a->job = NULL;
}

/* ---- Diff ---- */

static int job_diff(struct admin_job *j)
{
	return diff_versions(j->store, j->a, j->b, &j->reply, &j->e);
}

void admin_diff(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_job *j;
	uint32_t x, y;

	if (admin_version(call, params, "a", false, &x) < 0 || admin_version(call, params, "b", false, &y) < 0)
		return;
	j = job_new(a, call, job_diff);
	if (!j)
		return;
	j->a = x;
	j->b = y;
	job_go(j);
}

/* ---- Topics ---- */

static int job_topics(struct admin_job *j)
{
	j->reply = j->admin->o.topics(j->admin->o.topics_arg, j->create, &j->e);
	return j->reply ? 0 : -EIO;
}

void admin_topics(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_job *j;

	if (!a->o.topics) {
		rpc_error(call, "io.redraft.Failed", "redraftd has no brokers; set brokers in redraftd.conf");
		return;
	}
	j = job_new(a, call, job_topics);
	if (!j)
		return;
	j->create = json_is_true(json_object_get(params, "create"));
	if (j->create && !(j->change = admin_begin(a, call, "TopicsCreate", params))) {
		free(j);
		return;
	}
	job_go(j);
}

/* ---- Audit ---- */

static int job_audit(struct admin_job *j)
{
	struct audit_seen s;
	json_t *records;
	int r = audit_last(j->dir, (size_t)j->last, &s, &records, &j->e);

	if (!r && s.broken) { /* perhaps files changed their names meanwhile */
		json_decref(records);
		r = audit_last(j->dir, (size_t)j->last, &s, &records, &j->e);
	}
	if (r < 0)
		return r;
	if (!s.broken && s.head.seq < j->seq) {
		s.broken = 1;
		snprintf(s.what, sizeof s.what, "the end: line %llu was written and is not there", (unsigned long long)j->seq);
	}
	j->reply = audit_reply(&s, records);
	return j->reply ? 0 : -ENOMEM;
}

void admin_audit(void *ctx, struct rpc_call *call, json_t *params)
{
	const json_t *v = json_object_get(params, "last");
	struct admin *a = ctx;
	struct admin_job *j;

	if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > AUDIT_MOST)) {
		(void)admin_bad(call, "last: how many records, 0 to 1000");
		return;
	}
	j = job_new(a, call, job_audit);
	if (!j)
		return;
	j->last = json_is_integer(v) ? (int)json_integer_value(v) : AUDIT_LAST;
	j->seq = audit_written(a->o.audit);
	job_go(j);
}
