/* The check of lab 6, what generating text costs. What is right comes from sums term by term, from the counters of real
   runs of labs 1 and 3, from the sizes of real weight matrices, and from numbers worked out by hand; where 64 bits end
   is found with 128. These ways to a number must agree among themselves before an answer is judged by them. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "check.h"
#include "cost.h"
#include "counts.h"
#include "loop.h"
#include "parts.h"
#include "subjects.h"

typedef __int128 wide;

/* Ends the working out of what is right: two ways to it disagree, so the kit is at fault. */
static void must(bool agrees, const char *what)
{
    if (agrees)
        return;
    fprintf(stderr, "two ways to what is right disagree: %s\n", what);
    exit(2);
}

/* ---- recording: integers digit by digit, because a record of numbers holds no more than 53 bits ---- */

static void trace_integer(trace *t, int64_t value, const char *name)
{
    char digits[24];

    trace_text(t, digits, snprintf(digits, sizeof digits, "%" PRId64, value), name);
}

static void trace_real(trace *t, double value, const char *name)
{
    real number = value;

    trace_reals(t, &number, AXES({"", 0, 0}), name);
}

/* Memory of exactly this size, filled with junk that is NaN as a double and no one's result as an integer. */
static const unsigned char junk[8] = {0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xf8, 0x7f};

static void *new_room(size_t size)
{
    unsigned char *room = malloc(size);

    must(room != NULL, "out of memory");
    for (size_t i = 0; i < size; i++)
        room[i] = junk[i % sizeof junk];
    return room;
}

static bool is_untouched(const void *room, size_t size)
{
    const unsigned char *bytes = room;

    for (size_t i = 0; i < size; i++)
        if (bytes[i] != junk[i % sizeof junk])
            return false;
    return true;
}

static void *new_copy(const void *from, size_t size)
{
    return memcpy(new_room(size), from, size);
}

/* Each record of an answer begins with its status; what follows is said only where the status is 0. */
static void trace_status(trace *t, int status, const void *room, size_t size)
{
    trace_int(t, status, "what it returns");
    if (status)
        trace_int(t, is_untouched(room, size), "nothing is written (1: yes)");
}

static void expect_refusal(trace *t)
{
    trace_int(t, -1, "what it returns");
    trace_int(t, 1, "nothing is written (1: yes)");
}

/* ---- 6a: term by term ---- */

typedef struct {
    wide projections, scores;
} sums;

static sums sum_run(int64_t before, int64_t n)
{
    sums run = {0, 0};

    for (int64_t i = 0; i < n; i++) {
        run.projections++;
        run.scores += before + i + 1;
    }
    return run;
}

static sums sum_uncached(int64_t p, int64_t n)
{
    sums all = {0, 0}, run = n > 0 ? sum_run(0, p) : all;

    for (int64_t i = 0; i < n; i++) {
        all.projections += run.projections;
        all.scores += run.scores;
        run.projections++;
        run.scores += p + i + 1;
    }
    return all;
}

static sums sum_cached(int64_t p, int64_t n)
{
    sums all = n > 0 ? sum_run(0, p) : (sums){0, 0};

    for (int64_t i = 1; i < n; i++) {
        all.projections++;
        all.scores += p + i;
    }
    return all;
}

/* ---- 6a: closed forms in 128 bits, which must agree with the sums: they are for finding where 64 bits end ---- */

static const struct {
    const char *name;
    int (*answer)(int64_t p, int64_t n, usage *u);
    sums (*sum)(int64_t p, int64_t n);
} ways[] = {{"without a cache", usage_uncached, sum_uncached}, {"with a cache", usage_cached, sum_cached}};

enum { UNCACHED, CACHED, N_WAYS };

/* For n ≥ 1. Neither p nor n is above 2^33. */
static sums closed(int way, wide p, wide n)
{
    wide last = p + n - 1;

    if (way == CACHED)
        return (sums){last, last * (last + 1) / 2};
    return (sums){n * p + n * (n - 1) / 2, (last * (last + 1) * (last + 2) - (p - 1) * p * (p + 1)) / 6};
}

static bool usage_fits(int way, int64_t p, int64_t n)
{
    sums s = closed(way, p, n);

    return s.projections <= INT64_MAX && s.scores <= INT64_MAX;
}

/* The largest n with which p fits, or the largest p with which n fits. */
static int64_t largest_usage(int way, int64_t p, int64_t n)
{
    int64_t low = 1, high = (int64_t)1 << 33;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        *(usage_fits(way, p ? p : middle, n ? n : middle) ? &low : &high) = middle;
    }
    return low;
}

/* ---- 6a: the counters of a real run ---- */

static const struct {
    int subject, p, n;
} real_runs[] = {{6, 1, 24}, {6, 1, 12}, {6, 8, 24}, {4, 3, 7}, {4, 1, 12}, {5, 20, 1}, {5, 7, 0}, {6, 2, 40}};

enum { N_REAL_RUNS = sizeof real_runs / sizeof *real_runs };

/* The counts of one layer and head, which must be those of all. */
static usage counted_usage(const model_shape *s)
{
    usage u = {counts_projections(KEY, 0), counts_scores(0, 0)};

    for (int l = 0; l < s->n_layer; l++) {
        must(counts_projections(KEY, l) == u.projections && counts_projections(VALUE, l) == u.projections, "layers");
        for (int h = 0; h < s->n_head; h++)
            must(counts_scores(l, h) == u.scores, "heads");
    }
    return u;
}

