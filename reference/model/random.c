/* SplitMix64 and numbers drawn from it. */
#include "random.h"

uint64_t random_bits(generator *g)
{
    uint64_t z = g->state += 0x9e3779b97f4a7c15; /* 2^64 divided by the golden ratio, made odd */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

real random_uniform(generator *g)
{
    const int bits = sizeof(real) == sizeof(double) ? 53 : 24;

    return (real)(random_bits(g) >> (64 - bits)) / (real)(1ull << bits);
}
