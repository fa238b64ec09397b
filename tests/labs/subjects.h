/* What the checks run the labs on: the shipped models, and models with random weights of shapes that those don't have.
   Also the closed forms of what an answer may count. */
#ifndef SUBJECTS_H
#define SUBJECTS_H

#include "model.h"
#include "trace.h"

enum { N_SUBJECTS = 8, TEST_TOKENS = 64 };

typedef struct {
    const char *name;
    const model *m;
    const int *tokens; /* [TEST_TOKENS]: ids to feed it with; its context holds at least as many */
} subject;

/* The i-th of them, made or read on first use. Ends the program with a sentence if that fails: 0 … 3 are the shipped
   sinusoidal, learned, rotary and larger rotary model, then come random ones. */
const subject *get_subject(int i);

/* Room for n reals, filled with NaN. Ends the program when memory runs out. */
real *new_reals(size_t n);

/* What was counted since counts_reset(): the projections of each role, and the scores of each layer and head. */
void trace_used(trace *t, const model *m);

/* What ought to be: `projected` tokens through every layer, `scored` query-key pairs in every head. */
void expect_used(trace *t, const model *m, long long projected, long long scored);

/* Query-key pairs of n tokens behind `before` others, in one head: each sees itself and all before it. */
long long causal_pairs(int before, int n);

#endif
