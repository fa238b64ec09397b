/* The check of lab 2, sampling. What is right comes from tables worked out by hand, from whole-number arithmetic on
   probabilities that are exact in binary, and for the chain from its definition, token by token without sorting. */
#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "check.h"
#include "loop.h"
#include "sampling.h"
#include "subjects.h"
#include "tokenizer.h"

#define N (real) NAN
#define I (real) INFINITY
#define IN_DOUBLE (sizeof(real) == sizeof(double))
#define SMALLEST_NORMAL (IN_DOUBLE ? (real)DBL_MIN : (real)FLT_MIN)
#define SMALLEST (IN_DOUBLE ? (real)DBL_TRUE_MIN : (real)FLT_TRUE_MIN)
#define LARGEST (IN_DOUBLE ? (real)DBL_MAX : (real)FLT_MAX)
#define BELOW_1 (IN_DOUBLE ? (real)(1 - DBL_EPSILON / 2) : (real)(1 - FLT_EPSILON / 2))
#define SINGLE (const axis[TRACE_AXES + 1]){0} /* the axes of a single number */
#define LN2 (real)0.6931471805599453

enum { MANY = 50257, WIDTH = 19 }; /* GPT-2's vocabulary; the longest row of a table */

/* ---- calls: memory of the exact size, outputs full of NaN, inputs compared byte by byte afterwards ---- */

static real *reals_of(const real *a, int n)
{
    real *copy = new_reals(n);

    if (n > 0)
        memcpy(copy, a, n * sizeof *copy);
    return copy;
}

static int *ints_of(const int *a, int n)
{
    int *copy = malloc(n > 0 ? n * sizeof *copy : 1);

    if (n > 0)
        memcpy(copy, a, n * sizeof *copy);
    return copy;
}

static ranked *new_room(int n)
{
    return malloc(n > 0 ? n * sizeof(ranked) : 1);
}

static void trace_unchanged(trace *t, const void *a, const void *before, size_t bytes, const char *name)
{
    trace_int(t, bytes == 0 || memcmp(a, before, bytes) == 0, name);
}

/* What a function returned, and what it wrote: all of it where it returned 0, and nothing where it refused. */
static void trace_result(trace *t, int status, const real *out, int n, const char *name)
{
    real *blank = new_reals(n);

    trace_int(t, status, "what it returns");
    if (status == 0)
        trace_reals(t, out, AXES({"token", 0, n}), name);
    else
        trace_unchanged(t, out, blank, n * sizeof *out, "the output is untouched");
    free(blank);
}

static void expect_result(trace *t, int status, const real *out, int n, const char *name)
{
    trace_int(t, status, "what it returns");
    if (status == 0)
        trace_reals(t, out, AXES({"token", 0, n}), name);
    else
        trace_int(t, 1, "the output is untouched");
}

/* Which tokens are kept, as a set: those above `none`, which is 0 or -INFINITY. */
static void trace_kept(trace *t, const real *a, int n, real none)
{
    static int kept[MANY];

    for (int id = 0; id < n; id++)
        kept[id] = a[id] > none;
    trace_ints(t, kept, AXES({"token", 0, n}), "is kept");
}

/* ---- 2a: softmax with temperature ---- */

static const struct {
    const char *name;
    real temperature;
    int n, top; /* top: the token that has it all at temperature 0, or -1 for a row to be refused */
    real row[5];
} rows_2a[] = {
    {"temperature 1", 1, 3, 0, {1, 2, 3}},
    {"temperature 1, in no order", 1, 5, 0, {0.3, -1.1, 2.7, 0, 2.6}},
    {"temperature 0.8", (real)0.8, 5, 0, {0.3, -1.1, 2.7, 0, 2.6}},
    {"temperature 0.5", 0.5, 3, 0, {3, 2, 1}},
    {"temperature 2", 2, 3, 0, {3, 2, 1}},
    {"temperature 1e30", (real)1e30, 4, 0, {3, -2, 1, 0}},
    {"all equal", (real)0.7, 4, 0, {-3, -3, -3, -3}},
    {"one token", (real)0.7, 1, 0, {-8}},
    {"1 : 2 : 4", 1, 3, 0, {0, LN2, 2 * LN2}},
    {"all far below 0", 1, 2, 0, {-249.5, -248.5}},
    {"logits of 10,000", 1, 3, 0, {10000, 9999, -10000}},
    {"logits of -10,000", 1, 3, 0, {-10000, -10001, -10000.5}},
    {"10,000 after -10,000", 1, 2, 0, {-10000, 10000}},
    {"logits of ±10,000 at temperature 0.5", 0.5, 4, 0, {9999, 10000, -10000, 9998}},
    {"logits of ±10,000 at temperature 10,000", 10000, 3, 0, {-10000, 10000, 0}},
    {"the largest numbers that there are", 1, 3, 0, {LARGEST, -LARGEST, 0}},
    {"temperature 1e-30", (real)1e-30, 4, 0, {1, 2, 1.5, -7}},
    {"temperature 1e-30, two equal on top: they share", (real)1e-30, 4, 0, {1, 5, 5, -7}},
    {"logits of ±10,000 at temperature 1e-30", (real)1e-30, 3, 0, {-10000, 9999, 10000}},
    {"temperature 2^-10, logits that near", (real)0x1p-10, 3, 0, {1, 1 + 0x1p-10, 1 - 0x1p-11}},
    {"the smallest normal temperature, logits of ±10,000", SMALLEST_NORMAL, 3, 0, {-10000, 10000, 9999}},
    {"the smallest temperature", SMALLEST, 4, 0, {0, 3, -1, 3}},
    {"a banned token", 1, 3, 0, {-I, 1, 2}},
    {"banned tokens at temperature 0.5", 0.5, 5, 0, {1, -I, 2, -I, -I}},
    {"all but one banned", 1, 3, 0, {-I, -1000, -I}},
    {"banned tokens at temperature 1e-30", (real)1e-30, 4, 0, {-I, 1, -I, 2}},
    {"temperature 0", 0, 4, 2, {1, 2, 5, 3}},
    {"temperature 0, the first on top", 0, 3, 0, {2, 1, 0}},
    {"temperature 0, equal on top: the lowest id", 0, 4, 1, {1, 5, 5, 5}},
    {"temperature 0, all equal", 0, 3, 0, {-2, -2, -2}},
    {"temperature 0, all below 0", 0, 3, 2, {-5, -4, -3}},
    {"temperature 0, logits of ±10,000", 0, 3, 1, {-10000, 10000, 9999}},
    {"temperature 0, banned tokens", 0, 4, 2, {-I, 1, 2, -I}},
    {"temperature 0, one token", 0, 1, 0, {-3}},
    {"temperature -1", -1, 3, -1, {1, 2, 3}},
    {"temperature -1e-30", (real)-1e-30, 3, -1, {1, 2, 3}},
    {"temperature NaN", N, 3, -1, {1, 2, 3}},
    {"temperature +INFINITY", I, 3, -1, {1, 2, 3}},
    {"temperature -INFINITY", -I, 3, -1, {1, 2, 3}},
    {"NaN first", 1, 3, -1, {N, 1, 2}},
    {"NaN last", 1, 3, -1, {1, 2, N}},
    {"NaN at temperature 0", 0, 3, -1, {3, N, 2}},
    {"+INFINITY", 1, 3, -1, {1, I, 0}},
    {"+INFINITY at temperature 0", 0, 3, -1, {1, I, 0}},
    {"all banned", 1, 2, -1, {-I, -I}},
    {"all banned at temperature 0", 0, 2, -1, {-I, -I}},
    {"one token, banned", 1, 1, -1, {-I}},
    {"no tokens", 1, 0, -1, {0}},
};

enum { N_2A = sizeof rows_2a / sizeof *rows_2a, TALL = 31415 };

/* Where p must be exactly 0, banned tokens and at temperature 0 all but one, and is, or NULL: ought to be. */
static void trace_zeros(trace *t, int i, const real *p)
{
    int zeros[WIDTH];

    for (int id = 0; id < rows_2a[i].n; id++) {
        bool must = rows_2a[i].row[id] == -I || (rows_2a[i].temperature == 0 && id != rows_2a[i].top);
        zeros[id] = must && (!p || p[id] == 0);
    }
    if (rows_2a[i].top >= 0)
        trace_ints(t, zeros, AXES({"token", 0, rows_2a[i].n}), "is banned or not chosen, and exactly 0");
}

