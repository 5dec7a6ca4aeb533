/* Configuration: one table a program, from which parsing, --help and
 * `config show` all come.
 *
 * Sources, later wins: defaults, INI file (--config FILE), environment
 * (<PROGRAM>_<KEY> with dots and dashes as underscores, upper case:
 * REDRAFT_SERVE_CAPTURE_SAMPLE, REDRAFTD_STORE), flags
 * (--key value or --key=value; a CONF_BOOL flag alone means on). An INI section
 * [a] with key b is the key "a.b". An unknown key or flag is an error that names
 * the nearest right one (edit distance). Values go into a plain struct at
 * the offset given; strings are malloc'd and owned by it (conf_done frees).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum conf_type { CONF_STRING, CONF_INT /* int64_t */, CONF_REAL /* double */, CONF_BOOL /* bool */, CONF_ENUM /* int */ };

struct conf_entry {
	const char *key; /* "capture.sample" */
	enum conf_type type;
	size_t offset;        /* into the program's conf struct */
	const char *def;      /* default as text; NULL = required */
	double min, max;      /* for CONF_INT and CONF_REAL; both 0 = any */
	const char *choices;  /* for CONF_ENUM: "a|b|c", value = index */
	bool reloadable;
	const char *unit;     /* "", "tok", "ms", ... */
	const char *help;     /* one sentence */
};

#define CONF_TEXT(number) CONF_TEXT_(number) /* a number that a header defines, as a default */
#define CONF_TEXT_(number) #number

struct conf_program {
	const char *name;     /* "redraft-serve" */
	const char *summary;  /* one sentence for --help */
	const struct conf_entry *entries; /* ends with key NULL */
	size_t struct_size;
	/* Rules between keys, and of one key beyond its range: 0, or negative with e. NULL = none. Opens nothing. */
	int (*check)(const void *conf, struct errtext *e);
};

enum { CONF_E_HELP = 1, CONF_E_VERSION = 2, CONF_E_CHECKED = 3, CONF_E_PRINTED = 4 }; /* text was printed to stdout: exit 0 */

/* Fill *conf (zeroed first). On error nothing is owned by *conf. argv[0] skipped;
 * positional arguments are an error unless ret_pos is given (then argv pointers,
 * not owned, at most max_pos). Also handled: --config FILE, --check (all sources were read and are
 * good), --help, --version (where no key is called that), --print_config, --print_table. */
int MUSTCHECK conf_load(const struct conf_program *p, int argc, char **argv, void *conf,
			const char **ret_pos, int max_pos, int *ret_n_pos, struct errtext *e);
void conf_done(const struct conf_program *p, void *conf);
void conf_print_help(const struct conf_program *p, FILE *out);
struct json_t;
struct json_t *conf_show(const struct conf_program *p, const void *conf); /* new reference */
/* An INI file of the whole table, every key commented out at its default (--print_config), and the
 * table as JSON, from which man pages and completions are made (--print_table). */
void conf_print_config(const struct conf_program *p, FILE *out);
void conf_print_table(const struct conf_program *p, FILE *out);

/* How many of the keys, reloadable ones or the others, have different values in a and b; ret becomes
 * "key, key, ..." and says how many more did not fit. */
int conf_differing(const struct conf_program *p, const void *a, const void *b, bool reloadable, char *ret, size_t size);
/* Exchange the values of the reloadable keys. */
void conf_swap_reloadable(const struct conf_program *p, void *a, void *b);
/* The nearest of the names (NULL-terminated) by edit distance, or NULL when all are far. */
const char *conf_nearest(const char *word, const char *const *names);
