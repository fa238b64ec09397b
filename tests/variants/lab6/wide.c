/* Lab 6 in 128 bits: polynomials written out, ranges cut off first so that 128 are enough. */
#include "cost.h"

typedef unsigned __int128 u128;

static const u128 most = INT64_MAX;

static int fits(u128 x)
{
    return x <= most;
}

int usage_uncached(int64_t p, int64_t n, usage *u)
{
    if (p < 1 || n < 0)
        return -1;
    if (n == 0) {
        u->projections = u->scores = 0;
        return 0;
    }
    if (p >> 33 || n >> 33)
        return -1;
    u128 P = p, N = n;
    u128 projections = (2 * N * P + N * N - N) / 2;
    u128 scores = (3 * N * P * P + 3 * N * N * P + N * N * N - N) / 6;
    if (!fits(projections) || !fits(scores))
        return -1;
    u->projections = projections;
    u->scores = scores;
    return 0;
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    if (p <= 0 || n < 0)
        return -1;
    u128 m = n ? (u128)p + n - 1 : 0, scores = (m * m + m) / 2;
    if (!fits(m) || !fits(scores))
        return -1;
    u->projections = m;
    u->scores = scores;
    return 0;
}

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    u128 product = 1;
    int64_t two = 2;

    for (const int64_t *factor = &two;; factor = factor == &two ? &s->n_layer : factor + 1) {
        if (*factor < 1)
            return -1;
        product *= *factor;
        if (!fits(product))
            return -1;
        if (factor == &s->n_sequences)
            break;
    }
    *bytes = product;
    return 0;
}

static int pass(const model_shape *s, u128 first, u128 n, int64_t b, work *w)
{
    if (s->n_vocab < 1 || s->d_model < 1 || s->n_layer < 1 || s->n_head < 1 || s->n_kv_head < 1 || s->d_head < 1 ||
        s->d_ff < 1 || b < 1)
        return -1;
    u128 D = s->d_model, L = s->n_layer, ends = first + n;
    u128 layer = D * (2 * D + 2 * (u128)s->n_kv_head * s->d_head + (s->activation == SWIGLU ? 3 : 2) * (u128)s->d_ff);
    u128 weights = L * layer;
    if (!fits(weights) || (n > 1 && n >> 32))
        return -1;
    u128 scores = n * first + n * (n + 1) / 2;
    u128 head = L * D, kv = 2 * L * s->n_kv_head * s->d_head, logits = D * s->n_vocab;
    if (!fits(scores) || !fits(head * 2) || !fits(kv) || !fits(logits))
        return -1;
    u128 multiply_adds = weights * n + 2 * head * scores + logits, numbers = weights + kv * ends + logits;
    if (!fits(multiply_adds) || !fits(numbers) || !fits(numbers * b))
        return -1;
    w->multiply_adds = multiply_adds;
    w->bytes = numbers * b;
    w->intensity = 2 * (double)multiply_adds / (double)(numbers * b);
    return 0;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    return p < 1 ? -1 : pass(s, 0, p, bytes_per_number, w);
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    return t < 0 ? -1 : pass(s, t, 1, bytes_per_number, w);
}

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    if (w->bytes <= 0 || w->multiply_adds <= 0)
        return 0;
    double memory = bytes_per_second / (double)w->bytes;
    double arithmetic = operations_per_second / (double)w->multiply_adds / 2;
    double slower = memory < arithmetic ? memory : arithmetic;
    return memory > 0 && arithmetic > 0 ? slower : 0;
}
