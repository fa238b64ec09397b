/* The check of lab 5, beam search. What is right comes from closed forms and tables worked out by hand (5a, 5c), from the
   given model run in full (5b), and for the search from greedy decoding (5d), from all sequences of a tiny vocabulary,
   and from a plain search that runs the model in full on every beam and sorts all candidates (5e). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "beam.h"
#include "check.h"
#include "counts.h"
#include "random.h"
#include "subjects.h"

/* Room for n of anything, to its exact size. */
static void *room_for(size_t n, size_t size)
{
    void *memory = malloc(n * size + !n);

    if (!memory)
        exit(2);
    return memory;
}

#define ROOM(type, n) ((type *)room_for(n, sizeof(type)))

static void *copy_of(const void *from, size_t bytes)
{
    return memcpy(room_for(bytes, 1), from, bytes);
}

/* ---- 5a: log-softmax ---- */

#define N (real) NAN
#define I (real) INFINITY

/* Rows of up to 4 logits and what is right, in closed form: L(x) = log x. In the last, what is below -1e6 is traced as
   -1e6: how far below depends on how the quotient is rounded. */
#define L2 0.69314718055994530942
#define L3 1.09861228866810969140

static const struct {
    const char *name;
    int n;
    real temperature, logits[4];
    double right[4];
    bool clip;
} softmaxes[] = {
    {"two equal logits", 2, 1, {3, 3}, {-L2, -L2}, 0},
    {"four equal logits", 4, 1, {-1, -1, -1, -1}, {-2 * L2, -2 * L2, -2 * L2, -2 * L2}, 0},
    {"one token", 1, 1, {-8}, {0}, 0},
    {"odds of 1 to 3", 2, 1, {0, (real)L3}, {-2 * L2, L3 - 2 * L2}, 0},
    {"odds of 3 to 1 to 4", 3, 1, {(real)L3, 0, (real)(2 * L2)}, {L3 - 3 * L2, -3 * L2, -L2}, 0},
    {"odds of 1 to 3 at temperature 2", 2, 2, {0, (real)(2 * L3)}, {-2 * L2, L3 - 2 * L2}, 0},
    {"odds of 1 to 3 at temperature 1/4", 2, (real)0.25, {0, (real)(L3 / 4)}, {-2 * L2, L3 - 2 * L2}, 0},
    {"a gap of 120", 2, 1, {0, -120}, {0, -120}, 0},
    {"a gap of 800", 3, 1, {0, -800, 0}, {-L2, -800 - L2, -L2}, 0},
    {"a gap of 4 at temperature 1/256", 2, (real)0.00390625, {-2, 2}, {-1024, 0}, 0},
    {"the first far below the largest", 2, 1, {0, 1000}, {-1000, 0}, 0},
    {"large logits", 3, 1, {1000, 1000, 0}, {-L2, -L2, -1000 - L2}, 0},
    {"all very negative", 3, 1, {-1000, -2000, -1000}, {-L2, -1000 - L2, -L2}, 0},
    {"a banned token", 3, 1, {-I, 5, 5}, {-INFINITY, -L2, -L2}, 0},
    {"all but the last banned", 3, 1, {-I, -I, -1000}, {-INFINITY, -INFINITY, 0}, 0},
    {"banned tokens at temperature 3", 3, 3, {2, -I, 2}, {-L2, -INFINITY, -L2}, 0},
    {"temperature 1e-30", 4, (real)1e-30, {1, 2, (real)1.5, 0}, {-1e6, 0, -1e6, -1e6}, true},
};

/* What log_softmax must refuse. */
static const struct {
    const char *name;
    int n;
    real temperature, logits[3];
} bad_softmaxes[] = {
    {"temperature 0", 3, 0, {1, 2, 3}},     {"temperature -1", 3, -1, {1, 2, 3}},
    {"temperature NaN", 3, N, {1, 2, 3}},   {"temperature +INFINITY", 3, I, {1, 2, 3}},
    {"NaN first", 3, 1, {N, 1, 2}},         {"NaN last", 3, 1, {1, 2, N}},
    {"+INFINITY first", 3, 1, {I, 1, 2}},   {"+INFINITY last", 3, 1, {1, 2, I}},
    {"all banned", 3, 1, {-I, -I, -I}},     {"one token, banned", 1, 1, {-I}},
    {"NaN among banned", 3, 1, {-I, N, -I}}, {"no tokens", 0, 1, {1}},
};

static const struct {
    int n;
    real temperature;
} long_rows[] = {{41, 1}, {41, (real)0.5}, {41, 7}, {50257, (real)1.5}};

enum {
    N_SOFTMAXES = sizeof softmaxes / sizeof *softmaxes,
    N_BAD_SOFTMAXES = sizeof bad_softmaxes / sizeof *bad_softmaxes,
    N_LONG_ROWS = 4
};

/* Traces what log_softmax does with n logits, between rows that must stay as they are. */
static void run_softmax(trace *t, const real *logits, int n, real temperature, bool clip)
{
    real *row = copy_of(logits, n * sizeof *row), *log_p = new_reals(n), *before = copy_of(log_p, n * sizeof *log_p);
    int status = log_softmax(row, n, temperature, log_p);

    trace_int(t, status, "what log_softmax returns");
    trace_int(t, memcmp(row, logits, n * sizeof *row) == 0, "the logits are unchanged");
    if (status)
        trace_int(t, memcmp(log_p, before, n * sizeof *log_p) == 0, "log_p is untouched");
    else {
        for (int id = 0; id < n && clip; id++)
            log_p[id] = log_p[id] < (real)-1e6 ? (real)-1e6 : log_p[id];
        trace_reals(t, log_p, AXES({"token", 0, n}), "log_p");
    }
    free(row);
    free(log_p);
    free(before);
}

static void long_row(int n, real *row)
{
    generator g = {n};

    for (int id = 0; id < n; id++)
        row[id] = 12 * random_uniform(&g) - 6;
}

static void run_softmaxes(trace *t)
{
    for (int i = 0; i < N_SOFTMAXES; i++) {
        trace_case(t, "%s", softmaxes[i].name);
        run_softmax(t, softmaxes[i].logits, softmaxes[i].n, softmaxes[i].temperature, softmaxes[i].clip);
    }
    for (int i = 0; i < N_BAD_SOFTMAXES; i++) {
        trace_case(t, "%s", bad_softmaxes[i].name);
        run_softmax(t, bad_softmaxes[i].logits, bad_softmaxes[i].n, bad_softmaxes[i].temperature, false);
    }
    for (int i = 0; i < N_LONG_ROWS; i++) {
        real *row = new_reals(long_rows[i].n);
        trace_case(t, "%d tokens, temperature %g", long_rows[i].n, (double)long_rows[i].temperature);
        long_row(long_rows[i].n, row);
        run_softmax(t, row, long_rows[i].n, long_rows[i].temperature, false);
        free(row);
    }
}

static void expect_softmax(trace *t, const double *right, int n)
{
    real *log_p = new_reals(n);

    for (int id = 0; id < n; id++)
        log_p[id] = right[id];
    trace_int(t, 0, "what log_softmax returns");
    trace_int(t, 1, "the logits are unchanged");
    trace_reals(t, log_p, AXES({"token", 0, n}), "log_p");
    free(log_p);
}

/* The logits are small, so that the sum of their exponentials can be had as it stands. */
static void expect_long_row(trace *t, int n, double temperature)
{
    real *row = new_reals(n);
    double *right = ROOM(double, n);
    long double sum = 0;

    long_row(n, row);
    for (int id = 0; id < n; id++)
        sum += expl((long double)row[id] / temperature);
    for (int id = 0; id < n; id++)
        right[id] = row[id] / temperature - logl(sum);
    expect_softmax(t, right, n);
    free(row);
    free(right);
}

static void expect_softmaxes(trace *t)
{
    for (int i = 0; i < N_SOFTMAXES; i++) {
        trace_case(t, "%s", softmaxes[i].name);
        expect_softmax(t, softmaxes[i].right, softmaxes[i].n);
    }
    for (int i = 0; i < N_BAD_SOFTMAXES; i++) {
        trace_case(t, "%s", bad_softmaxes[i].name);
        trace_int(t, -1, "what log_softmax returns");
        trace_int(t, 1, "the logits are unchanged");
        trace_int(t, 1, "log_p is untouched");
    }
    for (int i = 0; i < N_LONG_ROWS; i++) {
        trace_case(t, "%d tokens, temperature %g", long_rows[i].n, (double)long_rows[i].temperature);
        expect_long_row(t, long_rows[i].n, long_rows[i].temperature);
    }
}

/* ---- 5a: the top candidates. All numbers are exact in binary, so that ties are ties in either precision ---- */