/* A vocabulary of GPT-2's size: every 16th token banned, the others at 0, but one at log 2^16. Its weight is 65,536
   times theirs, a power of 2, so that a sum kept in float is right too. */
static void fill_2a(real *row)
{
    for (int id = 0; id < MANY; id++)
        row[id] = id == TALL ? 16 * LN2 : id % 16 == 0 ? -I : 0;
}

static void run_2a_on(trace *t, const real *values, int n, real temperature, real *p)
{
    real *row = reals_of(values, n);
    int status = softmax_temperature(row, n, temperature, p);

    trace_result(t, status, p, n, "p");
    trace_unchanged(t, row, values, n * sizeof *row, "the logits are unchanged");
    free(row);
}

static void run_2a(trace *t)
{
    for (int i = 0; i < N_2A; i++) {
        real *p = new_reals(rows_2a[i].n);
        trace_case(t, "%s", rows_2a[i].name);
        run_2a_on(t, rows_2a[i].row, rows_2a[i].n, rows_2a[i].temperature, p);
        trace_zeros(t, i, p);
        free(p);
    }
    real *many = new_reals(MANY), *p = new_reals(MANY);
    fill_2a(many);
    trace_case(t, "%d tokens", MANY);
    run_2a_on(t, many, MANY, 1, p);
    free(many);
    free(p);
}

/* p_i = 1 / sum over j of exp((x_j - x_i) / T): softmax divided through by its numerator, which needs no maximum. */
static real share_of(const real *row, int n, int i, real temperature)
{
    long double sum = 0;

    for (int j = 0; j < n; j++)
        sum += row[j] == -I ? 0 : expl(((long double)row[j] - row[i]) / temperature);
    return row[i] == -I ? 0 : 1 / sum;
}

static void expect_2a(trace *t)
{
    real p[WIDTH], *many = new_reals(MANY);

    for (int i = 0; i < N_2A; i++) {
        int n = rows_2a[i].n, top = rows_2a[i].top;
        trace_case(t, "%s", rows_2a[i].name);
        for (int id = 0; id < n && top >= 0; id++)
            p[id] = rows_2a[i].temperature == 0 ? id == top : share_of(rows_2a[i].row, n, id, rows_2a[i].temperature);
        expect_result(t, top < 0 ? -1 : 0, p, n, "p");
        trace_int(t, 1, "the logits are unchanged");
        trace_zeros(t, i, NULL);
    }
    int n_plain = MANY - (MANY + 15) / 16 - 1;
    for (int id = 0; id < MANY; id++)
        many[id] = id % 16 == 0 ? 0 : (id == TALL ? 65536.0 : 1) / (n_plain + 65536);
    trace_case(t, "%d tokens", MANY);
    expect_result(t, 0, many, MANY, "p");
    trace_int(t, 1, "the logits are unchanged");
    free(many);
}

/* ---- 2b: top-k ---- */

static const struct {
    const char *name;
    int n, k;
    const char *kept; /* "x" for a token that is kept; NULL for a row to be refused */
    real row[6];
} rows_2b[] = {
    {"the largest", 4, 1, "..x.", {1, 2, 5, 3}},
    {"two of four", 4, 2, "..xx", {1, 2, 5, 3}},
    {"three of six, in no order", 6, 3, "x.x..x", {4, -1, 7, 0, -6, 5}},
    {"all below 0", 4, 2, ".x.x", {-4, -2, -5, -3}},
    {"differences below 1", 5, 2, ".x..x", {0.1, 0.4, 0.2, 0.3, 0.5}},
    {"a tie at rank k: the lower id", 4, 2, "xx..", {7, 3, 3, 1}},
    {"a tie at rank k, the larger behind", 4, 2, "x..x", {3, 3, 3, 9}},
    {"a tie at rank k, two of three", 5, 3, "xx.x.", {3, 3, 3, 9, 0}},
    {"all equal", 5, 3, "xxx..", {2, 2, 2, 2, 2}},
    {"zero and minus zero are equal", 3, 1, "x..", {(real)-0.0, 0, -1}},
    {"banned tokens", 5, 2, ".x..x", {-I, 1, -I, 0, 2}},
    {"more than are allowed", 5, 4, ".x.xx", {-I, 1, -I, 0, 2}},
    {"logits of ±10,000", 4, 2, "x..x", {10000, -10000, -9999, 9999}},
    {"k = V", 3, 3, "xxx", {1, 3, 2}},
    {"k = V + 1", 3, 4, "xxx", {1, 3, 2}},
    {"k = 2,147,483,647", 3, INT_MAX, "xxx", {1, 3, 2}},
    {"k = 0 is off", 3, 0, "xxx", {0, 5, 1}},
    {"k = 0 with a banned token", 3, 0, "x.x", {0, -I, 1}},
    {"V = 1, k = 1", 1, 1, "x", {-3}},
    {"V = 1, k = 0", 1, 0, "x", {-3}},
    {"V = 1, k = 5", 1, 5, "x", {-3}},
    {"k = -1", 3, -1, NULL, {1, 3, 2}},
    {"k = -1,000", 3, -1000, NULL, {1, 3, 2}},
    {"NaN", 3, 1, NULL, {1, N, 2}},
    {"NaN, k = 0", 3, 0, NULL, {1, 2, N}},
    {"+INFINITY", 3, 2, NULL, {1, I, 2}},
    {"all banned", 2, 1, NULL, {-I, -I}},
    {"all banned, k = 0", 2, 0, NULL, {-I, -I}},
    {"no tokens", 0, 1, NULL, {0}},
};

enum { N_2B = sizeof rows_2b / sizeof *rows_2b, N_RANDOM_2B = 30, MANY_K = 40 };

/* A row of 1 … 9 quarters, so that many are equal; some are banned, the last never. Returns V. */
static int random_row(int i, real *row)
{
    generator g = {1000 + i};
    int n = 1 + i % 9;

    for (int id = 0; id < n; id++)
        row[id] = random_bits(&g) % 6 == 0 && id < n - 1 ? -I : (real)(random_bits(&g) % 7) / 4 - 1;
    return n;
}

/* Whether `id` is among the k largest: fewer than k are larger, or equal with a lower id. */
static bool in_top(const real *row, int n, int k, int id)
{
    int before = 0;

    for (int j = 0; j < n; j++)
        before += row[j] > row[id] || (row[j] == row[id] && j < id);
    return k == 0 || before < k;
}

/* A vocabulary of GPT-2's size: 0, but each 1,024th token 1 (there are 50), and the last but one 2. */
static void fill_2b(real *row)
{
    for (int id = 0; id < MANY; id++)
        row[id] = id == MANY - 2 ? 2 : id % 1024 == 1023 || id == MANY - 1 ? 1 : 0;
}

static void run_2b_on(trace *t, const real *values, int n, int k)
{
    real *row = reals_of(values, n), *kept = new_reals(n);
    ranked *room = new_room(n);
    int status = top_k(row, n, k, room, kept);

    trace_result(t, status, kept, n, "kept");
    trace_unchanged(t, row, values, n * sizeof *row, "the logits are unchanged");
    free(row);
    free(kept);
    free(room);
}

static void run_2b(trace *t)
{
    real row[WIDTH], *many = new_reals(MANY);

    for (int i = 0; i < N_2B; i++) {
        trace_case(t, "%s", rows_2b[i].name);
        run_2b_on(t, rows_2b[i].row, rows_2b[i].n, rows_2b[i].k);
    }
    for (int i = 0; i < N_RANDOM_2B; i++)
        for (int k = 0, n = random_row(i, row); k <= n + 1; k++) {
            trace_case(t, "random row %d, V = %d, k = %d", i, n, k);
            run_2b_on(t, row, n, k);
        }
    trace_case(t, "%d tokens, k = %d", MANY, MANY_K);
    fill_2b(many);
    run_2b_on(t, many, MANY, MANY_K);
    free(many);
}

