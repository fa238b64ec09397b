/* Lab 6, what generating text costs. */
#include "cost.h"

#include <math.h>
#include <stdbool.h>

/* ---- numbers that may not fit ---- */

/* Sums and products of numbers from 0 up. One that doesn't fit is -1, and so is all that is made of it: it spreads as
   NaN does. No part of a sum or product of such numbers is larger than the whole (but for a factor of 0). */
static int64_t plus(int64_t a, int64_t b)
{
    return a < 0 || b < 0 || __builtin_add_overflow(a, b, &a) ? -1 : a;
}

static int64_t times(int64_t a, int64_t b)
{
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &a) ? -1 : a;
}

/* ---- 6a: how often ---- */

/* Where two large numbers are subtracted or one is divided, 64 bits don't do on the way. */
typedef __int128 wide;

/* 1 + 2 + … + m: the scores of a run on m tokens. */
static wide triangle(wide m)
{
    return m * (m + 1) / 2;
}

/* triangle(1) + triangle(2) + … + triangle(m). */
static wide tetrahedron(wide m)
{
    return m * (m + 1) * (m + 2) / 6;
}

/* The tokens of the last run, 0 if there is none, or -1. One longer than 2^32 - 1 has too many scores by itself; up to
   there the products above fit. */
static int64_t last_run(int64_t p, int64_t n)
{
    const int64_t longest = UINT32_MAX;

    if (p < 1 || n < 0)
        return -1;
    if (n == 0)
        return 0;
    return p > longest || n - 1 > longest - p ? -1 : p + n - 1;
}

static int write_usage(wide projections, wide scores, usage *u)
{
    if (projections > INT64_MAX || scores > INT64_MAX)
        return -1;
    *u = (usage){projections, scores};
    return 0;
}

/* Runs on p, p+1, …, last tokens. */
int usage_uncached(int64_t p, int64_t n, usage *u)
{
    int64_t last = last_run(p, n);

    if (last <= 0)
        return last < 0 ? -1 : write_usage(0, 0, u);
    return write_usage(triangle(last) - triangle(p - 1), tetrahedron(last) - tetrahedron(p - 1), u);
}

/* Each token once, and its scores with it: those of a single run on all. */
int usage_cached(int64_t p, int64_t n, usage *u)
{
    int64_t last = last_run(p, n);

    return last < 0 ? -1 : write_usage(last, triangle(last), u);
}

/* ---- 6b: how much memory ---- */

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    const int64_t factors[] = {s->n_layer, s->n_kv_head, s->d_head, s->n_tokens, s->bytes_per_number, s->n_sequences};
    int64_t product = 2; /* a key and a value */

    for (int i = 0; i < 6; i++)
        product = factors[i] < 1 ? -1 : times(product, factors[i]);
    if (product < 0)
        return -1;
    *bytes = product;
    return 0;
}

/* ---- 6c: how much work ---- */

static bool is_sound(const model_shape *s)
{
    return s->n_vocab > 0 && s->d_model > 0 && s->n_layer > 0 && s->n_head > 0 && s->n_kv_head > 0 && s->d_head > 0 &&
           s->d_ff > 0;
}

/* The numbers in the matrices of one layer. */
static int64_t layer_weights(const model_shape *s)
{
    int64_t d = s->d_model, d_q = times(s->n_head, s->d_head), d_kv = times(s->n_kv_head, s->d_head);
    int64_t attention = times(2 * d, plus(d_q, d_kv)); /* query and output, key and value */
    int64_t mlp = times((s->activation == SWIGLU ? 3 : 2) * d, s->d_ff);

    return plus(attention, mlp);
}

/* A pass over `rows` tokens, at the end of which there are `seen` tokens in the cache, and which computes half of
   `twice_pairs` scores in each head: a score and its value's mixing are two dot products' worth of d_head. */
static int write_work(const model_shape *s, int64_t rows, int64_t seen, int64_t twice_pairs, int64_t bytes_per_number,
                      work *w)
{
    if (!is_sound(s) || rows < 1 || seen < 1 || bytes_per_number < 1)
        return -1;
    int64_t layer = layer_weights(s), unembedding = times(s->n_vocab, s->d_model);
    int64_t attention = times(times(s->n_head, s->d_head), twice_pairs);
    int64_t kept = times(2, times(times(s->n_kv_head, s->d_head), seen));
    int64_t done = plus(times(s->n_layer, plus(times(rows, layer), attention)), unembedding);
    int64_t moved = times(bytes_per_number, plus(times(s->n_layer, plus(layer, kept)), unembedding));
    if (done < 0 || moved < 0)
        return -1;
    *w = (work){done, moved, 2.0 * done / moved};
    return 0;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    return write_work(s, p, p, times(p, plus(p, 1)), bytes_per_number, w);
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    int64_t seen = plus(t, 1);

    return write_work(s, 1, seen, times(2, seen), bytes_per_number, w);
}

/* ---- 6d: how fast ---- */

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    if (!(w->multiply_adds > 0 && w->bytes > 0 && bytes_per_second > 0 && operations_per_second > 0))
        return 0;
    return fmin(bytes_per_second / w->bytes, operations_per_second / (2.0 * w->multiply_adds));
}
