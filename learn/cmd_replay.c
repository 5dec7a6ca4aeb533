/* redraft-learn replay: what would a version have had accepted on these records? For operators.
 *
 * Paired: with --against, both versions see the same requests, and the difference has an interval of its
 * own, which is narrower than the two that it is the difference of. One line a domain, one a length of context (as round
 * records bucket it) and one for all; intervals are 95 %, over requests, for one look (the gate's are wider: it
 * looks again and again). Nothing is written to the pool or the store.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "learn/cmd.h"
#include "learn/corpus.h"
#include "learn/evaluate.h"
#include "learn/history.h"
#include "learn/publish.h"
#include "schemas/round.h"

enum { MAX_GROUPS = 48, SAY_US = 500000 };

struct conf {
	char *store, *target_fp, *from_pool, *draft, *against_draft;
	bool json, csv;
	int64_t version, against, from, to, k, threads;
};

#define AT(f) offsetof(struct conf, f)
static const struct conf_entry entries[] = {
	{"from_pool", CONF_STRING, AT(from_pool), NULL, 0, 0, NULL, false, "", "folders of pool segments (of collect, or a learner's state_dir/pool), separated by blanks"},
	{"version", CONF_INT, AT(version), "0", 0, 4294967295.0, NULL, false, "", "version of the store that is replayed"},
	{"draft", CONF_STRING, AT(draft), "", 0, 0, NULL, false, "", "folder of a draft, in place of a version"},
	{"against", CONF_INT, AT(against), "0", 0, 4294967295.0, NULL, false, "", "version to compare with, on the same requests; 0 = none"},
	{"against_draft", CONF_STRING, AT(against_draft), "", 0, 0, NULL, false, "", "folder of a draft, in place of that version"},
	{"from", CONF_INT, AT(from), "1", 1, 1e12, NULL, false, "", "number of the first request, as the pool holds them"},
	{"to", CONF_INT, AT(to), "0", 0, 1e12, NULL, false, "", "number of the last one; 0 = the pool's last"},
	{"k", CONF_INT, AT(k), "5", 1, TTT_MAX_STEPS, NULL, false, "tok", "chain length"},
	{"json", CONF_BOOL, AT(json), "off", 0, 0, NULL, false, "", "one JSON object on standard output in place of the table"},
	{"csv", CONF_BOOL, AT(csv), "off", 0, 0, NULL, false, "", "comma-separated lines in place of the table"},
	{"store", CONF_STRING, AT(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "version store"},
	{"target_fp", CONF_STRING, AT(target_fp), "", 0, 0, NULL, false, "", "fingerprint of the target; empty = the only one in store/frozen"},
	{"threads", CONF_INT, AT(threads), "0", 0, DEV_MAX_THREADS, NULL, false, "threads", "compute threads; 0 = all processors"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program program = {
	.name = "redraft-learn replay", .summary = "Accept lengths of a version on recorded requests, per domain and length of context.",
	.entries = entries, .struct_size = sizeof(struct conf)};

static volatile sig_atomic_t stopped;

static void on_signal(int s)
{
	(void)s;
	stopped = 1;
}

struct sample { /* one request */
	int domain, bucket;
	double rounds[2], accepted[2];
};

struct session {
	const struct conf *c;
	struct frozen fz;
	struct corpus corpus;
	struct draft draft[2];
	int n_drafts, n, n_domains, skipped;
	struct sample *v;
	char domain[MAX_GROUPS][32];
};

/* ---- numbers ---- */

struct figure {
	int requests;
	double rounds[2], al[2], low[2], high[2], diff, diff_low, diff_high;
};

static bool in_group(const struct sample *s, int domain, int bucket)
{
	return (domain < 0 || s->domain == domain) && (bucket < 0 || s->bucket == bucket);
}

