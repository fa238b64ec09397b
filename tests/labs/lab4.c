/* The check of lab 4, position offsets. What is right comes from numbers worked out by hand, from the formulas in long
   double and, for turning, in polar form (4a to 4d), and from the given model run in full on the same tokens (4d). */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "check.h"
#include "positions.h"
#include "subjects.h"

/* The angle of pair i out of a width of d. */
static long double angle_of(int position, int i, int d, long double base)
{
    return position * expl(-2.0L * i / d * logl(base));
}

/* In (-1, 1), different for each argument: the fractional part of a multiple of the golden ratio. */
static double made(int row, int column)
{
    double x = 0.6180339887498949 * (column + 131 * (row + 7));

    return 2 * (x - floor(x)) - 1;
}

static void make_rows(int n, int columns, real *rows)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < columns; j++)
            rows[(size_t)i * columns + j] = made(i, j);
}

static real *copy_of(const real *a, size_t n)
{
    real *copy = new_reals(n);

    memcpy(copy, a, n * sizeof *a);
    return copy;
}

static bool same_bytes(const real *a, const real *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* ---- 4a: sinusoids ---- */

/* By hand: sin and cos of 0, 1, 2 and of those times 10000^(-2/4) = 0.01. */
static const real by_hand_4a[3][4] = {
    {0, 1, 0, 1},
    {(real)0.8414709848078965, (real)0.5403023058681398, (real)0.009999833334166664, (real)0.9999500004166653},
    {(real)0.9092974268256817, (real)-0.4161468365471424, (real)0.01999866669333308, (real)0.9998000066665778},
};

static const struct {
    int start, n, d;
} sinusoids[] = {
    {0, 1, 2},   {3, 1, 2},     {0, 5, 8},    {1, 1, 8},     {5, 1, 8},      {6, 1, 8},     {5, 3, 8},
    {5, 3, 6},   {12, 3, 6},    {50, 1, 64},  {51, 1, 64},   {250, 6, 64},   {0, 1, 64},    {1023, 2, 10},
    {4095, 1, 8}, {99999, 2, 16},
};

enum { N_SINUSOIDS = sizeof sinusoids / sizeof *sinusoids };

static void run_4a(trace *t)
{
    for (int i = -1; i < N_SINUSOIDS; i++) {
        int start = i < 0 ? 0 : sinusoids[i].start, n = i < 0 ? 3 : sinusoids[i].n, d = i < 0 ? 4 : sinusoids[i].d;
        real *out = new_reals((size_t)n * d);
        trace_case(t, "start %d, %d row%s, D %d", start, n, n == 1 ? "" : "s", d);
        sinusoidal(start, n, d, out);
        trace_reals(t, out, AXES({"position", start, n}, {"column", 0, d}), "out");
        free(out);
    }
}

static void expect_4a(trace *t)
{
    trace_case(t, "start 0, 3 rows, D 4");
    trace_reals(t, by_hand_4a[0], AXES({"position", 0, 3}, {"column", 0, 4}), "out");
    for (int i = 0; i < N_SINUSOIDS; i++) {
        int start = sinusoids[i].start, n = sinusoids[i].n, d = sinusoids[i].d;
        real *out = new_reals((size_t)n * d);
        for (int j = 0; j < n * d; j++) {
            long double angle = angle_of(start + j / d, j % d / 2, d, 10000);
            out[j] = j % 2 ? cosl(angle) : sinl(angle);
        }
        trace_case(t, "start %d, %d row%s, D %d", start, n, n == 1 ? "" : "s", d);
        trace_reals(t, out, AXES({"position", start, n}, {"column", 0, d}), "out");
        free(out);
    }
}

/* ---- 4b: a learned table ---- */

enum { GUARD = 8 }; /* rows on either side of a table: what a missing bound reads, so that it needn't crash */

static const struct {
    int n_rows, d, start, n, status;
} lookups[] = {
    {8, 4, 0, 1, 0},  {8, 4, 0, 8, 0},  {8, 4, 3, 1, 0},  {8, 4, 7, 1, 0},   {8, 4, 5, 3, 0},  {8, 4, 2, 4, 0},
    {1, 2, 0, 1, 0},  {20, 5, 1, 1, 0}, {20, 5, 6, 1, 0}, {20, 5, 16, 4, 0}, {20, 5, 19, 1, 0},
    {8, 4, 8, 1, -1}, {8, 4, 12, 1, -1}, {8, 4, 7, 2, -1}, {8, 4, 5, 4, -1},  {8, 4, 0, 9, -1}, {8, 4, 12, 3, -1},
    {8, 4, -1, 1, -1}, {8, 4, -1, 2, -1}, {8, 4, -3, 3, -1}, {8, 4, -2, 9, -1}, {1, 2, 1, 1, -1}, {1, 2, 0, 2, -1},
};

/* Where start + n is beyond INT_MAX. Only a few rows are there to be written: nothing may be. */
static const struct {
    int start, n;
} far_lookups[] = {{INT_MAX, 1}, {INT_MAX, 2}, {1, INT_MAX}, {7, INT_MAX}};

enum { N_LOOKUPS = sizeof lookups / sizeof *lookups, N_FAR = sizeof far_lookups / sizeof *far_lookups };

static void look_up(trace *t, const real *table, int n_rows, int d, int start, int n, int room)
{
    real *out = new_reals((size_t)room * d), *before = new_reals((size_t)room * d);
    int status = learned(table, n_rows, d, start, n, out);

    trace_int(t, status, "what learned returns");
    if (status)
        trace_int(t, same_bytes(out, before, (size_t)room * d), "nothing is written");
    else
        trace_reals(t, out, AXES({"position", start, n}, {"column", 0, d}), "out");
    free(out);
    free(before);
}

/* A table that is all there is, or, where an answer might look outside it, one with guard rows. */
static void run_lookup(trace *t, int i)
{
    int n_rows = lookups[i].n_rows, d = lookups[i].d, guard = lookups[i].status ? GUARD : 0;
    size_t size = (size_t)(n_rows + 2 * guard) * d;
    real *memory = new_reals(size);

    make_rows(n_rows + 2 * guard, d, memory);
    real *copy = copy_of(memory, size);
    look_up(t, memory + guard * d, n_rows, d, lookups[i].start, lookups[i].n, lookups[i].n);
    trace_int(t, same_bytes(memory, copy, size), "the table is unchanged");
    free(memory);
    free(copy);
}

static void name_lookup(trace *t, int n_rows, int start, int n)
{
    trace_case(t, "a table of %d row%s, start %d, %d row%s", n_rows, n_rows == 1 ? "" : "s", start, n, n == 1 ? "" : "s");
}

static void run_4b(trace *t)
{
    static real table[8 * 4];

    for (int i = 0; i < N_LOOKUPS; i++) {
        name_lookup(t, lookups[i].n_rows, lookups[i].start, lookups[i].n);
        run_lookup(t, i);
    }
    make_rows(8, 4, table);
    for (int i = 0; i < N_FAR; i++) {
        name_lookup(t, 8, far_lookups[i].start, far_lookups[i].n);
        look_up(t, table, 8, 4, far_lookups[i].start, far_lookups[i].n, 2);
    }
}

static void expect_4b(trace *t)
{
    for (int i = 0; i < N_LOOKUPS; i++) {
        int start = lookups[i].start, n = lookups[i].n, d = lookups[i].d;
        name_lookup(t, lookups[i].n_rows, start, n);
        trace_int(t, lookups[i].status, "what learned returns");
        if (lookups[i].status)
            trace_int(t, 1, "nothing is written");
        else {
            real *out = new_reals((size_t)n * d);
            for (int j = 0; j < n * d; j++)
                out[j] = made(start + j / d, j % d);
            trace_reals(t, out, AXES({"position", start, n}, {"column", 0, d}), "out");
            free(out);
        }
        trace_int(t, 1, "the table is unchanged");
    }
    for (int i = 0; i < N_FAR; i++) {
        name_lookup(t, 8, far_lookups[i].start, far_lookups[i].n);
        trace_int(t, -1, "what learned returns");
        trace_int(t, 1, "nothing is written");
    }
}

/* ---- 4c: RoPE ---- */

/* One row of one head of width 4, worked out by hand: cos and sin of 1, of 100^(-1) = 0.01 and of 0.1. */
static const struct {
    int position;
    double base;
    real x[4], right[4];
} by_hand_4c[] = {
    {0, 10000, {1, 2, 3, 4}, {1, 2, 3, 4}},
    {1, 10000, {1, 0, 0, 0}, {(real)0.5403023058681398, (real)0.8414709848078965, 0, 0}},
    {1, 10000, {0, 1, 0, 0}, {(real)-0.8414709848078965, (real)0.5403023058681398, 0, 0}},
    {1, 10000, {0, 0, 1, 0}, {0, 0, (real)0.9999500004166653, (real)0.009999833334166664}},
    {100, 10000, {0, 0, 1, 0}, {0, 0, (real)0.5403023058681398, (real)0.8414709848078965}},
    {100, 1e6, {0, 0, 1, 0}, {0, 0, (real)0.9950041652780258, (real)0.09983341664682815}},
};

static const struct {
    int start, n, heads, d_head;
    double base;
} turns[] = {
    {0, 1, 1, 2, 10000}, {3, 1, 1, 2, 10000},  {1, 1, 1, 8, 10000},   {5, 1, 1, 8, 10000},   {6, 1, 1, 8, 10000},
    {5, 3, 1, 8, 10000}, {5, 1, 4, 8, 10000},  {0, 4, 2, 8, 10000},   {5, 3, 2, 8, 10000},   {5, 3, 2, 8, 500},
    {5, 2, 3, 6, 10000}, {31, 4, 6, 16, 10000}, {7, 5, 1, 4, 1e6},    {255, 1, 4, 16, 10000}, {4095, 2, 2, 8, 500000},
    {99999, 2, 1, 16, 10000}, {5, 3, 2, 8, 1234.5},
};

/* Query and key positions. The score of a pair is a function of their difference, so some differ only in their sum. */
static const struct {
    int query, key;
} meetings[] = {{0, 0}, {9, 9}, {1, 0}, {8, 7}, {1001, 1000}, {3, 1}, {33, 31}, {20, 0}, {250, 230}, {0, 20}};

enum {
    N_BY_HAND = sizeof by_hand_4c / sizeof *by_hand_4c,
    N_TURNS = sizeof turns / sizeof *turns,
    N_MEETINGS = sizeof meetings / sizeof *meetings,
    MET = 8, /* d_head of those that meet */
};

/* Pair i of x [d] turned, by its length and its direction. */
static void turn_pair(const real *x, int position, int i, int d, double base, real *out)
{
    long double length = hypotl(x[2 * i], x[2 * i + 1]);
    long double direction = atan2l(x[2 * i + 1], x[2 * i]) + angle_of(position, i, d, base);

    out[2 * i] = length * cosl(direction);
    out[2 * i + 1] = length * sinl(direction);
}

/* x [n][heads][d], turned in place. */
static void turn_all(real *x, int start, int n, int heads, int d, double base)
{
    for (int row = 0; row < n * heads; row++)
        for (int i = 0; i < d / 2; i++)
            turn_pair(x + (size_t)row * d, start + row / heads, i, d, base, x + (size_t)row * d);
}

static void name_turn(trace *t, int i)
{
    trace_case(t, "start %d, %d row%s, %d head%s of %d, base %g", turns[i].start, turns[i].n, turns[i].n == 1 ? "" : "s",
               turns[i].heads, turns[i].heads == 1 ? "" : "s", turns[i].d_head, turns[i].base);
}

static void trace_heads(trace *t, const real *x, int start, int n, int heads, int d)
{
    trace_reals(t, x, AXES({"position", start, n}, {"head", 0, heads}, {"column", 0, d}), "x");
}

/* Each of the three parts of 4c, with rope_inplace or with turn_all. */
typedef void turn_fn(real *x, int start, int n, int heads, int d_head, double base);

static void turn_cases(trace *t, turn_fn *turn)
{
    for (int i = 0; i < N_TURNS; i++) {
        int n = turns[i].n, heads = turns[i].heads, d = turns[i].d_head;
        real *x = new_reals((size_t)n * heads * d);
        make_rows(n, heads * d, x);
        name_turn(t, i);
        turn(x, turns[i].start, n, heads, d, turns[i].base);
        trace_heads(t, x, turns[i].start, n, heads, d);
        free(x);
    }
}

static void run_meeting(trace *t, int i)
{
    real *q = new_reals(MET), *k = new_reals(MET), score = 0;

    make_rows(1, MET, q);
    for (int j = 0; j < MET; j++)
        k[j] = made(1, j);
    rope_inplace(q, meetings[i].query, 1, 1, MET, 10000);
    rope_inplace(k, meetings[i].key, 1, 1, MET, 10000);
    for (int j = 0; j < MET; j++)
        score += q[j] * k[j];
    trace_reals(t, &score, AXES({"score", 0, 1}), "q · k after turning");
    free(q);
    free(k);
}

/* Turning by a and by b leaves of each pair |q||k| cos of the angle between them, less (a - b) times the frequency:
   here by way of dot and cross product. */
static void expect_meeting(trace *t, int i)
{
    long double sum = 0;

    for (int j = 0; j < MET / 2; j++) {
        long double angle = angle_of(meetings[i].query - meetings[i].key, j, MET, 10000);
        long double dot = (long double)made(0, 2 * j) * made(1, 2 * j) + (long double)made(0, 2 * j + 1) * made(1, 2 * j + 1);
        long double cross = (long double)made(0, 2 * j) * made(1, 2 * j + 1) - (long double)made(0, 2 * j + 1) * made(1, 2 * j);
        sum += dot * cosl(angle) + cross * sinl(angle);
    }
    real score = sum;
    trace_reals(t, &score, AXES({"score", 0, 1}), "q · k after turning");
}

static void each_4c(trace *t, bool by_hand, turn_fn *turn, void (*meet)(trace *, int))
{
    for (int i = 0; i < N_BY_HAND; i++) {
        real *x = copy_of(by_hand ? by_hand_4c[i].right : by_hand_4c[i].x, 4);
        trace_case(t, "a row at position %d, base %g", by_hand_4c[i].position, by_hand_4c[i].base);
        if (!by_hand)
            turn(x, by_hand_4c[i].position, 1, 1, 4, by_hand_4c[i].base);
        trace_heads(t, x, by_hand_4c[i].position, 1, 1, 4);
        free(x);
    }
    turn_cases(t, turn);
    for (int i = 0; i < N_MEETINGS; i++) {
        trace_case(t, "a query at position %d, a key at position %d", meetings[i].query, meetings[i].key);
        meet(t, i);
    }
}

static void run_4c(trace *t)
{
    each_4c(t, false, rope_inplace, run_meeting);
}

static void expect_4c(trace *t)
{
    each_4c(t, true, turn_all, expect_meeting);
}

/* ---- 4d: add_positions, called directly ---- */

/* Where a chunk begins and how long it is; a start is counted from n_ctx where `from_end` is set. */
static const struct {
    bool from_end;
    int start, n, status;
} additions[] = {
    {false, 0, 1, 0},  {false, 0, 5, 0},  {false, 1, 1, 0},   {false, 5, 1, 0},   {false, 5, 3, 0},
    {true, -1, 1, 0},  {true, -4, 4, 0},  {false, 2, 1, 0},   {true, 0, 1, -1},   {true, -1, 2, -1},
    {true, -3, 4, -1}, {true, 7, 2, -1},  {false, -1, 1, -1}, {false, -1, 2, -1}, {false, -4, 4, -1},
};

/* What turn_heads is given; keys have fewer heads in some models. */
static const struct {
    bool from_end;
    int start, n;
} head_rows[] = {{false, 0, 1}, {false, 0, 3}, {false, 1, 1}, {false, 7, 1}, {false, 7, 3}, {true, -2, 2}};

enum { N_ADDITIONS = sizeof additions / sizeof *additions, N_HEAD_ROWS = sizeof head_rows / sizeof *head_rows };

static void trace_added(trace *t, const real *x, const real *before, int start, int n, int d, int status)
{
    trace_int(t, status, "what add_positions returns");
    if (status)
        trace_int(t, same_bytes(x, before, (size_t)n * d), "nothing is changed");
    else
        trace_reals(t, x, AXES({"position", start, n}, {"column", 0, d}), "x");
}

/* Column j of what is added at a position, by the formula or from the table. */
static double position_value(const model *m, int position, int j)
{
    int d = m->shape.d_model;
    long double angle = angle_of(position, j / 2, d, 10000);

    if (m->shape.position == LEARNED)
        return m->position_embedding[(size_t)position * d + j];
    return m->shape.position == ROTARY ? 0 : j % 2 ? cosl(angle) : sinl(angle);
}

static int add_right(const model *m, int start, int n, real *x)
{
    int d = m->shape.d_model;

    if (start < 0 || start + n > m->shape.n_ctx)
        return -1;
    for (int i = 0; i < n * d; i++)
        x[i] = x[i] + position_value(m, start + i / d, i % d);
    return 0;
}

static void turn_right(const model *m, int start, int n, int heads, real *x)
{
    if (m->shape.position == ROTARY)
        turn_all(x, start, n, heads, m->shape.d_head, m->shape.rope_base);
}

static void add_to_made(trace *t, const subject *s, int (*add_to)(const model *, int, int, real *))
{
    int d = s->m->shape.d_model;

    for (int i = 0; i < N_ADDITIONS; i++) {
        int n = additions[i].n, start = additions[i].start + (additions[i].from_end ? s->m->shape.n_ctx : 0);
        real *x = new_reals((size_t)n * d);
        make_rows(n, d, x);
        real *before = copy_of(x, (size_t)n * d);
        trace_case(t, "%s (context %d), start %d, %d row%s", s->name, s->m->shape.n_ctx, start, n, n == 1 ? "" : "s");
        trace_added(t, x, before, start, n, d, add_to(s->m, start, n, x));
        free(x);
        free(before);
    }
}

/* Chunks that end beyond INT_MAX. */
static void run_far(trace *t, const subject *s)
{
    int d = s->m->shape.d_model;

    for (int i = 0; i < N_FAR; i++) {
        real *x = new_reals((size_t)2 * d), *before = copy_of(x, (size_t)2 * d);
        trace_case(t, "%s, start %d, %d rows", s->name, far_lookups[i].start, far_lookups[i].n);
        trace_added(t, x, before, 0, 2, d, add_positions(s->m, far_lookups[i].start, far_lookups[i].n, x));
        free(x);
        free(before);
    }
}

static void expect_far(trace *t, const subject *s)
{
    for (int i = 0; i < N_FAR; i++) {
        trace_case(t, "%s, start %d, %d rows", s->name, far_lookups[i].start, far_lookups[i].n);
        trace_added(t, by_hand_4a[0], by_hand_4a[0], 0, 1, 4, -1);
    }
}

static void turn_made(trace *t, const subject *s, void (*turn)(const model *, int, int, int, real *))
{
    const model_shape *shape = &s->m->shape;

    for (int i = 0; i < 2 * N_HEAD_ROWS; i++) {
        int heads = i % 2 ? shape->n_kv_head : shape->n_head, n = head_rows[i / 2].n;
        int start = head_rows[i / 2].start + (head_rows[i / 2].from_end ? shape->n_ctx : 0);
        real *x = new_reals((size_t)n * heads * shape->d_head);
        make_rows(n, heads * shape->d_head, x);
        trace_case(t, "%s, %d row%s of %s turned, start %d", s->name, n, n == 1 ? "" : "s", i % 2 ? "keys" : "queries",
                   start);
        turn(s->m, start, n, heads, x);
        trace_heads(t, x, start, n, heads, shape->d_head);
        free(x);
    }
}

/* ---- 4d: a cached pass with them, teacher-forced ---- */

static const int chunk_sizes[] = {1, 4};

/* What happens to the cache of lab 3: it is emptied or cut, then gets tokens from … from+n-1, in chunks. */
static const struct {
    const char *name;
    int keep, from, n; /* keep: truncate to this many first; -1 resets, -2 leaves it as it is */
} texts[] = {
    {"a first text", -2, 0, 12},
    {"the same text goes on", -2, 12, 3},
    {"another text after a reset", -1, 30, 10},
    {"truncated to 4, then other tokens", 4, 50, 7},
    {"truncated to 10, then one token", 10, 20, 1},
};

enum { N_CHUNK_SIZES = 2, N_TEXTS = sizeof texts / sizeof *texts, CAPACITY = 20 };

static void name_text(trace *t, const subject *s, int chunk, int i)
{
    trace_case(t, "%s, in chunks of %d, %s", s->name, chunk, texts[i].name);
}

static void run_texts(trace *t, const subject *s, int chunk)
{
    int n_vocab = s->m->shape.n_vocab;
    real *logits = new_reals((size_t)CAPACITY * n_vocab);
    cache c;

    if (cache_init(&c, s->m, CAPACITY))
        abort();
    for (int i = 0; i < N_TEXTS; i++) {
        int n = texts[i].n, status = 0;
        name_text(t, s, chunk, i);
        if (texts[i].keep >= 0)
            cache_truncate(&c, texts[i].keep);
        else if (texts[i].keep == -1)
            cache_reset(&c);
        int before = c.length;
        for (int at = 0, now; at < n; at += now) {
            now = n - at < chunk ? n - at : chunk;
            status |= cache_forward(&c, s->tokens + texts[i].from + at, now, logits + (size_t)at * n_vocab);
        }
        trace_int(t, status, "what cache_forward returns");
        trace_logits(t, logits, AXES({"position", before, n}, {"token", 0, n_vocab}), "logits");
    }
    cache_free(&c);
    free(logits);
}

static void expect_texts(trace *t, const subject *s, int chunk)
{
    int n_vocab = s->m->shape.n_vocab, tokens[CAPACITY], held = 0;
    real *all = new_reals((size_t)CAPACITY * n_vocab);

    for (int i = 0; i < N_TEXTS; i++) {
        int n = texts[i].n, before = texts[i].keep == -1 ? 0 : texts[i].keep >= 0 ? texts[i].keep : held;
        held = before + n;
        memcpy(tokens + before, s->tokens + texts[i].from, n * sizeof *tokens);
        name_text(t, s, chunk, i);
        trace_int(t, model_forward(s->m, tokens, held, all), "what cache_forward returns");
        trace_logits(t, all + (size_t)before * n_vocab, AXES({"position", before, n}, {"token", 0, n_vocab}), "logits");
    }
    free(all);
}

/* ---- 4d: the whole step ---- */

static size_t table_size(const model *m)
{
    return m->position_embedding ? (size_t)m->shape.n_ctx * m->shape.d_model : 0;
}

static void run_4d(trace *t)
{
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *s = get_subject(i);
        real *table = copy_of(s->m->position_embedding ? s->m->position_embedding : by_hand_4a[0], table_size(s->m));
        add_to_made(t, s, add_positions);
        run_far(t, s);
        turn_made(t, s, turn_heads);
        for (int k = 0; k < N_CHUNK_SIZES; k++)
            run_texts(t, s, chunk_sizes[k]);
        trace_case(t, "%s", s->name);
        trace_int(t, !table_size(s->m) || same_bytes(table, s->m->position_embedding, table_size(s->m)),
                  "the model's table is unchanged");
        free(table);
    }
}

static void expect_4d(trace *t)
{
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *s = get_subject(i);
        add_to_made(t, s, add_right);
        expect_far(t, s);
        turn_made(t, s, turn_right);
        for (int k = 0; k < N_CHUNK_SIZES; k++)
            expect_texts(t, s, chunk_sizes[k]);
        trace_case(t, "%s", s->name);
        trace_int(t, 1, "the model's table is unchanged");
    }
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "4a", .points = 3, .title = "sinusoids of positions start, start + 1, …", .needs = "", .run = run_4a, .expect = expect_4a},
        {.id = "4b", .points = 2, .title = "rows of a learned table, and none outside it", .needs = "", .run = run_4b,
         .expect = expect_4b},
        {.id = "4c", .points = 4, .title = "RoPE: pairs turned by position", .needs = "", .run = run_4c, .expect = expect_4c},
        {.id = "4d", .points = 4, .title = "whichever kind the model has, in a cached pass", .needs = "4a 4b 4c", .run = run_4d,
         .expect = expect_4d},
    };
    static const lab lab4 = {"lab4", "position offsets", steps, sizeof steps / sizeof *steps, false};

    return check_main(&lab4, argc, argv);
}
