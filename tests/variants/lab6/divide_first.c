/* Lab 6 with tests before each operation: a product fits if one factor is at most the limit divided by the other. */
#include "cost.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* A number, and whether it's still one. */
typedef struct {
    int64_t n;
    bool ok;
} checked;

static checked num(int64_t n)
{
    return (checked){n, n >= 1};
}

static checked mul(checked a, checked b)
{
    if (!a.ok || !b.ok || a.n > INT64_MAX / b.n)
        return (checked){0, false};
    return (checked){a.n * b.n, true};
}

static checked plus(checked a, checked b)
{
    if (!a.ok || !b.ok || a.n > INT64_MAX - b.n)
        return (checked){0, false};
    return (checked){a.n + b.n, true};
}

/* m(m+1)/2 */
static checked pairs(checked m)
{
    checked next = plus(m, num(1));

    if (!next.ok)
        return next;
    return m.n % 2 ? mul(m, num(next.n / 2)) : mul(num(m.n / 2), next);
}

/* The sum of pairs(1) … pairs(m), from 0 up. */
static checked layers_of_pairs(int64_t m)
{
    int64_t f[3] = {m, m + 1, m + 2};
    bool two = false, three = false;

    if (m == 0)
        return (checked){0, true};
    for (int i = 0; i < 3; i++) {
        if (!two && f[i] % 2 == 0) {
            f[i] /= 2;
            two = true;
        }
        if (!three && f[i] % 3 == 0) {
            f[i] /= 3;
            three = true;
        }
    }
    return mul(mul(num(f[0]), num(f[1])), num(f[2]));
}

static int put(checked a, checked b, usage *u)
{
    usage result;

    if (!a.ok || !b.ok)
        return -1;
    memset(&result, 0, sizeof result);
    result.projections = a.n;
    result.scores = b.n;
    memcpy(u, &result, sizeof result);
    return 0;
}

int usage_uncached(int64_t p, int64_t n, usage *u)
{
    const checked none = {0, true};

    if (p < 1 || n < 0)
        return -1;
    if (n == 0)
        return put(none, none, u);
    if (n == 1)
        return put(num(p), pairs(num(p)), u);
    /* projections: n·p + pairs(n-1); scores: n·pairs(p) + p·pairs(n-1) + the sum of pairs(1) … pairs(n-1) */
    checked more = pairs(num(n - 1)), whole = n < INT64_MAX / 2 ? layers_of_pairs(n - 1) : (checked){0, false};
    return put(plus(mul(num(n), num(p)), more), plus(plus(mul(num(n), pairs(num(p))), mul(num(p), more)), whole), u);
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    const checked none = {0, true};

    if (p < 1 || n < 0)
        return -1;
    if (n == 0)
        return put(none, none, u);
    checked all = n == 1 ? num(p) : plus(num(p), num(n - 1));
    return put(all, pairs(all), u);
}

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    checked per_token = mul(mul(num(s->n_layer), num(s->n_kv_head)), mul(num(s->d_head), num(2)));
    checked size = mul(mul(per_token, num(s->n_tokens)), mul(num(s->bytes_per_number), num(s->n_sequences)));

    if (size.ok)
        *bytes = size.n;
    return size.ok ? 0 : -1;
}

static checked layer_size(const model_shape *s)
{
    checked d = num(s->d_model), q = mul(d, mul(num(s->n_head), num(s->d_head)));
    checked kv = mul(d, mul(num(s->n_kv_head), num(s->d_head))), ff = mul(d, num(s->d_ff));
    checked mlp = plus(ff, ff);

    if (s->activation == SWIGLU)
        mlp = plus(mlp, ff);
    return plus(plus(plus(q, q), plus(kv, kv)), mlp);
}

static int put_work(const model_shape *s, checked rows, checked score_pairs, checked tokens, int64_t b, work *w)
{
    checked layers = num(s->n_layer), logits = mul(num(s->n_vocab), num(s->d_model));
    checked weights = mul(layers, layer_size(s)), head = mul(num(s->n_head), num(s->d_head));
    checked scores = mul(mul(layers, head), score_pairs), kv = mul(num(s->n_kv_head), num(s->d_head));
    checked done = plus(plus(mul(rows, weights), logits), plus(scores, scores));
    checked kept = mul(mul(layers, kv), tokens), moved = mul(num(b), plus(plus(weights, logits), plus(kept, kept)));

    if (!done.ok || !moved.ok)
        return -1;
    w->multiply_adds = done.n;
    w->bytes = moved.n;
    w->intensity = (double)done.n / moved.n + (double)done.n / moved.n;
    return 0;
}

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    return put_work(s, num(p), pairs(num(p)), num(p), bytes_per_number, w);
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    if (t < 0)
        return -1;
    checked seen = t == 0 ? num(1) : plus(num(t), num(1));
    return put_work(s, num(1), seen, seen, bytes_per_number, w);
}

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    const double all[] = {w->multiply_adds, w->bytes, bytes_per_second, operations_per_second};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i] > 0))
            return 0;
    double seconds = all[1] / all[2], arithmetic = (all[0] + all[0]) / all[3];
    if (arithmetic > seconds)
        seconds = arithmetic;
    return 1 / seconds;
}
