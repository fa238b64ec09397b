/* The check of lab 3, the KV cache. What is right comes from a formula (3a), from plain loops (3b) and from the given
   model run in full on the same tokens (3c to 3e); the counts from their closed forms. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "check.h"
#include "counts.h"
#include "loop.h"
#include "positions.h"
#include "subjects.h"

static int width_of(const model *m)
{
    return m->shape.n_kv_head * m->shape.d_head;
}

/* A cache that must come to be: without it the step can't go on. */
static bool open_cache(trace *t, cache *c, const model *m, int capacity)
{
    int status = cache_init(c, m, capacity);

    trace_int(t, status, "what cache_init returns");
    return status == 0;
}

/* ---- keys, values and queries that a formula makes ---- */

enum { KEYS = 1, VALUES = 2, QUERIES = 3 };

/* In (-1, 1), different for each argument: the fractional part of a multiple of the golden ratio. */
static double made(int what, int layer, int position, int column)
{
    double x = 0.6180339887498949 * (column + 131 * (position + 67 * (layer + 29 * what)));

    return 2 * (x - floor(x)) - 1;
}

static void make_rows(int what, int layer, int start, int n, int columns, real *rows)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < columns; j++)
            rows[(size_t)i * columns + j] = made(what, layer, start + i, j);
}

/* Appends n made rows to every layer, as the tokens start … start+n-1. Returns the last status. */
static int append_made(cache *c, int start, int n)
{
    int columns = width_of(c->m), status = 0;
    real *k = new_reals((size_t)n * columns), *v = new_reals((size_t)n * columns);

    for (int l = 0; l < c->m->shape.n_layer; l++) {
        make_rows(KEYS, l, start, n, columns, k);
        make_rows(VALUES, l, start, n, columns, v);
        status = cache_append(c, l, k, v, n);
    }
    free(k);
    free(v);
    return status;
}

/* ---- 3a: the store ---- */

static const int subjects_3a[] = {0, 2, 4, 5};

enum { N_3A = sizeof subjects_3a / sizeof *subjects_3a };

/* What the cache holds in the first layers at positions 0 … n-1, read through cache_key and cache_value. */
static void trace_store(trace *t, const cache *c, int layers, int n)
{
    const model_shape *s = &c->m->shape;
    int columns = width_of(c->m);
    real *rows[2] = {new_reals((size_t)layers * n * columns), new_reals((size_t)layers * n * columns)};

    for (int l = 0; l < layers; l++)
        for (int p = 0; p < n; p++)
            for (int h = 0; h < s->n_kv_head; h++) {
                size_t at = ((size_t)l * n + p) * columns + h * s->d_head;
                memcpy(rows[0] + at, cache_key(c, l, h, p), s->d_head * sizeof(real));
                memcpy(rows[1] + at, cache_value(c, l, h, p), s->d_head * sizeof(real));
            }
    for (int i = 0; i < 2; i++) {
        trace_reals(t, rows[i], AXES({"layer", 0, layers}, {"position", 0, n}, {"column", 0, columns}),
                    i ? "cached values" : "cached keys");
        free(rows[i]);
    }
}

/* The same from the formula; `made_as` [n] says as which token each position was made. */
static void expect_store(trace *t, const model *m, const int *made_as, int n)
{
    int columns = width_of(m), layers = m->shape.n_layer;
    real *rows = new_reals((size_t)layers * n * columns);

    for (int what = KEYS; what <= VALUES; what++) {
        for (int l = 0; l < layers; l++)
            for (int p = 0; p < n; p++)
                make_rows(what, l, made_as[p], 1, columns, rows + ((size_t)l * n + p) * columns);
        trace_reals(t, rows, AXES({"layer", 0, layers}, {"position", 0, n}, {"column", 0, columns}),
                    what == VALUES ? "cached values" : "cached keys");
    }
    free(rows);
}

