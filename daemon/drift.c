/* Streams and their alarm (drift.h).
 *
 * Level and spread are running ones over all requests of the stream so far (Welford), so the
 * longer it has been quiet the surer they are; a fall then moves them little before it is
 * found. While an alarm stands they are frozen: what is compared with must not follow the fall.
 *
 * Under draft.mode auto the server itself picks how deep and wide it drafts, and accept length moves with that. So a request is judged by position, over
 * its chain rounds: how much more was accepted, summed over the positions that were proposed for, than the stream's own acceptance at those positions
 * says, added to the stream's level. A request with fewer chain rounds than usual is the noisier witness and weighs less, as if its spread were all
 * chance within it.
 */
#include "daemon/drift.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schemas/round.h"

const struct drift_rules drift_defaults = {.ignore = DRIFT_IGNORE, .alarm = DRIFT_ALARM, .warm = DRIFT_WARM};
enum { FLAT_POSITIONS = 8, ROLLED_BACK = 16 /* records of a lower version in a row: it serves again */ };
static const double spread_min = 0.02, outlier = 4; /* tokens; standard deviations that one request may count for */

struct stream {
	bool used, alarm;
	char domain[32];
	int bucket;
	uint32_t version;
	uint64_t seen;      /* stamp of its last record */
	int older;          /* records of a lower version in a row */
	int64_t n;
	double mean, m2;    /* Welford */
	double evidence;    /* Page-Hinkley's sum, in standard deviations */
	int64_t climb;      /* requests since it was 0 */
	double before;      /* mean when the alarm was raised */
	double low;         /* mean of the requests that raised it */
	float recent[DRIFT_RECENT];
	int64_t n_recent;
	double proposed_at[FLAT_POSITIONS], accepted_at[FLAT_POSITIONS]; /* decaying */
	double level_proposed[ROUND_MAX_K], level_accepted[ROUND_MAX_K]; /* of chain rounds, all of them so far */
	uint64_t adwin_alarms, kswin_alarms;
	struct adwin adwin;
	struct kswin kswin;
};

struct drift {
	struct drift_rules rules;
	uint64_t stamp;
	struct stream s[DRIFT_STREAMS];
};

int drift_new(const struct drift_rules *rules, struct drift **ret)
{
	struct drift *d = calloc(1, sizeof *d);

	if (!d)
		return -ENOMEM;
	d->rules = *rules;
	*ret = d;
	return 0;
}

struct drift *drift_free(struct drift *d)
{
	free(d);
	return NULL;
}

/* ---- streams ---- */

static void start(struct stream *s, const char *domain, const struct round_record *r)
{
	*s = (struct stream){.used = true, .bucket = r->context_bucket, .version = r->version};
	(void)snprintf(s->domain, sizeof s->domain, "%s", domain);
	adwin_init(&s->adwin);
	kswin_init(&s->kswin, NULL, NULL);
}

/* ret_ended: a version with an alarm gave way to another one. */
static struct stream *find(struct drift *d, const struct round_record *r, bool *ret_ended)
{
	const char *domain = r->domain[0] ? r->domain : "other";
	struct stream *oldest = &d->s[0];

	*ret_ended = false;
	for (int i = 0; i < DRIFT_STREAMS; i++) {
		struct stream *s = &d->s[i];

		if (s->used && s->bucket == r->context_bucket && !strcmp(s->domain, domain)) {
			if (r->version < s->version && ++s->older < ROLLED_BACK)
				return NULL; /* the tail of one that was left, between those of its successor */
			if (r->version != s->version) {
				*ret_ended = s->alarm;
				start(s, domain, r);
			}
			s->older = 0;
			return s;
		}
		if (!s->used ? oldest->used : oldest->used && s->seen < oldest->seen)
			oldest = s;
	}
	start(oldest, domain, r);
	return oldest;
}

static double spread(const struct stream *s)
{
	double sd = s->n > 1 ? sqrt(s->m2 / (double)(s->n - 1)) : 0;

	return sd > spread_min ? sd : spread_min;
}

/* Of the last `most` requests. */
static double mean_of_last(const struct stream *s, int64_t most)
{
	int64_t n = s->n_recent < DRIFT_RECENT ? s->n_recent : DRIFT_RECENT;
	double sum = 0;

	n = n < most ? n : most;
	for (int64_t i = 1; i <= n; i++)
		sum += (double)s->recent[(s->n_recent - i) % DRIFT_RECENT];
	return n ? sum / (double)n : NAN;
}

