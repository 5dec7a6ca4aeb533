/* Log lines. A blocked terminal or journal must never stall a daemon, so the
 * descriptor is non-blocking and what does not fit is dropped and counted.
 * O_NONBLOCK belongs to the open file, which stderr shares with the shell that
 * started us; so stderr is opened afresh through /proc, and a socket (the
 * journal's) is written with MSG_DONTWAIT instead. The journal itself gets messages with fields at its datagram socket
 * (systemd's native protocol), as long as somebody takes them there.
 */
#include "daemon/base/log.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
#include "daemon/base/clock.h"

static atomic_ulong log_lost;
static atomic_int log_max = LOG_INFO;
static int log_fd = 2;
static int log_is_socket, log_is_tty;
static char log_program[32];
static int journal_fd = -1;
static struct sockaddr_un journal = {.sun_family = AF_UNIX};

void log_to_journal(const char *path)
{
	if (journal_fd >= 0)
		close(journal_fd);
	journal_fd = path && strlen(path) < sizeof journal.sun_path ? socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;
	if (journal_fd >= 0)
		snprintf(journal.sun_path, sizeof journal.sun_path, "%s", path);
}

/* systemd says which socket it gave us as stderr; one that was put in its place since is not the journal's. */
static bool stderr_is_the_journals(const struct stat *st)
{
	const char *stream = getenv("JOURNAL_STREAM");
	char is[48];

	snprintf(is, sizeof is, "%llu:%llu", (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
	return stream && !strcmp(stream, is);
}

void log_init(const char *program, enum log_level max)
{
	struct stat st;
	int fd;

	snprintf(log_program, sizeof log_program, "%s", program);
	atomic_store(&log_max, (int)max);
	if (log_fd != 2)
		close(log_fd);
	log_fd = 2;
	log_is_socket = fstat(2, &st) == 0 && S_ISSOCK(st.st_mode);
	log_is_tty = isatty(2);
	log_to_journal(log_is_socket && stderr_is_the_journals(&st) ? "/run/systemd/journal/socket" : NULL);
	if (log_is_socket)
		return;
	fd = open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (fd >= 0)
		log_fd = fd;
}

void log_set_level(enum log_level max)
{
	atomic_store(&log_max, (int)max);
}

/* text: without a newline. False: nobody takes it there. */
static bool to_journal(enum log_level level, const char *fields, const char *text)
{
	char head[128];
	struct iovec part[] = {{.iov_base = head}, {.iov_base = (void *)(uintptr_t)fields, .iov_len = strlen(fields)},
			       {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)}, {.iov_base = "\n", .iov_len = 1}};
	struct msghdr m = {.msg_name = &journal, .msg_namelen = sizeof journal, .msg_iov = part, .msg_iovlen = 4};

	part[0].iov_len = (size_t)snprintf(head, sizeof head, "PRIORITY=%d\nSYSLOG_IDENTIFIER=%s\n", (int)level, log_program);
	if (sendmsg(journal_fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return true;
	if (errno != EAGAIN && errno != ENOBUFS)
		return false;
	atomic_fetch_add(&log_lost, 1);
	return true;
}

static void log_v(enum log_level level, const char *fields, const char *fmt, va_list ap)
{
	char line[1024], *from = line;
	int head, n;
	ssize_t k;

	if ((int)level > atomic_load_explicit(&log_max, memory_order_relaxed))
		return;
	if (journal_fd >= 0)
		head = snprintf(line, sizeof line, "MESSAGE=");
	else if (log_is_tty)
		head = snprintf(line, sizeof line, "%s%s", log_program, log_program[0] ? ": " : "");
	else
		head = snprintf(line, sizeof line, "<%d>", (int)level);
	n = vsnprintf(line + head, sizeof line - 1 - (size_t)head, fmt, ap);
	n = n < 0 ? 0 : n;
	n = (int)strnlen(line, sizeof line - 2);
	for (int i = head; i < n; i++) /* one line each, whatever a peer put into the text */
		if ((unsigned char)line[i] < 32 || line[i] == 127)
			line[i] = ' ';
	if (journal_fd >= 0) {
		if (to_journal(level, fields, line))
			return;
		from = line + head - 3; /* the line as ever, in place of MESSAGE= */
		memcpy(from, (char[]){'<', (char)('0' + (int)level), '>'}, 3);
		n -= head - 3;
	}
	from[n++] = '\n';
	if (log_is_socket)
		k = send(log_fd, from, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
	else
		k = write(log_fd, from, (size_t)n);
	if (k != n)
		atomic_fetch_add(&log_lost, 1);
}

void log_line(enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_v(level, "", fmt, ap);
	va_end(ap);
}

void log_fields(enum log_level level, const char *fields, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_v(level, fields, fmt, ap);
	va_end(ap);
}

static const uint64_t repeat_us = 3600ull * 1000000;

void log_repeated(struct log_repeat *r, enum log_level level, const char *fmt, ...)
{
	char text[sizeof r->text];
	uint64_t now = clock_us();
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (!strcmp(text, r->text) && now - r->said_us < repeat_us) {
		r->unsaid++;
		return;
	}
	if (!strcmp(text, r->text))
		log_line(level, "%s (and %u times since this was last said)", text, r->unsaid);
	else
		log_line(level, "%s", text);
	memcpy(r->text, text, sizeof text);
	r->said_us = now;
	r->unsaid = 0;
}

unsigned long log_dropped(void)
{
	return atomic_load(&log_lost);
}