static usage run_really(int way, const subject *s, int p, int n_new)
{
    int n_vocab = s->m->shape.n_vocab, n = p, tokens[TEST_TOKENS];
    real *logits = new_reals(n_vocab), *rows = new_reals((size_t)s->m->shape.n_ctx * n_vocab);
    cache c;
    uncached without = {s->m, rows};
    cached with = {&c, TEST_TOKENS, rows};
    loop g = {.logits = logits, .n_vocab = n_vocab, .n_ctx = TEST_TOKENS, .end_of_text = -1, .max_new_tokens = n_new};
    failure f;

    must(cache_init(&c, s->m, TEST_TOKENS) == 0, "out of memory");
    g.next = way == CACHED ? next_cached : next_uncached;
    g.next_state = way == CACHED ? (void *)&with : (void *)&without;
    memcpy(tokens, s->tokens, p * sizeof *tokens);
    counts_reset();
    must(generate(&g, tokens, &n, &f) == STOP_LENGTH && n == p + n_new, "the length of a real run");
    usage u = counted_usage(&s->m->shape);
    cache_free(&c);
    free(logits);
    free(rows);
    return u;
}

/* ---- 6a: all small numbers, and chosen large ones ---- */

enum { GRID_P = 12, GRID_N = 30 };

static int as_int(int64_t value)
{
    return value < INT_MIN ? INT_MIN : value > INT_MAX ? INT_MAX : value;
}

static void trace_grid(trace *t, const int *a, const char *name)
{
    trace_ints(t, a, AXES({"p", 1, GRID_P}, {"n", 0, GRID_N}), name);
}

static void run_grid(trace *t, int way)
{
    int status[GRID_P][GRID_N], projections[GRID_P][GRID_N], scores[GRID_P][GRID_N];

    trace_case(t, "small numbers, %s", ways[way].name);
    for (int p = 0; p < GRID_P; p++)
        for (int n = 0; n < GRID_N; n++) {
            usage *u = new_room(sizeof *u);
            status[p][n] = ways[way].answer(p + 1, n, u);
            projections[p][n] = as_int(u->projections);
            scores[p][n] = as_int(u->scores);
            free(u);
        }
    trace_grid(t, *status, "what it returns");
    trace_grid(t, *projections, "projections");
    trace_grid(t, *scores, "scores");
}

static void expect_grid(trace *t, int way)
{
    int status[GRID_P][GRID_N] = {0}, projections[GRID_P][GRID_N], scores[GRID_P][GRID_N];

    trace_case(t, "small numbers, %s", ways[way].name);
    for (int p = 0; p < GRID_P; p++)
        for (int n = 0; n < GRID_N; n++) {
            sums s = ways[way].sum(p + 1, n), c = closed(way, p + 1, n);
            must(n == 0 || (s.projections == c.projections && s.scores == c.scores), "sums and closed forms");
            projections[p][n] = s.projections;
            scores[p][n] = s.scores;
        }
    trace_grid(t, *status, "what it returns");
    trace_grid(t, *projections, "projections");
    trace_grid(t, *scores, "scores");
}

/* Sizes that a loop can still add up, and that 32 bits, or the 53 of a double, can't hold. */
static const struct {
    int64_t p, n;
} large[] = {{1, 100000}, {1000, 50001}, {50000, 5000}, {99999, 1}, {1, 400001}, {100000, 3}};

/* Out of range, or too much by so much that 64 bits wrap around into something plausible. */
static const struct {
    int64_t p, n;
} refused[] = {
    {0, 5}, {-1, 5}, {0, 0}, {-3, 0}, {1, -1}, {8, -1}, {8, -8}, {INT64_MIN, 1}, {1, INT64_MIN}, {-4, -4},
    {INT64_MAX, 1}, {INT64_MAX, INT64_MAX}, {1, INT64_MAX}, {2, INT64_MAX}, {1, INT64_MAX - 1}, {5000000000, 1},
    {(int64_t)1 << 40, (int64_t)1 << 40}, {(int64_t)1 << 62, 4}, {(int64_t)1 << 32, (int64_t)1 << 32},
    {1, (int64_t)1 << 33}, {(int64_t)1 << 33, 1}, {1, (int64_t)1 << 62}, {3, (int64_t)1 << 48},
};

/* Where 64 bits end: 0 stands for the largest that fits. */
static const struct {
    int64_t p, n;
} edges[] = {{1, 0}, {2, 0}, {1000, 0}, {1000000, 0}, {4294967295, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 1000}, {0, 1000000}};

enum {
    N_LARGE = sizeof large / sizeof *large,
    N_REFUSED = sizeof refused / sizeof *refused,
    N_EDGES = sizeof edges / sizeof *edges,
};

static void run_usage(trace *t, int way, int64_t p, int64_t n)
{
    usage *u = new_room(sizeof *u);

    trace_case(t, "p = %" PRId64 ", n = %" PRId64 ", %s", p, n, ways[way].name);
    int status = ways[way].answer(p, n, u);
    trace_status(t, status, u, sizeof *u);
    if (status == 0) {
        trace_integer(t, u->projections, "projections");
        trace_integer(t, u->scores, "scores");
    }
    free(u);
}

static void expect_usage(trace *t, int way, int64_t p, int64_t n, const sums *s)
{
    trace_case(t, "p = %" PRId64 ", n = %" PRId64 ", %s", p, n, ways[way].name);
    if (!s) {
        expect_refusal(t);
        return;
    }
    trace_int(t, 0, "what it returns");
    trace_integer(t, s->projections, "projections");
    trace_integer(t, s->scores, "scores");
}

static void run_edge(trace *t, int way, int64_t p, int64_t n)
{
    int64_t most = largest_usage(way, p, n);

    for (int more = -1; more < 2; more++)
        run_usage(t, way, p ? p : most + more, n ? n : most + more);
}

