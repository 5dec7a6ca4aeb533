/* Training from recorded runs, away from the stream: a first draft, or a better one.
 *
 * The same trainer, batches and replay as online; what differs is the order
 * (every epoch a new permutation), a learning rate that may end, and that all
 * of it is a pure function of corpus, options and seed: nothing is journalled.
 * A run that was killed goes on from the state at its last evaluation, to the same
 * weights bit for bit (on another device: to nearly the same, and says so), or is started again.
 * Threads: one owner, which owns the dev too.
 */
#pragma once
#include "learn/batch.h"
#include "learn/corpus.h"
#include "learn/publish.h"

struct offline_options {
	const struct trainer_kind *kind;
	struct train_options train;   /* total_steps is set here, from the schedule */
	uint64_t seed;
	int draft_vocab, max_rows, history_rows, epochs;
	int pack_rows;                /* a step takes further runs while they fit into so many rows; 0 = one run a step */
	int64_t tokens;               /* end after so many trained rows; 0 = after the epochs */
	bool prompt_rows, whole_teacher, cosine;
	bool stream;                  /* runs in the order of the corpus, once, as the learner meets them; else a new permutation each epoch */
	double replay_share;          /* stream: share of what is trained that is a run from before */
	double anchor;                /* each step draws the weights this far towards the start, or towards the end of the first folder; 0 = free */
	double ema;                   /* decay a step of the averaged weights, which are what is judged and kept; 0 = the last weights */
	double heldout_share;         /* of the runs, when no evaluation corpus is given */
	int heldout_domain_max, k;    /* runs judged of each domain; chain length */
	int64_t eval_tokens;          /* between two evaluations; 0 = at the end alone */
	uint64_t cache_bytes;         /* teachers kept from one epoch to the next */
	const volatile int *stop;     /* set: end with what there is */
	const char *state_dir;        /* the state at each evaluation is kept there, and gone on from; NULL: nowhere */
};

struct offline_domain {
	char name[32];
	int requests;
	uint64_t rounds, accepted;
	double low, high;             /* 95 % interval of the accept length, requests drawn */
};

enum { OFFLINE_MAX_DOMAINS = 17 }; /* and all together, last */

struct offline_report {
	int64_t step, steps;          /* steps: expected in all */
	int64_t resumed;              /* step that the run went on from; 0: from the start */
	char device[TRAINER_DEVICE_NAME]; /* on which steps are taken, as trainer_name_device says it */
	char taken_on[TRAINER_DEVICE_NAME]; /* on which those were that it went on from; "": on the same */
	int inexact;                  /* how often that was another, in the whole run: each time the rest rounds otherwise */
	int64_t tokens, tokens_total;
	double seconds;               /* of training */
	double loss, accuracy;        /* running means */
	int leg;                      /* which folder of the corpus the last step's run lies in */
	bool evaluated;
	int n_domains;                /* the last one is "all" */
	struct offline_domain domain[OFFLINE_MAX_DOMAINS];
};

/* corpus: trained. judge: held out; NULL: a share of corpus. start: the draft to go on from, or NULL for a first one.
 * report is called after every step and every evaluation; its failure ends the run and is returned.
 * keep (may be NULL): the draft as it stands at each evaluation, the last one included. */
struct offline_calls {
	int (*report)(void *arg, const struct offline_report *r);
	int (*keep)(void *arg, const struct draft *d, const struct offline_report *r);
	void *arg;
};
int MUSTCHECK offline_train(const struct offline_options *o, struct dev *d, struct corpus *corpus, struct corpus *judge, const struct draft *start,
			    const struct offline_calls *calls, struct errtext *e);
static inline double offline_accept_length(const struct offline_domain *x)
{
	return x->rounds ? 1 + (double)x->accepted / (double)x->rounds : 1;
}
