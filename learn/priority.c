/* A thread by setpriority(2), its session by /proc/self/autogroup (sched(7)). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "learn/priority.h"

enum { TRIES = 3, PAUSE_US = 110000 }; /* of those who are not root Linux takes one such write a tenth of a second */

/* Shared sessions are left alone: a shell, or serving, may be in the same one. */
static void lower_session(int nice)
{
	char text[8];
	int n = snprintf(text, sizeof text, "%d", nice);
	int fd = getsid(0) == getpid() ? open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return; /* or a kernel without them */
	for (int i = 0; i < TRIES && write(fd, text, (size_t)n) < 0 && errno == EAGAIN; i++)
		(void)usleep(PAUSE_US);
	(void)close(fd);
}

void priority_lower(int nice)
{
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
	lower_session(nice);
}