static void expect_2b_of(trace *t, bool refused, const real *kept, int n)
{
    expect_result(t, refused ? -1 : 0, kept, n, "kept");
    trace_int(t, 1, "the logits are unchanged");
}

static void expect_2b(trace *t)
{
    real row[WIDTH], kept[WIDTH], *many = new_reals(MANY);

    for (int i = 0; i < N_2B; i++) {
        const char *mask = rows_2b[i].kept;
        trace_case(t, "%s", rows_2b[i].name);
        for (int id = 0; mask && id < rows_2b[i].n; id++)
            kept[id] = mask[id] == 'x' ? rows_2b[i].row[id] : -I;
        expect_2b_of(t, !mask, kept, rows_2b[i].n);
    }
    for (int i = 0; i < N_RANDOM_2B; i++)
        for (int k = 0, n = random_row(i, row); k <= n + 1; k++) {
            trace_case(t, "random row %d, V = %d, k = %d", i, n, k);
            for (int id = 0; id < n; id++)
                kept[id] = in_top(row, n, k, id) ? row[id] : -I;
            expect_2b_of(t, false, kept, n);
        }
    trace_case(t, "%d tokens, k = %d", MANY, MANY_K);
    fill_2b(many);
    for (int id = 0; id < MANY; id++) /* the 2, and the first 39 of the 50 */
        many[id] = id == MANY - 2 || (many[id] == 1 && id < 39 * 1024) ? many[id] : -I;
    expect_2b_of(t, false, many, MANY);
    free(many);
}

/* ---- 2c: top-p. No right way to add these up comes near a boundary without being within the slack that the rule
   grants: boundaries are either exact in binary or k/19, and all else is 1e-4 away from one. ---- */

#define HALF_SLACK (IN_DOUBLE ? (real)5e-13 : (real)5e-7)
#define BEYOND_SLACK (IN_DOUBLE ? (real)1e-10 : (real)1e-5)

static const struct {
    const char *name;
    real mass;
    int n;
    const char *kept; /* "x" for a token that is kept; NULL for what is to be refused */
    real p[6];
} rows_2c[] = {
    {"the token that crosses 0.75 is kept", 0.75, 3, "xx.", {0.625, 0.25, 0.125}},
    {"exactly 0.75 is reached", 0.75, 4, "xx..", {0.5, 0.25, 0.125, 0.125}},
    {"exactly 0.5 is reached", 0.5, 2, "x.", {0.5, 0.5}},
    {"half the slack above 0.75", (real)0.75 + HALF_SLACK, 4, "xx..", {0.5, 0.25, 0.125, 0.125}},
    {"beyond the slack above 0.75", (real)0.75 + BEYOND_SLACK, 4, "xxx.", {0.5, 0.25, 0.125, 0.125}},
    {"the book's example", (real)0.9, 5, "xxx..", {0.5, 0.3, 0.1, 0.05, 0.05}},
    {"0.4 0.3 0.2 0.1 at 0.8", (real)0.8, 4, "xxx.", {0.4, 0.3, 0.2, 0.1}},
    {"0.5 0.35 0.1 0.05 at 0.9", (real)0.9, 4, "xxx.", {0.5, 0.35, 0.1, 0.05}},
    {"0.5 0.3 0.15 0.05 at 0.6", (real)0.6, 4, "xx..", {0.5, 0.3, 0.15, 0.05}},
    {"0.5 0.41 0.09 at 0.9", (real)0.9, 3, "xx.", {0.5, 0.41, 0.09}},
    {"0.5 0.3 0.2 at 0.9", (real)0.9, 3, "xxx", {0.5, 0.3, 0.2}},
    {"0.7 0.2 0.1 at 0.5", 0.5, 3, "x..", {0.7, 0.2, 0.1}},
    {"in no order", (real)0.65, 4, ".xx.", {0.125, 0.5, 0.25, 0.125}},
    {"rising", 0.5, 3, "..x", {0.125, 0.25, 0.625}},
    {"rising, two", (real)0.7, 3, ".xx", {0.125, 0.25, 0.625}},
    {"a tie at the boundary: the lower ids", (real)0.55, 4, "xx..", {0.25, 0.375, 0.25, 0.125}},
    {"a tie at the boundary, the larger behind", (real)0.55, 4, "x.x.", {0.25, 0.25, 0.375, 0.125}},
    {"four equal at 0.2", (real)0.2, 4, "x...", {0.25, 0.25, 0.25, 0.25}},
    {"four equal at 0.3", (real)0.3, 4, "xx..", {0.25, 0.25, 0.25, 0.25}},
    {"four equal at 0.99", (real)0.99, 4, "xxxx", {0.25, 0.25, 0.25, 0.25}},
    {"probabilities of exactly 0", (real)0.6, 5, ".x..x", {0, 0.5, 0, 0, 0.5}},
    {"probabilities of exactly 0 at mass 1", 1, 5, ".x..x", {0, 0.5, 0, 0, 0.5}},
    {"mass 0: the top token alone", 0, 3, ".x.", {0.25, 0.5, 0.25}},
    {"mass -1: the top token alone", -1, 3, ".x.", {0.25, 0.5, 0.25}},
    {"mass -INFINITY", -I, 3, ".x.", {0.25, 0.5, 0.25}},
    {"mass 1e-30", (real)1e-30, 3, "..x", {0.25, 0.25, 0.5}},
    {"mass 1e-13", (real)1e-13, 3, "..x", {0.25, 0.25, 0.5}},
    {"mass 0, two equal on top", 0, 3, ".x.", {0, 0.5, 0.5}},
    {"mass 1 is off", 1, 4, "xxxx", {0.5, 0.25, 0.125, 0.125}},
    {"mass 1 keeps the smallest, too", 1, 3, "xxx", {1 - 0x1p-22, 0x1p-23, 0x1p-23}},
    {"mass 1 keeps what is far below the slack", 1, 2, "xx", {1, 0x1p-60}},
    {"mass 2", 2, 3, "xxx", {0.5, 0.25, 0.25}},
    {"mass +INFINITY", I, 3, "xxx", {0.5, 0.25, 0.25}},
    {"just below mass 1", BELOW_1, 4, "xxxx", {0.5, 0.25, 0.125, 0.125}},
    {"V = 1 at mass 0.5", 0.5, 1, "x", {1}},
    {"V = 1 at mass 0", 0, 1, "x", {1}},
    {"V = 1 at mass 1", 1, 1, "x", {1}},
    {"a total that never reaches the mass", (real)0.9, 3, "xxx", {0.5, 0.25, 0.125}},
    {"mass NaN", N, 3, NULL, {0.5, 0.25, 0.25}},
    {"a negative number", 0.5, 3, NULL, {0.75, 0.5, -0.25}},
    {"NaN", 0.5, 3, NULL, {N, 0.5, 0.5}},
    {"NaN behind the nucleus", 0.5, 3, NULL, {0.75, 0.25, N}},
    {"infinity", 0.5, 3, NULL, {0.5, I, 0.5}},
    {"all 0", 0.5, 3, NULL, {0, 0, 0}},
    {"all 0 at mass 1", 1, 3, NULL, {0, 0, 0}},
    {"no tokens", 0.5, 0, NULL, {0}},
};

enum { N_2C = sizeof rows_2c / sizeof *rows_2c, UNITS = 64, MASSES = 2 * UNITS + 1 };

/* Probabilities in units of 1/64: any way to add them up is exact, in float too. */
static const struct {
    int n, units[8];
} exact[] = {
    {4, {32, 16, 8, 8}}, {6, {1, 2, 4, 8, 16, 33}},      {4, {16, 16, 16, 16}},          {4, {40, 0, 0, 24}}, {1, {64}},
    {6, {7, 9, 7, 9, 16, 16}}, {4, {5, 21, 10, 28}}, {8, {0, 12, 12, 12, 12, 12, 4, 0}},
};

enum { N_EXACT = sizeof exact / sizeof *exact, NINETEEN = 19 };

static void fill_exact(int i, real *p)
{
    for (int id = 0; id < exact[i].n; id++)
        p[id] = (real)exact[i].units[id] / UNITS;
}

