/* Canonical composition (NFC), as Qwen2's tokenizer wants its text. Threads: pure. */
#pragma once
#include <stdbool.h>
#include "daemon/base/buf.h"

/* Appends the normal form of n bytes of valid UTF-8 to out. -ENOMEM, or what buf_append says. */
int MUSTCHECK nfc_append(struct buf *out, const char *text, size_t n);
