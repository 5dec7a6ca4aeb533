/* Everything is a series of samples with owners (stats.h); this file only says which sample is whose. */
#include "tests/bench/load/report.h"
#include <jansson.h>
#include <stdbool.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/bench/load/stats.h"

enum metric { TTFT, TPOT, GAP, E2E, N_METRICS };
static const char *const metric_names[N_METRICS] = {"ttft_ms", "tpot_ms", "gap_ms", "e2e_ms"};

/* The answers of one label that count, and their series by request and by slice. */
struct view {
	const struct run *r;
	int label, round;
	bool beside;
	struct series by_request[N_METRICS], by_slice[N_METRICS];
	uint32_t requests, failed;
	uint64_t tokens, prompt_tokens, rounds, proposed, accepted;
};

static bool counts(const struct view *v, const struct record *x)
{
	return x->label == v->label && x->beside == v->beside && (v->round == 0 || x->round + 1 == (uint32_t)v->round);
}

static int add(struct view *v, enum metric m, double value, uint32_t slice)
{
	int r = series_add(&v->by_request[m], value, v->requests);

	return r < 0 ? r : series_add(&v->by_slice[m], value, slice);
}

static int add_answer(struct view *v, const struct record *x)
{
	const struct answer *a = &x->a;
	int r = 0;

	if (a->first) {
		r = add(v, TTFT, (double)(a->first - x->due) / 1e3, x->slice);
		if (r == 0)
			r = add(v, E2E, (double)(a->last - x->due) / 1e3, x->slice);
	}
	for (size_t i = 0; r == 0 && i < a->n_pieces; i++) {
		r = add(v, GAP, (double)a->pieces[i].ms, x->slice);
		for (int k = 0; r == 0 && k < a->pieces[i].tokens; k++)
			r = add(v, TPOT, (double)a->pieces[i].ms / a->pieces[i].tokens, x->slice);
	}
	v->requests++;
	v->tokens += (uint64_t)a->tokens;
	v->prompt_tokens += (uint64_t)a->prompt_tokens;
	v->rounds += (uint64_t)a->rounds;
	v->proposed += (uint64_t)a->proposed;
	v->accepted += (uint64_t)a->accepted;
	return r;
}

static int view_init(struct view *v, const struct run *r, int label, bool beside, int round)
{
	int x = 0;

	*v = (struct view){.r = r, .label = label, .beside = beside, .round = round};
	for (size_t i = 0; x == 0 && i < r->n_done; i++) {
		if (!counts(v, &r->done[i]))
			continue;
		if (r->done[i].a.ok)
			x = add_answer(v, &r->done[i]);
		else
			v->failed++;
	}
	return x;
}

static void view_done(struct view *v)
{
	for (int m = 0; m < N_METRICS; m++) {
		series_done(&v->by_request[m]);
		series_done(&v->by_slice[m]);
	}
}

static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static json_t *estimate_json(const struct estimate *e)
{
	return json_pack("[o,o,o]", number(e->v), number(e->low), number(e->high));
}

static json_t *all_json(const struct estimate e[static N_STATS])
{
	json_t *j = json_object();

	for (int k = 0; k < N_STATS; k++)
		json_object_set_new(j, stat_names[k], estimate_json(&e[k]));
	return j;
}

/* Tokens of one slice over the time from its first due request to its last piece. */
static double slice_rate(const struct view *v, uint32_t slice)
{
	uint64_t begin = UINT64_MAX, end = 0, tokens = 0;

	for (size_t i = 0; i < v->r->n_done; i++) {
		const struct record *x = &v->r->done[i];
		if (!counts(v, x) || x->slice != slice || !x->a.ok)
			continue;
		begin = x->due < begin ? x->due : begin;
		end = x->a.last > end ? x->a.last : end;
		tokens += (uint64_t)x->a.tokens;
	}
	return end > begin ? (double)tokens * 1e6 / (double)(end - begin) : 0;
}

/* Tokens a second. The interval is over slices, or over the seconds of a single one. */
static struct estimate rate(const struct view *v)
{
	uint32_t n = v->r->arms[v->label].slices;
	double *rates = calloc(n ? n : 1, sizeof *rates);
	struct estimate e = {(double)NAN, (double)NAN, (double)NAN};

	for (uint32_t i = 0; rates && i < n; i++)
		rates[i] = slice_rate(v, i);
	if (rates && n)
		e = mean_estimate(rates, n, 1);
	free(rates);
	return e;
}

static json_t *failures(const struct view *v)
{
	json_t *j = json_object();

	for (size_t i = 0; i < v->r->n_done; i++) {
		const struct record *x = &v->r->done[i];
		if (counts(v, x) && !x->a.ok)
			json_object_set_new(j, x->a.error, json_integer(json_integer_value(json_object_get(j, x->a.error)) + 1));
	}
	return j;
}

static void table_row(FILE *table, const char *name, const char *what, const struct estimate e[static N_STATS])
{
	fprintf(table, "  %-24s %-8s", name, what);
	for (int k = 0; k <= STAT_P99; k++)
		fprintf(table, "  %8.2f [%7.2f,%8.2f]", e[k].v, e[k].low, e[k].high);
	(void)fputc('\n', table);
}

static void print_line(FILE *out, json_t *j)
{
	(void)json_dumpf(j, out, JSON_COMPACT | JSON_REAL_PRECISION(6));
	(void)fputc('\n', out);
	json_decref(j);
}

