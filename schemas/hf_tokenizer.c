/* tokenizer.json and tokenizer_config.json to a vocabulary, merges and a named pre-tokenizer.
 *
 * The JSON trees stay alive: tokens and merges point into them. The pre-tokenizer is known by what it says,
 * not by a model's name: a splitting expression that we have by hand, with the normaliser and merge rule that
 * belong to it; any other combination is refused, because ids would silently differ.
 */
#include "schemas/hf_tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAD_TEXT = 20 };

/* The expressions of Llama 3 and Qwen2: they differ in how many digits stay together. */
#define SPLIT(digits)                                                                                                                     \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
	const char *name, *split; /* split NULL: the byte-level step's own expression (GPT-2's) */
	bool digits, nfc, ignore_merges;
} pres[] = {
	{.name = "gpt-2"},
	{.name = "smollm", .digits = true},
	{.name = "llama-bpe", .split = SPLIT("\\p{N}{1,3}"), .ignore_merges = true},
	{.name = "qwen2", .split = SPLIT("\\p{N}"), .nfc = true},
};

struct parse {
	struct hf_tokenizer *t;
	const json_t *root, *model, *vocab, *added;
	struct errtext *e;
};

static const json_t *get(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

static bool type_is(const json_t *o, const char *want)
{
	const char *type = json_string_value(json_object_get(o, "type"));

	return type && strcmp(type, want) == 0;
}

/* ---- what is refused ---- */

static int check_model(const struct parse *p)
{
	static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};

	if (!type_is(p->model, "BPE"))
		return errtext_set(p->e, -ENOTSUP, "tokenizer.json: model type is not BPE, which is all that is served");
	for (size_t i = 0; i < 2; i++) {
		const json_t *v = get(p->model, empty[i]);
		if (v && json_string_length(v) > 0)
			return errtext_set(p->e, -ENOTSUP, "tokenizer.json: %s is not supported", empty[i]);
	}
	if (json_is_true(get(p->model, "byte_fallback")) || json_number_value(get(p->model, "dropout")) > 0)
		return errtext_set(p->e, -ENOTSUP, "tokenizer.json: byte_fallback and dropout are not supported");
	if (!json_is_object(p->vocab) || !json_is_array(get(p->model, "merges")) || (p->added && !json_is_array(p->added)))
		return errtext_set(p->e, -EINVAL, "tokenizer.json: vocab, merges or added_tokens are not there");
	return 0;
}

static bool byte_level(const json_t *o, bool use_regex)
{
	const json_t *v = json_object_get(o, "use_regex");

	return type_is(o, "ByteLevel") && !json_is_true(json_object_get(o, "add_prefix_space")) && (v ? json_is_true(v) : true) == use_regex;
}

static const char *isolated_split(const json_t *o)
{
	const char *behavior = json_string_value(json_object_get(o, "behavior"));

	if (!type_is(o, "Split") || json_is_true(json_object_get(o, "invert")) || !behavior || strcmp(behavior, "Isolated") != 0)
		return NULL;
	return json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
}

static int read_pre(const struct parse *p)
{
	const json_t *pre = get(p->root, "pre_tokenizer"), *norm = get(p->root, "normalizer"), *first = pre, *last = NULL;
	bool ignore_merges = json_is_true(get(p->model, "ignore_merges")), digits = false;
	const char *split = NULL;

	if (type_is(pre, "Sequence")) {
		const json_t *list = json_object_get(pre, "pretokenizers");
		first = json_array_size(list) == 2 ? json_array_get(list, 0) : NULL;
		last = json_array_get(list, 1);
	}
	if (first && last) {
		split = isolated_split(first);
		digits = type_is(first, "Digits") && json_is_true(json_object_get(first, "individual_digits"));
	}
	for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++) {
		bool same_split = pres[i].split ? split && strcmp(split, pres[i].split) == 0 && byte_level(last, false) :
						  !split && digits == pres[i].digits && byte_level(last ? last : first, true) && (digits || !last);
		if (same_split && pres[i].ignore_merges == ignore_merges && (norm ? pres[i].nfc && type_is(norm, "NFC") : !pres[i].nfc)) {
			p->t->pre = pres[i].name;
			return 0;
		}
	}
	return errtext_set(p->e, -ENOTSUP,
			   "tokenizer.json: this combination of normalizer, pre_tokenizer and ignore_merges is not known; known are those of GPT-2, SmolLM, "
			   "Llama 3 and Qwen2");
}

/* ---- vocabulary ---- */

