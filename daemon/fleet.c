/* What leader and follower do (fleet.h). Both look once a second at three things: their own state, the word that counts, and what they
 * did last; so nothing has to be remembered over a restart, and a word that was missed is found again.
 */
#include "daemon/fleet.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "daemon/act.h"
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/loop.h"
#include "daemon/news.h"
#include "daemon/watch_fleet.h"

enum { FLEET_TEXT = 250, FLEET_AGAIN_US = 10000000 };

struct import { /* a version on its way from the leader's store into our incoming */
	pthread_t thread;
	bool copying, judged; /* the thread runs; act verifies what it brought */
	uint32_t version;
	char from[PATH_MAX], to[PATH_MAX], target_fp[65], weights_sha[65];
	int r;
	struct errtext e;
};

struct fleet {
	struct fleet_options o;
	struct watch_fleet *watch;
	struct import import;
	bool known;             /* a word counts for our target: word */
	struct fleet_word word, mine; /* mine: leader; epoch 0 until it has read the topic; what it says */
	bool down;              /* another leads */
	uint64_t again_us;      /* a follower's next attempt */
	char said[FLEET_TEXT];  /* not fetched yet */
	char last[FLEET_TEXT];  /* what was said last, so that it is not said each second */
};

static void PRINTF(2, 3) say(struct fleet *f, const char *fmt, ...)
{
	char text[FLEET_TEXT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (!strcmp(text, f->last))
		return;
	memcpy(f->last, text, sizeof text);
	memcpy(f->said, text, sizeof text);
}

/* weights_sha of a version in our store; "" when it is not there. */
static void weights_of(const struct fleet *f, uint32_t version, char ret[static 65])
{
	char dir[PATH_MAX];
	struct manifest m;

	ret[0] = '\0';
	if (!version || store_version_dir(store_path(act_store(f->o.act)), version, dir, sizeof dir) < 0 || manifest_read(dir, &m, NULL) < 0)
		return;
	memcpy(ret, m.weights_sha, 65);
	manifest_done(&m);
}

/* ---- leading ---- */

static bool same_word(const struct fleet_word *a, const struct fleet_word *b)
{
	return a->epoch == b->epoch && !strcmp(a->run, b->run) && a->live == b->live && !strcmp(a->weights_sha, b->weights_sha);
}

static void lead(struct fleet *f, const char *target_fp)
{
	const struct store_state *s = &act_rollout(f->o.act)->s;
	bool others = f->known && strcmp(f->word.run, f->mine.run) != 0;

	if (f->down)
		return;
	if (!f->mine.epoch) {
		f->mine.epoch = f->known ? f->word.epoch + 1 : 1;
		snprintf(f->mine.target_fp, sizeof f->mine.target_fp, "%s", target_fp);
		if (others && f->word.live)
			say(f, "this redraftd leads the fleet from now on (epoch %" PRIu64 "); before it %.60s did, at version %u", f->mine.epoch, f->word.host, f->word.live);
		else
			say(f, "this redraftd leads the fleet (epoch %" PRIu64 ")", f->mine.epoch);
	} else if (others) {
		f->down = true;
		say(f, "redraftd at %.60s leads the fleet now (epoch %" PRIu64 ", ours was %" PRIu64 "): nobody is told of this one's switches any more; set fleet.role to follower here, or restart "
		       "to lead again", f->word.host, f->word.epoch, f->mine.epoch);
		return;
	}
	f->mine.generation = s->generation;
	if (f->mine.live != s->live)
		weights_of(f, s->live, f->mine.weights_sha);
	f->mine.live = s->live;
	if (s->live && !f->mine.weights_sha[0]) { /* its manifest cannot be read: nothing to tell others by; looked at again */
		f->mine.live = 0;
		return;
	}
	if (!f->known || f->word.buried || !same_word(&f->word, &f->mine))
		watch_fleet_say(f->watch, &f->mine);
}

/* ---- following ---- */

/* submit.json, of the leader's manifest; the weights must be those of its word, whatever the manifest says. */
static int write_submission(const struct import *x, struct errtext *e)
{
	char path[PATH_MAX + 16], *text;
	struct manifest m;
	int r = manifest_read(x->from, &m, e);

	if (r < 0)
		return r;
	json_t *j = json_pack("{s:i, s:s, s:s, s:I, s:O?, s:O?}", "schema", 1, "target_fp", x->target_fp, "weights_sha", x->weights_sha, "parent", (json_int_t)m.parent, "cut", m.cut,
			      "training", m.training);
	manifest_done(&m);
	text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (!text)
		return -ENOMEM;
	snprintf(path, sizeof path, "%s/submit.json", x->to);
	r = fs_write_atomic(path, text, strlen(text));
	free(text);
	return r;
}

static void import_over(void *arg);

static void *import_main(void *arg)
{
	static const char *const files[] = {"model.safetensors", "config.json"};
	struct fleet *f = arg;
	struct import *x = &f->import;
	char from[PATH_MAX + 32], to[PATH_MAX + 32];

	x->r = fs_mkdirs(x->to);
	for (int i = 0; i < 2 && !x->r; i++) {
		snprintf(from, sizeof from, "%s/%s", x->from, files[i]);
		snprintf(to, sizeof to, "%s/%s", x->to, files[i]);
		int64_t n = fs_copy(from, to);

		if (n < 0)
			x->r = errtext_set(&x->e, (int)n, "%.150s: %s", from, strerror((int)-n));
	}
	if (!x->r)
		x->r = write_submission(x, &x->e);
	while (loop_post(f->o.loop, import_over, f) < 0)
		usleep(10000);
	return NULL;
}

/* Copying may have taken long: the pause begins now. */
static void import_failed(struct fleet *f, const char *why)
{
	f->again_us = clock_us() + FLEET_AGAIN_US;
	say(f, "version %u of the fleet's leader cannot be had: %.150s; tried again", f->import.version, why);
}

static void submitted(void *arg, uint32_t version, const char *error, const char *text)
{
	struct fleet *f = arg;

	(void)version;
	f->import.judged = false;
	if (error)
		import_failed(f, text);
	else
		f->again_us = 0; /* it is there: follow at once */
}

/* On the loop: it lies in incoming, and is verified as any submission. */
static void import_over(void *arg)
{
	struct fleet *f = arg;
	struct import *x = &f->import;

	pthread_join(x->thread, NULL);
	x->copying = false;
	if (!x->r)
		x->r = act_submit(f->o.act, x->to, x->version, submitted, f);
	x->judged = x->r == 0;
	if (x->r < 0)
		import_failed(f, x->e.text[0] ? x->e.text : strerror(-x->r));
}

static void import(struct fleet *f)
{
	struct import *x = &f->import;

	*x = (struct import){.version = f->word.live};
	memcpy(x->target_fp, f->word.target_fp, sizeof x->target_fp);
	memcpy(x->weights_sha, f->word.weights_sha, sizeof x->weights_sha);
	snprintf(x->from, sizeof x->from, "%s/%u", f->o.versions, x->version);
	snprintf(x->to, sizeof x->to, "%s/incoming/fleet", store_path(act_store(f->o.act))); /* one name: what was no use is written over */
	x->copying = pthread_create(&x->thread, NULL, import_main, f) == 0;
}

static void follow(struct fleet *f)
{
	const struct store_state *s = &act_rollout(f->o.act)->s;
	char sha[65];

	if (!fleet_behind(f)) {
		if (f->last[0])
			say(f, "this server is where the fleet's leader is, at version %u", s->live);
		return;
	}
	if (s->hold || s->pin) {
		say(f, "the fleet's leader, %.60s, is at version %u; this server is %s at %u, and follows when that ends (redraftctl %s)", f->word.host, f->word.live,
		    s->pin ? "pinned" : "held", s->live, s->pin ? "unpin" : "release");
		return;
	}
	if (f->import.copying || f->import.judged || clock_us() < f->again_us)
		return;
	f->again_us = clock_us() + FLEET_AGAIN_US;
	weights_of(f, f->word.live, sha);
	if (f->word.live && sha[0] && strcmp(sha, f->word.weights_sha) != 0)
		say(f, "version %u of this store holds other weights than the leader's: it is not followed; a follower's store begins empty", f->word.live);
	else if (f->word.live && !rollout_find(act_rollout(f->o.act), f->word.live))
		import(f);
	else
		act_follow(f->o.act, f->word.live, f->word.host);
}

/* ---- the whole ---- */

bool fleet_follows(const struct fleet *f)
{
	return f && f->o.role == FLEET_FOLLOWER;
}

bool fleet_behind(struct fleet *f)
{
	return fleet_follows(f) && f->known && f->word.live != act_rollout(f->o.act)->s.live;
}

void fleet_tick(struct fleet *f)
{
	const char *fp = f ? act_target_fp(f->o.act) : "";
	int r;

	if (!f)
		return;
	watch_fleet_tick(f->watch);
	if (!fp[0])
		return; /* the server has not said yet what it serves */
	r = watch_fleet_word(f->watch, fp, &f->word);
	f->known = r == 0;
	if (r == -EAGAIN)
		return;
	if (f->o.role == FLEET_LEADER)
		lead(f, fp);
	else if (f->known)
		follow(f);
	else
		say(f, "no leader has said which version is live of target %.12s: this server stays where it is", fp);
}

bool fleet_said(struct fleet *f, char *ret, size_t size)
{
	return f && news_take(f->said, ret, size);
}

json_t *fleet_status(struct fleet *f)
{
	char trouble[160];

	if (!f)
		return json_null();
	bool up = watch_fleet_up(f->watch, trouble, sizeof trouble);
	return json_pack("{s:s, s:s, s:I, s:I, s:b, s:b, s:s}", "role", f->o.role == FLEET_FOLLOWER ? "follower" : f->down ? "was leader" : "leader", "leader",
			 f->known ? f->word.host : "", "epoch", (json_int_t)(f->known ? f->word.epoch : 0), "live", (json_int_t)(f->known ? f->word.live : 0), "behind",
			 (int)fleet_behind(f), "up", (int)up, "trouble", trouble);
}

int fleet_new(const struct fleet_options *o, struct fleet **ret, struct errtext *e)
{
	struct fleet *f;
	uint64_t random[2] = {0};
	int r;

	*ret = NULL;
	if (o->role == FLEET_ALONE)
		return 0;
	if (!o->brokers[0])
		return errtext_set(e, -EINVAL, "fleet.role: a fleet meets in Kafka; set brokers");
	if (o->role == FLEET_FOLLOWER && !o->versions[0])
		return errtext_set(e, -EINVAL, "fleet.versions: where does a follower see the versions of its leader's store?");
	f = calloc(1, sizeof *f);
	if (!f)
		return -ENOMEM;
	f->o = *o;
	(void)!getrandom(random, sizeof random, 0);
	snprintf(f->mine.run, sizeof f->mine.run, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
	(void)gethostname(f->mine.host, sizeof f->mine.host - 1);
	r = watch_fleet_new(o->brokers, o->topic, o->conf, &f->watch, e);
	if (r < 0) {
		free(f);
		return r;
	}
	*ret = f;
	return 0;
}

struct fleet *fleet_free(struct fleet *f)
{
	if (!f)
		return NULL;
	if (f->import.copying)
		pthread_join(f->import.thread, NULL);
	watch_fleet_free(f->watch);
	free(f);
	return NULL;
}
