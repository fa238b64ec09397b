/* Differs: keys and values lie as [L][n_kv_head][capacity][d_head], so that one head's keys are next to each other and
   a new row is scattered over the heads. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

static size_t place(const cache *c, int layer, int kv_head, int position)
{
    const model_shape *s = &c->m->shape;

    return (((size_t)layer * s->n_kv_head + kv_head) * c->capacity + position) * s->d_head;
}

void cache_free(cache *c)
{
    free(c->keys);
    free(c->values);
    free(c->scratch);
    memset(c, 0, sizeof *c);
}

int cache_init(cache *c, const model *m, int capacity)
{
    memset(c, 0, sizeof *c);
    if (capacity <= 0 || capacity > m->shape.n_ctx)
        return -1;
    c->m = m;
    c->capacity = capacity;
    size_t all = place(c, m->shape.n_layer, 0, 0);
    c->keys = calloc(all, sizeof(real));
    c->values = calloc(all, sizeof(real));
    c->scratch = calloc((size_t)capacity * 6 * m->shape.d_model + capacity, sizeof(real));
    if (!c->keys || !c->values || !c->scratch) {
        cache_free(c);
        return -1;
    }
    return 0;
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    int d_head = c->m->shape.d_head, heads = c->m->shape.n_kv_head;

    if (n < 0 || c->length + n > c->capacity)
        return -1;
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i++)
            for (int e = 0; e < d_head; e++) {
                c->keys[place(c, layer, h, c->length + i) + e] = k[((size_t)i * heads + h) * d_head + e];
                c->values[place(c, layer, h, c->length + i) + e] = v[((size_t)i * heads + h) * d_head + e];
            }
    return 0;
}

int cache_advance(cache *c, int n)
{
    if (n < 0 || c->length + n > c->capacity)
        return -1;
    c->length += n;
    return 0;
}

void cache_reset(cache *c)
{
    cache_truncate(c, 0);
}

int cache_truncate(cache *c, int t)
{
    if (t >= 0 && t <= c->length) {
        c->length = t;
        return 0;
    }
    return -1;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    return &c->keys[place(c, layer, kv_head, position)];
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return &c->values[place(c, layer, kv_head, position)];
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    real *scores = c->scratch + (size_t)c->capacity * 6 * s->d_model;
    int per_kv = s->n_head / s->n_kv_head;

    for (int kv = 0; kv < s->n_kv_head; kv++)
        for (int h = kv * per_kv; h < (kv + 1) * per_kv; h++)
            for (int i = 0; i < n; i++) {
                size_t at = (size_t)i * s->d_model + (size_t)h * s->d_head;
                int last = c->length + i;
                attention_scores(layer, h, q + at, cache_key(c, layer, kv, 0), s->d_head, last + 1, s->d_head, scores);
                softmax(scores, last + 1, scores);
                mix(scores, cache_value(c, layer, kv, 0), s->d_head, last + 1, s->d_head, out + at);
            }
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model *m = c->m;
    size_t part = (size_t)c->capacity * m->shape.d_model;
    real *x = c->scratch, *h = x + part, *q = h + part, *k = q + part, *v = k + part, *a = v + part;
    int start = c->length, size = n * m->shape.d_model;

    if (n <= 0 || start + n > c->capacity)
        return -1;
    if (embed(m, tokens, n, x) < 0)
        return -1;
    if (add_positions(m, start, n, x) < 0)
        return -1;
    for (int l = 0; l < m->shape.n_layer; l++) {
        norm(m->layers[l].attention_norm, x, n, h);
        project(m->layers[l].value, h, n, v);
        project(m->layers[l].key, h, n, k);
        project(m->layers[l].query, h, n, q);
        turn_heads(m, start, n, m->shape.n_kv_head, k);
        turn_heads(m, start, n, m->shape.n_head, q);
        if (cache_append(c, l, k, v, n))
            return -1;
        cache_attention(c, l, q, n, a);
        project(m->layers[l].output, a, n, h);
        add(x, h, size);
        norm(m->layers[l].mlp_norm, x, n, h);
        mlp(m, l, h, n, a);
        add(x, a, size);
    }
    unembed(m, x, n, logits);
    cache_advance(c, n);
    return 0;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    int n_vocab = c->m->shape.n_vocab, fed = 0, last = 0;

    if (n <= 0 || chunk <= 0 || c->length + n > c->capacity)
        return -1;
    for (const int *id = tokens; id < tokens + n; id++)
        if (*id < 0 || *id >= n_vocab)
            return -1;
    while (fed < n) {
        last = chunk;
        if (last > n - fed)
            last = n - fed;
        if (cache_forward(c, tokens + fed, last, rows))
            return -1;
        fed += last;
    }
    memcpy(logits, rows + (size_t)(last - 1) * n_vocab, n_vocab * sizeof(real));
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;
    int known = s->c->length;

    if (known >= n)
        return -1;
    return cache_prefill(s->c, &tokens[known], n - known, s->chunk, s->rows, logits);
}
