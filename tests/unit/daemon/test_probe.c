/* Probes against their references: the same is the same, rounding is nothing, features of another size or place and another accept
 * length have moved, numbers that are not there have too, and what cannot be compared is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/act_probe.h"

static const struct probe_rules rules = {.features = 0.02, .al = 0.1};

/* Two probes; accepted of 20 rounds each, the third boundary's numbers moved by `off` of their size. */
static json_t *answer(int accepted, double off)
{
	json_t *list = json_array();

	for (int i = 0; i < 2; i++) {
		json_t *features = json_array();

		for (int b = 0; b < 3; b++)
			(void)json_array_append_new(features, json_pack("{s:f,s:[f,f,f,f]}", "rms", 5.0 + b, "projections", 3.0, -4.0 + (b == 2 ? off * 7 : 0), 1.0, 6.0));
		(void)json_array_append_new(list, json_pack("{s:i,s:i,s:i,s:o}", "rounds", 20, "proposed", 60, "accepted", accepted, "features", features));
	}
	return json_pack("{s:i,s:i,s:o}", "version", 1, "k", 3, "probes", list);
}

static bool moved(json_t *seen, const char *word)
{
	json_t *reference = answer(10, 0);
	char text[200];
	bool is = false;

	assert_int_equal(probe_compare(&rules, reference, seen, &is, text, sizeof text), 0);
	if (!strstr(text, word))
		fail_msg("'%s' does not say '%s'", text, word);
	json_decref(reference);
	json_decref(seen);
	return is;
}

static void compared(void **state)
{
	json_t *j;

	(void)state;
	assert_false(moved(answer(10, 0), "1.500, reference 1.500"));
	assert_false(moved(answer(10, 0.001), "features within"));
	assert_false(moved(answer(12, 0), "1.600"));
	assert_true(moved(answer(5, 0), "1.250"));
	assert_true(moved(answer(15, 0), "1.750"));
	assert_true(moved(answer(10, 0.2), "boundary 3"));
	j = answer(10, 0);
	(void)json_object_set_new(json_array_get(json_object_get(json_array_get(json_object_get(j, "probes"), 0), "features"), 1), "rms", json_real(9));
	assert_true(moved(j, "boundary 2"));
	j = answer(10, 0);
	(void)json_object_set_new(json_array_get(json_object_get(j, "probes"), 0), "features", json_array()); /* they were not finite */
	assert_true(moved(j, "boundary 1"));
}

static void refused(void **state)
{
	json_t *reference = answer(10, 0), *fewer = answer(10, 0), *odd = answer(10, 0);
	char text[200];
	bool is = false;

	(void)state;
	(void)json_array_remove(json_object_get(fewer, "probes"), 1);
	(void)json_object_set_new(json_array_get(json_object_get(odd, "probes"), 0), "rounds", json_string("x"));
	assert_int_equal(probe_compare(&rules, reference, fewer, &is, text, sizeof text), -EINVAL);
	assert_int_equal(probe_compare(&rules, reference, odd, &is, text, sizeof text), -EINVAL);
	assert_int_equal(probe_compare(&rules, reference, NULL, &is, text, sizeof text), -EINVAL);
	json_decref(reference);
	json_decref(fewer);
	json_decref(odd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(compared), cmocka_unit_test(refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
