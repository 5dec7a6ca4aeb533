/* What the daemon's tests share: a store in a temporary folder, small drafts that
 * pass every check, submissions made of them. Header only, so that each test binary
 * stays one file.
 */
#pragma once
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "schemas/draft_config.h"
#include "schemas/manifest.h"

#define FIXTURE_TARGET "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static char fixture_dir[64];

static void fixture_make(void)
{
	char path[PATH_MAX];

	snprintf(fixture_dir, sizeof fixture_dir, "/tmp/redraft-test-XXXXXX");
	assert_non_null(mkdtemp(fixture_dir));
	snprintf(path, sizeof path, "%s/store/frozen/%s", fixture_dir, FIXTURE_TARGET);
	assert_int_equal(fs_mkdirs(path), 0);
	snprintf(path, sizeof path, "%s/store/frozen/%s/frozen.safetensors", fixture_dir, FIXTURE_TARGET);
	assert_int_equal(fs_write_atomic(path, "x", 1), 0);
	snprintf(path, sizeof path, "%s/store/incoming", fixture_dir);
	assert_int_equal(fs_mkdirs(path), 0);
}

static void fixture_remove(void)
{
	assert_int_equal(fs_remove_tree(fixture_dir), 0);
}

static const char *fixture_path(const char *name)
{
	static _Thread_local char path[8][PATH_MAX]; /* the peers' thread asks as well */
	static _Thread_local int i;

	i = (i + 1) % 8;
	snprintf(path[i], sizeof path[i], "%s/%s", fixture_dir, name);
	return path[i];
}

/* A draft whose every weight is `value`, into dir; its hash into ret_sha. */
static void fixture_draft(const char *dir, float value, char ret_sha[static 65])
{
	enum { H = 8, I = 16, V = 32, VD = 16, MOST = I * H * 3 };
	static float w[MOST];
	static int64_t d2t[VD];
	const struct draft_config c = {.hidden_size = H, .target_hidden_size = H, .intermediate_size = I, .n_head = 2,
				       .n_kv_head = 1, .head_dim = 4, .vocab_size = V, .draft_vocab_size = VD,
				       .max_position = 128, .rms_eps = 1e-5, .rope_theta = 10000, .boundaries = {2, 15, 27},
				       .boundaries_default = true, .bos_id = 1, .eos_id = 2, .pad_id = 0};
	const struct draft_tensor t[] = {
		{"fc.weight", H, 3 * H, w}, {"midlayer.input_layernorm.weight", 1, H, w},
		{"midlayer.hidden_norm.weight", 1, H, w}, {"midlayer.self_attn.q_proj.weight", 8, 2 * H, w},
		{"midlayer.self_attn.k_proj.weight", 4, 2 * H, w}, {"midlayer.self_attn.v_proj.weight", 4, 2 * H, w},
		{"midlayer.self_attn.o_proj.weight", H, 8, w}, {"midlayer.post_attention_layernorm.weight", 1, H, w},
		{"midlayer.mlp.gate_proj.weight", I, H, w}, {"midlayer.mlp.up_proj.weight", I, H, w},
		{"midlayer.mlp.down_proj.weight", H, I, w}, {"norm.weight", 1, H, w}, {"lm_head.weight", VD, H, w},
	};
	struct draft_files *f;
	struct errtext e = {.text = ""};

	for (int i = 0; i < MOST; i++)
		w[i] = value;
	assert_int_equal(fs_mkdirs(dir), 0);
	if (draft_save(dir, &c, d2t, t, sizeof t / sizeof *t, true, &e) || draft_open(dir, 30, &f, &e))
		fail_msg("%s", e.text);
	assert_int_equal(draft_weights_sha(f, ret_sha), 0);
	draft_close(f);
}

/* incoming/NAME, ready to be submitted. sha NULL: the right one. Returns its path. */
static inline const char *fixture_submission(const char *name, float value, uint32_t parent, const char *target, const char *sha)
{
	char dir[PATH_MAX], file[PATH_MAX + 16], text[512], right[65];

	snprintf(dir, sizeof dir, "%s/store/incoming/%s", fixture_dir, name);
	fixture_draft(dir, value, right);
	snprintf(text, sizeof text,
		 "{\"schema\":1,\"target_fp\":\"%s\",\"weights_sha\":\"%s\",\"parent\":%u,\"cut\":{\"cluster\":\"c\","
		 "\"partitions\":{\"0\":17}},\"training\":{\"step\":5},\"program_commit\":\"abc\"}",
		 target ? target : FIXTURE_TARGET, sha ? sha : right, parent);
	snprintf(file, sizeof file, "%s/submit.json", dir);
	assert_int_equal(fs_write_atomic(file, text, strlen(text)), 0);
	return fixture_path((snprintf(text, sizeof text, "store/incoming/%s", name), text));
}
