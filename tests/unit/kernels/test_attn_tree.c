/* Attention over trees of proposals: right against a double reference, and the law:
 * every node's row has the bits of the same path decoded as a chain, wherever the tree begins
 * in its page, whatever its shape, whether its nodes come in one batch or level by level, whoever shares
 * the batch, for any number of threads, and with NaN in its siblings.
 */
#include "kt.h"

enum { NH = 6, NKV = 2, PAGES = 16, TOK = 32, MAX_T = 200, NODES = 20 };

struct tree {
	int tree0, n, hd;
	int16_t parent[NODES];
	int depth[NODES];
	real *k, *v; /* [tree0 + n, NKV*hd]: prefix, then nodes */
	real *q;     /* [1 + n, NH*hd]: the root (position tree0-1), then nodes */
	uint32_t pages[PAGES];
};

static void tree_make(struct tree *t, int tree0, int n, int hd, int shape)
{
	*t = (struct tree){.tree0 = tree0, .n = n, .hd = hd};
	for (int i = 0; i < n; i++) {
		t->parent[i] = (int16_t)(shape == 0 ? i - 1 : shape == 1 ? -1 : (int)(kt_u32() % (uint32_t)(i + 1)) - 1);
		t->depth[i] = t->parent[i] < 0 ? 0 : t->depth[t->parent[i]] + 1;
	}
	t->k = kt_reals((size_t)((tree0 + n) * NKV * hd), 2);
	t->v = kt_reals((size_t)((tree0 + n) * NKV * hd), 1);
	t->q = kt_reals((size_t)((1 + n) * NH * hd), 2);
	for (uint32_t i = 0; i < PAGES; i++)
		t->pages[i] = (i * 5 + 3) % PAGES;
}

static void tree_done(struct tree *t)
{
	kt_free(t->k);
	kt_free(t->v);
	kt_free(t->q);
}

static void pool_make(struct dev *d, struct kv_pool *p, int hd, enum dtype type, int page_tok)
{
	*p = (struct kv_pool){.n_layer = 1, .n_kv = NKV, .d = hd, .page_tok = page_tok, .n_pages = PAGES, .type = type};
	assert_int_equal(d->ops->kv_new(d, p), 0);
}

/* place `at` gets key and value `i` of the tree */
static void put(struct dev *d, struct kv_pool *p, const struct tree *t, int at, int i)
{
	uint32_t slot = t->pages[at / p->page_tok] * (uint32_t)p->page_tok + (uint32_t)(at % p->page_tok);
	size_t w = (size_t)(NKV * t->hd);
	assert_int_equal(d->ops->kv_write(d, p, 0, t->k + (size_t)i * w, t->v + (size_t)i * w, NKV * t->hd, &slot, 1), 0);
}

/* The path to a node (-1: the root alone), deepest last; returns its length */
static int path_to(const struct tree *t, int node, int *path)
{
	int n = node < 0 ? 0 : t->depth[node] + 1;
	for (int i = node, at = n; i >= 0; i = t->parent[i])
		path[--at] = i;
	return n;
}

/* What plain decoding gives for the root (out row 0) and every node */
static void as_chains(struct dev *d, const struct tree *t, enum dtype type, int page_tok, real *out)
{
	int w = NH * t->hd, path[NODES];
	struct kv_pool p;
	pool_make(d, &p, t->hd, type, page_tok);
	for (int i = 0; i < t->tree0; i++)
		put(d, &p, t, i, i);
	for (int node = -1; node < t->n; node++) {
		int n = path_to(t, node, path);
		for (int i = 0; i < n; i++)
			put(d, &p, t, t->tree0 + i, t->tree0 + path[i]);
		struct attn_seq s = {.pages = t->pages, .n_past = t->tree0 + n - 1, .n_rows = 1};
		assert_int_equal(d->ops->attn(d, out + (node + 1) * w, w, t->q + (node + 1) * w, w, &p, 0, &s, 1, NH, (real)0.2), 0);
	}
	d->ops->kv_free(d, &p);
}

