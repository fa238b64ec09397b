/* Lab 5, beam search: keep the K best beginnings of a text, not just one.
   Letters: K n_beams, V n_vocab, α alpha. A hypothesis's sum is that of its generated tokens' log-probabilities, the
   end-of-text token's included, the prompt's not; its score is sum / length^α, length counting the same tokens.
   Inputs are never changed, and outputs don't overlap them. */
#ifndef BEAM_H
#define BEAM_H

#include <stdbool.h>

#include "cache.h"

/* ---- 5a: the top candidates over beams × vocabulary ---- */

/* log_p [V] = log softmax(logits / temperature), computed as such and not as the logarithm of a probability, which
   underflows; the largest logit's is finite however small the temperature is. -INFINITY stays. Returns -1, and writes
   nothing, if the temperature isn't above 0 and finite, if a logit is NaN or +INFINITY, if all are -INFINITY, or if V is
   below 1. */
int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p);

typedef struct {
    double sum; /* the beam's plus the token's log-probability, added in double */
    int beam, id;
} candidate;

/* The best candidates over all n_beams * V at once, best first; ties go to the lower beam, then to the lower id. Those
   of -INFINITY are no candidates. Writes at most n_best (0 or more) of them and returns how many. sums [n_beams], log_p
   [n_beams][V]. */
int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best);

/* ---- 5b: the caches follow their beams ---- */

/* Makes *to hold the tokens of *from and no others. They are two caches of the same model; their capacities may differ.
   Uses only what cache.h declares, so that it works whatever the layout. Returns -1, and leaves *to as it was, if from's
   tokens don't fit. */
int cache_copy(cache *to, const cache *from);

/* After it, caches[i] holds what caches[parents[i]] held before it, for i < n. caches [n_caches] are all different, of
   the same model and capacity, and are the same set of caches afterwards: it may exchange pointers, and contents of those
   that are no one's parent are lost. A cache is copied only where two beams have the same parent: c children make c-1
   copies. Returns -1, and changes nothing, if a parent isn't in 0 … n_caches-1 or n isn't in 1 … n_caches. */
int cache_reorder(cache **caches, int n_caches, const int *parents, int n);

/* ---- 5c: finished hypotheses ---- */

typedef struct {
    int *tokens; /* [length]: the generated ones, the end-of-text token included */
    int length;
    double sum, score;
    bool ended; /* by the end-of-text token, not by the limit */
} hypothesis;

/* sum / length^α; length is at least 1. */
double length_normalised(double sum, int length, double alpha);

/* The best score that a live beam can still reach: it has `length` tokens and this sum (at most 0), which can only fall,
   and ends with length+1 … limit tokens (with `length` where length = limit). α may be negative. */
double best_reachable(double sum, int length, int limit, double alpha);

/* Puts h into list [*n], which has room for `room` (at least 1), best score first, behind those of the same score; the
   worst drops out when it's full. Returns h's place, or -1 if h itself dropped out. `tokens` is moved as a pointer. */
int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h);

/* ---- 5d, 5e: the search ---- */

typedef struct {
    const model *m;
    int n_beams;        /* K */
    int max_new_tokens; /* the length limit */
    int end_of_text;    /* the id, or -1 */
    double alpha;
    real temperature, penalty; /* as in lab 2, in its order: 1 is off; each beam's own generated tokens are penalised */
} beam_options;

/* Writes the finished hypotheses, best first, into results [K] and returns how many (at least 1), or -1 and a sentence.
   Each result's tokens are the caller's room for max_new_tokens ids; which room a result ends up with is free. The prompt
   is run once and its row expanded alone. Each step ranks all live beams × V together: a candidate that ends the text
   joins the finished ones if it is among the best K candidates, and the live beams are refilled to K from those behind.
   It ends when K are finished and no live beam can beat the worst of them (best_reachable), when no live beam is left, or
   at the limit, where live beams count as finished. The limit is max_new_tokens or what fits the context behind the
   prompt, whichever is less. After the prompt the model runs once for each live beam of each step, and not after the end.
   One beam is greedy search where α ≤ 0 or nothing ends the text; with α > 0 it may go on behind a finished one.
   Refuses, and writes no result: an empty prompt, one that leaves no room in the context, an id of it that is outside the
   vocabulary, K or max_new_tokens below 1, a temperature or penalty that isn't above 0 and finite (so temperature 0 too),
   an α that isn't finite. */
int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f);

#endif
