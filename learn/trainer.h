/* The draft interface, learning half: one table per family (EAGLE-3 TTT first).
 *
 * A trainer holds f32 masters in one flat array (order of enum eagle3_tensor),
 * gradients, optimizer state; it never logs, never reads a clock. A step is a
 * pure function of weights, optimizer state and batch, the same bits for any
 * number of threads.
 */
#pragma once
#include "kernels/model/eagle3.h"

/* What a step's loss is (learn/ttt_loss.c has the table). n rows, kappa_t their weights. */
enum loss_kind {
	LOSS_KL,         /* 1/n sum kappa -Q.log q: eagle3.md's, and SpecForge's default */
	LOSS_REVERSE_KL, /* 1/n sum kappa KL(q | Q) */
	LOSS_TV,         /* 1/n sum kappa (1 - alpha) */
	LOSS_CE,         /* 1/n sum kappa -log q[the teacher's likeliest token] */
	LOSS_LK_ALPHA,   /* mean over kappa of -log alpha */
	LOSS_LK_LAMBDA,  /* l LOSS_KL + (1-l) (1 - a), a = mean over kappa of alpha, l = exp(-a), which has no gradient */
	N_LOSS
};
#define LOSS_NAMES "kl|reverse-kl|tv|ce|lk-alpha|lk-lambda" /* as options spell them, in enum order */
enum optimizer_kind { OPT_ADAMW, OPT_MUON /* on the matrices; AdamW on head and norms */ };

/* In what order a step adds, as a number. Who changes that on any device, in ttt_*, the optimizers or the kernels under them, so that a step comes to
 * other bits, raises it: journals name it beside the device, and steps that were added otherwise when they were taken are said to be repeated inexactly.
 * 2: rows in front without weight are left out. (Journals before that name none.) */
enum { TRAINER_SUMS = 2 };
/* What the bits of a step depend on beside its inputs, in words fit for JSON: the device, how it multiplies, and the order of sums. */
enum { TRAINER_DEVICE_NAME = 64 };
void trainer_name_device(const struct dev *d, char ret[static TRAINER_DEVICE_NAME]);

struct comm;
struct train_options {
	int ttt_steps;      /* 7 */
	real decay;         /* 0.8 */
	enum loss_kind loss;
	enum optimizer_kind optimizer;
	real lr, muon_lr, beta1, beta2, eps, clip; /* 1e-3, 0.02, 0.9, 0.999, 1e-8, 0.5 */
	real muon_momentum; /* 0.95 */
	int muon_iters;     /* Newton-Schulz rounds a step: 5, or 3 for less work */
	int64_t warmup_steps, total_steps; /* total 0 = constant after warm-up */
	real first;         /* a draft from nothing begins at so many times the rates, falling to them (learn/schedule.h); 0 or 1 = at them */
	struct comm *ranks; /* that share each step (learn/crew.h); this is rank 0, or told by it. NULL: this process alone */
	const struct weight *head; /* ranks but 0: the target's head, as in struct teacher_states, which they make their own teachers with */
	int data;           /* they are so many groups, each with runs of its own of the step's (learn/seqpar.h). 0 = 1 */
	int ulysses;        /* of the ranks of a group, so many swap rows for heads; the rest is ring. 0 = 1 */
};

/* Teachers given as final states (after the final norm) and a head: Q = softmax(head z) over the draft vocabulary, made
 * for a chunk of rows at a time where a step needs it. Host arrays. */
struct teacher_states {
	const int32_t *row;         /* [n] which row of z is row t's teacher, -1: batch.teacher's row is */
	const real *z;              /* [.,H_t] */
	const struct weight *head;  /* [V_d,H_t] the target's head, rows of the draft vocabulary */
};

