/* Submissions. Hashing a large draft takes seconds, so a thread verifies it while
 * the loop goes on; the loop alone names it and writes the state. One at a time: the
 * learner has one candidate, and a second caller is told Busy. Who hears BadVersion gives
 * its submission up, so it is said of what was handed in alone: what a stop or this
 * machine's own trouble kept from being looked at to the end is told Busy as well.
 */
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include "daemon/act_inside.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"

uint32_t act_origin(struct act *a, uint32_t parent)
{
	const struct version_entry *v = rollout_find(&a->r, parent);
	char dir[PATH_MAX];
	struct manifest m;

	for (int i = 0; i < a->r.s.n_versions && v && v->state == VS_REJECTED; i++) {
		if (store_version_dir(store_path(a->store), v->number, dir, sizeof dir) < 0 || manifest_read(dir, &m, NULL) < 0)
			break;
		v = rollout_find(&a->r, m.parent);
		manifest_done(&m);
	}
	return v && v->state == VS_QUARANTINED ? v->number : parent;
}

static void act_submit_finish(void *arg)
{
	struct act *a = arg;
	struct act_submission *s = &a->sub;
	struct ro_event ev = {.kind = RO_SUBMITTED};
	bool refused;

	pthread_join(s->thread, NULL);
	s->running = false;
	refused = s->r == -EINVAL;
	if (!s->r && s->taken.manifest.parent && !rollout_find(&a->r, s->taken.manifest.parent))
		log_warn("version %u names a parent, %u, that is not in the store", s->number, s->taken.manifest.parent);
	if (!s->r)
		s->r = store_name(a->store, &s->taken, &s->e);
	if (s->r < 0) {
		log_repeated(&a->sub_fails, LOG_WARN, "submission %.100s %s: %s; it is kept", s->path, refused ? "refused" : "not taken", s->e.text);
		store_taken_done(&s->taken);
		s->answer(s->arg, 0, refused ? "io.redraft.BadVersion" : "io.redraft.Busy", s->e.text);
		return;
	}
	a->sub_fails = (struct log_repeat){.unsaid = 0};
	ev.version = s->number;
	ev.parent = act_origin(a, s->taken.manifest.parent);
	store_taken_done(&s->taken);
	act_event(a, &ev);
	fs_crash_point("store-saved");
	s->answer(s->arg, s->number, NULL, "");
}

static void *act_submit_verify(void *arg)
{
	struct act *a = arg;
	struct act_submission *s = &a->sub;

	s->r = store_take(a->store, s->path, s->number, s->expect_fp, &s->taken, &s->e);
	while (loop_post(a->loop, act_submit_finish, a) == -EAGAIN)
		usleep(10000);
	return NULL;
}

int act_submit(struct act *a, const char *path, uint32_t number, act_submitted *answer, void *arg)
{
	struct act_submission *s = &a->sub;

	if (s->running)
		return -EBUSY;
	if (strlen(path) >= sizeof s->path)
		return -ENAMETOOLONG;
	*s = (struct act_submission){.running = true, .number = number ? number : a->r.s.next_number, .answer = answer, .arg = arg};
	memcpy(s->path, path, strlen(path) + 1);
	memcpy(s->expect_fp, a->target_fp, sizeof s->expect_fp);
	if (pthread_create(&s->thread, NULL, act_submit_verify, a) != 0) {
		s->running = false;
		return -ENOMEM;
	}
	return 0;
}

/* At the end: let the verification finish; what it took is given back at the next start. */
void act_submit_join(struct act *a)
{
	if (!a->sub.running)
		return;
	pthread_join(a->sub.thread, NULL);
	store_taken_done(&a->sub.taken);
	a->sub.running = false;
	a->sub.answer(a->sub.arg, 0, "io.redraft.Busy", "redraftd is stopping");
}
