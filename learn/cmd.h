/* The words redraft-learn takes before its flags, one file each. Each is a program of its own: its table of keys,
 * its --help, its exit status (0 done, 1 failed, 2 wrong input, 3 nobody answers). argv[0] is skipped. */
#pragma once

struct conf_program;
struct errtext;

int cmd_train(int argc, char **argv);          /* a draft from records on disk */
int cmd_bootstrap(int argc, char **argv);      /* traffic for a model that has none */
int cmd_collect(int argc, char **argv);        /* records of the topic into a folder */
int cmd_export_records(int argc, char **argv); /* a folder's records as single files */
int cmd_export(int argc, char **argv);         /* a draft for vLLM, SGLang, SpecForge or llama.cpp */
int cmd_import(int argc, char **argv);         /* and one of theirs */
int cmd_pack(int argc, char **argv);           /* a draft as one small file */
int cmd_unpack(int argc, char **argv);         /* and back */
int cmd_replay(int argc, char **argv);         /* accept lengths of a version on recorded requests */

int cmd_fail(const char *word, int r, const struct errtext *e); /* says it; the exit status */
/* A word whole: conf filled from its table, work(conf), what went wrong said. Returns the exit status. */
int cmd_run(const char *word, const struct conf_program *p, int argc, char **argv, void *conf, int (*work)(const void *conf, struct errtext *e));