/* Ratios of sums over requests; deviations by the requests' residuals, of the pair's difference too. */
static struct figure figure_of(const struct session *s, int domain, int bucket)
{
	struct figure f = {0};
	double accepted[2] = {0}, ratio[2], off[2] = {0}, both = 0;
	for (int i = 0; i < s->n; i++) {
		if (!in_group(&s->v[i], domain, bucket))
			continue;
		f.requests++;
		for (int d = 0; d < 2; d++) {
			f.rounds[d] += s->v[i].rounds[d];
			accepted[d] += s->v[i].accepted[d];
		}
	}
	for (int d = 0; d < 2; d++)
		ratio[d] = f.rounds[d] > 0 ? accepted[d] / f.rounds[d] : 0;
	for (int i = 0; i < s->n; i++) {
		double e[2] = {0};
		if (!in_group(&s->v[i], domain, bucket))
			continue;
		for (int d = 0; d < 2; d++) {
			e[d] = f.rounds[d] > 0 ? (s->v[i].accepted[d] - ratio[d] * s->v[i].rounds[d]) / f.rounds[d] : 0;
			off[d] += e[d] * e[d];
		}
		both += (e[0] - e[1]) * (e[0] - e[1]);
	}
	double one = f.requests > 1 ? 0 : INFINITY, small = one > 0 ? 1 : f.requests / (f.requests - 1.0); /* one request tells no interval */
	for (int d = 0; d < 2; d++) {
		double w = 1.96 * sqrt(off[d] * small) + one;
		f.al[d] = 1 + ratio[d];
		f.low[d] = fmax(1, f.al[d] - w);
		f.high[d] = f.al[d] + w;
	}
	f.diff = f.al[0] - f.al[1];
	f.diff_low = f.diff - 1.96 * sqrt(both * small) - one;
	f.diff_high = f.diff + 1.96 * sqrt(both * small) + one;
	return f;
}

/* ---- saying them ---- */

static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static void say(const struct session *s, const char *domain, const char *context, const struct figure *f, json_t *rows)
{
	const struct conf *c = s->c;
	bool pair = s->n_drafts == 2;
	if (!f->requests)
		return;
	if (c->json) {
		json_t *o = json_pack("{s:s,s:s,s:i,s:f,s:f,s:o,s:o}", "domain", domain, "context", context, "requests", f->requests, "rounds", f->rounds[0], "accept_length", f->al[0],
				      "low", number(f->low[0]), "high", number(f->high[0]));
		if (pair && o)
			(void)json_object_update_new(o, json_pack("{s:f,s:f,s:o,s:o}", "against", f->al[1], "difference", f->diff, "difference_low", number(f->diff_low),
								  "difference_high", number(f->diff_high)));
		(void)json_array_append_new(rows, o);
		return;
	}
	printf(c->csv ? "%s,%s,%d,%.0f,%.4f,%.4f,%.4f" : "%-16s %-12s %8d %9.0f  %.3f [%.3f, %.3f]", domain, context, f->requests, f->rounds[0], f->al[0], f->low[0], f->high[0]);
	if (pair)
		printf(c->csv ? ",%.4f,%.4f,%.4f,%.4f" : "  %.3f  %+.3f [%+.3f, %+.3f]", f->al[1], f->diff, f->diff_low, f->diff_high);
	printf("\n");
}

static void say_all(const struct session *s)
{
	const struct conf *c = s->c;
	bool pair = s->n_drafts == 2;
	json_t *rows = json_array();
	if (c->csv)
		printf("domain,context,requests,rounds,accept_length,low,high%s\n", pair ? ",against,difference,difference_low,difference_high" : "");
	else if (!c->json)
		printf("%-16s %-12s %8s %9s  %-20s%s\n", "domain", "context", "requests", "rounds", "accept length", pair ? "  against, difference" : "");
	for (int d = 0; d <= s->n_domains; d++) {
		struct figure f = figure_of(s, d == s->n_domains ? -1 : d, -1);
		say(s, d == s->n_domains ? "all" : s->domain[d], "any", &f, rows);
	}
	for (int b = 0; b < ROUND_BUCKETS; b++) {
		char context[32];
		struct figure f = figure_of(s, -1, b);
		(void)snprintf(context, sizeof context, b == ROUND_BUCKETS - 1 ? "%d.." : b ? "%d..%d" : "..%d", b == 0 ? 255 : 128 << b, (256 << b) - 1);
		say(s, "all", context, &f, rows);
	}
	if (c->json) {
		json_t *o = json_pack("{s:I,s:I,s:I,s:i,s:i,s:s,s:O}", "version", (json_int_t)c->version, "against", (json_int_t)c->against, "k", (json_int_t)c->k, "requests", s->n,
				      "left_out", s->skipped, "commit", REDRAFT_COMMIT, "rows", rows);
		char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
		if (text)
			puts(text);
		free(text);
		json_decref(o);
	}
	json_decref(rows);
}

/* ---- work ---- */

static int domain_of(struct session *s, const char *name)
{
	name = *name ? name : "other";
	for (int i = 0; i < s->n_domains; i++)
		if (strcmp(s->domain[i], name) == 0)
			return i;
	if (s->n_domains == MAX_GROUPS)
		return MAX_GROUPS - 1;
	(void)snprintf(s->domain[s->n_domains], sizeof s->domain[0], "%s", name);
	return s->n_domains++;
}

