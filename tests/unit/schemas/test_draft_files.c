/* What this proves: draft_save and draft_open are inverse (bf16 to its rounding, f32
 * exactly), the file follows the writer checklist of eagle3.md §1.9, other tools' names
 * are understood, and a draft with one tensor unknown, missing, misshapen or not finite,
 * or with a d2t that breaks its law, is refused: by the reader and by the writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fs.h"
#include "schemas/draft_config.h"
#include "schemas/draft_layout.h"
#include "schemas/record.h"
#include "schemas/safetensors.h"

enum { V = 60, VD = 20, L = 8 };
static char dir[] = "/tmp/redraft-test-draft-XXXXXX";

static int setup(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return fs_remove_tree(dir);
}

struct fixture {
	struct draft_config c;
	struct draft_slot slot[DRAFT_MAX_TENSORS];
	struct draft_tensor t[DRAFT_MAX_TENSORS];
	float *data;
	int n;
	int64_t d2t[VD];
};

static void make(struct fixture *x, bool fc_norm)
{
	uint32_t seed = 99;
	size_t total = 0, at = 0;

	memset(x, 0, sizeof *x);
	x->c = (struct draft_config){.hidden_size = 8,
				     .target_hidden_size = 8,
				     .intermediate_size = 12,
				     .n_head = 2,
				     .n_kv_head = 1,
				     .head_dim = 6,
				     .vocab_size = V,
				     .draft_vocab_size = VD,
				     .max_position = 64,
				     .rms_eps = 1e-5,
				     .rope_theta = 10000,
				     .rope_factor = 1,
				     .boundaries = {2, 4, 5},
				     .boundaries_default = true,
				     .fc_norm = fc_norm,
				     .bos_id = 1,
				     .eos_id = 2,
				     .pad_id = -1};
	x->n = draft_layout(&x->c, x->slot);
	for (int i = 0; i < x->n; i++)
		total += (size_t)x->slot[i].rows * (size_t)x->slot[i].cols;
	x->data = malloc(total * sizeof *x->data);
	for (size_t i = 0; i < total; i++) {
		seed = seed * 1664525u + 1013904223u;
		x->data[i] = ((float)(seed >> 8) / 16777216.f - 0.5f) * 3;
	}
	for (int i = 0; i < x->n; i++) {
		x->t[i] = (struct draft_tensor){x->slot[i].name, x->slot[i].rows, x->slot[i].cols, x->data + at};
		at += (size_t)x->slot[i].rows * (size_t)x->slot[i].cols;
	}
	for (int i = 0; i < VD; i++)
		x->d2t[i] = 2 * i + 1; /* draft id i stands for 3i + 1 */
}

static int save(const struct fixture *x, bool as_bf16, struct errtext *e)
{
	return draft_save(dir, &x->c, x->d2t, x->t, x->n, as_bf16, e);
}

static void test_round_trip(void **state)
{
	(void)state;
	for (int mode = 0; mode < 4; mode++) {
		bool as_bf16 = mode & 1, is_bf16;
		struct fixture x;
		struct draft_files *f;
		struct errtext e = {""};
		char sha[65], sha2[65];
		make(&x, mode & 2);
		assert_int_equal(save(&x, as_bf16, &e), 0);
		if (draft_open(dir, L, &f, &e) < 0)
			fail_msg("%s", e.text);
		for (int i = 0; i < x.n; i++) {
			int rows, cols;
			const void *p;
			assert_int_equal(draft_files_tensor(f, x.t[i].name, &is_bf16, &rows, &cols, &p), 0);
			assert_true(rows == x.t[i].rows && cols == x.t[i].cols && is_bf16 == as_bf16);
			for (int j = 0; j < rows * cols; j++) {
				if (as_bf16)
					assert_int_equal(((const uint16_t *)p)[j], draft_to_bf16(x.t[i].data[j]));
				else
					assert_true(((const float *)p)[j] == x.t[i].data[j]);
			}
			assert_int_equal(draft_files_tensor(f, "embed_tokens.weight", &is_bf16, &rows, &cols, &p), -ENOENT);
			assert_int_equal(draft_files_tensor(f, "nothing", &is_bf16, &rows, &cols, &p), -ENOENT);
		}
		assert_memory_equal(draft_files_d2t(f), x.d2t, sizeof x.d2t);
		assert_int_equal(draft_files_config(f)->draft_vocab_size, VD);
		assert_int_equal(draft_weights_sha(f, sha), 0);
		draft_close(f);
		/* the same weights in the other dtype have the same hash; one changed value has another */
		assert_int_equal(save(&x, !as_bf16, &e), 0);
		assert_int_equal(draft_open(dir, L, &f, &e), 0);
		assert_int_equal(draft_weights_sha(f, sha2), 0);
		assert_string_equal(sha, sha2);
		draft_close(f);
		x.data[5] += 1;
		assert_int_equal(save(&x, true, &e), 0);
		assert_int_equal(draft_open(dir, L, &f, &e), 0);
		assert_int_equal(draft_weights_sha(f, sha2), 0);
		assert_string_not_equal(sha, sha2);
		draft_close(f);
		free(x.data);
	}
}

