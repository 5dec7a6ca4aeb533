/* trainer_eagle3: the trainer table over the TTT computation and an optimizer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "learn/crew.h"
#include "learn/init.h"
#include "learn/optimizers.h"

struct trainer {
	struct ttt *ttt;
	struct optimizer *optimizer;
	struct train_options opt;
	real *host_params, *host_grads; /* [total] copies handed out, made at first use */
	double loss_max;                /* of the last batch */
	int number;                     /* what the other ranks know it by; 0 when there are none, or on them */
};

static int tell(struct trainer *t, enum crew_op op, int64_t n, const void *p, size_t bytes)
{
	const struct crew_part part = {p, bytes};
	return crew_tell(t->opt.ranks, op, t->number, n, &part, p ? 1 : 0);
}

static struct trainer *trainer_free(struct trainer *t)
{
	if (!t)
		return NULL;
	if (t->number)
		(void)!tell(t, CREW_FREE, 0, NULL, 0); /* a group that is broken needs no telling */
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
	if ((unsigned)o->loss >= N_LOSS)
		return errtext_set(e, -EINVAL, "train.loss is no kind of loss: known are " LOSS_NAMES);
	if (!(o->lr > 0) || !(o->decay > 0) || !(o->eps > 0) || !(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
		return errtext_set(e, -EINVAL, "train.lr, decay and eps must be above 0, the betas in 0 to 1");
	if (o->optimizer == OPT_MUON && (!(o->muon_lr > 0) || !(o->muon_momentum >= 0 && o->muon_momentum < 1) || o->muon_iters < 1))
		return errtext_set(e, -EINVAL, "train.muon_lr and muon_iters must be above 0, the momentum in 0 to 1");
	return 0;
}

static int tell_new(struct trainer *t, const struct eagle3_config *c, const int64_t *d2t, struct errtext *e)
{
	static int made;
	const struct crew_part parts[] = {{c, sizeof *c}, {&t->opt, sizeof t->opt}, {d2t, (size_t)c->V_d * sizeof *d2t}};
	if (seqpar_alone(t->ttt->sp) || t->opt.ranks->rank)
		return 0;
	int r = crew_tell(t->opt.ranks, CREW_NEW, made + 1, crew_machine(t->ttt->d), parts, 3);
	if (r)
		return errtext_set(e, r, "%s", t->opt.ranks->error);
	t->number = ++made;
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
	if (r >= 0 && o->ranks)
		r = ttt_set_ranks(t->ttt, o->ranks, o->data, o->ulysses, e);
	if (r >= 0 && o->ranks)
		t->ttt->sp->head = o->head;
	if (r >= 0 && (r = optimizer_new(d, &t->ttt->lay, o, &t->optimizer)) < 0)
		errtext_set(e, r, "out of memory for the optimizer of %zu parameters", t->ttt->lay.total);
	if (r >= 0)
		r = tell_new(t, c, d2t, e);
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
	size_t bytes = t->ttt->lay.total * sizeof(real);
	if (!t->host_params)
		return;
	(void)t->ttt->d->ops->upload(t->ttt->d, t->ttt->w, t->host_params, bytes);
	(void)!tell(t, CREW_PARAMS, 0, t->host_params, bytes); /* a failure shows in the next step */
}

static const real *trainer_grads(struct trainer *t)
{
	return host_copy(t, &t->host_grads, t->ttt->dw);
}

static void trainer_init_random(struct trainer *t, uint64_t seed)
{
	bool had = t->host_params;
	if (!trainer_params(t))
		return;
	draft_init_random(&t->ttt->c, seed, t->host_params);
	trainer_params_changed(t);
	if (had)
		return;
	free(t->host_params); /* nobody has asked for a copy yet */
	t->host_params = NULL;
}

/* What would make an op read out of bounds; features and probabilities are only numbers. */
static int check_batch(const struct trainer *t, const struct train_batch *b)
{
	const struct eagle3_config *c = &t->ttt->c;
	const struct teacher *q = &b->teacher;
	if (b->n < 1 || q->n < b->n || q->K < 1 || (!q->ids && q->K != c->V_d))
		return -EINVAL;
	for (int i = 1; i <= b->n; i++)
		if (b->ids[i] >= (uint32_t)c->V)
			return -EINVAL;
	for (int i = 0; b->seg && i < b->n; i++)
		if (b->seg[i] > (uint32_t)i)
			return -EINVAL;
	for (size_t i = 0; q->ids && i < (size_t)b->n * (size_t)q->K; i++)
		if (q->ids[i] >= (uint32_t)c->V_d && q->p[i] != 0)
			return -EINVAL;
	return 0;
}

static int compute(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	struct ttt *ttt = t->ttt;
	struct train_result res = {0};
	struct train_batch mine;
	double sum;
	TRY(seqpar_share(ttt->sp, b, 3 * ttt->c.H_t, t->opt.ttt_steps, &mine));
	TRY(ttt_begin(ttt, mine.n, ttt->sp->n_steps, mine.ids, mine.features));
	ttt_lead(ttt, &mine);
	TRY(ttt_forward(ttt, mine.pos, mine.seg));
	TRY(ttt_backward(ttt, t->opt.decay, t->opt.loss, &mine, &res));
	TRY(comm_sum(ttt->sp->c, ttt->d, ttt->dw, ttt->lay.total));
	TRY(ttt->d->ops->sumsq(ttt->d, &sum, ttt->dw, ttt->lay.total));
	res.grad_norm = sqrt(sum);
	t->loss_max = mine.loss_max;
	*ret = res;
	return 0;
}

/* A failure after the others were told is everybody's. */
static int all_or_none(struct trainer *t, int r)
{
	struct comm *c = t->ttt->sp->c;
	if (r < 0 && c->size > 1 && !c->failed)
		comm_abort(c, *t->ttt->d->error ? t->ttt->d->error : strerror(-r));
	return c->failed ? c->failed : r;
}

static int trainer_forward_backward(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	if (b)
		TRY(check_batch(t, b));
	TRY(tell(t, CREW_GRADIENTS, 0, NULL, 0));
	return all_or_none(t, compute(t, b, ret));
}

/* compute + clip + optimizer; every rank has the same gradients and comes to the same weights */
static int learn_from(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	TRY(compute(t, b, ret));
	if (!isfinite(ret->loss) || !isfinite(ret->grad_norm) || (t->loss_max > 0 && ret->loss > t->loss_max))
		return 1;
	return optimizer_step(t->optimizer, t->ttt->w, t->ttt->dw, ret->grad_norm);
}

static int trainer_step(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	if (b)
		TRY(check_batch(t, b));
	TRY(tell(t, CREW_STEP, 0, NULL, 0));
	return all_or_none(t, learn_from(t, b, ret));
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
	TRY(tell(t, CREW_STATE, step, state, optimizer_n_state(t->optimizer) * sizeof *state));
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
