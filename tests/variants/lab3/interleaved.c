/* Differs: a token's keys and values of all layers lie together, [capacity][L][2][D_kv], so the stride runs over all
   layers. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

static size_t d_kv_of(const model_shape *s)
{
    return (size_t)s->n_kv_head * s->d_head;
}

static size_t token_of(const model_shape *s)
{
    return 2 * d_kv_of(s) * s->n_layer;
}

int cache_init(cache *c, const model *m, int capacity)
{
    const model_shape *s = &m->shape;
    size_t d_kv = d_kv_of(s), token = token_of(s);

    memset(c, 0, sizeof *c);
    if (capacity < 1 || capacity > s->n_ctx)
        return -1;
    c->keys = malloc(sizeof(real) * token * capacity);
    c->scratch = malloc(sizeof(real) * capacity * (5 * s->d_model + 2 * d_kv + 1));
    if (!c->keys || !c->scratch) {
        cache_free(c);
        return -1;
    }
    c->values = c->keys + d_kv;
    c->capacity = capacity;
    c->m = m;
    return 0;
}

void cache_free(cache *c)
{
    free(c->scratch);
    free(c->keys);
    c->keys = c->values = c->scratch = NULL;
    c->length = c->capacity = 0;
    c->m = NULL;
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    const model_shape *s = &c->m->shape;
    size_t d_kv = d_kv_of(s), token = token_of(s);

    if (n + c->length > c->capacity)
        return -1;
    real *to = c->keys + c->length * token + layer * 2 * d_kv;
    for (; n > 0; n--, to += token, k += d_kv, v += d_kv) {
        memcpy(to, k, d_kv * sizeof *to);
        memcpy(to + d_kv, v, d_kv * sizeof *to);
    }
    return 0;
}

int cache_advance(cache *c, int n)
{
    if (c->capacity - c->length < n)
        return -1;
    c->length = c->length + n;
    return 0;
}

void cache_reset(cache *c)
{
    c->length = 0;
}

int cache_truncate(cache *c, int t)
{
    if ((unsigned)t > (unsigned)c->length)
        return -1;
    c->length = t;
    return 0;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    const model_shape *s = &c->m->shape;
    size_t d_kv = d_kv_of(s), token = token_of(s);

    return c->keys + position * token + layer * 2 * d_kv + kv_head * s->d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    const model_shape *s = &c->m->shape;
    size_t d_kv = d_kv_of(s), token = token_of(s);

    return c->values + position * token + layer * 2 * d_kv + kv_head * s->d_head;
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    size_t d_kv = d_kv_of(s), token = token_of(s);
    real *p = c->scratch;

    for (int h = 0; h < s->n_head; h++) {
        const real *k = c->keys + layer * 2 * d_kv + h / (s->n_head / s->n_kv_head) * s->d_head, *v = k + d_kv;
        for (int i = 0, seen = c->length + 1; i < n; i++, seen++) {
            attention_scores(layer, h, q + (i * s->n_head + h) * s->d_head, k, token, seen, s->d_head, p);
            softmax(p, seen, p);
            mix(p, v, token, seen, s->d_head, out + (i * s->n_head + h) * s->d_head);
        }
    }
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model_shape *s = &c->m->shape;
    size_t d_kv = d_kv_of(s);
    const model *m = c->m;
    real *x = c->scratch + c->capacity, *h = x + (size_t)c->capacity * s->d_model;
    real *q = h + (size_t)c->capacity * s->d_model, *o = q + (size_t)c->capacity * s->d_model;
    real *k = o + (size_t)c->capacity * s->d_model, *v = k + c->capacity * d_kv;

    if (n < 1 || c->length + n > c->capacity || embed(m, tokens, n, x) != 0 || add_positions(m, c->length, n, x) != 0)
        return -1;
    for (int l = 0; l != s->n_layer; ++l) {
        norm(m->layers[l].attention_norm, x, n, h);
        project(m->layers[l].key, h, n, k);
        project(m->layers[l].value, h, n, v);
        turn_heads(m, c->length, n, s->n_kv_head, k);
        cache_append(c, l, k, v, n);
        project(m->layers[l].query, h, n, q);
        turn_heads(m, c->length, n, s->n_head, q);
        cache_attention(c, l, q, n, o);
        project(m->layers[l].output, o, n, q);
        add(x, q, s->d_model * n);
        norm(m->layers[l].mlp_norm, x, n, h);
        mlp(m, l, h, n, o);
        add(x, o, s->d_model * n);
    }
    unembed(m, x, n, logits);
    c->length += n;
    return 0;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    int v = c->m->shape.n_vocab, whole = chunk < 1 ? 0 : n / chunk, rest = chunk < 1 ? 0 : n % chunk;

    if (n < 1 || chunk < 1 || c->length + n > c->capacity)
        return -1;
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= v)
            return -1;
    for (int i = 0; i < whole; i++)
        cache_forward(c, tokens + i * chunk, chunk, rows);
    if (rest)
        cache_forward(c, tokens + whole * chunk, rest, rows);
    memcpy(logits, rows + (size_t)((rest ? rest : chunk) - 1) * v, v * sizeof(real));
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    const cached *s = state;
    int t = s->c->length;

    return n <= t ? -1 : cache_prefill(s->c, tokens + t, n - t, s->chunk, s->rows, logits);
}
