/* Runs one harness over its committed inputs. */
#pragma once
#include <dirent.h>
#include <limits.h>
#include "daemon/base/fs.h"

static inline void replay(const char *name, int (*one)(const uint8_t *data, size_t size))
{
	char path[PATH_MAX];
	struct dirent *d;
	int n = 0;

	(void)snprintf(path, sizeof path, "tests/fuzz/corpus/%s", name);
	DIR *dir = opendir(path);
	assert_non_null(dir);
	while ((d = readdir(dir))) {
		struct fs_map map;
		if (d->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof path, "tests/fuzz/corpus/%s/%s", name, d->d_name);
		assert_int_equal(fs_map(path, &map), 0);
		uint8_t *copy = malloc(map.len + 1); /* of its exact size, so that ASan sees a read past the end */
		assert_non_null(copy);
		if (map.len)
			memcpy(copy + 1, map.data, map.len); /* and unaligned, as payloads are */
		(void)one(copy + 1, map.len);
		free(copy);
		fs_unmap(&map);
		n++;
	}
	(void)closedir(dir);
	print_message("%s: %d inputs\n", name, n);
	assert_true(n > 0);
}
