/* A body becomes a request within its bounds, or a 4xx with one sentence; text becomes tool calls or stays text. The first
 * byte says for which endpoint. The model is the toy one with ChatML. */
#include <string.h>
#include <unistd.h>
#include "schemas/gguf.h"
#include "serve/chat.h"
#include "serve/tokenizer.h"
#include "serve/toolcall.h"
#include "tests/fuzz/fuzz.h"

enum { REQUEST_CONTEXT = 4096 };

static struct openai_model request_model;

static void request_setup(void)
{
	char path[64], cmd[160];
	struct tokenizer *tok;
	struct gguf *g;
	struct errtext e;

	if (request_model.name)
		return;
	(void)snprintf(path, sizeof path, "/tmp/redraft-fuzz-%d.gguf", (int)getpid());
	(void)snprintf(cmd, sizeof cmd, "python3 tests/fixtures/toy_model.py %s >/dev/null", path);
	FUZZ_CHECK(system(cmd) == 0 && gguf_open(path, &g, &e) == 0 && tokenizer_load(g, &tok, &e) == 0);
	gguf_free(g);
	unlink(path);
	request_model = (struct openai_model){.tokenizer = tok, .name = "toy", .max_context = REQUEST_CONTEXT};
	FUZZ_CHECK(chat_select(NULL, 0, "chatml", &request_model.chat, &e) == 0);
}

static void check_request(const struct openai_request *q)
{
	uint32_t vocab = tokenizer_vocab(request_model.tokenizer);

	FUZZ_CHECK(q->n >= 1 && q->n <= OPENAI_MAX_N && q->n_prompts >= 1 && q->n_prompts <= OPENAI_MAX_PROMPTS);
	FUZZ_CHECK(q->n * q->n_prompts <= OPENAI_MAX_CHOICES && q->n_stops >= 0 && q->n_stops <= TEXTOUT_MAX_STOPS);
	for (int i = 0; i < q->n_prompts; i++) {
		FUZZ_CHECK(q->prompts[i].n >= 1 && q->prompts[i].n + (q->max_tokens ? q->max_tokens : 1) <= REQUEST_CONTEXT);
		for (int k = 0; k < q->prompts[i].n; k++)
			FUZZ_CHECK(q->prompts[i].ids[k] < vocab);
	}
	FUZZ_CHECK(q->sampling.temperature >= 0 && q->sampling.temperature <= 2 && q->sampling.top_p > 0 && q->sampling.top_p <= 1);
	FUZZ_CHECK(q->sampling.n_bias >= 0 && q->sampling.n_bias <= ENGINE_MAX_BIAS && q->sampling.repetition > 0);
	for (int i = 0; i < q->sampling.n_bias; i++)
		FUZZ_CHECK(q->sampling.bias[i].id < vocab && (i == 0 || q->sampling.bias[i].id > q->sampling.bias[i - 1].id));
	FUZZ_CHECK(q->top_logprobs >= 0 && q->top_logprobs <= ENGINE_MAX_LOGPROBS && (q->logprobs || q->top_logprobs == 0));
}

FUZZ(request)
{
	struct openai_error e = {0};
	struct openai_request q;
	json_t *j = NULL, *calls;
	size_t before;

	request_setup();
	if (size < 1)
		return 0;
	bool chat = data[0] % 2;
	const char *body = (const char *)data + 1;
	int r = openai_parse_json(body, size - 1, &j, &e);
	if (r == 0)
		r = openai_request_parse(&request_model, j, chat, &q, &e);
	if (r == 0) {
		check_request(&q);
		openai_request_done(&q);
	} else {
		json_t *said = openai_error_json(&e);
		FUZZ_CHECK(e.status >= 400 && e.status < 500 && *e.message && said);
		json_decref(said);
	}
	json_decref(j);
	calls = toolcall_find(body, size - 1, data[0] & 2, "seed", &before);
	FUZZ_CHECK(!calls || (json_array_size(calls) > 0 && before <= size - 1));
	json_decref(calls);
	struct toolcall_watch w = toolcall_watch_start("<tool_call>[{\"name\": \"");
	toolcall_watch(&w, body, size - 1);
	return 0;
}
