/* Leading and following (learn/crew.h): what rank 0's trainer does, told as one
 * head and up to three arrays.
 */
#include "learn/crew.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fs.h"
#include "learn/meet.h"

enum { MAX_PARTS = 3, MAX_TRAINERS = 4 /* two, while one takes the other's place */ };

struct head {
	int op, trainer;
	int64_t n;
	size_t bytes[MAX_PARTS];
};

static int read_secret(const struct crew_conf *k, char **ret, struct errtext *e)
{
	struct stat st;
	char *text = NULL;
	int r = fs_read_text(k->secret_file, 4096, &text);
	if (r)
		return errtext_set(e, r, "ranks.secret_file: %.150s: %s", k->secret_file, fs_text_why(r));
	text[strcspn(text, "\r\n")] = 0;
	if (stat(k->secret_file, &st) || st.st_mode & S_IRWXO)
		r = errtext_set(e, -EPERM, "ranks.secret_file: %.150s is open to every user; chmod o= it", k->secret_file);
	else if (strlen(text) < 16)
		r = errtext_set(e, -EINVAL, "ranks.secret_file: %.150s: its first line must have 16 characters at least", k->secret_file);
	if (r) {
		free(text);
		return r;
	}
	*ret = text;
	return 0;
}

static int meet_all(const struct crew_conf *k, struct comm **ret, struct errtext *e)
{
	int fd[COMM_MAX_RANKS], local, here;
	char *secret = NULL;
	if (!*k->meet)
		return errtext_set(e, -EINVAL, "ranks.count is %d: where do they meet? Set ranks.meet, the same for all, and ranks.rank", (int)k->count);
	int r = *k->secret_file ? read_secret(k, &secret, e) : 0;
	if (!r)
		r = meet(&(struct meet_options){.rank = (int)k->rank, .size = (int)k->count, .where = k->meet, .secret = secret, .timeout_s = (int)k->timeout_s}, fd, &local, &here, e);
	if (!r && (r = comm_nccl_new((int)k->rank, (int)k->count, fd, ret)) < 0)
		return errtext_set(e, r, "out of memory");
	if (!r) {
		(*ret)->local = local;
		(*ret)->here = here;
	}
	free(secret);
	return r;
}

int crew_open(const struct crew_conf *k, struct comm **ret, struct errtext *e)
{
	struct comm *c = NULL;
	int r = comm_open(&c, e);
	if (!r && c->size > 1 && k->count > 1) {
		r = errtext_set(e, -EINVAL, "mpirun started %d ranks, and ranks.count says %d: one of the two", c->size, (int)k->count);
		comm_free(c);
	}
	if (!r && k->count > 1)
		r = meet_all(k, &c, e);
	if (r)
		return r;
	c->timeout_s = (int)k->timeout_s;
	*ret = c;
	return 0;
}

static bool met(const struct comm *c)
{
	return c->size > 1 && c->ops->device;
}

/* Each rank sees one GPU: the launcher's choice if that is one; else of those it names, or of all, the one at our place. */
static int choose_gpu(const struct comm *c, struct errtext *e)
{
	const char *seen = getenv("CUDA_VISIBLE_DEVICES");
	char one[64];
	if (seen && *seen && !strchr(seen, ','))
		return 0;
	(void)snprintf(one, sizeof one, "%d", c->here);
	if (seen && *seen) {
		int i = 0;
		for (; i < c->here && *seen; i++) {
			seen += strcspn(seen, ",");
			seen += *seen == ',';
		}
		if (!*seen)
			return errtext_set(e, -EINVAL, "%d ranks on this machine, and CUDA_VISIBLE_DEVICES names %d GPUs: each rank needs one", c->local, i);
		(void)snprintf(one, sizeof one, "%.*s", (int)strcspn(seen, ","), seen);
	}
	return setenv("CUDA_VISIBLE_DEVICES", one, 1) ? errtext_set(e, -ENOMEM, "out of memory") : 0;
}

