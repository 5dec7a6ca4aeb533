/* Replies as a person reads them. params are a reply's parameters, borrowed. */
#pragma once
#include <jansson.h>
#include <stdio.h>

void print_status(FILE *out, const json_t *params);
void print_versions(FILE *out, const json_t *params);
void print_show(FILE *out, const json_t *params);
void print_moved(FILE *out, const json_t *params); /* promote, rollback */
void print_pin(FILE *out, const json_t *params);
void print_done(FILE *out, const json_t *params);
void print_probe(FILE *out, const json_t *params);
void print_drift(FILE *out, const json_t *params);
void print_explain(FILE *out, const json_t *params);
void print_diff(FILE *out, const json_t *params);
void print_audit(FILE *out, const json_t *params);
void print_topics(FILE *out, const json_t *params);
void print_replay(FILE *out, const json_t *params);
void print_purge(FILE *out, const json_t *params);
void print_config(FILE *out, const json_t *params);
void print_event(FILE *out, const json_t *event);
