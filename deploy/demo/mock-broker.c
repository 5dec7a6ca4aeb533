/* redraft-mock-broker: an embedded Kafka for a first run.
 *
 * librdkafka's own mock cluster, in a process of its own: it speaks the real
 * protocol over TCP on loopback, holds 5 MiB a partition in memory and forgets the
 * rest, cannot answer offsets by time and persists nothing. Good for the demo and for
 * tests; never for data that matters. It ends with SIGTERM or SIGINT, or when the process that
 * started it does. SIGUSR1 takes it off the network (connections end, none is taken), SIGUSR2 brings it back.
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "daemon/base/fs.h"

static const char usage[] = "Usage: redraft-mock-broker [--partitions N] [--address-file FILE] [--topics A,B,...]\n"
			    "\n"
			    "Starts an embedded one-broker Kafka on a free loopback port, prints its\n"
			    "bootstrap address on standard output and stays until SIGTERM, or until its\n"
			    "parent process ends.\n"
			    "\n"
			    "  --partitions N       partitions of each topic, 1 to 8 (default 8)\n"
			    "  --address-file FILE  also write the address to FILE (whole or not at all)\n"
			    "  --topics A,B,...     topics to make (default redraft.traces,redraft.rounds)\n"
			    "\n"
			    "It keeps only the newest 5 MiB of each partition, in memory: a reader that\n"
			    "falls further behind loses records, and nothing survives a restart. For data\n"
			    "that matters run Apache Kafka.\n";

struct options {
	int partitions;
	const char *address_file, *topics;
};

static int bad(const char *what, const char *arg)
{
	(void)fprintf(stderr, "redraft-mock-broker: %s%s; try --help\n", what, arg);
	return 2;
}

/* 0, or the exit status (-1 = help was asked for). */
static int parse(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		char *end = NULL;
		if (strcmp(argv[i], "--help") == 0)
			return -1;
		bool known =
			strcmp(argv[i], "--partitions") == 0 || strcmp(argv[i], "--address-file") == 0 || strcmp(argv[i], "--topics") == 0;
		if (!known)
			return bad("unknown argument ", argv[i]);
		if (i + 1 == argc)
			return bad("a value is missing after ", argv[i]);
		const char *value = argv[++i];
		if (strcmp(argv[i - 1], "--address-file") == 0) {
			o->address_file = value;
		} else if (strcmp(argv[i - 1], "--topics") == 0) {
			o->topics = value;
		} else {
			long n = strtol(value, &end, 10);
			if (*end || n < 1 || n > 8)
				return bad("--partitions must be 1 to 8, not ", value);
			o->partitions = (int)n;
		}
	}
	return 0;
}

static rd_kafka_mock_cluster_t *start(rd_kafka_t **ret_host)
{
	char why[256];
	rd_kafka_conf_t *c = rd_kafka_conf_new();

	if (rd_kafka_conf_set(c, "log_level", "0", why, sizeof why)) /* "no bootstrap.servers": true and of no interest */
		return NULL;
	rd_kafka_t *host = rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	if (!host) {
		rd_kafka_conf_destroy(c);
		(void)fprintf(stderr, "redraft-mock-broker: %s\n", why);
		return NULL;
	}
	rd_kafka_mock_cluster_t *cluster = rd_kafka_mock_cluster_new(host, 1);
	if (!cluster)
		rd_kafka_destroy(host);
	*ret_host = host;
	return cluster;
}

static int make_topics(rd_kafka_mock_cluster_t *cluster, const struct options *o)
{
	char *names = strdup(o->topics), *save = NULL;
	int r = names ? 0 : -ENOMEM;

	for (char *t = names ? strtok_r(names, ",", &save) : NULL; r == 0 && t; t = strtok_r(NULL, ",", &save)) {
		rd_kafka_resp_err_t err = rd_kafka_mock_topic_create(cluster, t, o->partitions, 1);
		if (err) {
			(void)fprintf(stderr, "redraft-mock-broker: topic %s: %s\n", t, rd_kafka_err2str(err));
			r = -EIO;
		}
	}
	free(names);
	return r;
}

static int announce(const char *address, const struct options *o)
{
	char line[256];
	int n = snprintf(line, sizeof line, "%s\n", address);
	int r = o->address_file ? fs_write_atomic(o->address_file, line, (size_t)n) : 0;

	if (r < 0)
		(void)fprintf(stderr, "redraft-mock-broker: %s: %s\n", o->address_file, strerror(-r));
	else if (fputs(line, stdout) < 0 || fflush(stdout))
		r = -EIO;
	return r;
}

int main(int argc, char **argv)
{
	struct options o = {.partitions = 8, .topics = "redraft.traces,redraft.rounds"};
	pid_t parent = getppid();
	rd_kafka_t *host = NULL;
	sigset_t stop;
	int sig = 0, r = parse(argc, argv, &o);

	if (r < 0)
		return fputs(usage, stdout) < 0;
	if (r > 0)
		return r;
	/* blocked before any thread starts, so that sigwait alone takes them */
	(void)sigemptyset(&stop);
	(void)sigaddset(&stop, SIGTERM);
	(void)sigaddset(&stop, SIGINT);
	(void)sigaddset(&stop, SIGUSR1);
	(void)sigaddset(&stop, SIGUSR2);
	(void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		return 1; /* it was gone before we asked */
	rd_kafka_mock_cluster_t *cluster = start(&host);
	if (!cluster)
		return 1;
	r = make_topics(cluster, &o);
	if (r == 0)
		r = announce(rd_kafka_mock_cluster_bootstraps(cluster), &o);
	while (r == 0 && sigwait(&stop, &sig) == 0 && (sig == SIGUSR1 || sig == SIGUSR2))
		(void)(sig == SIGUSR1 ? rd_kafka_mock_broker_set_down(cluster, 1) : rd_kafka_mock_broker_set_up(cluster, 1));
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(host);
	if (o.address_file && r == 0)
		(void)unlink(o.address_file);
	return r < 0;
}
