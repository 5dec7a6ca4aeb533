/* Making, accounting and ending of one request.
 *
 * Decoding rounds are entered under the version in force, those that proposed
 * nothing too, so that `rounds` counts all of them and proposed[0] only those that
 * count for an accept length.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "serve/session.h"

/* What ends the text, and what min_tokens therefore holds back. */
static void set_ends(struct session *s, const uint64_t *eog, int n_eog)
{
	const struct engine_request *r = &s->req;
	for (int i = 0; i < r->n_stop_ids; i++)
		s->ends[s->n_ends++] = r->stop_ids[i];
	for (int i = 0; i < n_eog && !r->ignore_eos; i++)
		s->ends[s->n_ends++] = (uint32_t)eog[i];
	s->req.stop_ids = NULL;
	s->req.n_stop_ids = 0;
	s->req.sampling.held = s->ends;
	s->req.sampling.n_held = s->n_ends;
	s->req.sampling.held_until = (uint32_t)(r->n_prompt + r->min_tokens);
}

int session_new(const struct engine_request *r, const uint64_t *eog, int n_eog, struct session **ret)
{
	if (r->n_prompt < 1 || r->max_tokens < 1)
		return -EINVAL;
	struct session *s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->req = *r;
	s->n_prompt = s->n_tokens = r->n_prompt;
	s->n_fill = r->n_prompt;
	int most = r->n_prompt + r->max_tokens;
	s->cap_pages = pages_for(most + SESSION_SLACK);
	s->tokens = malloc((size_t)most * sizeof *s->tokens);
	s->pages = malloc((size_t)s->cap_pages * sizeof *s->pages);
	s->draft_pages = malloc((size_t)s->cap_pages * sizeof *s->draft_pages);
	s->bias = malloc(((size_t)r->sampling.n_bias + 1) * sizeof *s->bias);
	s->ends = malloc(((size_t)r->n_stop_ids + (size_t)n_eog + 1) * sizeof *s->ends);
	if (!s->tokens || !s->pages || !s->draft_pages || !s->bias || !s->ends) {
		session_free(s);
		return -ENOMEM;
	}
	memcpy(s->tokens, r->prompt, (size_t)r->n_prompt * sizeof *s->tokens);
	s->req.prompt = s->tokens;
	if (r->sampling.n_bias)
		memcpy(s->bias, r->sampling.bias, (size_t)r->sampling.n_bias * sizeof *s->bias);
	s->req.sampling.bias = s->bias;
	set_ends(s, eog, n_eog);
	s->slot = s->tap = -1;
	s->seat = s->flow = -1;
	s->node = -1;
	s->first[0] = DRAFT_NONE;
	s->due = -1;
	s->born_us = clock_us();
	*ret = s;
	return 0;
}

struct session *session_free(struct session *s)
{
	if (!s)
		return NULL;
	free(s->tokens);
	free(s->bias);
	free(s->ends);
	free(s->pages);
	free(s->draft_pages);
	free(s);
	return NULL;
}

static void note_version(struct request_stats *st, uint32_t version)
{
	int max = (int)(sizeof st->versions / sizeof *st->versions);
	for (int i = 0; i < st->n_versions; i++)
		if (st->versions[i] == version)
			return;
	if (st->n_versions < max)
		st->versions[st->n_versions++] = version;
}

struct round_record *session_part(struct session *s, uint32_t version, int k)
{
	int max = (int)(sizeof s->parts / sizeof *s->parts), i;
	for (i = 0; i < s->n_parts; i++)
		if (s->parts[i].version == version)
			return &s->parts[i];
	if (i == max) /* more versions in one request than anybody should load: the last account takes them */
		return &s->parts[max - 1];
	s->n_parts++;
	s->parts[i] = (struct round_record){.version = version, .part = (uint32_t)i, .k = k};
	note_version(&s->stats, version);
	return &s->parts[i];
}

static void count_tpot(struct round_record *p, double ms, int n)
{
	int bin = 0;
	while (bin < ROUND_TPOT_EDGES && ms > round_tpot_edges_ms[bin])
		bin++;
	p->tpot_ms[bin] += (uint32_t)n;
}

void session_account(struct session *s, uint32_t version, int k, int depth, int proposed, bool branches, int accepted, int n, uint64_t now)
{
	struct round_record *p = session_part(s, version, k);
	p->tokens += (uint32_t)n;
	p->k = k > p->k ? k : p->k; /* it may be changed under way; the counts must fit */
	if (!s->emitted_us) { /* the prompt's own token: no decoding round */
		p->ttft_ms = (double)(now - s->born_us) / 1e3;
		p->prompt_tokens = (uint32_t)s->n_prompt;
		return;
	}
	p->rounds++;
	s->stats.rounds++;
	s->stats.proposed += (uint32_t)proposed;
	s->stats.accepted += (uint32_t)accepted;
	s->stats.proposing_rounds += proposed > 0;
	for (int i = 0; i < depth; i++) {
		p->proposed[i]++;
		p->tree_proposed[i] += branches;
	}
	for (int i = 0; i < accepted; i++) {
		p->accepted[i]++;
		p->tree_accepted[i] += branches;
	}
	count_tpot(p, (double)(now - s->emitted_us) / 1e3 / n, n);
}

void session_close_parts(struct session *s)
{
	for (int i = 0; i < s->n_parts; i++) {
		struct round_record *p = &s->parts[i];
		snprintf(p->request, sizeof p->request, "%s", s->req.request_id);
		snprintf(p->conversation, sizeof p->conversation, "%s", s->req.conversation);
		snprintf(p->domain, sizeof p->domain, "%s", s->req.domain);
		snprintf(p->tenant, sizeof p->tenant, "%s", s->req.tenant);
		p->context_bucket = round_bucket(s->n_tokens);
		p->last = i == s->n_parts - 1;
	}
}
