/* Differs: attention in two passes, all scores of a head first, into a triangle, then softmax and mix; the outer loop
   is over the key/value heads. The prefill calls itself for what is left, and the step splits its chunks itself. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"

typedef struct {
    real *x, *y, *q, *o, *k, *v, *triangle; /* [capacity] rows each; triangle [capacity][capacity] */
} room;

/* How many reals the room takes; where they are, if `at` isn't NULL. */
static size_t lay_out(const model *m, int capacity, real *at, room *r)
{
    size_t d = (size_t)capacity * m->shape.d_model, kv = (size_t)capacity * m->shape.n_kv_head * m->shape.d_head;

    if (at)
        *r = (room){at, at + d, at + 2 * d, at + 3 * d, at + 4 * d, at + 4 * d + kv, at + 4 * d + 2 * kv};
    return 4 * d + 2 * kv + (size_t)capacity * capacity;
}

void cache_free(cache *c)
{
    free(c->keys);
    free(c->values);
    free(c->scratch);
    c->keys = c->values = c->scratch = NULL;
    c->length = 0;
    c->capacity = 0;
}

int cache_init(cache *c, const model *m, int capacity)
{
    c->keys = c->values = c->scratch = NULL;
    c->length = c->capacity = 0;
    c->m = m;
    if (capacity < 1 || capacity > m->shape.n_ctx)
        return -1;
    size_t numbers = (size_t)m->shape.n_layer * m->shape.n_kv_head * capacity * m->shape.d_head;
    if (!(c->keys = malloc(numbers * sizeof(real))) || !(c->values = malloc(numbers * sizeof(real))) ||
        !(c->scratch = malloc(lay_out(m, capacity, NULL, NULL) * sizeof(real)))) {
        cache_free(c);
        return -1;
    }
    c->capacity = capacity;
    return 0;
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    int d_head = c->m->shape.d_head, heads = c->m->shape.n_kv_head;

    return c->keys + ((size_t)position * c->m->shape.n_layer + layer) * heads * d_head + kv_head * d_head;
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    int d_head = c->m->shape.d_head, heads = c->m->shape.n_kv_head;

    return c->values + ((size_t)layer * c->capacity + position) * heads * d_head + kv_head * d_head;
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    int d_kv = c->m->shape.n_kv_head * c->m->shape.d_head, p = c->length;

    if (p + n > c->capacity)
        return -1;
    for (int i = 0; i < n; i++, p++) {
        memcpy(c->keys + (cache_key(c, layer, 0, p) - c->keys), k + (size_t)i * d_kv, d_kv * sizeof *k);
        memcpy(c->values + (cache_value(c, layer, 0, p) - c->values), v + (size_t)i * d_kv, d_kv * sizeof *v);
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
    if (t < 0)
        return -1;
    if (t > c->length)
        return -1;
    c->length = t;
    return 0;
}

static void attend(const cache *c, int layer, int kv, int h, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;
    int d_kv = s->n_kv_head * s->d_head, t = c->length;
    room r;

    lay_out(c->m, c->capacity, c->scratch, &r);
    for (int i = 0; i < n; i++)
        attention_scores(layer, h, q + (size_t)i * s->d_model, cache_key(c, layer, kv, 0), d_kv * s->n_layer, t + i + 1,
                         s->d_head, r.triangle + (size_t)i * c->capacity);
    for (int i = 0; i < n; i++)
        softmax(r.triangle + (size_t)i * c->capacity, t + i + 1, r.triangle + (size_t)i * c->capacity);
    for (int i = 0; i < n; i++)
        mix(r.triangle + (size_t)i * c->capacity, cache_value(c, layer, kv, 0), d_kv, t + i + 1, s->d_head,
            out + (size_t)i * s->d_model);
}

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    const model_shape *s = &c->m->shape;

    for (int kv = 0, h = 0; kv < s->n_kv_head; kv++)
        for (int member = 0; member < s->n_head / s->n_kv_head; member++, h++)
            attend(c, layer, kv, h, q + h * s->d_head, n, out + h * s->d_head);
}

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    const model *m = c->m;
    room r;

    if (n < 1 || c->length + n > c->capacity)
        return -1;
    lay_out(m, c->capacity, c->scratch, &r);
    if (embed(m, tokens, n, r.x) || add_positions(m, c->length, n, r.x))
        return -1;
    for (int l = 0; l < m->shape.n_layer; l++) {
        const layer *w = &m->layers[l];
        norm(w->attention_norm, r.x, n, r.y);
        project(w->query, r.y, n, r.q);
        project(w->key, r.y, n, r.k);
        project(w->value, r.y, n, r.v);
        turn_heads(m, c->length, n, m->shape.n_head, r.q);
        turn_heads(m, c->length, n, m->shape.n_kv_head, r.k);
        cache_append(c, l, r.k, r.v, n);
        cache_attention(c, l, r.q, n, r.o);
        project(w->output, r.o, n, r.y);
        add(r.x, r.y, n * m->shape.d_model);
        norm(w->mlp_norm, r.x, n, r.y);
        mlp(m, l, r.y, n, r.o);
        add(r.x, r.o, n * m->shape.d_model);
    }
    unembed(m, r.x, n, logits);
    return cache_advance(c, n);
}

static int bad_ids(const cache *c, const int *tokens, int n)
{
    int bad = 0;

    for (int i = 0; i < n; i++)
        bad += tokens[i] < 0 || tokens[i] >= c->m->shape.n_vocab;
    return bad;
}

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    if (n < 1 || chunk < 1 || c->length + n > c->capacity || bad_ids(c, tokens, n))
        return -1;
    if (n > chunk) {
        if (cache_forward(c, tokens, chunk, rows))
            return -1;
        return cache_prefill(c, tokens + chunk, n - chunk, chunk, rows, logits);
    }
    if (cache_forward(c, tokens, n, rows))
        return -1;
    memcpy(logits, rows + (size_t)(n - 1) * c->m->shape.n_vocab, c->m->shape.n_vocab * sizeof *logits);
    return 0;
}

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    cached *s = state;

    if (n <= s->c->length || n > s->c->capacity)
        return -1;
    while (s->c->length < n) {
        int now = n - s->c->length < s->chunk ? n - s->c->length : s->chunk;
        if (cache_forward(s->c, tokens + s->c->length, now, s->rows))
            return -1;
        memcpy(logits, s->rows + (size_t)(now - 1) * s->c->m->shape.n_vocab, s->c->m->shape.n_vocab * sizeof *logits);
    }
    return 0;
}
