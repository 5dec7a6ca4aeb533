/* Log lines. A blocked terminal or journal must never stall a daemon, so the
 * descriptor is non-blocking and what does not fit is dropped and counted.
 * O_NONBLOCK belongs to the open file, which stderr shares with the shell that
 * started us; so stderr is opened afresh through /proc, and a socket (the
 * journal's) is written with MSG_DONTWAIT instead.
 */
#include "daemon/base/log.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_ulong log_lost;
static atomic_int log_max = LOG_INFO;
static int log_fd = 2;
static int log_is_socket, log_is_tty;
static char log_program[32];

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

void log_line(enum log_level level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	int head, n;
	ssize_t k;

	if ((int)level > atomic_load_explicit(&log_max, memory_order_relaxed))
		return;
	if (log_is_tty)
		head = snprintf(line, sizeof line, "%s%s", log_program, log_program[0] ? ": " : "");
	else
		head = snprintf(line, sizeof line, "<%d>", (int)level);
	va_start(ap, fmt);
	n = vsnprintf(line + head, sizeof line - 1 - (size_t)head, fmt, ap);
	va_end(ap);
	n = n < 0 ? 0 : n;
	n = (int)strnlen(line, sizeof line - 2);
	for (int i = head; i < n; i++) /* one line each, whatever a peer put into the text */
		if ((unsigned char)line[i] < 32 || line[i] == 127)
			line[i] = ' ';
	line[n++] = '\n';
	if (log_is_socket)
		k = send(log_fd, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
	else
		k = write(log_fd, line, (size_t)n);
	if (k != n)
		atomic_fetch_add(&log_lost, 1);
}

unsigned long log_dropped(void)
{
	return atomic_load(&log_lost);
}
