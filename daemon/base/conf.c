/* Configuration from one table: where values come from and in what order. Each
 * source only collects text per key; the text is turned into values once, at the
 * end, so that a bad default, file line, variable or flag gets the same sentence
 * and the same checks. Values and help: conf_value.c.
 */
#include "daemon/base/conf.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/conf_value.h"
#include "daemon/base/fs.h"

enum { CONF_MAX_FILE = 1 << 20 };

extern char **environ;

struct conf_set {
	const struct conf_program *p;
	int n;
	char **text;  /* owned [n]; NULL = not set */
	char **where; /* owned [n]: "--model", "redraft.ini:3", "REDRAFT_SERVE_MODEL" */
	struct errtext *e;
};

static int conf_count(const struct conf_program *p)
{
	int n = 0;

	while (p->entries[n].key)
		n++;
	return n;
}

/* '-' and '_' are one character in flags, since nobody remembers which it was. */
static bool conf_key_equal(const char *a, const char *b, size_t n_b)
{
	size_t i;

	for (i = 0; i < n_b && a[i]; i++) {
		char x = a[i] == '-' ? '_' : a[i], y = b[i] == '-' ? '_' : b[i];

		if (x != y)
			return false;
	}
	return i == n_b && !a[i];
}

static int conf_find(const struct conf_program *p, const char *key, size_t n_key)
{
	for (int i = 0; p->entries[i].key; i++)
		if (conf_key_equal(p->entries[i].key, key, n_key))
			return i;
	return -1;
}

static int conf_put(struct conf_set *s, int i, const char *text, size_t n_text, const char *where)
{
	char *t = strndup(text, n_text), *w = strdup(where);

	if (!t || !w) {
		free(t);
		free(w);
		return errtext_set(s->e, -ENOMEM, "out of memory while reading the configuration");
	}
	free(s->text[i]);
	free(s->where[i]);
	s->text[i] = t;
	s->where[i] = w;
	return 0;
}

static int conf_unknown(struct conf_set *s, const char *where, const char *dashes, const char *key)
{
	const char *names[256] = {"config", "check", "help", "version", "print_config"};
	int n = dashes[0] ? 5 : 0;
	const char *near;

	for (int i = 0; i < s->n && n < 255; i++)
		names[n++] = s->p->entries[i].key;
	names[n] = NULL;
	near = conf_nearest(key, names);
	if (near)
		return errtext_set(s->e, -EINVAL, "%s%s%s%s is unknown; did you mean %s%s?", where, where[0] ? ": " : "",
				   dashes, key, dashes, near);
	return errtext_set(s->e, -EINVAL, "%s%s%s%s is unknown; %s --help lists what there is", where,
			   where[0] ? ": " : "", dashes, key, s->p->name);
}

static char *conf_trim(char *s)
{
	char *end;

	while (isspace((unsigned char)*s))
		s++;
	end = s + strlen(s);
	while (end > s && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return s;
}

struct conf_ini {
	const char *path;
	int line;
	char section[64];
	char *seen; /* owned [n]: keys this file has set */
};

static int conf_ini_line(struct conf_set *s, struct conf_ini *ini, char *line)
{
	char where[128], key[160], *eq, *value;
	const char *base = strrchr(ini->path, '/');
	size_t n;
	int i;

	snprintf(where, sizeof where, "%.90s:%d", base ? base + 1 : ini->path, ini->line);
	line = conf_trim(line);
	if (!line[0] || line[0] == '#' || line[0] == ';')
		return 0;
	n = strlen(line);
	if (line[0] == '[') {
		if (line[n - 1] != ']' || n - 2 >= sizeof ini->section)
			return errtext_set(s->e, -EINVAL, "%s: a section is written [name]", where);
		line[n - 1] = '\0';
		snprintf(ini->section, sizeof ini->section, "%s", conf_trim(line + 1));
		return 0;
	}
	eq = strchr(line, '=');
	if (!eq)
		return errtext_set(s->e, -EINVAL, "%s: expected key = value", where);
	*eq = '\0';
	value = conf_trim(eq + 1);
	n = strlen(value);
	if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
		value[n - 1] = '\0';
		value++;
		n -= 2;
	}
	snprintf(key, sizeof key, "%s%s%.90s", ini->section, ini->section[0] ? "." : "", conf_trim(line));
	i = conf_find(s->p, key, strlen(key));
	if (i < 0)
		return conf_unknown(s, where, "", key);
	if (ini->seen[i])
		return errtext_set(s->e, -EINVAL, "%s: %s is set twice in this file; remove one", where, key);
	ini->seen[i] = 1;
	return conf_put(s, i, value, n, where);
}

