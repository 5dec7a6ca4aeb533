/* trainer_eagle3: the trainer table over the TTT computation and an optimizer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "learn/init.h"
#include "learn/optimizers.h"

struct trainer {
	struct ttt *ttt;
	struct optimizer *optimizer;
	struct train_options opt;
	real *host_params, *host_grads; /* [total] copies handed out, made at first use */
};

static struct trainer *trainer_free(struct trainer *t)
{
	if (!t)
		return NULL;
	optimizer_free(t->optimizer);
	ttt_free(t->ttt);
	free(t->host_params);
	free(t->host_grads);
	free(t);
	return NULL;
}

static int check_options(const struct train_options *o, struct errtext *e)
{
	if (o->ttt_steps < 1 || o->ttt_steps > TTT_MAX_STEPS)
		return errtext_set(e, -EINVAL, "train.ttt_steps is %d, must be 1 to %d", o->ttt_steps, TTT_MAX_STEPS);
	if (!(o->lr > 0) || !(o->decay > 0) || !(o->eps > 0) || !(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
		return errtext_set(e, -EINVAL, "train.lr, decay and eps must be above 0, the betas in 0 to 1");
	if (o->optimizer == OPT_MUON && (!(o->muon_lr > 0) || !(o->muon_momentum >= 0 && o->muon_momentum < 1) || o->muon_iters < 1))
		return errtext_set(e, -EINVAL, "train.muon_lr and muon_iters must be above 0, the momentum in 0 to 1");
	return 0;
}

static int trainer_new(struct dev *d, const struct eagle3_config *c, const struct train_options *o, const int64_t *d2t,
		       const uint16_t *embedding_bf16, struct trainer **ret, struct errtext *e)
{
	TRY(check_options(o, e));
	struct trainer *t = calloc(1, sizeof *t);
	if (!t)
		return -ENOMEM;
	t->opt = *o;
	int r = ttt_new(d, c, d2t, embedding_bf16, TTT_TRAIN, &t->ttt, e);
	if (r >= 0 && (r = optimizer_new(d, &t->ttt->lay, o, &t->optimizer)) < 0)
		errtext_set(e, r, "out of memory for the optimizer of %zu parameters", t->ttt->lay.total);
	if (r < 0) {
		trainer_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

static size_t trainer_n_params(const struct trainer *t)
{
	return t->ttt->lay.total;
}

/* Refresh (or make) a host copy of a device array; NULL when out of memory. */
static real *host_copy(struct trainer *t, real **copy, const real *from)
{
	size_t bytes = t->ttt->lay.total * sizeof(real);
	if (!*copy)
		*copy = malloc(bytes);
	if (*copy && t->ttt->d->ops->download(t->ttt->d, *copy, from, bytes) < 0)
		return NULL;
	return *copy;
}

static real *trainer_params(struct trainer *t)
{
	return host_copy(t, &t->host_params, t->ttt->w);
}

static void trainer_params_changed(struct trainer *t)
{
	if (t->host_params)
		(void)t->ttt->d->ops->upload(t->ttt->d, t->ttt->w, t->host_params, t->ttt->lay.total * sizeof(real));
}

static const real *trainer_grads(struct trainer *t)
{
	return host_copy(t, &t->host_grads, t->ttt->dw);
}

static void trainer_init_random(struct trainer *t, uint64_t seed)
{
	if (!trainer_params(t))
		return;
	draft_init_random(&t->ttt->c, seed, t->host_params);
	trainer_params_changed(t);
}

/* What would make an op read out of bounds; features and probabilities are only numbers. */
static int check_batch(const struct trainer *t, const struct train_batch *b)
{
	const struct eagle3_config *c = &t->ttt->c;
	const struct teacher *q = &b->teacher;
	if (b->n < 1 || q->n < b->n || q->K < 1 || (!q->ids && q->K != c->V_d))
		return -EINVAL;
	for (int i = 0; b->seg && i < b->n; i++)
		if (b->seg[i] > (uint32_t)i)
			return -EINVAL;
	for (size_t i = 0; q->ids && i < (size_t)b->n * (size_t)q->K; i++)
		if (q->ids[i] >= (uint32_t)c->V_d && q->p[i] != 0)
			return -EINVAL;
	return 0;
}

static int trainer_forward_backward(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	struct train_result res = {0};
	double sum;
	TRY(check_batch(t, b));
	TRY(ttt_begin(t->ttt, b->n, t->opt.ttt_steps, b->ids, b->features));
	TRY(ttt_forward(t->ttt, b->pos, b->seg));
	TRY(ttt_backward(t->ttt, t->opt.decay, t->opt.loss, b, &res));
	TRY(t->ttt->d->ops->sumsq(t->ttt->d, &sum, t->ttt->dw, t->ttt->lay.total));
	res.grad_norm = sqrt(sum);
	*ret = res;
	return 0;
}

static int trainer_step(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	TRY(trainer_forward_backward(t, b, ret));
	if (!isfinite(ret->loss) || !isfinite(ret->grad_norm) || (b->loss_max > 0 && ret->loss > b->loss_max))
		return 1;
	return optimizer_step(t->optimizer, t->ttt->w, t->ttt->dw, ret->grad_norm);
}

static size_t trainer_n_state(const struct trainer *t)
{
	return optimizer_n_state(t->optimizer);
}

static int trainer_save_state(struct trainer *t, real *ret_state, int64_t *ret_step)
{
	return optimizer_save(t->optimizer, ret_state, ret_step);
}

static int trainer_load_state(struct trainer *t, const real *state, int64_t step)
{
	return optimizer_load(t->optimizer, state, step);
}

const struct trainer_kind trainer_eagle3 = {
	.name = "eagle3",
	.new = trainer_new,
	.free = trainer_free,
	.n_params = trainer_n_params,
	.params = trainer_params,
	.params_changed = trainer_params_changed,
	.grads = trainer_grads,
	.init_random = trainer_init_random,
	.forward_backward = trainer_forward_backward,
	.step = trainer_step,
	.n_state = trainer_n_state,
	.save_state = trainer_save_state,
	.load_state = trainer_load_state,
};