static double recent_mean(const struct stream *s)
{
	return mean_of_last(s, DRIFT_RECENT);
}

static void count_positions(struct stream *s, const struct round_record *r)
{
	for (int i = 0; i < FLAT_POSITIONS; i++) {
		s->proposed_at[i] = 0.99 * s->proposed_at[i] + r->proposed[i];
		s->accepted_at[i] = 0.99 * s->accepted_at[i] + r->accepted[i];
	}
}

static double chain_proposed(const struct round_record *r, int i)
{
	return (double)(r->proposed[i] - r->tree_proposed[i]);
}

static double chain_accepted(const struct round_record *r, int i)
{
	return (double)(r->accepted[i] - r->tree_accepted[i]);
}

/* The request's accept length, had it been drafted as its stream was at first. Its chain rounds are at least one. */
static double at_first_shape(const struct stream *s, const struct round_record *r)
{
	double rounds = chain_proposed(r, 0), off = 0, own = 1;

	for (int i = 0; i < ROUND_MAX_K && chain_proposed(r, i) > 0; i++) {
		if (s->level_proposed[i] > 0)
			off += chain_accepted(r, i) - s->level_accepted[i] / s->level_proposed[i] * chain_proposed(r, i);
		own += chain_accepted(r, i) / rounds;
	}
	return s->n ? s->mean + off / rounds : own;
}

/* 1 for a request of the usual number of chain rounds or more. */
static double weight_of(const struct stream *s, const struct round_record *r)
{
	double usual = s->n ? s->level_proposed[0] / (double)s->n : 0, n = chain_proposed(r, 0);

	return n < usual ? sqrt(n / usual) : 1;
}

static void learn_level(struct stream *s, const struct round_record *r)
{
	for (int i = 0; i < ROUND_MAX_K; i++) {
		s->level_proposed[i] += chain_proposed(r, i);
		s->level_accepted[i] += chain_accepted(r, i);
	}
}

static int say(const struct stream *s, int what, char *ret_text)
{
	if (what > 0)
		(void)snprintf(ret_text, DRIFT_TEXT, "drift: accept length of %s, context bucket %d, version %u fell from %.2f to %.2f",
			       s->domain, s->bucket, s->version, s->before, s->low);
	else
		(void)snprintf(ret_text, DRIFT_TEXT, "drift over: accept length of %s, context bucket %d is back at %.2f", s->domain, s->bucket,
			       recent_mean(s));
	return what;
}

/* The alarm: evidence grows by how far a request lies below the mean, less what is ignored. */
static int judge(const struct drift *d, struct stream *s, double al, double weight, char *ret_text)
{
	if (s->alarm) {
		if (s->n_recent < DRIFT_RECENT || recent_mean(s) < (s->before + s->low) / 2)
			return 0;
		s->alarm = false;
		s->evidence = 0;
		return say(s, -1, ret_text);
	}
	if (s->n >= d->rules.warm) {
		double below = weight * (s->mean - al) / spread(s);

		below = below > outlier ? outlier : below < -outlier ? -outlier : below;
		s->evidence = fmax(0, s->evidence + below - d->rules.ignore);
		s->climb = s->evidence > 0 ? s->climb + 1 : 0;
	}
	if (s->evidence >= d->rules.alarm) {
		s->alarm = true;
		s->before = s->mean;
		s->low = mean_of_last(s, s->climb);
		s->n_recent = 0; /* only what comes from now on can show a recovery */
		return say(s, 1, ret_text);
	}
	double off = al - s->mean;
	s->mean += off / (double)++s->n;
	s->m2 += weight * weight * off * (al - s->mean);
	return 0;
}

int drift_take(struct drift *d, const struct round_record *r, char ret_text[static DRIFT_TEXT])
{
	double al;
	bool ended;
	struct stream *s;

	if (!r->version || !(chain_proposed(r, 0) > 0) || r->context_bucket < 0 || r->context_bucket > 7)
		return 0;
	s = find(d, r, &ended);
	if (!s)
		return 0;
	al = at_first_shape(s, r);
	s->seen = ++d->stamp;
	s->recent[s->n_recent++ % DRIFT_RECENT] = (float)al;
	count_positions(s, r);
	s->adwin_alarms += adwin_take(&s->adwin, al / (r->k + 1)) == 1;
	s->kswin_alarms += kswin_take(&s->kswin, al) == 1;
	int what = judge(d, s, al, weight_of(s, r), ret_text);
	if (!s->alarm)
		learn_level(s, r);
	if (ended && !what) {
		(void)snprintf(ret_text, DRIFT_TEXT, "drift over: %s, context bucket %d is served by version %u now", s->domain, s->bucket, s->version);
		return -1;
	}
	return what;
}

