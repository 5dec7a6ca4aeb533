/* The shape of a target from a Hugging Face folder's config.json. */
#include <stdlib.h>
#include "schemas/hf_folder.h"
#include "serve/target_source.h"

static void read_rope(const struct hf_config *h, struct rope_config *r)
{
	static const int kinds[] = {[HF_ROPE_DEFAULT] = ROPE_DEFAULT, [HF_ROPE_LINEAR] = ROPE_LINEAR, [HF_ROPE_LLAMA3] = ROPE_LLAMA3,
				    [HF_ROPE_YARN] = ROPE_YARN};
	*r = (struct rope_config){
		.theta = h->rope_theta,
		.factor = h->rope_factor,
		.low_freq_factor = h->rope_low,
		.high_freq_factor = h->rope_high,
		.orig_max = h->rope_orig_max,
		.beta_fast = h->rope_beta_fast,
		.beta_slow = h->rope_beta_slow,
		.mscale = h->rope_mscale,
		.mscale_all_dim = h->rope_mscale_all,
	};
	r->kind = (unsigned)kinds[h->rope];
}

static int read_tied(const struct hf_folder *f, bool *ret, struct errtext *e)
{
	enum hf_tied said = hf_config(f)->tied;
	int rows, cols, r = 0;
	uint16_t *data = NULL;
	*ret = said == HF_TIED_YES;
	if (said == HF_TIED_UNSAID) {
		r = hf_read(f, "lm_head.weight", &rows, &cols, &data, e);
		*ret = r == -ENOENT;
		free(data);
	}
	return r == -ENOENT ? 0 : r;
}

int target_folder_config(const struct hf_folder *f, struct llama_config *c, int *ret_context, struct errtext *e)
{
	const struct hf_config *h = hf_config(f);
	c->n_layer = h->n_layer;
	c->H = h->hidden;
	c->I = h->intermediate;
	c->n_head = h->n_head;
	c->n_kv = h->n_kv_head;
	c->hd = h->head_dim;
	c->V = h->vocab;
	c->rms_eps = (real)h->rms_eps;
	c->qkv_bias = h->arch == HF_QWEN2;
	c->qk_norm = h->arch == HF_QWEN3;
	*ret_context = h->max_position;
	read_rope(h, &c->rope);
	return read_tied(f, &c->tied, e);
}