/* What a script does to a cache of 8 tokens, and what must come of it. Appending doesn't advance. */
static const struct {
    const char *name;
    enum { APPEND, ADVANCE, TRUNCATE, RESET } what;
    int start, n; /* tokens start … start+n-1 */
    int status, length;
    int n_held, held[8]; /* as which tokens the positions were made, those appended but not advanced included */
} store[] = {
    {"append 3", APPEND, 0, 3, 0, 0, 3, {0, 1, 2}},
    {"advance 3", ADVANCE, 0, 3, 0, 3, 3, {0, 1, 2}},
    {"append 1", APPEND, 3, 1, 0, 3, 4, {0, 1, 2, 3}},
    {"advance 1", ADVANCE, 0, 1, 0, 4, 4, {0, 1, 2, 3}},
    {"append 6 where 4 fit", APPEND, 40, 6, -1, 4, 4, {0, 1, 2, 3}},
    {"append 5 where 4 fit", APPEND, 40, 5, -1, 4, 4, {0, 1, 2, 3}},
    {"advance 5 where 4 fit", ADVANCE, 0, 5, -1, 4, 4, {0, 1, 2, 3}},
    {"append 4 where 4 fit", APPEND, 4, 4, 0, 4, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"append 5 in their place", APPEND, 40, 5, -1, 4, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"advance 4 where 4 fit", ADVANCE, 0, 4, 0, 8, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"append 1 to a full cache", APPEND, 40, 1, -1, 8, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"advance 1 on a full cache", ADVANCE, 0, 1, -1, 8, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"truncate to 9 of 8", TRUNCATE, 0, 9, -1, 8, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"truncate to -1", TRUNCATE, 0, -1, -1, 8, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"truncate to 8 of 8", TRUNCATE, 0, 8, 0, 8, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"truncate to 5", TRUNCATE, 0, 5, 0, 5, 5, {0, 1, 2, 3, 4}},
    {"truncate to 6 of 5", TRUNCATE, 0, 6, -1, 5, 5, {0, 1, 2, 3, 4}},
    {"append 2 after truncating", APPEND, 20, 2, 0, 5, 7, {0, 1, 2, 3, 4, 20, 21}},
    {"advance 2 after truncating", ADVANCE, 0, 2, 0, 7, 7, {0, 1, 2, 3, 4, 20, 21}},
    {"truncate to 0", TRUNCATE, 0, 0, 0, 0, 0, {0}},
    {"append 2 after truncating to 0", APPEND, 25, 2, 0, 0, 2, {25, 26}},
    {"advance 2 after truncating to 0", ADVANCE, 0, 2, 0, 2, 2, {25, 26}},
    {"reset", RESET, 0, 0, 0, 0, 0, {0}},
    {"append 8 after a reset", APPEND, 30, 8, 0, 0, 8, {30, 31, 32, 33, 34, 35, 36, 37}},
    {"advance 8 after a reset", ADVANCE, 0, 8, 0, 8, 8, {30, 31, 32, 33, 34, 35, 36, 37}},
    {"reset a full cache", RESET, 0, 0, 0, 0, 0, {0}},
    {"append 9 where 8 fit", APPEND, 40, 9, -1, 0, 0, {0}},
};

enum { N_STORE = sizeof store / sizeof *store };

static int do_to_store(cache *c, int i)
{
    switch (store[i].what) {
    case APPEND: return append_made(c, store[i].start, store[i].n);
    case ADVANCE: return cache_advance(c, store[i].n);
    case TRUNCATE: return cache_truncate(c, store[i].n);
    case RESET: cache_reset(c);
    }
    return 0;
}

static void trace_empty(trace *t, const cache *c)
{
    trace_int(t, c->length, "length");
    trace_int(t, c->capacity, "capacity");
    trace_int(t, !c->keys && !c->values && !c->scratch, "all pointers are NULL");
}

static void expect_empty(trace *t)
{
    trace_int(t, 0, "length");
    trace_int(t, 0, "capacity");
    trace_int(t, 1, "all pointers are NULL");
}

static void run_store(trace *t, const subject *s)
{
    cache c, other;

    trace_case(t, "%s, two new caches", s->name);
    if (!open_cache(t, &c, s->m, 8) || !open_cache(t, &other, s->m, 4))
        return;
    trace_int(t, c.length, "length");
    trace_int(t, c.capacity, "capacity");
    append_made(&other, 50, 3);
    cache_advance(&other, 3);
    for (int i = 0; i < N_STORE; i++) {
        trace_case(t, "%s, %s", s->name, store[i].name);
        trace_int(t, do_to_store(&c, i), "what it returns");
        trace_int(t, c.length, "length");
        trace_store(t, &c, s->m->shape.n_layer, store[i].n_held);
    }
    trace_case(t, "%s, the other cache meanwhile", s->name);
    trace_int(t, other.length, "length");
    trace_store(t, &other, s->m->shape.n_layer, 3);
    trace_case(t, "%s, after cache_free", s->name);
    cache_free(&c);
    cache_free(&other);
    trace_empty(t, &other);
}

static void expect_store_of(trace *t, const subject *s)
{
    trace_case(t, "%s, two new caches", s->name);
    trace_int(t, 0, "what cache_init returns");
    trace_int(t, 0, "what cache_init returns");
    trace_int(t, 0, "length");
    trace_int(t, 8, "capacity");
    for (int i = 0; i < N_STORE; i++) {
        trace_case(t, "%s, %s", s->name, store[i].name);
        trace_int(t, store[i].status, "what it returns");
        trace_int(t, store[i].length, "length");
        expect_store(t, s->m, store[i].held, store[i].n_held);
    }
    trace_case(t, "%s, the other cache meanwhile", s->name);
    trace_int(t, 3, "length");
    expect_store(t, s->m, (int[]){50, 51, 52}, 3);
    trace_case(t, "%s, after cache_free", s->name);
    expect_empty(t);
}

