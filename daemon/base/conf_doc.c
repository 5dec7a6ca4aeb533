/* What a table of settings says of itself: the --help page, a commented INI file, and
 * JSON for whoever makes man pages and completions of it.
 */
#include "daemon/base/conf_value.h"
#include <ctype.h>
#include <jansson.h>
#include <string.h>

static void conf_help_entry(const struct conf_entry *entry, FILE *out)
{
	char head[96];
	const char *kind = entry->type == CONF_ENUM ? entry->choices
			   : entry->type == CONF_BOOL ? "on|off"
			   : entry->unit && entry->unit[0] ? entry->unit
			   : entry->type == CONF_INT ? "N"
			   : entry->type == CONF_REAL ? "X"
						      : "TEXT";

	snprintf(head, sizeof head, "--%s %s", entry->key, kind);
	fprintf(out, "  %-34s%s%s", head, strlen(head) > 32 ? "\n                                    " : "  ",
		entry->help);
	if (!entry->def)
		fprintf(out, " (required");
	else
		fprintf(out, " (default: %s", entry->def[0] ? entry->def : "none");
	if ((entry->type == CONF_INT || entry->type == CONF_REAL) && (entry->min != 0 || entry->max != 0))
		fprintf(out, "; %g to %g", entry->min, entry->max);
	fprintf(out, "%s)\n", entry->reloadable ? "; reload" : "");
}

void conf_print_help(const struct conf_program *p, FILE *out)
{
	char prefix[64];
	size_t n = 0;

	for (; p->name[n] && n + 1 < sizeof prefix; n++)
		prefix[n] = isalnum((unsigned char)p->name[n]) ? (char)toupper((unsigned char)p->name[n]) : '_';
	prefix[n] = '\0';
	fprintf(out, "%s: %s\n\n", p->name, p->summary);
	fprintf(out, "Every setting is a flag (--key value), an environment variable (%s_KEY, dots as underscores)\n"
		     "and a line of the INI file ([section] of the part before the dot). Flags win, then the environment.\n"
		     "Settings marked reload are taken up on SIGHUP; the others wait for a restart.\n\n",
		prefix);
	for (const struct conf_entry *entry = p->entries; entry->key; entry++)
		conf_help_entry(entry, out);
	fprintf(out, "  %-34s  %s\n", "--config FILE", "read settings from an INI file");
	fprintf(out, "  %-34s  %s\n", "--check", "read all settings, say whether they are good, and end");
	fprintf(out, "  %-34s  %s\n", "--print_config", "print an INI file of all settings at their defaults");
	fprintf(out, "  %-34s  %s\n", "--help", "print this page");
	if (!conf_has_version(p))
		fprintf(out, "  %-34s  %s\n", "--version", "print the version");
}

/* ---- the INI file ---- */

static size_t conf_section(const char *key)
{
	const char *dot = strchr(key, '.');

	return dot ? (size_t)(dot - key) : 0;
}

static void conf_ini_entry(const struct conf_entry *entry, FILE *out)
{
	size_t n = conf_section(entry->key);

	fprintf(out, "# %s", entry->help);
	if (entry->choices)
		fprintf(out, " (%s)", entry->choices);
	else if (entry->type == CONF_BOOL)
		fprintf(out, " (on|off)");
	else if ((entry->type == CONF_INT || entry->type == CONF_REAL) && (entry->min != 0 || entry->max != 0))
		fprintf(out, " (%g to %g%s%s)", entry->min, entry->max, entry->unit[0] ? " " : "", entry->unit);
	fprintf(out, "%s%s\n#%s =%s%s\n\n", entry->def ? "" : " REQUIRED.", entry->reloadable ? " Reload takes it up." : "",
		entry->key + (n ? n + 1 : 0), entry->def && entry->def[0] ? " " : "", entry->def ? entry->def : "");
}

/* Keys without a section first; then each section where the table first has it. */
void conf_print_config(const struct conf_program *p, FILE *out)
{
	const struct conf_entry *first = p->entries;

	fprintf(out, "# Settings of %s, each at its default; take the # away to change one.\n", p->name);
	fprintf(out, "# Checked by: %s --check --config FILE\n\n", p->name);
	for (const struct conf_entry *entry = first; entry->key; entry++)
		if (!conf_section(entry->key))
			conf_ini_entry(entry, out);
	for (const struct conf_entry *entry = first; entry->key; entry++) {
		size_t n = conf_section(entry->key);
		bool seen = false;

		for (const struct conf_entry *before = first; before < entry; before++)
			seen = seen || (conf_section(before->key) == n && !strncmp(before->key, entry->key, n));
		if (!n || seen)
			continue;
		fprintf(out, "[%.*s]\n", (int)n, entry->key);
		for (const struct conf_entry *same = entry; same->key; same++)
			if (conf_section(same->key) == n && !strncmp(same->key, entry->key, n))
				conf_ini_entry(same, out);
	}
}

/* ---- JSON ---- */

void conf_print_table(const struct conf_program *p, FILE *out)
{
	static const char *const types[] = {"string", "int", "real", "bool", "enum"};
	json_t *keys = json_array(), *all = json_pack("{s:s, s:s, s:o}", "name", p->name, "summary", p->summary, "keys", keys);

	for (const struct conf_entry *entry = p->entries; all && entry->key; entry++)
		(void)json_array_append_new(keys, json_pack("{s:s, s:s, s:s?, s:f, s:f, s:s?, s:b, s:s, s:s}", "key", entry->key, "type",
							    types[entry->type], "default", entry->def, "min", entry->min, "max", entry->max,
							    "choices", entry->choices, "reloadable", (int)entry->reloadable, "unit",
							    entry->unit ? entry->unit : "", "help", entry->help));
	if (all)
		json_dumpf(all, out, JSON_INDENT(1));
	fputc('\n', out);
	json_decref(all);
}
