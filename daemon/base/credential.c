/* Secrets from the service manager (credential.h). */
#include "daemon/base/credential.h"
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"

enum { KAFKA_CONF_MAX = 64 << 10 };

int credential_path(const char *name, char *ret, size_t size)
{
	const char *folder = getenv("CREDENTIALS_DIRECTORY");

	if (!folder || folder[0] != '/' || snprintf(ret, size, "%s/%s", folder, name) >= (int)size || access(ret, F_OK) < 0)
		return -ENOENT;
	return 0;
}

int credential_read(const char *name, size_t max_bytes, char **ret)
{
	char path[PATH_MAX];
	int r = credential_path(name, path, sizeof path);

	return r < 0 ? r : fs_read_text(path, max_bytes, ret);
}

static char *pair_trim(char *s)
{
	char *end = s + strlen(s);

	while (end > s && isspace((unsigned char)end[-1]))
		*--end = '\0';
	while (isspace((unsigned char)*s))
		s++;
	return s;
}

int pairs_each(const char *text, const char *separators, const char *where, bool secret, pair_fn *set, void *arg, struct errtext *e)
{
	char *copy = strdup(text), *save = NULL;
	int r = copy ? 0 : errtext_set(e, -ENOMEM, "out of memory"), n = 0;

	for (char *kv = copy ? strtok_r(copy, separators, &save) : NULL; !r && kv; kv = strtok_r(NULL, separators, &save)) {
		char *eq, *key = pair_trim(kv);

		if (!*key || *key == '#')
			continue;
		n++;
		eq = strchr(key, '=');
		if (!eq) {
			r = secret ? errtext_set(e, -EINVAL, "%s: setting number %d is not key=value", where, n) :
				     errtext_set(e, -EINVAL, "%s: \"%.60s\" is not key=value", where, key);
			break;
		}
		*eq = '\0';
		r = set(arg, pair_trim(key), pair_trim(eq + 1), e);
	}
	if (copy)
		explicit_bzero(copy, strlen(text));
	free(copy);
	return r;
}

int kafka_settings(const char *extra, const char *where, pair_fn *set, void *arg, struct errtext *e)
{
	char *secret = NULL;
	int r = extra && *extra ? pairs_each(extra, ",", where, false, set, arg, e) : 0, got;

	if (r)
		return r;
	got = credential_read("kafka.conf", KAFKA_CONF_MAX, &secret);
	if (got == -ENOENT)
		return 0;
	if (got < 0)
		return errtext_set(e, got, "the credential kafka.conf cannot be read: %s", strerror(-got));
	r = pairs_each(secret, "\n", "the credential kafka.conf", true, set, arg, e);
	explicit_bzero(secret, strlen(secret));
	free(secret);
	return r;
}
