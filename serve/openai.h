/* The API that clients know: /v1/chat/completions, /v1/completions, /v1/models,
 * /tokenize, /detokenize, /health, /metrics, over http.h and engine.h.
 * Threads: the loop's; the engine's callbacks are carried over inside.
 */
#pragma once
#include "serve/openai_request.h"

struct loop;
struct http_request;
struct metrics;
struct front_metrics;
struct tap;
struct api_keys;
struct openai;

enum { OPENAI_MAX_DOMAINS = 16 };

/* The engine, as a table so that tests can stand in for it. */
struct openai_engine {
	int (*submit)(struct engine *g, const struct engine_request *r, uint64_t *ret_handle);
	void (*cancel)(struct engine *g, uint64_t handle);
	void (*status)(struct engine *g, struct engine_status *ret);
};
extern const struct openai_engine openai_real_engine;

struct openai_options { /* all borrowed */
	struct loop *loop;
	struct metrics *metrics;
	const char *model_name;
	const struct api_keys *keys; /* NULL: everybody may ask */
	const char *domains; /* "tools,code,chat" */
	int64_t deadline_ms; /* of a request that names none; 0 = none */
	uint8_t tenant_key[32];
	/* What is there once the model is loaded: calls NULL until openai_open. */
	const struct openai_engine *calls;
	struct engine *engine;
	struct tap *tap; /* or NULL */
	struct openai_model model;
};

int MUSTCHECK openai_new(const struct openai_options *o, struct openai **ret, struct errtext *e);
struct openai *openai_free(struct openai *o); /* the loop has stopped; http and then the engine were freed, in this order */
/* The model is loaded: from loading to ready. model.name is set by openai_new. */
void openai_open(struct openai *o, const struct openai_engine *calls, struct engine *engine, struct tap *tap, const struct openai_model *model);
void openai_handle(void *ctx, struct http_request *r); /* ctx: struct openai; http.h's handle and refusal */
size_t openai_refusal(void *ctx, int status, const char *sentence, char *out, size_t size);

/* Names that X-Redraft-Domain may take from now on, as domains above. -EINVAL with e: the old ones stand. */
int MUSTCHECK openai_set_domains(struct openai *o, const char *list, struct errtext *e);
int MUSTCHECK openai_check_domains(const char *list, struct errtext *e);

/* Stop taking requests (503); on_idle is called on the loop when none is left. */
void openai_drain(struct openai *o, void (*on_idle)(void *arg), void *arg);
void openai_cancel_all(struct openai *o);
int openai_running(const struct openai *o);