int crew_device(const struct comm *c, struct dev_options *o, struct errtext *e)
{
	if (!o->threads)
		o->threads = dev_all_threads(c->local);
	if (c->size == 1)
		return 0;
	if (met(c) ? o->kind == DEV_CPU : o->kind == DEV_CUDA)
		return errtext_set(e, -ENOTSUP, met(c) ? "device = cpu with ranks.count %d: those have a GPU each; on processors start them with mpirun" :
							 "device = cuda with %d ranks under mpirun: those compute on processors; for a GPU each see ranks.count",
				   c->size);
	o->kind = met(c) ? DEV_CUDA : DEV_CPU;
	return met(c) ? choose_gpu(c, e) : 0;
}

int crew_dev_new(struct comm *c, const struct dev_options *o, struct dev **ret, struct errtext *e)
{
	struct dev *d = NULL;
	int r = dev_new(o, &d, e);
	if (!r && c && (r = comm_device(c, d, e)))
		d = dev_free(d);
	if (r) {
		if (c && met(c) && !c->failed)
			comm_abort(c, e->text);
		return r;
	}
	*ret = d;
	return 0;
}

int crew_tell(struct comm *c, enum crew_op op, int trainer, int64_t n, const struct crew_part *parts, int n_parts)
{
	if (!c || c->size == 1 || c->rank)
		return 0;
	struct head h = {.op = (int)op, .trainer = trainer, .n = n};
	for (int i = 0; i < n_parts; i++)
		h.bytes[i] = parts[i].bytes;
	int r = comm_broadcast(c, &h, sizeof h);
	for (int i = 0; i < n_parts && !r; i++)
		r = comm_broadcast(c, (void *)(uintptr_t)parts[i].p, parts[i].bytes); /* rank 0's is only read */
	return r;
}

void crew_end(struct comm *c, const char *why)
{
	if (c->failed)
		return;
	if (met(c) && (c->rank ? why != NULL : !c->d)) /* the others are not where an order could reach them */
		comm_abort(c, why ? why : "it was done before the group had begun");
	else
		(void)!crew_tell(c, CREW_END, 0, 0, NULL, 0);
}

/* ---- the other side ---- */

struct follower {
	struct comm *c;
	struct dev *d;
	const struct crew_target *target;
	struct trainer *t[MAX_TRAINERS]; /* by number, modulo */
	struct weight head[MAX_TRAINERS]; /* the target's head, rows of that trainer's draft vocabulary */
};

static const struct trainer_kind *const kind = &trainer_eagle3;

/* A part as long as rank 0 says; freed by the caller. */
static int receive(struct follower *f, size_t bytes, void **ret)
{
	void *p = malloc(bytes + 1);
	int r = p ? comm_broadcast(f->c, p, bytes) : -ENOMEM;
	if (r) {
		free(p);
		return r;
	}
	*ret = p;
	return 0;
}

/* As the batcher of rank 0 has it, to make teachers of final states. */
static int pack_head(struct follower *f, const struct eagle3_config *c, const int64_t *d2t, struct weight *ret)
{
	size_t H = (size_t)c->H_t;
	uint16_t *rows = malloc((size_t)c->V_d * H * sizeof *rows);
	int r = rows ? 0 : -ENOMEM;
	for (int i = 0; i < c->V_d && !r; i++) {
		if (d2t[i] + i < 0 || d2t[i] + i >= c->V)
			r = -EINVAL;
		else
			memcpy(rows + (size_t)i * H, f->target->head + (size_t)(d2t[i] + i) * H, H * sizeof *rows);
	}
	if (!r)
		r = f->d->ops->weight_pack(f->d, ret, DT_BF16, c->V_d, c->H_t, rows, DT_BF16);
	free(rows);
	return r;
}