static int put_token(const struct parse *p, const json_t *id, const char *text, int kind)
{
	struct hf_tokenizer *t = p->t;
	int64_t n = json_is_integer(id) ? json_integer_value(id) : -1;

	if (n < 0 || n >= t->n_tokens)
		return errtext_set(p->e, -EINVAL, "tokenizer.json: token %.60s has an id outside the model's vocabulary of %u rows", text, t->n_tokens);
	struct hf_token *k = &t->tokens[n];
	if (k->text && strcmp(k->text, text) != 0)
		return errtext_set(p->e, -EINVAL, "tokenizer.json: id %lld stands for two tokens", (long long)n);
	*k = (struct hf_token){text, (uint32_t)strlen(text), kind};
	return 0;
}

static int added_kind(const json_t *a, const char *text)
{
	size_t n = strlen(text);

	if (json_is_true(json_object_get(a, "special")) || (n >= 4 && memcmp(text, "<|", 2) == 0 && memcmp(text + n - 2, "|>", 2) == 0))
		return HF_CONTROL;
	return HF_USER;
}

static int read_added(const struct parse *p)
{
	static const char *const strips[] = {"lstrip", "rstrip", "single_word"};
	const json_t *a;
	size_t i;

	json_array_foreach((json_t *)p->added, i, a)
	{
		const char *text = json_string_value(json_object_get(a, "content"));
		if (!text || !*text)
			return errtext_set(p->e, -EINVAL, "tokenizer.json: added_tokens[%zu] has no content", i);
		for (int k = 0; k < 3; k++)
			if (json_is_true(json_object_get(a, strips[k])))
				return errtext_set(p->e, -ENOTSUP, "tokenizer.json: %s of the added token %.60s is not supported", strips[k], text);
		int r = put_token(p, json_object_get(a, "id"), text, added_kind(a, text));
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_vocab(const struct parse *p)
{
	struct hf_tokenizer *t = p->t;
	const char *text;
	json_t *id;
	int r;

	t->tokens = calloc(t->n_tokens, sizeof *t->tokens);
	char *pads = t->owned[2] = malloc((size_t)t->n_tokens * PAD_TEXT);
	if (!t->tokens || !pads)
		return -ENOMEM;
	json_object_foreach((json_t *)p->vocab, text, id)
		if ((r = put_token(p, id, text, HF_NORMAL)) < 0)
			return r;
	if ((r = read_added(p)) < 0)
		return r;
	for (uint32_t i = 0; i < t->n_tokens; i++, pads += PAD_TEXT)
		if (!t->tokens[i].text) {
			int n = snprintf(pads, PAD_TEXT, "[PAD%u]", i);
			t->tokens[i] = (struct hf_token){pads, (uint32_t)n, HF_UNUSED};
		}
	return 0;
}

/* Merges are "left right" or ["left", "right"]; the second kind is joined into a text of ours. */
static int read_merges(const struct parse *p)
{
	const json_t *list = get(p->model, "merges"), *m;
	struct hf_tokenizer *t = p->t;
	size_t i, bytes = 0;

	json_array_foreach((json_t *)list, i, m)
		bytes += json_string_length(json_array_get(m, 0)) + json_string_length(json_array_get(m, 1)) + 2;
	if (json_array_size(list) > 1 << 22)
		return errtext_set(p->e, -EINVAL, "tokenizer.json: too many merges");
	t->merges = calloc(json_array_size(list) + 1, sizeof *t->merges);
	char *at = t->owned[3] = malloc(bytes + 1);
	if (!t->merges || !at)
		return -ENOMEM;
	json_array_foreach((json_t *)list, i, m)
	{
		const char *left = json_string_value(json_array_get(m, 0)), *right = json_string_value(json_array_get(m, 1));
		const char *text = json_string_value(m);
		if (!text && left && right && json_array_size(m) == 2) {
			text = at;
			at += sprintf(at, "%s %s", left, right) + 1;
		}
		if (!text)
			return errtext_set(p->e, -EINVAL, "tokenizer.json: merge %zu is not a pair of texts", i);
		t->merges[t->n_merges++] = text;
	}
	return 0;
}

/* ---- ends ---- */

static int64_t id_of(const struct parse *p, const char *text)
{
	const json_t *id = text ? json_object_get(p->vocab, text) : NULL;

	for (size_t i = 0; text && i < json_array_size(p->added); i++) {
		const json_t *a = json_array_get(p->added, i);
		const char *content = json_string_value(json_object_get(a, "content"));
		if (content && strcmp(content, text) == 0)
			id = json_object_get(a, "id");
	}
	return json_is_integer(id) ? json_integer_value(id) : -1;
}

/* A special token in tokenizer_config.json: a text, or an object with one. */
static int64_t named_id(const struct parse *p, const json_t *config, const char *key)
{
	const json_t *v = get(config, key);

	if (json_is_object(v))
		v = get(v, "content");
	return id_of(p, json_string_value(v));
}

/* What `tokenizers` puts around a text: nothing, or one token before it. */
static int read_template(const struct parse *p)
{
	const json_t *post = get(p->root, "post_processor"), *x;
	size_t i;

	if (type_is(post, "Sequence")) {
		const json_t *list = json_object_get(post, "processors");
		post = NULL;
		json_array_foreach((json_t *)list, i, x)
			if (type_is(x, "TemplateProcessing"))
				post = x;
	}
	if (!type_is(post, "TemplateProcessing"))
		return 0;
	const json_t *single = json_object_get(post, "single"), *first = json_object_get(json_array_get(single, 0), "SpecialToken");
	size_t n = json_array_size(single);
	if (n == 1 && !first)
		return 0;
	int64_t id = id_of(p, json_string_value(json_object_get(first, "id")));
	if (n != 2 || id < 0 || !json_object_get(json_array_get(single, 1), "Sequence"))
		return errtext_set(p->e, -ENOTSUP, "tokenizer.json: a post_processor that adds more than one token before a text is not supported");
	p->t->add_bos = true;
	p->t->bos_id = id;
	return 0;
}

static int read_config(const struct parse *p, const char *text, size_t len)
{
	json_error_t je;
	struct hf_tokenizer *t = p->t;
	const json_t *tmpl, *x;
	int64_t id;
	size_t i;

	if (!text)
		return 0;
	json_t *o = t->owned[1] = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(o))
		return errtext_set(p->e, -EINVAL, "tokenizer_config.json, line %d: %.120s", o ? 1 : je.line, o ? "not an object" : je.text);
	if ((id = named_id(p, o, "bos_token")) >= 0)
		t->bos_id = id;
	if ((id = named_id(p, o, "eos_token")) >= 0)
		t->eos_id = id;
	tmpl = get(o, "chat_template");
	if (json_is_array(tmpl)) { /* several by name */
		const json_t *list = tmpl;
		tmpl = NULL;
		json_array_foreach((json_t *)list, i, x) {
			const char *name = json_string_value(json_object_get(x, "name"));
			if (name && strcmp(name, "default") == 0)
				tmpl = json_object_get(x, "template");
		}
	}
	if (json_is_string(tmpl) && !(t->chat_template = strdup(json_string_value(tmpl))))
		return -ENOMEM;
	return 0;
}

static int parse_all(struct parse *p, const char *config, size_t n_config)
{
	int r = check_model(p);

	if (r < 0 || (r = read_pre(p)) < 0 || (r = read_vocab(p)) < 0 || (r = read_merges(p)) < 0 || (r = read_config(p, config, n_config)) < 0 ||
	    (r = read_template(p)) < 0)
		return r;
	if (p->t->bos_id >= p->t->n_tokens || p->t->eos_id >= p->t->n_tokens)
		return errtext_set(p->e, -EINVAL, "tokenizer.json: the begin or end token lies outside the vocabulary of %u", p->t->n_tokens);
	return 0;
}

int hf_tokenizer_parse(const char *json, size_t len, const char *config, size_t n_config, int vocab, int64_t bos_id, int64_t eos_id,
		       struct hf_tokenizer **ret, struct errtext *e)
{
	json_error_t je;
	struct hf_tokenizer *t = calloc(1, sizeof *t);

	if (!t)
		return errtext_set(e, -ENOMEM, "out of memory");
	t->n_tokens = (uint32_t)vocab;
	t->bos_id = bos_id;
	t->eos_id = eos_id;
	json_t *o = t->owned[0] = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
	struct parse p = {.t = t, .root = o, .model = get(o, "model"), .e = e};
	p.vocab = get(p.model, "vocab");
	p.added = get(o, "added_tokens");
	int r = json_is_object(o) ? parse_all(&p, config, n_config) :
				    errtext_set(e, -EINVAL, "tokenizer.json, line %d: %.120s", o ? 1 : je.line, o ? "not an object" : je.text);
	if (r == -ENOMEM)
		(void)errtext_set(e, r, "out of memory while reading the tokenizer");
	if (r < 0) {
		hf_tokenizer_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

struct hf_tokenizer *hf_tokenizer_free(struct hf_tokenizer *t)
{
	if (t) {
		json_decref(t->owned[0]);
		json_decref(t->owned[1]);
		free(t->owned[2]);
		free(t->owned[3]);
		free(t->tokens);
		free(t->merges);
		free(t->chat_template);
		free(t);
	}
	return NULL;
}
