/* The store: a submission is verified before it is a version; killed at any point it
 * is either still a submission or whole, and what was there before is untouched;
 * collection keeps what rules hold; one daemon at a time.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <cmocka.h>
#include "tests/unit/daemon/fixture.h"
#include "daemon/store.h"

/* The disk fails: this rename and all after it, until told otherwise. In the program, this rename is found before libc's. */
static int renames_left = -1; /* -1: no end of them */

int rename(const char *from, const char *to)
{
	if (renames_left == 0) {
		errno = EIO;
		return -1;
	}
	renames_left -= renames_left > 0;
	return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static int setup(void **state)
{
	(void)state;
	fixture_make();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fixture_remove();
	return 0;
}

struct opened {
	struct store *s;
	struct store_state st;
	struct store_found found;
};

static void open_store(struct opened *o)
{
	struct errtext e = {.text = ""};

	if (store_open(fixture_path("store"), &o->s, &o->st, &o->found, &e))
		fail_msg("%s", e.text);
}

static void close_store(struct opened *o)
{
	store_state_done(&o->st);
	store_close(o->s);
}

/* What act does with a submission, without the threads. */
static int submit(struct opened *o, const char *path, struct errtext *e)
{
	struct store_taken t;
	struct version_entry *v;
	int r = store_take(o->s, path, o->st.next_number, "", &t, e);

	if (!r)
		r = store_name(o->s, &t, e);
	if (r)
		return r;
	v = realloc(o->st.versions, (size_t)(o->st.n_versions + 1) * sizeof *v);
	assert_non_null(v);
	o->st.versions = v;
	v[o->st.n_versions++] = (struct version_entry){.number = o->st.next_number++, .state = VS_CANDIDATE};
	store_taken_done(&t);
	return store_save(o->s, &o->st, e);
}

static void expect_refused(struct opened *o, const char *path, const char *why)
{
	struct errtext e = {.text = ""};
	uint32_t next = o->st.next_number;

	assert_int_equal(submit(o, path, &e), -EINVAL);
	if (!strstr(e.text, why))
		fail_msg("\"%s\" does not say \"%s\"", e.text, why);
	assert_int_equal(o->st.next_number, next);
	assert_int_equal(access(fixture_path("store/versions/2"), F_OK), -1);
}

static void a_submission_becomes_a_version(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};
	struct manifest m;
	struct stat st;
	char sha[65];

	(void)state;
	open_store(&o);
	assert_true(o.found.new_state);
	assert_int_equal(o.st.next_number, 1);
	if (submit(&o, fixture_submission("a", 0.5f, 0, NULL, NULL), &e))
		fail_msg("%s", e.text);
	assert_int_equal(manifest_read(fixture_path("store/versions/1"), &m, &e), 0);
	fixture_draft(fixture_path("same"), 0.5f, sha);
	assert_string_equal(m.weights_sha, sha);
	assert_string_equal(m.target_fp, FIXTURE_TARGET);
	assert_int_equal(m.number, 1);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(m.cut, "partitions"), "0")), 17);
	assert_string_equal(json_string_value(json_object_get(m.training, "program_commit")), "abc");
	manifest_done(&m);
	assert_int_equal(access(fixture_path("store/versions/1/submit.json"), F_OK), -1);
	assert_int_equal(access(fixture_path("store/incoming/a"), F_OK), -1);
	assert_int_equal(stat(fixture_path("store/versions/1/model.safetensors"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0440);
	close_store(&o);
	open_store(&o); /* and is there the next time */
	assert_int_equal(o.st.n_versions, 1);
	assert_int_equal(o.st.next_number, 2);
	assert_false(o.found.new_state || o.found.adopted || o.found.lost);
	close_store(&o);
}

static void what_does_not_fit_is_refused(void **state)
{
	static const char other[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
	struct opened o;
	struct errtext e = {.text = ""};
	struct store_taken t;
	char text[64];

	(void)state;
	open_store(&o);
	assert_int_equal(submit(&o, fixture_submission("good", 0.1f, 0, NULL, NULL), &e), 0);
	expect_refused(&o, fixture_submission("sha", 0.2f, 1, NULL, other), "damaged on the way");
	expect_refused(&o, fixture_submission("target", 0.2f, 1, other, NULL), "a target this store does not know");
	expect_refused(&o, fixture_submission("short", 0.2f, 1, "abc", NULL), "64 hex digits");
	expect_refused(&o, fixture_submission("parent", 0.2f, 7, NULL, NULL), "parent is not an older version");
	assert_int_equal(access(fixture_path("store/incoming/sha/submit.json"), F_OK), 0); /* given back whole */
	expect_refused(&o, fixture_path("store/incoming/none"), "No such file");
	expect_refused(&o, fixture_path("store/versions/1"), "is not a folder of");
	expect_refused(&o, "..", "is not a name");
	expect_refused(&o, fixture_path("store/incoming/.."), "is not a folder of");
	fixture_submission("empty", 0.2f, 1, NULL, NULL);
	assert_int_equal(unlink(fixture_path("store/incoming/empty/model.safetensors")), 0);
	expect_refused(&o, "empty", "model.safetensors");
	assert_int_equal(symlink("/etc/passwd", fixture_path("store/incoming/empty/model.safetensors")), 0);
	expect_refused(&o, "empty", "link");
	fixture_submission("cut", 0.2f, 1, NULL, NULL);
	assert_int_equal(truncate(fixture_path("store/incoming/cut/model.safetensors"), 300), 0);
	expect_refused(&o, "cut", "");
	fixture_submission("json", 0.2f, 1, NULL, NULL);
	snprintf(text, sizeof text, "{\"target_fp\": ");
	assert_int_equal(fs_write_atomic(fixture_path("store/incoming/json/submit.json"), text, strlen(text)), 0);
	expect_refused(&o, "json", "submit.json, line 1");
	assert_int_equal(fs_write_atomic(fixture_path("store/incoming/file"), text, 1), 0);
	expect_refused(&o, "file", "Not a directory");
	fixture_submission("folder", 0.2f, 1, NULL, NULL);
	assert_int_equal(unlink(fixture_path("store/incoming/folder/submit.json")), 0);
	assert_int_equal(mkdir(fixture_path("store/incoming/folder/submit.json"), 0700), 0);
	expect_refused(&o, "folder", "submit.json: Is a directory");
	fixture_submission("long", 0.2f, 1, NULL, NULL);
	assert_int_equal(truncate(fixture_path("store/incoming/long/config.json"), 1 << 24), 0);
	expect_refused(&o, "long", "too large");
	/* the server's word on the target decides when it is there */
	fixture_submission("server", 0.2f, 1, NULL, NULL);
	assert_int_equal(store_take(o.s, "server", 2, other, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "a draft of another target"));
	close_store(&o);
}

static void verdicts_are_written_once(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};
	json_t *j;

	(void)state;
	open_store(&o);
	assert_int_equal(submit(&o, fixture_submission("a", 0.5f, 0, NULL, NULL), &e), 0);
	assert_int_equal(store_write_verdict(o.s, 1, json_pack("{s:s}", "verdict", "accepted"), &e), 0);
	assert_int_equal(store_write_verdict(o.s, 1, json_pack("{s:s}", "verdict", "rejected"), &e), -EEXIST);
	j = store_read_json(o.s, 1, "verdict.json");
	assert_string_equal(json_string_value(json_object_get(j, "verdict")), "accepted");
	assert_int_equal(json_integer_value(json_object_get(j, "version")), 1);
	json_decref(j);
	close_store(&o);
}

/* Killed at every point of a submission, in a child; then opened again. */
static void a_crash_leaves_old_or_new(void **state)
{
	static const struct {
		const char *point;
		bool becomes; /* the version exists after repair */
	} points[] = {{"store-taken", false}, {"store-verified", false}, {"fs-created", false}, {"fs-half", false},
		      {"fs-written", false}, {"fs-synced", false}, {"fs-renamed", false}, {"store-manifest", false},
		      {"store-named", true}};
	char first[65];

	(void)state;
	for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
		struct opened o;
		struct errtext e = {.text = ""};
		struct manifest m;
		int status;
		pid_t pid;

		teardown(NULL);
		setup(NULL);
		open_store(&o);
		assert_int_equal(submit(&o, fixture_submission("first", 0.5f, 0, NULL, NULL), &e), 0);
		o.st.live = 1;
		o.st.versions[0].state = VS_LIVE;
		assert_int_equal(store_save(o.s, &o.st, &e), 0);
		assert_int_equal(manifest_read(fixture_path("store/versions/1"), &m, &e), 0);
		strcpy(first, m.weights_sha);
		manifest_done(&m);
		close_store(&o);
		fixture_submission("second", 0.25f, 1, NULL, NULL);
		pid = fork();
		if (!pid) {
			open_store(&o);
			setenv("REDRAFT_CRASH_AT", points[i].point, 1);
			/* the point is looked up once per process: a grandchild sees the variable */
			if ((pid = fork()) == 0)
				_exit(submit(&o, "second", &e) ? 1 : 0);
			waitpid(pid, &status, 0);
			_exit(WEXITSTATUS(status));
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WEXITSTATUS(status) != 137)
			fail_msg("%s was not reached: %d", points[i].point, WEXITSTATUS(status));
		open_store(&o);
		assert_int_equal(o.st.live, 1);
		assert_int_equal(o.st.versions[0].state, VS_LIVE);
		assert_int_equal(manifest_read(fixture_path("store/versions/1"), &m, &e), 0);
		assert_string_equal(m.weights_sha, first);
		manifest_done(&m);
		if (points[i].becomes) {
			assert_int_equal(o.found.adopted, 1);
			assert_int_equal(o.st.n_versions, 2);
			assert_int_equal(o.st.versions[1].state, VS_CANDIDATE);
			assert_int_equal(o.st.next_number, 3);
			assert_int_equal(access(fixture_path("store/versions/2/submit.json"), F_OK), -1);
		} else {
			assert_int_equal(o.st.n_versions, 1);
			assert_int_equal(o.found.given_back, 1);
			assert_int_equal(access(fixture_path("store/versions/2"), F_OK), -1);
			assert_int_equal(submit(&o, "second", &e), 0); /* handed in again, it passes */
			assert_int_equal(o.st.versions[1].number, 2);
		}
		close_store(&o);
	}
}

