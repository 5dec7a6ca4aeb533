/* Room-internal: what a parsed GGUF file is made of, and how its blocks expand. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/fs.h"
#include "schemas/gguf.h"

struct gguf_name { /* into the mapping, not NUL-terminated */
	const char *p;
	size_t len;
};

struct gguf_kv {
	struct gguf_name key; /* first: sorted and searched by it */
	enum gguf_value type; /* of the value, or of the elements */
	bool is_array;
	uint64_t n; /* elements; 1 for a plain value */
	const uint8_t *data; /* first element; strings: at the length */
	const uint8_t **at; /* string arrays: each element; owned */
};

struct gguf_tensor {
	struct gguf_name name; /* first: sorted and searched by it */
	uint32_t type; /* enum gguf_type */
	uint64_t rows, cols;
	int n_dims;
	const uint8_t *data;
};

struct gguf {
	struct fs_map map;
	struct gguf_kv *kv;
	struct gguf_tensor *t;
	size_t n_kv, n_t;
};

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);
/* Values and bytes of one block; 0 = a type we do not read. */
size_t gguf_block_values(uint32_t type);
size_t gguf_block_bytes(uint32_t type);
const char *gguf_type_name(uint32_t type); /* "Q6_K"; "?" when unknown to us */
/* n values (whole blocks) to bf16, through f32, nearest even. */
void gguf_expand(uint32_t type, const uint8_t *src, size_t n, uint16_t *dst);
void gguf_expand_k(uint32_t type, const uint8_t *src, size_t n, uint16_t *dst); /* the 256-value kinds */
