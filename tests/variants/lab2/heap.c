/* A heap instead of a sort: tokens leave it from the most probable on, and only as many as are needed. Sums are kept in
   long double, and temperatures divide before the maximum is subtracted, which long double's range allows. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "sampling.h"

/* ---- a heap in the room: the parent of i is (i - 1) / 2 and ranks before it ---- */

static bool before(ranked a, ranked b)
{
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

static void sink(ranked *heap, int n, int i)
{
    for (;;) {
        int first = i;
        for (int child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (before(heap[child], heap[first]))
                first = child;
        if (first == i)
            return;
        ranked swap = heap[i];
        heap[i] = heap[first];
        heap[first] = swap;
        i = first;
    }
}

static void make_heap(const real *x, int n, ranked *heap)
{
    for (int i = 0; i < n; i++) {
        heap[i].value = x[i];
        heap[i].id = i;
    }
    for (int i = n / 2; i-- > 0;)
        sink(heap, n, i);
}

static ranked leave(ranked *heap, int *n)
{
    ranked first = heap[0];

    heap[0] = heap[--*n];
    sink(heap, *n, 0);
    return first;
}

/* ---- the steps ---- */

/* The maximum, or NaN for a row to be refused. */
static long double maximum(const real *x, int n)
{
    long double most = -INFINITY;

    while (n-- > 0) {
        if (isnan(x[n]))
            return NAN;
        most = x[n] > most ? x[n] : most;
    }
    return isfinite(most) ? most : NAN;
}

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    long double most = maximum(logits, n_vocab), sum = 0;
    bool done = false;

    if (isnan(most) || !isfinite(temperature) || temperature < 0)
        return -1;
    for (int i = 0; i < n_vocab && temperature == 0; i++) {
        p[i] = !done && logits[i] == most;
        done |= p[i] == 1;
    }
    if (temperature == 0)
        return 0;
    for (int i = 0; i < n_vocab; i++)
        sum += expl(logits[i] / (long double)temperature - most / temperature);
    for (int i = 0; i < n_vocab; i++)
        p[i] = expl(logits[i] / (long double)temperature - most / temperature) / sum;
    return 0;
}

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    int n = n_vocab;

    if (isnan(maximum(logits, n_vocab)) || k < 0)
        return -1;
    for (int i = 0; i < n_vocab; i++)
        kept[i] = k ? -INFINITY : logits[i];
    make_heap(logits, n_vocab, room);
    while (k-- > 0 && n > 0) {
        ranked r = leave(room, &n);
        kept[r.id] = r.value;
    }
    return 0;
}

static bool are_probabilities(const real *p, int n)
{
    bool any = false;

    for (int i = 0; i < n; i++) {
        if (!isfinite(p[i]) || p[i] < 0)
            return false;
        any |= p[i] > 0;
    }
    return any;
}

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    double total = 0;
    int n = n_vocab;

    if (!are_probabilities(p, n_vocab) || mass != mass)
        return -1;
    memset(kept, 0, n_vocab * sizeof *kept);
    make_heap(p, n_vocab, room);
    while (n > 0) {
        ranked r = leave(room, &n);
        kept[r.id] = r.value;
        total += r.value;
        if (mass < 1 && total + (sizeof(real) == sizeof(float) ? 1e-6 : 1e-12) >= mass)
            break;
    }
    for (int i = 0; i < n_vocab; i++)
        kept[i] /= total;
    return 0;
}

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    if (!(penalty > 0 && penalty < INFINITY) || isnan(maximum(logits, n_vocab)))
        return -1;
    for (const int *id = tokens; id < tokens + n; id++)
        if (*id < 0 || *id > n_vocab - 1)
            return -1;
    memcpy(out, logits, sizeof *out * n_vocab);
    for (const int *id = tokens; id < tokens + n; id++)
        out[*id] = logits[*id] * (signbit(logits[*id]) ? penalty : 1) / (signbit(logits[*id]) ? 1 : penalty);
    return 0;
}

int draw(const real *p, int n_vocab, real u)
{
    int id = 0;

    if (!are_probabilities(p, n_vocab) || !(0 <= u && u < 1))
        return -1;
    for (double total = p[0]; total <= u && id < n_vocab - 1;)
        total += p[++id];
    while (p[id] == 0)
        id--;
    return id;
}

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    return penalise(logits, n_vocab, tokens, n, s->penalty, s->p) < 0 ||
           top_k(s->p, n_vocab, s->top_k, s->room, s->logits) < 0 ||
           softmax_temperature(s->logits, n_vocab, s->temperature, s->p) < 0 ||
           top_p(s->p, n_vocab, s->top_p, s->room, p) < 0 ? -1 : 0;
}

int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    sampler *s = state;
    real u = random_uniform(&s->random);

    if (penalise(logits, n_vocab, generated - s->n_prompt, n_generated + s->n_prompt, s->penalty, s->p) ||
        top_k(s->p, n_vocab, s->top_k, s->room, s->logits) ||
        softmax_temperature(s->logits, n_vocab, s->temperature, s->p) ||
        top_p(s->p, n_vocab, s->top_p, s->room, s->logits))
        return -1;
    return draw(s->logits, n_vocab, u);
}
