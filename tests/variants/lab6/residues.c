/* Lab 6 computed twice: exactly but modulo 2^64, and roughly in long double. Together they say whether the number fits
   and which it is. */
#include "cost.h"

#include <math.h>

typedef struct {
    uint64_t residue;
    long double about;
} number;

#define N(x) ((number){(uint64_t)(x), (long double)(x)})

static number plus(number a, number b)
{
    return (number){a.residue + b.residue, a.about + b.about};
}

static number mul(number a, number b)
{
    return (number){a.residue * b.residue, a.about * b.about};
}

/* Rough to many digits: 1.5 · 2^63 tells a number below 2^63 from one that wrapped all around. */
static int get(number a, int64_t *to)
{
    if (a.about > 0x1.8p63L || a.residue > INT64_MAX)
        return -1;
    *to = a.residue;
    return 0;
}

static number triangle(int64_t m)
{
    return m % 2 ? mul(N(m), N(m / 2 + 1)) : mul(N(m / 2), plus(N(m), N(1)));
}

/* m(m+1)(m+2)/6 = triangle(m)(m+2)/3, of which one factor is a multiple of 3; modulo 2^64 three has an inverse. */
static number tetrahedron(int64_t m)
{
    number six = mul(triangle(m), plus(N(m), N(2)));

    return (number){six.residue * UINT64_C(0xaaaaaaaaaaaaaaab), six.about / 3};
}

static number minus(number a, number b)
{
    return (number){a.residue - b.residue, a.about - b.about};
}

static int put(number projections, number scores, usage *u)
{
    int64_t a, b;

    if (get(projections, &a) || get(scores, &b))
        return -1;
    *u = (usage){.projections = a, .scores = b};
    return 0;
}

/* Differences of rough numbers are only good while neither is far above 2^64. */
int usage_uncached(int64_t p, int64_t n, usage *u)
{
    if (p < 1 || n < 0)
        return -1;
    if (n == 0)
        return put(N(0), N(0), u);
    if (p > (INT64_C(1) << 33) || n > (INT64_C(1) << 33))
        return -1;
    number earlier = plus(mul(N(n), N(p)), triangle(n - 1));
    number scores = minus(tetrahedron(p + n - 1), tetrahedron(p - 1));
    scores.about = (3.0L * n * p * (p + n) + ((long double)n * n - 1) * n) / 6;
    return put(earlier, scores, u);
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    if (p < 1 || n < 0)
        return -1;
    if (n == 0)
        return put(N(0), N(0), u);
    if (p > INT64_MAX / 4 || n > INT64_MAX / 4)
        return -1;
    return put(N(p + n - 1), triangle(p + n - 1), u);
}

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    if (s->n_layer < 1 || s->n_kv_head < 1 || s->d_head < 1 || s->n_tokens < 1 || s->bytes_per_number < 1 ||
        s->n_sequences < 1)
        return -1;
    number a = mul(mul(N(s->n_layer), N(s->n_kv_head)), mul(N(s->d_head), N(s->n_tokens)));
    return get(mul(mul(a, N(2)), mul(N(s->bytes_per_number), N(s->n_sequences))), bytes);
}

static int put_work(const model_shape *s, number rows, number pairs, number seen, int64_t b, work *w)
{
    const int *sizes[] = {&s->n_vocab, &s->d_model, &s->n_layer, &s->n_head, &s->n_kv_head, &s->d_head, &s->d_ff};
    int64_t done, moved;

    for (int i = 0; i < 7; i++)
        if (*sizes[i] < 1)
            return -1;
    number d = N(s->d_model), two = N(2), kv = mul(N(s->n_kv_head), N(s->d_head)), logits = mul(d, N(s->n_vocab));
    number mlp = mul(N(s->activation == SWIGLU ? 3 : 2), N(s->d_ff));
    number layer = mul(d, plus(mul(two, plus(mul(N(s->n_head), N(s->d_head)), kv)), mlp));
    number attention = mul(mul(two, mul(N(s->n_head), N(s->d_head))), pairs);
    number kept = mul(mul(two, kv), seen);
    if (b < 1 || get(plus(mul(N(s->n_layer), plus(mul(rows, layer), attention)), logits), &done) ||
        get(mul(N(b), plus(mul(N(s->n_layer), plus(layer, kept)), logits)), &moved))
        return -1;
    *w = (work){.multiply_adds = done, .bytes = moved, .intensity = (double)(2 * (long double)done / moved)};
    return 0;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    return p < 1 ? -1 : put_work(s, N(p), triangle(p), N(p), bytes_per_number, w);
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    if (t < 0)
        return -1;
    number seen = plus(N(t), N(1));
    return put_work(s, N(1), seen, seen, bytes_per_number, w);
}

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    if (w->multiply_adds < 1 || w->bytes < 1)
        return 0;
    if (isnan(bytes_per_second) || isnan(operations_per_second) || bytes_per_second <= 0 || operations_per_second <= 0)
        return 0;
    return (double)fminl(bytes_per_second / (long double)w->bytes,
                         operations_per_second / (2 * (long double)w->multiply_adds));
}