static int conf_from_file(struct conf_set *s, const char *path)
{
	static const char mark[] = "\xef\xbb\xbf"; /* some editors begin a file of UTF-8 so */
	struct conf_ini ini = {.path = path};
	char *text, *next;
	int r = fs_read_text(path, CONF_MAX_FILE, &text);

	if (r < 0)
		return errtext_set(s->e, r, "configuration file %.150s: %s", path, fs_text_why(r));
	ini.seen = calloc((size_t)s->n + 1, 1);
	if (!ini.seen)
		r = -ENOMEM;
	for (char *line = strncmp(text, mark, sizeof mark - 1) ? text : text + sizeof mark - 1; !r && line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		ini.line++;
		r = conf_ini_line(s, &ini, line);
	}
	free(ini.seen);
	free(text);
	return r;
}

/* "redraft-serve" -> REDRAFT_SERVE_, "redraftd" -> REDRAFTD_ */
static void conf_env_prefix(const struct conf_program *p, char *ret, size_t size)
{
	size_t i;

	for (i = 0; p->name[i] && i + 2 < size; i++)
		ret[i] = isalnum((unsigned char)p->name[i]) ? (char)toupper((unsigned char)p->name[i]) : '_';
	ret[i++] = '_';
	ret[i] = '\0';
}

static int conf_from_environment(struct conf_set *s)
{
	char prefix[64];
	size_t n_prefix;
	int r = 0;

	conf_env_prefix(s->p, prefix, sizeof prefix);
	n_prefix = strlen(prefix);
	for (char **v = environ; !r && v && *v; v++) {
		char key[128], name[200];
		const char *eq = strchr(*v, '=');
		int found = -1;

		if (strncmp(*v, prefix, n_prefix) || !eq || (size_t)(eq - *v) >= sizeof key + n_prefix)
			continue;
		snprintf(name, sizeof name, "%.*s", (int)(eq - *v), *v);
		snprintf(key, sizeof key, "%.*s", (int)(eq - *v - (ptrdiff_t)n_prefix), *v + n_prefix);
		for (char *c = key; *c; c++)
			*c = (char)tolower((unsigned char)*c);
		for (int i = 0; found < 0 && i < s->n; i++) {
			char flat[128];

			snprintf(flat, sizeof flat, "%s", s->p->entries[i].key);
			for (char *c = flat; *c; c++)
				*c = *c == '.' || *c == '-' ? '_' : *c;
			if (!strcmp(flat, key))
				found = i;
		}
		r = found < 0 ? conf_unknown(s, name, "", key) : conf_put(s, found, eq + 1, strlen(eq + 1), name);
	}
	return r;
}

static bool conf_is_bool_word(const char *w)
{
	static const char *const words[] = {"on", "off", "true", "false", "yes", "no", NULL};

	for (int i = 0; w && words[i]; i++)
		if (!strcmp(w, words[i]))
			return true;
	return false;
}

/* One flag at argv[*at]; *at ends on its last word. */
static int conf_flag(struct conf_set *s, int argc, char **argv, int *at)
{
	const char *flag = argv[*at] + 2, *eq = strchr(flag, '='), *value = eq ? eq + 1 : NULL;
	size_t n = eq ? (size_t)(eq - flag) : strlen(flag);
	int i = conf_find(s->p, flag, n);
	char name[128];

	snprintf(name, sizeof name, "%.*s", (int)(n > 100 ? 100 : n), flag);
	if (i < 0)
		return conf_unknown(s, "", "--", name);
	if (!value && s->p->entries[i].type == CONF_BOOL)
		value = *at + 1 < argc && conf_is_bool_word(argv[*at + 1]) ? argv[++*at] : "on";
	if (!value && *at + 1 < argc)
		value = argv[++*at];
	if (!value)
		return errtext_set(s->e, -EINVAL, "--%s needs a value", s->p->entries[i].key);
	snprintf(name, sizeof name, "--%s", s->p->entries[i].key);
	return conf_put(s, i, value, strlen(value), name);
}

struct conf_args {
	const char **pos;
	int max_pos, n_pos;
	const char *file;
	bool check;
};

bool conf_has_version(const struct conf_program *p)
{
	return conf_find(p, "version", 7) >= 0;
}

