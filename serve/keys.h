/* Secrets from files: the API keys, one a line, # begins a comment line; and the one that tenants are hashed with. Threads: one owner.
 *
 * A file that cannot be read again, or holds none, leaves the keys as they were: a slip of the editor
 * must lock nobody out, and an empty file must not open the door.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct api_keys;

enum { API_KEY_MIN = 8, API_KEY_MAX = 512, API_KEYS_MAX = 4096 };

int MUSTCHECK api_keys_open(const char *path, struct api_keys **ret, struct errtext *e);
struct api_keys *api_keys_free(struct api_keys *k);
enum { API_KEYS_CHANGED = 1 };
/* Read again when the file is another one than last time: API_KEYS_CHANGED, 0, or -errno with e (said once a change). */
int MUSTCHECK api_keys_refresh(struct api_keys *k, struct errtext *e);
int api_keys_count(const struct api_keys *k);
/* Takes the same time for every key of one length. */
bool api_keys_match(const struct api_keys *k, const char *key);

enum { TENANT_KEY = 32 };
/* From the file; path "": from the credential tenant_key, else one made for this run. */
int MUSTCHECK tenant_key_read(const char *path, uint8_t ret[static TENANT_KEY], struct errtext *e);
