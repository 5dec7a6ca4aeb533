/* What is left out (learn/rules.h).
 *
 * The tenants' window forgets by halves: when it holds twice its rows, all counts are halved. So a share is that
 * of about the last window, in a table of fixed size; the smallest tenant makes room for a new one.
 */
#include "learn/rules.h"

#include <string.h>

#include "learn/join.h"

static const char *const words[OUT_N] = {"scale", "quarantined", "repeated", "tenant", "request", "expired"};

const char *rule_word(enum rule_out x)
{
	return x < OUT_N ? words[x] : "?";
}

void rules_verdict(struct rules *x, uint32_t version, bool quarantined)
{
	int i = 0;
	while (i < x->n_quarantined && x->quarantined[i] != version)
		i++;
	if (i < x->n_quarantined) { /* out, and back as the newest */
		memmove(&x->quarantined[i], &x->quarantined[i + 1], (size_t)(x->n_quarantined - i - 1) * sizeof x->quarantined[0]);
		x->n_quarantined--;
	}
	if (!quarantined)
		return;
	if (x->n_quarantined == RULES_QUARANTINED) {
		memmove(&x->quarantined[0], &x->quarantined[1], sizeof x->quarantined - sizeof x->quarantined[0]);
		x->n_quarantined--;
	}
	x->quarantined[x->n_quarantined++] = version;
}

bool rules_quarantined(const struct rules *x, const struct trace_record *r, uint32_t *ret_version)
{
	for (int s = 0; s < r->S; s++)
		for (int i = 0; i < x->n_quarantined; i++)
			if (r->round_version[s] == x->quarantined[i]) {
				*ret_version = x->quarantined[i];
				return true;
			}
	return false;
}

static int tenant_at(struct rules *x, uint64_t tenant)
{
	int least = 0;
	for (int i = 0; i < x->n_tenants; i++) {
		if (x->tenants[i].tenant == tenant)
			return i;
		least = x->tenants[i].rows < x->tenants[least].rows ? i : least;
	}
	if (x->n_tenants < RULES_TENANTS)
		least = x->n_tenants++;
	x->tenants[least].tenant = tenant;
	x->tenants[least].rows = 0;
	return least;
}

bool rules_tenant(struct rules *x, uint64_t tenant, int n, double share, int64_t window)
{
	if (!(share > 0 && share < 1))
		return true;
	int i = tenant ? tenant_at(x, tenant) : -1;
	if (i >= 0 && x->window >= window / 2 && (double)(x->tenants[i].rows + n) > share * (double)(x->window + n))
		return false;
	if (i >= 0)
		x->tenants[i].rows += n;
	x->window += n;
	if (x->window >= 2 * window) {
		x->window /= 2;
		for (int k = 0; k < x->n_tenants; k++)
			x->tenants[k].rows /= 2;
	}
	return true;
}

static bool same_request(const struct run *x, const struct run *r)
{
	return r->name && x->name == r->name;
}

/* x moves its first lesson by at most `over` rows; what is left of over. */
static int64_t give_way(struct run *x, int64_t over, uint64_t *rows, uint64_t *runs)
{
	int64_t has = x->n - x->first, gives = over < has ? over : has;
	if (gives <= 0)
		return over;
	*runs += 1;
	*rows += (uint64_t)gives;
	x->first += (int)gives;
	if (x->n - x->first < JOIN_MIN_ROWS) /* nothing to wait for */
		x->state = RUN_TRAINED;
	return over - gives;
}

void rules_request(struct runs *s, struct run *r, int64_t most, uint64_t *ret_rows, uint64_t *ret_runs)
{
	int64_t over = r->n - r->first - most;
	*ret_rows = *ret_runs = 0;
	for (int i = 0; i < s->n; i++)
		over += same_request(&s->v[i], r) ? s->v[i].n - s->v[i].first : 0;
	for (int i = 0; i < s->n && over > 0; i++) /* the runs are in the order in which they closed: oldest first */
		if (same_request(&s->v[i], r) && s->v[i].state == RUN_QUEUED)
			over = give_way(&s->v[i], over, ret_rows, ret_runs);
	if (over > 0)
		(void)give_way(r, over, ret_rows, ret_runs);
}

json_t *rules_to_json(const struct rules *x)
{
	json_t *q = json_array(), *t = json_array();
	int bad = 0;
	for (int i = 0; i < x->n_quarantined; i++)
		bad |= json_array_append_new(q, json_integer((json_int_t)x->quarantined[i]));
	for (int i = 0; i < x->n_tenants; i++)
		bad |= json_array_append_new(t, json_pack("[II]", (json_int_t)x->tenants[i].tenant, (json_int_t)x->tenants[i].rows));
	if (bad) {
		json_decref(q);
		json_decref(t);
		return NULL;
	}
	return json_pack("{s:[Ifff],s:o,s:o,s:I}", "scale", (json_int_t)x->scale.records, x->scale.median[0], x->scale.median[1], x->scale.median[2],
			 "quarantined", q, "tenants", t, "window", (json_int_t)x->window);
}

int rules_from_json(struct rules *x, const json_t *j)
{
	struct rules r = {0};
	json_int_t records, window, tenant, rows;
	json_t *q, *t, *v;
	size_t i;
	if (!j)
		return 0;
	if (json_unpack((json_t *)(uintptr_t)j, "{s:[IFFF],s:o,s:o,s:I}", "scale", &records, &r.scale.median[0], &r.scale.median[1], &r.scale.median[2],
			"quarantined", &q, "tenants", &t, "window", &window) || json_array_size(q) > RULES_QUARANTINED || json_array_size(t) > RULES_TENANTS)
		return -EINVAL;
	r.scale.records = records;
	r.window = window;
	json_array_foreach(q, i, v)
		r.quarantined[r.n_quarantined++] = (uint32_t)json_integer_value(v);
	json_array_foreach(t, i, v) {
		if (json_unpack(v, "[II]", &tenant, &rows))
			return -EINVAL;
		r.tenants[r.n_tenants].tenant = (uint64_t)tenant;
		r.tenants[r.n_tenants++].rows = rows;
	}
	*x = r;
	return 0;
}
