/* Differs: cache_forward is a loop over single tokens, each through all layers before the next, and so is the prefill:
   a chunk is never more than a row. The scores are on the stack. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

int cache_init(cache *c, const model *m, int capacity)
{
    size_t d_kv = (size_t)m->shape.n_kv_head * m->shape.d_head;

    c->m = m;
    c->length = 0;
    c->capacity = 0;
    c->keys = c->values = c->scratch = NULL;
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    c->keys = malloc(m->shape.n_layer * capacity * d_kv * sizeof(real));
    c->values = malloc(m->shape.n_layer * capacity * d_kv * sizeof(real));
    c->scratch = malloc(((size_t)4 * m->shape.d_model + 2 * d_kv) * sizeof(real));
    if (!c->keys || !c->values || !c->scratch) {
        cache_free(c);
        return -1;
    }
    c->capacity = capacity;
    return 0;
}

static void drop(real **memory)
{
    free(*memory);
    *memory = NULL;
}

void cache_free(cache *c)
{
    drop(&c->keys);
    drop(&c->values);
    drop(&c->scratch);
    c->capacity = c->length = 0;
}

/* Where position p's row of D_kv numbers begins in a layer, in either array. */
static real *at(const cache *c, real *memory, int layer, int p)
{
    return memory + ((size_t)layer * c->capacity + p) * c->m->shape.n_kv_head * c->m->shape.d_head;
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    int d_kv = c->m->shape.n_kv_head * c->m->shape.d_head;

    if (n > c->capacity - c->length)
        return -1;
    for (int i = 0; i < n; i++) {
        memcpy(at(c, c->keys, layer, c->length + i), k + (size_t)i * d_kv, d_kv * sizeof(real));
        memcpy(at(c, c->values, layer, c->length + i), v + (size_t)i * d_kv, d_kv * sizeof(real));
    }
    return 0;
}

int cache_advance(cache *c, int n)
{
    int length = c->length + n;

    if (length > c->capacity)
        return -1;
    c->length = length;
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
    return at(c, c->keys, layer, position) + kv_head * c->m->shape.d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return at(c, c->values, layer, position) + kv_head * c->m->shape.d_head;
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    int d_kv = s->n_kv_head * s->d_head;
    real weights[c->capacity];

    for (int r = 0; r < n * s->n_head; r++) {
        int h = r % s->n_head, sees = c->length + r / s->n_head + 1, kv = h * s->n_kv_head / s->n_head;
        const real *k = cache_key(c, layer, kv, 0), *v = cache_value(c, layer, kv, 0);
        attention_scores(layer, h, q + (size_t)r * s->d_head, k, d_kv, sees, s->d_head, weights);
        softmax(weights, sees, weights);
        mix(weights, v, d_kv, sees, s->d_head, out + (size_t)r * s->d_head);
    }
}

/* One token whose id is known to be good and for which there's room. */
static int feed(cache *c, int token, real *logits)
{
    const model *m = c->m;
    int d = m->shape.d_model, d_kv = m->shape.n_kv_head * m->shape.d_head;
    real *x = c->scratch, *y = x + d, *q = y + d, *o = q + d, *k = o + d, *v = k + d_kv;

    embed(m, &token, 1, x);
    if (add_positions(m, c->length, 1, x))
        return -1;
    for (int l = 0; l < m->shape.n_layer; l++) {
        const layer *w = m->layers + l;
        norm(w->attention_norm, x, 1, y);
        project(w->key, y, 1, k);
        turn_heads(m, c->length, 1, m->shape.n_kv_head, k);
        project(w->value, y, 1, v);
        cache_append(c, l, k, v, 1);
        project(w->query, y, 1, q);
        turn_heads(m, c->length, 1, m->shape.n_head, q);
        cache_attention(c, l, q, 1, o);
        project(w->output, o, 1, y);
        add(x, y, d);
        norm(w->mlp_norm, x, 1, y);
        mlp(m, l, y, 1, y);
        add(x, y, d);
    }
    unembed(m, x, 1, logits);
    return cache_advance(c, 1);
}

static int feedable(const cache *c, const int *tokens, int n)
{
    if (n < 1 || n > c->capacity - c->length)
        return 0;
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] > c->m->shape.n_vocab - 1)
            return 0;
    return 1;
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    if (!feedable(c, tokens, n))
        return -1;
    for (int i = 0; i < n; i++)
        if (feed(c, tokens[i], logits + (size_t)i * c->m->shape.n_vocab))
            return -1;
    return 0;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    if (chunk < 1 || !feedable(c, tokens, n))
        return -1;
    for (int i = 0; i < n; i++)
        if (feed(c, tokens[i], i == n - 1 ? logits : rows))
            return -1;
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;
    int new = n - s->c->length;

    return new < 1 ? -1 : cache_prefill(s->c, tokens + n - new, new, s->chunk, s->rows, logits);
}
