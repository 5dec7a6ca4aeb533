/* Log lines: one line each with its priority, levels filtered, a full pipe drops
 * and counts instead of blocking; what is said again and again is said once.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/log.h"

static void lines(void **state)
{
	char text[4096] = "";
	int p[2], saved = dup(2);
	unsigned long dropped;
	ssize_t n;

	(void)state;
	assert_int_equal(pipe(p), 0);
	dup2(p[1], 2);
	log_init("test", LOG_INFO);
	log_info("hello %d", 5);
	log_debug("not seen");
	log_error("two\nlines\x01");
	n = read(p[0], text, sizeof text - 1);
	dropped = log_dropped();
	for (int i = 0; i < 20000; i++)
		log_info("%s", "a line that nobody reads, again and again");
	dropped = log_dropped() - dropped;
	dup2(saved, 2);
	log_init("test", LOG_INFO);
	assert_true(n > 0);
	assert_string_equal(text, "<6>hello 5\n<3>two lines \n");
	assert_true(dropped > 1000); /* and we are here: it did not block */
	assert_false(fcntl(saved, F_GETFL) & O_NONBLOCK);
	close(p[0]);
	close(p[1]);
	close(saved);
}

/* To the journal: one datagram each, with fields; when nobody takes them there, the line as ever. */
static void fields(void **state)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_DGRAM, 0), p[2], saved = dup(2);
	char text[512] = "";
	ssize_t n;

	(void)state;
	snprintf(a.sun_path, sizeof a.sun_path, "/tmp/redraft-log-%d", (int)getpid());
	assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(pipe(p), 0);
	dup2(p[1], 2);
	setenv("JOURNAL_STREAM", "1:2", 1); /* another's */
	log_init("test", LOG_INFO);
	log_to_journal(a.sun_path);
	log_fields(LOG_WARN, "REDRAFT_EVENT=switch\nREDRAFT_LIVE=7\n", "version %d\nMESSAGE=forged", 7);
	n = recv(s, text, sizeof text - 1, MSG_DONTWAIT);
	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text, "PRIORITY=4\nSYSLOG_IDENTIFIER=test\nREDRAFT_EVENT=switch\nREDRAFT_LIVE=7\nMESSAGE=version 7 MESSAGE=forged\n");
	log_debug("not seen");
	assert_int_equal(recv(s, text, sizeof text, MSG_DONTWAIT), -1);
	close(s);
	unlink(a.sun_path);
	log_fields(LOG_INFO, "REDRAFT_EVENT=x\n", "nobody there");
	log_to_journal(NULL);
	log_fields(LOG_INFO, "REDRAFT_EVENT=x\n", "to stderr");
	n = read(p[0], text, sizeof text - 1);
	dup2(saved, 2);
	log_init("test", LOG_INFO);
	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text, "<6>nobody there\n<6>to stderr\n");
	close(p[0]);
	close(p[1]);
	close(saved);
}

/* The same sentence is said once, and an hour later with its number; another one, or the same after it was over, at once. */
static void repeated(void **state)
{
	struct log_repeat r = {.unsaid = 0};
	char text[4096] = "";
	int p[2], saved = dup(2);

	(void)state;
	assert_int_equal(pipe(p), 0);
	dup2(p[1], 2);
	log_init("test", LOG_INFO);
	for (int i = 0; i < 700; i++)
		log_repeated(&r, LOG_WARN, "disk %s", "full");
	r.said_us -= 3600ull * 1000000;
	for (int i = 0; i < 3; i++)
		log_repeated(&r, LOG_WARN, "disk full");
	log_repeated(&r, LOG_WARN, "disk gone");
	log_repeated(&r, LOG_WARN, "disk gone");
	r = (struct log_repeat){.unsaid = 0};
	log_repeated(&r, LOG_WARN, "disk gone");
	assert_true(read(p[0], text, sizeof text - 1) > 0);
	dup2(saved, 2);
	log_init("test", LOG_INFO);
	assert_string_equal(text, "<4>disk full\n<4>disk full (and 699 times since this was last said)\n<4>disk gone\n<4>disk gone\n");
	close(p[0]);
	close(p[1]);
	close(saved);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(lines), cmocka_unit_test(fields), cmocka_unit_test(repeated)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