static const struct {
    const char *name;
    int n_beams, n_vocab, n_best;
    double sums[3];
    real log_p[12];
    int n;
    candidate right[6];
} tops[] = {
    {"one beam", 1, 4, 2, {0}, {-2, -1, -4, -3}, 2, {{-1, 0, 1}, {-2, 0, 0}}},
    {"one beam with a sum", 1, 4, 3, {-7.5}, {-2, -1, -4, -3}, 3, {{-8.5, 0, 1}, {-9.5, 0, 0}, {-10.5, 0, 3}}},
    {"the best one of two beams", 2, 3, 1, {-2, -1}, {-1, -2, -3, -4, -1, -2}, 1, {{-2, 1, 1}}},
    {"from both beams in turn", 2, 3, 4, {-1, -2}, {-1, -3, -9, -1, -3, -0.5}, 4,
     {{-2, 0, 0}, {-2.5, 1, 2}, {-3, 1, 0}, {-4, 0, 1}}},
    {"all from the first beam", 2, 3, 3, {-1, -9}, {-1, -2, -3, -0.5, -0.5, -0.5}, 3, {{-2, 0, 0}, {-3, 0, 1}, {-4, 0, 2}}},
    {"all from the last beam", 3, 2, 2, {-9, -8, -1}, {-1, -1, -1, -1, -3, -2}, 2, {{-3, 2, 1}, {-4, 2, 0}}},
    {"the likeliest token on the unlikeliest beam", 2, 2, 1, {-1, -6}, {-3, -2, -0.25, -4}, 1, {{-3, 0, 1}}},
    {"a tie of two ids", 1, 4, 2, {-1}, {-3, -2, -2, -2}, 2, {{-3, 0, 1}, {-3, 0, 2}}},
    {"a tie of two beams", 2, 3, 2, {-2, -1}, {-5, -5, -1, -2, -5, -5}, 2, {{-3, 0, 2}, {-3, 1, 0}}},
    {"a tie of two beams at the cut", 2, 3, 2, {-2, -1}, {-5, -0.5, -1, -5, -2, -2}, 2, {{-2.5, 0, 1}, {-3, 0, 2}}},
    {"all equal", 2, 2, 3, {-1, -1}, {-1, -1, -1, -1}, 3, {{-2, 0, 0}, {-2, 0, 1}, {-2, 1, 0}}},
    {"a better one behind a tie", 1, 4, 2, {0}, {-2, -2, -2, -1}, 2, {{-1, 0, 3}, {-2, 0, 0}}},
    {"as many as there are", 2, 2, 4, {0, -1}, {-1, -2, -0.5, -3}, 4, {{-1, 0, 0}, {-1.5, 1, 0}, {-2, 0, 1}, {-4, 1, 1}}},
    {"more than there are", 2, 2, 6, {0, -1}, {-1, -2, -0.5, -3}, 4, {{-1, 0, 0}, {-1.5, 1, 0}, {-2, 0, 1}, {-4, 1, 1}}},
    {"banned tokens", 1, 4, 4, {-1}, {-I, -2, -I, -1}, 2, {{-2, 0, 3}, {-3, 0, 1}}},
    {"a beam of banned tokens", 2, 3, 4, {-1, -5}, {-I, -I, -I, -1, -I, -2}, 2, {{-6, 1, 0}, {-7, 1, 2}}},
    {"a beam that is impossible", 2, 2, 4, {-INFINITY, -3}, {-1, -1, -1, -2}, 2, {{-4, 1, 0}, {-5, 1, 1}}},
    {"nothing but banned tokens", 2, 2, 2, {0, 0}, {-I, -I, -I, -I}, 0, {{0, 0, 0}}},
    {"none wanted", 1, 3, 0, {0}, {-1, -2, -3}, 0, {{0, 0, 0}}},
    {"one token, three beams", 3, 1, 2, {-4, -2, -3}, {0, 0, 0}, 2, {{-2, 1, 0}, {-3, 2, 0}}},
    {"candidates of 0", 1, 3, 2, {0}, {-I, 0, -I}, 1, {{0, 0, 1}}},
    {"very small sums", 2, 2, 3, {-1e6, -2e6}, {-1024, -2048, -1024, -2048}, 3,
     {{-1001024, 0, 0}, {-1002048, 0, 1}, {-2001024, 1, 0}}},
    {"sums that float can't tell apart", 2, 2, 1, {-100.0000000001, -100}, {-1, -2, -1, -2}, 1, {{-101, 1, 0}}},
    {"six of twelve equal ones", 3, 4, 6, {-3, -2, -1},
     {-1, -1, -1, -1, -2, -2, -2, -2, -3, -3, -3, -3}, 6,
     {{-4, 0, 0}, {-4, 0, 1}, {-4, 0, 2}, {-4, 0, 3}, {-4, 1, 0}, {-4, 1, 1}}},
};

/* Rows of random eighths, with many ties and some banned tokens; one token at an end of each row stands out, so that a
   beam taken for its neighbour shows. */
static const struct {
    int n_beams, n_vocab, n_best;
} sizes[] = {{1, 41, 5}, {3, 41, 8}, {4, 41, 164}, {7, 13, 14}, {2, 1000, 4}, {5, 300, 10}, {2, 20011, 4}};

enum { N_TOPS = sizeof tops / sizeof *tops, N_SIZES = sizeof sizes / sizeof *sizes };

static void run_top(trace *t, const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best)
{
    size_t sums_bytes = n_beams * sizeof *sums, bytes = (size_t)n_beams * n_vocab * sizeof *log_p;
    double *s = copy_of(sums, sums_bytes);
    real *rows = copy_of(log_p, bytes), *got = new_reals(n_best);
    candidate *best = ROOM(candidate, n_best);
    int n = top_candidates(s, rows, n_beams, n_vocab, n_best, best), *places = ROOM(int, 2 * n_best);

    trace_int(t, n, "number of candidates");
    n = n < 0 || n > n_best ? 0 : n;
    for (int i = 0; i < n; i++) {
        places[2 * i] = best[i].beam;
        places[2 * i + 1] = best[i].id;
        got[i] = best[i].sum;
    }
    trace_ints(t, places, AXES({"candidate", 0, n}, {"beam/id", 0, 2}), "beams and ids");
    trace_reals(t, got, AXES({"candidate", 0, n}), "sums");
    trace_int(t, !memcmp(s, sums, sums_bytes) && !memcmp(rows, log_p, bytes), "sums and log_p are unchanged");
    free(s);
    free(rows);
    free(got);
    free(best);
    free(places);
}

static void expect_top(trace *t, const candidate *right, int n)
{
    int *places = ROOM(int, 2 * n);
    real *sums = new_reals(n);

    for (int i = 0; i < n; i++) {
        places[2 * i] = right[i].beam;
        places[2 * i + 1] = right[i].id;
        sums[i] = right[i].sum;
    }
    trace_int(t, n, "number of candidates");
    trace_ints(t, places, AXES({"candidate", 0, n}, {"beam/id", 0, 2}), "beams and ids");
    trace_reals(t, sums, AXES({"candidate", 0, n}), "sums");
    trace_int(t, 1, "sums and log_p are unchanged");
    free(places);
    free(sums);
}

static void make_candidates(int i, double *sums, real *log_p)
{
    generator g = {100 + i};

    for (int b = 0; b < sizes[i].n_beams; b++) {
        sums[b] = -(double)(random_bits(&g) % 64) / 8;
        for (int id = 0; id < sizes[i].n_vocab; id++) {
            int eighths = random_bits(&g) % 100;
            log_p[id] = eighths == 99 ? -I : -(real)(eighths + 16) / 8;
        }
        log_p[b % 2 ? 0 : sizes[i].n_vocab - 1] = -1;
        log_p += sizes[i].n_vocab;
    }
}

/* Best first; the lower beam and the lower id first among equals. */
static int by_rank(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->sum != y->sum)
        return x->sum < y->sum ? 1 : -1;
    return x->beam != y->beam ? x->beam - y->beam : x->id - y->id;
}

/* All candidates that aren't banned, in order; returns how many. */
static int sort_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, candidate *all)
{
    int n = 0;

    for (int b = 0; b < n_beams; b++)
        for (int id = 0; id < n_vocab; id++)
            if (log_p[(size_t)b * n_vocab + id] > -I)
                all[n++] = (candidate){sums[b] + log_p[(size_t)b * n_vocab + id], b, id};
    qsort(all, n, sizeof *all, by_rank);
    return n;
}

/* Calls run_top on the i-th of the sizes, or traces what is right. */
static void size_5a(trace *t, int i, bool expects)
{
    int n_beams = sizes[i].n_beams, n_vocab = sizes[i].n_vocab, n_best = sizes[i].n_best;
    size_t size = (size_t)n_beams * n_vocab;
    double *sums = ROOM(double, n_beams);
    real *log_p = new_reals(size);

    trace_case(t, "%d beams of %d tokens, the best %d", n_beams, n_vocab, n_best);
    make_candidates(i, sums, log_p);
    if (expects) {
        candidate *all = ROOM(candidate, size);
        int n = sort_candidates(sums, log_p, n_beams, n_vocab, all);
        expect_top(t, all, n < n_best ? n : n_best);
        free(all);
    } else
        run_top(t, sums, log_p, n_beams, n_vocab, n_best);
    free(sums);
    free(log_p);
}

static void run_5a(trace *t)
{
    run_softmaxes(t);
    for (int i = 0; i < N_TOPS; i++) {
        trace_case(t, "%s", tops[i].name);
        run_top(t, tops[i].sums, tops[i].log_p, tops[i].n_beams, tops[i].n_vocab, tops[i].n_best);
    }
    for (int i = 0; i < N_SIZES; i++)
        size_5a(t, i, false);
}