/* The units of what ranks before `id`: larger, or equal with a lower id. */
static int units_before(int i, int id)
{
    int units = 0;

    for (int j = 0; j < exact[i].n; j++)
        if (exact[i].units[j] > exact[i].units[id] || (exact[i].units[j] == exact[i].units[id] && j < id))
            units += exact[i].units[j];
    return units;
}

/* A vocabulary of GPT-2's size in units of 2^-20: one token has half, 51 have 4,096, one what is left, the rest 6. */
static void fill_2c(real *p)
{
    for (int id = 0; id < MANY; id++)
        p[id] = (id == TALL ? 0x1p19 : id % 1000 == 7 ? 4096 : id == 5 ? 14168 : 6) / 0x1p20;
}

static void run_2c_on(trace *t, const real *values, int n, real mass)
{
    real *p = reals_of(values, n), *kept = new_reals(n), sum = 0;
    ranked *room = new_room(n);
    int status = top_p(p, n, mass, room, kept);

    trace_result(t, status, kept, n, "kept");
    trace_kept(t, kept, n, 0);
    for (int id = 0; id < n && status == 0; id++)
        sum += kept[id];
    trace_reals(t, &sum, SINGLE, "sum of what is kept");
    trace_unchanged(t, p, values, n * sizeof *p, "the probabilities are unchanged");
    free(p);
    free(kept);
    free(room);
}

static void expect_2c_of(trace *t, bool refused, const real *kept, int n)
{
    expect_result(t, refused ? -1 : 0, kept, n, "kept");
    trace_kept(t, kept, n, 0);
    trace_reals(t, &(real){!refused}, SINGLE, "sum of what is kept");
    trace_int(t, 1, "the probabilities are unchanged");
}

/* One row at all masses 0/128 … 128/128. */
static void run_masses(trace *t, int i)
{
    int n = exact[i].n;
    real *p = new_reals(n), *kept = new_reals((size_t)MASSES * n);
    ranked *room = new_room(n);

    fill_exact(i, p);
    for (int m = 0; m < MASSES; m++)
        top_p(p, n, (real)m / (MASSES - 1), room, kept + m * n);
    trace_reals(t, kept, AXES({"128 × mass", 0, MASSES}, {"token", 0, n}), "kept");
    free(p);
    free(kept);
    free(room);
}

static void expect_masses(trace *t, int i)
{
    int n = exact[i].n;
    real *kept = new_reals((size_t)MASSES * n);

    for (int m = 0; m < MASSES; m++) {
        int sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int id = 0; id < n; id++) {
                int before = units_before(i, id), is_kept = before == 0 || m == MASSES - 1 || 2 * before < m;
                sum += pass == 0 && is_kept ? exact[i].units[id] : 0;
                kept[m * n + id] = is_kept ? (real)exact[i].units[id] / sum : 0;
            }
    }
    trace_reals(t, kept, AXES({"128 × mass", 0, MASSES}, {"token", 0, n}), "kept");
    free(kept);
}

/* 19 × 1/19: at mass k/19 rounding must not change that k are kept, at (k + 1/2)/19 it's k + 1. */
static real nineteenths(int k2)
{
    return k2 == 2 * NINETEEN ? (real)0.9999999 : (real)(k2 / (2.0 * NINETEEN));
}

static void run_2c(trace *t)
{
    real *many = new_reals(MANY), equal[NINETEEN];

    for (int i = 0; i < N_2C; i++) {
        trace_case(t, "%s", rows_2c[i].name);
        run_2c_on(t, rows_2c[i].p, rows_2c[i].n, rows_2c[i].mass);
    }
    for (int i = 0; i < N_EXACT; i++) {
        trace_case(t, "probabilities in 64ths, row %d", i);
        run_masses(t, i);
    }
    for (int id = 0; id < NINETEEN; id++)
        equal[id] = (real)1 / NINETEEN;
    for (int k2 = 1; k2 <= 2 * NINETEEN; k2++) {
        trace_case(t, "19 × 1/19 at mass %.7f", (double)nineteenths(k2));
        run_2c_on(t, equal, NINETEEN, nineteenths(k2));
    }
    trace_case(t, "%d tokens at mass 0.7", MANY);
    fill_2c(many);
    run_2c_on(t, many, MANY, (real)0.7);
    free(many);
}

static void expect_2c(trace *t)
{
    real *kept = new_reals(MANY);

    for (int i = 0; i < N_2C; i++) {
        const char *mask = rows_2c[i].kept;
        double sum = 0;
        trace_case(t, "%s", rows_2c[i].name);
        for (int id = 0; mask && id < rows_2c[i].n; id++)
            sum += mask[id] == 'x' ? rows_2c[i].p[id] : 0;
        for (int id = 0; id < rows_2c[i].n; id++)
            kept[id] = mask && mask[id] == 'x' ? rows_2c[i].p[id] / sum : 0;
        expect_2c_of(t, !mask, kept, rows_2c[i].n);
    }
    for (int i = 0; i < N_EXACT; i++) {
        trace_case(t, "probabilities in 64ths, row %d", i);
        expect_masses(t, i);
    }
    for (int k2 = 1; k2 <= 2 * NINETEEN; k2++) {
        int n = (k2 + 1) / 2;
        trace_case(t, "19 × 1/19 at mass %.7f", (double)nineteenths(k2));
        for (int id = 0; id < NINETEEN; id++)
            kept[id] = id < n ? (real)1 / n : 0;
        expect_2c_of(t, false, kept, NINETEEN);
    }
    trace_case(t, "%d tokens at mass 0.7", MANY);
    fill_2c(kept); /* 0.7 * 2^20 = 734,003.2, which the 48th of those with 4,096 crosses: 524,288 + 14,168 + 196,608 */
    for (int id = 0; id < MANY; id++)
        kept[id] = id == TALL || id == 5 || (id % 1000 == 7 && id < 48000) ? kept[id] * 0x1p20 / 735064 : 0;
    expect_2c_of(t, false, kept, MANY);
    free(kept);
}

/* ---- 2d: repetition penalty ---- */

enum { LONG_2D = 100 };

static const struct {
    const char *name;
    real penalty;
    int n, n_tokens, tokens[6];
    int refused;
    real row[5], right[5];
} rows_2d[] = {
    {"the book's example", 1.25, 3, 2, {0, 1}, 0, {2, -2, 1}, {1.6, -2.5, 1}},
    {"both signs, one not in the list", 2, 5, 3, {1, 3, 4}, 0, {4, 3, -2, -1, 8}, {4, 1.5, -2, -2, 4}},
    {"0 stays", 2, 3, 2, {0, 1}, 0, {0, (real)-0.0, 1}, {0, 0, 1}},
    {"a token that comes three times", 2, 3, 4, {1, 0, 1, 1}, 0, {-3, 8, 5}, {-6, 4, 5}},
    {"all but the last of the list again", 2, 4, 6, {2, 2, 1, 2, 1, 0}, 0, {4, -4, 2, -2}, {2, -8, 1, -2}},
    {"no tokens to penalise", 2, 3, 0, {0}, 0, {4, -4, 2}, {4, -4, 2}},
    {"penalty 1 is off", 1, 3, 3, {0, 1, 2}, 0, {4, -4, 2}, {4, -4, 2}},
    {"penalty 0.5 rewards", 0.5, 3, 2, {0, 1}, 0, {4, -4, 2}, {8, -2, 2}},
    {"penalty 1e-30", (real)1e-30, 3, 2, {1, 2}, 0, {4, -4, 0}, {4, 0, 0}},
    {"a banned token is in the list", 2, 3, 2, {0, 2}, 0, {-I, 1, 2}, {-I, 1, 1}},
    {"logits of ±10,000", 1.25, 3, 3, {0, 1, 2}, 0, {10000, -10000, 1}, {8000, -12500, 0.8}},
    {"V = 1", 4, 1, 2, {0, 0}, 0, {-3}, {-12}},
    {"the first and the last id", 2, 4, 2, {3, 0}, 0, {2, 2, 2, 2}, {1, 2, 2, 1}},
    {"penalty 0", 0, 3, 1, {0}, -1, {1, 2, 3}, {0}},
    {"penalty -1", -1, 3, 1, {0}, -1, {1, 2, 3}, {0}},
    {"penalty NaN", N, 3, 1, {0}, -1, {1, 2, 3}, {0}},
    {"penalty +INFINITY", I, 3, 1, {0}, -1, {1, 2, 3}, {0}},
    {"penalty 0, no tokens", 0, 3, 0, {0}, -1, {1, 2, 3}, {0}},
    {"id V in the list", 2, 3, 3, {0, 3, 1}, -1, {1, 2, 3}, {0}},
    {"id -1 at the end of the list", 2, 3, 3, {0, 1, -1}, -1, {1, 2, 3}, {0}},
    {"NaN", 2, 3, 1, {0}, -1, {1, N, 3}, {0}},
    {"+INFINITY, which isn't in the list", 2, 3, 1, {0}, -1, {1, I, 3}, {0}},
    {"all banned", 2, 2, 1, {0}, -1, {-I, -I}, {0}},
    {"no vocabulary", 2, 0, 0, {0}, -1, {0}, {0}},
};