static void expect_edge(trace *t, int way, int64_t p, int64_t n)
{
    int64_t most = largest_usage(way, p, n);

    for (int more = -1; more < 2; more++) {
        int64_t at_p = p ? p : most + more, at_n = n ? n : most + more;
        sums s = at_n > 0 ? closed(way, at_p, at_n) : (sums){0, 0};
        must(at_n == 0 || usage_fits(way, at_p, at_n) == (more < 1), "the largest that fits");
        expect_usage(t, way, at_p, at_n, more < 1 ? &s : NULL);
    }
}

static void run_6a(trace *t)
{
    for (int way = 0; way < N_WAYS; way++) {
        run_grid(t, way);
        for (int i = 0; i < N_REAL_RUNS; i++)
            run_usage(t, way, real_runs[i].p, real_runs[i].n);
        for (int i = 0; i < N_LARGE; i++)
            run_usage(t, way, large[i].p, large[i].n);
        run_usage(t, way, INT64_MAX, 0);
        for (int i = 0; i < N_REFUSED; i++)
            run_usage(t, way, refused[i].p, refused[i].n);
        for (int i = 0; i < N_EDGES; i++)
            run_edge(t, way, edges[i].p, edges[i].n);
    }
}

static void expect_real_run(trace *t, int way, int i)
{
    int p = real_runs[i].p, n = real_runs[i].n;
    usage u = run_really(way, get_subject(real_runs[i].subject), p, n);
    sums counted = {u.projections, u.scores}, s = ways[way].sum(p, n);

    must(counted.projections == s.projections && counted.scores == s.scores, "counters and sums");
    expect_usage(t, way, p, n, &counted);
}

static void expect_6a(trace *t)
{
    for (int way = 0; way < N_WAYS; way++) {
        expect_grid(t, way);
        for (int i = 0; i < N_REAL_RUNS; i++)
            expect_real_run(t, way, i);
        for (int i = 0; i < N_LARGE; i++) {
            sums s = ways[way].sum(large[i].p, large[i].n);
            expect_usage(t, way, large[i].p, large[i].n, &s);
        }
        expect_usage(t, way, INT64_MAX, 0, &(sums){0, 0});
        for (int i = 0; i < N_REFUSED; i++)
            expect_usage(t, way, refused[i].p, refused[i].n, NULL);
        for (int i = 0; i < N_EDGES; i++)
            expect_edge(t, way, edges[i].p, edges[i].n);
    }
}

/* ---- 6b: how much memory ---- */

/* In the order of cache_shape: layers, key/value heads, head width, tokens, bytes per number, sequences. */
static const struct {
    const char *name;
    cache_shape shape;
    int64_t bytes; /* worked out by hand; -1: refused */
} caches[] = {
    {"everything 1", {1, 1, 1, 1, 1, 1}, 2},
    {"3, 5, 7, 11, 13 and 17", {3, 5, 7, 11, 13, 17}, 510510},
    {"GPT-2 124M, 1,024 tokens, 16 bits", {12, 12, 64, 1024, 2, 1}, 37748736},            /* 36 MiB */
    {"GPT-2 124M, 1,024 tokens, 32 bits", {12, 12, 64, 1024, 4, 1}, 75497472},            /* 72 MiB */
    {"Llama-2-7B, one token, 16 bits", {32, 32, 128, 1, 2, 1}, 524288},                   /* 512 KiB */
    {"Llama-2-7B, 4,096 tokens, 16 bits", {32, 32, 128, 4096, 2, 1}, 2147483648},         /* 2 GiB */
    {"Llama-2-7B, 4,096 tokens, 8 bits", {32, 32, 128, 4096, 1, 1}, 1073741824},          /* 1 GiB */
    {"Llama-2-7B, 4,096 tokens, 16 bits, 5 sequences", {32, 32, 128, 4096, 2, 5}, 10737418240}, /* 10 GiB */
    {"Llama-3-8B, 8,192 tokens, 16 bits", {32, 8, 128, 8192, 2, 1}, 1073741824},          /* 1 GiB */
    {"Llama-2-70B, 4,096 tokens, 16 bits", {80, 8, 128, 4096, 2, 1}, 1342177280},         /* 1.25 GiB */
    {"GPT-3 175B, 2,048 tokens, 16 bits", {96, 96, 128, 2048, 2, 1}, 9663676416},         /* 9 GiB */
    {"2^64 + 2^32 bytes", {(int64_t)1 << 31, 1, 1, ((int64_t)1 << 32) + 1, 1, 1}, -1},
    {"2^64 bytes", {(int64_t)1 << 31, 1, 1 << 20, 1 << 12, 1, 1}, -1},
    {"2^63 bytes", {1 << 20, 1 << 10, 1 << 10, 1 << 20, 4, 1}, -1},
    {"2^63 - 2 bytes", {1, 1, 1, ((int64_t)1 << 62) - 1, 1, 1}, INT64_MAX - 1},
    {"2^62 bytes", {1 << 20, 1 << 10, 1 << 10, 1 << 20, 1, 2}, (int64_t)1 << 62},
    {"the largest of everything", {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}, -1},
    {"two negative sizes", {-12, -12, 64, 10, 2, 1}, -1},
    {"two sizes of the least integer", {INT64_MIN, INT64_MIN, 1, 1, 1, 1}, -1},
    {"no layers, and tokens without end", {0, 1, 4, INT64_MAX, 2, 1}, -1},
};

enum { N_CACHES = sizeof caches / sizeof *caches, N_FIELDS = sizeof(cache_shape) / sizeof(int64_t) };