static int make(struct follower *f, const struct head *h, struct trainer **ret, struct errtext *e)
{
	struct weight *head = &f->head[h->trainer % MAX_TRAINERS];
	struct eagle3_config c = {0};
	struct train_options o = {0};
	int64_t *d2t = NULL;
	if (h->bytes[0] != sizeof c || h->bytes[1] != sizeof o)
		return errtext_set(e, -EINVAL, "rank 0 is another build than rank %d", f->c->rank);
	int r = comm_broadcast(f->c, &c, sizeof c);
	if (!r)
		r = comm_broadcast(f->c, &o, sizeof o);
	if (!r)
		r = receive(f, h->bytes[2], (void **)&d2t);
	if (!r && h->n != crew_machine(f->d)) /* their sums would part, and with them the weights */
		r = errtext_set(e, -EINVAL, "rank %d computes with %s, rank 0 with %s: a group needs processors of one kind", f->c->rank, dev_isa_name(f->d->isa),
				dev_isa_name((enum dev_isa)(h->n % 256)));
	if (!r && (c.V != f->target->V || c.H_t != f->target->H_t || h->bytes[2] != (size_t)c.V_d * sizeof *d2t))
		r = errtext_set(e, -EINVAL, "rank %d has another target than rank 0: vocabulary %d and %d wide, not %d and %d", f->c->rank, f->target->V, f->target->H_t, c.V, c.H_t);
	o.ranks = f->c;
	o.head = head;
	if (!r)
		r = pack_head(f, &c, d2t, head);
	if (!r)
		r = kind->new(f->d, &c, &o, d2t, f->target->embedding, ret, e);
	free(d2t);
	return r;
}

static int take_params(struct follower *f, struct trainer *t, const struct head *h)
{
	real *w = kind->params(t);
	if (!w || h->bytes[0] != kind->n_params(t) * sizeof *w)
		return w ? -EINVAL : -ENOMEM;
	int r = comm_broadcast(f->c, w, h->bytes[0]);
	if (!r)
		kind->params_changed(t);
	return r;
}

static int take_state(struct follower *f, struct trainer *t, const struct head *h)
{
	real *state = NULL;
	int r = h->bytes[0] && h->bytes[0] != kind->n_state(t) * sizeof *state ? -EINVAL : 0;
	if (!r && h->bytes[0])
		r = receive(f, h->bytes[0], (void **)&state);
	if (!r)
		r = kind->load_state(t, state, h->n);
	free(state);
	return r;
}

static void drop(struct follower *f, int i)
{
	f->t[i] = kind->free(f->t[i]);
	f->d->ops->weight_free(f->d, &f->head[i]);
	f->head[i] = (struct weight){0};
}

static int obey(struct follower *f, const struct head *h, struct errtext *e)
{
	struct trainer **t = &f->t[h->trainer % MAX_TRAINERS];
	struct train_result res;
	int r = 0;
	if ((h->op == CREW_NEW) == (*t != NULL))
		return errtext_set(e, -EINVAL, "rank %d was told of trainer %d, which it %s", f->c->rank, h->trainer, *t ? "has" : "does not have");
	switch ((enum crew_op)h->op) {
	case CREW_NEW:
		return make(f, h, t, e);
	case CREW_PARAMS:
		return take_params(f, *t, h);
	case CREW_STATE:
		return take_state(f, *t, h);
	case CREW_GRADIENTS:
		return kind->forward_backward(*t, NULL, &res);
	case CREW_STEP:
		r = kind->step(*t, NULL, &res);
		return r > 0 ? 0 : r; /* non-finite: rank 0 saw the same and says so */
	case CREW_FREE:
		drop(f, h->trainer % MAX_TRAINERS);
		return 0;
	case CREW_END:
		break;
	}
	return -EINVAL;
}

int crew_follow(struct comm *c, struct dev *d, const struct crew_target *target, struct errtext *e)
{
	struct follower f = {.c = c, .d = d, .target = target};
	int r = 0, timeout_s = c->timeout_s;
	for (;;) {
		struct head h = {0};
		c->timeout_s = 0; /* rank 0 may judge drafts, or wait for records, as long as it likes */
		r = comm_broadcast(c, &h, sizeof h);
		c->timeout_s = timeout_s;
		if (!r && h.op == CREW_END)
			break;
		if (!r)
			r = obey(&f, &h, e);
		if (r)
			break;
	}
	for (int i = 0; i < MAX_TRAINERS; i++)
		drop(&f, i);
	if (!r)
		return 0;
	if (!e->text[0])
		(void)errtext_set(e, r, "%s", c->failed ? c->error : *d->error ? d->error : strerror(-r));
	if (!c->failed)
		comm_abort(c, e->text);
	return r;
}
