/* A step shared by ranks is trained as one rank trains it: loss, every step's loss, accuracy and alpha, each tensor's
 * gradient and the weights after several steps agree within rounding, for every grid D x U x R with D*U*R <= 8, lengths that
 * nothing divides, sequences shorter than the ranks are many, packed runs, fewer of them than groups too, dense and top-K teachers, weights and each kind
 * of loss. (In the double build the loss to 1e-12 and gradients to 1e-10, which leaves no room for a row that is missing.) Runs are dealt to groups
 * as evenly as their order allows. Two runs of a group are the
 * same bits. A grid that does not fit says why; a rank that fails ends the group; a group goes on from a saved state.
 * Ranks are threads here, so that sanitizers see all of it; test_ranks.c has them as processes. test_nccl does the same over comm_nccl, each rank on
 * an emulated GPU of its own, with fewer grids and rows, as a step there takes much longer.
 */
#include "tests/unit/learn/vectors.h"
#include "tests/unit/kernels/ranks.h"
#include "learn/crew.h"

#ifdef REDRAFT_DOUBLE
static const double TOL_LOSS = 1e-12, TOL_GRAD = 1e-10, TOL_WEIGHT = 1e-10;
#else
static const double TOL_LOSS = 2e-6, TOL_GRAD = 3e-5, TOL_WEIGHT = 3e-5;
#endif

/* ---- a synthetic sequence ---- */

struct sequence {
	struct train_batch b;
	struct eagle3_config c;
	int64_t d2t[24];
	uint16_t embedding[50 * 20], head[50 * 12];
	int32_t *state_row;
	real *z;
	uint32_t *ids, *pos, *seg, *t_ids, *y;
	real *features, *p, *mass, *weight;
	uint8_t *mask, *in_vocab;
};

static uint64_t state_;
static double uniform(void)
{
	state_ = state_ * 6364136223846793005u + 1442695040888963407u;
	return (double)(state_ >> 11) * 0x1p-53;
}

static int n_runs = 3; /* that a packed sequence has, each longer than the one before (some may be empty) */
static int n_groups = 1; /* D */

/* First row of the run of row t of n. */
static uint32_t run_of(size_t t, size_t n)
{
	uint32_t first = 0;
	for (size_t j = 1, runs = (size_t)n_runs; j < runs; j++) {
		size_t at = n * j * (j + 1) / (runs * (runs + 1));
		first = at <= t ? (uint32_t)at : first;
	}
	return first;
}

static void *array(size_t n, size_t size)
{
	void *p = calloc(n + 1, size);
	assert_non_null(p);
	return p;
}