static const char *const fields[N_FIELDS] = {"n_layer", "n_kv_head", "d_head", "n_tokens", "bytes_per_number",
                                             "n_sequences"};
static const int64_t usual[N_FIELDS] = {12, 4, 64, 100, 2, 3};

/* GPT-2's like, with one field changed: to 0, to -1, to the most that fits, and to one more. */
enum { ZERO, NEGATIVE, MOST, TOO_MUCH, N_CHANGES };

static int64_t changed(int field, int change)
{
    wide rest = 2;

    for (int i = 0; i < N_FIELDS; i++)
        rest *= i == field ? 1 : usual[i];
    int64_t most = INT64_MAX / rest;
    return change == ZERO ? 0 : change == NEGATIVE ? -1 : change == MOST ? most : most + 1;
}

static cache_shape changed_shape(trace *t, int field, int change)
{
    cache_shape s;
    int64_t numbers[N_FIELDS];

    memcpy(numbers, usual, sizeof numbers);
    numbers[field] = changed(field, change);
    memcpy(&s, numbers, sizeof s);
    trace_case(t, "%s = %" PRId64, fields[field], numbers[field]);
    return s;
}

static void run_cache(trace *t, const cache_shape *shape)
{
    cache_shape *s = new_copy(shape, sizeof *s);
    int64_t *bytes = new_room(sizeof *bytes);
    int status = cache_bytes(s, bytes);

    trace_status(t, status, bytes, sizeof *bytes);
    if (status == 0)
        trace_integer(t, *bytes, "bytes");
    trace_int(t, memcmp(s, shape, sizeof *s) == 0, "the shape is unchanged (1: yes)");
    free(s);
    free(bytes);
}

static void expect_cache(trace *t, int64_t bytes)
{
    if (bytes < 0) {
        expect_refusal(t);
    } else {
        trace_int(t, 0, "what it returns");
        trace_integer(t, bytes, "bytes");
    }
    trace_int(t, 1, "the shape is unchanged (1: yes)");
}

static void run_6b(trace *t)
{
    for (int i = 0; i < N_CACHES; i++) {
        trace_case(t, "%s", caches[i].name);
        run_cache(t, &caches[i].shape);
    }
    for (int field = 0; field < N_FIELDS; field++)
        for (int change = 0; change < N_CHANGES; change++) {
            cache_shape s = changed_shape(t, field, change);
            run_cache(t, &s);
        }
}

/* Number by number, for what a loop can count. */
static int64_t count_bytes(const cache_shape *s)
{
    int64_t bytes = 0;

    for (int64_t sequence = 0; sequence < s->n_sequences; sequence++)
        for (int64_t layer = 0; layer < s->n_layer; layer++)
            for (int64_t head = 0; head < s->n_kv_head; head++)
                for (int64_t token = 0; token < s->n_tokens; token++)
                    bytes += s->d_head * s->bytes_per_number + s->d_head * s->bytes_per_number; /* key, value */
    return bytes;
}

static void expect_6b(trace *t)
{
    for (int i = 0; i < N_CACHES; i++) {
        trace_case(t, "%s", caches[i].name);
        if (caches[i].bytes > 0 && caches[i].bytes < 1 << 27)
            must(count_bytes(&caches[i].shape) == caches[i].bytes, "bytes counted and worked out by hand");
        expect_cache(t, caches[i].bytes);
    }
    for (int field = 0; field < N_FIELDS; field++)
        for (int change = 0; change < N_CHANGES; change++) {
            changed_shape(t, field, change);
            wide all = 2;
            for (int i = 0; i < N_FIELDS; i++)
                all *= i == field ? changed(field, change) : usual[i];
            expect_cache(t, all > 0 && all <= INT64_MAX ? (int64_t)all : -1);
        }
}

/* ---- 6c: from the sizes of a model's matrices, term by term ---- */

typedef struct {
    wide multiply_adds, bytes;
} amounts;

/* A pass over n tokens behind t others. The pairs are added up one query at a time; the matrices are the model's own. */
static amounts sum_pass(const model *m, int64_t t, int64_t n, int64_t bytes_per_number)
{
    const model_shape *s = &m->shape;
    const weight *last = &m->parts->unembedding;
    wide numbers = 0, pairs = 0, kept = 0;

    for (int i = 0; i < s->n_layer * UNEMBEDDING; i++)
        numbers += (wide)m->parts->weights[i].n_out * m->parts->weights[i].n_in;
    for (int64_t i = 0; i < n; i++)
        pairs += t + i + 1;
    for (int kv_head = 0; kv_head < s->n_kv_head; kv_head++)
        kept += (t + n) * s->d_head; /* keys, and as many numbers of values, in a layer */
    wide logits = (wide)last->n_out * last->n_in, heads = (wide)s->n_layer * s->n_head;
    return (amounts){n * numbers + heads * pairs * (s->d_head + s->d_head) + logits,
                     bytes_per_number * (numbers + logits + s->n_layer * (kept + kept))};
}

/* The same in 128 bits for n that no loop can reach; needs what it's made of to be moderate. */
static amounts closed_pass(const model *m, wide t, wide n, wide bytes_per_number)
{
    const model_shape *s = &m->shape;
    amounts one = sum_pass(m, 0, 1, 1), two = sum_pass(m, 0, 2, 1);
    wide logits = (wide)s->n_vocab * s->d_model, kept = two.bytes - one.bytes; /* one token's keys and values */
    wide pair = (wide)s->n_layer * s->n_head * s->d_head * 2, numbers = one.bytes - logits - kept;

    return (amounts){n * numbers + pair * (n * t + n * (n + 1) / 2) + logits,
                     bytes_per_number * (numbers + logits + kept * (t + n))};
}

