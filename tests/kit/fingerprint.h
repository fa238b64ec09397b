/* A step's trace and outcome as one short line, so that a known mistake can be recognised without being built.
   Integers, texts and the records' names go into a hash. Reals go into four sums with fixed pseudo-random weights: two
   traces whose reals differ anywhere by more than rounding differ in these sums, but for a chance of about 10^-20. */
#ifndef FINGERPRINT_H
#define FINGERPRINT_H

#include <stdio.h>

#include "sandbox.h"

enum { N_SUMS = 4 };

typedef struct {
    int n_records;  /* 0 matches nothing: a trace without records says nothing */
    uint64_t exact; /* of all that has to be equal, the outcome included */
    double sums[N_SUMS];
} fingerprint;

void fingerprint_of(const job *j, const char *step, fingerprint *f);

/* Equal, the sums within 1e-9. */
bool same_fingerprint(const fingerprint *a, const fingerprint *b);

void fingerprint_print(const fingerprint *f, FILE *to);

/* Reads what fingerprint_print wrote. Returns -1 if that isn't in the text. */
int fingerprint_parse(const char *text, fingerprint *f);

#endif
