/* The journal: everything that decides what is trained, in one total order.
 *
 * state_dir/journal is text, one entry a line, each closed by a checksum. A
 * step is an entry too, so "verdict before step 812" needs no other clock than
 * the order of lines. Entries are appended, synced, then acted on; repeating the
 * lines repeats the run. What was synced together is a batch, and the next is written only
 * when that is durable: so damage in the last batch is a crash while it was written, nothing of it was acted
 * on, and it is cut off there; damage before it is not ours to mend.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum journal_kind {
	J_CONFIG,  /* text: the options that bear on weights, as one JSON object */
	J_TAKE,    /* partition, offset, count: the offset of the first record, and how many followed it */
	J_GAP,     /* partition, offset -> to: the log starts again there */
	J_INIT,    /* first draft from what was counted; text: a file of token ids to count too, or "" */
	J_REBASE,  /* version, text = weights_sha: its weights, fresh moments */
	J_STEP,    /* number: one training step */
	J_PUBLISH, /* text: folder name; the cut is where we stand. One that has no number yet gives way to it */
	J_SUBMITTED, /* version: the number the daemon gave to the last J_PUBLISH */
	J_WITHDRAW,  /* the last J_PUBLISH came to nothing */
	J_VERDICT, /* version, text */
	J_PAUSE, J_RESUME,
	J_DRIFT,   /* number: level */
	J_EXPIRE,  /* number: what was recorded before that second (since 1970) is forgotten */
	J_PURGE,   /* text: a tenant whose records are forgotten */
	J_N
};

enum { JOURNAL_TEXT = 1024 };

struct journal_entry {
	enum journal_kind kind;
	int partition;
	int64_t offset, count, to; /* J_TAKE, J_GAP */
	int64_t number;            /* step, level, second */
	uint32_t version;
	char text[JOURNAL_TEXT];
};

struct journal;
const char *journal_word(enum journal_kind k); /* "step", "publish", ... */
/* Opens or makes it; a torn last batch is cut at its first damaged line (unless read_only). Damage before it: -EINVAL. One writer at
 * a time: -EBUSY while another holds it; readers may come along. All of it is read, which takes minutes when it is some years old: beats
 * (borrowed, may be NULL) grows meanwhile. */
int MUSTCHECK journal_open(const char *path, bool read_only, _Atomic uint64_t *beats, struct journal **ret, struct errtext *e);
struct journal *journal_close(struct journal *j);
int64_t journal_end(const struct journal *j);              /* bytes: where the next entry goes */
int MUSTCHECK journal_append(struct journal *j, const struct journal_entry *x); /* buffered: not yet to be acted on */
int MUSTCHECK journal_sync(struct journal *j);             /* written and durable */
uint64_t journal_waited_us(const struct journal *j);       /* for the disk, in all of them; for people */
int MUSTCHECK journal_cut(struct journal *j, int64_t at);  /* forget what stands at byte `at` and after */
/* The entry at byte `at`, and where the next one starts. 0, 1 = no more, -EINVAL. */
enum { JOURNAL_E_END = 1 };
int MUSTCHECK journal_read(struct journal *j, int64_t at, struct journal_entry *ret, int64_t *ret_next);