static void expect_5a(trace *t)
{
    expect_softmaxes(t);
    for (int i = 0; i < N_TOPS; i++) {
        trace_case(t, "%s", tops[i].name);
        expect_top(t, tops[i].right, tops[i].n);
    }
    for (int i = 0; i < N_SIZES; i++)
        size_5a(t, i, true);
}

/* ---- 5b: copying a cache. Its rows come from a formula ---- */

static int width_of(const model *m)
{
    return m->shape.n_kv_head * m->shape.d_head;
}

/* In (-1, 1), different for each argument. */
static double made(bool value, int layer, int token, int column)
{
    double x = 0.6180339887498949 * (column + 137 * (token + 71 * (layer + 31 * value)));

    return 2 * (x - floor(x)) - 1;
}

/* The rows of a made token are appended to every layer. */
static void append_made(cache *c, int token)
{
    int columns = width_of(c->m);
    real *k = new_reals(columns), *v = new_reals(columns);

    for (int l = 0; l < c->m->shape.n_layer; l++) {
        for (int j = 0; j < columns; j++) {
            k[j] = made(false, l, token, j);
            v[j] = made(true, l, token, j);
        }
        cache_append(c, l, k, v, 1);
    }
    cache_advance(c, 1);
    free(k);
    free(v);
}

/* A cache that holds the made tokens first … first+n-1. */
static void open_made(cache *c, const model *m, int capacity, int first, int n)
{
    if (cache_init(c, m, capacity))
        exit(2);
    for (int i = 0; i < n; i++)
        append_made(c, first + i);
}

/* Keys and values of the first n tokens, read through cache_key and cache_value. */
static void trace_held(trace *t, const cache *c, int n, const char *who)
{
    const model_shape *s = &c->m->shape;
    int columns = width_of(c->m);
    char name[64];

    for (int value = 0; value < 2; value++) {
        real *rows = new_reals((size_t)s->n_layer * n * columns), *row = rows;
        for (int l = 0; l < s->n_layer; l++)
            for (int p = 0; p < n; p++)
                for (int h = 0; h < s->n_kv_head; h++, row += s->d_head)
                    memcpy(row, value ? cache_value(c, l, h, p) : cache_key(c, l, h, p), s->d_head * sizeof *row);
        snprintf(name, sizeof name, "%s of %s, a token later", value ? "values" : "keys", who);
        trace_reals(t, rows, AXES({"layer", 0, s->n_layer}, {"position", 0, n}, {"column", 0, columns}), name);
        free(rows);
    }
}

/* The same of made tokens from `first` on, with `last` at the last position unless it's -1. */
static void expect_held(trace *t, const model *m, int first, int n, int last, const char *who)
{
    int columns = width_of(m), layers = m->shape.n_layer;
    char name[64];

    for (int value = 0; value < 2; value++) {
        real *rows = new_reals((size_t)layers * n * columns), *row = rows;
        for (int l = 0; l < layers; l++)
            for (int p = 0; p < n; p++)
                for (int j = 0; j < columns; j++)
                    *row++ = made(value, l, p == n - 1 && last >= 0 ? last : first + p, j);
        snprintf(name, sizeof name, "%s of %s, a token later", value ? "values" : "keys", who);
        trace_reals(t, rows, AXES({"layer", 0, layers}, {"position", 0, n}, {"column", 0, columns}), name);
        free(rows);
    }
}

static const int subjects_5b[] = {4, 5, 7};

/* The copied cache holds tokens 10 …, the one that it is copied to tokens 50 …. */
static const struct {
    int from_capacity, from_length, to_capacity, to_length, status;
} copies[] = {
    {8, 5, 8, 0, 0},  /* to an empty one */
    {8, 5, 8, 7, 0},  /* to one that holds more */
    {8, 5, 8, 2, 0},  /* to one that holds less */
    {8, 8, 8, 1, 0},  /* a full one */
    {8, 1, 8, 8, 0},
    {8, 3, 20, 6, 0}, /* to a larger one */
    {20, 5, 7, 2, 0}, /* to a smaller one */
    {20, 5, 5, 2, 0}, /* to one that it just fits */
    {20, 5, 4, 3, -1},
    {8, 8, 7, 7, -1},
    {8, 0, 8, 4, 0},  /* an empty one */
    {20, 0, 1, 1, 0},
};

enum { N_5B = 3, N_COPIES = sizeof copies / sizeof *copies, FROM = 10, TO = 50, NEXT_FROM = 30, NEXT_TO = 40 };

static void name_copy(trace *t, const subject *s, int i)
{
    trace_case(t, "%s, %d tokens of %d to a cache of %d that holds %d", s->name, copies[i].from_length,
               copies[i].from_capacity, copies[i].to_capacity, copies[i].to_length);
}

/* Copies, then appends another token to each of the two, so that a copy that shares memory shows. */
static void run_copy(trace *t, const subject *s, int i)
{
    cache from, to;

    name_copy(t, s, i);
    open_made(&from, s->m, copies[i].from_capacity, FROM, copies[i].from_length);
    open_made(&to, s->m, copies[i].to_capacity, TO, copies[i].to_length);
    trace_int(t, cache_copy(&to, &from), "what cache_copy returns");
    trace_int(t, to.length, "length of the copy");
    trace_int(t, to.capacity, "capacity of the copy");
    trace_int(t, from.length, "length of the copied cache");
    if (from.length < from.capacity)
        append_made(&from, NEXT_FROM);
    if (to.length < to.capacity)
        append_made(&to, NEXT_TO);
    trace_held(t, &to, to.length < 0 || to.length > copies[i].to_capacity ? 0 : to.length, "the copy");
    trace_held(t, &from, from.length < 0 || from.length > copies[i].from_capacity ? 0 : from.length, "the copied cache");
    cache_free(&from);
    cache_free(&to);
}

static void expect_copy(trace *t, const subject *s, int i)
{
    int n_from = copies[i].from_length, n = copies[i].status ? copies[i].to_length : n_from;
    bool more = n < copies[i].to_capacity, more_from = n_from < copies[i].from_capacity;

    name_copy(t, s, i);
    trace_int(t, copies[i].status, "what cache_copy returns");
    trace_int(t, n, "length of the copy");
    trace_int(t, copies[i].to_capacity, "capacity of the copy");
    trace_int(t, n_from, "length of the copied cache");
    expect_held(t, s->m, copies[i].status ? TO : FROM, n + more, more ? NEXT_TO : -1, "the copy");
    expect_held(t, s->m, FROM, n_from + more_from, more_from ? NEXT_FROM : -1, "the copied cache");
}

/* ---- 5b: the caches follow their beams ---- */

enum { MAX_CACHES = 5, HELD = 12 };

/* How many tokens the caches hold to begin with: cache i those of its subject from 8 i on. */
static const int held_5b[MAX_CACHES] = {3, 5, 4, 6, 2};

static const struct {
    int n_caches, n, parents[MAX_CACHES], status;
} orders[] = {
    {2, 2, {1, 0}, 0},          {3, 2, {1, 0}, 0},          {4, 2, {1, 0}, 0},
    {2, 2, {1, 1}, 0},          {3, 2, {1, 1}, 0},          {4, 2, {1, 1}, 0},
    {3, 3, {0, 0, 0}, 0},       {4, 3, {0, 0, 0}, 0},       {5, 3, {0, 0, 0}, 0},
    {2, 2, {0, 0}, 0},          {2, 2, {0, 1}, 0},          {3, 3, {2, 0, 1}, 0},
    {3, 3, {1, 2, 0}, 0},       {4, 3, {1, 2, 0}, 0},       {3, 3, {2, 2, 0}, 0},
    {3, 3, {1, 2, 2}, 0},       {4, 4, {3, 3, 1, 1}, 0},    {4, 4, {1, 0, 3, 2}, 0},
    {5, 5, {4, 0, 4, 0, 2}, 0}, {5, 4, {1, 2, 3, 4}, 0},    {4, 2, {3, 2}, 0},
    {4, 3, {3, 3, 0}, 0},       {3, 1, {2}, 0},             {1, 1, {0}, 0},
    {3, 3, {2, 1, 1}, 0},       {3, 3, {1, 1, 3}, -1},      {3, 3, {2, -1, 0}, -1},
    {3, 3, {3, 0, 1}, -1},      {4, 2, {1, 4}, -1},         {3, 0, {0}, -1},
    {3, -1, {0}, -1},           {3, 4, {2, 1, 0, 0}, -1},
};

enum { N_ORDERS = sizeof orders / sizeof *orders };

static void name_order(trace *t, const char *name, int n_caches, const int *parents, int n)
{
    char list[64] = "";

    for (int i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), i ? ",%d" : "%d", parents[i]);
    trace_case(t, "%s, parents [%s] of %d caches", name, list, n_caches);
}

typedef struct {
    cache store[MAX_CACHES], *caches[MAX_CACHES];
    int n_caches;
} family;

static void open_family(family *all, const subject *s, int n_caches)
{
    real *logits = new_reals((size_t)HELD * s->m->shape.n_vocab);

    all->n_caches = n_caches;
    for (int i = 0; i < n_caches; i++) {
        all->caches[i] = &all->store[i];
        if (cache_init(&all->store[i], s->m, HELD) || cache_forward(&all->store[i], s->tokens + 8 * i, held_5b[i], logits))
            exit(2);
    }
    free(logits);
}

