/* What each kind of payload costs and saves, on recorded requests.
 *
 *   bench_payload RECORDS OUT [MAX]
 *
 * RECORDS: a folder of record files (redraft-learn export-records). Each is written again in every kind into
 * OUT/<kind>, for equal training (payload.py), and read back. A line of JSON a kind: bytes a row of features and of the whole
 * record, processor time of encoding and decoding a row (the best of five rounds of a record, median over the records), the
 * root mean square error relative to the row, and how large the same record is without last_hidden.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "daemon/base/fs.h"
#include "schemas/record.h"

enum { KINDS = 4, ROUNDS = 5 };
static const char *const name[KINDS] = {"bf16", "planes", "fp8", "int8"};

struct sum {
	double bytes, bare, rows, error, power;
	double *encode, *decode;
	int n;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_payload: %s\n", what);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int read_all(const char *path, struct buf *b)
{
	static uint8_t room[RECORD_MAX_BYTES + 1];
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(room, 1, sizeof room, f) : 0;
	if (f)
		(void)fclose(f);
	return n ? buf_append(b, room, n) : -1;
}

static float widen(uint16_t h)
{
	union {
		uint32_t u;
		float f;
	} x = {.u = (uint32_t)h << 16};
	return x.f;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* r (bf16) in one kind: its bytes into out, times and errors into s. */
static void measure(const struct trace_record *in, int kind, struct buf *out, struct sum *s)
{
	struct trace_record r = *in, got;
	struct buf bare = BUF_INIT(0);
	double encode = 1e300, decode = 1e300;
	r.payload = (enum record_payload)kind;
	for (int i = 0; i < ROUNDS; i++) {
		double t0 = now();
		out->len = 0;
		if (record_encode(out, &r))
			die("a record is too large");
		double t1 = now();
		if (record_decode(out->data, out->len, 0, &got, NULL))
			die("what was written cannot be read");
		double t2 = now();
		encode = fmin(encode, t1 - t0);
		decode = fmin(decode, t2 - t1);
		if (i + 1 < ROUNDS)
			record_done(&got);
	}
	for (size_t i = 0; i < (size_t)r.T * 3 * (size_t)r.H_t; i++) {
		double x = (double)widen(r.features[i]), y = (double)widen(got.features[i]);
		s->error += (x - y) * (x - y);
		s->power += x * x;
	}
	record_done(&got);
	r.last_hidden = NULL;
	if (record_encode(&bare, &r))
		die("a record is too large");
	s->bare += (double)bare.len;
	buf_done(&bare);
	s->bytes += (double)out->len;
	s->rows += r.T;
	s->encode[s->n] = encode / r.T;
	s->decode[s->n++] = decode / r.T;
}

int main(int argc, char **argv)
{
	struct sum s[KINDS] = {{0}};
	struct dirent **files;
	char path[4096];
	int n = argc >= 3 ? scandir(argv[1], &files, NULL, alphasort) : -1, most = argc > 3 ? atoi(argv[3]) : 1 << 20;
	if (n < 0)
		die("usage: bench_payload RECORDS OUT [MAX]");
	for (int k = 0; k < KINDS; k++) {
		s[k].encode = calloc((size_t)n, sizeof(double));
		s[k].decode = calloc((size_t)n, sizeof(double));
		(void)snprintf(path, sizeof path, "%s/%s", argv[2], name[k]);
		if (!s[k].encode || !s[k].decode || fs_mkdirs(path))
			die("cannot make the output folders");
	}
	for (int i = 0; i < n && s[0].n < most; i++) {
		struct trace_record r;
		struct buf in = BUF_INIT(0), out = BUF_INIT(0);
		(void)snprintf(path, sizeof path, "%s/%s", argv[1], files[i]->d_name);
		if (files[i]->d_name[0] == '.' || read_all(path, &in) || record_decode(in.data, in.len, 0, &r, NULL))
			continue;
		for (int k = 0; k < KINDS; k++) {
			measure(&r, k, &out, &s[k]);
			(void)snprintf(path, sizeof path, "%s/%s/%s", argv[2], name[k], files[i]->d_name);
			if (fs_write_atomic(path, out.data, out.len))
				die("cannot write a record");
		}
		record_done(&r);
		buf_done(&in);
		buf_done(&out);
	}
	for (int k = 0; k < KINDS && s[0].n; k++) {
		qsort(s[k].encode, (size_t)s[k].n, sizeof(double), by_value);
		qsort(s[k].decode, (size_t)s[k].n, sizeof(double), by_value);
		printf("{\"kind\":\"%s\",\"records\":%d,\"rows\":%.0f,\"bytes_row\":%.1f,\"bytes_row_without_hidden\":%.1f,\"encode_us_row\":%.2f,\"decode_us_row\":%.2f,"
		       "\"rms_error\":%.5f}\n", name[k], s[k].n, s[k].rows, s[k].bytes / s[k].rows, s[k].bare / s[k].rows, s[k].encode[s[k].n / 2], s[k].decode[s[k].n / 2],
		       sqrt(s[k].error / s[k].power));
	}
	return 0;
}
