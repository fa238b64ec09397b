/* Lab 2, sampling. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "loop.h"

/* ---- 2a: softmax with temperature ---- */

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    int top = argmax(logits, n_vocab); /* lab 1's: it refuses just the rows that this must refuse */
    double sum = 0;

    if (top < 0 || !(temperature >= 0) || isinf(temperature))
        return -1;
    for (int id = 0; id < n_vocab; id++) {
        /* The difference first: it's at most 0, so that dividing can only make it -INFINITY, whose exp is 0. */
        p[id] = temperature > 0 ? exp((logits[id] - logits[top]) / temperature) : id == top;
        sum += p[id];
    }
    for (int id = 0; id < n_vocab; id++)
        p[id] /= sum;
    return 0;
}

/* ---- 2b: top-k (Fan et al. 2018) ---- */

/* Larger values first, lower ids first among equals. */
static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    if (x->value != y->value)
        return x->value < y->value ? 1 : -1;
    return x->id - y->id;
}

static void rank(const real *values, int n_vocab, ranked *room)
{
    for (int id = 0; id < n_vocab; id++)
        room[id] = (ranked){values[id], id};
    qsort(room, n_vocab, sizeof *room, by_rank);
}

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    if (k < 0 || argmax(logits, n_vocab) < 0)
        return -1;
    rank(logits, n_vocab, room);
    for (int i = 0; i < n_vocab; i++)
        kept[room[i].id] = i < k || k == 0 ? room[i].value : -INFINITY;
    return 0;
}

/* ---- 2c: top-p, the nucleus (Holtzman et al. 2020, eq. 2 and 3) ---- */

static const double slack = sizeof(real) == sizeof(double) ? 1e-12 : 1e-6;

/* The sum of p, or -1 if a number in it is none that a probability can be. */
static double total_of(const real *p, int n_vocab)
{
    double total = 0;

    for (int id = 0; id < n_vocab; id++) {
        if (!(p[id] >= 0 && p[id] < INFINITY))
            return -1;
        total += p[id];
    }
    return total;
}

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    int n = 0;
    double total = 0;

    if (isnan(mass) || total_of(p, n_vocab) <= 0)
        return -1;
    rank(p, n_vocab, room);
    do /* the first is kept whatever the mass */
        total += room[n++].value;
    while (n < n_vocab && (mass >= 1 || total < mass - slack));
    for (int i = 0; i < n_vocab; i++)
        kept[room[i].id] = i < n ? room[i].value / total : 0;
    return 0;
}

/* ---- 2d: repetition penalty (Keskar et al. 2019, section 4.1) ---- */

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    if (argmax(logits, n_vocab) < 0 || !(penalty > 0) || isinf(penalty))
        return -1;
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return -1;
    memcpy(out, logits, n_vocab * sizeof *out);
    for (int i = 0; i < n; i++) {
        real logit = logits[tokens[i]]; /* not out[…]: a token that comes again would be penalised again */
        out[tokens[i]] = logit > 0 ? logit / penalty : logit * penalty;
    }
    return 0;
}

/* ---- 2e: the draw ---- */

int draw(const real *p, int n_vocab, real u)
{
    int last = -1;
    double total = 0;

    if (!(u >= 0 && u < 1) || total_of(p, n_vocab) <= 0)
        return -1;
    for (int id = 0; id < n_vocab; id++) {
        total += p[id];
        if (total > u) /* first true at a token of positive probability, as u ≥ 0 */
            return id;
        last = p[id] > 0 ? id : last;
    }
    return last; /* rounding left the total short of u */
}

/* ---- 2f: the chain ---- */

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    if (penalise(logits, n_vocab, tokens, n, s->penalty, s->logits))
        return -1;
    if (top_k(s->logits, n_vocab, s->top_k, s->room, s->p))
        return -1;
    if (softmax_temperature(s->p, n_vocab, s->temperature, s->logits))
        return -1;
    return top_p(s->logits, n_vocab, s->top_p, s->room, p);
}

int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    sampler *s = state;
    const int *tokens = generated - s->n_prompt;
    int n = n_generated + s->n_prompt;

    if (sampler_probabilities(s, logits, n_vocab, tokens, n, s->p))
        return -1;
    return draw(s->p, n_vocab, random_uniform(&s->random));
}
