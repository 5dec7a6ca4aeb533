/* Forgetting (learn/purge.h). The order makes it safe: state_dir/purging names the tenant from before the entry until the bytes
 * are gone; two checkpoints are written behind the entry, since two are kept and neither may need what goes; then the pool is read through
 * and every record whose metadata names him is overwritten in its place.
 */
#include "learn/purge.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fs.h"
#include "schemas/safetensors.h"

enum { TENANT_MOST = 64 };

void purge_index(struct learner *l, const char *tenant)
{
	int64_t hash = (int64_t)run_text_hash(tenant);
	(void)runs_drop(&l->runs, run_of_tenant, hash);
	join_drop(&l->join, run_of_tenant, hash);
}

static bool is_his(void *arg, const void *blob, uint32_t len)
{
	struct st_file *f = NULL;
	struct errtext e;
	if (st_parse(blob, len, &f, &e))
		return false; /* it was read once, when it came; now nobody can */
	const char *t = st_meta(f, "tenant");
	bool yes = t && strcmp(t, arg) == 0;
	st_free(f);
	return yes;
}

static int mark(const struct learner *l, char path[PATH_MAX])
{
	return snprintf(path, PATH_MAX, "%s/purging", l->o.state_dir) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Records that were set aside may be his and cannot all be read: none is kept. */
static int drop_aside(struct learner *l)
{
	char path[PATH_MAX];
	int r = snprintf(path, sizeof path, "%s/set-aside", l->o.state_dir) < (int)sizeof path ? fs_remove_tree(path) : -ENAMETOOLONG;
	if (!r) {
		l->aside_files = 0;
		l->aside_bytes = 0;
	}
	return r;
}

static int wipe(struct learner *l, const char *tenant, struct purged *ret, struct errtext *e)
{
	char path[PATH_MAX];
	int r = drop_aside(l);
	for (int i = 0; i < 2 && !r; i++)
		r = learner_checkpoint(l, e);
	if (!r)
		r = pool_erase_if(l->pool, is_his, (void *)(uintptr_t)tenant, &ret->records, &ret->bytes);
	if (!r)
		r = mark(l, path);
	if (!r && unlink(path) && errno != ENOENT)
		r = -errno;
	return r && e && !*e->text ? errtext_set(e, r, "purge: %s", strerror(-r)) : r;
}

int purge_tenant(struct learner *l, const char *tenant, struct purged *ret, struct errtext *e)
{
	struct journal_entry x = {.kind = J_PURGE};
	char path[PATH_MAX];
	int before = l->runs.n, r = mark(l, path);
	(void)snprintf(x.text, sizeof x.text, "%s", tenant);
	*ret = (struct purged){0};
	if (!r)
		r = fs_write_atomic(path, tenant, strlen(tenant));
	if (r)
		return errtext_set(e, r, "purge: %s: %s", path, strerror(-r));
	r = learner_do(l, &x, e);
	ret->runs = before - l->runs.n;
	return r ? r : wipe(l, tenant, ret, e);
}

int purge_unfinished(struct learner *l, struct errtext *e)
{
	char path[PATH_MAX], *tenant = NULL;
	struct purged ignored;
	int r = mark(l, path);
	if (!r)
		r = fs_read_text(path, TENANT_MOST, &tenant);
	if (r)
		return r == -ENOENT ? 0 : errtext_set(e, r, "purge: %s: %s", path, strerror(-r));
	r = purge_tenant(l, tenant, &ignored, e); /* the entry again does no harm, and the first may not have been written */
	free(tenant);
	return r;
}
