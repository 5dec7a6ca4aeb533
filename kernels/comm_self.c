/* One rank: nobody to talk to (kernels/comm.h). */
#include "kernels/comm.h"

static int self_post(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	(void)where;
	(void)out;
	(void)in;
	return n_out || n_in ? comm_fail(c, -EINVAL, "a message for another rank, and there is none") : 0;
}

static int self_wait(struct comm *c)
{
	(void)c;
	return 0;
}

static void self_nothing(struct comm *c)
{
	(void)c;
}

static const struct comm_ops self_ops = {.name = "self", .post = self_post, .wait = self_wait, .abort = self_nothing, .free = self_nothing};

struct comm *comm_self(void)
{
	static struct comm self = {.ops = &self_ops, .size = 1, .local = 1};
	return &self;
}