static bool pass_fits(const model *m, int64_t t, int64_t n, int64_t bytes_per_number)
{
    amounts a = closed_pass(m, t, n, bytes_per_number);

    return a.multiply_adds <= INT64_MAX && a.bytes <= INT64_MAX;
}

/* ---- 6c: shapes ---- */

#define COMMON .n_ctx = 1024, .norm_eps = 1e-5, .rope_base = 10000
#define GPT(l, h, d, v) \
    {COMMON, .n_layer = l, .n_head = h, .n_kv_head = h, .d_head = (d) / (h), .d_model = d, .d_ff = 4 * (d), \
     .n_vocab = v, .norm = LAYER_NORM, .activation = GELU_TANH, .position = LEARNED, .bias = true, .tied = true}
#define LLAMA(l, h, kv, d, f, v) \
    {COMMON, .n_layer = l, .n_head = h, .n_kv_head = kv, .d_head = (d) / (h), .d_model = d, .d_ff = f, .n_vocab = v, \
     .norm = RMS_NORM, .activation = SWIGLU, .position = ROTARY}

static const struct {
    const char *name;
    model_shape shape;
    int64_t numbers; /* in the published model, all weights; 0: not a published one */
} known[] = {
    {"GPT-2 124M", GPT(12, 12, 768, 50257), 124439808},
    {"GPT-2 XL", GPT(48, 25, 1600, 50257), 1557611200},
    {"Llama-2-7B", LLAMA(32, 32, 32, 4096, 11008, 32000), 6738415616},
    {"Llama-3-8B", LLAMA(32, 32, 8, 4096, 14336, 128256), 8030261248},
    {"Llama-2-70B", LLAMA(80, 64, 8, 8192, 28672, 32000), 68976648192},
    {"GPT-3's width and depth", GPT(96, 96, 12288, 50257), 0},
    {"the widest that the kit reads", LLAMA(128, 128, 128, 65536, 262144, 1048576), 0},
    {"everything 1", {COMMON, .n_layer = 1, .n_head = 1, .n_kv_head = 1, .d_head = 1, .d_model = 1, .d_ff = 1,
                      .n_vocab = 1, .norm = RMS_NORM, .activation = GELU_EXACT, .position = LEARNED}, 0},
};

/* Small ones of every kind: 3 activations, tied or not, as many key/value heads as heads, fewer, and one. */
enum { GPT2 = 0, LLAMA3 = 3, ONES = 7, N_KNOWN = sizeof known / sizeof *known, N_KINDS = 18, SMALL_CONTEXT = 16 };

static const char *const activations[] = {"GELU by tanh", "GELU", "SwiGLU"};

static model_shape small_shape(int kind)
{
    static const int kv_heads[] = {6, 2, 1};

    return (model_shape){.n_vocab = 29, .n_ctx = SMALL_CONTEXT, .d_model = 24, .n_layer = 2, .n_head = 6,
                         .n_kv_head = kv_heads[kind / 6], .d_head = 4, .d_ff = 40,
                         .norm = kind % 2 ? RMS_NORM : LAYER_NORM, .activation = kind % 3,
                         .position = (kind + kind / 3) % 3, .bias = kind % 2 == 0, .tied = kind / 3 % 2,
                         .norm_eps = 1e-5, .rope_base = 10000};
}

/* A model's shape with its matrices' sizes, but no numbers in them. */
static model *plan_of(const model_shape *s)
{
    failure f;
    model *m = model_plan(*s, &f);

    must(m && memcmp(&m->shape, s, sizeof *s) == 0, "a shape and the model made of it");
    return m;
}

/* ---- 6c: recording ---- */

enum { PREFILL, DECODE };

static const struct {
    const char *name, *letter;
    int (*answer)(const model_shape *s, int64_t n, int64_t bytes_per_number, work *w);
} passes[] = {{"prefill", "p", work_prefill}, {"decode", "t", work_decode}};

static void name_pass(trace *t, const char *model, int pass, int64_t n, int64_t bytes_per_number)
{
    trace_case(t, "%s, %s, %s = %" PRId64 ", %" PRId64 " byte%s", model, passes[pass].name, passes[pass].letter, n,
               bytes_per_number, bytes_per_number == 1 ? "" : "s");
}

static void run_pass(trace *t, const char *name, const model_shape *shape, int pass, int64_t n,
                     int64_t bytes_per_number)
{
    model_shape *s = new_copy(shape, sizeof *s);
    work *w = new_room(sizeof *w);

    name_pass(t, name, pass, n, bytes_per_number);
    int status = passes[pass].answer(s, n, bytes_per_number, w);
    trace_status(t, status, w, sizeof *w);
    if (status == 0) {
        trace_integer(t, w->multiply_adds, "multiply_adds");
        trace_integer(t, w->bytes, "bytes");
        trace_real(t, w->intensity, "intensity");
    }
    trace_int(t, memcmp(s, shape, sizeof *s) == 0, "the shape is unchanged (1: yes)");
    free(s);
    free(w);
}

static void expect_amounts(trace *t, const char *name, int pass, int64_t n, int64_t bytes_per_number, const amounts *a)
{
    name_pass(t, name, pass, n, bytes_per_number);
    if (a) {
        trace_int(t, 0, "what it returns");
        trace_integer(t, a->multiply_adds, "multiply_adds");
        trace_integer(t, a->bytes, "bytes");
        trace_real(t, (double)a->multiply_adds / a->bytes * 2, "intensity");
    } else {
        expect_refusal(t);
    }
    trace_int(t, 1, "the shape is unchanged (1: yes)");
}