static void sequence_new(struct sequence *s, int n, int nh, int nkv, bool packed, int K)
{
	*s = (struct sequence){.c = {.H = 20, .H_t = 12, .I = 28, .n_head = nh, .n_kv = nkv, .hd = 6, .V = 50, .V_d = 24, .rms_eps = (real)1e-5, .max_ctx = 4096, .rope = {.theta = 10000}}};
	state_ = (uint64_t)(n * 131 + nh * 7 + K);
	for (int i = 0; i < 24; i++)
		s->d2t[i] = i; /* every other token */
	for (size_t i = 0; i < sizeof s->embedding / sizeof *s->embedding; i++)
		s->embedding[i] = f32_to_bf16((float)(uniform() - 0.5));
	for (size_t i = 0; i < sizeof s->head / sizeof *s->head; i++)
		s->head[i] = f32_to_bf16((float)(2 * uniform() - 1));
	size_t N = (size_t)n, k = K ? (size_t)K : 24;
	s->ids = array(N + 1, 4), s->pos = array(N, 4), s->seg = array(N, 4), s->y = array(N, 4), s->t_ids = array(N * k, 4);
	s->features = array(N * 36, sizeof(real)), s->p = array(N * k, sizeof(real)), s->mass = array(N, sizeof(real)), s->weight = array(N, sizeof(real));
	s->state_row = array(N, 4), s->z = array(N * 12, sizeof(real));
	for (size_t i = 0, m = 0; i < N; i++)
		s->state_row[i] = i % 3 ? (int32_t)m++ : -1; /* every third teacher is handed in made */
	for (size_t i = 0; i < N * 12; i++)
		s->z[i] = (real)(2 * uniform() - 1);
	s->mask = array(N, 1), s->in_vocab = array(N, 1);
	for (size_t t = 0; t < N; t++) {
		uint32_t first = packed ? run_of(t, N) : 0;
		s->seg[t] = first;
		s->pos[t] = (uint32_t)t - first + 3;
		s->ids[t] = (uint32_t)(uniform() * 50);
		s->y[t] = (uint32_t)(uniform() * 50);
		s->in_vocab[t] = s->y[t] % 2 == 0 && s->y[t] < 48;
		s->mask[t] = uniform() < 0.8;
		s->mass[t] = (real)(0.5 + 0.5 * uniform());
		s->weight[t] = (real)uniform();
		double sum = 0;
		for (size_t j = 0; j < k; j++) {
			s->t_ids[t * k + j] = (uint32_t)(j * 24 / k);
			sum += s->p[t * k + j] = (real)uniform();
		}
		for (size_t j = 0; j < k; j++)
			s->p[t * k + j] = (real)(s->p[t * k + j] / sum);
		for (size_t j = 0; j < 36; j++)
			s->features[t * 36 + j] = (real)(4 * uniform() - 2);
	}
	s->ids[N] = 7;
	s->mask[0] = s->in_vocab[0] = 1;
	s->b = (struct train_batch){.n = n, .ids = s->ids, .pos = s->pos, .seg = packed ? s->seg : NULL, .features = s->features, .mask = s->mask, .y = s->y, .in_vocab = s->in_vocab,
				    .teacher = {.n = n, .K = (int)k, .ids = K ? s->t_ids : NULL, .p = s->p}};
}

static void sequence_done(struct sequence *s)
{
	void *all[] = {s->ids, s->pos, s->seg, s->t_ids, s->y, s->features, s->p, s->mass, s->weight, s->mask, s->in_vocab, s->state_row, s->z};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]);
}

/* ---- what a run gives ---- */

static enum ranks_by by = BY_THREADS; /* of the test that runs */
static int n_steps = 3;
struct outcome {
	struct train_result first, last;
	real *grads, *weights, *state; /* after the first gradients; after the steps */
	int64_t steps;
	size_t n;
};

static void outcome_done(struct outcome *o)
{
	free(o->grads);
	free(o->weights);
	free(o->state);
}

static struct train_options options(enum loss_kind loss)
{
	struct train_options o = options_default();
	o.ttt_steps = by == BY_NCCL ? 3 : 5;
	o.eps = (real)1e-3; /* else Adam makes a step of the rounding of a gradient of 0 */
	o.loss = loss;
	return o;
}

/* from: weights and state to go on from, or NULL. */
static bool with_states;

static struct dev *open_dev(void)
{
	struct dev *d = NULL;
	struct errtext e = {""};
	int r = dev_new(&(struct dev_options){.kind = by == BY_NCCL ? DEV_CUDA : DEV_CPU, .threads = 1, .isa = ISA_PORTABLE}, &d, &e);
	if (r)
		fprintf(stderr, "%s\n", e.text);
	return d;
}