static void has_second(const char *where)
{
	char path[128];

	snprintf(path, sizeof path, "store/%s/submit.json", where);
	assert_int_equal(access(fixture_path(path), F_OK), 0);
	snprintf(path, sizeof path, "store/%s/model.safetensors", where);
	assert_int_equal(access(fixture_path(path), F_OK), 0);
}

/* Nothing that was handed in is lost when the disk fails, whichever rename of a submission is its last, and fails for the way back too. */
static void what_cannot_go_back_is_kept(void **state)
{
	static const char *const lies[] = {"incoming/second", "versions/.take-2-second", "versions/.take-2-second"};

	(void)state;
	for (int restart = 0; restart < 2; restart++)
		for (int i = 0; i < 3; i++) { /* fails: the take, the manifest, the name */
			struct opened o;
			struct errtext e = {.text = ""};
			struct version_entry *v;

			teardown(NULL);
			setup(NULL);
			open_store(&o);
			assert_int_equal(submit(&o, fixture_submission("first", 0.5f, 0, NULL, NULL), &e), 0);
			fixture_submission("second", 0.25f, 1, NULL, NULL);
			renames_left = i;
			assert_int_equal(submit(&o, fixture_path("store/incoming/second"), &e), -EIO);
			if (i)
				assert_non_null(strstr(e.text, "could not go back to incoming"));
			assert_int_equal(submit(&o, fixture_path("store/incoming/second"), &e), -EIO); /* who asks again while it fails is not told that it is not there */
			has_second(lies[i]);
			if (restart) {
				close_store(&o);
				open_store(&o);
				assert_int_equal(o.found.stuck, i > 0);
				has_second(lies[i]);
				close_store(&o);
				renames_left = -1;
				open_store(&o);
				assert_int_equal(o.found.given_back, i > 0);
				has_second("incoming/second");
			}
			renames_left = -1;
			assert_int_equal(submit(&o, fixture_path("store/incoming/second"), &e), 0);
			assert_int_equal(o.st.n_versions, 2);
			v = &o.st.versions[1];
			assert_int_equal(v->number, 2);
			assert_int_equal(access(fixture_path("store/versions/2/manifest.json"), F_OK), 0);
			close_store(&o);
		}
}

