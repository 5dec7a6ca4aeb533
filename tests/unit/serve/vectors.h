/* Reading test vectors that are one JSON object a line, and the toy model's GGUF. */
#pragma once
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schemas/gguf.h"
#include "serve/tokenizer.h"

/* Calls fn for each line; returns how many there were, or -1 when the file is missing. */
static inline int vectors_each(const char *path, void (*fn)(void *arg, const json_t *v), void *arg)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;
	int n = 0;

	if (!f)
		return -1;
	while ((len = getline(&line, &cap, f)) > 0) {
		json_t *v = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
		assert_non_null(v);
		fn(arg, v);
		json_decref(v);
		n++;
	}
	free(line);
	fclose(f);
	return n;
}

static inline struct tokenizer *load_tokenizer(const char *path)
{
	struct gguf *g;
	struct tokenizer *t;
	struct errtext e = {""};

	if (gguf_open(path, &g, &e) < 0 || tokenizer_load(g, &t, &e) < 0)
		fail_msg("%s", e.text);
	gguf_free(g);
	return t;
}

/* The toy model of the default seed, made by the fixture into a file that is removed at once. */
static inline struct tokenizer *toy_tokenizer(void)
{
	char path[64], cmd[160];
	struct tokenizer *t;

	(void)snprintf(path, sizeof path, "/tmp/redraft-toy-%d.gguf", (int)getpid());
	(void)snprintf(cmd, sizeof cmd, "python3 tests/fixtures/toy_model.py %s >/dev/null", path);
	if (system(cmd) != 0)
		fail_msg("%s failed", cmd);
	t = load_tokenizer(path);
	unlink(path);
	return t;
}