static void school(const struct sequence *s, struct train_options opt, struct comm *c, int U, const struct outcome *from, struct outcome *ret)
{
	struct dev *d = open_dev();
	struct trainer *t = NULL;
	struct errtext e = {""};
	opt.ranks = c;
	opt.ulysses = U;
	opt.data = c ? n_groups : 1;
	int r = d ? 0 : -ENODEV;
	if (!r && c)
		r = comm_device(c, d, &e);
	r = r ? r : trainer_eagle3.new(d, &s->c, &opt, s->d2t, s->embedding, &t, &e);
	if (r)
		fail_msg("%s", e.text);
	size_t n = ret->n = trainer_eagle3.n_params(t);
	ret->grads = array(n, sizeof(real)), ret->weights = array(n, sizeof(real)), ret->state = array(trainer_eagle3.n_state(t), sizeof(real));
	trainer_eagle3.init_random(t, 5);
	struct weight head = {0};
	struct train_batch b = s->b;
	struct teacher_states states = {.row = s->state_row, .z = s->z, .head = &head};
	if (with_states) {
		uint16_t rows[24 * 12];
		for (int i = 0; i < 24; i++)
			memcpy(rows + i * 12, s->head + (s->d2t[i] + i) * 12, 12 * sizeof *rows);
		assert_int_equal(d->ops->weight_pack(d, &head, DT_BF16, 24, 12, rows, DT_BF16), 0);
		b.states = &states;
	}
	if (from) {
		memcpy(trainer_eagle3.params(t), from->weights, n * sizeof(real));
		trainer_eagle3.params_changed(t);
		assert_int_equal(trainer_eagle3.load_state(t, from->state, from->steps), 0);
	}
	assert_int_equal(trainer_eagle3.forward_backward(t, &b, &ret->first), 0);
	memcpy(ret->grads, trainer_eagle3.grads(t), n * sizeof(real));
	for (int i = 0; i < n_steps; i++)
		assert_int_equal(trainer_eagle3.step(t, &b, &ret->last), 0);
	memcpy(ret->weights, trainer_eagle3.params(t), n * sizeof(real));
	assert_int_equal(trainer_eagle3.save_state(t, ret->state, &ret->steps), 0);
	d->ops->weight_free(d, &head);
	trainer_eagle3.free(t);
	dev_free(d);
}

/* ---- ranks as threads ---- */

struct follower {
	struct comm *c;
	const uint16_t *embedding, *head;
	int V, H_t, r;
	struct errtext e;
};

static void *follow(void *arg)
{
	struct follower *m = arg;
	struct dev *d = open_dev();
	m->r = d ? comm_device(m->c, d, &m->e) : -ENODEV;
	if (!m->r)
		m->r = crew_follow(m->c, d, &(struct crew_target){m->embedding, m->head, m->V, m->H_t}, &m->e);
	dev_free(d);
	return NULL;
}

static void group(const struct sequence *s, struct train_options opt, int U, int R, const struct outcome *from, struct outcome *ret)
{
	struct comm *c[8];
	struct follower m[8];
	pthread_t t[8];
	int n = n_groups * U * R;
	ranks_new(by, n, c);
	for (int i = 1; i < n; i++) {
		c[i]->timeout_s = 60;
		m[i] = (struct follower){.c = c[i], .embedding = s->embedding, .head = s->head, .V = 50, .H_t = 12};
		assert_int_equal(pthread_create(&t[i], NULL, follow, &m[i]), 0);
	}
	school(s, opt, c[0], U, from, ret);
	crew_end(c[0], NULL);
	for (int i = 1; i < n; i++) {
		(void)pthread_join(t[i], NULL);
		if (m[i].r)
			fail_msg("rank %d: %s", i, m[i].e.text);
	}
	for (int i = 0; i < n; i++)
		comm_free(c[i]);
}

static bool near(double a, double b)
{
	return fabs(a - b) <= TOL_LOSS * (1 + fabs(b));
}