/* A name that was written anew meanwhile takes the place of what cannot go back, once it is whole. */
static void the_newer_of_a_name_is_taken(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};
	struct manifest m;
	char sha[65];

	(void)state;
	open_store(&o);
	fixture_submission("second", 0.25f, 0, NULL, NULL);
	renames_left = 1;
	assert_int_equal(submit(&o, "second", &e), -EIO);
	renames_left = -1;
	assert_int_equal(fs_mkdirs(fixture_path("store/incoming/second")), 0);
	assert_int_equal(fs_write_atomic(fixture_path("store/incoming/second/config.json"), "{", 1), 0); /* begun */
	assert_int_equal(submit(&o, "second", &e), -ENOTEMPTY);
	has_second("versions/.take-1-second");
	close_store(&o);
	open_store(&o);
	assert_int_equal(o.found.stuck, 1);
	has_second("versions/.take-1-second");
	assert_int_equal(fs_remove_tree(fixture_path("store/incoming/second")), 0);
	fixture_submission("second", 0.75f, 0, NULL, NULL);
	assert_int_equal(submit(&o, "second", &e), 0);
	assert_int_equal(access(fixture_path("store/versions/.take-1-second"), F_OK), -1);
	fixture_draft(fixture_path("same"), 0.75f, sha);
	assert_int_equal(manifest_read(fixture_path("store/versions/1"), &m, &e), 0);
	assert_string_equal(m.weights_sha, sha);
	manifest_done(&m);
	close_store(&o);
}