static const int capacities[] = {0, -1, TEST_TOKENS + 1, 1, TEST_TOKENS};

static void run_3a(trace *t)
{
    cache c;

    for (int i = 0; i < N_3A; i++)
        run_store(t, get_subject(subjects_3a[i]));
    for (int i = 0; i < 5; i++) {
        trace_case(t, "capacity %d where the context is %d", capacities[i], TEST_TOKENS);
        int status = cache_init(&c, get_subject(4)->m, capacities[i]);
        trace_int(t, status, "what cache_init returns");
        if (status)
            trace_empty(t, &c);
        cache_free(&c);
        trace_case(t, "capacity %d, after cache_free", capacities[i]);
        trace_empty(t, &c);
        cache_free(&c);
        trace_case(t, "capacity %d, after a second cache_free", capacities[i]);
        trace_empty(t, &c);
    }
}

static void expect_3a(trace *t)
{
    for (int i = 0; i < N_3A; i++)
        expect_store_of(t, get_subject(subjects_3a[i]));
    for (int i = 0; i < 5; i++) {
        trace_case(t, "capacity %d where the context is %d", capacities[i], TEST_TOKENS);
        trace_int(t, i < 3 ? -1 : 0, "what cache_init returns");
        if (i < 3)
            expect_empty(t);
        trace_case(t, "capacity %d, after cache_free", capacities[i]);
        expect_empty(t);
        trace_case(t, "capacity %d, after a second cache_free", capacities[i]);
        expect_empty(t);
    }
}

/* ---- 3b: one layer's attention ---- */

static const int subjects_3b[] = {4, 5, 6, 7, 2};

static const struct {
    int held, n;
} chunks_3b[] = {{0, 1}, {0, 4}, {5, 1}, {5, 3}, {1, 2}, {30, 1}};

enum { N_3B = 5, N_CHUNKS_3B = 6, CAPACITY = 40 };

static void run_attention(trace *t, const subject *s, int layer, int held, int n)
{
    int d = s->m->shape.d_model;
    real *q = new_reals((size_t)n * d), *copy = new_reals((size_t)n * d), *out = new_reals((size_t)n * d);
    cache c;

    if (!open_cache(t, &c, s->m, CAPACITY))
        return;
    append_made(&c, 0, held);
    cache_advance(&c, held);
    append_made(&c, held, n);
    make_rows(QUERIES, layer, held, n, d, q);
    for (int i = 0; i < n * d; i++)
        q[i] *= 4; /* so that the weights differ enough to tell one key from another */
    memcpy(copy, q, (size_t)n * d * sizeof *q);
    counts_reset();
    cache_attention(&c, layer, q, n, out);
    trace_reals(t, out, AXES({"row", 0, n}, {"column", 0, d}), "out");
    trace_int(t, memcmp(q, copy, (size_t)n * d * sizeof *q) == 0, "the queries are unchanged");
    trace_int(t, c.length, "length");
    long long scores[s->m->shape.n_head];
    for (int h = 0; h < s->m->shape.n_head; h++)
        scores[h] = counts_scores(layer, h);
    trace_counts(t, scores, AXES({"head", 0, s->m->shape.n_head}), "attention scores");
    cache_free(&c);
    free(q);
    free(copy);
    free(out);
}

/* One row and head by plain loops: softmax(q · k / √d_head) times v, over positions 0 … last. */
static void attend_plainly(const model_shape *s, int layer, int h, int last, real *out)
{
    int kv = h / (s->n_head / s->n_kv_head) * s->d_head;
    double weights[TEST_TOKENS], sum = 0, mixed[s->d_head];

    memset(mixed, 0, sizeof mixed);
    for (int j = 0; j <= last; j++) {
        double dot = 0;
        for (int i = 0; i < s->d_head; i++)
            dot += (real)(4 * (real)made(QUERIES, layer, last, h * s->d_head + i)) * (real)made(KEYS, layer, j, kv + i);
        sum += weights[j] = exp(dot / sqrt(s->d_head));
    }
    for (int j = 0; j <= last; j++)
        for (int i = 0; i < s->d_head; i++)
            mixed[i] += weights[j] / sum * (real)made(VALUES, layer, j, kv + i);
    for (int i = 0; i < s->d_head; i++)
        out[i] = mixed[i];
}

