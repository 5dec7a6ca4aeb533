/* Reading one field of a request's body: absent or null leaves the default, a wrong type or value is
 * a sentence that names the field. Inside of openai_request; pure functions.
 */
#pragma once
#include "serve/openai_request.h"

const json_t *field_get(const json_t *body, const char *name); /* NULL when absent or null */
int field_wrong(struct openai_error *e, const char *name, const char *must);
int field_unsupported(struct openai_error *e, const char *name, const char *instead);
int field_bool(const json_t *body, const char *name, bool *ret, struct openai_error *e);
int field_int(const json_t *body, const char *name, long long min, long long max, long long *ret, struct openai_error *e);
int field_real(const json_t *body, const char *name, double min, double max, float *ret, struct openai_error *e);
int field_no_memory(struct openai_error *e);

/* openai_sampling.c: how tokens are drawn, and what is told of them. */
int openai_read_sampling(const struct openai_model *m, const json_t *body, bool chat, struct openai_request *q, struct openai_error *e);
