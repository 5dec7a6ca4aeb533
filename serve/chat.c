/* From messages to text.
 *
 * A model's chat template is a Jinja program; we do not run it. Its SHA-256 picks a
 * renderer written by hand that gives the same text (chat_chatml.c, chat_qwen.c, chat_llama3.c). Default system
 * prompts differ inside one family, so a hash is exact and a family name (the operator's word)
 * is a choice.
 */
#include "serve/chat.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"
#include "serve/chat_text.h"

#define FAMILIES "smollm2, chatml, qwen2.5, qwen3, qwen3-instruct, llama3, llama3.1, llama3.2"

static const struct chat_template templates[] = {
	{
		.family = "smollm2",
		.sha = {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"},
		.render = chat_render_chatml,
		.default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
	},
	{
		.family = "chatml",
		.sha = {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3"},
		.render = chat_render_chatml,
	},
	{
		.family = "qwen2.5",
		.sha = {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f"},
		.render = chat_render_qwen,
		.default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
	},
	{
		.family = "qwen3",
		.sha = {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
			"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5"},
		.render = chat_render_qwen,
		.thinks = true,
	},
	{
		.family = "qwen3-instruct",
		.sha = {"64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326"},
		.render = chat_render_qwen,
	},
	{
		.family = "llama3",
		.sha = {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122"},
		.render = chat_render_llama3,
		.plain = true,
	},
	{
		.family = "llama3.1", /* and 3.3 */
		.sha = {"e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65"},
		.render = chat_render_llama3,
	},
	{
		.family = "llama3.2",
		.sha = {"5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4"},
		.render = chat_render_llama3,
		.dated = true,
	},
};

enum { N_TEMPLATES = sizeof templates / sizeof templates[0], MAX_MESSAGES = 4096 };

int chat_select(const char *tmpl, size_t len, const char *family, const struct chat_template **ret, struct errtext *e)
{
	char sha[SHA_HEX] = "none";

	if (family && *family) {
		for (int i = 0; i < N_TEMPLATES; i++)
			if (strcmp(templates[i].family, family) == 0) {
				*ret = &templates[i];
				return 0;
			}
		return errtext_set(e, -ENOTSUP, "chat family '%.40s' is not known; known are " FAMILIES, family);
	}
	if (tmpl)
		sha_hex(tmpl, len, sha);
	for (int i = 0; i < N_TEMPLATES; i++)
		for (int k = 0; k < 4 && templates[i].sha[k]; k++)
			if (strcmp(templates[i].sha[k], sha) == 0) {
				*ret = &templates[i];
				return 0;
			}
	return errtext_set(e, -ENOTSUP, "the model's chat template (SHA-256 %.16s...) is not known; name a family: " FAMILIES, sha);
}

const char *chat_family(const struct chat_template *t)
{
	return t->family;
}

int chat_render_with(const struct chat_template *t, const json_t *messages, const json_t *tools, bool add_generation_prompt,
		     const struct chat_options *o, struct buf *out, struct chat_segment **ret_segments, int *ret_n, struct errtext *e)
{
	static const struct chat_options none = CHAT_OPTIONS_NONE;
	struct render w = {.out = out, .messages = messages, .prompt = add_generation_prompt, .o = o ? o : &none, .e = e};
	int r;

	if (!json_is_array(messages) || json_array_size(messages) == 0)
		return errtext_set(e, -EINVAL, "messages must be a list of at least one message");
	if (json_array_size(messages) > MAX_MESSAGES)
		return errtext_set(e, -EINVAL, "messages holds more than %d entries", MAX_MESSAGES);
	w.tools = json_array_size(tools) > 0 ? tools : NULL;
	r = t->render(t, &w);
	if (r < 0) {
		free(w.seg);
		if (r == -E2BIG)
			errtext_set(e, r, "the messages are too long");
		return r;
	}
	*ret_segments = w.seg;
	*ret_n = w.n;
	return 0;
}

int chat_render(const struct chat_template *t, const json_t *messages, const json_t *tools, bool add_generation_prompt, struct buf *out,
		struct chat_segment **ret_segments, int *ret_n, struct errtext *e)
{
	return chat_render_with(t, messages, tools, add_generation_prompt, NULL, out, ret_segments, ret_n, e);
}
