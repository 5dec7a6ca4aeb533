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

static int fail(const char *word, int r, const struct errtext *e)
{
	fprintf(stderr, "redraft-learn %s: %s\n", word, *e->text ? e->text : strerror(-r));
	return r == -EINVAL || r == -ENOENT ? 2 : 1;
}

int cmd_pack(int argc, char **argv)
{
	struct conf c;
	struct errtext e = {""};
	int r = conf_load(&pack_program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r)
		return r > 0 ? 0 : fail("pack", -EINVAL, &e);
	r = packed_write(c.draft, c.out, c.note, &e);
	conf_done(&pack_program, &c);
	return r ? fail("pack", r, &e) : 0;
}

int cmd_unpack(int argc, char **argv)
{
	struct conf c;
	struct errtext e = {""};
	char sha[65];
	int r = conf_load(&unpack_program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r)
		return r > 0 ? 0 : fail("unpack", -EINVAL, &e);
	r = packed_expand(c.file, c.out, sha, &e);
	if (!r)
		printf("%s: %s\n", c.out, sha);
	conf_done(&unpack_program, &c);
	return r ? fail("unpack", r, &e) : 0;
}