static void free_family(family *all)
{
    for (int i = 0; i < all->n_caches; i++)
        cache_free(&all->store[i]);
}

/* Reorders and traces that no cache got lost and how many were copied. A cache is known by its memory, so that it counts
   as moved whether the answer moves pointers to caches or what they point to. */
static void run_order(trace *t, family *all, const int *parents, int n)
{
    cache **exact = copy_of(all->caches, all->n_caches * sizeof *exact);
    int *given = copy_of(parents, (n > 0 ? n : 0) * sizeof *given), copied = 0, kept = 0;
    const real *before[MAX_CACHES];

    for (int i = 0; i < all->n_caches; i++)
        before[i] = all->caches[i]->keys;
    int status = cache_reorder(exact, all->n_caches, given, n);
    trace_int(t, status, "what cache_reorder returns");
    memcpy(all->caches, exact, all->n_caches * sizeof *exact);
    for (int i = 0; i < all->n_caches; i++)
        for (int k = 0; k < all->n_caches; k++)
            kept += all->caches[k]->keys == before[i] && (k == 0 || all->caches[k]->keys != all->caches[0]->keys);
    for (int i = 0; i < n && !status; i++)
        copied += all->caches[i]->keys != before[parents[i]];
    trace_int(t, kept, "different caches afterwards");
    trace_int(t, copied, "copies");
    trace_int(t, n < 1 || memcmp(given, parents, n * sizeof *given) == 0, "the parents are unchanged");
    free(exact);
    free(given);
}

static void expect_order(trace *t, int n_caches, const int *parents, int n, int status)
{
    int parents_in_use = 0;

    for (int p = 0; p < n_caches && !status; p++)
        for (int i = 0; i < n; i++)
            if (parents[i] == p) {
                parents_in_use++;
                break;
            }
    trace_int(t, status, "what cache_reorder returns");
    trace_int(t, n_caches, "different caches afterwards");
    trace_int(t, status ? 0 : n - parents_in_use, "copies");
    trace_int(t, 1, "the parents are unchanged");
}

/* Feeds each of the first n caches a token of its own and traces what it says. */
static void run_next(trace *t, family *all, int n, const int *next)
{
    int n_vocab = all->store[0].m->shape.n_vocab, lengths[MAX_CACHES];
    real *logits = new_reals((size_t)n * n_vocab);

    for (int i = 0; i < n; i++)
        lengths[i] = all->caches[i]->length;
    trace_ints(t, lengths, AXES({"cache", 0, n}), "lengths");
    for (int i = 0; i < n; i++)
        cache_forward(all->caches[i], next + i, 1, logits + (size_t)i * n_vocab);
    trace_logits(t, logits, AXES({"cache", 0, n}, {"token", 0, n_vocab}), "logits of the next token");
    free(logits);
}

typedef struct {
    int tokens[HELD], n;
} history;

static void expect_next(trace *t, const subject *s, history *all, int n, const int *next)
{
    int n_vocab = s->m->shape.n_vocab, lengths[MAX_CACHES];
    real *logits = new_reals((size_t)n * n_vocab), *rows = new_reals((size_t)HELD * n_vocab);

    for (int i = 0; i < n; i++) {
        lengths[i] = all[i].n;
        all[i].tokens[all[i].n++] = next[i];
        model_forward(s->m, all[i].tokens, all[i].n, rows);
        memcpy(logits + (size_t)i * n_vocab, rows + (size_t)(all[i].n - 1) * n_vocab, n_vocab * sizeof *logits);
    }
    trace_ints(t, lengths, AXES({"cache", 0, n}), "lengths");
    trace_logits(t, logits, AXES({"cache", 0, n}, {"token", 0, n_vocab}), "logits of the next token");
    free(logits);
    free(rows);
}

static void first_histories(const subject *s, history *all)
{
    for (int i = 0; i < MAX_CACHES; i++) {
        all[i].n = held_5b[i];
        memcpy(all[i].tokens, s->tokens + 8 * i, all[i].n * sizeof *all[i].tokens);
    }
}

static void follow_parents(history *all, const int *parents, int n)
{
    history old[MAX_CACHES];

    memcpy(old, all, sizeof old);
    for (int i = 0; i < n; i++)
        all[i] = old[parents[i]];
}

/* After an error all caches are as they were; after a good call, those that have a parent. */
static void run_ordered(trace *t, const subject *s, int i)
{
    family all;

    name_order(t, s->name, orders[i].n_caches, orders[i].parents, orders[i].n);
    open_family(&all, s, orders[i].n_caches);
    run_order(t, &all, orders[i].parents, orders[i].n);
    run_next(t, &all, orders[i].status ? orders[i].n_caches : orders[i].n, s->tokens + 50);
    free_family(&all);
}

static void expect_ordered(trace *t, const subject *s, int i)
{
    history all[MAX_CACHES];

    name_order(t, s->name, orders[i].n_caches, orders[i].parents, orders[i].n);
    first_histories(s, all);
    expect_order(t, orders[i].n_caches, orders[i].parents, orders[i].n, orders[i].status);
    if (!orders[i].status)
        follow_parents(all, orders[i].parents, orders[i].n);
    expect_next(t, s, all, orders[i].status ? orders[i].n_caches : orders[i].n, s->tokens + 50);
}

/* Steps of a search of three beams, one after the other. */
static const int walk[][3] = {{0, 0, 0}, {2, 0, 1}, {1, 1, 0}, {2, 2, 2}, {0, 2, 1}};

enum { N_WALK = sizeof walk / sizeof *walk };

static void run_walk(trace *t, const subject *s, int n_caches)
{
    family all;

    open_family(&all, s, n_caches);
    for (int i = 0; i < N_WALK; i++) {
        trace_case(t, "%s, step %d of a search of 3 beams, %d caches", s->name, i, n_caches);
        run_order(t, &all, walk[i], 3);
        run_next(t, &all, 3, s->tokens + 40 + 3 * i);
    }
    free_family(&all);
}

static void expect_walk(trace *t, const subject *s, int n_caches)
{
    history all[MAX_CACHES];

    first_histories(s, all);
    for (int i = 0; i < N_WALK; i++) {
        trace_case(t, "%s, step %d of a search of 3 beams, %d caches", s->name, i, n_caches);
        expect_order(t, n_caches, walk[i], 3, 0);
        follow_parents(all, walk[i], 3);
        expect_next(t, s, all, 3, s->tokens + 40 + 3 * i);
    }
}

static void run_5b(trace *t)
{
    for (int k = 0; k < N_5B; k++)
        for (int i = 0; i < N_COPIES; i++)
            run_copy(t, get_subject(subjects_5b[k]), i);
    for (int i = 0; i < N_ORDERS; i++)
        run_ordered(t, get_subject(4), i);
    for (int n_caches = 3; n_caches <= MAX_CACHES; n_caches++)
        run_walk(t, get_subject(5), n_caches);
}

static void expect_5b(trace *t)
{
    for (int k = 0; k < N_5B; k++)
        for (int i = 0; i < N_COPIES; i++)
            expect_copy(t, get_subject(subjects_5b[k]), i);
    for (int i = 0; i < N_ORDERS; i++)
        expect_ordered(t, get_subject(4), i);
    for (int n_caches = 3; n_caches <= MAX_CACHES; n_caches++)
        expect_walk(t, get_subject(5), n_caches);
}

/* ---- 5c: scores ---- */

static const struct {
    double sum;
    int length;
    double alpha, right;
} normalised[] = {
    {-3, 3, 1, -1},     {-3, 2, 1, -1.5},  {-6, 4, 0.5, -3},  {-5, 7, 0, -5},     {-8, 4, 1.5, -1}, {-2, 1, 1, -2},
    {-2, 1, 3, -2},     {-3, 2, -1, -6},   {-18, 3, 2, -2},   {0, 5, 1, 0},       {-6, 9, -0.5, -18}, {-6, 1, 0, -6},
    {-32.475, 3, 1, -10.825}, {-75.775, 7, 1, -10.825}, {-108.25, 10, 1, -10.825}, {-INFINITY, 3, 1, -INFINITY},
};

static const struct {
    double sum;
    int length, limit;
    double alpha, right;
} reachable[] = {
    {-3, 2, 10, 1, -0.3}, {-3, 2, 10, 0, -3},   {-6, 1, 4, 0.5, -3},  {-3, 2, 10, -1, -9}, {-3, 4, 4, 1, -0.75},
    {-3, 4, 4, 0, -3},    {-3, 4, 4, -1, -12},  {-3, 3, 4, 1, -0.75}, {-3, 3, 4, -1, -12}, {-8, 1, 2, 2, -2},
    {-4, 0, 4, 1, -1},    {-4, 0, 4, -1, -4},   {0, 2, 5, 1, 0},      {-16, 2, 16, 0.25, -8}, {-1, 8, 64, 0.5, -0.125},
};

enum { N_NORMALISED = sizeof normalised / sizeof *normalised, N_REACHABLE = sizeof reachable / sizeof *reachable };

