/* Lab 6 with numbers that stick at "too many": unsigned, saturating, tested once at the end. */
#include "cost.h"

#define TOO_MANY UINT64_MAX

typedef uint64_t many;

static many m2(many a, many b)
{
    many c;

    return a == TOO_MANY || b == TOO_MANY || __builtin_mul_overflow(a, b, &c) ? TOO_MANY : c;
}

static many s2(many a, many b)
{
    return a == TOO_MANY || b == TOO_MANY || a + b < a ? TOO_MANY : a + b;
}

#define m3(a, b, c) m2(m2(a, b), c)
#define s3(a, b, c) s2(s2(a, b), c)

static int good(many a)
{
    return a <= INT64_MAX;
}

/* 1 + … + n */
static many sum_to(many n)
{
    return n & 1 ? m2(n, (n + 1) / 2) : m2(n / 2, s2(n, 1));
}

/* Scores of the n runs: counted by distance. Runs of p … p+n-1 tokens together: a prompt's triangle n times, and what
   the new tokens add, where token i (from 1) is in n - i runs with p + i scores. */
static many uncached_scores(many p, many n)
{
    many rest = n - 1, pairs = sum_to(rest);
    /* sum over i of (n - i)·i = (n-1)n(n+1)/6 */
    unsigned __int128 third = pairs == TOO_MANY ? 0 : (unsigned __int128)pairs * (n + 1) / 3;

    if (pairs == TOO_MANY || third > INT64_MAX)
        return TOO_MANY;
    return s3(m2(n, sum_to(p)), m2(p, pairs), (many)third);
}

static int done(many projections, many scores, usage *u)
{
    if (!good(projections) || !good(scores))
        return -1;
    *u = (usage){(int64_t)projections, (int64_t)scores};
    return 0;
}

int usage_uncached(int64_t p, int64_t n, usage *u)
{
    if (p < 1)
        return -1;
    if (n < 1)
        return n ? -1 : done(0, 0, u);
    return done(s2(m2(n, p), sum_to(n - 1)), uncached_scores(p, n), u);
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    if (p < 1)
        return -1;
    if (n < 1)
        return n ? -1 : done(0, 0, u);
    many last = (many)p + (many)n - 1;
    return done(last, sum_to(last), u);
}

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    if (s->n_layer < 1 || s->n_kv_head < 1 || s->d_head < 1)
        return -1;
    if (s->n_tokens < 1 || s->bytes_per_number < 1 || s->n_sequences < 1)
        return -1;
    many numbers = m3(m2(s->n_layer, 2), m2(s->n_kv_head, s->d_head), s->n_tokens);
    many all = m3(numbers, s->bytes_per_number, s->n_sequences);
    if (!good(all))
        return -1;
    *bytes = (int64_t)all;
    return 0;
}

static many in_layer(const model_shape *s)
{
    many D = s->d_model, kv = m2(s->n_kv_head, s->d_head), ff = m2(D, s->d_ff);
    many attention = s2(m3(2, D, D), m3(2, D, kv));

    return s2(attention, s->activation == SWIGLU ? m2(3, ff) : m2(2, ff));
}

static int is_positive(const model_shape *s)
{
    int negative = s->n_vocab | s->d_model | s->n_layer | s->n_head | s->n_kv_head | s->d_head | s->d_ff;

    return negative >= 0 && s->n_vocab && s->d_model && s->n_layer && s->n_head && s->n_kv_head && s->d_head && s->d_ff;
}

static int write(many multiply_adds, many bytes, work *w)
{
    if (!good(multiply_adds) || !good(bytes))
        return -1;
    w->multiply_adds = (int64_t)multiply_adds;
    w->bytes = (int64_t)bytes;
    w->intensity = 2 / ((double)bytes / (double)multiply_adds);
    return 0;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    if (!is_positive(s) || p < 1 || bytes_per_number < 1)
        return -1;
    many L = s->n_layer, logits = m2(s->d_model, s->n_vocab), layers = m2(L, in_layer(s));
    many kept = m3(m2(2, L), m2(s->n_kv_head, s->d_head), p);
    many attention = m3(m2(2, L), s->d_model, sum_to(p));
    return write(s3(m2(p, layers), attention, logits), m2(bytes_per_number, s3(layers, logits, kept)), w);
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    if (!is_positive(s) || t < 0 || bytes_per_number < 1)
        return -1;
    many L = s->n_layer, logits = m2(s->d_model, s->n_vocab), layers = m2(L, in_layer(s)), seen = (many)t + 1;
    many kept = m3(m2(2, L), m2(s->n_kv_head, s->d_head), seen);
    many attention = m3(m2(2, L), s->d_model, seen);
    return write(s3(layers, attention, logits), m2(bytes_per_number, s3(layers, logits, kept)), w);
}

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    double operations = 2.0 * (double)w->multiply_adds, bytes = (double)w->bytes;

    if (!(operations > 0) || !(bytes > 0) || !(bytes_per_second > 0) || !(operations_per_second > 0))
        return 0;
    /* memory is slower where bytes / bandwidth > operations / rate */
    if (bytes * (1 / bytes_per_second) > operations * (1 / operations_per_second))
        return bytes_per_second / bytes;
    return operations_per_second / operations;
}