/* The file as other tools see it. */
static void test_checklist(void **state)
{
	(void)state;
	struct fixture x;
	struct fs_map map;
	struct st_file *st;
	char path[PATH_MAX];

	make(&x, false);
	assert_int_equal(save(&x, true, NULL), 0);
	(void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
	assert_int_equal(fs_map(path, &map), 0);
	assert_int_equal(st_parse(map.data, map.len, &st, NULL), 0);
	assert_string_equal(st_meta(st, "format"), "pt");
	assert_int_equal(st_count(st), 15);
	const struct st_tensor *d2t = st_find(st, "d2t"), *t2d = st_find(st, "t2d"), *q = st_find(st, "midlayer.self_attn.q_proj.weight");
	assert_true(d2t && d2t->dtype == ST_I64 && d2t->n_dims == 1 && d2t->shape[0] == VD);
	assert_true(t2d && t2d->dtype == ST_BOOL && t2d->n_dims == 1 && t2d->shape[0] == V);
	assert_true(q && q->dtype == ST_BF16 && q->n_dims == 2 && q->shape[0] == 12 && q->shape[1] == 16);
	assert_int_equal(st_find(st, "norm.weight")->n_dims, 1);
	for (int j = 0; j < V; j++)
		assert_int_equal(t2d->data[j], j % 3 == 1);
	assert_int_equal((size_t)(st_at(st, 0)->data - map.data) % 8, 0);
	st_free(st);
	fs_unmap(&map);
	free(x.data);
}

/* Rewrite the saved file with one change and open it. */
enum change { KEEP, RENAME, DROP, ADD, RESHAPE, RETYPE, POISON, UNALIGN, HALF };
static int reopen(enum change what, const char *victim, const char *to, struct errtext *e)
{
	char path[PATH_MAX];
	struct fs_map map;
	struct st_file *st;
	struct st_out t[40];
	struct buf out = BUF_INIT(0);
	uint8_t *copy[40] = {NULL};
	int n = 0;

	(void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
	assert_int_equal(fs_map(path, &map), 0);
	assert_int_equal(st_parse(map.data, map.len, &st, NULL), 0);
	for (int i = 0; i < st_count(st); i++) {
		const struct st_tensor *s = st_at(st, i);
		bool hit = strcmp(s->name, victim) == 0;
		if (hit && what == DROP)
			continue;
		copy[n] = malloc(s->bytes + 1);
		memcpy(copy[n], s->data, s->bytes);
		t[n] = (struct st_out){s->name, s->dtype, s->n_dims, {s->shape[0], s->n_dims > 1 ? s->shape[1] : 0}, copy[n]};
		if (hit && what == RENAME)
			t[n].name = to;
		if (hit && what == RESHAPE)
			t[n].shape[0]--;
		if (hit && what == RETYPE)
			t[n].dtype = s->dtype == ST_BF16 ? ST_I16 : ST_U8;
		if (hit && what == POISON)
			memset(copy[n], 0xff, 2);
		if (hit && what == HALF) {
			t[n].dtype = ST_F16;
			memcpy(copy[n], "\x00\x3e", 2); /* 1.5 */
		}
		n++;
	}
	if (what == ADD)
		t[n++] = (struct st_out){to, ST_BF16, 1, {4}, copy[1]};
	assert_int_equal(st_write(&out, t, n, NULL, 0, what == UNALIGN ? 1 : 8), 0);
	st_free(st);
	fs_unmap(&map);
	struct fs_map keep;
	assert_int_equal(fs_map(path, &keep), 0);
	uint8_t *original = malloc(keep.len);
	size_t n_original = keep.len;
	memcpy(original, keep.data, keep.len);
	fs_unmap(&keep);
	assert_int_equal(fs_write_atomic(path, out.data, out.len), 0);
	struct draft_files *f = NULL;
	int r = draft_open(dir, L, &f, e);
	if (r == 0 && what == HALF) {
		bool is_bf16;
		int rows, cols;
		const void *p;
		assert_int_equal(draft_files_tensor(f, victim, &is_bf16, &rows, &cols, &p), 0);
		assert_false(is_bf16);
		assert_true(((const float *)p)[0] == 1.5f);
	}
	draft_close(f);
	assert_int_equal(fs_write_atomic(path, original, n_original), 0);
	free(original);
	for (int i = 0; i < 40; i++)
		free(copy[i]);
	buf_done(&out);
	return r;
}

static void test_other_tools(void **state)
{
	(void)state;
	struct fixture x;
	struct errtext e = {""};

	make(&x, true);
	assert_int_equal(save(&x, true, &e), 0);
	assert_int_equal(reopen(KEEP, "", "", &e), 0);
	assert_int_equal(reopen(UNALIGN, "", "", &e), 0);
	assert_int_equal(reopen(HALF, "norm.weight", "", &e), 0);
	assert_int_equal(reopen(RENAME, "fc.weight", "model.fc.weight", &e), 0);
	assert_int_equal(reopen(RENAME, "midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", &e), 0);
	assert_int_equal(reopen(RENAME, "midlayer.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight", &e), 0);
	assert_int_equal(reopen(RENAME, "d2t", "draft_id_to_target_id", &e), 0);
	assert_int_equal(reopen(RENAME, "fc_norm.1.weight", "aux_norm_mid.weight", &e), 0);
	assert_int_equal(reopen(ADD, "", "verifier_norm.weight", &e), 0);
	assert_int_equal(reopen(ADD, "", "midlayer.self_attn.rotary_emb.inv_freq", &e), 0);
	assert_int_equal(reopen(DROP, "t2d", "", &e), 0);
	free(x.data);
}

static void test_reader_refuses(void **state)
{
	(void)state;
	struct fixture x;

	make(&x, true);
	assert_int_equal(save(&x, true, NULL), 0);
	for (int i = 0; i < x.n; i++) {
		for (enum change what = RENAME; what <= POISON; what++) {
			struct errtext e = {""};
			assert_int_equal(reopen(what, x.t[i].name, "extra.weight", &e), -EINVAL);
			if (!strstr(e.text, what == ADD || what == RENAME ? "extra.weight" : x.t[i].name))
				fail_msg("change %d of %s: %s", (int)what, x.t[i].name, e.text);
		}
	}
	assert_int_equal(reopen(DROP, "d2t", "", NULL), -EINVAL);
	assert_int_equal(reopen(POISON, "d2t", "", NULL), -EINVAL);
	assert_int_equal(reopen(RESHAPE, "d2t", "", NULL), -EINVAL);
	assert_int_equal(reopen(POISON, "t2d", "", NULL), -EINVAL);
	assert_int_equal(reopen(RESHAPE, "t2d", "", NULL), -EINVAL);
	assert_int_equal(reopen(RENAME, "fc_norm.1.weight", "fc_norm.0.weight ", NULL), -EINVAL);
	assert_int_equal(reopen(ADD, "", "model.norm.weight", NULL), -EINVAL); /* twice under two names */
	free(x.data);
}

static void test_writer_refuses(void **state)
{
	(void)state;
	for (int which = 0; which < 8; which++) {
		struct fixture x;
		struct errtext e = {""};
		char path[PATH_MAX], *before, *after;
		make(&x, false);
		assert_int_equal(save(&x, true, &e), 0);
		(void)snprintf(path, sizeof path, "%s/config.json", dir);
		assert_int_equal(fs_read_text(path, 1 << 20, &before), 0);
		switch (which) {
		case 0:
			x.d2t[3] = x.d2t[2] - 1;
			break;
		case 1:
			x.d2t[VD - 1] = V;
			break;
		case 2:
			x.d2t[0] = -1;
			break;
		case 3:
			x.data[17] = NAN;
			break;
		case 4:
			x.data[17] = INFINITY;
			break;
		case 5:
			x.n--;
			break;
		case 6:
			x.t[4].name = "other";
			break;
		case 7:
			x.t[4].rows++;
			break;
		}
		assert_int_equal(save(&x, true, &e), -EINVAL);
		assert_true(e.text[0]);
		assert_int_equal(fs_read_text(path, 1 << 20, &after), 0);
		assert_string_equal(before, after); /* nothing half-written */
		free(before);
		free(after);
		free(x.data);
	}
}

static void test_folder(void **state)
{
	(void)state;
	struct draft_files *f = NULL;
	struct errtext e = {""};

	assert_int_equal(draft_open("/nonexistent", L, &f, &e), -ENOENT);
	assert_non_null(strstr(e.text, "/nonexistent/config.json"));
	assert_null(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_checklist),      cmocka_unit_test(test_other_tools),
		cmocka_unit_test(test_reader_refuses), cmocka_unit_test(test_writer_refuses), cmocka_unit_test(test_folder),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