static void expect_attention(trace *t, const subject *s, int layer, int held, int n)
{
    const model_shape *shape = &s->m->shape;
    real *out = new_reals((size_t)n * shape->d_model);
    long long scores[shape->n_head];

    for (int i = 0; i < n; i++)
        for (int h = 0; h < shape->n_head; h++)
            attend_plainly(shape, layer, h, held + i, out + (size_t)i * shape->d_model + h * shape->d_head);
    for (int h = 0; h < shape->n_head; h++)
        scores[h] = causal_pairs(held, n);
    trace_int(t, 0, "what cache_init returns");
    trace_reals(t, out, AXES({"row", 0, n}, {"column", 0, shape->d_model}), "out");
    trace_int(t, 1, "the queries are unchanged");
    trace_int(t, held, "length");
    trace_counts(t, scores, AXES({"head", 0, shape->n_head}), "attention scores");
    free(out);
}

static void each_attention(trace *t, void (*visit)(trace *, const subject *, int, int, int))
{
    for (int i = 0; i < N_3B; i++)
        for (int k = 0; k < N_CHUNKS_3B; k++) {
            const subject *s = get_subject(subjects_3b[i]);
            int layer = k % s->m->shape.n_layer, held = chunks_3b[k].held, n = chunks_3b[k].n;
            trace_case(t, "%s, layer %d, %d in the cache, %d new", s->name, layer, held, n);
            visit(t, s, layer, held, n);
        }
}

static void run_3b(trace *t)
{
    each_attention(t, run_attention);
}

static void expect_3b(trace *t)
{
    each_attention(t, expect_attention);
}

/* ---- 3c: the forward pass, teacher-forced ---- */

enum { FORCED = 32 };

/* How FORCED tokens are fed: a first chunk, then chunks of `then`. */
static const struct {
    const char *name;
    int first, then;
} splits[] = {
    {"8 tokens, then one at a time", 8, 1},
    {"one token at a time", 1, 1},
    {"chunks of 3", 3, 3},
    {"5 tokens, then chunks of 9", 5, 9},
    {"all at once", FORCED, 1},
};

enum { N_SPLITS = sizeof splits / sizeof *splits };

static void run_split(trace *t, const subject *s, int first, int then, int n, int capacity)
{
    int n_vocab = s->m->shape.n_vocab, status = 0;
    real *logits = new_reals((size_t)n * n_vocab);
    cache c;

    if (!open_cache(t, &c, s->m, capacity))
        return;
    counts_reset();
    for (int at = 0, now = first; at < n; at += now, now = n - at < then ? n - at : then)
        status |= cache_forward(&c, s->tokens + at, now, logits + (size_t)at * n_vocab);
    trace_int(t, status, "what cache_forward returns");
    trace_int(t, c.length, "length");
    trace_logits(t, logits, AXES({"position", 0, n}, {"token", 0, n_vocab}), "logits");
    trace_used(t, s->m);
    cache_free(&c);
    free(logits);
}

static void expect_split(trace *t, const subject *s, int first, int then, int n, int capacity)
{
    int n_vocab = s->m->shape.n_vocab;
    real *logits = new_reals((size_t)n * n_vocab);

    trace_int(t, 0, "what cache_init returns");
    trace_int(t, model_forward(s->m, s->tokens, n, logits), "what cache_forward returns");
    trace_int(t, n, "length");
    trace_logits(t, logits, AXES({"position", 0, n}, {"token", 0, n_vocab}), "logits");
    expect_used(t, s->m, n, causal_pairs(0, n));
    free(logits);
}

static void each_split(trace *t, void (*visit)(trace *, const subject *, int, int, int, int))
{
    for (int i = 0; i < N_SUBJECTS; i++)
        for (int k = 0; k < N_SPLITS; k++) {
            trace_case(t, "%s, %s", get_subject(i)->name, splits[k].name);
            visit(t, get_subject(i), splits[k].first, splits[k].then, FORCED, CAPACITY);
        }
    trace_case(t, "%s, until the context is full", get_subject(7)->name);
    visit(t, get_subject(7), 20, 11, TEST_TOKENS, TEST_TOKENS);
    trace_case(t, "%s, as many at once as the cache holds", get_subject(4)->name);
    visit(t, get_subject(4), 24, 1, 24, 24);
}

/* What 9 tokens, fed as 6 and 3, leave in the cache. Of the first layer alone: what stands in the others is seen in the
   logits, but keys and queries that are all turned some places too far can't be told from right ones there. */
static void run_left(trace *t, const subject *s)
{
    real *logits = new_reals((size_t)6 * s->m->shape.n_vocab);
    cache c;

    trace_case(t, "%s, what 9 tokens leave in the cache", s->name);
    if (!open_cache(t, &c, s->m, CAPACITY))
        return;
    cache_forward(&c, s->tokens, 6, logits);
    cache_forward(&c, s->tokens + 6, 3, logits);
    trace_store(t, &c, 1, 9);
    cache_free(&c);
    free(logits);
}