/* 0 also when the request tells nothing: damaged, its history missing, or nothing generated. */
static int replay_one(struct session *s, struct dev *d, int i)
{
	const struct run *run = &s->corpus.runs.v[i];
	struct joined j = {0};
	struct sample x = {.bucket = round_bucket((int64_t)run->pos0 + run->n)};
	int r = corpus_whole(&s->corpus, i) ? corpus_load(&s->corpus, i, HISTORY_MAX_ROWS, &j) : -ENOENT;
	if (r) {
		s->skipped++;
		return r == -ENOMEM ? r : 0;
	}
	for (int v = 0; v < s->n_drafts && !r; v++) {
		struct replay_result got = {0};
		r = evaluate_run(d, &s->fz, &j, run->first, &s->draft[v], (int)s->c->k, &got);
		x.rounds[v] = got.rounds;
		x.accepted[v] = got.accepted;
	}
	joined_done(&j);
	if (!r && x.rounds[0] > 0) {
		x.domain = domain_of(s, run->domain);
		s->v[s->n++] = x;
	} else if (!r) {
		s->skipped++;
	}
	return r;
}

static void progress(int done, int all, uint64_t began)
{
	char bar[31];
	double part = all ? (double)done / all : 1, took = (double)(clock_us() - began) / 1e6;
	for (int i = 0; i < 30; i++)
		bar[i] = i < (int)(part * 30) ? '#' : '.';
	bar[30] = 0;
	fprintf(stderr, "\r[%s] %d of %d  %.0f s left ", bar, done, all, done ? took / done * (all - done) : 0);
}

static int replay(struct session *s, struct errtext *e)
{
	const struct conf *c = s->c;
	struct dev *d = NULL;
	int r = corpus_open(c->from_pool, &s->fz, &s->corpus, e), all = s->corpus.runs.n;
	int from = (int)fmin((double)c->from, all + 1.0), to = c->to && c->to < all ? (int)c->to : all;
	if (r)
		return r;
	if (from > to)
		return errtext_set(e, -EINVAL, "requests %d to %d: the pool holds %d", from, to, all);
	s->v = calloc((size_t)all, sizeof *s->v);
	r = s->v ? *c->draft ? publish_read_folder(c->draft, &s->fz, &s->draft[0], e) : publish_read_version(c->store, (uint32_t)c->version, &s->fz, &s->draft[0], e) : -ENOMEM;
	s->n_drafts = 1;
	if (!r && *c->against_draft)
		r = publish_read_folder(c->against_draft, &s->fz, &s->draft[s->n_drafts++], e);
	else if (!r && c->against)
		r = publish_read_version(c->store, (uint32_t)c->against, &s->fz, &s->draft[s->n_drafts++], e);
	if (!r)
		r = dev_cpu_new(c->threads ? (int)c->threads : dev_all_threads(1), ISA_AUTO, &d);
	uint64_t began = clock_us(), said = 0;
	for (int i = from - 1; i < to && !r && !stopped; i++) {
		if (isatty(2) && clock_us() - said > SAY_US) {
			progress(i - from + 1, to - from + 1, began);
			said = clock_us();
		}
		r = replay_one(s, d, i);
	}
	if (said)
		fprintf(stderr, "\r%60s\r", "");
	dev_free(d);
	if (!r && !s->n)
		return errtext_set(e, -EINVAL, "none of %d requests can be replayed: their beginnings are not there, or nothing in them was generated", to - from + 1);
	return r;
}

int cmd_replay(int argc, char **argv)
{
	struct conf c;
	struct errtext e = {""};
	struct session s = {.c = &c};
	int r = conf_load(&program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r > 0)
		return 0;
	if (!r && !c.version && !*c.draft)
		r = errtext_set(&e, -EINVAL, "say which: --version N, or --draft DIR");
	(void)signal(SIGINT, on_signal);
	(void)signal(SIGTERM, on_signal);
	if (!r)
		r = frozen_open(c.store, c.target_fp, &s.fz, &e);
	if (!r)
		r = replay(&s, &e);
	if (!r)
		say_all(&s);
	if (r)
		fprintf(stderr, "redraft-learn replay: %s\n", *e.text ? e.text : strerror(-r));
	corpus_close(&s.corpus);
	draft_done(&s.draft[0]);
	draft_done(&s.draft[1]);
	frozen_close(&s.fz);
	free(s.v);
	conf_done(&program, &c);
	return !r ? stopped ? 1 : 0 : r == -EINVAL || r == -ENOENT ? 2 : 1;
}
