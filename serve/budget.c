/* Running means: quick to believe that things cost more, slow to believe that they cost less. */
#include "serve/budget.h"

static int bin_of(int rows)
{
	int bin = 0;
	while (rows > 1 && bin < BUDGET_BINS - 1) {
		rows = (rows + 1) / 2;
		bin++;
	}
	return bin;
}

/* Of this size, else of the next smaller one that is known, else of a larger one; -1: none is. */
static int known_bin(const struct budget *b, int rows)
{
	int bin = bin_of(rows);
	for (int i = bin; i >= 0; i--)
		if (b->alone[i] > 0)
			return i;
	for (int i = bin + 1; i < BUDGET_BINS; i++)
		if (b->alone[i] > 0)
			return i;
	return -1;
}

/* A smaller round costs no more. */
static double alone(const struct budget *b, int rows)
{
	int bin = known_bin(b, rows);
	return bin < 0 ? 0 : b->alone[bin];
}

/* The same where a round of that size may never have been seen, as when few ever decode at a time: a smaller one's time,
 * and for each further row what a row adds. */
static double together(const struct budget *b, int rows)
{
	int bin = known_bin(b, rows);
	return alone(b, rows) + (bin >= 0 && rows > 1 << bin ? (rows - (1 << bin)) * b->row : 0);
}

int budget_rows(struct budget *b, int decode_rows, int all_rows, int full)
{
	double base = alone(b, decode_rows), fair = together(b, all_rows);
	int rows = BUDGET_FIRST;
	if (!decode_rows)
		return full;
	if (++b->mixed > BUDGET_PROBE)
		return 0;
	if (base > 0 && b->row > 0) {
		double most = (b->slowdown * (fair > base ? fair : base) - base) / b->row;
		rows = most >= full ? full : (int)most;
		rows = rows < BUDGET_LEAST ? BUDGET_LEAST : rows;
	}
	return rows < full ? rows : full;
}

/* One round that the machine slept through should not count as the cost of anything. */
static double toward(double have, double seen, double up, double down)
{
	if (have <= 0)
		return seen;
	if (seen > 4 * have)
		seen = 4 * have;
	return have + (seen > have ? up : down) * (seen - have);
}

void budget_learn(struct budget *b, int decode_rows, int prompt_rows, double ms)
{
	if (decode_rows && !prompt_rows) {
		double *at = &b->alone[bin_of(decode_rows)];
		*at = toward(*at, ms, 0.1, 0.2);
		b->mixed = 0;
		return;
	}
	double base = decode_rows ? alone(b, decode_rows) : 0;
	if (!prompt_rows || (decode_rows && base <= 0))
		return;
	double extra = ms - base, least = 0.02 * ms;
	b->row = toward(b->row, (extra > least ? extra : least) / prompt_rows, 0.3, 0.1);
}