enum { N_2D = sizeof rows_2d / sizeof *rows_2d };

/* Tokens 0, 1, 2 and then token 3 again and again. */
static void fill_2d(int *tokens)
{
    for (int i = 0; i < LONG_2D; i++)
        tokens[i] = i < 3 ? i : 3;
}

static void run_2d_on(trace *t, const real *values, int n, const int *list, int n_tokens, real penalty)
{
    real *row = reals_of(values, n), *out = new_reals(n);
    int *tokens = ints_of(list, n_tokens);
    int status = penalise(row, n, tokens, n_tokens, penalty, out);

    trace_result(t, status, out, n, "penalised logits");
    trace_unchanged(t, row, values, n * sizeof *row, "the logits are unchanged");
    trace_unchanged(t, tokens, list, n_tokens * sizeof *tokens, "the tokens are unchanged");
    free(row);
    free(out);
    free(tokens);
}

static void run_2d(trace *t)
{
    int tokens[LONG_2D];
    real *many = new_reals(MANY);

    for (int i = 0; i < N_2D; i++) {
        trace_case(t, "%s", rows_2d[i].name);
        run_2d_on(t, rows_2d[i].row, rows_2d[i].n, rows_2d[i].tokens, rows_2d[i].n_tokens, rows_2d[i].penalty);
    }
    trace_case(t, "%d tokens to penalise", LONG_2D);
    fill_2d(tokens);
    run_2d_on(t, (const real[]){4, -4, 2, 6, 1}, 5, tokens, LONG_2D, 2);
    trace_case(t, "%d tokens", MANY);
    for (int id = 0; id < MANY; id++)
        many[id] = id % 3 - 1;
    run_2d_on(t, many, MANY, (const int[]){MANY - 1, 2, 0, TALL, 2}, 5, 2);
    free(many);
}

static void expect_2d_of(trace *t, int status, const real *out, int n)
{
    expect_result(t, status, out, n, "penalised logits");
    trace_int(t, 1, "the logits are unchanged");
    trace_int(t, 1, "the tokens are unchanged");
}

static void expect_2d(trace *t)
{
    real *many = new_reals(MANY);

    for (int i = 0; i < N_2D; i++) {
        trace_case(t, "%s", rows_2d[i].name);
        expect_2d_of(t, rows_2d[i].refused, rows_2d[i].right, rows_2d[i].n);
    }
    trace_case(t, "%d tokens to penalise", LONG_2D);
    expect_2d_of(t, 0, (const real[]){2, -8, 1, 3, 1}, 5);
    trace_case(t, "%d tokens", MANY);
    for (int id = 0; id < MANY; id++)
        many[id] = id % 3 - 1;
    many[0] = many[MANY - 1] = -2; /* both are -1 in the row, times 2 */
    many[2] = 0.5;                 /* 1, divided by 2, once; 31,415 is 1 as well */
    many[TALL] = 0.5;
    expect_2d_of(t, 0, many, MANY);
    free(many);
}

/* ---- 2e: the draw ---- */

#define T12 (real)(1.0 / 12)

static const struct {
    const char *name;
    real u;
    int n, right;
    real p[12];
} rows_2e[] = {
    {"u = 0", 0, 3, 0, {0.5, 0.25, 0.25}},
    {"u = 0, the first of probability 0", 0, 3, 1, {0, 0.5, 0.5}},
    {"u = 0, all but the last of probability 0", 0, 4, 3, {0, 0, 0, 1}},
    {"u on a boundary: the next", 0.5, 3, 1, {0.5, 0.25, 0.25}},
    {"u on a boundary before zeros", 0.5, 4, 3, {0.5, 0, 0, 0.5}},
    {"u just below a boundary", (real)0.499999, 3, 0, {0.5, 0.25, 0.25}},
    {"u = p of the first: the next", (real)0.1, 3, 1, {0.1, 0.2, 0.7}},
    {"the largest u", BELOW_1, 4, 3, {0.25, 0.25, 0.25, 0.25}},
    {"the largest u, zeros behind", BELOW_1, 5, 2, {0.25, 0.25, 0.5, 0, 0}},
    {"the largest u, 12 × 1/12", BELOW_1, 12, 11, {T12, T12, T12, T12, T12, T12, T12, T12, T12, T12, T12, T12}},
    {"the largest u, 10 × 0.1 and zeros", BELOW_1, 12, 9, {.1, .1, .1, .1, .1, .1, .1, .1, .1, .1}},
    {"a total just short of u: the last above 0", BELOW_1, 4, 2, {0.25, 0.25, 0.5 - 0x1p-20, 0}},
    {"a total just short of u, the first holds all", BELOW_1, 3, 0, {1 - 0x1p-20, 0, 0}},
    {"not the largest, but where u falls", (real)0.05, 3, 0, {0.1, 0.8, 0.1}},
    {"V = 1", (real)0.7, 1, 0, {1}},
    {"V = 1, u = 0", 0, 1, 0, {1}},
    {"u = 1", 1, 3, -1, {0.5, 0.25, 0.25}},
    {"u = 2", 2, 3, -1, {0.5, 0.25, 0.25}},
    {"u below 0", (real)-1e-30, 3, -1, {0.5, 0.25, 0.25}},
    {"u NaN", N, 3, -1, {0.5, 0.25, 0.25}},
    {"a negative number", 0.5, 3, -1, {-0.25, 0.75, 0.5}},
    {"a negative number behind", (real)0.1, 3, -1, {0.75, 0.5, -0.25}},
    {"NaN", 0.5, 3, -1, {N, 0.5, 0.5}},
    {"NaN behind", (real)0.1, 3, -1, {0.5, 0.5, N}},
    {"infinity", 0.5, 3, -1, {0.5, I, 0.5}},
    {"all 0", 0.5, 3, -1, {0, 0, 0}},
    {"no tokens", 0.5, 0, -1, {0}},
};

enum { N_2E = sizeof rows_2e / sizeof *rows_2e, GRID = 256, N_MANY_2E = 5 };

/* A vocabulary of GPT-2's size in units of 2^-16: 1 each, and token 777 has what is left, 65,536 - 50,256 = 15,280.
   So u = x / 65,536 falls on token x below 777, on 777 up to 16,056, and then on x - 15,279. */
static const struct {
    double x;
    int right;
} many_2e[N_MANY_2E] = {{0, 0}, {776.5, 776}, {16056.75, 777}, {16057, 778}, {65535.5, 50256}};

static void run_2e_on(trace *t, const real *values, int n, real u)
{
    real *p = reals_of(values, n);

    trace_int(t, draw(p, n, u), "id");
    trace_unchanged(t, p, values, n * sizeof *p, "the probabilities are unchanged");
    free(p);
}

