/* Differs: one malloc for everything. Per layer all keys, then all values: [L][2][capacity][D_kv], then the scratch;
   `values` and `scratch` point into what `keys` owns. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

typedef struct {
    size_t row, half, layer, store; /* reals in a token's row, in a layer's keys, in a layer, in all layers */
} sizes;

static sizes sizes_of(const model_shape *s, int capacity)
{
    sizes z = {.row = (size_t)s->n_kv_head * s->d_head};

    z.half = z.row * capacity;
    z.layer = 2 * z.half;
    z.store = z.layer * s->n_layer;
    return z;
}

int cache_init(cache *c, const model *m, int capacity)
{
    *c = (cache){.m = m};
    if (capacity < 1 || m->shape.n_ctx < capacity)
        return -1;
    sizes z = sizes_of(&m->shape, capacity);
    size_t rows = (size_t)capacity * (3 * m->shape.d_model + 2 * z.row);
    real *all = malloc((z.store + rows + capacity) * sizeof *all);
    if (!all)
        return -1;
    *c = (cache){m, capacity, 0, all, all + z.half, all + z.store};
    return 0;
}

void cache_free(cache *c)
{
    free(c->keys);
    *c = (cache){.m = c->m};
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    sizes z = sizes_of(&c->m->shape, c->capacity);
    size_t to = layer * z.layer + c->length * z.row;

    if (c->length + n > c->capacity)
        return -1;
    for (size_t i = 0; i < n * z.row; i++) {
        c->keys[to + i] = k[i];
        c->values[to + i] = v[i];
    }
    return 0;
}

int cache_advance(cache *c, int n)
{
    return c->length + n > c->capacity ? -1 : (c->length += n, 0);
}

int cache_truncate(cache *c, int t)
{
    return t < 0 || t > c->length ? -1 : (c->length = t, 0);
}

void cache_reset(cache *c)
{
    c->length = 0;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    sizes z = sizes_of(&c->m->shape, c->capacity);

    return c->keys + layer * z.layer + position * z.row + kv_head * c->m->shape.d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return cache_key(c, layer, kv_head, position) + (c->values - c->keys);
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    sizes z = sizes_of(s, c->capacity);
    real *scores = c->scratch;

    for (int i = 0; i < n; i++)
        for (int h = 0; h < s->n_head; h++) {
            int t = c->length + i + 1, kv = h / (s->n_head / s->n_kv_head);
            const real *q_ih = q + (size_t)i * s->d_model + h * s->d_head;
            real *out_ih = out + (size_t)i * s->d_model + h * s->d_head;
            attention_scores(layer, h, q_ih, cache_key(c, layer, kv, 0), (int)z.row, t, s->d_head, scores);
            softmax(scores, t, scores);
            mix(scores, cache_value(c, layer, kv, 0), (int)z.row, t, s->d_head, out_ih);
        }
}

/* The scratch: scores [capacity], then x, h, q [n][D] and k, v [n][D_kv]. What attention mixes goes to h. */
int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model *m = c->m;
    int d = m->shape.d_model, t = c->length;
    real *x = c->scratch + c->capacity;

    if (n < 1 || t + n > c->capacity)
        return -1;
    real *h = x + (size_t)n * d, *q = h + (size_t)n * d, *k = q + (size_t)n * d;
    real *v = k + (size_t)n * m->shape.n_kv_head * m->shape.d_head;
    if (embed(m, tokens, n, x) || add_positions(m, t, n, x))
        return -1;
    for (int l = 0; l < m->shape.n_layer; l++) {
        const layer *w = &m->layers[l];
        norm(w->attention_norm, x, n, h);
        project(w->query, h, n, q);
        project(w->key, h, n, k);
        project(w->value, h, n, v);
        turn_heads(m, t, n, m->shape.n_head, q);
        turn_heads(m, t, n, m->shape.n_kv_head, k);
        cache_append(c, l, k, v, n);
        cache_attention(c, l, q, n, h);
        project(w->output, h, n, q);
        add(x, q, n * d);
        norm(w->mlp_norm, x, n, h);
        mlp(m, l, h, n, h);
        add(x, h, n * d);
    }
    unembed(m, x, n, logits);
    return cache_advance(c, n);
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    size_t v = c->m->shape.n_vocab;
    int left = n, bad = n < 1 || chunk < 1 || c->length + n > c->capacity;

    for (int i = 0; !bad && i < n; i++)
        bad = tokens[i] < 0 || (size_t)tokens[i] >= v;
    if (bad)
        return -1;
    for (; left > chunk; left -= chunk, tokens += chunk)
        if (cache_forward(c, tokens, chunk, rows))
            return -1;
    if (cache_forward(c, tokens, left, rows))
        return -1;
    memcpy(logits, rows + (left - 1) * v, v * sizeof *rows);
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;

    if (n <= s->c->length)
        return -1;
    return cache_prefill(s->c, tokens + s->c->length, n - s->c->length, s->chunk, s->rows, logits);
}
