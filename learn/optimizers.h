/* Optimizers over the flat parameter array: AdamW, and Muon with AdamW beside it.
 *
 * State is two flat arrays in the parameters' layout: first and second moment
 * (AdamW), momentum and nothing (Muon's matrices). A step is a function of
 * weights, state, gradient and step counter alone.
 */
#pragma once
#include "learn/ttt.h"

struct optimizer;

int MUSTCHECK optimizer_new(struct dev *d, const struct draft_layout *lay, const struct train_options *opt, struct optimizer **ret);
struct optimizer *optimizer_free(struct optimizer *o);
/* One step on device arrays w and g of lay->total. grad_norm: the global L2 norm of
 * g, finite; g is scaled by min(1, clip/(norm+1e-6)) when clip > 0. */
int MUSTCHECK optimizer_step(struct optimizer *o, real *w, const real *g, double grad_norm);
/* Moments as one host array of 2*lay->total, and the count of steps done. */
size_t optimizer_n_state(const struct optimizer *o);
int MUSTCHECK optimizer_save(struct optimizer *o, real *ret_state, int64_t *ret_step);
/* state NULL: moments to zero; the step counter is set either way. */
int MUSTCHECK optimizer_load(struct optimizer *o, const real *state, int64_t step);
/* True where Muon, not AdamW, moves tensor i. */
bool optimizer_is_muon(enum optimizer_kind kind, enum eagle3_tensor i);