static void run_2e(trace *t)
{
    real *many = new_reals(MANY);
    int ids[GRID];

    for (int i = 0; i < N_2E; i++) {
        trace_case(t, "%s", rows_2e[i].name);
        run_2e_on(t, rows_2e[i].p, rows_2e[i].n, rows_2e[i].u);
    }
    for (int i = 0; i < N_EXACT; i++) {
        real *p = new_reals(exact[i].n);
        trace_case(t, "probabilities in 64ths, row %d", i);
        fill_exact(i, p);
        for (int j = 0; j < GRID; j++)
            ids[j] = draw(p, exact[i].n, (real)j / GRID);
        trace_ints(t, ids, AXES({"256 × u", 0, GRID}), "id");
        free(p);
    }
    for (int id = 0; id < MANY; id++)
        many[id] = (id == 777 ? 15280 : 1) / 0x1p16;
    for (int i = 0; i < N_MANY_2E; i++) {
        trace_case(t, "%d tokens, u = %.2f / 65536", MANY, many_2e[i].x);
        run_2e_on(t, many, MANY, (real)(many_2e[i].x / 0x1p16));
    }
    free(many);
}

static void expect_2e_of(trace *t, int id)
{
    trace_int(t, id, "id");
    trace_int(t, 1, "the probabilities are unchanged");
}

static void expect_2e(trace *t)
{
    int ids[GRID];

    for (int i = 0; i < N_2E; i++) {
        trace_case(t, "%s", rows_2e[i].name);
        expect_2e_of(t, rows_2e[i].right);
    }
    for (int i = 0; i < N_EXACT; i++) {
        trace_case(t, "probabilities in 64ths, row %d", i);
        for (int id = 0, j = 0; id < exact[i].n; id++)
            for (int last = j + GRID / UNITS * exact[i].units[id]; j < last; j++)
                ids[j] = id;
        trace_ints(t, ids, AXES({"256 × u", 0, GRID}), "id");
    }
    for (int i = 0; i < N_MANY_2E; i++) {
        trace_case(t, "%d tokens, u = %.2f / 65536", MANY, many_2e[i].x);
        expect_2e_of(t, many_2e[i].right);
    }
}

/* ---- 2f: the chain ---- */

/* A sampler whose rooms have the exact size. */
static sampler new_sampler(int n_vocab)
{
    return (sampler){.temperature = 1, .top_p = 1, .penalty = 1, .logits = new_reals(n_vocab), .p = new_reals(n_vocab),
                     .room = new_room(n_vocab)};
}

static void free_sampler(sampler *s)
{
    free(s->logits);
    free(s->p);
    free(s->room);
}

static const struct {
    const char *name;
    real penalty, temperature;
    int top_k;
    real top_p;
    int n, n_tokens, tokens[4];
    const char *kept; /* NULL for what is to be refused */
    real row[5], penalised[5];
} rows_2f[] = {
    {"all off", 1, 1, 0, 1, 3, 0, {0}, "xxx", {1, 2, 3}, {1, 2, 3}},
    {"the temperature before top-p", 1, 0.5, 0, (real)0.8, 3, 0, {0}, "x..", {3, 2, 1}, {3, 2, 1}},
    {"a high temperature before top-p", 1, 4, 0, (real)0.6, 3, 0, {0}, "xx.", {3, 2, 1}, {3, 2, 1}},
    {"what top-k leaves sums to 1 before top-p", 1, 1, 2, 0.5, 4, 0, {0}, "x...", {2 * LN2, LN2, LN2, 0},
     {2 * LN2, LN2, LN2, 0}},
    {"top-p cuts what top-k left", 1, 1, 3, (real)0.7, 4, 0, {0}, "xx..", {2 * LN2, LN2, 0, 0}, {2 * LN2, LN2, 0, 0}},
    {"top-k cuts what top-p would keep", 1, 1, 1, (real)0.99, 3, 0, {0}, ".x.", {1, 2, 1.5}, {1, 2, 1.5}},
    {"the penalty before top-k", 2, 1, 2, 1, 4, 1, {0}, ".xx.", {3, 2.5, 2, 1}, {1.5, 2.5, 2, 1}},
    {"the penalty before top-p", 2, 1, 0, (real)0.4, 3, 1, {2}, "x..", {2, 1, 3}, {2, 1, 1.5}},
    {"the penalty before temperature 0", 2, 0, 0, 1, 3, 2, {2, 2}, "x..", {2, 1, 3}, {2, 1, 1.5}},
    {"temperature 0 with everything else", 1.25, 0, 2, (real)0.9, 4, 2, {3, 1}, "..x.", {1, 2, 1.9, 2.2},
     {1, 1.6, 1.9, 1.76}},
    {"temperature 1e-30", 1, (real)1e-30, 3, (real)0.9, 4, 0, {0}, "...x", {1, 2, 3, 4}, {1, 2, 3, 4}},
    {"a banned token stays banned", 2, 1, 0, 1, 4, 2, {1, 3}, "x.xx", {1, -I, -1, -2}, {1, -I, -1, -4}},
    {"logits of ±10,000", 1.25, 1, 3, 1, 4, 1, {0}, ".x.x", {10000, 9999, -10000, 9998}, {8000, 9999, -10000, 9998}},
    {"V = 1", 2, (real)0.7, 40, (real)0.9, 1, 1, {0}, "x", {-3}, {-6}},
    {"temperature -1", 1, -1, 0, 1, 3, 0, {0}, NULL, {1, 2, 3}, {0}},
    {"temperature NaN", 1, N, 0, 1, 3, 0, {0}, NULL, {1, 2, 3}, {0}},
    {"top-k -1", 1, 1, -1, 1, 3, 0, {0}, NULL, {1, 2, 3}, {0}},
    {"top-p NaN", 1, 1, 0, N, 3, 0, {0}, NULL, {1, 2, 3}, {0}},
    {"penalty 0", 0, 1, 0, 1, 3, 0, {0}, NULL, {1, 2, 3}, {0}},
    {"an id that isn't in the vocabulary", 2, 1, 0, 1, 3, 1, {3}, NULL, {1, 2, 3}, {0}},
    {"NaN", 1, 1, 0, 1, 3, 0, {0}, NULL, {1, N, 3}, {0}},
    {"+INFINITY", 1, 1, 0, 1, 3, 0, {0}, NULL, {1, I, 3}, {0}},
    {"all banned", 1, 1, 0, 1, 2, 0, {0}, NULL, {-I, -I}, {0}},
    {"no tokens", 1, 1, 0, 1, 0, 0, {0}, NULL, {0}, {0}},
};

enum { N_2F = sizeof rows_2f / sizeof *rows_2f };

static void run_rows_2f(trace *t)
{
    for (int i = 0; i < N_2F; i++) {
        int n = rows_2f[i].n, n_tokens = rows_2f[i].n_tokens;
        real *row = reals_of(rows_2f[i].row, n), *p = new_reals(n);
        int *tokens = ints_of(rows_2f[i].tokens, n_tokens);
        sampler s = new_sampler(n);
        s.penalty = rows_2f[i].penalty;
        s.temperature = rows_2f[i].temperature;
        s.top_k = rows_2f[i].top_k;
        s.top_p = rows_2f[i].top_p;
        trace_case(t, "%s", rows_2f[i].name);
        int status = sampler_probabilities(&s, row, n, tokens, n_tokens, p);
        trace_result(t, status, p, n, "p");
        trace_kept(t, p, n, 0);
        trace_unchanged(t, row, rows_2f[i].row, n * sizeof *row, "the logits are unchanged");
        trace_unchanged(t, tokens, rows_2f[i].tokens, n_tokens * sizeof *tokens, "the tokens are unchanged");
        trace_int(t, s.random.state == 0, "no random number is taken");
        free_sampler(&s);
        free(row);
        free(p);
        free(tokens);
    }
}

static void expect_rows_2f(trace *t)
{
    for (int i = 0; i < N_2F; i++) {
        const char *mask = rows_2f[i].kept;
        int n = rows_2f[i].n;
        real p[WIDTH], row[WIDTH];
        for (int id = 0; id < n; id++)
            row[id] = mask && mask[id] == 'x' ? rows_2f[i].penalised[id] : -I;
        for (int id = 0; id < n; id++) /* at temperature 0 one is left: any temperature gives it all */
            p[id] = mask ? share_of(row, n, id, rows_2f[i].temperature > 0 ? rows_2f[i].temperature : 1) : 0;
        trace_case(t, "%s", rows_2f[i].name);
        expect_result(t, mask ? 0 : -1, p, n, "p");
        trace_kept(t, p, n, 0);
        trace_int(t, 1, "the logits are unchanged");
        trace_int(t, 1, "the tokens are unchanged");
        trace_int(t, 1, "no random number is taken");
    }
}

