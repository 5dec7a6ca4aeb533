/* Room-internal: what the two kinds of target files tell of a target's shape (boundaries and max_ctx are the caller's). */
#pragma once
#include "kernels/model/llama.h"

struct gguf;
struct hf_folder;

int MUSTCHECK target_gguf_config(const struct gguf *g, struct llama_config *c, int *ret_context, struct errtext *e);
int MUSTCHECK target_folder_config(const struct hf_folder *f, struct llama_config *c, int *ret_context, struct errtext *e);
