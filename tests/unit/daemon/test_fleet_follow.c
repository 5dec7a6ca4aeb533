/* A follower's daemon whole, with a topic in memory and the leader's store beside it: a version that arrives damaged is refused and
 * fetched again when it is right, is live then, and leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include "daemon/base/fs.h"
#include "schemas/fleet.h"
#include "schemas/manifest.h"
#include "tests/unit/daemon/act_drive.h"

/* The leader: version 1 of a store of its own, and its word in the topic. */
static void lead(rd_kafka_t *p)
{
	struct fleet_word w = {.target_fp = FIXTURE_TARGET, .epoch = 1, .run = "r", .host = "leader", .generation = 1, .live = 1};
	struct errtext e = {.text = ""};
	struct manifest m;
	char text[1024];

	daemon_start();
	live_up_to(1);
	daemon_stop();
	assert_int_equal(rename(d.store, fixture_path("leader")), 0);
	assert_int_equal(manifest_read(fixture_path("leader/versions/1"), &m, &e), 0);
	memcpy(w.weights_sha, m.weights_sha, sizeof w.weights_sha);
	manifest_done(&m);
	assert_int_equal(fleet_word_encode(&w, text, sizeof text), 0);
	assert_int_equal(rd_kafka_producev(p, RD_KAFKA_V_TOPIC("events"), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_VALUE(text, strlen(text)),
					   RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END), 0);
	assert_int_equal(rd_kafka_flush(p, 60000), 0);
}

/* It was looked at, and given back as no use. */
static bool refused(void)
{
	struct stat st;

	return stat(fixture_path("store/incoming/fleet/model.safetensors"), &st) == 0 && (st.st_mode & 0777) == 0440;
}

static void a_damaged_copy_is_fetched_again(void **state)
{
	char why[128], versions[PATH_MAX], model[PATH_MAX], kept[PATH_MAX];
	rd_kafka_t *p = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), why, sizeof why);
	rd_kafka_mock_cluster_t *mock;

	(void)state;
	assert_non_null(p);
	mock = rd_kafka_mock_cluster_new(p, 1);
	rd_kafka_mock_topic_create(mock, "events", 1, 1);
	rd_kafka_brokers_add(p, rd_kafka_mock_cluster_bootstraps(mock));
	both_on();
	lead(p);
	snprintf(versions, sizeof versions, "%s", fixture_path("leader/versions"));
	snprintf(model, sizeof model, "%s", fixture_path("leader/versions/1/model.safetensors"));
	snprintf(kept, sizeof kept, "%s", fixture_path("kept"));
	assert_int_equal(rename(model, kept), 0);
	assert_int_equal(fs_write_atomic(model, "half of it", 10), 0);
	d.o.rules.follows = true;
	d.fo = (struct fleet_options){.role = FLEET_FOLLOWER, .brokers = rd_kafka_mock_cluster_bootstraps(mock), .topic = "events", .conf = "", .versions = versions};
	daemon_start();
	WAIT_FOR(refused());
	assert_int_equal(field("live"), 0);
	assert_int_equal(rename(kept, model), 0);
	WAIT_FOR(field("live") == 1);
	assert_int_equal(peers.live, 1);
	assert_int_equal(access(fixture_path("store/incoming/fleet"), F_OK), -1);
	daemon_stop();
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(a_damaged_copy_is_fetched_again, setup, teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
