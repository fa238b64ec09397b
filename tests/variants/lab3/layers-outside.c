/* Differs: a prompt goes through layer 0 as a whole, chunk by chunk, then through layer 1, and so on: the loop over the
   layers is outside, that over the chunks inside. Only the last row is unembedded. One pass serves forward as well. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

typedef struct {
    int d, d_kv, group;
} widths;

static widths widths_of(const model *m)
{
    const model_shape *s = &m->shape;

    return (widths){s->d_model, s->n_kv_head * s->d_head, s->n_head / s->n_kv_head};
}

/* keys and values [capacity][L][D_kv]. */
static size_t index_of(const cache *c, int layer, int position)
{
    return (size_t)widths_of(c->m).d_kv * ((size_t)position * c->m->shape.n_layer + layer);
}

int cache_init(cache *c, const model *m, int capacity)
{
    cache empty = {0}, new = {.m = m, .capacity = capacity};
    widths w = widths_of(m);

    *c = empty;
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    new.keys = malloc(index_of(&new, 0, capacity) * sizeof(real));
    new.values = malloc(index_of(&new, 0, capacity) * sizeof(real));
    new.scratch = malloc(((size_t)capacity * (4 * w.d + 2 * w.d_kv) + capacity) * sizeof(real));
    if (!new.keys || !new.values || !new.scratch) {
        cache_free(&new);
        return -1;
    }
    *c = new;
    return 0;
}

void cache_free(cache *c)
{
    static const cache empty;

    free(c->keys);
    free(c->values);
    free(c->scratch);
    *c = empty;
}

/* Rows of a layer from position `start` on. */
static void write_rows(cache *c, int layer, int start, const real *k, const real *v, int n)
{
    int d_kv = widths_of(c->m).d_kv;

    for (int i = 0; i < n; i++)
        for (int j = 0; j < d_kv; j++) {
            c->keys[index_of(c, layer, start + i) + j] = *k++;
            c->values[index_of(c, layer, start + i) + j] = *v++;
        }
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    if (c->length + n > c->capacity)
        return -1;
    write_rows(c, layer, c->length, k, v, n);
    return 0;
}

int cache_advance(cache *c, int n)
{
    int fits = c->length + n <= c->capacity;

    c->length += fits ? n : 0;
    return fits ? 0 : -1;
}

void cache_reset(cache *c)
{
    c->length = 0;
}

int cache_truncate(cache *c, int t)
{
    int possible = t >= 0 && t <= c->length;

    c->length = possible ? t : c->length;
    return possible ? 0 : -1;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    return c->keys + index_of(c, layer, position) + kv_head * c->m->shape.d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    return c->values + index_of(c, layer, position) + kv_head * c->m->shape.d_head;
}

/* As cache_attention, of rows that begin at position `start`. */
static void attend_from(const cache *c, int start, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    widths w = widths_of(c->m);
    int stride = w.d_kv * s->n_layer;

    for (int row = 0; row < n; row++)
        for (int h = 0; h < s->n_head; h++) {
            const real *k = cache_key(c, layer, h / w.group, 0), *v = cache_value(c, layer, h / w.group, 0);
            size_t at = (size_t)row * w.d + (size_t)h * s->d_head;
            attention_scores(layer, h, q + at, k, stride, start + row + 1, s->d_head, c->scratch);
            softmax(c->scratch, start + row + 1, c->scratch);
            mix(c->scratch, v, stride, start + row + 1, s->d_head, out + at);
        }
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    attend_from(c, c->length, layer, q, n, out);
}

/* A chunk x [n][D], which begins at position `start`, through one layer. */
static void through_layer(cache *c, int l, int start, real *x, int n)
{
    const model *m = c->m;
    const layer *at = &m->layers[l];
    widths w = widths_of(m);
    real *h = c->scratch + c->capacity + (size_t)c->capacity * w.d, *q = h + (size_t)n * w.d, *o = q + (size_t)n * w.d;
    real *k = o + (size_t)n * w.d, *v = k + (size_t)n * w.d_kv;

    norm(at->attention_norm, x, n, h);
    project(at->query, h, n, q);
    project(at->key, h, n, k);
    project(at->value, h, n, v);
    turn_heads(m, start, n, m->shape.n_head, q);
    turn_heads(m, start, n, m->shape.n_kv_head, k);
    write_rows(c, l, start, k, v, n);
    attend_from(c, start, l, q, n, o);
    project(at->output, o, n, h);
    add(x, h, n * w.d);
    norm(at->mlp_norm, x, n, h);
    mlp(m, l, h, n, h);
    add(x, h, n * w.d);
}

/* x [n][D]: the rows of n tokens that leave the last layer, or NULL if they are refused. */
static real *through_model(cache *c, const int *tokens, int n, int chunk)
{
    real *x = c->scratch + c->capacity;
    int d = c->m->shape.d_model;

    if (n < 1 || chunk < 1 || c->length + n > c->capacity)
        return NULL;
    if (embed(c->m, tokens, n, x) || add_positions(c->m, c->length, n, x))
        return NULL;
    for (int l = 0; l < c->m->shape.n_layer; l++)
        for (int at = 0; at < n; at += chunk)
            through_layer(c, l, c->length + at, x + (size_t)at * d, n - at < chunk ? n - at : chunk);
    c->length += n;
    return x;
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    real *x = through_model(c, tokens, n, n);

    if (!x)
        return -1;
    unembed(c->m, x, n, logits);
    return 0;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    real *x = through_model(c, tokens, n, chunk);

    if (!x)
        return -1;
    unembed(c->m, x + (size_t)(n - 1) * c->m->shape.d_model, 1, logits);
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;
    int held = s->c->length;

    return cache_prefill(s->c, tokens + held, n - held, s->chunk, s->rows, logits);
}
