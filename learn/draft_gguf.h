/* A draft as GGUF of arch "eagle3", as llama.cpp reads it (its converter of mid-2026; older builds used other names).
 *
 * Of the target it holds no tokenizer and no embedding: llama.cpp takes both from the target beside it. q and k rows of each head
 * go from [2, d/2] to [d/2, 2], as its RoPE wants them; d2t becomes absolute token ids.
 */
#pragma once
#include "learn/publish.h"

/* Matrices as bf16, the rest as it is. -ENOTSUP: llama.cpp cannot compute such a draft. */
int MUSTCHECK draft_gguf_write(const struct draft *d, const char *path, struct errtext *e);
/* F32, F16, BF16 and the block kinds of schemas/gguf.h; ret->file.boundaries are the file's target_layers. */
int MUSTCHECK draft_gguf_read(const char *path, const struct frozen *fz, struct draft *ret, struct errtext *e);