static void compare(const struct sequence *s, const struct outcome *got, const struct outcome *want, const char *what)
{
	struct draft_layout lay;
	draft_layout_init(&s->c, &lay);
	bool same = near(got->first.loss, want->first.loss) && near(got->last.loss, want->last.loss) && got->first.tokens == want->first.tokens;
	for (int k = 0; k < 5; k++)
		same &= near(got->first.step_loss[k], want->first.step_loss[k]) && near(got->first.step_acc[k], want->first.step_acc[k]) && near(got->first.step_alpha[k], want->first.step_alpha[k]);
	if (!same)
		fail_msg("%s: loss %.9f and %.9f, one rank %.9f and %.9f; tokens %lld, %lld", what, got->first.loss, got->last.loss, want->first.loss, want->last.loss, (long long)got->first.tokens,
			 (long long)want->first.tokens);
	for (int i = 0; i < E3_N_TENSORS; i++) {
		size_t n = (size_t)lay.rows[i] * (size_t)lay.cols[i];
		double g = worst(got->grads + lay.off[i], want->grads + lay.off[i], n), w = worst(got->weights + lay.off[i], want->weights + lay.off[i], n);
		if (!(g <= TOL_GRAD) || !(w <= TOL_WEIGHT))
			fail_msg("%s: %s: gradient off by %.3g, weights by %.3g of the largest", what, eagle3_tensor_name((enum eagle3_tensor)i), g, w);
	}
}

static void check(int n, int nh, int nkv, int U, int R, bool packed, int K, enum loss_kind loss, bool weights)
{
	char what[96];
	struct sequence s;
	struct outcome one = {0}, many = {0};
	(void)snprintf(what, sizeof what, "%d rows, %d/%d heads, %d x %d x %d, %d runs, loss %d", n, nh, nkv, n_groups, U, R, packed ? n_runs : 1, (int)loss);
	sequence_new(&s, n, nh, nkv, packed, K);
	if (weights) {
		s.b.weight = s.weight;
		s.b.teacher.mass = s.mass;
	}
	school(&s, options(loss), NULL, 1, NULL, &one);
	group(&s, options(loss), U, R, NULL, &many);
	compare(&s, &many, &one, what);
	outcome_done(&one);
	outcome_done(&many);
	sequence_done(&s);
}

static const int heads[9][2] = {{0}, {8, 4}, {8, 4}, {6, 3}, {8, 2}, {5, 5}, {6, 3}, {7, 7}, {8, 4}}; /* by U; 4, 6, 8: kv heads held twice */

static void test_every_grid(void **state)
{
	(void)state;
	for (int U = 1; U <= 8; U++)
		for (int R = 1; U * R <= 8; R++) {
			if (U * R == 1)
				continue;
			check(101, heads[U][0], heads[U][1], U, R, true, 0, LOSS_KL, false);
			check(67, heads[U][0], heads[U][1], U, R, false, 6, LOSS_KL, true);
		}
}

static void test_lengths(void **state)
{
	(void)state;
	static const int lengths[] = {1, 2, 3, 4, 5, 8, 9, 17, 31, 64, 129};
	static const int grids[][2] = {{1, 2}, {2, 2}, {1, 5}, {2, 3}, {4, 2}};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
			check(lengths[i], 8, 4, grids[g][0], grids[g][1], i % 2, 0, LOSS_KL, false);
}

static void test_losses(void **state)
{
	(void)state;
	for (int loss = 0; loss < N_LOSS; loss++)
		check(45, 8, 4, 2, 2, true, 8, (enum loss_kind)loss, true);
}

/* ---- groups of ranks, each with runs of its own ---- */

static void test_groups(void **state)
{
	(void)state;
	for (n_groups = 2; n_groups <= 8; n_groups++)
		for (int U = 1; n_groups * U <= 8; U++)
			for (int R = 1; n_groups * U * R <= 8; R++) {
				n_runs = n_groups + R; /* as many as groups, and some more */
				check(101, heads[U][0], heads[U][1], U, R, true, 0, LOSS_KL, false);
				n_runs = 3; /* and some groups have none */
				check(67, heads[U][0], heads[U][1], U, R, true, 6, LOSS_KL, true);
			}
	n_groups = 1;
}

