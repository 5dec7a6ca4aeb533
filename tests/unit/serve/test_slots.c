/* Slots: loading, the hash of what is held, and who may leave.
 *
 * The hash that engine_load reports equals draft_weights_sha of the file (bf16 held) and
 * differs between drafts; the weights in use are those bytes unpacked, so a flipped weight
 * in the file changes it. Four versions fit, the fifth is told so; loading a loaded version
 * again gives its hash; live and used versions cannot be unloaded; a draft of another KV shape or
 * another target is refused by name while others are resident, and nothing is left behind;
 * previous follows promotions, and a rollback leaves none. A canary drafts for its conversations and no others, gives the same tokens,
 * cannot be unloaded, and when it ends, or anything is activated, its requests move to live.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include "serve/arm.h"
#include "tests/unit/serve/harness.h"

static struct { struct dev *d; struct llama *target; char dir[6][64]; } toy;

static int setup(void **state)
{
	(void)state;
	struct errtext e = {0};
	if (dev_cpu_new(1, ISA_AUTO, &toy.d))
		return -1;
	toy.target = toy_target(toy.d, 0.05f, DT_BF16);
	for (int i = 0; i < 6; i++) {
		snprintf(toy.dir[i], sizeof toy.dir[i], "/tmp/redraft-slots-%d-%d", (int)getpid(), i);
		if (toy_draft(toy.dir[i], i == 0 ? TOY_AGREES : TOY_RANDOM, 30 + (uint64_t)i, i == 5 ? 4 : 2, &e))
			return -1;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	int r = 0;
	for (int i = 0; i < 6; i++)
		r |= fs_remove_tree(toy.dir[i]);
	llama_free(toy.target);
	dev_free(toy.d);
	return r;
}

static struct engine *make(bool f32)
{
	struct engine_options o = {.dev = toy.d, .target = toy.target, .f32_kv = f32, .max_seqs = 2, .max_queue = 8, .max_context = 160,
				   .kv_tokens = 320, .prefill_chunk = 32, .draft_k = 3};
	struct engine *g = NULL;
	struct errtext e = {0};
	if (engine_new(&o, &g, &e))
		fail_msg("%s", e.text);
	return g;
}

static void file_sha(const char *dir, char sha[static 65])
{
	struct draft_files *f;
	struct errtext e = {0};
	assert_int_equal(draft_open(dir, TOY_LAYERS, &f, &e), 0);
	assert_int_equal(draft_weights_sha(f, sha), 0);
	draft_close(f);
}

static void test_hash(void **state)
{
	(void)state;
	char want[65], got[65], other[65];
	struct errtext e = {0};
	for (int f32 = 0; f32 < 2; f32++) {
		struct engine *g = make(f32);
		file_sha(toy.dir[0], want);
		assert_int_equal(engine_load(g, 1, toy.dir[0], got, &e), 0);
		assert_string_equal(got, want);
		assert_int_equal(engine_load(g, 2, toy.dir[1], other, &e), 0);
		assert_string_not_equal(other, want);
		assert_int_equal(engine_load(g, 1, "/nowhere", other, &e), 0); /* loaded already */
		assert_string_equal(other, want);
		engine_free(g);
	}
	/* one weight's lowest byte, deep in the file */
	char path[96], byte;
	snprintf(path, sizeof path, "%s/model.safetensors", toy.dir[4]);
	struct engine *g = make(false);
	assert_int_equal(engine_load(g, 1, toy.dir[4], want, &e), 0);
	int fd = open(path, O_RDWR);
	off_t end = lseek(fd, 0, SEEK_END) - TOY_V - 2 * 700; /* before t2d */
	assert_int_equal(pread(fd, &byte, 1, end & ~1), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, end & ~1), 1);
	close(fd);
	assert_int_equal(engine_load(g, 2, toy.dir[4], got, &e), 0);
	assert_string_not_equal(got, want);
	engine_free(g);
}

static void expect_fail(int got, int want, const struct errtext *e, const char *word)
{
	assert_int_equal(got, want);
	if (!strstr(e->text, word))
		fail_msg("'%s' does not say '%s'", e->text, word);
}

