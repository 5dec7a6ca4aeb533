/* Choosing a path by name and by CPU, and device memory. */
#include <unistd.h>
#include "kt.h"

/* A machine of as many processors as the test says. */
static long processors;

long sysconf(int name)
{
	return name == _SC_NPROCESSORS_ONLN ? processors : name == _SC_PAGESIZE ? 4096 : -1;
}

static void threads_for_all(void **state)
{
	struct dev *d = NULL;
	(void)state;
	processors = 8;
	assert_int_equal(dev_all_threads(1), 8);
	assert_int_equal(dev_all_threads(3), 2);
	assert_int_equal(dev_all_threads(9), 1);
	processors = 384;
	assert_int_equal(dev_all_threads(1), DEV_MAX_THREADS);
	assert_int_equal(dev_cpu_new(dev_all_threads(1), ISA_PORTABLE, &d), 0); /* a device takes as many */
	assert_null(dev_free(d));
	assert_int_equal(dev_cpu_new(DEV_MAX_THREADS + 1, ISA_PORTABLE, &d), -EINVAL);
}

static void names(void **state)
{
	(void)state;
	for (int i = ISA_AUTO; i < ISA_END; i++) {
		enum dev_isa isa = ISA_AUTO;
		assert_int_equal(dev_isa_parse(dev_isa_name((enum dev_isa)i), &isa), 0);
		assert_int_equal(isa, i);
	}
	enum dev_isa isa = ISA_AVX2;
	assert_int_equal(dev_isa_parse("avx", &isa), -EINVAL);
	assert_int_equal(isa, ISA_AVX2);
}

static void automatic(void **state)
{
	(void)state;
	struct dev *d = NULL;
	assert_int_equal(dev_cpu_new(2, ISA_AUTO, &d), 0);
	assert_int_not_equal(d->isa, ISA_AUTO);
	print_message("auto is %s here\n", dev_isa_name(d->isa));
	dev_set_threads(d, 0);
	assert_int_equal(d->n_threads, 1);
	dev_set_threads(d, 9);
	assert_int_equal(d->n_threads, 2);
	assert_null(dev_free(d));
	assert_null(dev_free(NULL));
	assert_int_equal(dev_cpu_new(0, ISA_PORTABLE, &d), -EINVAL);
}

static void memory(void **state)
{
	struct dev *d = kt_dev(state, 1);
	for (size_t n = 0; n < 5u << 20; n = n * 7 + 1) {
		uint8_t *p = d->ops->alloc(d, n), *s = d->ops->alloc_shared(d, n), *host = malloc(n + 1);
		assert_true(p && s && host);
		assert_int_equal((uintptr_t)p % 64, 0);
		memset(host, 1, n);
		assert_int_equal(d->ops->download(d, host, p, n), 0);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(host[i] | s[i], 0);
		memset(s, 1, n); /* shared: the host's too */
		assert_int_equal(d->ops->upload(d, p, s, n), 0);
		assert_int_equal(d->ops->download(d, host, p, n), 0);
		assert_memory_equal(host, s, n);
		assert_int_equal(d->ops->zero(d, p, n / 2), 0);
		assert_int_equal(d->ops->zero(d, s, n / 2), 0);
		assert_int_equal(d->ops->sync(d), 0);
		assert_int_equal(d->ops->download(d, host, p, n), 0);
		assert_memory_equal(host, s, n);
		d->ops->free(d, p);
		d->ops->free(d, s);
		free(host);
	}
	d->ops->free(d, NULL);
	assert_null(d->ops->alloc(d, SIZE_MAX - 4096));
	assert_true(strlen(d->error) > 0);
	char a[4] = "abc", b[4] = "", c[4] = "";
	assert_int_equal(d->ops->upload(d, b, a, 4), 0);
	assert_int_equal(d->ops->download(d, c, b, 4), 0);
	assert_string_equal(c, "abc");
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(automatic), cmocka_unit_test(threads_for_all), KT_TESTS(memory)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
