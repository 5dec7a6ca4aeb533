/* Secrets that the service manager hands over as files (LoadCredential=), and the
 * "key = value" lists they may hold.
 *
 * A secret is never a flag or an environment variable, where every user of the machine can
 * read it. Threads: any.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "daemon/base/err.h"

/* $CREDENTIALS_DIRECTORY/name as text, malloc'd. -ENOENT: there is none. */
int MUSTCHECK credential_read(const char *name, size_t max_bytes, char **ret);

/* The path of that file, for who watches it. -ENOENT: there is none. */
int MUSTCHECK credential_path(const char *name, char *ret, size_t size);

/* Each key = value of text, cut at the separators given ("," or "\n"); white space around both is
 * dropped, empty pieces and lines that start with # are passed over. where names the text in errors,
 * which repeat what is not key = value unless it is secret. */
typedef int pair_fn(void *arg, const char *key, const char *value, struct errtext *e);
int MUSTCHECK pairs_each(const char *text, const char *separators, const char *where, bool secret, pair_fn *set, void *arg,
			 struct errtext *e);

/* librdkafka settings of a program: "k=v,k=v" from its configuration (where names the key), then
 * the lines of the credential "kafka.conf", if there is one: sasl.password belongs there. */
int MUSTCHECK kafka_settings(const char *extra, const char *where, pair_fn *set, void *arg, struct errtext *e);
