// SPDX-License-Identifier: GPL-2.0
/*
 * For LD_PRELOAD: redis-benchmark seeds random() with the time. With this it takes the
 * seed in FIXED_SEED instead, so that each run stores to the same keys in one order.
 */
#include <stdlib.h>

void srandom(unsigned int seed)
{
	static char state[128];
	const char *fixed = getenv("FIXED_SEED");

	initstate(fixed ? (unsigned int)atoi(fixed) : seed, state, sizeof(state));
}