static void test_groups_of_few_rows(void **state)
{
	(void)state;
	static const int lengths[] = {1, 2, 3, 4, 5, 9, 31}, grids[][3] = {{2, 1, 1}, {2, 1, 2}, {2, 2, 2}, {3, 2, 1}, {4, 1, 2}, {8, 1, 1}};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
			for (n_runs = 1, n_groups = grids[g][0]; n_runs < 5; n_runs += 2)
				check(lengths[i], 8, 4, grids[g][1], grids[g][2], n_runs > 1, 0, LOSS_KL, false);
	n_runs = 3;
	n_groups = 1;
}

static void test_groups_losses(void **state)
{
	(void)state;
	n_groups = 2;
	for (int loss = 0; loss < N_LOSS; loss++)
		check(45, 8, 4, 2, 1, true, 8, (enum loss_kind)loss, true);
	with_states = true;
	check(45, 8, 4, 1, 2, true, 8, LOSS_KL, true);
	n_groups = 4; /* more than runs */
	check(46, 8, 4, 1, 1, true, 0, LOSS_LK_LAMBDA, false);
	with_states = false;
	n_groups = 1;
}

/* The longest part of any way to cut the runs from the i-th on into so many parts. */
static int shortest(const int *run, int i, int runs, int parts)
{
	int best = INT32_MAX, sum = 0;
	if (i == runs)
		return 0;
	if (!parts)
		return best;
	for (int end = i + 1; end <= runs; end++) {
		sum += run[end - 1];
		int rest = shortest(run, end, runs, parts - 1), most = sum > rest ? sum : rest;
		best = most < best ? most : best;
	}
	return best;
}

static void test_cut(void **state)
{
	(void)state;
	state_ = 11;
	for (int i = 0; i < 2000; i++) {
		int run[7], runs = 1 + (int)(uniform() * 7), parts = 1 + (int)(uniform() * 8), n = 0, at = 0, most = 0;
		uint32_t seg[7 * 9];
		struct seq_part part[8];
		for (int k = 0; k < runs; k++) {
			run[k] = 1 + (int)(uniform() * 9);
			for (int t = 0; t < run[k]; t++)
				seg[n + t] = (uint32_t)n;
			n += run[k];
		}
		seqpar_cut(seg, n, parts, part);
		for (int p = 0; p < parts; p++) {
			assert_int_equal(part[p].first, at);
			assert_true(part[p].n >= 0 && (at == n || seg[at] == (uint32_t)at)); /* whole runs */
			at += part[p].n;
			most = part[p].n > most ? part[p].n : most;
		}
		assert_int_equal(at, n);
		assert_int_equal(most, shortest(run, 0, runs, parts));
		seqpar_cut(NULL, n, parts, part); /* one run */
		assert_true(part[0].first == 0 && part[0].n == n && (parts == 1 || part[parts - 1].n == 0));
	}
}

/* Teachers that come as final states are made by each rank for its own rows. */
static void test_states(void **state)
{
	(void)state;
	with_states = true;
	check(45, 8, 4, 2, 2, true, 8, LOSS_KL, true);
	check(46, 8, 4, 1, 3, false, 0, LOSS_LK_LAMBDA, false);
	check(4, 8, 4, 4, 2, false, 6, LOSS_KL, false);
	with_states = false;
}

/* Muon too; a group's two runs are the same bits; it goes on from a saved state as if it had not stopped. */
static void test_exact(void **state)
{
	(void)state;
	struct sequence s;
	struct outcome one = {0}, a = {0}, b = {0}, c = {0};
	struct train_options o = options(LOSS_KL);
	o.optimizer = OPT_MUON;
	sequence_new(&s, 77, 8, 4, true, 0);
	group(&s, o, 2, 2, NULL, &a);
	group(&s, o, 2, 2, NULL, &b);
	assert_memory_equal(a.weights, b.weights, a.n * sizeof(real));
	assert_memory_equal(a.state, b.state, 2 * a.n * sizeof(real));
	outcome_done(&b);
	group(&s, o, 2, 2, &a, &b);
	group(&s, o, 2, 2, &a, &c);
	assert_int_equal(b.steps, 2 * n_steps);
	assert_memory_equal(b.weights, c.weights, a.n * sizeof(real));
	school(&s, o, NULL, 1, &a, &one);
	compare(&s, &b, &one, "resumed");
	outcome_done(&one);
	outcome_done(&a);
	outcome_done(&b);
	outcome_done(&c);
	n_groups = 2; /* two groups, the same */
	group(&s, o, 2, 2, NULL, &a);
	group(&s, o, 2, 2, NULL, &b);
	assert_memory_equal(a.weights, b.weights, a.n * sizeof(real));
	assert_memory_equal(a.state, b.state, 2 * a.n * sizeof(real));
	n_groups = 1;
	outcome_done(&a);
	outcome_done(&b);
	sequence_done(&s);
}

