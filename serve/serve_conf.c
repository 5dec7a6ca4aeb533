/* The table of redraft-serve's configuration (serve_conf.h). */
#include "serve/serve_conf.h"
#include <stddef.h>
#include "daemon/base/address.h"
#include "kernels/dev.h"
#include "schemas/record.h"
#include "serve/engine.h"
#include "serve/openai.h"
#include "serve/tap_produce.h"

#define AT(field) offsetof(struct conf, field)

static const struct conf_entry entries[] = {
	{"model", CONF_STRING, AT(model), NULL, 0, 0, NULL, false, "", "The target: a GGUF file or a Hugging Face folder of a Llama, Qwen2 or Qwen3 model."},
	{"model_name", CONF_STRING, AT(model_name), "", 0, 0, NULL, false, "", "Name that clients use; empty takes the file's name."},
	{"family", CONF_STRING, AT(family), "", 0, 0, NULL, false, "", "Chat template family (smollm2, chatml); empty goes by the file's template."},
	{"listen", CONF_STRING, AT(listen), "127.0.0.1:8080", 0, 0, NULL, false, "", "Address and port of the HTTP server; empty for none."},
	{"listen_unix", CONF_STRING, AT(listen_unix), "", 0, 0, NULL, false, "", "Path of a UNIX socket that serves HTTP too; empty for none."},
	{"api_keys_file", CONF_STRING, AT(api_keys_file), "", 0, 0, NULL, false, "", "Bearer keys, one a line, read again when the file changes; empty takes the credential api_keys, else lets everybody ask."},
	{"deadline_ms", CONF_INT, AT(deadline_ms), "0", 0, 86400000, NULL, false, "ms", "Time a request may take that names none in X-Redraft-Deadline-Ms; 0 is no limit."},
	{"drain_s", CONF_REAL, AT(drain_s), "10", 0, 3600, NULL, true, "s", "Time that running requests have to end after SIGTERM."},
	{"bodies_mb", CONF_INT, AT(bodies_mb), "256", 8, 65536, NULL, false, "MiB", "Request bodies held at a time, all together, beyond the first 64 KiB of each."},
	{"run_dir", CONF_STRING, AT(run_dir), "/run/redraft/serve", 0, 0, NULL, false, "", "Folder of the control and status sockets."},
	{"store", CONF_STRING, AT(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "The version store."},
	{"device", CONF_ENUM, AT(device), "auto", 0, 0, "auto|cpu|cuda", false, "", "What computes; auto takes a GPU where one answers, and the log says why not."},
	{"device_math", CONF_ENUM, AT(device_math), "strict", 0, 0, "strict|fast", false, "",
	 "On a GPU: strict gives a drafted answer the bits of a plain one, fast gives them up for faster prefill (kernels/cuda/README.md says by how much)."},
	{"device_graphs", CONF_ENUM, AT(device_graphs), "auto", 0, 0, "auto|off", false, "",
	 "On a GPU: auto launches what repeats from round to round as CUDA graphs, and launches plainly, saying why, what cannot be captured."},
	{"threads", CONF_INT, AT(threads), "0", 0, DEV_MAX_THREADS, NULL, false, "", "Compute threads; 0 takes one for each core."},
	{"isa", CONF_ENUM, AT(isa), "auto", 0, 0, "auto|portable|avx2|avx512|avx512-bf16", false, "", "Which code path the kernels take."},
	{"max_seqs", CONF_INT, AT(max_seqs), "8", 1, ENGINE_MAX_SEQS, NULL, false, "", "Requests decoded together."},
	{"max_queue", CONF_INT, AT(max_queue), "64", 1, 65536, NULL, false, "", "Requests that may wait; more are answered 429."},
	{"max_context", CONF_INT, AT(max_context), "0", 0, 1 << 20, NULL, false, "tok", "Prompt and answer of one request together, at most kv_tokens; 0 takes what the model was trained for."},
	{"kv_tokens", CONF_INT, AT(kv_tokens), "0", 0, 1 << 28, NULL, false, "tok",
	 "Keys and values held for requests and kept prefixes; 0 takes max_seqs x 4096, at most an eighth of the memory."},
	{"prefix_cache", CONF_ENUM, AT(prefix), "tenant", 0, 0, "off|tenant|all", false, "", "Whose prefixes are reused: a tenant's own, or anybody's (which shows in the latency)."},
	{"prefill_chunk", CONF_INT, AT(prefill_chunk), "128", 1, 8192, NULL, false, "tok", "Prompt tokens processed a round, at most."},
	{"slowdown", CONF_REAL, AT(slowdown), "2", 1, 100, NULL, false, "", "How much longer a round that reads prompts too may take than one in which all who are here decode."},
	{"draft_k", CONF_INT, AT(draft_k), "5", 1, ENGINE_MAX_K, NULL, true, "tok", "Most tokens proposed for one path, a round."},
	{"draft.mode", CONF_ENUM, AT(draft_mode), "auto", 0, 0, "chain|tree|auto|off", true, "", "What is proposed: one path, a tree where the draft is unsure, what pays as measured, or nothing."},
	{"draft.nodes", CONF_INT, AT(draft_nodes), "12", 2, ENGINE_MAX_NODES, NULL, false, "tok", "Most tokens of a tree."},
	{"capture.brokers", CONF_STRING, AT(brokers), "", 0, 0, NULL, false, "", "Kafka bootstrap servers; empty turns capture off."},
	{"capture.sample", CONF_REAL, AT(sample), "1.0", 0, 1, NULL, true, "", "Share of conversations that are traced."},
	{"capture.topk", CONF_INT, AT(topk), "64", 1, 256, NULL, false, "", "Entries of the target's distribution kept a token."},
	{"capture.payload", CONF_ENUM, AT(payload), "planes", 0, 0, RECORD_PAYLOADS, false, "", "How features travel: planes is lossless and 30 % smaller than bf16, the others round to 8 bits (schemas/record.md)."},
	{"capture.prompt_hidden", CONF_BOOL, AT(prompt_hidden), "on", 0, 0, NULL, false, "", "Hidden states of prompt tokens travel, so that prompts are learned from."},
	{"capture.ring_mb", CONF_INT, AT(ring_mb), "32", 1, 65536, NULL, false, "MiB", "Memory between engine and tap."},
	{"capture.queue_mb", CONF_INT, AT(queue_mb), "64", 1, 65536, NULL, false, "MiB", "Records waiting for the broker."},
	{"capture.conf", CONF_STRING, AT(extra), "", 0, 0, NULL, false, "", "More librdkafka settings: k=v,k=v."},
	{"domains", CONF_STRING, AT(domains), "tools,code,chat,other", 0, 0, NULL, true, "", "Labels that X-Redraft-Domain may name, at most 16."},
	{"tenant_key_file", CONF_STRING, AT(tenant_key_file), "", 0, 0, NULL, false, "", "Secret that API keys and conversations are hashed with; empty takes the credential tenant_key, else makes one for this run."},
	{"log_level", CONF_ENUM, AT(log_level), "info", 0, 0, "error|warn|info|debug", true, "", "What is logged."},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};

static int check(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	struct sockaddr_un a;

	if (*c->listen && !address_is_tcp(c->listen))
		return errtext_set(e, -EINVAL, "listen '%.100s' must be host:port, such as 127.0.0.1:8080", c->listen);
	if (*c->listen_unix && address_unix(c->listen_unix, &a))
		return errtext_set(e, -EINVAL, "listen_unix '%.120s' is longer than the %zu bytes a socket's path may have", c->listen_unix, sizeof a.sun_path - 1);
	if (*c->extra) {
		int r = tap_producer_check(c->extra, e);

		if (r < 0)
			return r;
	}
	return openai_check_domains(c->domains, e);
}

const struct conf_program serve_program = {
	.name = "redraft-serve", .summary = "Serves a model over the OpenAI API, drafting with the live version and streaming traces to Kafka.",
	.entries = entries, .struct_size = sizeof(struct conf), .check = check};