static void collection_keeps_what_is_held(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};
	char name[16];

	(void)state;
	open_store(&o);
	for (int i = 1; i <= 12; i++) {
		snprintf(name, sizeof name, "v%d", i);
		assert_int_equal(submit(&o, fixture_submission(name, (float)i / 16, 0, NULL, NULL), &e), 0);
		o.st.versions[i - 1].state = VS_RETIRED;
	}
	o.st.base = 1;
	o.st.live = 3;
	o.st.versions[2].state = VS_LIVE;
	o.st.previous = 2;
	o.st.versions[1].state = VS_PREVIOUS;
	o.st.versions[4].state = VS_GATED;
	assert_int_equal(store_collect(o.s, &o.st, &(struct store_limits){.keep = 3}), 5); /* 1 2 3 5 held, 10 11 12 newest */
	assert_int_equal(store_save(o.s, &o.st, &e), 0);
	assert_int_equal(access(fixture_path("store/versions/.gone-4"), F_OK), 0);
	store_sweep(o.s);
	assert_int_equal(access(fixture_path("store/versions/.gone-4"), F_OK), -1);
	static const uint32_t left[] = {1, 2, 3, 5, 10, 11, 12};
	assert_int_equal(o.st.n_versions, 7);
	for (int i = 0; i < 7; i++) {
		assert_int_equal(o.st.versions[i].number, left[i]);
		snprintf(name, sizeof name, "%u", left[i]);
		char path[64];
		snprintf(path, sizeof path, "store/versions/%s/manifest.json", name);
		assert_int_equal(access(fixture_path(path), F_OK), 0);
	}
	assert_int_equal(o.st.next_number, 13); /* numbers are never used again */
	o.st.versions[4].state = VS_REJECTED; /* counted apart: 10 is not what has to go for it */
	assert_int_equal(store_collect(o.s, &o.st, &(struct store_limits){.keep = 2}), 0);
	o.st.versions[4].state = VS_RETIRED;
	/* a crash between the rename and the state: finished at the next start, not quarantined */
	assert_int_equal(store_collect(o.s, &o.st, &(struct store_limits){.keep = 2}), 1);
	close_store(&o);
	open_store(&o);
	assert_int_equal(o.found.removed, 1);
	assert_int_equal(o.found.lost, 0);
	assert_int_equal(o.st.n_versions, 6);
	close_store(&o);
}