static void expect_left(trace *t, const subject *s)
{
    const layer *first = &s->m->layers[0];
    real *x = new_reals((size_t)9 * s->m->shape.d_model), *rows = new_reals((size_t)9 * width_of(s->m));

    trace_case(t, "%s, what 9 tokens leave in the cache", s->name);
    trace_int(t, 0, "what cache_init returns");
    embed(s->m, s->tokens, 9, x);
    add_positions(s->m, 0, 9, x);
    norm(first->attention_norm, x, 9, x);
    project(first->key, x, 9, rows);
    turn_heads(s->m, 0, 9, s->m->shape.n_kv_head, rows);
    trace_reals(t, rows, AXES({"layer", 0, 1}, {"position", 0, 9}, {"column", 0, width_of(s->m)}), "cached keys");
    project(first->value, x, 9, rows);
    trace_reals(t, rows, AXES({"layer", 0, 1}, {"position", 0, 9}, {"column", 0, width_of(s->m)}), "cached values");
    free(x);
    free(rows);
}

/* What a cached pass must refuse: a bad chunk after three good tokens. Nothing may change, and no work be done. */
static const struct {
    const char *name;
    int n, bad_at, bad_id; /* tokens, and which of them isn't an id */
} refusals[] = {
    {"no tokens", 0, -1, 0},
    {"minus one tokens", -1, -1, 0},
    {"6 tokens where 5 fit", 6, -1, 0},
    {"an id one past the vocabulary", 3, 2, 41},
    {"a negative id", 3, 1, -1},
};

enum { N_REFUSALS = sizeof refusals / sizeof *refusals };

static void bad_tokens(int i, const subject *s, int *tokens)
{
    memcpy(tokens, s->tokens + 3, 6 * sizeof *tokens);
    if (refusals[i].bad_at >= 0)
        tokens[refusals[i].bad_at] = refusals[i].bad_id;
}

static void run_refusals(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab, tokens[6];
    real *logits = new_reals((size_t)8 * n_vocab);
    cache c;

    trace_case(t, "%s, what is refused", s->name);
    if (!open_cache(t, &c, s->m, 8))
        return;
    cache_forward(&c, s->tokens, 3, logits);
    for (int i = 0; i < N_REFUSALS; i++) {
        trace_case(t, "%s", refusals[i].name);
        bad_tokens(i, s, tokens);
        counts_reset();
        trace_int(t, cache_forward(&c, tokens, refusals[i].n, logits), "what cache_forward returns");
        trace_int(t, c.length, "length");
        trace_used(t, s->m);
    }
    trace_case(t, "5 tokens where 5 fit, after the refusals");
    trace_int(t, cache_forward(&c, s->tokens + 3, 5, logits), "what cache_forward returns");
    trace_logits(t, logits, AXES({"position", 3, 5}, {"token", 0, n_vocab}), "logits");
    cache_free(&c);
    free(logits);
}

static void expect_refusals(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab;
    real *logits = new_reals((size_t)8 * n_vocab);

    trace_case(t, "%s, what is refused", s->name);
    trace_int(t, 0, "what cache_init returns");
    for (int i = 0; i < N_REFUSALS; i++) {
        trace_case(t, "%s", refusals[i].name);
        trace_int(t, -1, "what cache_forward returns");
        trace_int(t, 3, "length");
        expect_used(t, s->m, 0, 0);
    }
    trace_case(t, "5 tokens where 5 fit, after the refusals");
    trace_int(t, model_forward(s->m, s->tokens, 8, logits), "what cache_forward returns");
    trace_logits(t, logits + (size_t)3 * n_vocab, AXES({"position", 3, 5}, {"token", 0, n_vocab}), "logits");
    free(logits);
}

static void run_3c(trace *t)
{
    each_split(t, run_split);
    run_left(t, get_subject(4));
    run_refusals(t, get_subject(4));
}

static void expect_3c(trace *t)
{
    each_split(t, expect_split);
    expect_left(t, get_subject(4));
    expect_refusals(t, get_subject(4));
}

/* ---- 3d: prompts in chunks, one after another ---- */

static const int subjects_3d[] = {0, 1, 2, 4}, chunk_sizes[] = {1, 3, 5, 8, 13, 20};

enum { N_3D = 4, N_CHUNK_SIZES = 6, LONG = 13 };

/* What happens to a cache: it is emptied or cut, then gets tokens from..from+n-1, in chunks. */
static const struct {
    const char *name;
    int keep, from, n; /* keep: truncate to this many first; -1 resets, -2 leaves it as it is */
} prompts[] = {
    {"a first prompt", -2, 0, LONG},
    {"the same cache goes on", -2, LONG, 7},
    {"a second prompt after a reset", -1, 30, LONG},
    {"truncated to 5, then other tokens", 5, 50, 9},
    {"truncated to 0, then other tokens", 0, 10, 6},
    {"a one-token prompt after a reset", -1, 40, 1},
    {"the first prompt again after a reset", -1, 0, LONG},
};

enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