static void scores_5c(trace *t, bool expects)
{
    for (int i = 0; i < N_NORMALISED; i++) {
        double sum = normalised[i].sum, alpha = normalised[i].alpha;
        int length = normalised[i].length;
        trace_case(t, "sum %g, length %d, alpha %g", sum, length, alpha);
        real score = expects ? normalised[i].right : length_normalised(sum, length, alpha);
        trace_reals(t, &score, AXES({"score", 0, 1}), "length_normalised");
    }
    for (int i = 0; i < N_REACHABLE; i++) {
        double sum = reachable[i].sum, alpha = reachable[i].alpha;
        int length = reachable[i].length, limit = reachable[i].limit;
        trace_case(t, "sum %g, length %d of at most %d, alpha %g", sum, length, limit, alpha);
        real score = expects ? reachable[i].right : best_reachable(sum, length, limit, alpha);
        trace_reals(t, &score, AXES({"score", 0, 1}), "best_reachable");
    }
}

/* ---- 5c: the list. Each hypothesis is known by its only token ---- */

enum { MOST_KEPT = 8 };

static const struct {
    const char *name;
    int room, n;
    double scores[MOST_KEPT];
    int places[MOST_KEPT]; /* what keep_hypothesis returns for each */
    int n_kept, kept[MOST_KEPT]; /* which of them the list holds in the end */
} lists[] = {
    {"one", 3, 1, {-1}, {0}, 1, {0}},
    {"best first", 3, 3, {-1, -2, -3}, {0, 1, 2}, 3, {0, 1, 2}},
    {"worst first", 3, 3, {-3, -2, -1}, {0, 0, 0}, 3, {2, 1, 0}},
    {"the best in the middle", 3, 3, {-3, -1, -2}, {0, 0, 1}, 3, {1, 2, 0}},
    {"equal scores", 4, 4, {-2, -2, -2, -2}, {0, 1, 2, 3}, 4, {0, 1, 2, 3}},
    {"an equal score in the middle", 5, 4, {-1, -2, -3, -2}, {0, 1, 2, 2}, 4, {0, 1, 3, 2}},
    {"full, the new one is best", 2, 3, {-2, -3, -1}, {0, 1, 0}, 2, {2, 0}},
    {"full, the new one is second", 2, 3, {-1, -3, -2}, {0, 1, 1}, 2, {0, 2}},
    {"full, the new one is worst", 2, 3, {-1, -2, -3}, {0, 1, -1}, 2, {0, 1}},
    {"full, the new one equals the worst", 2, 3, {-1, -2, -2}, {0, 1, -1}, 2, {0, 1}},
    {"full, the new one equals the best", 2, 3, {-1, -2, -1}, {0, 1, 1}, 2, {0, 2}},
    {"room for one", 1, 5, {-4, -5, -3, -3, -2}, {0, -1, 0, -1, 0}, 1, {4}},
    {"many into three", 3, 8, {-5, -1, -4, -2, -3, -9, -0.5, -2}, {0, 0, 1, 1, 2, -1, 0, -1}, 3, {6, 1, 3}},
    {"scores of 0", 3, 4, {-1, 0, -0.5, 0}, {0, 0, 1, 1}, 3, {1, 3, 2}},
    {"scores that differ by 1e-12", 2, 3, {-1, -1 - 1e-12, -1 + 1e-12}, {0, 1, 0}, 2, {2, 0}},
};

enum { N_LISTS = sizeof lists / sizeof *lists };

/* The sums are in another order than the scores. */
static hypothesis hypothesis_of(int *token, int i, double score)
{
    *token = 100 + i;
    return (hypothesis){.tokens = token, .length = i + 1, .sum = -(double)((3 * i + 5) % 7), .score = score, .ended = i % 2};
}

static void trace_list(trace *t, const hypothesis *list, int n)
{
    int numbers[4 * n + 1];
    real values[2 * n + 1];

    for (int i = 0; i < n; i++) {
        int row[] = {list[i].tokens[0], list[i].length, list[i].ended};
        memcpy(numbers + 3 * i, row, sizeof row);
        values[2 * i] = list[i].sum;
        values[2 * i + 1] = list[i].score;
    }
    trace_ints(t, numbers, AXES({"place", 0, n}, {"field", 0, 3}), "token, length and ended of each");
    trace_reals(t, values, AXES({"place", 0, n}, {"field", 0, 2}), "sum and score of each");
}

static void run_list(trace *t, const double *scores, int n, int room)
{
    hypothesis *list = ROOM(hypothesis, room);
    int *tokens = ROOM(int, n), *places = ROOM(int, n), kept = 0;

    memset(list, 0xff, room * sizeof *list);
    for (int i = 0; i < n; i++)
        places[i] = keep_hypothesis(list, &kept, room, hypothesis_of(tokens + i, i, scores[i]));
    trace_ints(t, places, AXES({"call", 0, n}), "what keep_hypothesis returns");
    trace_int(t, kept, "how many it holds");
    trace_list(t, list, kept < 0 || kept > room ? 0 : kept);
    free(list);
    free(tokens);
    free(places);
}

static void expect_list(trace *t, const double *scores, const int *places, int n, const int *kept, int n_kept)
{
    hypothesis list[n_kept + 1];
    int tokens[n_kept + 1];

    for (int i = 0; i < n_kept; i++)
        list[i] = hypothesis_of(tokens + i, kept[i], scores[kept[i]]);
    trace_ints(t, places, AXES({"call", 0, n}), "what keep_hypothesis returns");
    trace_int(t, n_kept, "how many it holds");
    trace_list(t, list, n_kept);
}

enum { N_LONG = 60, LONG_ROOM = 9 };

static void long_scores(double *scores)
{
    generator g = {55};

    for (int i = 0; i < N_LONG; i++)
        scores[i] = -(double)(random_bits(&g) % 20) / 4;
}

/* A call's place is how many of those before it are as good; the list is all of them ranked, cut. */
static void expect_long_list(trace *t)
{
    double scores[N_LONG];
    int places[N_LONG], kept[N_LONG] = {0};

    long_scores(scores);
    for (int i = 0; i < N_LONG; i++) {
        int before = 0, better = 0;
        for (int j = 0; j < N_LONG; j++) {
            before += j < i && scores[j] >= scores[i];
            better += scores[j] > scores[i] || (j < i && scores[j] == scores[i]);
        }
        places[i] = before < LONG_ROOM ? before : -1;
        kept[better] = i;
    }
    expect_list(t, scores, places, N_LONG, kept, LONG_ROOM);
}

static void run_5c(trace *t)
{
    double scores[N_LONG];

    scores_5c(t, false);
    for (int i = 0; i < N_LISTS; i++) {
        trace_case(t, "%s", lists[i].name);
        run_list(t, lists[i].scores, lists[i].n, lists[i].room);
    }
    trace_case(t, "%d into %d", N_LONG, LONG_ROOM);
    long_scores(scores);
    run_list(t, scores, N_LONG, LONG_ROOM);
}

static void expect_5c(trace *t)
{
    scores_5c(t, true);
    for (int i = 0; i < N_LISTS; i++) {
        trace_case(t, "%s", lists[i].name);
        expect_list(t, lists[i].scores, lists[i].places, lists[i].n, lists[i].kept, lists[i].n_kept);
    }
    trace_case(t, "%d into %d", N_LONG, LONG_ROOM);
    expect_long_list(t);
}

/* ---- 5d, 5e: what is searched. Tiny random models of V tokens and contexts of 16 ---- */

enum { TINY_CONTEXT = 16, MOST_NEW = TINY_CONTEXT, MOST_VOCAB = 128, N_TINY = 10 };

static const struct {
    int n_vocab;
    uint64_t seed;
} tiny[N_TINY] = {{5, 1}, {4, 2}, {12, 3}, {41, 4}, {1, 5}, {2, 6}, {5, 7}, {7, 8}, {4, 9}, {12, 10}};

static const model *tiny_model(int i)
{
    static model *all[N_TINY];
    static const model_shape shapes[] = {
        {.n_ctx = TINY_CONTEXT, .d_model = 16, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .d_ff = 16, .norm = RMS_NORM,
         .activation = SWIGLU, .position = ROTARY, .norm_eps = 1e-5, .rope_base = 10000},
        {.n_ctx = TINY_CONTEXT, .d_model = 12, .n_layer = 1, .n_head = 3, .n_kv_head = 3, .d_ff = 20, .norm = LAYER_NORM,
         .activation = GELU_TANH, .position = LEARNED, .bias = true, .norm_eps = 1e-5, .rope_base = 10000},
    };
    model_shape shape = shapes[i % 2];
    failure f;

    shape.n_vocab = tiny[i].n_vocab;
    if (!all[i] && !(all[i] = model_random(shape, tiny[i].seed, &f))) {
        fprintf(stderr, "%s\n", f.sentence);
        exit(2);
    }
    return all[i];
}

/* A request, and where its numbers come from: tiny model i, or shipped model i - SHIPPED. */
enum { SHIPPED = 100 };

typedef struct {
    const char *name;
    int model, n_prompt, n_beams, max_new, end_of_text;
    double alpha, temperature, penalty;
} request;

static beam_options options_of(const request *r)
{
    return (beam_options){.m = r->model < SHIPPED ? tiny_model(r->model) : get_subject(r->model - SHIPPED)->m,
                          .n_beams = r->n_beams, .max_new_tokens = r->max_new, .end_of_text = r->end_of_text,
                          .alpha = r->alpha, .temperature = r->temperature, .penalty = r->penalty};
}

