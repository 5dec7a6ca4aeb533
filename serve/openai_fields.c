/* The sentences are all of one form: what it is and what it must be. */
#include "serve/openai_fields.h"

int field_no_memory(struct openai_error *e)
{
	return openai_fail(e, 503, "", "overloaded", "The server is out of memory; try again.");
}

int field_unsupported(struct openai_error *e, const char *name, const char *instead)
{
	return openai_fail(e, 400, name, "unsupported_parameter", "%s is not supported by this server: %s.", name, instead);
}

const json_t *field_get(const json_t *body, const char *name)
{
	const json_t *v = json_object_get(body, name);

	return json_is_null(v) ? NULL : v;
}

int field_wrong(struct openai_error *e, const char *name, const char *must)
{
	return openai_fail(e, 400, name, "invalid_value", "%s must be %s.", name, must);
}

int field_bool(const json_t *body, const char *name, bool *ret, struct openai_error *e)
{
	const json_t *v = field_get(body, name);

	if (v && !json_is_boolean(v))
		return field_wrong(e, name, "true or false");
	if (v)
		*ret = json_is_true(v);
	return 0;
}

int field_int(const json_t *body, const char *name, long long min, long long max, long long *ret, struct openai_error *e)
{
	const json_t *v = field_get(body, name);

	if (!v)
		return 0;
	if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
		return openai_fail(e, 400, name, "invalid_value", "%s must be an integer from %lld to %lld.", name, min, max);
	*ret = json_integer_value(v);
	return 0;
}

int field_real(const json_t *body, const char *name, double min, double max, float *ret, struct openai_error *e)
{
	const json_t *v = field_get(body, name);
	double x;

	if (!v)
		return 0;
	x = json_number_value(v);
	if (!json_is_number(v) || !(x >= min && x <= max))
		return openai_fail(e, 400, name, "invalid_value", "%s must be a number from %g to %g.", name, min, max);
	*ret = (float)x;
	return 0;
}
