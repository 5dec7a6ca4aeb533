/* The pool gives back what was put in, notices damage, continues at a checkpoint's
 * place over an old tail, and lets whole segments go by size only. What was erased is gone, also after a failure
 * under way, and hides nothing behind it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/pool.h"

/* ---- a disk that takes headers and nothing else ---- */

static bool failing;

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	errno = EIO;
	return failing && n != 40 ? -1 : syscall(SYS_pwrite64, fd, p, n, at);
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
	errno = EIO;
	return failing ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, n);
}

enum { SEG = 1000, MAX = 4000 };

static struct pool *open_pool(const char *dir)
{
	struct pool_options o = {.dir = dir, .segment_bytes = SEG, .max_bytes = MAX};
	struct pool *p = NULL;
	struct errtext e = {""};
	assert_int_equal(pool_open(&o, &p, &e), 0);
	return p;
}

static struct pool_ref put(struct pool *p, int n, uint32_t len)
{
	uint8_t blob[2000];
	struct pool_ref ref;
	memset(blob, n, len);
	assert_int_equal(pool_append(p, n % 3, n, 100 + n, blob, len, &ref), 0);
	return ref;
}

static void check(struct pool *p, struct pool_ref ref, int n)
{
	struct buf b = BUF_INIT(0);
	assert_int_equal(pool_read(p, ref, &b), 0);
	assert_int_equal(b.len, ref.len);
	for (size_t i = 0; i < b.len; i++)
		assert_int_equal(b.data[i], (uint8_t)n);
	buf_done(&b);
}

