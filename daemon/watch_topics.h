/* The topics that redraft needs: are they there, are they as they should be; made when told to. Blocks; any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "daemon/base/err.h"

struct topics_options {
	const char *brokers, *conf;           /* as watch.h's */
	const char *traces, *rounds, *audit, *events;  /* names; audit, events "" = none wanted */
	int partitions, replication;          /* of what is made; replication 0: as the broker has it */
	double traces_h, rounds_h;            /* retention */
};

/* {brokers, topics: [{topic, exists, made, partitions, replication, config: {...}, problems: [sentence]}], good}; NULL with e: nobody answers. */
json_t *topics_check(const struct topics_options *o, bool create, struct errtext *e);