/* The prompt of a request: it has tokens that are generated too. */
static void prompt_of(const request *r, int *tokens)
{
    int n_vocab = options_of(r).m->shape.n_vocab;

    for (int i = 0; i < r->n_prompt; i++)
        tokens[i] = (3 + 5 * i * i + 2 * r->model) % n_vocab;
}

static int limit_of(const request *r)
{
    int fits = options_of(r).m->shape.n_ctx - r->n_prompt;

    return r->max_new < fits ? r->max_new : fits;
}

/* ---- running a request ---- */

/* At most `shown` of n results. What an answer leaves in them is looked at with care: it may be anything. */
static void trace_results(trace *t, const hypothesis *results, int n, int shown, int limit)
{
    int *tokens = ROOM(int, shown * limit), *lengths = ROOM(int, shown), *ended = ROOM(int, shown);
    real *sums = new_reals(shown), *scores = new_reals(shown);

    trace_int(t, n, "number of hypotheses");
    n = n < 0 ? 0 : n < shown ? n : shown;
    for (int i = 0; i < n; i++) {
        int length = results[i].length < 0 || results[i].length > limit ? 0 : results[i].length;
        for (int k = 0; k < limit; k++)
            tokens[i * limit + k] = k < length ? results[i].tokens[k] : -1;
        lengths[i] = results[i].length;
        ended[i] = results[i].ended;
        sums[i] = results[i].sum;
        scores[i] = results[i].score;
    }
    trace_ints(t, lengths, AXES({"hypothesis", 0, n}), "lengths");
    trace_ints(t, tokens, AXES({"hypothesis", 0, n}, {"place", 0, limit}), "tokens");
    trace_ints(t, ended, AXES({"hypothesis", 0, n}), "whether the end-of-text token ended them");
    trace_reals(t, sums, AXES({"hypothesis", 0, n}), "sums");
    trace_reals(t, scores, AXES({"hypothesis", 0, n}), "scores");
    free(tokens);
    free(lengths);
    free(ended);
    free(sums);
    free(scores);
}

/* The caller's side of a search: K results with room for max_new tokens each. */
typedef struct {
    hypothesis *results;
    int **rooms, n;
} results_room;

static results_room open_results(int n, int max_new)
{
    results_room r = {ROOM(hypothesis, n), ROOM(int *, n), n};

    memset(r.results, 0xff, n * sizeof *r.results);
    for (int i = 0; i < n; i++) {
        r.rooms[i] = ROOM(int, max_new);
        memset(r.rooms[i], 0xff, max_new * sizeof(int));
        r.results[i].tokens = r.rooms[i];
    }
    return r;
}

/* Each of the first n results has one of the caller's rooms, and no two the same. */
static bool own_rooms(const results_room *r, int n)
{
    for (int i = 0; i < n; i++) {
        bool own = false;
        for (int k = 0; k < r->n; k++)
            own |= r->results[i].tokens == r->rooms[k];
        for (int k = 0; k < i; k++)
            own &= r->results[i].tokens != r->results[k].tokens;
        if (!own)
            return false;
    }
    return true;
}

static void free_results(results_room *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->rooms[i]);
    free(r->rooms);
    free(r->results);
}

/* Traces what a request gives: at most `shown` results, and if wanted what the model was used for. */
static void run_request(trace *t, const request *r, int shown, bool counts)
{
    beam_options o = options_of(r), before = o;
    int *prompt = ROOM(int, r->n_prompt), *copy;
    results_room room = open_results(r->n_beams, r->max_new);
    failure f = {""};

    trace_case(t, "%s", r->name);
    prompt_of(r, prompt);
    copy = copy_of(prompt, r->n_prompt * sizeof *prompt);
    counts_reset();
    int n = beam_search(&o, prompt, r->n_prompt, room.results, &f);
    int sound = n < 0 ? 0 : n < r->n_beams ? n : r->n_beams;
    bool own = own_rooms(&room, sound);
    trace_int(t, own, "the results' tokens are in the caller's rooms");
    trace_results(t, room.results, own ? n : -1, shown, limit_of(r));
    trace_int(t, !memcmp(prompt, copy, r->n_prompt * sizeof *prompt) && !memcmp(&o, &before, sizeof o),
              "prompt and options are unchanged");
    if (counts)
        trace_used(t, o.m);
    free(prompt);
    free(copy);
    free_results(&room);
}

/* ---- what is right ---- */

/* A list of hypotheses with their own memory, and what it took to find them. */
typedef struct {
    hypothesis *all;
    int n, room;
    long long projected, scored;
    double margin; /* the smallest difference of two scores that decided something */
} findings;

static void add_finding(findings *found, const int *tokens, int length, double sum, double alpha, bool ended)
{
    if (found->n == found->room) {
        found->room = 2 * found->room + 8;
        found->all = realloc(found->all, found->room * sizeof *found->all);
        if (!found->all)
            exit(2);
    }
    found->all[found->n++] = (hypothesis){.tokens = copy_of(tokens, length * sizeof *tokens), .length = length, .sum = sum,
                                          .score = sum / pow(length, alpha), .ended = ended};
}

static void free_findings(findings *found)
{
    for (int i = 0; i < found->n; i++)
        free(found->all[i].tokens);
    free(found->all);
}

/* Log-probabilities [V] of what follows prompt and n generated tokens, from the whole model without a cache: penalise
   each distinct generated token, divide by the temperature, log-softmax. */
static void follow(const request *r, const int *tokens, int n, double *log_p)
{
    static real rows[TEST_TOKENS * MOST_VOCAB];
    const model *m = options_of(r).m;
    int n_vocab = m->shape.n_vocab, all[TEST_TOKENS];
    bool seen[MOST_VOCAB] = {false};
    long double sum = 0;

    prompt_of(r, all);
    memcpy(all + r->n_prompt, tokens, n * sizeof *tokens);
    model_forward(m, all, r->n_prompt + n, rows);
    for (int i = 0; i < n; i++)
        seen[tokens[i]] = true;
    for (int id = 0; id < n_vocab; id++) {
        double logit = rows[(size_t)(r->n_prompt + n - 1) * n_vocab + id];
        if (seen[id])
            logit = logit > 0 ? logit / (real)r->penalty : logit * (real)r->penalty;
        log_p[id] = logit / (real)r->temperature;
        sum += expl(log_p[id]);
    }
    for (int id = 0; id < n_vocab; id++)
        log_p[id] -= logl(sum);
}

static void narrow(findings *found, double difference)
{
    if (fabs(difference) < found->margin)
        found->margin = fabs(difference);
}

/* Greedy decoding: the arg-max of each row. */
static void find_greedy(const request *r, findings *found)
{
    double log_p[MOST_VOCAB], sum = 0;
    int tokens[MOST_NEW], n = 0, n_vocab = options_of(r).m->shape.n_vocab;
    bool ended = false;

    *found = (findings){.projected = r->n_prompt, .scored = causal_pairs(0, r->n_prompt), .margin = 1};
    while (n < limit_of(r) && !ended) {
        int best = 0;
        follow(r, tokens, n, log_p);
        for (int id = 1; id < n_vocab; id++)
            best = log_p[id] > log_p[best] ? id : best;
        for (int id = 0; id < n_vocab; id++)
            if (id != best)
                narrow(found, log_p[best] - log_p[id]);
        if (n > 0) {
            found->projected++;
            found->scored += r->n_prompt + n;
        }
        sum += log_p[best];
        tokens[n++] = best;
        ended = best == r->end_of_text;
    }
    add_finding(found, tokens, n, sum, r->alpha, ended);
}

static int by_score(const void *a, const void *b)
{
    const hypothesis *x = a, *y = b;

    return x->score < y->score ? 1 : x->score > y->score ? -1 : 0;
}

/* All sequences that begin with tokens [n], whose log-probabilities sum to `sum`. */
static void try_all(const request *r, int *tokens, int n, double sum, findings *found)
{
    double log_p[MOST_VOCAB];

    follow(r, tokens, n, log_p);
    for (int id = 0; id < options_of(r).m->shape.n_vocab; id++) {
        tokens[n] = id;
        if (id == r->end_of_text || n + 1 == limit_of(r))
            add_finding(found, tokens, n + 1, sum + log_p[id], r->alpha, id == r->end_of_text);
        else
            try_all(r, tokens, n + 1, sum + log_p[id], found);
    }
}

/* Cuts a list of findings to the best, and notes how near they are to each other. */
static void cut(findings *found, int n_best, int shown)
{
    qsort(found->all, found->n, sizeof *found->all, by_score);
    for (int i = 1; i < found->n && i <= shown && i <= n_best; i++)
        narrow(found, found->all[i].score - found->all[i - 1].score);
    for (; found->n > n_best; found->n--)
        free(found->all[found->n - 1].tokens);
}

static void find_by_force(const request *r, int shown, findings *found)
{
    int tokens[MOST_NEW];

    *found = (findings){.margin = 1};
    try_all(r, tokens, 0, 0, found);
    cut(found, r->n_beams, shown);
}

typedef struct {
    int tokens[MOST_NEW];
    double sum;
} live_beam;

enum { MOST_BEAMS = 16 };

