/* Sampling parameters: temperature and filters, penalties, bias, seed, log-probabilities. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "serve/openai_fields.h"
#include "serve/tokenizer.h"

static int read_draw(const json_t *body, struct sampling *s, struct openai_error *e)
{
	long long top_k = 0, seed = 0;
	int r;

	if ((r = field_real(body, "temperature", 0, 2, &s->temperature, e)) < 0 || (r = field_real(body, "top_p", 0, 1, &s->top_p, e)) < 0 ||
	    (r = field_real(body, "min_p", 0, 1, &s->min_p, e)) < 0 || (r = field_int(body, "top_k", -1, 1 << 30, &top_k, e)) < 0 ||
	    (r = field_int(body, "seed", INT64_MIN, INT64_MAX, &seed, e)) < 0)
		return r;
	if (!(s->top_p > 0))
		return field_wrong(e, "top_p", "above 0");
	s->top_k = top_k > 0 ? (int)top_k : 0;
	s->seed = (uint64_t)seed;
	if (!field_get(body, "seed") && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
		s->seed = 0;
	return 0;
}

static int read_penalties(const json_t *body, struct sampling *s, struct openai_error *e)
{
	int r;

	if ((r = field_real(body, "presence_penalty", -2, 2, &s->presence, e)) < 0 ||
	    (r = field_real(body, "frequency_penalty", -2, 2, &s->frequency, e)) < 0 ||
	    (r = field_real(body, "repetition_penalty", 0, 10, &s->repetition, e)) < 0)
		return r;
	return s->repetition > 0 ? 0 : field_wrong(e, "repetition_penalty", "above 0");
}

/* "123" -> a token id; false when it is none. */
static bool read_id(const char *key, uint32_t below, uint32_t *ret)
{
	char *end;
	unsigned long x = strtoul(key, &end, 10);

	if (*key < '0' || *key > '9' || *end || strlen(key) > 10 || x >= below)
		return false;
	*ret = (uint32_t)x;
	return true;
}

static int by_id(const void *a, const void *b)
{
	const struct token_bias *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

static int read_bias(const struct openai_model *m, const json_t *body, struct openai_request *q, struct openai_error *e)
{
	const json_t *map = field_get(body, "logit_bias"), *v;
	uint32_t vocab = tokenizer_vocab(m->tokenizer);
	const char *key;
	int n = 0;

	if (!map)
		return 0;
	if (!json_is_object(map) || json_object_size(map) > ENGINE_MAX_BIAS)
		return openai_fail(e, 400, "logit_bias", "invalid_value", "logit_bias must be an object of at most %d token ids.", ENGINE_MAX_BIAS);
	q->bias = calloc(json_object_size(map) + 1, sizeof *q->bias);
	if (!q->bias)
		return field_no_memory(e);
	json_object_foreach((json_t *)map, key, v)
	{
		double x = json_number_value(v);
		if (!read_id(key, vocab, &q->bias[n].id))
			return openai_fail(e, 400, "logit_bias", "invalid_value", "logit_bias names '%.20s', which is not a token id below %u.", key, vocab);
		if (!json_is_number(v) || !(x >= -100 && x <= 100))
			return openai_fail(e, 400, "logit_bias", "invalid_value", "logit_bias for token %.10s must be a number from -100 to 100.", key);
		q->bias[n++].bias = (float)x;
	}
	qsort(q->bias, (size_t)n, sizeof *q->bias, by_id);
	for (int i = 1; i < n; i++)
		if (q->bias[i].id == q->bias[i - 1].id) /* "7" and "07" */
			return openai_fail(e, 400, "logit_bias", "invalid_value", "logit_bias names token %u twice.", q->bias[i].id);
	q->sampling.bias = q->bias;
	q->sampling.n_bias = n;
	return 0;
}

/* Chat: logprobs true and top_logprobs; completions: logprobs is their number. */
static int read_logprobs(const json_t *body, bool chat, struct openai_request *q, struct openai_error *e)
{
	long long top = -1;
	int r = chat ? field_bool(body, "logprobs", &q->logprobs, e) : field_int(body, "logprobs", 0, ENGINE_MAX_LOGPROBS, &top, e);

	if (r < 0)
		return r;
	if (!chat) {
		q->logprobs = top >= 0;
		q->top_logprobs = top > 0 ? (int)top : 0;
		return 0;
	}
	top = 0;
	if ((r = field_int(body, "top_logprobs", 0, ENGINE_MAX_LOGPROBS, &top, e)) < 0)
		return r;
	if (top > 0 && !q->logprobs)
		return openai_fail(e, 400, "top_logprobs", "invalid_value", "top_logprobs needs logprobs to be true.");
	q->top_logprobs = (int)top;
	return 0;
}

int openai_read_sampling(const struct openai_model *m, const json_t *body, bool chat, struct openai_request *q, struct openai_error *e)
{
	int r;

	q->sampling = (struct sampling){.temperature = 1, .top_p = 1, .repetition = 1};
	if ((r = read_draw(body, &q->sampling, e)) < 0 || (r = read_penalties(body, &q->sampling, e)) < 0 || (r = read_bias(m, body, q, e)) < 0)
		return r;
	return read_logprobs(body, chat, q, e);
}
