/* What was served against the references (act_probe.h). */
#include <math.h>
#include <stdio.h>
#include "daemon/act_probe.h"

struct sums { double rounds, accepted; };

static int add_counts(const json_t *probes, struct sums *s)
{
	for (size_t i = 0; i < json_array_size(probes); i++) {
		const json_t *p = json_array_get(probes, i), *rounds = json_object_get(p, "rounds"), *accepted = json_object_get(p, "accepted");

		if (!json_is_integer(rounds) || !json_is_integer(accepted))
			return -EINVAL;
		s->rounds += json_number_value(rounds);
		s->accepted += json_number_value(accepted);
	}
	return 0;
}

/* Distance of one boundary's numbers, over its root mean square; HUGE_VAL: they are not there. */
static double moved_by(const json_t *a, const json_t *b)
{
	const json_t *pa = json_object_get(a, "projections"), *pb = json_object_get(b, "projections");
	double ra = json_number_value(json_object_get(a, "rms")), rb = json_number_value(json_object_get(b, "rms")), sum = (ra - rb) * (ra - rb);
	size_t n = json_array_size(pa);

	if (!(ra > 0) || !isfinite(rb) || !n || json_array_size(pb) != n)
		return HUGE_VAL;
	for (size_t i = 0; i < n; i++) {
		double d = json_number_value(json_array_get(pa, i)) - json_number_value(json_array_get(pb, i));

		sum += d * d;
	}
	return sqrt(sum / (double)(n + 1)) / ra;
}

int probe_compare(const struct probe_rules *r, const json_t *reference, const json_t *seen, bool *ret_moved, char *ret_text, size_t size)
{
	const json_t *a = json_object_get(reference, "probes"), *b = json_object_get(seen, "probes");
	struct sums was = {0}, is = {0};
	double most = 0, al_was, al_is;
	int boundary = 0;

	if (!json_array_size(a) || json_array_size(a) != json_array_size(b) || add_counts(a, &was) || add_counts(b, &is) || !(was.rounds > 0)) {
		snprintf(ret_text, size, "the probes' answer is no use");
		return -EINVAL;
	}
	for (size_t i = 0; i < json_array_size(a); i++) {
		const json_t *fa = json_object_get(json_array_get(a, i), "features"), *fb = json_object_get(json_array_get(b, i), "features");

		for (size_t k = 0; k < json_array_size(fa); k++) {
			double d = moved_by(json_array_get(fa, k), json_array_get(fb, k));

			boundary = d > most ? (int)k + 1 : boundary;
			most = d > most ? d : most;
		}
	}
	al_was = 1 + was.accepted / was.rounds;
	al_is = is.rounds > 0 ? 1 + is.accepted / is.rounds : 1;
	*ret_moved = !(most <= r->features) || !(fabs(al_is - al_was) <= r->al * al_was);
	if (!(most <= r->features))
		snprintf(ret_text, size, "probes moved: features of boundary %d by %.3g of their size (accept length %.3f, reference %.3f)", boundary, most, al_is, al_was);
	else
		snprintf(ret_text, size, "%s: accept length %.3f, reference %.3f; features within %.2g", *ret_moved ? "probes moved" : "probes", al_is, al_was, most);
	return 0;
}
