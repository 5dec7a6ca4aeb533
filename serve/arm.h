/* Which arm of a canary a conversation belongs to.
 *
 * A pure function of (salt, conversation): whoever asks twice gets the same answer, also after a
 * restart, and a share that grows under one salt keeps everybody it had. The salt is the
 * daemon's and new for each canary, so that no user is always the first; it differs from the
 * one that trace sampling uses, so that both choices are independent. A request without a conversation is one
 * of its own.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { ARM_SALT = 33 };
/* permille 0: nobody; 1000: everybody. */
bool arm_is_canary(const char *salt, uint32_t permille, const char *conversation, const char *request);
