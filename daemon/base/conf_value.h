/* One configuration value: text <-> field. Used by conf.c, and the last by conf_doc.c, only. */
#pragma once
#include "daemon/base/conf.h"

/* where: the place the text came from, for the sentence in e. Old strings are freed. */
int MUSTCHECK conf_value_set(const struct conf_entry *entry, const char *text, const char *where, void *conf,
			     struct errtext *e);
/* A table with a key "version" (of what is in the store, say) has that flag for itself; the program's version is asked for elsewhere. */
bool conf_has_version(const struct conf_program *p);
