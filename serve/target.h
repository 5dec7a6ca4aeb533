/* The target as the server holds it: a GGUF file or a Hugging Face folder opened, its
 * tokenizer, its packed weights and its fingerprint, which is the same for the same
 * weights and vocabulary in either form.
 *
 * Opening reads the file once for the weights and once, on a second thread,
 * for the fingerprint. target_fp = SHA-256 over, as text, "redraft-target-1\n", the
 * hex fingerprint of the target's tensors (schemas/fingerprint.c's layout, all bf16,
 * Hugging Face names), "\n", the tokenizer's hex, "\n", the boundaries "2,15,27",
 * "\n". The mapping is kept: the chat template is read from it.
 * Threads: read-only after target_open, except that `model` belongs to the engine.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/model/llama.h"

struct gguf;
struct hf_folder;
struct tokenizer;

struct target {
	struct gguf *gguf;           /* owned; NULL for a folder */
	struct hf_folder *folder;    /* owned; NULL for a GGUF file */
	struct tokenizer *tokenizer; /* owned */
	struct llama *model;         /* owned; packed on the dev given to target_open */
	struct llama_config cfg;
	char name[96];               /* the file's name without .gguf, or the folder's */
	char fp[65];                 /* target_fp */
	uint64_t eog_ids[8];         /* tokens that end a generation */
	int n_eog;
	int train_context;           /* positions the model was trained for */
	const char *chat_template;   /* into the mapping, not NUL-terminated; NULL = none */
	size_t chat_template_len;
};

/* The hex fingerprint of the tensors alone, tensor by tensor so that only one is held expanded. */
int MUSTCHECK target_tensors_sha(const struct target *t, char ret_hex[static 65], struct errtext *e);
/* One tensor by its Hugging Face name as bf16, malloc'd; vectors have rows 1. -ENOENT when absent. */
int MUSTCHECK target_read(const struct target *t, const char *name, int *ret_rows, int *ret_cols, uint16_t **ret_bf16, struct errtext *e);

/* type: how weights are kept (DT_BF16 to serve). max_context is clipped to what the
 * model was trained for. Wrong file, arch or shape: -EINVAL with e. */
int MUSTCHECK target_open(struct dev *d, const char *path, enum dtype type, int max_context, struct target **ret, struct errtext *e);
struct target *target_close(struct target *t); /* the dev must still live */

/* Everything that is served is in the device by now: the files' pages, once packed and hashed, are given back. */
void target_rest(const struct target *t);

/* store/frozen/<fp>/frozen.safetensors: the embedding, and the head where it is not tied. Written
 * once (temp + fsync + rename); an existing file is left alone. */
int MUSTCHECK target_export_frozen(const struct target *t, const char *store, struct errtext *e);
