/* Lab 2, sampling: from a row of logits to a token. The order is: penalise repetition, divide by the temperature, top-k,
   softmax, top-p, renormalise, draw (as in Hugging Face's generate and vLLM).
   Letters: V n_vocab. No function changes its input arrays, and outputs don't overlap inputs. A row of logits may hold
   -INFINITY (a banned token); a row with NaN or +INFINITY, of -INFINITY throughout, or with V below 1, is an error: the
   function returns -1 and writes nothing. */
#ifndef SAMPLING_H
#define SAMPLING_H

#include "random.h"
#include "real.h"

/* Room for sorting: a value and the id that it belongs to. */
typedef struct {
    real value;
    int id;
} ranked;

/* ---- 2a: softmax with temperature ---- */

/* p [V] = softmax(logits / temperature), without overflow however small the temperature is; -INFINITY becomes exactly 0.
   Temperature 0 means greedy: 1 for the arg-max (the lowest id among equals), 0 elsewhere. Any temperature above 0
   divides, so that equal logits share. Returns -1, and writes nothing, for a temperature below 0, infinite or NaN, as
   for a bad row. */
int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p);

/* ---- 2b: top-k (Fan et al. 2018) ---- */

/* kept [V] = the min(k, V) largest logits in their places, -INFINITY elsewhere; among equals the lower ids are kept.
   k = 0 keeps all. `room` [V] is for sorting: what it holds before and after doesn't matter. Returns -1, and writes
   nothing to kept, for k below 0, as for a bad row. */
int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept);

/* ---- 2c: top-p, the nucleus (Holtzman et al. 2020) ---- */

/* kept [V] = the smallest set of most probable tokens whose total reaches `mass`, renormalised to sum to 1, and 0
   elsewhere. The token that crosses `mass` is in the set; among equals the lower ids come first. The running total is
   kept in double and reaches `mass` when it is ≥ mass - 1e-12 (mass - 1e-6 when real is float); where even the total of
   all doesn't, all are kept. The top token is always in the set, so mass ≤ 0 keeps it alone; mass ≥ 1 is off and keeps
   all, however small. Returns -1, and writes nothing to kept, if mass is NaN, if p [V] has a negative number, NaN or
   infinity, or if it sums to 0 (as it does when V is below 1). */
int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept);

/* ---- 2d: repetition penalty (Keskar et al. 2019) ---- */

/* out [V] = logits, but for each distinct id in tokens [n]: a positive logit is divided by the penalty, a negative one
   multiplied by it. Above 1 it discourages repetition, below 1 it rewards it. Returns -1, and writes nothing, if the
   penalty isn't above 0 and finite, if an id isn't in 0 … V-1, and for a bad row. */
int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out);

/* ---- 2e: the draw ---- */

/* The smallest id whose running total of p [V], kept in double, exceeds u; never an id of probability 0. Where rounding
   leaves the total short of u: the last id of positive probability. Returns -1 if u isn't in [0, 1), if p has a negative
   number, NaN or infinity, or if no probability is positive. */
int draw(const real *p, int n_vocab, real u);

/* ---- 2f: the chain ---- */

typedef struct {
    real temperature; /* 1 is off, 0 is greedy */
    int top_k;        /* 0 is off */
    real top_p;       /* 1 is off */
    real penalty;     /* 1 is off */
    int n_prompt;     /* how many tokens just before the generated ones are penalised too; 0: none */
    generator random;
    real *logits, *p; /* [V] each: room */
    ranked *room;     /* [V] */
} sampler;

/* p [V] = the probabilities that the draw is made from, after the whole chain; tokens [n] are those to penalise.
   Takes no random number. Returns -1, and writes nothing to p, where one of the functions above refuses; what the rooms
   of s hold doesn't matter. Dividing by a temperature above 0 doesn't change which logits are largest, so it may wait
   until the softmax. */
int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p);

/* The choose_fn of lab 2 (see loop.h); its state is a sampler. The tokens to penalise are generated [n_generated] and the
   n_prompt that stand before them in the same array. Takes one uniform number for each token that it returns, at
   temperature 0 too. Returns -1 if the chain refuses. */
int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated);

#endif