static amounts sum_of(const model *m, int pass, int64_t n, int64_t bytes_per_number)
{
    return pass == PREFILL ? sum_pass(m, 0, n, bytes_per_number) : sum_pass(m, n, 1, bytes_per_number);
}

/* ---- 6c: a real run's counters times the matrices' sizes ---- */

/* What was counted since counts_reset() but for the unembedding, of which a prefill needs one row (the kit's
   cache_forward computes them all). */
static wide counted_multiply_adds(const model *m)
{
    const model_shape *s = &m->shape;
    const weight *last = &m->parts->unembedding;
    wide sum = (wide)last->n_out * last->n_in;

    for (int l = 0; l < s->n_layer; l++) {
        for (int r = QUERY; r < UNEMBEDDING; r++) {
            const weight *w = &m->parts->weights[l * UNEMBEDDING + r];
            sum += (wide)counts_projections(r, l) * w->n_out * w->n_in;
        }
        for (int h = 0; h < s->n_head; h++)
            sum += (wide)counts_scores(l, h) * 2 * s->d_head;
    }
    return sum;
}

/* Feeds a cache t tokens and then n, which are counted. */
static wide count_really(const model *m, int t, int n)
{
    int tokens[SMALL_CONTEXT] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
    real *rows = new_reals((size_t)SMALL_CONTEXT * m->shape.n_vocab);
    cache c;

    must(cache_init(&c, m, SMALL_CONTEXT) == 0 && (t == 0 || cache_forward(&c, tokens, t, rows) == 0), "a real run");
    counts_reset();
    must(cache_forward(&c, tokens + t, n, rows) == 0 && counts_projections(UNEMBEDDING, 0) == n, "a real run");
    wide sum = counted_multiply_adds(m);
    cache_free(&c);
    free(rows);
    return sum;
}

static const int small_lengths[] = {1, 5, SMALL_CONTEXT};

static void name_kind(char *name, size_t size, int kind)
{
    model_shape s = small_shape(kind);

    snprintf(name, size, "%s, %s, %d heads on %d", activations[s.activation], s.tied ? "tied" : "untied", s.n_head,
             s.n_kv_head);
}

static void run_kind(trace *t, int kind)
{
    model_shape s = small_shape(kind);
    char name[64];

    name_kind(name, sizeof name, kind);
    for (int i = 0; i < 3; i++) {
        run_pass(t, name, &s, PREFILL, small_lengths[i], 1 << i);
        run_pass(t, name, &s, DECODE, small_lengths[i] - 1, 1 << i);
    }
}

static void expect_kind(trace *t, int kind)
{
    failure f;
    model *m = model_random(small_shape(kind), kind, &f);
    char name[64];

    must(m != NULL, f.sentence);
    name_kind(name, sizeof name, kind);
    for (int i = 0; i < 3; i++) {
        int n = small_lengths[i];
        amounts prefill = sum_of(m, PREFILL, n, 1 << i), decode = sum_of(m, DECODE, n - 1, 1 << i);
        must(count_really(m, 0, n) == prefill.multiply_adds, "a prefill's counters and sums");
        must(count_really(m, n - 1, 1) == decode.multiply_adds, "a decode step's counters and sums");
        expect_amounts(t, name, PREFILL, n, 1 << i, &prefill);
        expect_amounts(t, name, DECODE, n - 1, 1 << i, &decode);
    }
    model_free(m);
}

/* ---- 6c: known models ---- */

static const int known_lengths[] = {1, 2, 1024, 4096}, known_bytes[] = {2, 1, 4, 2};

static void run_known(trace *t, int i)
{
    for (int k = 0; k < 4; k++) {
        run_pass(t, known[i].name, &known[i].shape, PREFILL, known_lengths[k], known_bytes[k]);
        run_pass(t, known[i].name, &known[i].shape, DECODE, known_lengths[k] - 1, known_bytes[k]);
    }
}

/* All numbers of the published model are those of its matrices, tables, norms and biases. */
static void check_published(const model *m, int64_t numbers)
{
    wide sum = 0;

    for (int i = 0; i < m->parts->n_slots; i++)
        sum += (wide)m->parts->slots[i].shape[0] * m->parts->slots[i].shape[1];
    must(numbers == 0 || sum == numbers, "a published model's size");
}

static void expect_known(trace *t, int i)
{
    model *m = plan_of(&known[i].shape);

    check_published(m, known[i].numbers);
    for (int k = 0; k < 4; k++)
        for (int pass = PREFILL; pass <= DECODE; pass++) {
            int64_t n = known_lengths[k] - (pass == DECODE);
            amounts a = sum_of(m, pass, n, known_bytes[k]);
            amounts c = closed_pass(m, pass == DECODE ? n : 0, pass == DECODE ? 1 : n, known_bytes[k]);
            must(a.multiply_adds == c.multiply_adds && a.bytes == c.bytes, "a pass's sums and closed forms");
            expect_amounts(t, known[i].name, pass, n, known_bytes[k], &a);
        }
    model_free(m);
}

/* ---- 6c: where 64 bits end; 0 stands for the largest that fits ---- */

static const struct {
    int model, pass;
    int64_t n, bytes_per_number;
} pass_edges[] = {
    {GPT2, PREFILL, 0, 2},   {LLAMA3, PREFILL, 0, 2}, {ONES, PREFILL, 0, 8}, /* the multiply-adds decide */
    {GPT2, PREFILL, 1024, 0}, {ONES, PREFILL, 7, 0},                         /* the bytes decide */
    {LLAMA3, DECODE, 0, 1},                                                  /* the multiply-adds decide */
    {GPT2, DECODE, 0, 2},    {GPT2, DECODE, 1024, 0}, {ONES, DECODE, 0, 3},  /* the bytes decide */
};

