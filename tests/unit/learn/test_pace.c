/* The pace asks a status socket (here a made-up one) and does as the governor says: pauses when the tail there is
 * too long, goes on when it is short again or nobody answers; and what the device computes while it is stretched
 * leaves the time free that it should, by short sleeps, with the beats going on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/rpc.h"
#include "kernels/ops.h"
#include "learn/pace.h"
#include "tests/unit/learn/run_for.h"

static double round_ms;
static bool mute;
static struct rpc_call *held[8]; /* asked while mute */
static int n_held;
static long rounds;

static void on_status(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)ctx, (void)params;
	if (mute && n_held < 8) {
		held[n_held++] = call;
		return;
	}
	rounds += 100;
	rpc_reply(call, json_pack("{s:i,s:{s:I,s:I},s:{s:f,s:f}}", "running", 1, "tokens", "rounds", (json_int_t)rounds, "generated", (json_int_t)rounds, "latency",
				  "round_ms_p95", 1.0, "recent_ms_p95", round_ms));
}

static const struct rpc_method methods[] = {{"io.redraft.Serve.Status", RPC_STATUS, on_status}, {NULL, RPC_STATUS, NULL}};

static bool in_state(struct pace *p, const char *want)
{
	json_t *j = pace_status(p);
	bool same = strcmp(json_string_value(json_object_get(j, "state")), want) == 0;
	json_decref(j);
	return same;
}

static void wait_for(struct loop *l, struct pace *p, const char *want)
{
	for (int i = 0; i < 100 && !in_state(p, want); i++) {
		pace_stretch(p, true);
		pace_stretch(p, false);
		run_for(l, 20000);
	}
	if (!in_state(p, want))
		print_message("never %s: %s\n", want, json_dumps(pace_status(p), 0));
	assert_true(in_state(p, want));
}

/* At a quarter of the time, what took t takes about 4 t; results are not touched. */
static void stretched(struct loop *l, struct pace *p)
{
	enum { N = 1 << 20, TIMES = 40 };
	struct dev *d;
	uint64_t took[2], computed[2];
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	pace_attach(p, d);
	real *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y);
	for (int k = 0; k < 2; k++) {
		round_ms = k ? 100 : 10;
		wait_for(l, p, k ? "paused" : "full");
		uint64_t t0 = clock_us(), cpu0 = clock_thread_us(), beats = d->beats;
		pace_stretch(p, true);
		for (int i = 0; i < TIMES; i++)
			assert_int_equal(d->ops->axpby(d, y, 1, x, 1, N), 0);
		pace_stretch(p, false);
		took[k] = clock_us() - t0;
		computed[k] = clock_thread_us() - cpu0;
		assert_int_equal(d->beats - beats, TIMES);
	}
	print_message("computed %llu us in %llu us, at a quarter %llu us in %llu us\n", (unsigned long long)computed[0], (unsigned long long)took[0],
		      (unsigned long long)computed[1], (unsigned long long)took[1]);
	assert_true(took[1] > 2 * computed[1]); /* however busy the machine is */
	free(x);
	free(y);
	dev_free(d);
}

static void test_pace(void **unused)
{
	char dir[64] = "/tmp/redraft-pace-XXXXXX", path[100];
	struct loop *l;
	struct rpc_server *s;
	struct pace *p;
	struct errtext e = {""};
	const struct governor_options o = {.tpot_p95_ms = 30, .least = 0.25, .max_rows = 1024};
	(void)unused;
	assert_non_null(mkdtemp(dir));
	(void)snprintf(path, sizeof path, "%s/status.sock", dir);
	assert_int_equal(loop_new(&l), 0);
	assert_int_equal(rpc_server_new(l, dir, methods, "interface io.redraft.Serve\nmethod Status() -> ()\n", NULL, &s, &e), 0);
	assert_int_equal(pace_new(l, path, 5000, &o, &p), 0);
	round_ms = 10;
	run_for(l, 100000);
	assert_true(rounds > 0 && pace_may_step(p));
	round_ms = 100;
	wait_for(l, p, "paused");
	assert_false(pace_may_step(p));
	round_ms = 10;
	wait_for(l, p, "stretched");
	wait_for(l, p, "full");
	assert_true(pace_may_step(p));
	round_ms = 100;
	wait_for(l, p, "paused");
	stretched(l, p);
	mute = true; /* an answer that comes too late is no reason to go faster */
	run_for(l, 2500000);
	assert_true(n_held > 0 && in_state(p, "paused"));
	while (n_held)
		rpc_reply(held[--n_held], json_object());
	rpc_server_free(s); /* the server is gone: nobody is to be spared */
	wait_for(l, p, "full");
	pace_free(p);
	loop_free(l);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_pace)};
	log_init("test_pace", LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
