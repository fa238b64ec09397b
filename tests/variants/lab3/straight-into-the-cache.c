/* Differs: the pass projects keys and values straight into the cache's rows and turns the keys there; cache_append is
   there for others, the pass doesn't call it. The prefill has its own pass and unembeds the last row alone. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

static real *slot(const cache *c, real *side, int layer, int position)
{
    int d_kv = c->m->shape.n_kv_head * c->m->shape.d_head;

    return side + (size_t)d_kv * c->capacity * layer + (size_t)d_kv * position;
}

int cache_init(cache *c, const model *m, int capacity)
{
    size_t reals = sizeof(real) * capacity, d = m->shape.d_model;

    *c = (cache){0};
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    c->m = m;
    c->capacity = capacity;
    c->keys = malloc(reals * m->shape.n_layer * m->shape.n_kv_head * m->shape.d_head);
    c->values = malloc(reals * m->shape.n_layer * m->shape.n_kv_head * m->shape.d_head);
    c->scratch = malloc(reals * (4 * d + 1));
    if (c->keys && c->values && c->scratch)
        return 0;
    cache_free(c);
    return -1;
}

void cache_free(cache *c)
{
    real *owned[] = {c->keys, c->values, c->scratch};

    for (int i = 0; i < 3; i++)
        free(owned[i]);
    *c = (cache){0};
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    size_t bytes = sizeof(real) * n * c->m->shape.n_kv_head * c->m->shape.d_head;

    if (c->capacity < c->length + n)
        return -1;
    memcpy(slot(c, c->keys, layer, c->length), k, bytes);
    memcpy(slot(c, c->values, layer, c->length), v, bytes);
    return 0;
}

int cache_advance(cache *c, int n)
{
    if (c->capacity < c->length + n)
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
    if (t < 0 || c->length < t)
        return -1;
    c->length = t;
    return 0;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    return slot(c, c->keys, layer, position) + kv_head * c->m->shape.d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return slot(c, c->values, layer, position) + kv_head * c->m->shape.d_head;
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    int stride = s->n_kv_head * s->d_head;
    real *w = c->scratch;

    for (int i = n - 1; i >= 0; i--)
        for (int h = s->n_head - 1; h >= 0; h--) {
            int kv = h / (s->n_head / s->n_kv_head), seen = i + c->length + 1, at = (i * s->n_head + h) * s->d_head;
            attention_scores(layer, h, q + at, cache_key(c, layer, kv, 0), stride, seen, s->d_head, w);
            softmax(w, seen, w);
            mix(w, cache_value(c, layer, kv, 0), stride, seen, s->d_head, out + at);
        }
}

static int acceptable(const cache *c, const int *tokens, int n)
{
    int good = n >= 1 && n <= c->capacity - c->length;

    for (int i = 0; good && i < n; i++)
        good = tokens[i] >= 0 && tokens[i] < c->m->shape.n_vocab;
    return good;
}

/* x [n][D]: the rows that leave the last layer. The length moves on. */
static real *pass(cache *c, const int *tokens, int n)
{
    const model *m = c->m;
    int d = m->shape.d_model, t = c->length;
    real *x = c->scratch + c->capacity, *h = x + (size_t)n * d, *q = h + (size_t)n * d, *o = q + (size_t)n * d;

    embed(m, tokens, n, x);
    add_positions(m, t, n, x);
    for (int l = 0; l < m->shape.n_layer; l++) {
        const layer *w = &m->layers[l];
        norm(w->attention_norm, x, n, h);
        project(w->key, h, n, slot(c, c->keys, l, t));
        project(w->value, h, n, slot(c, c->values, l, t));
        project(w->query, h, n, q);
        turn_heads(m, t, n, m->shape.n_kv_head, slot(c, c->keys, l, t));
        turn_heads(m, t, n, m->shape.n_head, q);
        cache_attention(c, l, q, n, o);
        project(w->output, o, n, h);
        add(x, h, n * d);
        norm(w->mlp_norm, x, n, h);
        mlp(m, l, h, n, o);
        add(x, o, n * d);
    }
    c->length = t + n;
    return x;
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    if (!acceptable(c, tokens, n))
        return -1;
    unembed(c->m, pass(c, tokens, n), n, logits);
    return 0;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    if (chunk < 1 || !acceptable(c, tokens, n))
        return -1;
    for (; n > chunk; n -= chunk, tokens += chunk)
        pass(c, tokens, chunk);
    unembed(c->m, pass(c, tokens, n) + (size_t)(n - 1) * c->m->shape.d_model, 1, logits);
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;
    cache *c = s->c;

    return n > c->length ? cache_prefill(c, tokens + c->length, n - c->length, s->chunk, s->rows, logits) : -1;
}
