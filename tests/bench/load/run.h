/* Clients at work: streams of dialogues, in slices.
 *
 * A stream is closed (so many clients, each sends when its last answer has ended) or open (requests
 * arrive when they arrive). A slice runs the main stream over its next dialogues, and
 * beside it perhaps an open one whose long prompts disturb; it ends when every answer has. The
 * n-th slice of each label gets the same dialogues, so labels can be compared slice by slice.
 * Threads: one, with the event loop.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tests/bench/load/client.h"
#include "tests/bench/load/traffic.h"

enum { MAX_LABELS = 16, MAX_FLIGHT = 4096 };

struct stream_options {
	struct traffic_options traffic;
	int clients;        /* closed loop; 0 = open */
	double rate;        /* open loop, per second */
	bool even;          /* instead of Poisson */
	const char *times;  /* a file of arrival times; "" = none */
	size_t requests;    /* dialogues a slice; 0 = until seconds are over */
	double seconds;     /* no new dialogue after them; 0 = no limit */
	int max_tokens, context, think_ms;
	double temperature;
	bool unique, ignore_eos, token_ids;
	uint64_t seed;
};

/* One finished request. */
struct record {
	int label;
	uint32_t slice, dialogue, round; /* slice: how many of its label were before; round from 0 */
	bool beside;
	uint64_t due; /* µs: when it should have been sent; an open loop's latencies count from here */
	struct answer a;
};

struct arm {
	char label[32];
	struct target to;
	char host[64];
	bool draft, trace, beside, cold; /* cold: every request begins with something new, so that nothing is reused */
	uint32_t slices;
	double seconds; /* of all its slices */
};

struct run {
	struct event_base *base;
	struct target to;
	struct stream_options main, beside;
	bool has_beside;
	struct traffic talk, noise;
	struct arm arms[MAX_LABELS];
	int n_arms;
	struct record *done; /* owned */
	size_t n_done, cap_done;
	uint64_t tag; /* of the next request or dialogue */
};

int MUSTCHECK run_init(struct run *r, struct errtext *e); /* options and target are set */
void run_done(struct run *r);
/* "HOST:PORT" into ret_host and *ret_port; -EINVAL with a sentence. */
int MUSTCHECK run_address(const char *text, char *ret_host, size_t size, uint16_t *ret_port, struct errtext *e);
/* line: "LABEL [draft=off] [trace=off] [beside=off] [cold=on] [at=HOST:PORT]"; the words of a label's first slice hold for all of it. */
int MUSTCHECK run_slice(struct run *r, const char *line, struct errtext *e);
