/* One configuration value: text <-> field. Used by conf.c only. */
#pragma once
#include "daemon/base/conf.h"

/* where: the place the text came from, for the sentence in e. Old strings are freed. */
int MUSTCHECK conf_value_set(const struct conf_entry *entry, const char *text, const char *where, void *conf,
			     struct errtext *e);