/* ---- the chain by its definition: each token's place and the mass before it are counted, nothing is sorted ---- */

enum { V_2F = 7, LIST = 3 };

static bool listed(const int *tokens, int n, int id)
{
    for (int i = 0; i < n; i++)
        if (tokens[i] == id)
            return true;
    return false;
}

/* p [V_2F]. Asserts that no total is so near to top_p that rounding could put it on the other side. */
static void chain_by_definition(const sampler *s, const real *logits, const int *tokens, int n, real *p)
{
    real x[V_2F], share[V_2F], kept[V_2F];

    for (int id = 0; id < V_2F; id++) {
        real by = !listed(tokens, n, id) ? 1 : logits[id] > 0 ? 1 / s->penalty : s->penalty;
        x[id] = logits[id] * by;
    }
    for (int id = 0; id < V_2F; id++)
        kept[id] = in_top(x, V_2F, s->temperature == 0 ? 1 : s->top_k, id) ? x[id] : -I;
    for (int id = 0; id < V_2F; id++)
        share[id] = share_of(kept, V_2F, id, s->temperature > 0 ? s->temperature : 1);
    for (int id = 0; id < V_2F; id++) {
        double before = 0;
        bool first = true;
        for (int j = 0; j < V_2F; j++)
            if (share[j] > share[id] || (share[j] == share[id] && j < id)) {
                before += share[j];
                first = false;
            }
        assert(s->top_p >= 1 || first || share[id] == 0 || fabs(before - s->top_p) > 1e-4);
        kept[id] = first || s->top_p >= 1 || before < s->top_p ? log(share[id]) : -I;
    }
    for (int id = 0; id < V_2F; id++)
        p[id] = share_of(kept, V_2F, id, 1);
}

static const real logits_2f[][V_2F] = {
    {2.5, 0.7, -1.3, 2.1, -I, 1.9, 0.2},
    {-0.4, -0.9, -2.2, -0.1, -3.1, -0.6, -1.5},
    {0.5, 0.5, 0.5, 1.5, 1.5, -0.5, -0.5},
};
static const int tokens_2f[LIST] = {3, 0, 3};
static const real penalties[] = {1, 1.25, 0.8}, temperatures[] = {0, 0.5, 1, 2}, masses_2f[] = {0, 0.31, 0.77, 0.93, 1};
static const int ks[] = {0, 1, 3, 6, 9};

enum { N_LOGITS = 3, N_PENALTIES = 3, N_TEMPERATURES = 4, N_KS = 5, N_MASSES = 5 };
enum { N_SETTINGS = N_PENALTIES * N_TEMPERATURES * N_KS * N_MASSES };

static void set_2f(sampler *s, int setting)
{
    s->top_p = masses_2f[setting % N_MASSES];
    s->top_k = ks[setting / N_MASSES % N_KS];
    s->temperature = temperatures[setting / N_MASSES / N_KS % N_TEMPERATURES];
    s->penalty = penalties[setting / N_MASSES / N_KS / N_TEMPERATURES];
}

/* All settings on one row: the answer's probabilities, or with `right` those by definition. */
static void each_setting(trace *t, bool right)
{
    sampler s = new_sampler(V_2F);
    real *p = new_reals(N_SETTINGS * V_2F);

    for (int i = 0; i < N_LOGITS; i++) {
        trace_case(t, "row %d under %d settings", i, N_SETTINGS);
        for (int k = 0; k < N_SETTINGS; k++) {
            set_2f(&s, k);
            if (right)
                chain_by_definition(&s, logits_2f[i], tokens_2f, LIST, p + k * V_2F);
            else
                sampler_probabilities(&s, logits_2f[i], V_2F, tokens_2f, LIST, p + k * V_2F);
        }
        trace_reals(t, p, AXES({"setting", 0, N_SETTINGS}, {"token", 0, V_2F}), "p");
    }
    free(p);
    free_sampler(&s);
}

/* ---- choose_sampled: token after token, as the loop calls it ---- */

enum { CHOSEN = 40 };

static const struct {
    const char *name;
    uint64_t seed;
    real temperature;
    int top_k;
    real top_p, penalty;
    int n_prompt_given, n_prompt; /* the prompt's length, and how many of it are to be penalised */
} texts_2f[] = {
    {"seed 0", 0, 1, 0, 1, 1, 2, 0},
    {"seed 1", 1, 1, 0, 1, 1, 2, 0},
    {"temperature 0", 5, 0, 0, 1, 1, 2, 0},
    {"top-k 3 and top-p 0.77", 7, (real)0.8, 3, (real)0.77, 1, 2, 0},
    {"a strong penalty, of what is generated", 8, 1, 0, 1, 4, 3, 0},
    {"a strong penalty, of two of the prompt's three tokens too", 8, 1, 0, 1, 4, 3, 2},
    {"a strong penalty, of the whole prompt too", 8, 1, 0, 1, 4, 3, 3},
    {"temperature 0 and a penalty", 9, 0, 0, 1, 2, 3, 3},
};

enum { N_TEXTS = sizeof texts_2f / sizeof *texts_2f };

static sampler text_sampler(int i)
{
    sampler s = new_sampler(V_2F);

    s.temperature = texts_2f[i].temperature;
    s.top_k = texts_2f[i].top_k;
    s.top_p = texts_2f[i].top_p;
    s.penalty = texts_2f[i].penalty;
    s.n_prompt = texts_2f[i].n_prompt;
    s.random.state = texts_2f[i].seed;
    return s;
}

/* How many numbers were taken from a generator that started with `seed`: up to 100, or -1. */
static int numbers_taken(generator g, uint64_t seed)
{
    generator other = {seed};

    for (int n = 0; n <= 100; n++, random_bits(&other))
        if (other.state == g.state)
            return n;
    return -1;
}

/* The smallest id whose total exceeds u. Asserts that rounding can't make it another. */
static int draw_by_definition(const real *p, double u)
{
    double total = 0;
    int id = -1;

    for (int j = 0; j < V_2F; j++) {
        total += p[j];
        assert(fabs(total - u) > 1e-5 || p[j] == 0);
        id = id < 0 && total > u ? j : id;
    }
    return id;
}

/* A text of CHOSEN tokens whose logits depend on its length alone: the answer's, or with `right` by definition. */
static void each_text(trace *t, bool right)
{
    for (int i = 0; i < N_TEXTS; i++) {
        sampler s = text_sampler(i);
        int n = texts_2f[i].n_prompt_given, *tokens = ints_of((const int[]){0, 5, 3}, n);
        tokens = realloc(tokens, (n + CHOSEN) * sizeof *tokens);
        trace_case(t, "choose_sampled, %s", texts_2f[i].name);
        for (int k = 0; k < CHOSEN; k++) {
            int *seen = ints_of(tokens, n + k); /* no token more than there are */
            const real *logits = logits_2f[k % N_LOGITS];
            if (right) {
                chain_by_definition(&s, logits, seen + n - s.n_prompt, s.n_prompt + k, s.p);
                tokens[n + k] = draw_by_definition(s.p, random_uniform(&s.random));
            } else {
                tokens[n + k] = choose_sampled(&s, logits, V_2F, seen + n, k);
            }
            free(seen);
            if (tokens[n + k] < 0 || tokens[n + k] >= V_2F) /* the next call couldn't be made with it */
                tokens[n + k] = 0;
        }
        trace_ints(t, tokens + n, AXES({"place", 0, CHOSEN}), "chosen token");
        trace_int(t, right ? CHOSEN : numbers_taken(s.random, texts_2f[i].seed), "how many random numbers are taken");
        free(tokens);
        free_sampler(&s);
    }
}

static void run_refusals(trace *t)
{
    sampler s = new_sampler(V_2F);
    real *row = reals_of(logits_2f[0], V_2F);
    int *tokens = ints_of((const int[]){V_2F}, 1);

    trace_case(t, "choose_sampled");
    s.temperature = -1;
    trace_int(t, choose_sampled(&s, row, V_2F, tokens, 0), "id at temperature -1");
    s.temperature = 1;
    trace_int(t, choose_sampled(&s, row, V_2F, tokens, 1), "id when an id that isn't in the vocabulary was generated");
    trace_unchanged(t, row, logits_2f[0], V_2F * sizeof *row, "the logits are unchanged");
    row[2] = N;
    trace_int(t, choose_sampled(&s, row, V_2F, tokens, 0), "id for a row with NaN");
    free(row);
    free(tokens);
    free_sampler(&s);
}

