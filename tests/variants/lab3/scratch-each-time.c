/* Differs: `scratch` stays NULL; every pass gets its memory where it needs it and gives it back. What isn't the cache's
   own state isn't kept. Slower, but right. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

static int kv_width(const model *m)
{
    return m->shape.n_kv_head * m->shape.d_head;
}

static real *reals(int rows, int columns)
{
    return malloc((size_t)rows * columns * sizeof(real));
}

int cache_init(cache *c, const model *m, int capacity)
{
    memset(c, 0, sizeof *c);
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    real *k = reals(capacity * m->shape.n_layer, kv_width(m)), *v = reals(capacity * m->shape.n_layer, kv_width(m));
    if (!k || !v) {
        free(k);
        free(v);
        return -1;
    }
    c->m = m;
    c->capacity = capacity;
    c->keys = k;
    c->values = v;
    return 0;
}

void cache_free(cache *c)
{
    if (c->keys)
        free(c->keys);
    if (c->values)
        free(c->values);
    memset(c, 0, sizeof *c);
}

static int full(const cache *c, int n)
{
    return c->length + n > c->capacity;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    const model_shape *s = &c->m->shape;

    return c->keys + (((size_t)layer * c->capacity + position) * s->n_kv_head + kv_head) * s->d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return c->values + (cache_key(c, layer, kv_head, position) - c->keys);
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    if (full(c, n))
        return -1;
    memcpy((real *)cache_key(c, layer, 0, c->length), k, sizeof(real) * n * kv_width(c->m));
    memcpy((real *)cache_value(c, layer, 0, c->length), v, sizeof(real) * n * kv_width(c->m));
    return 0;
}

int cache_advance(cache *c, int n)
{
    if (full(c, n))
        return -1;
    c->length += n;
    return 0;
}

void cache_reset(cache *c)
{
    c->length = 0;
}

int cache_truncate(cache *c, int t)
{
    int ok = 0 <= t && t <= c->length;

    if (ok)
        c->length = t;
    return ok - 1;
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    real *scores = reals(1, c->length + n), *weights = reals(1, c->length + n);

    for (int i = 0; i < n; i++)
        for (int h = 0; h < s->n_head; h++) {
            int kv = h / (s->n_head / s->n_kv_head), seen = c->length + i + 1;
            int at = (i * s->n_head + h) * s->d_head, stride = kv_width(c->m);
            attention_scores(layer, h, q + at, cache_key(c, layer, kv, 0), stride, seen, s->d_head, scores);
            softmax(scores, seen, weights);
            mix(weights, cache_value(c, layer, kv, 0), stride, seen, s->d_head, out + at);
        }
    free(scores);
    free(weights);
}

/* delta [n][D]: what layer l's attention adds to x. */
static void attention_delta(cache *c, int l, int n, const real *x, real *delta)
{
    const model *m = c->m;
    const model_shape *s = &m->shape;
    real *q = reals(n, s->d_model), *k = reals(n, kv_width(m)), *v = reals(n, kv_width(m)), *o = reals(n, s->d_model);

    norm(m->layers[l].attention_norm, x, n, delta);
    project(m->layers[l].query, delta, n, q);
    project(m->layers[l].key, delta, n, k);
    project(m->layers[l].value, delta, n, v);
    turn_heads(m, c->length, n, s->n_head, q);
    turn_heads(m, c->length, n, s->n_kv_head, k);
    cache_append(c, l, k, v, n);
    cache_attention(c, l, q, n, o);
    project(m->layers[l].output, o, n, delta);
    free(q);
    free(k);
    free(v);
    free(o);
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model *m = c->m;
    int d = m->shape.d_model, status = -1;

    if (n < 1 || full(c, n))
        return -1;
    real *x = reals(n, d), *y = reals(n, d);
    if (x && y && embed(m, tokens, n, x) == 0 && add_positions(m, c->length, n, x) == 0) {
        for (int l = 0; l < m->shape.n_layer; l++) {
            attention_delta(c, l, n, x, y);
            add(x, y, n * d);
            norm(m->layers[l].mlp_norm, x, n, y);
            mlp(m, l, y, n, y);
            add(x, y, n * d);
        }
        unembed(m, x, n, logits);
        status = cache_advance(c, n);
    }
    free(x);
    free(y);
    return status;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    int V = c->m->shape.n_vocab, at, now = 0;
    real *unused = reals(n > 0 ? n : 1, c->m->shape.d_model);
    int good = unused && n > 0 && chunk > 0 && !full(c, n) && embed(c->m, tokens, n, unused) == 0;

    free(unused);
    if (!good)
        return -1;
    for (at = 0; at < n; at += now) {
        now = at + chunk > n ? n - at : chunk;
        if (cache_forward(c, tokens + at, now, rows))
            return -1;
    }
    for (int id = 0; id < V; id++)
        logits[id] = rows[(size_t)(now - 1) * V + id];
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;
    int held = s->c->length;

    if (n <= held)
        return -1;
    return cache_prefill(s->c, tokens + held, n - held, s->chunk, s->rows, logits);
}
