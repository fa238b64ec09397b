/* Lab 6 in 64 bits throughout: every term is positive and no larger than the result, and products are divided before
   they are made. A small evaluator of checked steps. */
#include "cost.h"

#define TRY(step) do { if (step) return -1; } while (0)

static int mul(int64_t *a, int64_t b)
{
    return __builtin_mul_overflow(*a, b, a);
}

static int sum(int64_t *a, int64_t b)
{
    return __builtin_add_overflow(*a, b, a);
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* a·b·c/d, which is whole. */
static int quotient(int64_t a, int64_t b, int64_t c, int64_t d, int64_t *q)
{
    int64_t *factors[] = {&a, &b, &c};

    for (int i = 0; i < 3; i++) {
        int64_t g = gcd(d, *factors[i]);
        *factors[i] /= g;
        d /= g;
    }
    *q = a;
    TRY(mul(q, b));
    TRY(mul(q, c));
    return 0;
}

int usage_uncached(int64_t p, int64_t n, usage *u)
{
    usage sum_of = {0, 0};
    int64_t term;

    if (p < 1 || n < 0)
        return -1;
    if (n > 0) {
        if (p == INT64_MAX || n == INT64_MAX)
            return -1;
        TRY(quotient(n, p, 1, 1, &sum_of.projections));
        TRY(quotient(n, n - 1, 1, 2, &term));
        TRY(sum(&sum_of.projections, term));
        TRY(quotient(p, p + 1, n, 2, &sum_of.scores)); /* run i has p(p+1)/2 + p·i + i(i+1)/2 */
        TRY(quotient(n, n - 1, p, 2, &term));
        TRY(sum(&sum_of.scores, term));
        TRY(quotient(n - 1, n, n + 1, 6, &term));
        TRY(sum(&sum_of.scores, term));
    }
    *u = sum_of;
    return 0;
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    usage sum_of = {0, 0};

    if (p < 1 || n < 0)
        return -1;
    if (n > 0) {
        sum_of.projections = p;
        TRY(sum(&sum_of.projections, n - 1));
        if (sum_of.projections == INT64_MAX)
            return -1;
        TRY(quotient(sum_of.projections, sum_of.projections + 1, 1, 2, &sum_of.scores));
    }
    *u = sum_of;
    return 0;
}

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    int64_t b = s->bytes_per_number;

    if (s->n_layer <= 0 || s->n_kv_head <= 0 || s->d_head <= 0 || s->n_tokens <= 0 || b <= 0 || s->n_sequences <= 0)
        return -1;
    TRY(mul(&b, s->d_head));
    TRY(mul(&b, s->n_kv_head));
    TRY(mul(&b, s->n_layer));
    TRY(mul(&b, s->n_tokens));
    TRY(mul(&b, s->n_sequences));
    TRY(sum(&b, b));
    *bytes = b;
    return 0;
}

/* done += layers * rows * out * in, moved += layers * out * in */
static int matrix(int64_t layers, int64_t rows, int64_t out, int64_t in, int64_t *done, int64_t *moved)
{
    int64_t size = layers;

    TRY(mul(&size, out));
    TRY(mul(&size, in));
    TRY(sum(moved, size));
    TRY(mul(&size, rows));
    return sum(done, size);
}

static int all(const model_shape *s, int64_t rows, int64_t *done, int64_t *moved)
{
    int64_t d_q = (int64_t)s->n_head * s->d_head, d_kv = (int64_t)s->n_kv_head * s->d_head, l = s->n_layer;

    TRY(matrix(l, rows, d_q, s->d_model, done, moved));
    TRY(matrix(l, rows, d_kv, s->d_model, done, moved));
    TRY(matrix(l, rows, d_kv, s->d_model, done, moved));
    TRY(matrix(l, rows, s->d_model, d_q, done, moved));
    if (s->activation == SWIGLU)
        TRY(matrix(l, rows, s->d_ff, s->d_model, done, moved));
    TRY(matrix(l, rows, s->d_ff, s->d_model, done, moved));
    TRY(matrix(l, rows, s->d_model, s->d_ff, done, moved));
    return matrix(1, 1, s->n_vocab, s->d_model, done, moved);
}

static int is_bad(const model_shape *s, int64_t bytes_per_number)
{
    return s->n_vocab < 1 || s->d_model < 1 || s->n_layer < 1 || s->n_head < 1 || s->n_kv_head < 1 || s->d_head < 1 ||
           s->d_ff < 1 || bytes_per_number < 1;
}

static int finish(const model_shape *s, int64_t pairs_twice, int64_t kept, int64_t b, int64_t done, int64_t moved, work *w)
{
    TRY(mul(&pairs_twice, (int64_t)s->n_head * s->d_head));
    TRY(mul(&pairs_twice, s->n_layer));
    TRY(sum(&done, pairs_twice));
    TRY(mul(&kept, 2));
    TRY(mul(&kept, (int64_t)s->n_kv_head * s->d_head));
    TRY(mul(&kept, s->n_layer));
    TRY(sum(&moved, kept));
    TRY(mul(&moved, b));
    w->multiply_adds = done;
    w->bytes = moved;
    w->intensity = done / (moved / 2.0);
    return 0;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    int64_t done = 0, moved = 0, pairs_twice = p;

    if (p < 1 || p == INT64_MAX || is_bad(s, bytes_per_number))
        return -1;
    TRY(all(s, p, &done, &moved));
    TRY(mul(&pairs_twice, p + 1));
    return finish(s, pairs_twice, p, bytes_per_number, done, moved, w);
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    int64_t done = 0, moved = 0, pairs_twice = 2;

    if (t < 0 || t == INT64_MAX || is_bad(s, bytes_per_number))
        return -1;
    TRY(all(s, 1, &done, &moved));
    TRY(mul(&pairs_twice, t + 1));
    return finish(s, pairs_twice, t + 1, bytes_per_number, done, moved, w);
}

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    if (w->multiply_adds > 0 && w->bytes > 0 && bytes_per_second > 0 && operations_per_second > 0) {
        double moving = w->bytes / bytes_per_second, computing = w->multiply_adds / operations_per_second * 2;
        return 1 / (moving > computing ? moving : computing);
    }
    return 0;
}