/* Before anything can fail: a question about the program is always answered. */
static int conf_questions(const struct conf_program *p, int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			conf_print_help(p, stdout);
			return CONF_E_HELP;
		}
		if (!strcmp(argv[i], "--version") && !conf_has_version(p)) {
			printf("%s %s\n", p->name, REDRAFT_COMMIT);
			return CONF_E_VERSION;
		}
		if (!strcmp(argv[i], "--print_config") || !strcmp(argv[i], "--print-config")) {
			conf_print_config(p, stdout);
			return CONF_E_PRINTED;
		}
		if (!strcmp(argv[i], "--print_table")) {
			conf_print_table(p, stdout);
			return CONF_E_PRINTED;
		}
	}
	return 0;
}

static int conf_find_file(struct conf_set *s, int argc, char **argv, struct conf_args *a)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strncmp(argv[i], "--config=", 9))
			a->file = argv[i] + 9;
		else if (!strcmp(argv[i], "--config") && i + 1 < argc)
			a->file = argv[i + 1];
		else if (!strcmp(argv[i], "--config"))
			return errtext_set(s->e, -EINVAL, "--config needs a file name");
	}
	return 0;
}

static int conf_from_flags(struct conf_set *s, int argc, char **argv, struct conf_args *a)
{
	bool only_positional = false;
	int r = 0;

	for (int i = 1; !r && i < argc; i++) {
		if (!only_positional && !strcmp(argv[i], "--"))
			only_positional = true;
		else if (!only_positional && !strcmp(argv[i], "--check"))
			a->check = true;
		else if (!only_positional && !strcmp(argv[i], "--config"))
			i++; /* read earlier, so that flags win over the file */
		else if (!only_positional && !strncmp(argv[i], "--config=", 9))
			continue;
		else if (!only_positional && !strncmp(argv[i], "--", 2))
			r = conf_flag(s, argc, argv, &i);
		else if (!only_positional && argv[i][0] == '-' && argv[i][1])
			r = errtext_set(s->e, -EINVAL, "%s is unknown; flags are written --key value", argv[i]);
		else if (!a->pos)
			r = errtext_set(s->e, -EINVAL, "%.100s: this program takes no arguments but flags (--key value)",
					argv[i]);
		else if (a->n_pos >= a->max_pos)
			r = errtext_set(s->e, -EINVAL, "%.100s: at most %d argument%s", argv[i], a->max_pos,
					a->max_pos == 1 ? "" : "s");
		else
			a->pos[a->n_pos++] = argv[i];
	}
	return r;
}

static int conf_build(struct conf_set *s, void *conf)
{
	int r = 0;

	memset(conf, 0, s->p->struct_size);
	for (int i = 0; !r && i < s->n; i++) {
		const struct conf_entry *entry = &s->p->entries[i];
		const char *text = s->text[i] ? s->text[i] : entry->def;

		if (!text)
			r = errtext_set(s->e, -EINVAL, "%s is required: give --%s or set it in the configuration file",
					entry->key, entry->key);
		else
			r = conf_value_set(entry, text, s->where[i] ? s->where[i] : "default", conf, s->e);
	}
	if (!r && s->p->check)
		r = s->p->check(conf, s->e);
	if (r < 0)
		conf_done(s->p, conf);
	return r;
}

int conf_load(const struct conf_program *p, int argc, char **argv, void *conf, const char **ret_pos, int max_pos,
	      int *ret_n_pos, struct errtext *e)
{
	struct conf_set s = {.p = p, .n = conf_count(p), .e = e};
	struct conf_args a = {.pos = ret_pos, .max_pos = max_pos};
	int r = conf_questions(p, argc, argv);

	if (r)
		return r;
	s.text = calloc((size_t)s.n + 1, sizeof *s.text);
	s.where = calloc((size_t)s.n + 1, sizeof *s.where);
	r = s.text && s.where ? 0 : errtext_set(e, -ENOMEM, "out of memory");
	if (!r)
		r = conf_find_file(&s, argc, argv, &a);
	if (!r && a.file)
		r = conf_from_file(&s, a.file);
	if (!r)
		r = conf_from_environment(&s);
	if (!r)
		r = conf_from_flags(&s, argc, argv, &a);
	if (!r)
		r = conf_build(&s, conf);
	else
		memset(conf, 0, p->struct_size);
	for (int i = 0; i < s.n; i++) {
		if (s.text)
			free(s.text[i]);
		if (s.where)
			free(s.where[i]);
	}
	free(s.text);
	free(s.where);
	if (r)
		return r;
	if (ret_n_pos)
		*ret_n_pos = a.n_pos;
	if (!a.check)
		return 0;
	conf_done(p, conf);
	printf("%s: the configuration is good\n", p->name);
	return CONF_E_CHECKED;
}
