/* A purge leaves nothing of a tenant: no run, no byte of his records in the pool's files, nothing set aside; what others
 * recorded is there as before; the learner that opens afterwards resumes exactly; and one that was killed between the entry and
 * the last byte finishes at its next start.
 */
#include "tests/unit/learn/toyworld.h"
#include <dirent.h>
#include "learn/purge.h"

static char dir[256], store[300], state[300];
static struct frozen fz;
static struct tw_source src;
static struct dev *dev;

static int setup(void **s)
{
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	(void)s;
	tw_temp_dir(dir);
	(void)snprintf(store, sizeof store, "%s/store", dir);
	(void)snprintf(state, sizeof state, "%s/state", dir);
	tw_store(store);
	assert_int_equal(frozen_open(store, "", &fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &dev), 0);
	tw_source_init(&src);
	for (int i = 0; i < 10; i++) { /* five requests each, turn about */
		struct tw_record q = {.T = 24, .n_prompt = 8, .last = true, .seq = (uint64_t)i + 1, .seed = (uint64_t)i + 1};
		(void)snprintf(q.request, sizeof q.request, "req-%d", i);
		(void)snprintf(q.domain, sizeof q.domain, "code");
		(void)snprintf(q.tenant, sizeof q.tenant, i % 2 ? "feedface00" : "c0ffee0011");
		buf_clear(&b);
		tw_encode(&q, &b);
		if (i == 8) /* set aside when it comes */
			b.data[30] ^= 0xff;
		tw_add(&src, 0, b.data, b.len);
	}
	src.visible = src.n;
	buf_done(&b);
	return 0;
}

static int teardown(void **s)
{
	(void)s;
	dev_free(dev);
	frozen_close(&fz);
	tw_source_done(&src);
	assert_int_equal(fs_remove_tree(dir), 0);
	return 0;
}

static struct learner *open_learner(void)
{
	const struct learner_options o = {
		.state_dir = state, .store = store, .kind = &trainer_eagle3, .seed = 1, .draft_vocab = 48, .max_rows = 24, .max_epochs = 2, .queue_max = 64,
		.heldout_max = 4, .heldout_domain_max = 3, .prompt_rows = true, .init_min_tokens = 1000000, .pool_bytes = 1 << 24, .segment_bytes = 40000,
		.replay_wait_ms = 1, .history_rows = 16, .max_scale = 8, .tenant_share = 1, .tenant_window = 1000, .request_rows = 100000,
		.train = {.ttt_steps = 2, .decay = (real)0.8, .lr = (real)1e-3, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8, .clip = 1}};
	struct learner *l = NULL;
	struct errtext e = {""};
	int r = learner_open(&o, dev, &src.base, &fz, &l, &e);
	if (r)
		print_message("learner_open: %d %s\n", r, e.text);
	assert_int_equal(r, 0);
	return l;
}

static void take_all(struct learner *l)
{
	struct errtext e = {""};
	int n = 1;
	while (n)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
}

/* How often the word stands in the files of a folder below state. */
static int found(const char *below, const char *word)
{
	char path[PATH_MAX], file[PATH_MAX];
	int n = 0;
	(void)snprintf(path, sizeof path, "%s/%s", state, below);
	DIR *d = opendir(path);
	for (struct dirent *x; d && (x = readdir(d));) {
		struct fs_map m;
		if (x->d_name[0] == '.' || snprintf(file, sizeof file, "%s/%.200s", path, x->d_name) >= (int)sizeof file || fs_map(file, &m))
			continue;
		for (const uint8_t *p = m.data, *hit; p && (hit = memmem(p, (size_t)(m.data + m.len - p), word, strlen(word))); p = hit + 1)
			n++;
		fs_unmap(&m);
	}
	if (d)
		(void)closedir(d);
	return n;
}

static int runs_of(const struct learner *l, const char *tenant)
{
	int n = 0;
	for (int i = 0; i < l->runs.n; i++)
		n += l->runs.v[i].tenant == run_text_hash(tenant);
	return n;
}

static void test_nothing_is_left(void **s)
{
	struct learner *l = open_learner();
	struct errtext e = {""};
	struct purged p;
	(void)s;
	take_all(l);
	assert_int_equal(runs_of(l, "feedface00"), 5);
	assert_int_equal(runs_of(l, "c0ffee0011"), 4);
	assert_int_equal(found("pool", "feedface00"), 5);
	assert_int_equal(found("set-aside", "c0ffee0011"), 1);
	assert_int_equal(purge_tenant(l, "feedface00", &p, &e), 0);
	assert_int_equal(p.runs, 5);
	assert_int_equal(p.records, 5);
	assert_true(p.bytes > 5000);
	assert_int_equal(runs_of(l, "feedface00"), 0);
	assert_int_equal(found("pool", "feedface00"), 0);
	assert_int_equal(found("pool", "c0ffee0011"), 4);
	assert_int_equal(found("set-aside", "c0ffee"), 0);
	learner_close(l);
	l = open_learner(); /* exactly */
	assert_int_equal(runs_of(l, "feedface00"), 0);
	assert_int_equal(runs_of(l, "c0ffee0011"), 4);
	for (int i = 0; i < l->runs.n; i++) {
		struct joined j = {0};
		assert_int_equal(joined_load(l->pool, &l->runs.v[i], TW_V, &j), 0);
		joined_done(&j);
	}
	learner_close(l);
}

/* A kill left the mark; before the entry, or behind it and its first checkpoint. */
static void made_good(bool entered)
{
	struct learner *l = open_learner();
	struct errtext e = {""};
	char mark[400];
	const struct journal_entry x = {.kind = J_PURGE, .text = "feedface00"};
	take_all(l);
	if (entered)
		assert_int_equal(learner_do(l, &x, &e), 0);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	(void)snprintf(mark, sizeof mark, "%s/purging", state);
	assert_int_equal(fs_write_atomic(mark, "feedface00", 10), 0);
	l = open_learner();
	assert_int_equal(runs_of(l, "feedface00"), entered ? 0 : 5);
	assert_int_equal(found("pool", "feedface00"), 5);
	assert_int_equal(purge_unfinished(l, &e), 0);
	assert_int_equal(found("pool", "feedface00"), 0);
	assert_int_equal(runs_of(l, "feedface00"), 0);
	assert_int_not_equal(access(mark, F_OK), 0);
	assert_int_equal(purge_unfinished(l, &e), 0); /* nothing to do */
	learner_close(l);
}

static void test_killed_before(void **s)
{
	(void)s;
	made_good(false);
}

static void test_killed_behind(void **s)
{
	(void)s;
	made_good(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nothing_is_left, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_before, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_behind, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