static void test_nccl(void **state)
{
	static const struct {
		int n, nh, nkv, U, R, K;
		bool packed, weights, states;
		int groups;
	} cases[] = {
		{33, 4, 2, 1, 2, 0, true, false, false, 1}, {21, 4, 2, 2, 1, 6, false, true, false, 1}, {29, 4, 2, 2, 2, 0, true, false, true, 1}, {19, 4, 1, 1, 3, 6, false, true, false, 1},
		{23, 4, 2, 4, 2, 0, true, false, false, 1}, {27, 2, 2, 2, 4, 6, false, true, false, 1}, {3, 4, 2, 2, 2, 0, false, false, false, 1},
		{31, 4, 2, 1, 1, 0, true, false, true, 2}, {26, 4, 2, 2, 1, 6, true, true, false, 3}, {25, 4, 2, 2, 2, 0, true, false, false, 2},
	};
	struct sequence s;
	struct outcome a = {0}, b = {0};
	(void)state;
	ranks_need_emulation();
	by = BY_NCCL;
	n_steps = 1;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		with_states = cases[i].states;
		n_groups = cases[i].groups;
		check(cases[i].n, cases[i].nh, cases[i].nkv, cases[i].U, cases[i].R, cases[i].packed, cases[i].K, i % 2 ? LOSS_KL : LOSS_LK_LAMBDA, cases[i].weights);
	}
	with_states = false;
	n_groups = 1;
	sequence_new(&s, 17, 4, 2, true, 0);
	group(&s, options(LOSS_KL), 2, 2, NULL, &a);
	group(&s, options(LOSS_KL), 2, 2, NULL, &b);
	assert_memory_equal(a.weights, b.weights, a.n * sizeof(real));
	outcome_done(&a);
	outcome_done(&b);
	sequence_done(&s);
	by = BY_THREADS;
}

static void test_grids_that_do_not_fit(void **state)
{
	(void)state;
	struct sequence s;
	struct comm *c[6];
	struct seqpar *sp = NULL;
	struct errtext e = {""};
	struct dev *d = dev_or_null(1, ISA_PORTABLE);
	sequence_new(&s, 8, 8, 4, false, 0);
	assert_int_equal(comm_threads_new(6, c), 0);
	assert_int_equal(seqpar_new(d, c[0], 1, 4, &s.c, &sp, &e), -EINVAL);
	assert_string_equal(e.text, "ulysses is 4: it must divide the 6 ranks; ring is the rest");
	assert_int_equal(seqpar_new(d, c[0], 1, 3, &s.c, &sp, &e), -EINVAL);
	assert_non_null(strstr(e.text, "8 heads"));
	assert_int_equal(seqpar_new(d, c[0], 4, 1, &s.c, &sp, &e), -EINVAL);
	assert_string_equal(e.text, "data is 4: it must divide the 6 ranks");
	assert_int_equal(seqpar_new(d, c[0], 3, 3, &s.c, &sp, &e), -EINVAL);
	assert_string_equal(e.text, "ulysses is 3: it must divide the 2 ranks of a group; ring is the rest");
	d->own_memory = true; /* what travels must lie in ordinary memory */
	assert_int_equal(seqpar_new(d, c[0], 1, 2, &s.c, &sp, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "device = cpu"));
	d->own_memory = false;
	assert_null(sp);
	for (int i = 0; i < 6; i++)
		comm_free(c[i]);
	sequence_done(&s);
	dev_free(d);
}