static void reference(const struct tree *t, enum dtype type, double *out)
{
	int w = NH * t->hd, path[NODES], seen[MAX_T + NODES];
	double p[MAX_T + NODES];
	for (int node = -1; node < t->n; node++) {
		int n = t->tree0;
		for (int i = 0; i < n; i++)
			seen[i] = i;
		for (int i = 0, m = path_to(t, node, path); i < m; i++)
			seen[n++] = t->tree0 + path[i];
		for (int h = 0; h < NH; h++) {
			const real *q = t->q + (node + 1) * w + h * t->hd;
			double sum = 0, *o = out + (node + 1) * w + h * t->hd;
			for (int i = 0; i < n; i++) {
				const real *k = t->k + (seen[i] * NKV + h / (NH / NKV)) * t->hd;
				p[i] = 0;
				for (int c = 0; c < t->hd; c++)
					p[i] += (double)q[c] * (type == DT_BF16 ? (double)bf16_to_f32(f32_to_bf16((float)k[c])) : (double)k[c]);
				sum += p[i] = exp(p[i] * (double)(real)0.2);
			}
			for (int i = 0; i < n; i++) {
				const real *v = t->v + (seen[i] * NKV + h / (NH / NKV)) * t->hd;
				for (int c = 0; c < t->hd; c++)
					o[c] += p[i] / sum * (type == DT_BF16 ? (double)bf16_to_f32(f32_to_bf16((float)v[c])) : (double)v[c]);
			}
		}
	}
}

/* Nodes [from, to) of the tree as one batch, the root too when from is -1 */
static void run_nodes(struct dev *d, struct kv_pool *p, const struct tree *t, int from, int to, real *out)
{
	int w = NH * t->hd;
	struct attn_seq s = {.pages = t->pages, .n_past = t->tree0 + from, .n_rows = to - from, .parent = t->parent, .tree0 = t->tree0};
	assert_int_equal(d->ops->attn(d, out + (from + 1) * w, w, t->q + (from + 1) * w, w, p, 0, &s, 1, NH, (real)0.2), 0);
}

static void one_tree(struct dev *d, struct tree *t, enum dtype type, int page_tok)
{
	size_t n = (size_t)((t->n + 1) * NH * t->hd);
	real *want = kt_reals(n, 1), *out = kt_reals(n, 1);
	double *ref = kt_doubles(n);
	struct kv_pool p;
	dev_set_threads(d, 1);
	as_chains(d, t, type, page_tok, want);
	reference(t, type, ref);
	pool_make(d, &p, t->hd, type, page_tok);
	for (int i = 0; i < t->tree0 + t->n; i++)
		put(d, &p, t, i, i);
	for (int threads = 1; threads <= kt_threads(d); threads++) {
		dev_set_threads(d, threads);
		memset(out, 0xff, n * sizeof *out);
		run_nodes(d, &p, t, -1, t->n, out);
		kt_same_bits(out, want, n);
	}
	kt_close(out, ref, n, KT_TOL(3e-6));
	memset(out, 0xff, n * sizeof *out);
	run_nodes(d, &p, t, -1, 0, out); /* the root, and then some at a time, as a draft runs them */
	for (int from = 0; from < t->n; from += 3)
		run_nodes(d, &p, t, from, from + 3 < t->n ? from + 3 : t->n, out);
	kt_same_bits(out, want, n);
	d->ops->kv_free(d, &p);
	kt_free(want);
	kt_free(out);
	kt_free(ref);
}

static void equals_chains(void **state)
{
	static const int starts[] = {1, 17, 31, 32, 33, 63, 120, 127, 128, 129, 190};
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(21);
	for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
		for (int shape = 0; shape < 4; shape++)
			for (int type = DT_F32; type <= DT_BF16; type++) {
				struct tree t;
				tree_make(&t, starts[i], shape == 3 ? 5 : NODES, shape == 2 ? 20 : 64, shape);
				one_tree(d, &t, (enum dtype)type, shape == 3 ? 64 : 32);
				tree_done(&t);
			}
	dev_free(d);
}

