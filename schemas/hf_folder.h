/* A Hugging Face model folder: config.json, generation_config.json, the weights (model.safetensors, or
 * shards listed in model.safetensors.index.json), the chat template (chat_template.jinja, else chat_template
 * of tokenizer_config.json) and tokenizer.json.
 *
 * Weights are mapped, never copied as a whole. F32 and F16 are rounded to bf16, other dtypes
 * refused; tensors that nobody asks for are ignored. A shard that is missing or damaged is found at open.
 * Threads: read-only after hf_open.
 */
#pragma once
#include "schemas/hf_config.h"
#include "schemas/hf_tokenizer.h"

struct hf_folder;

int MUSTCHECK hf_open(const char *path, struct hf_folder **ret, struct errtext *e);
struct hf_folder *hf_free(struct hf_folder *f);
void hf_rest(const struct hf_folder *f); /* it may be long until weights are read again: their pages are given back */
const struct hf_config *hf_config(const struct hf_folder *f);
const struct hf_tokenizer *hf_tokenizer(const struct hf_folder *f);
/* NUL-terminated, owned by the folder; NULL = none */
const char *hf_chat_template(const struct hf_folder *f);

/* One tensor as bf16, rows x cols, malloc'd; vectors have rows 1. -ENOENT when absent. As gguf_read_hf. */
int MUSTCHECK hf_read(const struct hf_folder *f, const char *name, int *ret_rows, int *ret_cols, uint16_t **ret_bf16, struct errtext *e);

/* The index's shards: distinct file names in order, each a plain name. For fuzzing and hf_open. */
struct hf_index { char **files; int n; };
int MUSTCHECK hf_index_parse(const char *json, size_t len, struct hf_index *ret, struct errtext *e);
void hf_index_done(struct hf_index *x);