static void run_prompts(trace *t, const subject *s, int chunk)
{
    int n_vocab = s->m->shape.n_vocab;
    real *rows = new_reals((size_t)chunk * n_vocab), *logits = new_reals(n_vocab);
    cache c;

    trace_case(t, "%s, chunks of %d", s->name, chunk);
    if (!open_cache(t, &c, s->m, CAPACITY))
        return;
    for (int i = 0; i < N_PROMPTS; i++) {
        trace_case(t, "%s, chunks of %d, %s", s->name, chunk, prompts[i].name);
        if (prompts[i].keep == -1)
            cache_reset(&c);
        else if (prompts[i].keep >= 0)
            cache_truncate(&c, prompts[i].keep);
        counts_reset();
        trace_int(t, cache_prefill(&c, s->tokens + prompts[i].from, prompts[i].n, chunk, rows, logits),
                  "what cache_prefill returns");
        trace_int(t, c.length, "length");
        trace_logits(t, logits, AXES({"row", 0, 1}, {"token", 0, n_vocab}), "the last token's logits");
        trace_used(t, s->m);
    }
    cache_free(&c);
    free(rows);
    free(logits);
}

static void expect_prompts(trace *t, const subject *s, int chunk)
{
    int n_vocab = s->m->shape.n_vocab, tokens[CAPACITY], held = 0;
    real *all = new_reals((size_t)CAPACITY * n_vocab);

    trace_case(t, "%s, chunks of %d", s->name, chunk);
    trace_int(t, 0, "what cache_init returns");
    for (int i = 0; i < N_PROMPTS; i++) {
        trace_case(t, "%s, chunks of %d, %s", s->name, chunk, prompts[i].name);
        int before = prompts[i].keep == -1 ? 0 : prompts[i].keep >= 0 ? prompts[i].keep : held;
        held = before + prompts[i].n;
        memcpy(tokens + before, s->tokens + prompts[i].from, prompts[i].n * sizeof *tokens);
        trace_int(t, model_forward(s->m, tokens, held, all), "what cache_prefill returns");
        trace_int(t, held, "length");
        trace_logits(t, all + (size_t)(held - 1) * n_vocab, AXES({"row", 0, 1}, {"token", 0, n_vocab}),
                     "the last token's logits");
        expect_used(t, s->m, prompts[i].n, causal_pairs(before, prompts[i].n));
    }
    free(all);
}

/* Two caches that are fed in turn: the first with the tokens in order, the second, which they fill, with those from 20
   on. */
static void run_two(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab;
    real *rows = new_reals((size_t)4 * n_vocab), *logits = new_reals(n_vocab);
    cache both[2];

    trace_case(t, "%s, two caches in turn", s->name);
    if (!open_cache(t, &both[0], s->m, CAPACITY) || !open_cache(t, &both[1], s->m, 6))
        return;
    for (int i = 0; i < 6; i++) {
        trace_case(t, "%s, two caches in turn, cache %d, tokens %d and %d", s->name, i % 2, i / 2 * 2, i / 2 * 2 + 1);
        cache_prefill(&both[i % 2], s->tokens + 20 * (i % 2) + i / 2 * 2, 2, 4, rows, logits);
        trace_logits(t, logits, AXES({"row", 0, 1}, {"token", 0, n_vocab}), "the last token's logits");
    }
    cache_free(&both[0]);
    cache_free(&both[1]);
    free(rows);
    free(logits);
}

static void expect_two(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab;
    real *all = new_reals((size_t)6 * n_vocab);

    trace_case(t, "%s, two caches in turn", s->name);
    trace_int(t, 0, "what cache_init returns");
    trace_int(t, 0, "what cache_init returns");
    for (int i = 0; i < 6; i++) {
        int n = i / 2 * 2 + 2;
        trace_case(t, "%s, two caches in turn, cache %d, tokens %d and %d", s->name, i % 2, n - 2, n - 1);
        model_forward(s->m, s->tokens + 20 * (i % 2), n, all);
        trace_logits(t, all + (size_t)(n - 1) * n_vocab, AXES({"row", 0, 1}, {"token", 0, n_vocab}),
                     "the last token's logits");
    }
    free(all);
}

/* What a prefill must refuse, after three good tokens in a cache of 8, in chunks of 2: nothing of it may be fed. */
static const struct {
    const char *name;
    int n, chunk, bad_at, bad_id;
} bad_prefills[] = {
    {"a prompt of no tokens", 0, 2, -1, 0},
    {"a prompt of minus one tokens", -1, 2, -1, 0},
    {"a chunk of no tokens", 3, 0, -1, 0},
    {"a chunk of minus one tokens", 3, -1, -1, 0},
    {"a prompt of 6 tokens where 5 fit", 6, 2, -1, 0},
    {"an id one past the vocabulary in the last chunk", 5, 2, 4, 41},
    {"a negative id in the last chunk", 5, 2, 4, -1},
};

