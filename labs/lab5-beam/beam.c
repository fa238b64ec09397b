/* Lab 5, beam search. Write each function where its TODO stands; beam.h says what it must do, and LABS.md why.
   `make lab5` says how far you are. */
#include "beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampling.h"
#include "todo.h"

/* ---- 5a: the top candidates over beams × vocabulary ---- */

int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    TODO("5a");
}

int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    TODO("5a");
}

/* ---- 5b: the caches follow their beams ---- */

int cache_copy(cache *to, const cache *from)
{
    TODO("5b");
}

int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    TODO("5b");
}

/* ---- 5c: finished hypotheses ---- */

double length_normalised(double sum, int length, double alpha)
{
    TODO("5c");
}

double best_reachable(double sum, int length, int limit, double alpha)
{
    TODO("5c");
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    TODO("5c");
}

/* ---- 5d with one beam, 5e with several: the search ---- */

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    TODO("5d");
}
