/* Lab 6 from a table of the matrices, and the roofline as it's drawn: the rate that the intensity allows. Overflow is
   a long jump away from the formulas. */
#include "cost.h"

#include <setjmp.h>
#include <stddef.h>

static jmp_buf out;

static int64_t mul(int64_t a, int64_t b)
{
    int64_t c;

    if (__builtin_mul_overflow(a, b, &c))
        longjmp(out, 1);
    return c;
}

static int64_t plus(int64_t a, int64_t b)
{
    int64_t c;

    if (__builtin_add_overflow(a, b, &c))
        longjmp(out, 1);
    return c;
}

static int64_t at_least(int64_t least, int64_t a)
{
    if (a < least)
        longjmp(out, 1);
    return a;
}

/* The binomial coefficient of n over k, k = 2 or 3: multiplied and divided in turn, each time whole, and never above the
   result times k. */
static int64_t binomial(int64_t n, int64_t k)
{
    __int128 c = 1;

    for (int64_t i = 1; i <= k; i++) {
        c = c * (n - k + i) / i;
        if (c > INT64_MAX)
            longjmp(out, 1);
    }
    return c;
}

/* Counted from the first run on, so that nothing is subtracted: run i has run 0's scores, p·i, and i(i+1)/2. */
static usage uncached(int64_t p, int64_t n)
{
    usage total = {0, 0};

    if (n > 0) {
        total.projections = plus(mul(n, p), binomial(n, 2));
        total.scores = plus(plus(mul(n, binomial(plus(p, 1), 2)), mul(p, binomial(n, 2))), binomial(plus(n, 1), 3));
    }
    return total;
}

static usage with_cache(int64_t p, int64_t n)
{
    usage total = {0, 0};

    if (n > 0) {
        total.projections = plus(p, n - 1);
        total.scores = binomial(plus(total.projections, 1), 2);
    }
    return total;
}

int usage_uncached(int64_t p, int64_t n, usage *u)
{
    const volatile int64_t n_new = n; /* what lives across setjmp */

    if (setjmp(out))
        return -1;
    *u = uncached(at_least(1, p), at_least(0, n_new));
    return 0;
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    const volatile int64_t n_new = n; /* what lives across setjmp */

    if (setjmp(out))
        return -1;
    *u = with_cache(at_least(1, p), at_least(0, n_new));
    return 0;
}

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    if (setjmp(out))
        return -1;
    int64_t key = mul(at_least(1, s->d_head), at_least(1, s->bytes_per_number));
    int64_t token = mul(mul(key, 2), mul(at_least(1, s->n_kv_head), at_least(1, s->n_layer)));
    *bytes = mul(mul(token, at_least(1, s->n_tokens)), at_least(1, s->n_sequences));
    return 0;
}

enum { ONCE, EACH_LAYER };

typedef struct {
    int times;       /* how often the model has it */
    int64_t in, out; /* its shape */
    int64_t rows;    /* that it multiplies */
} entry;

static void total(const model_shape *s, int64_t first, int64_t n, int64_t b, work *w)
{
    int64_t d = at_least(1, s->d_model), f = at_least(1, s->d_ff), l = at_least(1, s->n_layer);
    int64_t q = mul(at_least(1, s->n_head), at_least(1, s->d_head)), kv = mul(at_least(1, s->n_kv_head), s->d_head);
    const entry matrices[] = {
        {EACH_LAYER, d, q, n}, {EACH_LAYER, d, kv, n}, {EACH_LAYER, d, kv, n}, {EACH_LAYER, q, d, n},
        {EACH_LAYER, d, f, n}, {EACH_LAYER, f, d, n}, {ONCE, d, at_least(1, s->n_vocab), 1},
        {EACH_LAYER, s->activation == SWIGLU ? d : 0, f, n},
    };
    int64_t multiply_adds = 0, numbers = 0, seen = plus(first, n);

    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        const entry *e = &matrices[i];
        int64_t size = mul(mul(e->in, e->out), e->times == ONCE ? 1 : l);
        numbers = plus(numbers, size);
        multiply_adds = plus(multiply_adds, mul(size, e->rows));
    }
    int64_t pairs = n == 1 ? seen : binomial(plus(n, 1), 2);
    multiply_adds = plus(multiply_adds, mul(mul(mul(l, q), pairs), 2));
    numbers = plus(numbers, mul(mul(mul(l, kv), seen), 2));
    int64_t bytes = mul(numbers, at_least(1, b));
    w->multiply_adds = multiply_adds;
    w->bytes = bytes;
    w->intensity = multiply_adds * 2.0 / bytes;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    if (setjmp(out))
        return -1;
    total(s, 0, at_least(1, p), bytes_per_number, w);
    return 0;
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    if (setjmp(out))
        return -1;
    total(s, at_least(0, t), 1, bytes_per_number, w);
    return 0;
}

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    if (w->multiply_adds <= 0 || w->bytes <= 0 || !(bytes_per_second > 0) || !(operations_per_second > 0))
        return 0;
    double under_the_roof = bytes_per_second * w->intensity;
    if (under_the_roof > operations_per_second)
        under_the_roof = operations_per_second;
    return under_the_roof / 2 / w->multiply_adds;
}
