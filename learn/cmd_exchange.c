/* redraft-learn export: a draft as another system takes it. redraft-learn import: what it made, as a folder of ours.
 *
 * The folder that redraft writes is what vLLM, SGLang and SpecForge load as it lies, so for them an export is a copy, after looking
 * whether they compute all that the draft asks for: an engine that does not know a flag ignores it in silence. For llama.cpp it
 * is one GGUF file. An import reads a folder that any of them, or the EAGLE repository, wrote (names, prefixes
 * and layer numbering are resolved, schemas/draft.md), or such a GGUF, checks it against the target, and writes it as ours.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/conf.h"
#include "daemon/base/rpc.h"
#include "learn/cmd.h"
#include "learn/draft_gguf.h"

enum engine { VLLM, SGLANG, SPECFORGE, LLAMA_CPP };

struct conf {
	char *store, *target_fp, *draft, *out, *from, *daemon_socket;
	int64_t engine, version;
	bool submit;
};

#define AT(f) offsetof(struct conf, f)
#define TARGET_ENTRIES                                                                                                                          \
	{"store", CONF_STRING, AT(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "version store, for the target's frozen file"},     \
	{"target_fp", CONF_STRING, AT(target_fp), "", 0, 0, NULL, false, "", "fingerprint of the target; empty = the only one in store/frozen"}, \
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL}

static const struct conf_entry export_entries[] = {
	{"for", CONF_ENUM, AT(engine), NULL, 0, 0, "vllm|sglang|specforge|llama.cpp", false, "", "who is to load it"},
	{"version", CONF_INT, AT(version), "0", 0, 4294967295.0, NULL, false, "", "version of the store"},
	{"draft", CONF_STRING, AT(draft), "", 0, 0, NULL, false, "", "folder of a draft, in place of a version"},
	{"out", CONF_STRING, AT(out), NULL, 0, 0, NULL, false, "", "folder to write; for llama.cpp the file"},
	TARGET_ENTRIES,
};
static const struct conf_program export_program = {
	.name = "redraft-learn export", .summary = "Writes a draft as vLLM, SGLang, SpecForge or llama.cpp loads it.", .entries = export_entries, .struct_size = sizeof(struct conf)};

static const struct conf_entry import_entries[] = {
	{"from", CONF_STRING, AT(from), NULL, 0, 0, NULL, false, "", "folder with config.json and model.safetensors, or a GGUF file of arch eagle3"},
	{"out", CONF_STRING, AT(out), "", 0, 0, NULL, false, "", "folder to write; empty = store/incoming/import-<time>"},
	{"submit", CONF_BOOL, AT(submit), "off", 0, 0, NULL, false, "", "hand it in store/incoming to redraftd"},
	{"daemon_socket", CONF_STRING, AT(daemon_socket), "/run/redraft/daemon/control.sock", 0, 0, NULL, false, "", "redraftd's control socket"},
	TARGET_ENTRIES,
};
static const struct conf_program import_program = {
	.name = "redraft-learn import", .summary = "Takes a draft that another system made.", .entries = import_entries, .struct_size = sizeof(struct conf)};

/* What an engine of late 2026 does not compute. */
static int computed_by(enum engine x, const struct draft_config *c, struct errtext *e)
{
	const char *no = NULL;
	if (x == SGLANG)
		no = c->norm_before_residual ? "norm_before_residual" : NULL;
	else if (x == SPECFORGE)
		no = c->norm_before_residual ? "norm_before_residual" : c->norm_before_fc ? "norm_before_fc" : c->norm_output ? "norm_output (its own flag of that name means another thing)" : NULL;
	return no ? errtext_set(e, -ENOTSUP, "%s computes no %s", x == SGLANG ? "SGLang's EAGLE-3" : "SpecForge 0.2.0", no) : 0;
}

static void say(const char *where, const char *sha, const struct eagle3_config *c)
{
	printf("%s: weights %.12s, boundaries %d, %d, %d, draft vocabulary %d\n", where, sha, c->boundaries[0], c->boundaries[1], c->boundaries[2], c->V_d);
}

static int write_for(const struct conf *c, const struct draft *d, const struct frozen *fz, struct errtext *e)
{
	char sha[65], path[PATH_MAX];
	enum engine x = (enum engine)c->engine;
	if (x == LLAMA_CPP)
		return draft_gguf_write(d, c->out, e);
	int r = computed_by(x, &d->file, e);
	json_t *meta = json_pack("{s:i}", "parent", 0);
	if (!r)
		r = meta ? publish_write_folder(c->out, &d->file, d->d2t, d->w, fz, meta, sha, e) : -ENOMEM;
	json_decref(meta);
	if (!r && snprintf(path, sizeof path, "%s/submit.json", c->out) < (int)sizeof path)
		(void)remove(path); /* ours alone */
	return r;
}

static int export_draft(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	struct frozen fz = {0};
	struct draft d = {0};
	if (!c->version == !*c->draft)
		return errtext_set(e, -EINVAL, "give --version or --draft");
	int r = frozen_open(c->store, c->target_fp, &fz, e);
	if (!r)
		r = c->version ? publish_read_version(c->store, (uint32_t)c->version, &fz, &d, e) : publish_read_folder(c->draft, &fz, &d, e);
	if (!r)
		r = write_for(c, &d, &fz, e);
	if (!r)
		say(c->out, d.weights_sha, &d.c);
	draft_done(&d);
	frozen_close(&fz);
	return r;
}

int cmd_export(int argc, char **argv)
{
	return cmd_run("export", &export_program, argc, argv, &(struct conf){0}, export_draft);
}

static bool is_gguf(const char *path)
{
	char magic[4] = "";
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(magic, 1, sizeof magic, f) : 0; /* a folder gives nothing */
	if (f)
		(void)fclose(f);
	return n == sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
}

static int hand_over(const struct conf *c, const char *dir, struct errtext *e)
{
	json_t *reply = NULL;
	int r = rpc_call_sync(c->daemon_socket, "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", dir), 60000, &reply, e);
	if (!r)
		printf("submitted: version %lld\n", (long long)json_integer_value(json_object_get(reply, "version")));
	json_decref(reply);
	return r;
}

static int import_draft(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	char dir[PATH_MAX], name[64], sha[65] = "";
	struct frozen fz = {0};
	struct draft d = {0};
	(void)snprintf(name, sizeof name, "import-%lld", (long long)time(NULL));
	int r = c->submit && *c->out ? errtext_set(e, -EINVAL, "--submit takes a draft in store/incoming: leave --out away") : 0;
	if (!r)
		r = *c->out ? snprintf(dir, sizeof dir, "%s", c->out) < (int)sizeof dir ? 0 : -ENAMETOOLONG : publish_path(c->store, name, dir, sizeof dir);
	if (!r)
		r = frozen_open(c->store, c->target_fp, &fz, e);
	if (!r)
		r = is_gguf(c->from) ? draft_gguf_read(c->from, &fz, &d, e) : publish_read_folder(c->from, &fz, &d, e);
	json_t *meta = json_pack("{s:i,s:{s:s,s:s}}", "parent", 0, "training", "who", "redraft-learn import", "from", c->from);
	if (!r)
		r = meta ? publish_write_folder(dir, &d.file, d.d2t, d.w, &fz, meta, sha, e) : -ENOMEM;
	if (!r)
		say(dir, sha, &d.c);
	json_decref(meta);
	draft_done(&d);
	frozen_close(&fz);
	return !r && c->submit ? hand_over(c, dir, e) : r;
}

int cmd_import(int argc, char **argv)
{
	return cmd_run("import", &import_program, argc, argv, &(struct conf){0}, import_draft);
}