static void write_label(struct view *v, const char *name, FILE *json, FILE *table)
{
	struct estimate e[N_STATS], tokens = rate(v);
	double per = v->requests ? (double)v->prompt_tokens / v->requests : 0;
	json_t *j = json_pack("{s:s,s:I,s:o,s:I,s:o,s:f,s:f,s:I,s:I,s:I}", "label", name, "requests", (json_int_t)v->requests, "failed", failures(v), "tokens",
			      (json_int_t)v->tokens, "tokens_per_s", estimate_json(&tokens), "prompt_tokens", per, "seconds", v->r->arms[v->label].seconds, "rounds",
			      (json_int_t)v->rounds, "proposed", (json_int_t)v->proposed, "accepted", (json_int_t)v->accepted);

	fprintf(table, "%s: %u answers, %u failed, prompts of %.0f tokens, %.1f tokens/s [%.1f, %.1f]\n", name, v->requests, v->failed, per, tokens.v,
		tokens.low, tokens.high);
	for (int m = 0; m < N_METRICS; m++) {
		series_estimate(&v->by_request[m], v->requests, 1 + (uint64_t)m, e);
		json_object_set_new(j, metric_names[m], all_json(e));
		table_row(table, "", metric_names[m], e);
	}
	print_line(json, j);
}

/* a against base: the same dialogues slice by slice, so pairs of slices are what is drawn again. */
static void write_ratio(struct view *a, struct view *base, FILE *json, FILE *table)
{
	const struct arm *x = &a->r->arms[a->label], *y = &a->r->arms[base->label];
	uint32_t pairs = x->slices < y->slices ? x->slices : y->slices;
	struct series rates[2] = {0};
	struct estimate e[N_STATS];
	json_t *ratio = json_object();

	fprintf(table, "%s over %s, %u pairs of slices\n", x->label, y->label, pairs);
	for (int m = 0; m < N_METRICS; m++) {
		series_ratio(&a->by_slice[m], &base->by_slice[m], pairs, 11 + (uint64_t)m, e);
		json_object_set_new(ratio, metric_names[m], all_json(e));
		table_row(table, "", metric_names[m], e);
	}
	for (uint32_t i = 0; i < pairs; i++)
		if (series_add(&rates[0], slice_rate(a, i), i) < 0 || series_add(&rates[1], slice_rate(base, i), i) < 0)
			break;
	series_ratio(&rates[0], &rates[1], pairs, 10, e);
	json_object_set_new(ratio, "tokens_per_s", estimate_json(&e[STAT_MEAN]));
	fprintf(table, "  %-24s %-8s  %8.3f [%7.3f,%8.3f]\n", "", "tokens/s", e[STAT_MEAN].v, e[STAT_MEAN].low, e[STAT_MEAN].high);
	print_line(json, json_pack("{s:s,s:s,s:I,s:o}", "label", x->label, "against", y->label, "pairs", (json_int_t)pairs, "ratio", ratio));
	series_done(&rates[0]);
	series_done(&rates[1]);
}

int report_write(struct run *r, int round, FILE *json, FILE *table)
{
	struct view base = {0};
	int base_at = -1, x = 0, failed = 0;

	fprintf(table, "%-35s  %27s  %27s  %27s  %27s\n", "", "mean [95 %]", "P50", "P95", "P99");
	for (int i = 0; x == 0 && i < r->n_arms; i++) {
		struct view v = {0}, beside = {0};
		char name[48];
		if (strcmp(r->arms[i].label, "warmup") == 0)
			continue;
		x = view_init(&v, r, i, false, round);
		if (x == 0)
			x = view_init(&beside, r, i, true, 0);
		if (x == 0)
			write_label(&v, r->arms[i].label, json, table);
		(void)snprintf(name, sizeof name, "%s, beside", r->arms[i].label);
		if (x == 0 && beside.requests + beside.failed > 0)
			write_label(&beside, name, json, table);
		failed += (int)(v.failed + beside.failed);
		if (x == 0 && base_at >= 0)
			write_ratio(&v, &base, json, table);
		view_done(&beside);
		if (base_at < 0) {
			base = v;
			base_at = i;
		} else {
			view_done(&v);
		}
	}
	view_done(&base);
	return x < 0 ? x : failed;
}

int report_each(const struct run *r, FILE *json)
{
	for (size_t i = 0; i < r->n_done; i++) {
		const struct record *x = &r->done[i];
		json_t *pieces = json_array();
		for (size_t k = 0; k < x->a.n_pieces; k++)
			json_array_append_new(pieces, json_pack("[f,i]", (double)x->a.pieces[k].ms, (int)x->a.pieces[k].tokens));
		print_line(json, json_pack("{s:s,s:I,s:I,s:I,s:b,s:s,s:f,s:f,s:f,s:i,s:i,s:o}", "label", r->arms[x->label].label, "slice", (json_int_t)x->slice, "dialogue",
					   (json_int_t)x->dialogue, "round", (json_int_t)x->round, "beside", x->beside, "error", x->a.error, "due_ms",
					   (double)(x->due - r->done[0].due) / 1e3, "ttft_ms", x->a.first ? (double)(x->a.first - x->due) / 1e3 : -1., "e2e_ms",
					   x->a.last ? (double)(x->a.last - x->due) / 1e3 : -1., "prompt_tokens", x->a.prompt_tokens, "tokens", x->a.tokens, "pieces", pieces));
	}
	return ferror(json) ? -EIO : 0;
}
