/* What redraft-serve can be told: its configuration, and the one table from which parser, --help and manual come. */
#pragma once
#include "daemon/base/conf.h"

struct conf {
	char *model, *model_name, *family, *listen, *listen_unix, *api_keys_file, *run_dir, *store;
	int64_t threads, max_seqs, max_queue, max_context, kv_tokens, prefill_chunk, draft_k, draft_nodes;
	int device, device_math, device_graphs, isa, log_level, draft_mode, payload;
	char *brokers, *extra, *domains, *tenant_key_file;
	double sample;
	int64_t topk, ring_mb, queue_mb;
	bool prompt_hidden;
	int64_t deadline_ms, bodies_mb;
	double drain_s, slowdown;
	int prefix;
};

extern const struct conf_program serve_program;