/* Whether K are finished and no live beam can beat the worst of them, at any length that it could still come to. */
static bool is_decided(const request *r, findings *found, const live_beam *live, int n_live, int length)
{
    double best = -INFINITY;

    if (found->n < r->n_beams)
        return false;
    cut(found, r->n_beams, r->n_beams);
    for (int b = 0; b < n_live; b++)
        for (int n = length + 1; n <= limit_of(r); n++)
            best = fmax(best, live[b].sum / pow(n, r->alpha));
    if (n_live)
        narrow(found, best - found->all[r->n_beams - 1].score);
    return !(best > found->all[r->n_beams - 1].score);
}

/* All candidates of the live beams, ranked. */
static int rank_all(const request *r, const live_beam *live, int n_live, int length, candidate *all)
{
    double log_p[MOST_VOCAB];
    int n = 0, n_vocab = options_of(r).m->shape.n_vocab;

    for (int b = 0; b < n_live; b++) {
        follow(r, live[b].tokens, length, log_p);
        for (int id = 0; id < n_vocab; id++)
            all[n++] = (candidate){live[b].sum + log_p[id], b, id};
    }
    qsort(all, n, sizeof *all, by_rank);
    return n;
}

/* One step, word for word: those that end the text leave the beam, if they are among the best K; the others fill it. */
static int step_plainly(const request *r, live_beam *live, int n_live, int length, findings *found)
{
    static candidate all[MOST_BEAMS * MOST_VOCAB];
    live_beam old[MOST_BEAMS];
    int n = rank_all(r, live, n_live, length, all), n_new = 0;

    memcpy(old, live, sizeof old);
    for (int i = 0; i < n; i++) {
        live_beam next = old[all[i].beam];
        next.tokens[length] = all[i].id;
        next.sum = all[i].sum;
        if (all[i].id == r->end_of_text) {
            if (i < r->n_beams)
                add_finding(found, next.tokens, length + 1, next.sum, r->alpha, true);
        } else if (n_new < r->n_beams)
            live[n_new++] = next;
        bool at_cut = i == r->n_beams - 1 || (n_new == r->n_beams && all[i].id != r->end_of_text);
        if (at_cut && i + 1 < n)
            narrow(found, all[i].sum - all[i + 1].sum);
        if (n_new == r->n_beams && i >= r->n_beams)
            break;
    }
    return n_new;
}

static void find_plainly(const request *r, findings *found)
{
    live_beam live[MOST_BEAMS] = {{.sum = 0}};
    int n_live = 1, length = 0;

    *found = (findings){.projected = r->n_prompt, .scored = causal_pairs(0, r->n_prompt), .margin = 1};
    for (;;) {
        n_live = step_plainly(r, live, n_live, length++, found);
        if (n_live == 0 || length == limit_of(r) || is_decided(r, found, live, n_live, length))
            break;
        found->projected += n_live;
        found->scored += (long long)n_live * (r->n_prompt + length);
    }
    for (int b = 0; b < n_live && length == limit_of(r); b++)
        add_finding(found, live[b].tokens, length, live[b].sum, r->alpha, false);
    cut(found, r->n_beams, r->n_beams);
}

/* A search is only worth comparing if no decision in it is so near that rounding could turn it. */
static void expect_request(trace *t, const request *r, findings *found, int shown, bool counts)
{
    double least = sizeof(real) == sizeof(double) ? 1e-9 : 5e-5;

    if (found->margin < least) {
        fprintf(stderr, "%s: two candidates differ by %.1e only\n", r->name, found->margin);
        exit(2);
    }
    trace_case(t, "%s", r->name);
    trace_int(t, 1, "the results' tokens are in the caller's rooms");
    trace_results(t, found->all, found->n, shown, limit_of(r));
    trace_int(t, 1, "prompt and options are unchanged");
    if (counts)
        expect_used(t, options_of(r).m, found->projected, found->scored);
    free_findings(found);
}

/* ---- 5d: one beam is greedy decoding ---- */

static const request greedy[] = {
    {"as it comes", 0, 3, 1, 8, -1, 0, 1, 1},
    {"temperature 0.7", 0, 3, 1, 8, -1, 0, 0.7, 1},
    {"temperature 3", 3, 4, 1, 8, -1, 0, 3, 1},
    {"penalty 1.5", 0, 4, 1, 8, -1, 0, 1, 1.5},
    {"penalty 5", 1, 4, 1, 10, -1, 0, 1, 5},
    {"penalty 0.5", 2, 3, 1, 6, -1, 0, 1, 0.5},
    {"temperature 0.8 and penalty 1.3", 3, 5, 1, 10, -1, 0, 0.8, 1.3},
    {"temperature 2, penalty 1.8, alpha 0.7", 2, 5, 1, 10, -1, 0.7, 2, 1.8},
    {"alpha 1", 7, 2, 1, 7, -1, 1, 1, 1},
    {"alpha -1", 7, 2, 1, 7, -1, -1, 1, 1},
    {"a prompt of one token", 2, 1, 1, 6, -1, 1, 1, 1},
    {"one new token", 3, 4, 1, 1, -1, 1, 1, 1},
    {"two new tokens", 3, 4, 1, 2, -1, 1, 1, 1},
    {"a limit past the context: 3 tokens fit", 0, 13, 1, 10, -1, 1, 1, 1},
    {"a limit past the context: 1 token fits", 0, 15, 1, 10, -1, 1, 1, 1},
    {"a limit that just fits the context", 2, 12, 1, 4, -1, 0.5, 1, 1},
    {"a limit of 1000", 2, 12, 1, 1000, -1, 0.5, 1, 1},
    {"one token in the vocabulary", 4, 3, 1, 4, -1, 1, 1, 1},
    {"one token in the vocabulary, and it ends the text", 4, 3, 1, 4, 0, 1, 1, 1},
    {"the first token ends the text", 0, 3, 1, 5, 3, 0, 1, 1},
    {"the second token ends the text: id 0", 7, 2, 1, 7, 0, 0, 1, 1},
    {"the third token ends the text", 3, 4, 1, 8, 4, 0, 3, 1},
    {"the third token ends the text, alpha -0.5", 3, 4, 1, 8, 4, -0.5, 3, 1},
    {"the last token allowed ends the text", 3, 4, 1, 3, 4, 0, 3, 1},
    {"the token behind the limit would end the text", 3, 4, 1, 2, 4, 0, 3, 1},
    {"the last token that fits ends the text", 3, 13, 1, 9, 9, 0, 1, 1},
    {"end of text with a penalty", 1, 4, 1, 10, 2, 0, 1, 5},
    {"end of text in the prompt only", 3, 4, 1, 5, 9, 0, 3, 1},
};

/* Shipped models in double alone: in float two of their logits may be nearer to each other than rounding. */
static const request greedy_shipped[] = {
    {"sinusoidal, 16 tokens", SHIPPED, 8, 1, 16, -1, 0, 1, 1},
    {"learned, 12 tokens, temperature 0.7, penalty 1.3", SHIPPED + 1, 8, 1, 12, -1, 0.6, 0.7, 1.3},
    {"rotary, 12 tokens, penalty 1.2", SHIPPED + 2, 20, 1, 12, -1, 1, 1, 1.2},
};

enum { N_GREEDY = sizeof greedy / sizeof *greedy, N_GREEDY_SHIPPED = 3 };

/* What beam_search refuses: with a prompt of these lengths, and one of its ids changed. */
static const struct {
    request r;
    int bad_at, bad_id;
} bad_requests[] = {
    {{"an empty prompt", 0, 0, 1, 4, -1, 0, 1, 1}, -1, 0},
    {{"a prompt that fills the context", 0, TINY_CONTEXT, 1, 4, -1, 0, 1, 1}, -1, 0},
    {{"a prompt longer than the context", 0, TINY_CONTEXT + 1, 1, 4, -1, 0, 1, 1}, -1, 0},
    {{"no beams", 0, 3, 0, 4, -1, 0, 1, 1}, -1, 0},
    {{"-1 beams", 0, 3, -1, 4, -1, 0, 1, 1}, -1, 0},
    {{"no new tokens", 0, 3, 1, 0, -1, 0, 1, 1}, -1, 0},
    {{"-1 new tokens", 0, 3, 1, -1, -1, 0, 1, 1}, -1, 0},
    {{"temperature 0", 0, 3, 1, 4, -1, 0, 0, 1}, -1, 0},
    {{"temperature -1", 0, 3, 1, 4, -1, 0, -1, 1}, -1, 0},
    {{"temperature NaN", 0, 3, 1, 4, -1, 0, NAN, 1}, -1, 0},
    {{"temperature +INFINITY", 0, 3, 1, 4, -1, 0, INFINITY, 1}, -1, 0},
    {{"penalty 0", 0, 3, 1, 4, -1, 0, 1, 0}, -1, 0},
    {{"penalty -1", 0, 3, 1, 4, -1, 0, 1, -1}, -1, 0},
    {{"penalty NaN", 0, 3, 1, 4, -1, 0, 1, NAN}, -1, 0},
    {{"penalty +INFINITY", 0, 3, 1, 4, -1, 0, 1, INFINITY}, -1, 0},
    {{"alpha NaN", 0, 3, 1, 4, -1, NAN, 1, 1}, -1, 0},
    {{"alpha +INFINITY", 0, 3, 1, 4, -1, INFINITY, 1, 1}, -1, 0},
    {{"an id past the vocabulary in the prompt", 0, 3, 1, 4, -1, 0, 1, 1}, 2, 5},
    {{"an id of -1 in the prompt", 0, 3, 1, 4, -1, 0, 1, 1}, 0, -1},
};