enum { N_BAD = sizeof bad_prefills / sizeof *bad_prefills };

static void run_bad_prefills(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab, tokens[6];
    real *rows = new_reals((size_t)3 * n_vocab), *logits = new_reals(n_vocab);
    cache c;

    trace_case(t, "%s, what cache_prefill refuses", s->name);
    if (!open_cache(t, &c, s->m, 8))
        return;
    cache_forward(&c, s->tokens, 3, rows);
    for (int i = 0; i < N_BAD; i++) {
        trace_case(t, "%s", bad_prefills[i].name);
        cache_truncate(&c, 3);
        memcpy(tokens, s->tokens, sizeof tokens);
        if (bad_prefills[i].bad_at >= 0)
            tokens[bad_prefills[i].bad_at] = bad_prefills[i].bad_id;
        counts_reset();
        trace_int(t, cache_prefill(&c, tokens, bad_prefills[i].n, bad_prefills[i].chunk, rows, logits),
                  "what cache_prefill returns");
        trace_int(t, c.length, "length");
        trace_used(t, s->m);
    }
    cache_free(&c);
    free(rows);
    free(logits);
}

static void expect_bad_prefills(trace *t, const subject *s)
{
    trace_case(t, "%s, what cache_prefill refuses", s->name);
    trace_int(t, 0, "what cache_init returns");
    for (int i = 0; i < N_BAD; i++) {
        trace_case(t, "%s", bad_prefills[i].name);
        trace_int(t, -1, "what cache_prefill returns");
        trace_int(t, 3, "length");
        expect_used(t, s->m, 0, 0);
    }
}

static void each_prefill(trace *t, void (*prompt)(trace *, const subject *, int), void (*two)(trace *, const subject *),
                         void (*bad)(trace *, const subject *))
{
    for (int i = 0; i < N_3D; i++) {
        const subject *s = get_subject(subjects_3d[i]);
        for (int k = 0; k < N_CHUNK_SIZES; k++)
            prompt(t, s, chunk_sizes[k]);
        two(t, s);
    }
    bad(t, get_subject(4));
}

static void run_3d(trace *t)
{
    each_prefill(t, run_prompts, run_two, run_bad_prefills);
}

static void expect_3d(trace *t)
{
    each_prefill(t, expect_prompts, expect_two, expect_bad_prefills);
}

/* ---- 3e: the decoding loop on it ---- */

static const int subjects_3e[] = {0, 1, 2, 3, 4};

/* A prompt, then steps that add `each` tokens. The last but one fills the cache. */
typedef struct {
    int n_prompt, n_calls, each;
} decode;

static const decode decodes[] = {{8, 24, 1}, {1, 12, 1}, {20, 21, 1}, {5, 5, 6}};

enum { N_3E = 5, N_DECODES = 4, CHUNK = 4 };

/* Teacher-forced: next_cached is asked after 8, 9, … tokens, whatever it would have chosen. */
static void run_forced(trace *t, const subject *s, decode d)
{
    int n_vocab = s->m->shape.n_vocab, status = 0;
    real *logits = new_reals((size_t)d.n_calls * n_vocab);
    cache c;
    cached state = {&c, CHUNK, new_reals((size_t)CHUNK * n_vocab)};

    if (!open_cache(t, &c, s->m, CAPACITY))
        return;
    counts_reset();
    for (int i = 0; i < d.n_calls; i++)
        status |= next_cached(&state, s->tokens, d.n_prompt + i * d.each, logits + (size_t)i * n_vocab);
    trace_int(t, status, "what next_cached returns");
    trace_int(t, c.length, "length");
    trace_logits(t, logits, AXES({"call", 0, d.n_calls}, {"token", 0, n_vocab}), "logits");
    trace_used(t, s->m);
    int held = c.length;
    trace_int(t, next_cached(&state, s->tokens, held, logits), "what next_cached returns where no token is new");
    trace_int(t, next_cached(&state, s->tokens, held - 1, logits), "what next_cached returns for fewer than it holds");
    trace_int(t, next_cached(&state, s->tokens, CAPACITY + 1, logits), "what next_cached returns for more than fit");
    trace_int(t, c.length, "length after the refusals");
    cache_free(&c);
    free(state.rows);
    free(logits);
}

