/* Random numbers: SplitMix64 (Steele, Lea and Flood 2014). The state is the caller's, and every seed works, 0 too. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

#include "real.h"

typedef struct {
    uint64_t state; /* start with any seed */
} generator;

uint64_t random_bits(generator *g);

/* In [0, 1), from 53 random bits (24 when real is float), so that it can't round to 1. */
real random_uniform(generator *g);

#endif
