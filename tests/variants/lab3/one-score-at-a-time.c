/* Differs: every score is asked for by itself, softmax and the mixture are plain loops, rows are projected one by one,
   and in memory the newest token comes first. A prompt's short chunk is fed first, so that its last is whole. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "positions.h"

static const real *side_of(const cache *c, const real *side, int layer, int kv_head, int position)
{
    const model_shape *s = &c->m->shape;

    side += (size_t)layer * s->n_kv_head * c->capacity * s->d_head;
    side += (size_t)(c->capacity - 1 - position) * s->n_kv_head * s->d_head; /* the newest token lies in front */
    return side + (size_t)kv_head * s->d_head;
}

int cache_init(cache *c, const model *m, int capacity)
{
    size_t d_kv = (size_t)m->shape.n_kv_head * m->shape.d_head, d = m->shape.d_model;

    *c = (cache){.m = m};
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    c->keys = malloc((size_t)m->shape.n_layer * capacity * d_kv * sizeof(real));
    c->values = malloc((size_t)m->shape.n_layer * capacity * d_kv * sizeof(real));
    c->scratch = malloc(capacity * (2 * d_kv + 4 * d) * sizeof(real));
    if (!c->keys || !c->values || !c->scratch) {
        cache_free(c);
        return -1;
    }
    c->capacity = capacity;
    return 0;
}

void cache_free(cache *c)
{
    free(c->keys);
    free(c->values);
    free(c->scratch);
    *c = (cache){.m = c->m};
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    int d_kv = c->m->shape.n_kv_head * c->m->shape.d_head;

    if (c->length + n > c->capacity)
        return -1;
    for (int i = 0; i < n; i++) {
        memcpy((real *)side_of(c, c->keys, layer, 0, c->length + i), k + (size_t)i * d_kv, d_kv * sizeof *k);
        memcpy((real *)side_of(c, c->values, layer, 0, c->length + i), v + (size_t)i * d_kv, d_kv * sizeof *v);
    }
    return 0;
}

int cache_advance(cache *c, int n)
{
    if (c->length + n > c->capacity)
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
    return side_of(c, c->keys, layer, kv_head, position);
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return side_of(c, c->values, layer, kv_head, position);
}

/* One head of one row, which stands at `position`. */
static void read_head(const cache *c, int layer, int h, int position, const real *q, real *out)
{
    const model_shape *s = &c->m->shape;
    int kv = h / (s->n_head / s->n_kv_head);
    real weights[position + 1], most = -INFINITY, sum = 0;

    for (int j = 0; j <= position; j++) {
        attention_scores(layer, h, q, cache_key(c, layer, kv, j), s->d_head, 1, s->d_head, &weights[j]);
        most = weights[j] > most ? weights[j] : most;
    }
    for (int j = 0; j <= position; j++)
        sum += weights[j] = exp(weights[j] - most);
    memset(out, 0, s->d_head * sizeof *out);
    for (int j = 0; j <= position; j++)
        for (int e = 0; e < s->d_head; e++)
            out[e] += weights[j] / sum * cache_value(c, layer, kv, j)[e];
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    int heads = c->m->shape.n_head, d_head = c->m->shape.d_head;

    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i++)
            read_head(c, layer, h, c->length + i, q + (i * heads + h) * d_head, out + (i * heads + h) * d_head);
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model *m = c->m;
    int d = m->shape.d_model, d_kv = m->shape.n_kv_head * m->shape.d_head;
    real *k = c->scratch, *v = k + (size_t)c->capacity * d_kv, *x = v + (size_t)c->capacity * d_kv;
    real *a = x + (size_t)c->capacity * d, *b = a + (size_t)c->capacity * d, *q = b + (size_t)c->capacity * d;

    if (n < 1 || n > c->capacity - c->length || embed(m, tokens, n, x) || add_positions(m, c->length, n, x))
        return -1;
    for (int l = 0; l < m->shape.n_layer; l++) {
        const layer *w = &m->layers[l];
        norm(w->attention_norm, x, n, a);
        for (int i = 0; i < n; i++) {
            project(w->query, a + (size_t)i * d, 1, q + (size_t)i * d);
            project(w->key, a + (size_t)i * d, 1, k + (size_t)i * d_kv);
            project(w->value, a + (size_t)i * d, 1, v + (size_t)i * d_kv);
            turn_heads(m, c->length + i, 1, m->shape.n_head, q + (size_t)i * d);
            turn_heads(m, c->length + i, 1, m->shape.n_kv_head, k + (size_t)i * d_kv);
        }
        cache_append(c, l, k, v, n);
        cache_attention(c, l, q, n, b);
        project(w->output, b, n, a);
        add(x, a, n * d);
        norm(w->mlp_norm, x, n, b);
        mlp(m, l, b, n, a);
        add(x, a, n * d);
    }
    unembed(m, x, n, logits);
    return cache_advance(c, n);
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    int n_vocab = c->m->shape.n_vocab, now = 0;

    if (n == 1 && chunk >= 1)
        return cache_forward(c, tokens, 1, logits);
    if (n < 1 || chunk < 1 || n > c->capacity - c->length)
        return -1;
    for (int i = n; i-- > 0;)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return -1;
    for (; n > 0; n -= now, tokens += now) {
        now = n % chunk ? n % chunk : chunk; /* the short chunk comes first: the last is whole */
        if (cache_forward(c, tokens, now, rows))
            return -1;
    }
    memcpy(logits, rows + (size_t)(now - 1) * n_vocab, n_vocab * sizeof *logits);
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;
    int held = s->c->length;

    return n > held ? cache_prefill(s->c, tokens + held, n - held, s->chunk, s->rows, logits) : -1;
}