enum { N_BAD_REQUESTS = sizeof bad_requests / sizeof *bad_requests };

static void run_bad_request(trace *t, int i)
{
    const request *r = &bad_requests[i].r;
    beam_options o = options_of(r);
    int *prompt = ROOM(int, r->n_prompt);
    results_room room = open_results(1, 4), copy = open_results(1, 4);
    failure f = {""};

    trace_case(t, "%s", r->name);
    prompt_of(r, prompt);
    if (bad_requests[i].bad_at >= 0)
        prompt[bad_requests[i].bad_at] = bad_requests[i].bad_id;
    copy.results[0].tokens = room.rooms[0];
    trace_int(t, beam_search(&o, prompt, r->n_prompt, room.results, &f), "what beam_search returns");
    trace_int(t, f.sentence[0] != 0, "there is a sentence");
    trace_int(t, !memcmp(room.results, copy.results, sizeof *copy.results) &&
                     !memcmp(room.rooms[0], copy.rooms[0], 4 * sizeof(int)), "the results are untouched");
    free(prompt);
    free_results(&room);
    free_results(&copy);
}

static void run_5d(trace *t)
{
    for (int i = 0; i < N_GREEDY; i++)
        run_request(t, &greedy[i], 1, true);
    for (int i = 0; i < N_GREEDY_SHIPPED && sizeof(real) == sizeof(double); i++)
        run_request(t, &greedy_shipped[i], 1, true);
    for (int i = 0; i < N_BAD_REQUESTS; i++)
        run_bad_request(t, i);
}

static void expect_5d(trace *t)
{
    findings found;

    for (int i = 0; i < N_GREEDY; i++) {
        find_greedy(&greedy[i], &found);
        expect_request(t, &greedy[i], &found, 1, true);
    }
    for (int i = 0; i < N_GREEDY_SHIPPED && sizeof(real) == sizeof(double); i++) {
        find_greedy(&greedy_shipped[i], &found);
        expect_request(t, &greedy_shipped[i], &found, 1, true);
    }
    for (int i = 0; i < N_BAD_REQUESTS; i++) {
        trace_case(t, "%s", bad_requests[i].r.name);
        trace_int(t, -1, "what beam_search returns");
        trace_int(t, 1, "there is a sentence");
        trace_int(t, 1, "the results are untouched");
    }
}

/* ---- 5e: the search of several beams ---- */

/* Wide enough to hold all beginnings: V^(n-1) beams. */
static const request exhaustive[] = {
    {"all texts of 3 from 4 tokens", 1, 3, 16, 3, -1, 0, 1, 1},
    {"all texts of 3 from 4 tokens, 1 ends them", 1, 3, 16, 3, 1, 0, 1, 1},
    {"all texts of 3 from 4 tokens, 1 ends them, alpha 1", 1, 3, 16, 3, 1, 1, 1, 1},
    {"all texts of 4 from 4 tokens, 0 ends them, alpha 0.6", 8, 2, 64, 4, 0, 0.6, 1, 1},
    {"all texts of 4 from 4 tokens, 3 ends them, alpha 2", 8, 3, 64, 4, 3, 2, 1, 1},
    {"all texts of 3 from 5 tokens, 2 ends them, alpha -1", 0, 4, 25, 3, 2, -1, 1, 1},
    {"all texts of 3 from 5 tokens, penalty 1.7, temperature 0.6", 6, 4, 25, 3, -1, 0, 0.6, 1.7},
    {"all texts of 4 from 5 tokens, 4 ends them, alpha 0.7, penalty 1.4", 6, 3, 125, 4, 4, 0.7, 1, 1.4},
};

static const request narrow_searches[] = {
    {"2 beams, nothing ends the text", 0, 3, 2, 6, -1, 0, 1, 1},
    {"3 beams of 12 tokens", 2, 4, 3, 6, 4, 0, 1, 1},
    {"3 beams of 12 tokens, alpha 1", 2, 4, 3, 6, 4, 1, 1, 1},
    {"3 beams of 12 tokens, alpha 0.6, temperature 2", 9, 4, 3, 8, 7, 0.6, 2, 1},
    {"4 beams of 4 tokens, alpha 0", 1, 3, 4, 8, 2, 0, 1, 1},
    {"4 beams of 4 tokens, alpha 1", 1, 3, 4, 8, 2, 1, 1, 1},
    {"4 beams of 4 tokens, alpha 2", 8, 3, 4, 8, 2, 2, 1, 1},
    {"2 beams of 5 tokens, alpha -0.5", 6, 3, 2, 8, 1, -0.5, 1, 1},
    {"2 beams of 5 tokens, alpha 0.5, penalty 1.6", 6, 3, 2, 8, 1, 0.5, 1, 1.6},
    {"3 beams of 7 tokens, penalty 2, temperature 0.7", 7, 3, 3, 9, 6, 0.8, 0.7, 2},
    {"5 beams of 41 tokens", 3, 4, 5, 7, 1, 0, 1, 1},
    {"5 beams of 41 tokens, alpha 1, penalty 1.5", 3, 4, 5, 7, 27, 1, 1, 1.5},
    {"1 beam that goes on behind a finished one, alpha 1", 0, 3, 1, 8, 3, 1, 1, 1},
    {"1 beam, alpha 2", 7, 2, 1, 8, 0, 2, 1, 1},
    {"6 beams of 4 tokens: more than there are at first", 1, 3, 6, 5, 2, 0.7, 1, 1},
    {"3 beams of 2 tokens, 0 ends the text", 5, 3, 3, 5, 0, 0.7, 1, 1},
    {"4 beams of 2 tokens", 5, 3, 4, 4, -1, 0, 1, 1},
    {"3 beams of one token", 4, 3, 3, 4, -1, 1, 1, 1},
    {"3 beams of one token, which ends the text", 4, 3, 3, 4, 0, 1, 1, 1},
    {"2 beams of 5 tokens, alpha 0", 0, 3, 2, 6, 0, 0, 1, 1},
    {"2 beams of 5 tokens, alpha -1", 0, 3, 2, 6, 0, -1, 1, 1},
    {"4 beams of 4 tokens, alpha 0.5", 8, 4, 4, 9, 3, 0.5, 1, 1},
    {"3 beams of 4 tokens, alpha 0.8", 1, 3, 3, 9, 3, 0.8, 1, 1},
    {"4 beams of 7 tokens, alpha 0.8", 7, 3, 4, 6, 4, 0.8, 1, 1},
    {"3 beams of 7 tokens, alpha -1", 7, 5, 3, 9, 4, -1, 1, 1},
    {"3 beams at the end of the context", 2, 13, 3, 9, 4, 1, 1, 1},
    {"3 beams, one token fits", 2, 15, 3, 9, 4, 1, 1, 1},
    {"3 beams, one token wanted", 9, 4, 3, 1, 7, 1, 1, 1},
};

enum { N_EXHAUSTIVE = sizeof exhaustive / sizeof *exhaustive, N_NARROW = sizeof narrow_searches / sizeof *narrow_searches };

/* How many of an exhaustive search's results are compared: in float, those further down are too near to each other. */
static int shown_of(const request *r)
{
    return sizeof(real) == sizeof(double) || r->n_beams < 6 ? r->n_beams : 6;
}

static void run_5e(trace *t)
{
    for (int i = 0; i < N_EXHAUSTIVE; i++)
        run_request(t, &exhaustive[i], shown_of(&exhaustive[i]), false);
    for (int i = 0; i < N_NARROW; i++)
        run_request(t, &narrow_searches[i], narrow_searches[i].n_beams, true);
}

static void expect_5e(trace *t)
{
    findings found;

    for (int i = 0; i < N_EXHAUSTIVE; i++) {
        find_by_force(&exhaustive[i], shown_of(&exhaustive[i]), &found);
        expect_request(t, &exhaustive[i], &found, shown_of(&exhaustive[i]), false);
    }
    for (int i = 0; i < N_NARROW; i++) {
        find_plainly(&narrow_searches[i], &found);
        expect_request(t, &narrow_searches[i], &found, narrow_searches[i].n_beams, true);
    }
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "5a", .points = 3, .title = "log-softmax, and the top candidates over beams × vocabulary", .needs = "", .run = run_5a,
         .expect = expect_5a},
        {.id = "5b", .points = 3, .title = "the caches follow their beams", .needs = "", .run = run_5b, .expect = expect_5b},
        {.id = "5c", .points = 3, .title = "finished hypotheses: scores, bounds, and the list of the best", .needs = "", .run = run_5c,
         .expect = expect_5c},
        {.id = "5d", .points = 4, .title = "the search with one beam: greedy, token for token", .needs = "5a 5b 5c", .run = run_5d,
         .expect = expect_5d},
        {.id = "5e", .points = 3, .title = "the search with several beams, and one wide enough to be exhaustive", .needs = "5a 5b 5c 5d",
         .run = run_5e, .expect = expect_5e},
    };
    static const lab lab5 = {"lab5", "beam search", steps, sizeof steps / sizeof *steps, false};

    return check_main(&lab5, argc, argv);
}
