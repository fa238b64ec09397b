/* Lab 2, sampling. Write each function where its TODO stands; sampling.h says what it must do, and LABS.md why.
   `make lab2` says how far you are. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "todo.h"

/* ---- 2a: softmax with temperature ---- */

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    TODO("2a");
}

/* ---- 2b: top-k ---- */

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    TODO("2b");
}

/* ---- 2c: top-p, the nucleus ---- */

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    TODO("2c");
}

/* ---- 2d: repetition penalty ---- */

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    TODO("2d");
}

/* ---- 2e: the draw ---- */

int draw(const real *p, int n_vocab, real u)
{
    TODO("2e");
}

/* ---- 2f: the chain ---- */

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    TODO("2f");
}

int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    TODO("2f");
}
