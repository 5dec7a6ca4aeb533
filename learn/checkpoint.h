/* Checkpoints: everything the learner is, at one place of the journal.
 *
 * One safetensors file each in state_dir/checkpoint/: f32 masters, optimizer
 * state, d2t, token counts, and the rest as JSON. Written by temp + fsync +
 * rename, checksummed as a whole, the newest two kept: a damaged one falls
 * back to the one before, and the journal carries on from there.
 */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "kernels/dev.h"

struct checkpoint {
	json_t *state;    /* owned */
	size_t n_params, n_moments;
	real *params, *moments; /* owned; NULL before there is a draft */
	real *average, *anchor; /* [n_params] owned; NULL: none is kept */
	int V_d;
	int64_t *d2t;     /* owned */
	int V;
	uint64_t *counts; /* [V] owned */
	void *room;       /* owned: where all the arrays lie (checkpoint_room); NULL: each is its own */
	size_t room_bytes;
};

/* Room for the arrays of a c that says n_params (0: there is no draft), n_moments, V_d and V, in one block that goes back to the system with
 * checkpoint_done. A room that c has is kept where it is of that size. */
int MUSTCHECK checkpoint_room(struct checkpoint *c, bool average, bool anchor);
void checkpoint_make_pages(struct checkpoint *c); /* touches all of the room: making its pages takes longer than filling them. Any thread */
/* What a killed write left behind in the folder is removed first. Any thread. */
int MUSTCHECK checkpoint_write(const char *dir, int64_t serial, const struct checkpoint *c, struct errtext *e);
/* The newest whole one. -ENOENT: none (also when all are damaged: *ret_damaged says how many). -ENOTSUP with e: whole, but another
 * program's; older ones are not taken in its place. */
int MUSTCHECK checkpoint_load(const char *dir, struct checkpoint *ret, int64_t *ret_serial, int *ret_damaged, struct errtext *e);
void checkpoint_done(struct checkpoint *c); /* safe on a zeroed struct */