static void expect_refusals(trace *t)
{
    trace_case(t, "choose_sampled");
    trace_int(t, -1, "id at temperature -1");
    trace_int(t, -1, "id when an id that isn't in the vocabulary was generated");
    trace_int(t, 1, "the logits are unchanged");
    trace_int(t, -1, "id for a row with NaN");
}

/* ---- Pearson's chi-squared test: are 100,000 tokens drawn as often as they should be? ---- */

enum { DRAWS = 100000, KEPT_2F = 5 };

#define FALSE_ALARM 1e-6 /* of a right answer with a random seed; the seed is fixed, so that a result repeats */

static const real logits_chi[] = {2.0, -0.5, 1.2, 0.3, 2.5, -I};

enum { V_CHI = sizeof logits_chi / sizeof *logits_chi };

/* Penalty 1.25 on tokens 4 and 1, temperature 0.8, top-k 5, top-p 0.995: all but the banned token are left. */
static void trace_frequencies(trace *t, const long *counts)
{
    static const double penalised[V_CHI] = {2.0, -0.625, 1.2, 0.3, 2.0, -INFINITY};
    double sum = 0, chi2 = 0;

    for (int id = 0; id < V_CHI; id++)
        sum += exp(penalised[id] / 0.8);
    for (int id = 0; id < KEPT_2F; id++) {
        double expected = DRAWS * exp(penalised[id] / 0.8) / sum;
        chi2 += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    /* With 5 tokens there are 4 degrees of freedom, where P(χ² > x) = e^(-x/2) (1 + x/2): 1e-6 at x = 33.38. */
    trace_int(t, counts[KEPT_2F], "draws of a token of probability 0");
    trace_int(t, exp(-chi2 / 2) * (1 + chi2 / 2) >= FALSE_ALARM, "chi-squared is below 33.38");
}

static void run_frequencies(trace *t)
{
    sampler s = new_sampler(V_CHI);
    real *row = reals_of(logits_chi, V_CHI);
    long counts[V_CHI] = {0};

    s.temperature = (real)0.8;
    s.penalty = 1.25;
    s.top_k = KEPT_2F;
    s.top_p = (real)0.995;
    s.random.state = 2024;
    trace_case(t, "%d draws, false alarm once in a million", DRAWS);
    for (int i = 0; i < DRAWS; i++) {
        int id = choose_sampled(&s, row, V_CHI, (const int[]){4, 1}, 2);
        counts[id >= 0 && id < V_CHI ? id : V_CHI - 1]++;
    }
    trace_frequencies(t, counts);
    trace_unchanged(t, row, logits_chi, V_CHI * sizeof *row, "the logits are unchanged");
    free(row);
    free_sampler(&s);
}

static void expect_frequencies(trace *t)
{
    trace_case(t, "%d draws, false alarm once in a million", DRAWS);
    trace_int(t, 0, "draws of a token of probability 0");
    trace_int(t, 1, "chi-squared is below 33.38");
    trace_int(t, 1, "the logits are unchanged");
}

/* ---- a trained model: the higher the temperature, the more different its texts ---- */

enum { SEEDS = 40, COMPLETION = 8, N_HEATS = 4 };

static const real heats[N_HEATS] = {0, (real)0.1, (real)0.3, 1};
static const char prompt[] = "the king";

typedef struct {
    cache c;
    cached state;
    sampler s;
    real *logits;
    int tokens[sizeof prompt + COMPLETION], n_prompt;
} writer;

static void open_writer(writer *w, const model *m)
{
    tokenizer tokens;
    failure f;
    int n_vocab = m->shape.n_vocab, room = sizeof prompt + COMPLETION;

    bool fine = !tokenizer_init(&tokens, model_vocabulary(m), &f) && !cache_init(&w->c, m, room);
    assert(fine);
    w->state = (cached){&w->c, room, new_reals((size_t)room * n_vocab)};
    w->s = new_sampler(n_vocab);
    w->logits = new_reals(n_vocab);
    w->n_prompt = tokenizer_encode(&tokens, prompt, strlen(prompt), w->tokens, room, &f);
    assert(w->n_prompt > 0);
    tokenizer_free(&tokens);
}

static void close_writer(writer *w)
{
    cache_free(&w->c);
    free(w->state.rows);
    free(w->logits);
    free_sampler(&w->s);
}

/* Writes the COMPLETION tokens that follow the prompt with this seed. The prompt's keys stay in the cache. */
static void complete(writer *w, uint64_t seed, int *completion)
{
    int n = w->n_prompt, n_vocab = w->c.m->shape.n_vocab;
    loop g = {.next = next_cached, .next_state = &w->state, .choose = choose_sampled, .choose_state = &w->s,
              .logits = w->logits, .n_vocab = n_vocab, .n_ctx = w->c.capacity, .end_of_text = -1,
              .max_new_tokens = COMPLETION};
    failure f;

    w->s.random.state = seed;
    if (w->c.length >= n)
        cache_truncate(&w->c, n - 1);
    memset(completion, 0, COMPLETION * sizeof *completion);
    if (generate(&g, w->tokens, &n, &f) == STOP_LENGTH)
        memcpy(completion, w->tokens + w->n_prompt, COMPLETION * sizeof *completion);
}

static int count_distinct(writer *w)
{
    int all[SEEDS][COMPLETION], n = 0;

    for (int seed = 0; seed < SEEDS; seed++) {
        bool is_new = true;
        complete(w, seed, all[seed]);
        for (int i = 0; i < seed; i++)
            is_new &= memcmp(all[i], all[seed], sizeof all[i]) != 0;
        n += is_new;
    }
    return n;
}

static void run_heats(trace *t)
{
    writer w;

    open_writer(&w, get_subject(0)->m);
    for (int i = 0, before = 0; i < N_HEATS; i++) {
        w.s.temperature = heats[i];
        trace_case(t, "%d texts of %d tokens at temperature %.1f", SEEDS, COMPLETION, (double)heats[i]);
        int n = count_distinct(&w);
        if (i == 0)
            trace_int(t, n, "how many different ones");
        else
            trace_int(t, n > before, "more different ones than at the temperature before");
        before = n;
    }
    close_writer(&w);
}

static void expect_heats(trace *t)
{
    for (int i = 0; i < N_HEATS; i++) {
        trace_case(t, "%d texts of %d tokens at temperature %.1f", SEEDS, COMPLETION, (double)heats[i]);
        trace_int(t, 1, i == 0 ? "how many different ones" : "more different ones than at the temperature before");
    }
}

static void run_2f(trace *t)
{
    run_rows_2f(t);
    each_setting(t, false);
    each_text(t, false);
    run_refusals(t);
    run_frequencies(t);
    run_heats(t);
}

static void expect_2f(trace *t)
{
    expect_rows_2f(t);
    each_setting(t, true);
    each_text(t, true);
    expect_refusals(t);
    expect_frequencies(t);
    expect_heats(t);
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "2a", .points = 3, .title = "softmax with temperature", .needs = "", .run = run_2a, .expect = expect_2a},
        {.id = "2b", .points = 3, .title = "top-k", .needs = "", .run = run_2b, .expect = expect_2b},
        {.id = "2c", .points = 4, .title = "top-p, the nucleus", .needs = "", .run = run_2c, .expect = expect_2c},
        {.id = "2d", .points = 2, .title = "repetition penalty", .needs = "", .run = run_2d, .expect = expect_2d},
        {.id = "2e", .points = 3, .title = "the draw", .needs = "", .run = run_2e, .expect = expect_2e},
        {.id = "2f", .points = 3, .title = "the chain, and drawing from it", .needs = "2a 2b 2c 2d 2e", .run = run_2f,
         .expect = expect_2f},
    };
    static const lab lab2 = {"lab2", "sampling", steps, sizeof steps / sizeof *steps, false};

    return check_main(&lab2, argc, argv);
}