/* One training run of n rows (one request or several packed). Host arrays. */
struct train_batch {
	int n;
	const uint32_t *ids;   /* [n+1]: x_0..x_n; row t embeds x_{t+1+k} */
	const uint32_t *pos;   /* [n] position of row t */
	const uint32_t *seg;   /* [n] first row of the run that row t belongs to, or NULL */
	const real *features;  /* [n,3*H_t] */
	const uint8_t *mask;   /* [n] row t's weight: loss_mask shifted as the batch builder chose (indexed by t+k as in eagle3.md §3.2) */
	const real *weight;    /* [n] on top of mask: the row as a teacher, as mask is; NULL: all 1 */
	struct teacher teacher; /* Q_t, already shifted: row t = distribution after x_{t+1} */
	const struct teacher_states *states; /* NULL: none */
	const uint32_t *y;     /* [n] argmax over V after x_{t+1} */
	const uint8_t *in_vocab; /* [n] t2d[y] */
	double loss_max;         /* a loss above it is no step (1, as a non-finite one); 0 = any */
};

struct train_result {
	double loss;                       /* sum of decay^k loss_k */
	double step_loss[TTT_MAX_STEPS], step_acc[TTT_MAX_STEPS], step_alpha[TTT_MAX_STEPS];
	double grad_norm;
	int64_t tokens;                    /* rows with weight */
};

struct trainer;
struct trainer_kind {
	const char *name; /* "eagle3" */
	int (*new)(struct dev *d, const struct eagle3_config *c, const struct train_options *o, const int64_t *d2t,
		   const uint16_t *embedding_bf16 /* [V,H] host, borrowed */, struct trainer **ret, struct errtext *e);
	struct trainer *(*free)(struct trainer *t);
	size_t (*n_params)(const struct trainer *t);
	real *(*params)(struct trainer *t);  /* flat masters, host-visible copy semantics: call params_changed after writing */
	void (*params_changed)(struct trainer *t);
	const real *(*grads)(struct trainer *t); /* of the last forward_backward */
	void (*init_random)(struct trainer *t, uint64_t seed); /* trunc-normal-ish 0.02, norms 1 */
	/* loss and gradients, no update. b NULL: rank 0 has the batch. Once a rank is gone (comm_lost) every call fails. */
	int (*forward_backward)(struct trainer *t, const struct train_batch *b, struct train_result *ret);
	/* forward_backward + clip + optimizer. 1: non-finite or above loss_max, nothing changed (counted by the caller). */
	int (*step)(struct trainer *t, const struct train_batch *b, struct train_result *ret);
	/* Optimizer state as one flat array, for checkpoints; step counter with it. */
	size_t (*n_state)(const struct trainer *t);
	int (*save_state)(struct trainer *t, real *ret_state, int64_t *ret_step);
	int (*load_state)(struct trainer *t, const real *state, int64_t step); /* state NULL: reset moments */
};
extern const struct trainer_kind trainer_eagle3;

/* Replayed accept length (learn/replay.c): one TTT forward over recorded tokens, walked
 * round by round from the first generated row. */
struct replay_request {
	int n;                   /* rows */
	const uint32_t *ids;     /* [n+1] */
	const uint32_t *pos;     /* [n] */
	const real *features;    /* [n,3*H_t] */
	int first_round_row;     /* row t of the first round */
	/* recorded rounds to follow instead (served-against-replayed check), or NULL */
	const uint32_t *round_start; const uint8_t *round_len; int n_rounds;
	uint8_t *round_accepted; /* [n_rounds], filled: how many of each of those are right; or NULL */
};
struct replay_result { uint32_t rounds, accepted; uint32_t proposed_at[TTT_MAX_STEPS], accepted_at[TTT_MAX_STEPS]; };
/* weights: flat masters of a draft (same order). AL = 1 + accepted/rounds. */
int MUSTCHECK replay_accept_length(struct dev *d, const struct eagle3_config *c, const real *weights, const int64_t *d2t,
				   const uint16_t *embedding_bf16, const struct replay_request *r, int k, struct replay_result *ret);
