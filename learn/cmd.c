/* What the words of redraft-learn have in common (learn/cmd.h): how one ends, and the course of those that only read their
 * settings and do their work. */
#include "learn/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/conf.h"
#include "daemon/base/err.h"

int cmd_fail(const char *word, int r, const struct errtext *e)
{
	fprintf(stderr, "redraft-learn %s: %s\n", word, *e->text ? e->text : strerror(-r));
	return r == -EINVAL || r == -ENOENT || r == -ENOTSUP ? 2 : 1;
}

int cmd_run(const char *word, const struct conf_program *p, int argc, char **argv, void *conf, int (*work)(const void *conf, struct errtext *e))
{
	struct errtext e = {""};
	int r = conf_load(p, argc, argv, conf, NULL, 0, NULL, &e);
	if (r)
		return r > 0 ? 0 : cmd_fail(word, -EINVAL, &e);
	r = work(conf, &e);
	conf_done(p, conf);
	return r ? cmd_fail(word, r, &e) : 0;
}