/* Two trees and a chain in one batch; NaN in every node that is no ancestor of the one looked at */
static void neighbours_and_nan(void **state)
{
	struct dev *d = kt_dev(state, 2);
	kt_seed(22);
	for (int type = DT_F32; type <= DT_BF16; type++) {
		enum { HD = 32, W = NH * HD };
		struct tree t;
		struct kv_pool p;
		int path[NODES];
		tree_make(&t, 61, NODES, HD, 2);
		real *want = kt_reals((size_t)(NODES + 1) * W, 1), *out = kt_reals((size_t)(3 * NODES + 3) * W, 1), *q = kt_reals((size_t)(3 * NODES + 3) * W, 1);
		as_chains(d, &t, (enum dtype)type, TOK, want);
		pool_make(d, &p, HD, (enum dtype)type, TOK);
		for (int i = 0; i < t.tree0 + t.n; i++)
			put(d, &p, &t, i, i);
		for (int i = 0; i < 3; i++)
			memcpy(q + (size_t)(i * (NODES + 1)) * W, t.q, (size_t)(NODES + 1) * W * sizeof *q);
		struct attn_seq seqs[] = {
			{.pages = t.pages, .n_past = 60, .row0 = NODES + 1, .n_rows = NODES + 1, .parent = t.parent, .tree0 = 61},
			{.pages = t.pages, .n_past = 60, .row0 = 0, .n_rows = 1},
			{.pages = t.pages, .n_past = 60, .row0 = 2 * NODES + 2, .n_rows = NODES + 1, .parent = t.parent, .tree0 = 61},
		};
		assert_int_equal(d->ops->attn(d, out, W, q, W, &p, 0, seqs, 3, NH, (real)0.2), 0);
		kt_same_bits(out, want, W);
		kt_same_bits(out + (NODES + 1) * W, want, (size_t)(NODES + 1) * W);
		kt_same_bits(out + (2 * NODES + 2) * W, want, (size_t)(NODES + 1) * W);
		for (int node = 0; node < NODES; node++) {
			int n = path_to(&t, node, path);
			for (int i = 0; i < NODES; i++) {
				bool mine = false;
				for (int j = 0; j < n; j++)
					mine = mine || path[j] == i;
				real *bad = kt_reals(NKV * HD, 0);
				for (int c = 0; c < NKV * HD; c++)
					bad[c] = (real)NAN;
				uint32_t slot = t.pages[(t.tree0 + i) / TOK] * TOK + (uint32_t)((t.tree0 + i) % TOK);
				if (!mine)
					assert_int_equal(d->ops->kv_write(d, &p, 0, bad, bad, NKV * HD, &slot, 1), 0);
				else
					put(d, &p, &t, t.tree0 + i, t.tree0 + i);
				kt_free(bad);
			}
			run_nodes(d, &p, &t, node, node + 1, out);
			kt_same_bits(out + (node + 1) * W, want + (node + 1) * W, W);
		}
		d->ops->kv_free(d, &p);
		tree_done(&t);
		kt_free(want);
		kt_free(out);
		kt_free(q);
	}
	dev_free(d);
}

static void bad_trees(void **state)
{
	struct dev *d = kt_dev(state, 1);
	struct kv_pool p;
	uint32_t pages[PAGES];
	real *x = kt_reals(2 * NH * 8, 0), *out = kt_reals(2 * NH * 8, 0);
	int16_t forward[] = {-1, 1}, below[] = {-2, 0}, fine[] = {-1, 0};
	pool_make(d, &p, 8, DT_F32, TOK);
	for (uint32_t i = 0; i < PAGES; i++)
		pages[i] = i;
	struct attn_seq s = {.pages = pages, .n_past = 40, .n_rows = 2, .parent = forward, .tree0 = 40};
	assert_int_equal(d->ops->attn(d, out, NH * 8, x, NH * 8, &p, 0, &s, 1, NH, 1), -EINVAL);
	s.parent = below;
	assert_int_equal(d->ops->attn(d, out, NH * 8, x, NH * 8, &p, 0, &s, 1, NH, 1), -EINVAL);
	s.parent = fine;
	assert_int_equal(d->ops->attn(d, out, NH * 8, x, NH * 8, &p, 0, &s, 1, NH, 1), 0);
	s.tree0 = 42; /* begins two rows behind the first */
	assert_int_equal(d->ops->attn(d, out, NH * 8, x, NH * 8, &p, 0, &s, 1, NH, 1), -EINVAL);
	s.n_past = 200, s.tree0 = 40; /* more nodes than a tree may have */
	assert_int_equal(d->ops->attn(d, out, NH * 8, x, NH * 8, &p, 0, &s, 1, NH, 1), -EINVAL);
	kt_free(x);
	kt_free(out);
	d->ops->kv_free(d, &p);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(equals_chains), KT_TESTS(neighbours_and_nan), KT_TESTS(bad_trees)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
