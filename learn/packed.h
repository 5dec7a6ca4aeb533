/* A draft in a quarter of its masters' bytes, to be kept in a source tree or sent around: 8-bit matrices with a
 * scale a row, everything else as it is, in one safetensors file. Serving and training take the standard folder
 * that it expands to; the file says what that folder's weights hash to, so an expansion is checked.
 */
#pragma once
#include "daemon/base/err.h"

/* draft folder (config.json, model.safetensors, submit.json or manifest.json) -> one file. note: how it was made, for people. */
int MUSTCHECK packed_write(const char *dir, const char *file, const char *note, struct errtext *e);
/* And back: a folder ready for Submit. -EINVAL: damaged, or its weights do not hash to what the file says. */
int MUSTCHECK packed_expand(const char *file, const char *dir, char ret_sha[static 65], struct errtext *e);