/* A rank that is another kind of program, one that goes away, and a bad batch. */
static void test_failures(void **state)
{
	(void)state;
	struct sequence s;
	struct comm *c[3];
	struct trainer *t = NULL;
	struct train_result res;
	struct errtext e = {""};
	struct train_options o = options(LOSS_KL);
	struct dev *d = dev_or_null(1, ISA_PORTABLE);
	sequence_new(&s, 40, 8, 4, false, 0);
	assert_int_equal(comm_threads_new(3, c), 0);
	struct follower m[3];
	pthread_t th[3];
	for (int i = 1; i < 3; i++) {
		m[i] = (struct follower){.c = c[i], .embedding = s.embedding, .head = s.head, .V = i == 2 ? 51 : 50, .H_t = 12};
		assert_int_equal(pthread_create(&th[i], NULL, follow, &m[i]), 0);
	}
	o.ranks = c[0];
	int r = trainer_eagle3.new(d, &s.c, &o, s.d2t, s.embedding, &t, &e);
	if (!r)
		r = trainer_eagle3.step(t, &s.b, &res);
	assert_true(comm_lost(r));
	assert_non_null(strstr(c[0]->error, "rank 2 has another target"));
	assert_int_equal(crew_tell(c[0], CREW_STEP, 1, 0, NULL, 0), r); /* for good */
	if (t) /* the trainer was made before rank 2 had said no */
		assert_int_equal(trainer_eagle3.step(t, &s.b, &res), r);
	for (int i = 1; i < 3; i++) {
		(void)pthread_join(th[i], NULL);
		assert_true(m[i].r < 0 && m[i].e.text[0]);
	}
	trainer_eagle3.free(t);
	for (int i = 0; i < 3; i++)
		comm_free(c[i]);

	/* a batch that is refused is refused before anybody is told */
	assert_int_equal(comm_threads_new(2, c), 0);
	m[1] = (struct follower){.c = c[1], .embedding = s.embedding, .head = s.head, .V = 50, .H_t = 12};
	assert_int_equal(pthread_create(&th[1], NULL, follow, &m[1]), 0);
	o.ranks = c[0];
	assert_int_equal(trainer_eagle3.new(d, &s.c, &o, s.d2t, s.embedding, &t, &e), 0);
	trainer_eagle3.init_random(t, 3);
	s.b.teacher.n = 3;
	assert_int_equal(trainer_eagle3.step(t, &s.b, &res), -EINVAL);
	s.b.teacher.n = s.b.n;
	s.features[100] = (real)INFINITY;
	assert_int_equal(trainer_eagle3.step(t, &s.b, &res), 1);
	s.features[100] = 1;
	s.b.loss_max = 1e-3; /* every rank leaves this step out */
	assert_int_equal(trainer_eagle3.step(t, &s.b, &res), 1);
	s.b.loss_max = 0;
	assert_int_equal(trainer_eagle3.step(t, &s.b, &res), 0);
	trainer_eagle3.free(t);
	crew_end(c[0], NULL);
	(void)pthread_join(th[1], NULL);
	assert_int_equal(m[1].r, 0);
	comm_free(c[0]);
	comm_free(c[1]);
	sequence_done(&s);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_grid), cmocka_unit_test(test_lengths), cmocka_unit_test(test_losses), cmocka_unit_test(test_states), cmocka_unit_test(test_exact),
		cmocka_unit_test(test_groups), cmocka_unit_test(test_groups_of_few_rows), cmocka_unit_test(test_groups_losses), cmocka_unit_test(test_cut),
		cmocka_unit_test(test_grids_that_do_not_fit), cmocka_unit_test(test_failures), cmocka_unit_test(test_nccl),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