static void test_places(void **state)
{
	(void)state;
	struct engine *g = make(false);
	struct engine_status s;
	struct errtext e = {0};
	char sha[65] = "untouched";
	expect_fail(engine_load(g, 7, "/nowhere", sha, &e), -ENOENT, &e, "nowhere");
	assert_string_equal(sha, "untouched");
	assert_true(engine_load(g, 0, toy.dir[0], sha, &e) < 0);
	for (uint32_t v = 1; v <= 4; v++)
		assert_int_equal(engine_load(g, v, toy.dir[v - 1], sha, &e), 0);
	expect_fail(engine_load(g, 5, toy.dir[4], sha, &e), -ENOSPC, &e, "slots");
	expect_fail(engine_activate(g, 9, false, 0, &e), -ENOENT, &e, "9");
	assert_int_equal(engine_activate(g, 1, false, 0, &e), 0);
	assert_int_equal(engine_activate(g, 2, false, 0, &e), 0);
	engine_status(g, &s);
	assert_int_equal(s.live, 2);
	assert_int_equal(s.previous, 1);
	expect_fail(engine_unload(g, 2, &e), -EBUSY, &e, "live");
	expect_fail(engine_unload(g, 8, &e), -ENOENT, &e, "8");
	assert_int_equal(engine_unload(g, 3, &e), 0);
	assert_int_equal(engine_load(g, 5, toy.dir[4], sha, &e), 0);
	assert_int_equal(engine_activate(g, 1, true, 0, &e), 0); /* back */
	engine_status(g, &s);
	assert_int_equal(s.live, 1);
	assert_int_equal(s.previous, 0);
	assert_int_equal(engine_activate(g, 0, true, 0, &e), 0);
	engine_status(g, &s);
	assert_int_equal(s.live, 0);
	for (int i = 0; i < 4; i++)
		assert_string_equal(s.slots[i].state, "ready");
	engine_free(g);
}

static void test_shape(void **state)
{
	(void)state;
	struct engine *g = make(false);
	struct errtext e = {0};
	struct engine_status s;
	char sha[65];
	assert_int_equal(engine_load(g, 1, toy.dir[0], sha, &e), 0);
	expect_fail(engine_load(g, 2, toy.dir[5], sha, &e), -EINVAL, &e, "heads");
	engine_status(g, &s);
	assert_string_equal(s.slots[1].state, "empty");
	assert_int_equal(engine_unload(g, 1, &e), 0);
	assert_int_equal(engine_load(g, 2, toy.dir[5], sha, &e), 0); /* alone, another shape is welcome */
	engine_free(g);
}

static void test_in_use(void **state)
{
	(void)state;
	struct engine *g = make(false);
	struct errtext e = {0};
	char sha[65];
	static struct job j;
	atomic_int ticks = 0, slow = 1; /* until both commands were answered */
	assert_int_equal(engine_load(g, 1, toy.dir[0], sha, &e), 0);
	assert_int_equal(engine_load(g, 2, toy.dir[1], sha, &e), 0);
	assert_int_equal(engine_activate(g, 1, false, 0, &e), 0);
	job_random(&j, 3, 10, 140);
	j.ignore_eos = true;
	j.ticks = &ticks;
	j.slow = &slow;
	j.stall_at = 1;
	assert_int_equal(job_submit(g, &j), 0);
	ticks_wait(&ticks, 1, &j, 1);
	assert_int_equal(engine_activate(g, 2, false, 0, &e), 0); /* the running one keeps version 1 */
	expect_fail(engine_unload(g, 1, &e), -EBUSY, &e, "drafts for");
	atomic_store(&slow, 0);
	job_wait(&j);
	assert_int_equal(j.stats.n_versions, 1);
	assert_int_equal(j.stats.versions[0], 1);
	assert_int_equal(engine_unload(g, 1, &e), 0);
	engine_free(g);
}

static struct job canary_job(int conversation)
{
	static struct job j;
	job_random(&j, 3, 10, 12);
	j.ignore_eos = true;
	j.conversation = conversation;
	return j;
}