/* Requests among the last DRIFT_STREAMS x 16 say whose traffic is recent. */
int drift_level(const struct drift *d)
{
	int fallen = 0;
	double all = 0, of_fallen = 0;

	for (int i = 0; i < DRIFT_STREAMS; i++) {
		const struct stream *s = &d->s[i];

		if (!s->used || s->seen + DRIFT_STREAMS * 16 < d->stamp)
			continue;
		all += (double)s->n;
		fallen += s->alarm;
		of_fallen += s->alarm ? (double)s->n : 0;
	}
	return !fallen ? 0 : of_fallen > all / 2 ? 3 : fallen > 1 ? 2 : 1;
}

bool drift_is_decay(const struct drift_compared *c)
{
	double gap = fabs(c->replayed_al - c->served_al);

	return c->requests >= 16 && ((gap > 0.02 * c->replayed_al && gap > 4 * c->gap_se) || c->differ - 4 * c->differ_se > 0.05);
}

/* ---- shown ---- */

static int compare(const void *a, const void *b)
{
	const float *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double quantile(const struct stream *s, double q)
{
	float v[DRIFT_RECENT];
	int n = (int)(s->n_recent < DRIFT_RECENT ? s->n_recent : DRIFT_RECENT);

	if (!n)
		return NAN;
	memcpy(v, s->recent, (size_t)n * sizeof *v);
	qsort(v, (size_t)n, sizeof *v, compare);
	return (double)v[(int)(q * (n - 1) + 0.5)];
}

static json_t *number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *stream_json(const struct stream *s)
{
	json_t *at = json_array();

	for (int i = 0; i < FLAT_POSITIONS && s->proposed_at[i] > 0.5; i++)
		(void)json_array_append_new(at, number(s->accepted_at[i] / s->proposed_at[i]));
	return json_pack("{s:s, s:i, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:I, s:I}", "domain", s->domain, "context", s->bucket, "version",
			 (json_int_t)s->version, "requests", (json_int_t)s->n, "mean", number(s->n ? s->mean : NAN), "sd", number(s->n > 1 ? spread(s) : NAN),
			 "recent", number(recent_mean(s)), "p50", number(quantile(s, 0.5)), "p95", number(quantile(s, 0.95)), "accepted_at", at, "alarm",
			 s->alarm, "evidence", s->evidence, "adwin", (json_int_t)s->adwin_alarms, "kswin", (json_int_t)s->kswin_alarms);
}

json_t *drift_streams(const struct drift *d)
{
	json_t *all = json_array();

	for (int i = 0; all && i < DRIFT_STREAMS; i++)
		if (d->s[i].used)
			(void)json_array_append_new(all, stream_json(&d->s[i]));
	return all;
}

int drift_print(const struct drift *d, struct buf *out)
{
	static const char *const name[] = {"redraft_drift_alarm", "redraft_drift_evidence", "redraft_drift_accept_length"};
	static const char *const help[] = {"1 while the accept length of a stream is fallen.", "Evidence of a fall, in standard deviations; alarm at drift.alarm.",
					   "Mean accept length over the stream's last requests."};
	int r = buf_printf(out, "# HELP redraft_drift_level 0 none, 1 one stream has fallen, 2 several, 3 most traffic.\n# TYPE redraft_drift_level gauge\n"
				"redraft_drift_level %d\n", drift_level(d));

	for (int m = 0; m < 3 && !r; m++) {
		r = buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", name[m], help[m], name[m]);
		for (int i = 0; i < DRIFT_STREAMS && !r; i++) {
			const struct stream *s = &d->s[i];
			double v = m == 0 ? s->alarm : m == 1 ? s->evidence : recent_mean(s);

			if (s->used && isfinite(v))
				r = buf_printf(out, "%s{domain=\"%s\",context=\"%d\"} %.6g\n", name[m], s->domain, s->bucket, v);
		}
	}
	return r;
}
