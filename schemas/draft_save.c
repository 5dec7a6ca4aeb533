/* Writing a draft checkpoint that SGLang, vLLM and SpecForge load unchanged.
 *
 * The whole file is written beside its place and renamed into it, because engines
 * map these files and an overwritten one would change under them. What does not
 * fit the config, or is not finite, is refused: a diverged learner must not be able
 * to leave a checkpoint behind.
 */
#include "schemas/draft_config.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/buf.h"
#include "daemon/base/fs.h"
#include "schemas/draft_layout.h"
#include "schemas/safetensors.h"

static const struct draft_tensor *given(const struct draft_tensor *t, int n, const char *name)
{
	for (int i = 0; i < n; i++) {
		if (strcmp(t[i].name, name) == 0)
			return &t[i];
	}
	return NULL;
}

static int check_tensor(const struct draft_slot *s, const struct draft_tensor *t, struct errtext *e)
{
	if (!t)
		return errtext_set(e, -EINVAL, "draft: %s is missing", s->name);
	if (t->rows != s->rows || t->cols != s->cols)
		return errtext_set(e, -EINVAL, "draft: %s is [%d,%d], the config demands [%d,%d]", s->name, t->rows, t->cols, s->rows,
				   s->cols);
	for (size_t i = 0, n = (size_t)s->rows * (size_t)s->cols; i < n; i++) {
		if (!isfinite(t->data[i]))
			return errtext_set(e, -EINVAL, "draft: %s has a value that is not finite", s->name);
	}
	return 0;
}

/* Everything of the file that is not in the caller's arrays. */
struct made {
	uint16_t *bits; /* all bf16 tensors, one after the other */
	uint8_t *t2d;
	struct st_out out[DRAFT_MAX_TENSORS + 2];
	int n;
};

static int fill(struct made *m, const struct draft_config *c, const int64_t *d2t, const struct draft_tensor *t, int n, bool as_bf16,
		struct errtext *e)
{
	struct draft_slot slot[DRAFT_MAX_TENSORS];
	int n_slots = draft_layout(c, slot), r;
	size_t total = 0;

	if (n != n_slots)
		return errtext_set(e, -EINVAL, "draft: %d tensors given, the config demands %d", n, n_slots);
	for (int i = 0; i < n_slots; i++) {
		r = check_tensor(&slot[i], given(t, n, slot[i].name), e);
		if (r < 0)
			return r;
		total += (size_t)slot[i].rows * (size_t)slot[i].cols;
	}
	m->t2d = calloc((size_t)c->vocab_size, 1);
	m->bits = as_bf16 ? malloc(total * 2) : NULL;
	if (!m->t2d || (as_bf16 && !m->bits))
		return errtext_set(e, -ENOMEM, "out of memory");
	for (int i = 0; i < c->draft_vocab_size; i++)
		m->t2d[i + d2t[i]] = 1;
	m->out[m->n++] = (struct st_out){"d2t", ST_I64, 1, {(uint64_t)c->draft_vocab_size}, d2t};
	uint16_t *at = m->bits;
	for (int i = 0; i < n_slots; i++) {
		const struct draft_tensor *x = given(t, n, slot[i].name);
		size_t count = (size_t)x->rows * (size_t)x->cols;
		struct st_out *o = &m->out[m->n++];
		*o = (struct st_out){slot[i].name, ST_F32, 2, {(uint64_t)x->rows, (uint64_t)x->cols}, x->data};
		if (x->rows == 1)
			o->n_dims = 1, o->shape[0] = (uint64_t)x->cols;
		if (as_bf16) {
			for (size_t j = 0; j < count; j++)
				at[j] = draft_to_bf16(x->data[j]);
			o->dtype = ST_BF16;
			o->data = at;
			at += count;
		}
	}
	m->out[m->n++] = (struct st_out){"t2d", ST_BOOL, 1, {(uint64_t)c->vocab_size}, m->t2d};
	return 0;
}

static int write_file(const char *dir, const char *name, const struct fs_part *v, int n, struct errtext *e)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
		return errtext_set(e, -ENAMETOOLONG, "%.160s: path too long", dir);
	int r = fs_write_parts(path, v, n);
	return r < 0 ? errtext_set(e, r, "%.150s: %s", path, strerror(-r)) : 0;
}

int draft_save(const char *dir, const struct draft_config *c, const int64_t *d2t, const struct draft_tensor *t, int n, bool as_bf16,
	       struct errtext *e)
{
	const struct st_meta_kv meta[] = {{"format", "pt"}};
	struct made m = {.n = 0};
	struct buf head = BUF_INIT(0);
	struct fs_part part[DRAFT_MAX_TENSORS + 3];
	char *config = NULL;
	int r = draft_check_d2t(d2t, c->draft_vocab_size, c->vocab_size, e);

	if (r == 0)
		r = draft_config_text(c, as_bf16 ? "bfloat16" : "float32", &config, e);
	if (r == 0)
		r = fill(&m, c, d2t, t, n, as_bf16, e);
	if (r == 0) {
		r = st_lay_out(&head, m.out, m.n, meta, 1, 8, part);
		if (r < 0)
			(void)errtext_set(e, r, "draft: %s", strerror(-r));
	}
	if (r == 0)
		r = write_file(dir, "model.safetensors", part, m.n + 1, e);
	if (r == 0)
		r = write_file(dir, "config.json", &(struct fs_part){config, strlen(config)}, 1, e);
	buf_done(&head);
	free(m.bits);
	free(m.t2d);
	free(config);
	return r;
}
