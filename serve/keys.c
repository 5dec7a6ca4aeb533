/* Keys are kept as their SHA-256, compared with all of them and without an early way
 * out: neither which key nor how much of it was right can be told from the time.
 */
#include "serve/keys.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include "daemon/base/credential.h"
#include "daemon/base/fs.h"
#include "daemon/base/sha.h"

enum { MAX_FILE = 4 << 20 };

struct api_keys {
	char *path;
	char (*hash)[SHA_HEX]; /* [n] */
	int n;
	struct stat seen; /* of the file when it was last looked at */
};

static int add(struct api_keys *k, const char *line, size_t n, int number, struct errtext *e)
{
	if (n < API_KEY_MIN || n > API_KEY_MAX)
		return errtext_set(e, -EINVAL, "api_keys_file %.120s, line %d: a key has %d to %d characters", k->path, number, API_KEY_MIN,
				   API_KEY_MAX);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)line[i] <= 0x20 || (unsigned char)line[i] >= 0x7f)
			return errtext_set(e, -EINVAL, "api_keys_file %.120s, line %d: a key is printable ASCII without blanks", k->path, number);
	if (k->n == API_KEYS_MAX)
		return errtext_set(e, -EINVAL, "api_keys_file %.120s holds more than %d keys", k->path, API_KEYS_MAX);
	char (*grown)[SHA_HEX] = realloc(k->hash, ((size_t)k->n + 1) * sizeof *grown);
	if (!grown)
		return errtext_set(e, -ENOMEM, "out of memory");
	k->hash = grown;
	sha_hex(line, n, k->hash[k->n++]);
	return 0;
}

static int parse(struct api_keys *k, const char *text, struct errtext *e)
{
	int number = 0, r = 0;

	for (const char *p = text; *p && r == 0; number++) {
		size_t n = strcspn(p, "\n"), len = n;
		while (len > 0 && (p[len - 1] == ' ' || p[len - 1] == '\t' || p[len - 1] == '\r'))
			len--;
		if (len > 0 && *p != '#')
			r = add(k, p, len, number + 1, e);
		p += n + (p[n] == '\n');
	}
	if (r == 0 && k->n == 0)
		r = errtext_set(e, -EINVAL, "api_keys_file %.150s holds no key", k->path);
	return r;
}

static int read_file(struct api_keys *k, struct errtext *e)
{
	struct api_keys fresh = {.path = k->path};
	char *text;
	int r = fs_read_text(k->path, MAX_FILE, &text);

	if (r < 0)
		return errtext_set(e, r, "api_keys_file %.150s cannot be read: %s", k->path, fs_text_why(r));
	r = parse(&fresh, text, e);
	explicit_bzero(text, strlen(text));
	free(text);
	if (r < 0) {
		free(fresh.hash);
		return r;
	}
	free(k->hash);
	k->hash = fresh.hash;
	k->n = fresh.n;
	return 0;
}

int api_keys_open(const char *path, struct api_keys **ret, struct errtext *e)
{
	struct api_keys *k = calloc(1, sizeof *k);
	int r;

	if (!k || !(k->path = strdup(path))) {
		free(k);
		return errtext_set(e, -ENOMEM, "out of memory");
	}
	(void)stat(path, &k->seen);
	r = read_file(k, e);
	if (r < 0) {
		api_keys_free(k);
		return r;
	}
	*ret = k;
	return 0;
}

struct api_keys *api_keys_free(struct api_keys *k)
{
	if (!k)
		return NULL;
	free(k->path);
	free(k->hash);
	free(k);
	return NULL;
}

int api_keys_refresh(struct api_keys *k, struct errtext *e)
{
	struct stat now = {0}, was = k->seen;
	int r;

	(void)stat(k->path, &now); /* gone: all zero, and reading says so */
	k->seen = now;
	if (now.st_ino == was.st_ino && now.st_dev == was.st_dev && now.st_size == was.st_size && now.st_mtim.tv_sec == was.st_mtim.tv_sec &&
	    now.st_mtim.tv_nsec == was.st_mtim.tv_nsec && now.st_ctim.tv_nsec == was.st_ctim.tv_nsec)
		return 0;
	r = read_file(k, e);
	return r < 0 ? r : API_KEYS_CHANGED;
}

int api_keys_count(const struct api_keys *k)
{
	return k->n;
}

bool api_keys_match(const struct api_keys *k, const char *key)
{
	char hash[SHA_HEX];
	int hits = 0;

	sha_hex(key, strlen(key), hash);
	for (int i = 0; i < k->n; i++) {
		unsigned differ = 0;
		for (int b = 0; b < SHA_HEX; b++)
			differ |= (unsigned)(unsigned char)(hash[b] ^ k->hash[i][b]);
		hits += differ == 0;
	}
	return hits > 0;
}

int tenant_key_read(const char *path, uint8_t ret[static TENANT_KEY], struct errtext *e)
{
	char *text, hex[SHA_HEX];
	int r = *path ? fs_read_text(path, 4096, &text) : credential_read("tenant_key", 4096, &text);

	if (!*path && r == -ENOENT)
		return getrandom(ret, TENANT_KEY, 0) == TENANT_KEY ? 0 : -EIO;
	if (!*path)
		path = "(the credential tenant_key)";
	if (r < 0)
		return errtext_set(e, r, "tenant_key_file %.150s cannot be read: %s", path, strerror(-r));
	sha_hex(text, strlen(text), hex);
	r = strlen(text) < 16 ? errtext_set(e, -EINVAL, "tenant_key_file %.150s must hold at least 16 characters", path) : 0;
	explicit_bzero(text, strlen(text));
	free(text);
	for (size_t i = 0; i < TENANT_KEY; i++) {
		unsigned v = 0;
		(void)sscanf(hex + 2 * i, "%2x", &v);
		ret[i] = (uint8_t)v;
	}
	return r;
}
