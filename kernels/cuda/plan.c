/* Who sees whom, as the kernels of attn.cu read it.
 *
 * From the sequences of a batch come: for each batch row its position, splits and path;
 * the page tables side by side; and the tiles, each a few rows of one sequence in one
 * split of positions. All of it lies in one block, so that it goes across as one array.
 * Tiles of a prompt's rows on tensor cores begin at absolute positions (prompt.cu says why).
 */
#include <limits.h>
#include <string.h>
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan.h"

static int tree_nodes(const struct attn_seq *s)
{
	return s->n_past + s->n_rows - s->tree0;
}

static bool tree_fits(const struct attn_seq *s)
{
	int n = tree_nodes(s);
	if (s->tree0 < 0 || s->tree0 > s->n_past + 1 || n < 0 || n > ATTN_TREE_MAX)
		return false;
	for (int i = 0; i < n; i++)
		if (s->parent[i] < -1 || s->parent[i] >= i)
			return false;
	return true;
}

static int pages_of(const struct attn_seq *s, const struct kv_pool *p)
{
	return s->n_rows ? (s->n_past + s->n_rows - 1) / p->page_tok + 1 : 0;
}

static bool on_tensor(const struct plan_of *of, const struct attn_seq *s)
{
	return of->tensor && s->prompt && !s->parent;
}

static int split_of(const struct plan_of *of, const struct attn_seq *s)
{
	return on_tensor(of, s) ? CK_PROMPT_SPLIT : CK_SPLIT;
}

/* Query heads of a group that a tile takes, and rows at most */
static int heads_of(const struct plan_of *of, const struct attn_seq *s, int *ret_rows)
{
	int most = on_tensor(of, s) ? CK_PROMPT_TILE : CK_TILE, heads = cuda_min(of->nh / of->pool.n_kv, most);
	*ret_rows = most / heads;
	return heads;
}

/* Where the tile of row i ends, at most */
static int tile_end(const struct plan_of *of, const struct attn_seq *s, int i, int per)
{
	return cuda_min(s->n_rows, i + per - (on_tensor(of, s) ? (s->n_past + i) % per : 0));
}

/* What is wrong with a sequence, or NULL; how much room its tables take at most goes into *room */
static const char *check_seq(const struct attn_seq *s, const struct plan_of *of, struct plan_room *room)
{
	const struct kv_pool *p = &of->pool;
	int group = of->nh / p->n_kv, per, heads = heads_of(of, s, &per), splits = (s->n_past + s->n_rows) / split_of(of, s) + 1;
	if (s->n_rows < 0 || s->n_past < 0 || s->row0 < 0)
		return "attn: sequence";
	for (int i = 0; i < pages_of(s, p); i++)
		if (s->pages[i] >= (uint32_t)p->n_pages)
			return "attn: page past the pool";
	if (s->parent && !tree_fits(s))
		return "attn: tree";
	int before = on_tensor(of, s) && s->n_rows ? s->n_past % per : 0, tiles = (before + s->n_rows + per - 1) / per * ((group + heads - 1) / heads) * splits;
	*(on_tensor(of, s) ? &room->prompt : &room->tiles) += tiles;
	room->pages += pages_of(s, p);
	room->paths += s->parent ? s->n_rows * ATTN_TREE_MAX : 0;
	room->parts += splits > 1 ? s->n_rows * splits * of->nh : 0;
	room->M = s->row0 + s->n_rows > room->M ? s->row0 + s->n_rows : room->M;
	return NULL;
}

const char *plan_room(const struct attn_seq *seqs, int n_seqs, const struct plan_of *of, struct plan_room *ret)
{
	const char *wrong = NULL;
	*ret = (struct plan_room){0};
	for (int i = 0; i < n_seqs && !wrong; i++)
		wrong = check_seq(&seqs[i], of, ret);
	return wrong;
}

static int power_of_two(int n)
{
	int p = 8;
	while (p < n)
		p *= 2;
	return n ? p : 0;
}

struct plan_room plan_round_up(struct plan_room r)
{
	return (struct plan_room){.M = r.M, .tiles = power_of_two(r.tiles), .prompt = power_of_two(r.prompt), .pages = power_of_two(r.pages),
				  .paths = power_of_two(r.paths), .parts = power_of_two(r.parts)};
}