/* Records of mixed size, one larger than a segment: all there, segments ascending. */
static void test_back(void **state)
{
	char dir[256];
	struct pool_ref ref[12];
	(void)state;
	tw_temp_dir(dir);
	struct pool *p = open_pool(dir);
	for (int i = 0; i < 12; i++)
		ref[i] = put(p, i, i == 5 ? 1500 : 100 + 40 * (uint32_t)i);
	for (int i = 11; i >= 0; i--)
		check(p, ref[i], i);
	assert_true(ref[11].segment > ref[0].segment);
	assert_int_equal(pool_sync(p), 0);
	pool_close(p);
	p = open_pool(dir); /* another process */
	check(p, ref[5], 5);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* A flipped byte anywhere in an entry is -EIO, never wrong data. */
static void test_damage(void **state)
{
	char dir[256], path[300];
	struct buf b = BUF_INIT(0);
	(void)state;
	tw_temp_dir(dir);
	struct pool *p = open_pool(dir);
	struct pool_ref ref = put(p, 1, 60);
	(void)snprintf(path, sizeof path, "%s/00000000.seg", dir);
	for (long at = 0; at < 40 + 60; at++) {
		FILE *f = fopen(path, "r+b");
		assert_non_null(f);
		(void)fseek(f, at, SEEK_SET);
		int c = fgetc(f);
		(void)fseek(f, at, SEEK_SET);
		(void)fputc(c ^ 0x10, f);
		(void)fclose(f);
		int r = pool_read(p, ref, &b);
		bool head = at >= 8 && at < 24; /* partition, padding and offset: pool_read does not know them */
		assert_int_equal(r, head ? 0 : -EIO);
		f = fopen(path, "r+b");
		(void)fseek(f, at, SEEK_SET);
		(void)fputc(c, f);
		(void)fclose(f);
	}
	check(p, ref, 1);
	buf_done(&b);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* After a crash: rewound to a checkpoint's place, the old tail is offered one by one, and only in its order. */
static void test_tail(void **state)
{
	char dir[256];
	struct buf b = BUF_INIT(0);
	struct pool_ref ref[10], again;
	int64_t when = 0;
	(void)state;
	tw_temp_dir(dir);
	struct pool *p = open_pool(dir);
	for (int i = 0; i < 4; i++)
		ref[i] = put(p, i, 200);
	struct pool_where w = pool_where(p);
	for (int i = 4; i < 10; i++)
		ref[i] = put(p, i, 200);
	assert_int_equal(pool_peek(p, 1, 10, &b, &when), -ENOENT); /* nothing lies behind the end */
	pool_close(p);
	p = open_pool(dir);
	pool_rewind(p, w);
	for (int i = 4; i < 10; i++) {
		assert_int_equal(pool_peek(p, (i + 1) % 3, i, &b, &when), -ENOENT);
		assert_int_equal(pool_peek(p, i % 3, i + 1, &b, &when), -ENOENT);
		assert_int_equal(pool_peek(p, i % 3, i, &b, &when), 0);
		assert_int_equal(b.len, 200);
		assert_int_equal(when, 100 + i);
		assert_int_equal(pool_append(p, i % 3, i, when, b.data, (uint32_t)b.len, &again), 0);
		assert_memory_equal(&again, &ref[i], sizeof again);
	}
	buf_done(&b);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* Past the size the oldest segment is forgotten; its file stays until no checkpoint needs it. */
static void test_shrink(void **state)
{
	char dir[256], path[300];
	struct buf b = BUF_INIT(0);
	(void)state;
	tw_temp_dir(dir);
	struct pool *p = open_pool(dir);
	struct pool_ref first = put(p, 1, 300);
	int shrunk = 0;
	for (int i = 0; i < 40; i++) {
		put(p, 2, 300);
		while (pool_shrink(p))
			shrunk++;
		assert_true(pool_bytes(p) <= MAX + SEG);
	}
	assert_true(shrunk > 5);
	assert_int_equal(pool_where(p).first, shrunk);
	check(p, first, 1); /* the file is still there */
	(void)snprintf(path, sizeof path, "%s/%08u.seg", dir, pool_where(p).first - 2); /* as if killed in the middle of deleting: what is older goes all the same */
	assert_int_equal(unlink(path), 0);
	pool_delete_below(p, pool_where(p).first);
	for (uint32_t s = 0; s < pool_where(p).first; s++) {
		(void)snprintf(path, sizeof path, "%s/%08u.seg", dir, s);
		assert_int_equal(access(path, F_OK), -1);
	}
	(void)snprintf(path, sizeof path, "%s/%08u.seg", dir, pool_where(p).first);
	assert_int_equal(access(path, F_OK), 0);
	buf_done(&b);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

static bool none(void *arg, const void *blob, uint32_t len)
{
	(void)arg, (void)blob, (void)len;
	return false;
}

static bool is_byte(void *arg, const void *blob, uint32_t len)
{
	return len && *(const uint8_t *)blob == *(const uint8_t *)arg;
}

static int count(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref)
{
	(void)partition, (void)offset, (void)blob, (void)len, (void)ref;
	++*(int *)arg;
	return 0;
}

/* Erasing leaves nothing of what a crash left behind the entries either, and what is last in a segment may be what goes. */
static void test_erase(void **state)
{
	char dir[256], path[300];
	uint8_t wanted = 3;
	uint64_t n, bytes;
	int seen = 0;
	(void)state;
	tw_temp_dir(dir);
	_Atomic uint64_t beats = 0;
	struct pool_options o = {.dir = dir, .segment_bytes = SEG, .max_bytes = MAX, .beats = &beats};
	struct errtext e = {""};
	struct pool *p = open_pool(dir);
	(void)put(p, 1, 300);
	struct pool_where w = pool_where(p);
	(void)put(p, 9, 500); /* these come again as something smaller: the end of 9 and all of 10 are left */
	(void)put(p, 10, 400);
	pool_close(p);
	assert_int_equal(pool_open(&o, &p, &e), 0);
	pool_rewind(p, w);
	struct buf b = BUF_INIT(0);
	int64_t time_s;
	assert_int_equal(pool_peek(p, 0, 9, &b, &time_s), 0);
	struct pool_ref two = put(p, 2, 100), three = put(p, 3, 100);
	assert_int_equal(two.segment, 0);
	assert_int_equal(pool_erase_if(p, none, NULL, &n, &bytes), 0);
	assert_int_equal(n, 0);
	assert_true(beats >= 3);
	for (int s = 0; s < 2; s++) {
		struct fs_map m = {0};
		(void)snprintf(path, sizeof path, "%s/%08d.seg", dir, s);
		if (s) {
			assert_int_equal(access(path, F_OK), -1);
			continue;
		}
		assert_int_equal(fs_map(path, &m), 0);
		assert_int_equal(m.len, pool_where(p).offset);
		fs_unmap(&m);
	}
	assert_int_equal(pool_erase_if(p, is_byte, &wanted, &n, &bytes), 0);
	assert_int_equal(n, 1);
	assert_int_equal(bytes, 100);
	assert_int_equal(pool_read(p, three, &b), -EIO);
	(void)put(p, 4, 800); /* the next segment: three is the last of its own */
	check(p, two, 2);
	pool_close(p);
	p = open_pool(dir);
	assert_int_equal(pool_scan(p, count, &seen), 0);
	assert_int_equal(seen, 3);
	buf_done(&b);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* An entry whose bytes could not be erased is no erased one: it goes the next time. */
static void test_erase_again(void **state)
{
	char dir[256], path[300];
	uint64_t n;
	struct fs_map m = {0};
	(void)state;
	tw_temp_dir(dir);
	struct pool *p = open_pool(dir);
	(void)put(p, 1, 100);
	(void)put(p, 7, 100);
	failing = true;
	assert_int_equal(pool_erase_older(p, 105, &n), -EIO);
	failing = false;
	assert_int_equal(pool_erase_older(p, 105, &n), 0);
	assert_int_equal(n, 1);
	(void)snprintf(path, sizeof path, "%s/00000000.seg", dir);
	assert_int_equal(fs_map(path, &m), 0);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(m.data[40 + i], 0);
		assert_int_equal(m.data[40 + 100 + 40 + i], 7);
	}
	fs_unmap(&m);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* Whole segments that were erased, and those that begin so, hide nothing behind them. */
static void test_scan_past_erased(void **state)
{
	char dir[256];
	uint64_t n;
	int seen = 0;
	(void)state;
	tw_temp_dir(dir);
	struct pool *p = open_pool(dir);
	for (int i = 0; i < 10; i++)
		(void)put(p, i, 400); /* two a segment */
	assert_int_equal(pool_erase_older(p, 105, &n), 0);
	assert_int_equal(n, 5);
	struct pool_where w = pool_where(p);
	pool_close(p);
	p = open_pool(dir);
	assert_int_equal(pool_scan(p, count, &seen), 0);
	assert_int_equal(seen, 5);
	assert_int_equal(pool_where(p).segment, w.segment);
	assert_int_equal(pool_where(p).offset, w.offset);
	pool_close(p);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_back), cmocka_unit_test(test_damage), cmocka_unit_test(test_tail), cmocka_unit_test(test_erase),
					   cmocka_unit_test(test_erase_again), cmocka_unit_test(test_scan_past_erased), cmocka_unit_test(test_shrink)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
