/* Compares what an answer produced with what is right, and says in one sentence where they first differ.
   Leaves out why they differ: that's diagnose.h. */
#ifndef COMPARE_H
#define COMPARE_H

#include "trace.h"

/* |Δ| may be at most absolute + relative * max(1, the largest |value| of the array). NaN is never right. */
typedef struct {
    double absolute, relative;
} tolerance;

typedef struct {
    bool right;
    char sentence[640];     /* the first difference; "" if there is none */
    long n_arrays, n_values, n_counts;
    double largest, bound;  /* the largest |Δ| of reals, and the smallest bound that held for its array */
    char largest_at[272];   /* where that was */
    long n_rows, n_top;     /* rows of logits, and those whose top token is right */
} comparison;

void compare_step(const trace *expected, const trace *got, const char *step, tolerance allowed, comparison *c);

#endif
