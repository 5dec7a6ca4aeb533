/* Training is the guest: it says so to the scheduler.
 *
 * A niceness weighs a thread against others of its scheduling group only. Linux makes a group of each session
 * (CONFIG_SCHED_AUTOGROUP, sched(7)) where no cgroup has a weight of its own: there a learner in a session of its own,
 * at niceness 19, still takes half of a processor that serving wants. So a program that leads its session lowers the
 * session with the thread. Under systemd the slice's CPUWeight decides, and this changes nothing.
 */
#pragma once

/* The calling thread, and threads it starts from here on, run under `policy` (SCHED_OTHER, SCHED_BATCH, SCHED_IDLE) at this
 * niceness (0 to 19; SCHED_IDLE: 19); so does the session, unless it is lower already, where this process leads it.
 * -errno: the policy was refused, and all is as under SCHED_OTHER. A niceness that is refused stays as it is. */
int priority_lower(int policy, int nice);