enum { N_PASS_EDGES = sizeof pass_edges / sizeof *pass_edges };

static int64_t largest_pass(const model *m, int pass, int64_t n, int64_t bytes_per_number)
{
    int64_t low = 1, high = n || pass == DECODE ? INT64_MAX : (int64_t)1 << 32;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, at = n ? n : middle, b = bytes_per_number ? bytes_per_number : middle;
        bool fits = pass == PREFILL ? pass_fits(m, 0, at, b) : pass_fits(m, at, 1, b);
        *(fits ? &low : &high) = middle;
    }
    return low;
}

static void each_pass_edge(trace *t, bool expects)
{
    for (int i = 0; i < N_PASS_EDGES; i++) {
        int k = pass_edges[i].model, pass = pass_edges[i].pass;
        int64_t n = pass_edges[i].n, b = pass_edges[i].bytes_per_number;
        model *m = plan_of(&known[k].shape);
        int64_t most = largest_pass(m, pass, n, b);
        for (int more = 0; more < 2; more++) {
            int64_t at = n ? n : most + more, bytes_per_number = b ? b : most + more;
            amounts a = closed_pass(m, pass == DECODE ? at : 0, pass == DECODE ? 1 : at, bytes_per_number);
            if (expects)
                expect_amounts(t, known[k].name, pass, at, bytes_per_number, more ? NULL : &a);
            else
                run_pass(t, known[k].name, &known[k].shape, pass, at, bytes_per_number);
        }
        model_free(m);
    }
}

/* ---- 6c: what is refused ---- */

static const struct {
    int model, pass;
    int64_t n, bytes_per_number;
} refused_passes[] = {
    {GPT2, PREFILL, 0, 2}, {GPT2, PREFILL, -1, 2}, {GPT2, PREFILL, 5, 0}, {GPT2, PREFILL, 5, -2},
    {GPT2, PREFILL, -5, -2}, {GPT2, PREFILL, INT64_MAX, 2}, {GPT2, PREFILL, INT64_MIN, 2},
    {GPT2, PREFILL, 5, INT64_MAX}, {GPT2, PREFILL, 5, INT64_MIN}, {ONES, PREFILL, (int64_t)1 << 32, 1},
    {ONES, PREFILL, (int64_t)1 << 33, 1}, {ONES, PREFILL, INT64_MAX, INT64_MAX}, {ONES, PREFILL, (int64_t)1 << 62, 1},
    {GPT2, DECODE, -1, 2}, {GPT2, DECODE, 5, 0}, {GPT2, DECODE, 5, -2}, {GPT2, DECODE, -5, -2},
    {GPT2, DECODE, INT64_MAX, 2}, {ONES, DECODE, INT64_MAX, 1}, {ONES, DECODE, INT64_MAX - 1, 1},
    {GPT2, DECODE, INT64_MIN, 2}, {ONES, DECODE, 0, INT64_MAX}, {ONES, DECODE, (int64_t)1 << 62, 4},
};

enum { N_REFUSED_PASSES = sizeof refused_passes / sizeof *refused_passes, N_SIZES = 7 };

static const char *const sizes[N_SIZES] = {"n_vocab", "d_model", "n_layer", "n_head", "n_kv_head", "d_head", "d_ff"};

static model_shape with_size(int size, int value)
{
    model_shape s = known[GPT2].shape;
    int *at[N_SIZES] = {&s.n_vocab, &s.d_model, &s.n_layer, &s.n_head, &s.n_kv_head, &s.d_head, &s.d_ff};

    *at[size] = value;
    return s;
}

static void each_bad_shape(trace *t, bool expects)
{
    char name[48];

    for (int i = 0; i < 3 * N_SIZES; i++)
        for (int pass = PREFILL; pass <= DECODE; pass++) {
            int value = i / N_SIZES == 0 ? 0 : i / N_SIZES == 1 ? -1 : INT_MIN;
            model_shape s = with_size(i % N_SIZES, value);
            snprintf(name, sizeof name, "%s = %d", sizes[i % N_SIZES], value);
            if (expects)
                expect_amounts(t, name, pass, 3, 2, NULL);
            else
                run_pass(t, name, &s, pass, 3, 2);
        }
}

/* Sizes whose products don't fit into 64 bits, and into 128 neither. */
static const model_shape huge = {COMMON, .n_layer = INT_MAX, .n_head = 1, .n_kv_head = 1, .d_head = INT_MAX,
                                 .d_model = INT_MAX, .d_ff = INT_MAX, .n_vocab = INT_MAX, .activation = SWIGLU};

static void each_refused_pass(trace *t, bool expects)
{
    for (int i = 0; i < N_REFUSED_PASSES; i++) {
        int k = refused_passes[i].model, pass = refused_passes[i].pass;
        int64_t n = refused_passes[i].n, b = refused_passes[i].bytes_per_number;
        if (expects)
            expect_amounts(t, known[k].name, pass, n, b, NULL);
        else
            run_pass(t, known[k].name, &known[k].shape, pass, n, b);
    }
    for (int pass = PREFILL; pass <= DECODE; pass++)
        for (int power = 0; power < 63; power += 31) {
            int64_t n = (int64_t)1 << power;
            if (expects)
                expect_amounts(t, "every size 2^31 - 1", pass, n, 1, NULL);
            else
                run_pass(t, "every size 2^31 - 1", &huge, pass, n, 1);
        }
}