static void expect_forced(trace *t, const subject *s, decode d)
{
    int n_vocab = s->m->shape.n_vocab, n = d.n_prompt + (d.n_calls - 1) * d.each;
    real *all = new_reals((size_t)n * n_vocab), *logits = new_reals((size_t)d.n_calls * n_vocab);

    trace_int(t, 0, "what cache_init returns");
    trace_int(t, model_forward(s->m, s->tokens, n, all), "what next_cached returns");
    trace_int(t, n, "length");
    for (int i = 0; i < d.n_calls; i++)
        memcpy(logits + (size_t)i * n_vocab, all + (size_t)(d.n_prompt - 1 + i * d.each) * n_vocab, n_vocab * sizeof *all);
    trace_logits(t, logits, AXES({"call", 0, d.n_calls}, {"token", 0, n_vocab}), "logits");
    expect_used(t, s->m, n, causal_pairs(0, n));
    trace_int(t, -1, "what next_cached returns where no token is new");
    trace_int(t, -1, "what next_cached returns for fewer than it holds");
    trace_int(t, -1, "what next_cached returns for more than fit");
    trace_int(t, n, "length after the refusals");
    free(all);
    free(logits);
}

/* In the loop of lab 1: two texts, the second after a reset. The ids are compared in double alone: in float two nearly
   equal logits may be in either order. */
static void trace_text_of(trace *t, stop_reason reason, const int *tokens, int n)
{
    trace_int(t, reason, "stop reason");
    if (sizeof(real) == sizeof(double))
        trace_ints(t, tokens, AXES({"place", 0, n}), "tokens");
}

static void run_texts(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab, tokens[CAPACITY];
    real *logits = new_reals(n_vocab);
    cache c;
    cached state = {&c, CHUNK, new_reals((size_t)CHUNK * n_vocab)};
    loop g = {.next = next_cached, .next_state = &state, .logits = logits, .n_vocab = n_vocab, .n_ctx = CAPACITY,
              .end_of_text = -1, .max_new_tokens = 24};
    failure f;

    trace_case(t, "%s, texts", s->name);
    if (!open_cache(t, &c, s->m, CAPACITY))
        return;
    for (int i = 0; i < 2; i++) {
        int n = 8;
        trace_case(t, "%s, text %d", s->name, i);
        memcpy(tokens, s->tokens + 8 * i, 8 * sizeof *tokens);
        cache_reset(&c);
        counts_reset();
        stop_reason reason = generate(&g, tokens, &n, &f);
        trace_text_of(t, reason, tokens, n);
        trace_used(t, s->m);
    }
    cache_free(&c);
    free(state.rows);
    free(logits);
}

static void expect_texts(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab, tokens[CAPACITY];
    real *logits = new_reals(n_vocab);
    uncached u = {s->m, new_reals((size_t)CAPACITY * n_vocab)};
    loop g = {.next = next_uncached, .next_state = &u, .logits = logits, .n_vocab = n_vocab, .n_ctx = CAPACITY,
              .end_of_text = -1, .max_new_tokens = 24};
    failure f;

    trace_case(t, "%s, texts", s->name);
    trace_int(t, 0, "what cache_init returns");
    for (int i = 0; i < 2; i++) {
        int n = 8;
        trace_case(t, "%s, text %d", s->name, i);
        memcpy(tokens, s->tokens + 8 * i, 8 * sizeof *tokens);
        stop_reason reason = generate(&g, tokens, &n, &f);
        trace_text_of(t, reason, tokens, n);
        expect_used(t, s->m, 31, causal_pairs(0, 31));
    }
    free(u.rows);
    free(logits);
}

static void each_decode(trace *t, void (*forced)(trace *, const subject *, decode),
                        void (*texts)(trace *, const subject *))
{
    for (int i = 0; i < N_3E; i++) {
        const subject *s = get_subject(subjects_3e[i]);
        for (int k = 0; k < N_DECODES; k++) {
            trace_case(t, "%s, a prompt of %d, then %d a call", s->name, decodes[k].n_prompt, decodes[k].each);
            forced(t, s, decodes[k]);
        }
    }
    texts(t, get_subject(0));
    texts(t, get_subject(2));
}

static void run_3e(trace *t)
{
    each_decode(t, run_forced, run_texts);
}

static void expect_3e(trace *t)
{
    each_decode(t, expect_forced, expect_texts);
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "3a", .points = 5, .title = "the store: init, append, advance, reset, truncate, free", .needs = "", .run = run_3a,
         .expect = expect_3a},
        {.id = "3b", .points = 6, .title = "one layer's attention over the cache", .needs = "3a", .run = run_3b, .expect = expect_3b},
        {.id = "3c", .points = 8, .title = "the cached forward pass of a whole model", .needs = "3a 3b",
         .float_note = " (the book measured 7.15e-07)", .run = run_3c, .expect = expect_3c},
        {.id = "3d", .points = 4, .title = "prompts in chunks, resets, cuts, two caches", .needs = "3a 3b 3c", .run = run_3d,
         .expect = expect_3d},
        {.id = "3e", .points = 4, .title = "the decoding loop: one token a step, none twice", .needs = "3a 3b 3c 3d", .run = run_3e,
         .expect = expect_3e},
    };
    static const lab lab3 = {"lab3", "the KV cache", steps, sizeof steps / sizeof *steps, false};

    return check_main(&lab3, argc, argv);
}
