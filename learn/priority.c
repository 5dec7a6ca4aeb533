/* A thread by sched_setscheduler(2) and setpriority(2), its session by /proc/self/autogroup (sched(7)). */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "learn/priority.h"

enum { LOWEST = 19, TRIES = 3, PAUSE_US = 110000 }; /* of those who are not root Linux takes one such write a tenth of a second */

/* Shared sessions are left alone: a shell, or serving, may be in the same one. */
static void lower_session(int nice)
{
	char text[64];
	int now, fd = getsid(0) == getpid() ? open("/proc/self/autogroup", O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return; /* or a kernel without them */
	ssize_t n = read(fd, text, sizeof text - 1); /* "/autogroup-25 nice 0" */
	text[n > 0 ? n : 0] = 0;
	if (sscanf(text, "/autogroup-%*d nice %d", &now) == 1 && now < nice) {
		int length = snprintf(text, sizeof text, "%d", nice);
		for (int i = 0; i < TRIES && write(fd, text, (size_t)length) < 0 && errno == EAGAIN; i++)
			(void)usleep(PAUSE_US);
	}
	(void)close(fd);
}

int priority_lower(int policy, int nice)
{
	int r = policy != SCHED_OTHER && sched_setscheduler(0, policy, &(struct sched_param){0}) ? -errno : 0;
	if (!r && policy == SCHED_IDLE)
		nice = LOWEST;
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
	lower_session(nice);
	return r;
}