static void run_6c(trace *t)
{
    for (int kind = 0; kind < N_KINDS; kind++)
        run_kind(t, kind);
    for (int i = 0; i < N_KNOWN; i++)
        run_known(t, i);
    each_bad_shape(t, false);
    each_refused_pass(t, false);
    each_pass_edge(t, false);
}

static void expect_6c(trace *t)
{
    for (int kind = 0; kind < N_KINDS; kind++)
        expect_kind(t, kind);
    for (int i = 0; i < N_KNOWN; i++)
        expect_known(t, i);
    each_bad_shape(t, true);
    each_refused_pass(t, true);
    each_pass_edge(t, true);
}

/* ---- 6d: how fast ---- */

#define TWO(n) ((double)((uint64_t)1 << (n)))

static const struct {
    const char *name;
    int64_t multiply_adds, bytes;
    double bandwidth, rate, right; /* the last worked out by hand */
} machines[] = {
    {"the memory decides", 1 << 20, 1 << 22, TWO(30), TWO(40), 256},
    {"the arithmetic decides", 1 << 30, 1 << 20, TWO(40), TWO(36), 32},
    {"both are as slow", 1 << 24, 1 << 25, TWO(35), TWO(35), 1024},
    {"the arithmetic decides by half", 1 << 24, 1 << 20, TWO(31), 3 * TWO(34), 1536},
    {"the memory decides by half", 1 << 24, 1 << 20, TWO(30), 3 * TWO(34), 1024},
    {"less than a pass a second", 1 << 30, 1 << 30, TWO(28), TWO(40), 0.25},
    {"a pass in three seconds", 3 << 20, 1 << 20, TWO(40), TWO(21), 1.0 / 3},
    {"Llama-2-7B, one token, 16 bits; 100 GB/s, 10 Tflop/s", 6607339520, 13214679040, 100e9, 10e12,
     100e9 / 13214679040},
    {"GPT-2 124M, one token, 32 bits; 20 GB/s, 50 Gflop/s", 123550464, 494201856, 20e9, 50e9, 20e9 / 494201856},
    {"GPT-2 124M, 1,024 tokens, 32 bits; 20 GB/s, 50 Gflop/s", 96684798720, 569625600, 20e9, 50e9, 25e9 / 96684798720},
    {"2^62 multiply-adds", (int64_t)1 << 62, 1 << 10, TWO(60), 128 * TWO(63), 128},
    {"2^62 bytes", 1 << 10, (int64_t)1 << 62, TWO(63), TWO(63), 2},
    {"an infinite bandwidth", 1 << 20, 1 << 20, INFINITY, TWO(25), 16},
    {"an infinite rate", 1 << 20, 1 << 20, TWO(25), INFINITY, 32},
    {"no multiply-adds", 0, 1 << 20, TWO(30), TWO(30), 0},
    {"no bytes", 1 << 20, 0, TWO(30), TWO(30), 0},
    {"negative multiply-adds", -5, 1 << 20, TWO(30), TWO(30), 0},
    {"negative bytes", 1 << 20, -1, TWO(30), TWO(30), 0},
    {"negative multiply-adds and a negative rate", -5, 1 << 20, TWO(30), -TWO(30), 0},
    {"no bandwidth", 1 << 20, 1 << 20, 0, TWO(30), 0},
    {"no rate", 1 << 20, 1 << 20, TWO(30), 0, 0},
    {"a negative bandwidth", 1 << 20, 1 << 20, -TWO(30), TWO(30), 0},
    {"a negative rate", 1 << 20, 1 << 20, TWO(30), -1, 0},
    {"a bandwidth of -INFINITY", 1 << 20, 1 << 20, -INFINITY, TWO(30), 0},
    {"a bandwidth of NaN", 1 << 20, 1 << 20, NAN, TWO(30), 0},
    {"a rate of NaN", 1 << 20, 1 << 20, TWO(30), NAN, 0},
};

enum { N_MACHINES = sizeof machines / sizeof *machines };

static void run_6d(trace *t)
{
    for (int i = 0; i < N_MACHINES; i++) {
        work *w = new_room(sizeof *w);
        *w = (work){machines[i].multiply_adds, machines[i].bytes, 0};
        w->intensity = 2.0 * machines[i].multiply_adds / (machines[i].bytes ? machines[i].bytes : 1);
        work *copy = new_copy(w, sizeof *w);
        trace_case(t, "%s", machines[i].name);
        trace_real(t, passes_per_second(w, machines[i].bandwidth, machines[i].rate), "passes per second");
        trace_int(t, memcmp(w, copy, sizeof *w) == 0, "the work is unchanged (1: yes)");
        free(w);
        free(copy);
    }
}

static void expect_6d(trace *t)
{
    for (int i = 0; i < N_MACHINES; i++) {
        trace_case(t, "%s", machines[i].name);
        trace_real(t, machines[i].right, "passes per second");
        trace_int(t, 1, "the work is unchanged (1: yes)");
    }
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "6a", .points = 3, .title = "how often: projections and scores, with a cache and without", .needs = "", .run = run_6a,
         .expect = expect_6a},
        {.id = "6b", .points = 2, .title = "how much memory: the bytes of a cache", .needs = "", .run = run_6b, .expect = expect_6b},
        {.id = "6c", .points = 3, .title = "how much work: multiply-adds, bytes and intensity of prefill and decode", .needs = "",
         .run = run_6c, .expect = expect_6c},
        {.id = "6d", .points = 2, .title = "how fast: the roofline", .needs = "", .run = run_6d, .expect = expect_6d},
    };
    static const lab lab6 = {"lab6", "what it costs", steps, sizeof steps / sizeof *steps, false};

    return check_main(&lab6, argc, argv);
}