/* By age, and when the disk is nearly full: refused ones first, then the oldest; what is held stays whatever the disk says. */
static void age_and_disk_take_what_is_not_held(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};
	struct store_limits l = {.keep = 100, .max_age_s = 3600, .now_s = time(NULL)};
	char name[64];

	(void)state;
	open_store(&o);
	for (int i = 1; i <= 8; i++) {
		snprintf(name, sizeof name, "v%d", i);
		assert_int_equal(submit(&o, fixture_submission(name, (float)i / 16, 0, NULL, NULL), &e), 0);
		o.st.versions[i - 1].state = i == 6 ? VS_REJECTED : VS_RETIRED;
		if (i <= 3) { /* made two hours ago */
			struct timespec old[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};

			snprintf(name, sizeof name, "store/versions/%d/manifest.json", i);
			assert_int_equal(utimensat(AT_FDCWD, fixture_path(name), old, 0), 0);
		}
	}
	o.st.base = 1;
	o.st.live = 8;
	o.st.versions[7].state = VS_LIVE;
	o.st.previous = 7;
	o.st.versions[6].state = VS_PREVIOUS;
	o.st.pin = 0;
	assert_int_equal(store_collect(o.s, &o.st, &l), 2); /* 2 and 3; 1 is the base */
	assert_int_equal(o.st.versions[1].number, 4);
	l.need_bytes = 1;
	assert_int_equal(store_collect(o.s, &o.st, &l), 1);
	assert_int_equal(o.st.n_versions, 5); /* 6 went: 1 4 5 7 8 are left */
	assert_int_equal(o.st.versions[2].number, 5);
	assert_int_equal(store_collect(o.s, &o.st, &l), 1);
	assert_int_equal(o.st.versions[1].number, 5);
	l.need_bytes = INT64_MAX;
	assert_int_equal(store_collect(o.s, &o.st, &l), 1);
	assert_int_equal(store_collect(o.s, &o.st, &l), 0);
	assert_int_equal(o.st.n_versions, 3);
	assert_int_equal(o.st.versions[1].number, 7);
	assert_int_equal(store_missing(o.s, 0), 0);
	assert_true(store_missing(o.s, 0.999999) > 0);
	close_store(&o);
}

static void missing_files_are_noticed(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};

	(void)state;
	open_store(&o);
	assert_int_equal(submit(&o, fixture_submission("a", 0.5f, 0, NULL, NULL), &e), 0);
	assert_int_equal(submit(&o, fixture_submission("b", 0.25f, 1, NULL, NULL), &e), 0);
	o.st.versions[0].state = VS_PREVIOUS;
	o.st.versions[1].state = VS_LIVE;
	o.st.previous = 1;
	o.st.live = 2;
	assert_int_equal(store_save(o.s, &o.st, &e), 0);
	close_store(&o);
	assert_int_equal(fs_remove_tree(fixture_path("store/versions/2")), 0);
	open_store(&o);
	assert_int_equal(o.found.lost, 1);
	assert_int_equal(o.st.versions[1].state, VS_QUARANTINED);
	assert_int_equal(o.st.live, 1);
	assert_int_equal(o.st.versions[0].state, VS_LIVE);
	close_store(&o);
	/* the state itself lost: versions are found, nothing is judged anew */
	assert_int_equal(unlink(fixture_path("store/state.json")), 0);
	open_store(&o);
	assert_int_equal(o.st.n_versions, 1);
	assert_int_equal(o.st.versions[0].state, VS_RETIRED);
	assert_int_equal(o.st.next_number, 2);
	close_store(&o);
	/* a state that does not read is not guessed at */
	assert_int_equal(fs_write_atomic(fixture_path("store/state.json"), "{", 1), 0);
	assert_int_equal(store_open(fixture_path("store"), &o.s, &o.st, &o.found, &e), -EINVAL);
	assert_non_null(strstr(e.text, "state.json"));
}

static void one_daemon_a_store(void **state)
{
	struct opened o, again;
	struct errtext e = {.text = ""};

	(void)state;
	open_store(&o);
	assert_int_equal(store_open(fixture_path("store"), &again.s, &again.st, &again.found, &e), -EBUSY);
	assert_non_null(strstr(e.text, "another redraftd"));
	close_store(&o);
}

/* A folder that cannot be read is no version, and its name is taken all the same. */
static void an_unreadable_folder_takes_a_number(void **state)
{
	struct opened o;
	struct errtext e = {.text = ""};

	(void)state;
	assert_int_equal(fs_mkdirs(fixture_path("store/versions/1")), 0);
	assert_int_equal(fs_write_atomic(fixture_path("store/versions/1/manifest.json"), "{", 1), 0);
	open_store(&o);
	assert_int_equal(o.st.n_versions, 0);
	assert_int_equal(o.st.next_number, 2);
	assert_int_equal(submit(&o, fixture_submission("one", 0.5f, 0, NULL, NULL), &e), 0);
	close_store(&o);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_submission_becomes_a_version), T(what_does_not_fit_is_refused), T(verdicts_are_written_once),
		T(a_crash_leaves_old_or_new), T(what_cannot_go_back_is_kept), T(the_newer_of_a_name_is_taken), T(collection_keeps_what_is_held),
		T(age_and_disk_take_what_is_not_held), T(missing_files_are_noticed), T(an_unreadable_folder_takes_a_number), T(one_daemon_a_store),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
