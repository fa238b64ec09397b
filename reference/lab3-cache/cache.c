/* Lab 3, the KV cache. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

/* ---- 3a: the store: keys and values are [L][capacity][D_kv] ---- */

static int width(const cache *c)
{
    return c->m->shape.n_kv_head * c->m->shape.d_head;
}

/* Where the rows of a layer's position begin, in keys as in values. */
static size_t row(const cache *c, int layer, int position)
{
    return ((size_t)layer * c->capacity + position) * width(c);
}

int cache_init(cache *c, const model *m, int capacity)
{
    *c = (cache){.m = m};
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    size_t d_kv = width(c), size = (size_t)m->shape.n_layer * capacity * d_kv;
    c->capacity = capacity;
    c->keys = malloc(size * sizeof *c->keys);
    c->values = malloc(size * sizeof *c->values);
    c->scratch = malloc((size_t)capacity * (4 * m->shape.d_model + 2 * d_kv + 1) * sizeof *c->scratch);
    if (c->keys && c->values && c->scratch)
        return 0;
    cache_free(c);
    return -1;
}

void cache_free(cache *c)
{
    free(c->keys);
    free(c->values);
    free(c->scratch);
    *c = (cache){0};
}

static int fits(const cache *c, int n)
{
    return n >= 0 && n <= c->capacity - c->length;
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    if (!fits(c, n))
        return -1;
    size_t bytes = (size_t)n * width(c) * sizeof *k;
    memcpy(c->keys + row(c, layer, c->length), k, bytes);
    memcpy(c->values + row(c, layer, c->length), v, bytes);
    return 0;
}

int cache_advance(cache *c, int n)
{
    if (!fits(c, n))
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
    if (t < 0 || t > c->length)
        return -1;
    c->length = t;
    return 0;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    return c->keys + row(c, layer, position) + kv_head * c->m->shape.d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return c->values + row(c, layer, position) + kv_head * c->m->shape.d_head;
}

/* ---- 3b: one layer's attention ---- */

/* The scratch: x, h, q, mixed [n][D], k, v [n][D_kv], scores [capacity]. */
static real *scores_of(const cache *c)
{
    return c->scratch + (size_t)c->capacity * (4 * c->m->shape.d_model + 2 * width(c));
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    int stride = width(c), group = s->n_head / s->n_kv_head;
    real *scores = scores_of(c);

    for (int i = 0; i < n; i++)
        for (int h = 0; h < s->n_head; h++, q += s->d_head, out += s->d_head) {
            int seen = c->length + i + 1;
            attention_scores(layer, h, q, cache_key(c, layer, h / group, 0), stride, seen, s->d_head, scores);
            softmax(scores, seen, scores);
            mix(scores, cache_value(c, layer, h / group, 0), stride, seen, s->d_head, out);
        }
}

/* ---- 3c: the forward pass ---- */

/* x [n][D] += what the layer's attention reads; h and the rest are scratch. */
static void attention_block(cache *c, int l, int n, real *x, real *h)
{
    const model *m = c->m;
    const layer *at = &m->layers[l];
    real *q = h + (size_t)n * m->shape.d_model, *mixed = q + (size_t)n * m->shape.d_model;
    real *k = mixed + (size_t)n * m->shape.d_model, *v = k + (size_t)n * width(c);

    norm(at->attention_norm, x, n, h);
    project(at->query, h, n, q);
    project(at->key, h, n, k);
    project(at->value, h, n, v);
    turn_heads(m, c->length, n, m->shape.n_head, q);
    turn_heads(m, c->length, n, m->shape.n_kv_head, k);
    cache_append(c, l, k, v, n);
    cache_attention(c, l, q, n, mixed);
    project(at->output, mixed, n, h);
    add(x, h, n * m->shape.d_model);
}

static void mlp_block(const model *m, int l, int n, real *x, real *h)
{
    norm(m->layers[l].mlp_norm, x, n, h);
    mlp(m, l, h, n, h);
    add(x, h, n * m->shape.d_model);
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model *m = c->m;
    real *x = c->scratch, *h = x + (size_t)n * m->shape.d_model;

    if (n < 1 || !fits(c, n) || embed(m, tokens, n, x) || add_positions(m, c->length, n, x))
        return -1;
    for (int l = 0; l < m->shape.n_layer; l++) {
        attention_block(c, l, n, x, h);
        mlp_block(m, l, n, x, h);
    }
    unembed(m, x, n, logits);
    return cache_advance(c, n);
}

/* ---- 3d: a prompt in chunks ---- */

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    size_t n_vocab = c->m->shape.n_vocab;

    if (n < 1 || chunk < 1 || !fits(c, n))
        return -1;
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= c->m->shape.n_vocab)
            return -1;
    for (int done = 0, now; done < n; done += now) {
        now = n - done < chunk ? n - done : chunk;
        if (cache_forward(c, tokens + done, now, rows))
            return -1;
        if (done + now == n)
            memcpy(logits, rows + (now - 1) * n_vocab, n_vocab * sizeof *logits);
    }
    return 0;
}

/* ---- 3e: the decoding loop on it ---- */

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    const cached *s = state;
    int held = s->c->length;

    return n > held ? cache_prefill(s->c, tokens + held, n - held, s->chunk, s->rows, logits) : -1;
}
