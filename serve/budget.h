/* How many prompt rows may share a round with those who decode.
 *
 * What a decoding client feels is the time of a round. So decode-only rounds are timed, by
 * the size of their batch, and what a prompt row adds; a mixed round gets as many rows as keep it under
 * `slowdown` rounds in which everybody who is here decodes. That is what a client has a claim to: where it decodes alone
 * while many prompts are read, it does so only because the others come later, and in small batches they would be long in
 * coming. Now and then a round goes without prompts, so that the yardstick stays true while prompts keep coming. When
 * nobody decodes a round takes full chunks.
 */
#pragma once

enum { BUDGET_BINS = 10, BUDGET_LEAST = 4, BUDGET_FIRST = 16, BUDGET_PROBE = 32 };

struct budget {
	double slowdown;
	double alone[BUDGET_BINS]; /* ms of a decode-only round, by log2 of its rows; 0 = not known */
	double row;                /* ms a prompt row adds; 0 = not known */
	int mixed;                 /* rounds since one was decode-only */
};

/* Prompt rows for a round with so many decode rows, 0..full; all_rows: how many those would be if those who read decoded too. */
int budget_rows(struct budget *b, int decode_rows, int all_rows, int full);
/* A round with these rows took ms. */
void budget_learn(struct budget *b, int decode_rows, int prompt_rows, double ms);
