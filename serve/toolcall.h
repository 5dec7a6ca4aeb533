/* Tool calls: what a request may ask for and what an answer holds. Threads: pure functions.
 *
 * Models write calls in one of three ways, and all are read:
 *   <tool_call>[{"name": ..., "arguments": {...}}, ...]</tool_call>    the form our own tools block asks for
 *   <tool_call>{"name": ..., "arguments": {...}}</tool_call>           one or more (Hermes, Qwen)
 *   {"name": ..., "parameters": {...}}                                 the whole answer (Llama 3)
 * A call whose JSON is broken stays text, but for one whose beginning was forced: there its arguments are
 * what was written, as the caller has to check them anyway.
 */
#pragma once
#include <jansson.h>
#include "serve/openai_request.h"

int toolcall_check(const json_t *tools, struct openai_error *e); /* a list of functions, or NULL */
/* How an answer begins that must be a call, of `tool` unless NULL: as far as every valid call could go (members have no
 * order, so the first required one may come first), in the form that models of the chat family write. malloc'd, NULL when out of memory. */
char *toolcall_beginning(const json_t *tool, const char *family);
const json_t *toolcall_named(const json_t *tools, const char *name); /* NULL when there is none */

extern const char TOOLCALL_OPEN[sizeof "<tool_call>"];
/* text: a whole answer. The calls as OpenAI's list (new reference) and how many bytes of text stand before them; NULL
 * when there is none. seed makes the ids: the same text and seed give the same ids. */
json_t *toolcall_find(const char *text, size_t len, bool forced, const char *seed, size_t *ret_before);

/* Is a forced call complete? Follows its brackets, so that the answer can end with it. */
struct toolcall_watch { int depth, base; bool quoted, escape, over; };
struct toolcall_watch toolcall_watch_start(const char *beginning);
void toolcall_watch(struct toolcall_watch *w, const char *p, size_t n);
