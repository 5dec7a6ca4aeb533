/* The store's two files: a manifest or a state that reads can be written and reads the same; what does not read says
 * why. The first byte chooses which. And an audit log of any bytes reads through without harm. */
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "schemas/audit.h"
#include "schemas/manifest.h"
#include "tests/fuzz/fuzz.h"

static char fuzz_dir[64];

static void fuzz_folder_gone(void)
{
	(void)!fs_remove_tree(fuzz_dir);
}

static const char *fuzz_folder(void)
{
	if (!fuzz_dir[0]) {
		snprintf(fuzz_dir, sizeof fuzz_dir, "/dev/shm/redraft-fuzz-%d", (int)getpid());
		FUZZ_CHECK(fs_mkdirs(fuzz_dir) == 0 && atexit(fuzz_folder_gone) == 0);
	}
	return fuzz_dir;
}

static void fuzz_put(const char *name, const uint8_t *data, size_t size)
{
	char path[PATH_MAX];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
	f = fopen(path, "wb");
	FUZZ_CHECK(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static void fuzz_one_manifest(void)
{
	struct errtext e = {""};
	struct manifest m, again;

	if (manifest_read(fuzz_folder(), &m, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return;
	}
	FUZZ_CHECK(manifest_write(fuzz_folder(), &m, &e) == 0 && manifest_read(fuzz_folder(), &again, &e) == 0);
	FUZZ_CHECK(m.number == again.number && m.parent == again.parent && !strcmp(m.weights_sha, again.weights_sha) && !strcmp(m.created, again.created));
	FUZZ_CHECK((!m.training && !again.training) || json_equal(m.training, again.training));
	manifest_done(&m);
	manifest_done(&again);
}

static void fuzz_one_state(void)
{
	struct errtext e = {""};
	struct store_state s, again;

	if (store_state_read(fuzz_folder(), &s, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return;
	}
	FUZZ_CHECK(store_state_write(fuzz_folder(), &s, &e) == 0 && store_state_read(fuzz_folder(), &again, &e) == 0);
	FUZZ_CHECK(s.generation == again.generation && s.live == again.live && s.n_versions == again.n_versions && s.hold == again.hold);
	for (int i = 0; i < s.n_versions; i++)
		FUZZ_CHECK(s.versions[i].number == again.versions[i].number && s.versions[i].state == again.versions[i].state);
	store_state_done(&s);
	store_state_done(&again);
}

FUZZ(manifest)
{
	struct audit_seen seen;
	struct errtext e = {""};

	if (!size)
		return 0;
	switch (data[0] % 3) {
	case 0:
		fuzz_put("manifest.json", data + 1, size - 1);
		fuzz_one_manifest();
		break;
	case 1:
		fuzz_put("state.json", data + 1, size - 1);
		fuzz_one_state();
		break;
	default:
		fuzz_put("audit.log", data + 1, size - 1);
		FUZZ_CHECK(audit_read(fuzz_folder(), &seen, NULL, NULL, &e) == 0);
		FUZZ_CHECK(seen.whole <= (int64_t)size && (!seen.broken) == !seen.what[0]);
		break;
	}
	return 0;
}