/* Which version a request of this conversation is drafted by. */
static uint32_t drafted_by(struct engine *g, int conversation, const struct job *plain)
{
	static struct job j;
	j = canary_job(conversation);
	assert_int_equal(job_submit(g, &j), 0);
	job_wait(&j);
	assert_int_equal(j.stats.n_versions, 1);
	assert_true(job_same(&j, plain));
	return j.stats.versions[0];
}

static int share_of(struct engine *g, uint32_t version, uint32_t permille, const struct job *plain)
{
	int n = 0;
	for (int c = 1; c <= 60; c++) {
		char name[16];
		snprintf(name, sizeof name, "c-%d", c);
		bool in = arm_is_canary("salt", permille, name, "r");
		assert_int_equal(drafted_by(g, c, plain), in ? version : 1);
		n += in;
	}
	return n;
}

static void test_canary(void **state)
{
	(void)state;
	struct engine *g = make(false);
	struct engine_status s;
	struct errtext e = {0};
	static struct job plain, j;
	atomic_int ticks = 0;
	char sha[65];
	plain = canary_job(1);
	assert_int_equal(job_submit(g, &plain), 0);
	job_wait(&plain);
	for (uint32_t v = 1; v <= 3; v++)
		assert_int_equal(engine_load(g, v, toy.dir[v - 1], sha, &e), 0);
	assert_int_equal(engine_activate(g, 1, false, 0, &e), 0);
	expect_fail(engine_canary(g, 1, 100, "salt", &e), -EINVAL, &e, "live");
	expect_fail(engine_canary(g, 9, 100, "salt", &e), -ENOENT, &e, "9");
	assert_int_equal(engine_canary(g, 2, 300, "salt", &e), 0);
	expect_fail(engine_unload(g, 2, &e), -EBUSY, &e, "canary");
	engine_status(g, &s);
	assert_int_equal(s.canary, 2);
	assert_int_equal(s.permille, 300);
	assert_string_equal(s.slots[1].state, "canary");
	int few = share_of(g, 2, 300, &plain);
	assert_int_equal(engine_canary(g, 2, 600, "salt", &e), 0);
	int more = share_of(g, 2, 600, &plain);
	assert_in_range(few, 8, 28);
	assert_in_range(more, few + 1, 50);
	/* it ends under a running request, which goes on with live */
	assert_int_equal(engine_canary(g, 2, 1000, "salt", &e), 0);
	j = canary_job(5);
	j.max_tokens = 140;
	j.ticks = &ticks;
	j.stall_at = 1;
	assert_int_equal(job_submit(g, &j), 0);
	ticks_wait(&ticks, 1, &j, 1);
	assert_int_equal(engine_canary(g, 0, 0, NULL, &e), 0);
	job_wait(&j);
	assert_int_equal(j.stats.n_versions, 2);
	assert_int_equal(j.stats.versions[0], 2);
	assert_int_equal(j.stats.versions[1], 1);
	assert_int_equal(drafted_by(g, 5, &plain), 1);
	assert_int_equal(engine_unload(g, 2, &e), 0);
	/* live changes: nobody is left on it; itself made live: everybody is */
	assert_int_equal(engine_load(g, 2, toy.dir[1], sha, &e), 0);
	assert_int_equal(engine_canary(g, 2, 1000, "salt", &e), 0);
	assert_int_equal(engine_activate(g, 3, false, 0, &e), 0);
	assert_int_equal(drafted_by(g, 5, &plain), 3);
	assert_int_equal(engine_canary(g, 2, 1000, "salt", &e), 0);
	assert_int_equal(engine_activate(g, 2, false, 0, &e), 0);
	engine_status(g, &s);
	assert_int_equal(s.canary, 0);
	assert_int_equal(s.live, 2);
	assert_int_equal(drafted_by(g, 5, &plain), 2);
	engine_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_hash), cmocka_unit_test(test_places), cmocka_unit_test(test_shape),
					   cmocka_unit_test(test_in_use), cmocka_unit_test(test_canary)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
