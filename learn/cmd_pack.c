/* redraft-learn pack: a draft's folder as one 8-bit file, small enough for a source tree.
 * redraft-learn unpack: the folder again, in store/incoming or where --out says, ready for Submit. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/conf.h"
#include "learn/cmd.h"
#include "learn/packed.h"

struct conf {
	char *draft, *file, *out, *note;
};

#define AT(f) offsetof(struct conf, f)
static const struct conf_entry pack_entries[] = {
	{"draft", CONF_STRING, AT(draft), NULL, 0, 0, NULL, false, "", "folder of the draft, as redraft-learn wrote it"},
	{"out", CONF_STRING, AT(out), NULL, 0, 0, NULL, false, "", "the file to write"},
	{"note", CONF_STRING, AT(note), "", 0, 0, NULL, false, "", "how the draft was made, for people"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program pack_program = {
	.name = "redraft-learn pack", .summary = "Packs a draft into one file of 8-bit matrices with a scale a row.",
	.entries = pack_entries, .struct_size = sizeof(struct conf)};

static const struct conf_entry unpack_entries[] = {
	{"file", CONF_STRING, AT(file), NULL, 0, 0, NULL, false, "", "a packed draft"},
	{"out", CONF_STRING, AT(out), NULL, 0, 0, NULL, false, "", "folder to write, for instance store/incoming/base"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program unpack_program = {
	.name = "redraft-learn unpack", .summary = "Expands a packed draft into the standard folder and checks its weights' hash.",
	.entries = unpack_entries, .struct_size = sizeof(struct conf)};

static int pack(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	return packed_write(c->draft, c->out, c->note, e);
}

int cmd_pack(int argc, char **argv)
{
	return cmd_run("pack", &pack_program, argc, argv, &(struct conf){0}, pack);
}

static int unpack(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	char sha[65];
	int r = packed_expand(c->file, c->out, sha, e);
	if (!r)
		printf("%s: %s\n", c->out, sha);
	return r;
}

int cmd_unpack(int argc, char **argv)
{
	return cmd_run("unpack", &unpack_program, argc, argv, &(struct conf){0}, unpack);
}
