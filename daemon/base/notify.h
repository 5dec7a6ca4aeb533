/* sd_notify by hand: one datagram to $NOTIFY_SOCKET; nothing when it is unset. */
#pragma once
#include "daemon/base/err.h"

void PRINTF(1, 2) notify_state(const char *fmt, ...); /* "READY=1\nSTATUS=..." */