bool plan_fits(const struct plan_room *r, const struct plan_room *in)
{
	return r->M == in->M && r->tiles <= in->tiles && r->prompt <= in->prompt && r->pages <= in->pages && r->paths <= in->paths && r->parts <= in->parts;
}

/* Offsets of tiles, those of prompts behind them, pages, paths and the end; rows come first */
static void cut(const struct plan_room *r, size_t at[5])
{
	at[0] = cuda_round_up((size_t)r->M * sizeof(struct ck_row), 16);
	at[1] = at[0] + (size_t)r->tiles * sizeof(struct ck_tile);
	at[2] = at[1] + cuda_round_up((size_t)r->prompt * sizeof(struct ck_tile), 16);
	at[3] = at[2] + cuda_round_up((size_t)r->pages * sizeof(uint32_t), 16);
	at[4] = at[3] + (size_t)r->paths * sizeof(int16_t);
}

size_t plan_bytes(const struct plan_room *r)
{
	size_t at[5];
	cut(r, at);
	return at[4];
}

void plan_point(struct ck_attn *a, const char *on_dev, const struct plan_room *r)
{
	size_t at[5];
	cut(r, at);
	a->rows = (const struct ck_row *)(const void *)on_dev;
	a->tiles = (const struct ck_tile *)(const void *)(on_dev + at[0]);
	a->prompt = (const struct ck_tile *)(const void *)(on_dev + at[1]);
	a->pages = (const uint32_t *)(const void *)(on_dev + at[2]);
	a->paths = (const int16_t *)(const void *)(on_dev + at[3]);
}

static void fill_row(struct plan *x, const struct plan_of *of, const struct attn_seq *s, int i, int first_page)
{
	int node = s->parent ? s->n_past + i - s->tree0 : -1, depth = 0;
	struct ck_row *r = &x->rows[s->row0 + i];
	*r = (struct ck_row){.hi = s->n_past + i, .tree0 = s->parent ? s->tree0 : INT_MAX, .path = x->n_paths, .pages = first_page};
	for (int n = node; n >= 0; n = s->parent[n])
		depth++;
	if (node >= 0)
		r->hi = s->tree0 + depth - 1;
	x->n_paths += depth;
	for (int n = node, at = depth - 1; n >= 0; n = s->parent[n])
		x->paths[r->path + at--] = (int16_t)n;
	r->splits = r->hi / split_of(of, s) + 1;
	if (r->splits > 1) {
		r->part = x->n_parts;
		x->n_parts += r->splits * of->nh;
	}
}

static void fill_seq(struct plan *x, const struct plan_of *of, const struct attn_seq *s)
{
	const struct kv_pool *p = &of->pool;
	int group = of->nh / p->n_kv, per, heads = heads_of(of, s, &per), first_page = x->n_pages;
	struct ck_tile *to = on_tensor(of, s) ? x->prompt : x->tiles;
	int *n = on_tensor(of, s) ? &x->n_prompt : &x->n_tiles;
	memcpy(x->pages + first_page, s->pages, (size_t)pages_of(s, p) * sizeof *x->pages);
	x->n_pages += pages_of(s, p);
	for (int i = 0; i < s->n_rows; i++)
		fill_row(x, of, s, i, first_page);
	for (int i = 0, end; i < s->n_rows; i = end) {
		int splits = 1;
		end = tile_end(of, s, i, per);
		for (int j = i; j < end; j++)
			splits = x->rows[s->row0 + j].splits > splits ? x->rows[s->row0 + j].splits : splits;
		for (int h = 0; h < group; h += heads)
			for (int k = 0; k < splits; k++)
				to[(*n)++] = (struct ck_tile){s->row0 + i, end - i, h, cuda_min(heads, group - h), k};
	}
}

struct plan plan_fill(char *to, const struct plan_room *r, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of)
{
	size_t at[5];
	cut(r, at);
	memset(to, 0, at[4]);
	struct plan x = {.rows = (struct ck_row *)(void *)to, .tiles = (struct ck_tile *)(void *)(to + at[0]), .prompt = (struct ck_tile *)(void *)(to + at[1]),
			 .pages = (uint32_t *)(void *)(to + at[2]), .paths = (int16_t *)(void *)(to + at[3])};
	for (int i = 0; i < n_seqs; i++)
		fill_seq(&x, of, &seqs[i]);
	return x;
}
