/* The check of lab 1, the decoding loop. What is right comes from tables worked out by hand, from the given model run
   in full, and for streams from a second rendering of the whole text after each token. */
#include <float.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "counts.h"
#include "loop.h"
#include "random.h"
#include "subjects.h"

/* ---- 1a: arg-max ---- */

#define N (real) NAN
#define I (real) INFINITY
#define EPSILON (sizeof(real) == sizeof(double) ? (real)DBL_EPSILON : (real)FLT_EPSILON)
#define LOWEST (real)(sizeof(real) == sizeof(float) ? -FLT_MAX : -DBL_MAX)

static const struct {
    const char *name;
    int n, right;
    real row[6];
} rows[] = {
    {"the largest in the middle", 3, 1, {1, 3, 2}},
    {"the largest first", 3, 0, {9, 1, 2}},
    {"the largest last", 4, 3, {0, 1, 2, 5}},
    {"a tie: the lowest id", 4, 1, {0, 7, 7, 7}},
    {"a tie at the first id", 3, 0, {4, 4, 1}},
    {"all equal", 5, 0, {2, 2, 2, 2, 2}},
    {"all negative", 3, 2, {-5, -4, -3}},
    {"all very negative", 2, 1, {(real)-2e30, (real)-1e30}},
    {"all but the lowest number banned", 3, 1, {-I, LOWEST, -I}},
    {"one token", 1, 0, {-8}},
    {"a banned token", 3, 2, {-I, 1, 2}},
    {"all but the last banned", 3, 2, {-I, -I, -1000}},
    {"zero and minus zero", 2, 0, {(real)-0.0, 0}},
    {"two that differ in their last digits", 3, 1, {1, 1 + 4 * EPSILON, 1}},
    {"NaN first", 3, -1, {N, 1, 2}},
    {"NaN last", 3, -1, {1, 2, N}},
    {"NaN behind the largest", 3, -1, {5, N, 2}},
    {"+INFINITY", 3, -1, {1, I, 0}},
    {"+INFINITY first", 2, -1, {I, 0}},
    {"all banned", 2, -1, {-I, -I}},
    {"one token, banned", 1, -1, {-I}},
    {"no tokens", 0, -1, {1}},
};

enum { N_ROWS = sizeof rows / sizeof *rows, MANY = 50257 };

static void run_1a(trace *t)
{
    for (int i = 0; i < N_ROWS; i++) {
        trace_case(t, "%s", rows[i].name);
        real *row = new_reals(rows[i].n), *copy = new_reals(rows[i].n);
        memcpy(row, rows[i].row, rows[i].n * sizeof *row);
        memcpy(copy, row, rows[i].n * sizeof *row);
        trace_int(t, argmax(row, rows[i].n), "argmax");
        trace_int(t, memcmp(row, copy, rows[i].n * sizeof *row) == 0, "the logits are unchanged");
        free(row);
        free(copy);
    }
    trace_case(t, "%d tokens", MANY);
    real *row = new_reals(MANY);
    for (int i = 0; i < MANY; i++)
        row[i] = i == 31415 ? 3 : (real)(i % 1000) / 1000;
    trace_int(t, argmax(row, MANY), "argmax");
    free(row);
}

static void expect_1a(trace *t)
{
    for (int i = 0; i < N_ROWS; i++) {
        trace_case(t, "%s", rows[i].name);
        trace_int(t, rows[i].right, "argmax");
        trace_int(t, 1, "the logits are unchanged");
    }
    trace_case(t, "%d tokens", MANY);
    trace_int(t, 31415, "argmax");
}

/* ---- a scripted model: says what it is told to, and writes down what it is asked ---- */

enum { SCRIPT = 32, SCRIPT_VOCAB = 13 };

typedef struct {
    const int *ids; /* [SCRIPT]: the arg-max after the prompt, and after each token that follows; -1: all are NaN */
    int fail_at;    /* the call that fails, or -1 */
    int n_calls;
    int lengths[SCRIPT]; /* [n_calls]: how many tokens it was asked about … */
    int lasts[SCRIPT];   /* … and the last of them */
    int generated[SCRIPT], n_chosen; /* [n_chosen]: what choose was told had been generated: how many, times 100, and
                                        the last */
} script;

static int next_scripted(void *state, const int *tokens, int n, real *logits)
{
    script *s = state;

    if (s->n_calls == SCRIPT)
        return -1;
    s->lengths[s->n_calls] = n;
    s->lasts[s->n_calls] = n > 0 ? tokens[n - 1] : -1;
    if (s->n_calls++ == s->fail_at)
        return -1;
    int best = s->ids[s->n_calls - 1];
    for (int id = 0; id < SCRIPT_VOCAB; id++)
        logits[id] = best < 0 ? N : id == best ? 2 : -(real)id;
    return 0;
}

/* Chooses the arg-max's neighbour, so that a loop that doesn't ask it is found out. */
static int choose_neighbour(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    script *s = state;
    int best = 0;

    if (s->n_chosen < SCRIPT)
        s->generated[s->n_chosen++] = 100 * n_generated + (n_generated > 0 ? generated[n_generated - 1] : 0);
    for (int id = 1; id < n_vocab; id++)
        best = logits[id] > logits[best] ? id : best;
    return (best + 1) % n_vocab;
}

static int choose_nothing(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    return -1;
}

/* A loop over a script; its logits are SCRIPT_VOCAB long. */
static loop scripted_loop(script *s, real *logits)
{
    return (loop){.next = next_scripted, .next_state = s, .choose_state = s, .logits = logits, .n_vocab = SCRIPT_VOCAB,
                  .n_ctx = SCRIPT, .end_of_text = -1, .max_new_tokens = 0};
}

static void trace_ids(trace *t, const int *ids, int n, const char *name)
{
    trace_int(t, n, "number of tokens");
    trace_ints(t, ids, AXES({"place", 0, n}), name);
}

/* ---- 1b: the loop ---- */

static const int lengths_1b[] = {1, 2, 5, 21};
static const int script_1b[SCRIPT] = {3, 0, 12, 12, 7, 1, 5, 9};

enum { N_LENGTHS = 4, PROMPT = 8, NEW = 24 };

static void run_rows(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab;
    uncached u = {s->m, new_reals((size_t)s->m->shape.n_ctx * n_vocab)};
    real *logits = new_reals(n_vocab);

    for (int i = 0; i < N_LENGTHS; i++) {
        int n = lengths_1b[i];
        trace_case(t, "%s, %d token%s", s->name, n, n == 1 ? "" : "s");
        counts_reset();
        trace_int(t, next_uncached(&u, s->tokens, n, logits), "what next_uncached returns");
        trace_logits(t, logits, AXES({"position", n - 1, 1}, {"token", 0, n_vocab}), "logits");
        trace_used(t, s->m);
    }
    trace_case(t, "%s, an id outside the vocabulary", s->name);
    trace_int(t, next_uncached(&u, &n_vocab, 1, logits), "what next_uncached returns");
    free(u.rows);
    free(logits);
}

static void expect_rows(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab;
    real *all = new_reals((size_t)TEST_TOKENS * n_vocab);

    for (int i = 0; i < N_LENGTHS; i++) {
        int n = lengths_1b[i];
        trace_case(t, "%s, %d token%s", s->name, n, n == 1 ? "" : "s");
        trace_int(t, model_forward(s->m, s->tokens, n, all), "what next_uncached returns");
        trace_logits(t, all + (size_t)(n - 1) * n_vocab, AXES({"position", n - 1, 1}, {"token", 0, n_vocab}), "logits");
        expect_used(t, s->m, n, causal_pairs(0, n));
    }
    trace_case(t, "%s, an id outside the vocabulary", s->name);
    trace_int(t, -1, "what next_uncached returns");
    free(all);
}

/* Six tokens after a prompt of three, by the script: once with argmax, once with a function that chooses. */
static void run_scripted(trace *t, bool chooses)
{
    script s = {.ids = script_1b, .fail_at = -1};
    real *logits = new_reals(SCRIPT_VOCAB);
    loop g = scripted_loop(&s, logits);
    int *tokens = calloc(SCRIPT, sizeof *tokens), n = 3;
    failure f;

    trace_case(t, "a scripted model, %s", chooses ? "choose is given" : "argmax chooses");
    memcpy(tokens, (int[]){4, 2, 6}, 3 * sizeof *tokens);
    g.max_new_tokens = 6;
    g.choose = chooses ? choose_neighbour : NULL;
    trace_int(t, generate(&g, tokens, &n, &f), "stop reason");
    trace_ids(t, tokens, n, "tokens");
    trace_ints(t, s.lengths, AXES({"step", 0, s.n_calls}), "how many tokens the model was run on");
    trace_ints(t, s.lasts, AXES({"step", 0, s.n_calls}), "the last token that the model was run on");
    trace_ints(t, s.generated, AXES({"step", 0, s.n_chosen}), "what choose was told (100 × how many, + the last)");
    free(logits);
    free(tokens);
}

static void expect_scripted(trace *t, bool chooses)
{
    static const int plain[] = {4, 2, 6, 3, 0, 12, 12, 7, 1}, chosen[] = {4, 2, 6, 4, 1, 0, 0, 8, 2};
    static const int lengths[] = {3, 4, 5, 6, 7, 8}, told[] = {0, 104, 201, 300, 400, 508};
    const int *tokens = chooses ? chosen : plain;

    trace_case(t, "a scripted model, %s", chooses ? "choose is given" : "argmax chooses");
    trace_int(t, STOP_LENGTH, "stop reason");
    trace_ids(t, tokens, 9, "tokens");
    trace_ints(t, lengths, AXES({"step", 0, 6}), "how many tokens the model was run on");
    trace_ints(t, tokens + 2, AXES({"step", 0, 6}), "the last token that the model was run on");
    trace_ints(t, told, AXES({"step", 0, chooses ? 6 : 0}), "what choose was told (100 × how many, + the last)");
}

/* Greedy text from a trained model. In float two nearly equal logits may be in either order, so only double compares
   the ids; the counts are the same in both. */
static void trace_text_ids(trace *t, const int *tokens)
{
    if (sizeof(real) == sizeof(double))
        trace_ids(t, tokens, PROMPT + NEW, "tokens");
}

static void run_text(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab, n = PROMPT;
    uncached u = {s->m, new_reals((size_t)s->m->shape.n_ctx * n_vocab)};
    real *logits = new_reals(n_vocab);
    int *tokens = calloc(s->m->shape.n_ctx, sizeof *tokens);
    loop g = {.next = next_uncached, .next_state = &u, .logits = logits, .n_vocab = n_vocab, .n_ctx = s->m->shape.n_ctx,
              .end_of_text = -1, .max_new_tokens = NEW};
    failure f;

    trace_case(t, "%s, %d tokens after a prompt of %d", s->name, NEW, PROMPT);
    memcpy(tokens, s->tokens, PROMPT * sizeof *tokens);
    counts_reset();
    trace_int(t, generate(&g, tokens, &n, &f), "stop reason");
    trace_text_ids(t, tokens);
    trace_used(t, s->m);
    free(u.rows);
    free(logits);
    free(tokens);
}

static void expect_text(trace *t, const subject *s)
{
    int n_vocab = s->m->shape.n_vocab, tokens[PROMPT + NEW];
    real *all = new_reals((size_t)(PROMPT + NEW) * n_vocab);
    long long projected = 0, scored = 0;

    memcpy(tokens, s->tokens, PROMPT * sizeof *tokens);
    for (int n = PROMPT; n < PROMPT + NEW; n++) {
        model_forward(s->m, tokens, n, all);
        const real *row = all + (size_t)(n - 1) * n_vocab;
        tokens[n] = 0;
        for (int id = 1; id < n_vocab; id++)
            tokens[n] = row[id] > row[tokens[n]] ? id : tokens[n];
        projected += n;
        scored += causal_pairs(0, n);
    }
    trace_case(t, "%s, %d tokens after a prompt of %d", s->name, NEW, PROMPT);
    trace_int(t, STOP_LENGTH, "stop reason");
    trace_text_ids(t, tokens);
    expect_used(t, s->m, projected, scored);
    free(all);
}

static void run_1b(trace *t)
{
    for (int i = 0; i < N_SUBJECTS; i++)
        run_rows(t, get_subject(i));
    run_scripted(t, false);
    run_scripted(t, true);
    run_text(t, get_subject(0));
}

static void expect_1b(trace *t)
{
    for (int i = 0; i < N_SUBJECTS; i++)
        expect_rows(t, get_subject(i));
    expect_scripted(t, false);
    expect_scripted(t, true);
    expect_text(t, get_subject(0));
}

/* ---- 1c: when to stop ---- */

enum { END = 9 };

static const int says_4[SCRIPT] = {1, 2, 3, 4, 5, 6, 7, 8}, ends_at_2[SCRIPT] = {5, END, 3, 4, 5, 6},
                 ends_at_1[SCRIPT] = {END, 3, 3, 3}, zeros[SCRIPT] = {0}, nan_at_3[SCRIPT] = {1, 2, -1, 4, 5, 6};

static const struct {
    const char *name;
    const int *ids;
    int n_prompt, n_ctx, max_new, end_of_text, fail_at, refuses;
    stop_reason reason;
    int n_new, n_calls;
    const char *mentions[2]; /* what the sentence must have in it */
} stops[] = {
    {"the limit", says_4, 2, 20, 3, END, -1, 0, STOP_LENGTH, 3, 3, {0}},
    {"a limit of one", says_4, 2, 20, 1, END, -1, 0, STOP_LENGTH, 1, 1, {0}},
    {"a limit of zero", says_4, 2, 20, 0, END, -1, 0, STOP_LENGTH, 0, 0, {0}},
    {"end of text at the second token", ends_at_2, 2, 20, 6, END, -1, 0, STOP_END_OF_TEXT, 2, 2, {0}},
    {"end of text at once", ends_at_1, 2, 20, 6, END, -1, 0, STOP_END_OF_TEXT, 1, 1, {0}},
    {"end of text as the last token allowed", ends_at_2, 2, 20, 2, END, -1, 0, STOP_END_OF_TEXT, 2, 2, {0}},
    {"end of text as the last token that fits", ends_at_2, 2, 4, 6, END, -1, 0, STOP_END_OF_TEXT, 2, 2, {0}},
    {"end of text one past the limit", ends_at_2, 2, 20, 1, END, -1, 0, STOP_LENGTH, 1, 1, {0}},
    {"no end of text, id 0 generated", zeros, 2, 20, 4, -1, -1, 0, STOP_LENGTH, 4, 4, {0}},
    {"end of text is id 0", zeros, 2, 20, 4, 0, -1, 0, STOP_END_OF_TEXT, 1, 1, {0}},
    {"end of text in the prompt only", says_4, 3, 20, 3, 11, -1, 0, STOP_LENGTH, 3, 3, {0}},
    {"a prompt that ends with the end of text", says_4, 3, 20, 3, END, -1, 0, STOP_LENGTH, 3, 3, {0}},
    {"the context is full", says_4, 5, 8, 6, END, -1, 0, STOP_CONTEXT, 3, 3, {0}},
    {"the largest limit there is", says_4, 5, 8, INT_MAX, END, -1, 0, STOP_CONTEXT, 3, 3, {0}},
    {"limit and context at the same token", says_4, 5, 8, 3, END, -1, 0, STOP_LENGTH, 3, 3, {0}},
    {"one token fits", says_4, 7, 8, 6, END, -1, 0, STOP_CONTEXT, 1, 1, {0}},
    {"a prompt that fills the context", says_4, 8, 8, 6, END, -1, 0, STOP_CONTEXT, 0, 0, {0}},
    {"a full context and a limit of zero", says_4, 8, 8, 0, END, -1, 0, STOP_LENGTH, 0, 0, {0}},
    {"a prompt one token too long", says_4, 9, 8, 6, END, -1, 0, STOP_ERROR, 0, 0, {"9", "8"}},
    {"a prompt too long and a limit of zero", says_4, 12, 8, 0, END, -1, 0, STOP_ERROR, 0, 0, {"12", "8"}},
    {"an empty prompt", says_4, 0, 8, 6, END, -1, 0, STOP_ERROR, 0, 0, {"", ""}},
    {"an empty prompt and a limit of zero", says_4, 0, 8, 0, END, -1, 0, STOP_ERROR, 0, 0, {"", ""}},
    {"a negative limit", says_4, 2, 8, -1, END, -1, 0, STOP_ERROR, 0, 0, {"", ""}},
    {"the model fails at the third token", says_4, 2, 20, 6, END, 2, 0, STOP_ERROR, 2, 3, {"", ""}},
    {"no token can be chosen", says_4, 2, 20, 6, END, -1, 1, STOP_ERROR, 0, 1, {"", ""}},
    {"logits that are NaN at the third token", nan_at_3, 2, 20, 6, -1, -1, 0, STOP_ERROR, 2, 3, {"", ""}},
};

enum { N_STOPS = sizeof stops / sizeof *stops };

static void prompt_of(int n, int *tokens)
{
    for (int i = 0; i < n; i++)
        tokens[i] = 11 - i % 3; /* 11, 10, 9, …: id 11 and the end of text stand in it, and must not stop the loop */
}

static void run_1c(trace *t)
{
    for (int i = 0; i < N_STOPS; i++) {
        script s = {.ids = stops[i].ids, .fail_at = stops[i].fail_at};
        real *logits = new_reals(SCRIPT_VOCAB);
        loop g = scripted_loop(&s, logits);
        int room = stops[i].n_ctx > stops[i].n_prompt ? stops[i].n_ctx : stops[i].n_prompt;
        int *tokens = malloc(room * sizeof *tokens), n = stops[i].n_prompt;
        failure f = {""};

        trace_case(t, "%s", stops[i].name);
        prompt_of(n, tokens);
        g.n_ctx = stops[i].n_ctx;
        g.max_new_tokens = stops[i].max_new;
        g.end_of_text = stops[i].end_of_text;
        g.choose = stops[i].refuses ? choose_nothing : NULL;
        stop_reason reason = generate(&g, tokens, &n, &f);
        trace_int(t, reason, "stop reason");
        trace_ids(t, tokens, n, "tokens");
        trace_int(t, s.n_calls, "how often the model ran");
        for (int k = 0; k < 2 && stops[i].mentions[k]; k++)
            trace_int(t, f.sentence[0] && strstr(f.sentence, stops[i].mentions[k]) != NULL,
                      stops[i].mentions[k][0] ? "the sentence has the number" : "there is a sentence");
        free(logits);
        free(tokens);
    }
}

static void expect_1c(trace *t)
{
    for (int i = 0; i < N_STOPS; i++) {
        int tokens[2 * SCRIPT], n = stops[i].n_prompt + stops[i].n_new;

        trace_case(t, "%s", stops[i].name);
        prompt_of(stops[i].n_prompt, tokens);
        memcpy(tokens + stops[i].n_prompt, stops[i].ids, stops[i].n_new * sizeof *tokens);
        trace_int(t, stops[i].reason, "stop reason");
        trace_ids(t, tokens, n, "tokens");
        trace_int(t, stops[i].n_calls, "how often the model ran");
        for (int k = 0; k < 2 && stops[i].mentions[k]; k++)
            trace_int(t, 1, stops[i].mentions[k][0] ? "the sentence has the number" : "there is a sentence");
    }
}

/* ---- 1d: streams. A log has, for each token, what it made visible, a slash and what stream_push returned ---- */

enum { LOG = 1024 };

typedef struct {
    char bytes[LOG];
    int n;
    int n_split; /* how often emit was given something else than whole characters */
} text_log;

static void log_bytes(void *to, const char *bytes, int n)
{
    text_log *log = to;

    for (int i = 0; i < n && log->n < LOG; i++)
        log->bytes[log->n++] = bytes[i];
}

/* How many bytes the well-formed character at p has, by decoding and encoding it again; 0 if there's none; -1 if the n
   bytes are the beginning of one. */
static int decode(const unsigned char *p, int n)
{
    int size = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    unsigned long first = size == 1 ? p[0] : p[0] & (0xff >> (size + 1)), least[] = {0, 0, 0x80, 0x800, 0x10000}, low, high;

    if (p[0] >= 0xf8 || (p[0] >= 0x80 && p[0] < 0xc0))
        return 0;
    low = high = first;
    for (int i = 1; i < size; i++) {
        if (i < n && (p[i] & 0xc0) != 0x80)
            return 0;
        low = low << 6 | (i < n ? p[i] & 0x3f : 0);
        high = high << 6 | (i < n ? p[i] & 0x3f : 0x3f);
    }
    if (high < least[size] || low > 0x10ffff || (low >= 0xd800 && high <= 0xdfff))
        return 0;
    return n < size ? -1 : size;
}

/* The emit_fn of the checks. */
static void log_shown(void *to, const char *bytes, int n)
{
    text_log *log = to;

    log_bytes(log, bytes, n);
    for (int i = 0, size; i < n; i += size) {
        size = decode((const unsigned char *)bytes + i, n - i);
        if (size < 1) {
            log->n_split++;
            return;
        }
    }
}

static void log_result(text_log *log, int value)
{
    char text[16];

    log_bytes(log, text, snprintf(text, sizeof text, "/%d ", value));
}

#define E_ACUTE "\xc3\xa9"          /* é */
#define EURO "\xe2\x82\xac"         /* € */
#define CAT "\xf0\x9f\x98\xb8"      /* U+1F638 */
#define BAD "\xef\xbf\xbd"          /* U+FFFD */

static const struct {
    const char *name;
    const char *stops[3], *pieces[8];
    const char *log, *end, *text; /* what the pushes log, what the end shows, what is kept */
    int matched;
} streams[] = {
    {"no stop strings", {0}, {"ab", "c", "d"}, "ab/0 c/0 d/0 ", "", "abcd", -1},
    {"a stop string over three tokens", {"alpha"}, {"al", "ph", "a!"}, "/0 /0 /1 ", "", "", 0},
    {"a stop string over two tokens", {"lazy dog"}, {"the la", "zy dog"}, "the /0 /1 ", "", "the ", 0},
    {"a stop string inside one token", {"stop"}, {"go stop now"}, "go /1 ", "", "go ", 0},
    {"a stop string that is one token", {"X"}, {"a", "X"}, "a/0 /1 ", "", "a", 0},
    {"a stop string at the first token", {"\n"}, {"\nA"}, "/1 ", "", "", 0},
    {"text held back and released", {"abc"}, {"ab", "x"}, "/0 abx/0 ", "", "abx", -1},
    {"text held back and released in part", {"abc"}, {"ab", "ab"}, "/0 ab/0 ", "ab", "abab", -1},
    {"text held back until the end", {"CD!"}, {"AB ", "CD"}, "AB /0 /0 ", "CD", "AB CD", -1},
    {"a stop string that overlaps itself", {"aab"}, {"a", "a", "a", "b"}, "/0 /0 a/0 /1 ", "", "a", 0},
    {"a false start inside a true one", {"abac"}, {"ab", "ab", "ac"}, "/0 ab/0 /1 ", "", "ab", 0},
    {"the earliest of two matches wins", {"yz", "xy"}, {"wxyz"}, "w/1 ", "", "w", 1},
    {"the earliest wins, though the other is longer", {"ab", "bcd"}, {"xabcd"}, "x/1 ", "", "x", 0},
    {"two equal stop strings", {"x", "x"}, {"ax"}, "a/1 ", "", "a", 0},
    {"an empty token first", {"ab"}, {"", "a", "c"}, "/0 /0 ac/0 ", "", "ac", -1},
    {"the longest of two at the same byte wins", {"ab", "abc"}, {"xabc"}, "x/1 ", "", "x", 1},
    {"the longest is listed first", {"abc", "ab"}, {"xabc"}, "x/1 ", "", "x", 0},
    {"the shorter one is complete first", {"abc", "ab"}, {"xab", "c"}, "x/1 ", "", "x", 1},
    {"two stop strings hold different tails", {"bcd", "cx"}, {"abc", "x"}, "a/0 b/1 ", "", "ab", 1},
    {"an empty token changes nothing", {"ab"}, {"a", "", "b"}, "/0 /0 /1 ", "", "", 0},
    {"a character over two tokens", {0}, {"\xf0\x9f\x98", "\xb8!"}, "/0 " CAT "!/0 ", "", CAT "!", -1},
    {"a character of three one-byte tokens", {0}, {"\xe2", "\x82", "\xac"}, "/0 /0 " EURO "/0 ", "", EURO, -1},
    {"a character behind whole ones", {0}, {"a" E_ACUTE "\xc3", "\xa9"}, "a" E_ACUTE "/0 " E_ACUTE "/0 ", "",
     "a" E_ACUTE E_ACUTE, -1},
    {"a first byte that nothing continues", {0}, {"\xf0", "a"}, "/0 " BAD "a/0 ", "", "\xf0"
                                                                                     "a", -1},
    {"an unfinished character at the end", {0}, {"a\xf0\x9f"}, "a/0 ", BAD BAD, "a\xf0\x9f", -1},
    {"a byte that begins no character", {0}, {"a\xff", "b\x80"}, "a" BAD "/0 b" BAD "/0 ", "", "a\xff"
                                                                                             "b\x80", -1},
    {"an overlong form", {0}, {"\xc0\xaf"}, BAD BAD "/0 ", "", "\xc0\xaf", -1},
    {"first bytes that UTF-8 doesn't use", {0}, {"\xc1", "\xf5"}, BAD "/0 " BAD "/0 ", "", "\xc1\xf5", -1},
    {"a second byte that can't follow the first", {0}, {"\xe0", "\x80", "\xed\xa0"},
     "/0 " BAD BAD "/0 " BAD BAD "/0 ", "", "\xe0\x80\xed\xa0", -1},
    {"a surrogate", {0}, {"\xed\xa0\x80"}, BAD BAD BAD "/0 ", "", "\xed\xa0\x80", -1},
    {"beyond U+10FFFF", {0}, {"\xf4\x90\x80\x80"}, BAD BAD BAD BAD "/0 ", "", "\xf4\x90\x80\x80", -1},
    {"the last character of all", {0}, {"\xf4\x8f\xbf\xbf"}, "\xf4\x8f\xbf\xbf/0 ", "", "\xf4\x8f\xbf\xbf", -1},
    {"a stop string of more than ASCII", {EURO}, {"5 \xe2\x82", "\xac!"}, "5 /0 /1 ", "", "5 ", 0},
    {"a stop string behind an unfinished character", {"."}, {"a\xe2\x82", "."}, "a/0 " BAD BAD "/1 ", "", "a\xe2\x82", 0},
    {"a held tail and an unfinished character", {"xy"}, {"ax", "\xc3"}, "a/0 x/0 ", BAD, "ax\xc3", -1},
};

enum { N_STREAMS = sizeof streams / sizeof *streams };

static int count_strings(const char *const *list, int most)
{
    int n = 0;

    while (n < most && list[n])
        n++;
    return n;
}

/* Pushes a copy of the piece that has no byte more, so that reading past its end is seen. */
static int push_piece(stream *s, const char *bytes, int n, text_log *log)
{
    char *piece = malloc(n ? n : 1);

    memcpy(piece, bytes, n);
    int found = stream_push(s, piece, n);
    free(piece);
    log_result(log, found);
    return found;
}

static void trace_stream(trace *t, stream *s, const text_log *log)
{
    text_log end = {.n = 0};

    s->to = &end;
    stream_finish(s);
    trace_text(t, log->bytes, log->n, "text shown / result of stream_push, token by token");
    trace_text(t, end.bytes, end.n, "text shown by stream_finish");
    trace_text(t, s->text ? s->text : "", s->length, "text kept");
    trace_int(t, s->matched, "the stop string found");
    trace_int(t, log->n_split + end.n_split, "how often emit was given less than whole characters");
    stream_free(s);
}

/* Pushes the pieces until a stop string is found, then finishes. */
static void run_stream(trace *t, const char *const *stop_strings, int n_stops, const char *const *pieces, int n_pieces)
{
    text_log log = {.n = 0};
    stream s;

    stream_init(&s, stop_strings, n_stops, log_shown, &log);
    for (int i = 0, found = 0; i < n_pieces && found == 0; i++)
        found = push_piece(&s, pieces[i], strlen(pieces[i]), &log);
    trace_stream(t, &s, &log);
}

static void expect_stream(trace *t, const text_log *log, const text_log *end, const char *text, int n, int matched)
{
    trace_text(t, log->bytes, log->n, "text shown / result of stream_push, token by token");
    trace_text(t, end->bytes, end->n, "text shown by stream_finish");
    trace_text(t, text, n, "text kept");
    trace_int(t, matched, "the stop string found");
    trace_int(t, 0, "how often emit was given less than whole characters");
}

static text_log log_of(const char *text)
{
    text_log log = {.n = 0};

    log_bytes(&log, text, strlen(text));
    return log;
}

/* ---- text with zero bytes, and a long one ---- */

static const char *const halt[] = {"STOP"};

static void run_zeros(trace *t)
{
    text_log log = {.n = 0};
    stream s;

    stream_init(&s, halt, 1, log_shown, &log);
    push_piece(&s, "a\0b", 3, &log);
    push_piece(&s, "\0S", 2, &log);
    push_piece(&s, "TOP", 3, &log);
    trace_stream(t, &s, &log);
}

static void expect_zeros(trace *t)
{
    text_log log = {.n = 0}, end = {.n = 0};

    log_bytes(&log, "a\0b/0 \0/0 /1 ", 13);
    expect_stream(t, &log, &end, "a\0b\0", 4, 0);
}

enum { LONG = 1200 }; /* tokens of four bytes: more than a page of text */

static void count_bytes(void *to, const char *bytes, int n)
{
    *(int *)to += n;
}

static void run_long(trace *t)
{
    text_log log = {.n = 0};
    int n_shown = 0;
    stream s;

    stream_init(&s, halt, 1, count_bytes, &n_shown);
    for (int i = 0; i < LONG; i++)
        push_piece(&s, "ab" E_ACUTE, 4, &log);
    trace_int(t, n_shown, "number of bytes shown");
    trace_int(t, push_piece(&s, " STOP", 5, &log), "result of stream_push");
    trace_text(t, s.text ? s.text : "", s.length, "text kept");
    trace_int(t, n_shown, "number of bytes shown");
    stream_free(&s);
}

static void expect_long(trace *t)
{
    char text[4 * LONG + 1];

    for (int i = 0; i < LONG; i++)
        memcpy(text + 4 * i, "ab" E_ACUTE, 4);
    text[4 * LONG] = ' ';
    trace_int(t, 4 * LONG, "number of bytes shown");
    trace_int(t, 1, "result of stream_push");
    trace_text(t, text, 4 * LONG + 1, "text kept");
    trace_int(t, 4 * LONG + 1, "number of bytes shown");
}

/* ---- streams at random, rendered a second way: all of the text anew after each token ---- */

enum { N_RANDOM = 200, RANDOM_PIECES = 6 };

typedef struct {
    char stops[2][5], pieces[RANDOM_PIECES][5];
    const char *stop_list[2], *piece_list[RANDOM_PIECES];
    int n_stops;
} random_stream;

static void random_string(generator *g, int least, char *text)
{
    static const char *const parts[] = {"a", "a", "b", "b", "c", "\xc3", "\xa9", "\xe2\x82"};
    int n = least + random_bits(g) % (4 - least);

    text[0] = 0;
    while ((int)strlen(text) < n)
        strcat(text, parts[random_bits(g) % 8]);
}

static void make_stream(uint64_t seed, random_stream *r)
{
    generator g = {seed};

    r->n_stops = 1 + random_bits(&g) % 2;
    for (int i = 0; i < 2; i++) {
        random_string(&g, 1, r->stops[i]);
        r->stop_list[i] = r->stops[i];
    }
    if (strcmp(r->stops[0], r->stops[1]) == 0)
        r->n_stops = 1; /* of two equal ones, either may be named */
    for (int i = 0; i < RANDOM_PIECES; i++) {
        random_string(&g, 0, r->pieces[i]);
        r->piece_list[i] = r->pieces[i];
    }
}

/* All that may be seen of text [n], of which the first `sure` bytes can't become part of a stop string. */
static text_log render(const char *text, int sure, bool at_end)
{
    text_log log = {.n = 0};

    for (int i = 0; i < sure;) {
        int size = decode((const unsigned char *)text + i, sure - i);
        if (size < 0 && !at_end)
            break;
        log_bytes(&log, size > 0 ? text + i : BAD, size > 0 ? size : 3);
        i += size > 0 ? size : 1;
    }
    return log;
}

static bool begins(const char *text, int n, const char *start)
{
    return n >= (int)strlen(start) && memcmp(text, start, strlen(start)) == 0;
}

/* Finds the earliest and longest stop string: where it starts, or -1. */
static int find_match(const random_stream *r, const char *text, int n, int *which)
{
    for (int at = 0; at < n; at++) {
        int best = -1;
        for (int i = 0; i < r->n_stops; i++)
            if (begins(text + at, n - at, r->stops[i]) && (best < 0 || strlen(r->stops[i]) > strlen(r->stops[best])))
                best = i;
        if (best >= 0) {
            *which = best;
            return at;
        }
    }
    return -1;
}

/* The longest tail of text [n] that begins a stop string starts here. */
static int find_sure(const random_stream *r, const char *text, int n)
{
    for (int at = 0; at < n; at++)
        for (int i = 0; i < r->n_stops; i++)
            if (strncmp(text + at, r->stops[i], n - at) == 0)
                return at;
    return n;
}

static void expect_random(trace *t, const random_stream *r)
{
    char text[LOG] = "";
    text_log log = {.n = 0}, before = {.n = 0}, now;
    int n = 0, matched = -1;

    for (int i = 0; i < RANDOM_PIECES && matched < 0; i++) {
        strcat(text, r->pieces[i]);
        n = strlen(text);
        int at = find_match(r, text, n, &matched);
        n = at >= 0 ? at : n;
        now = render(text, at >= 0 ? at : find_sure(r, text, n), at >= 0);
        log_bytes(&log, now.bytes + before.n, now.n - before.n);
        log_result(&log, at >= 0);
        before = now;
    }
    now = render(text, n, true);
    text_log end = {.n = 0};
    log_bytes(&end, now.bytes + before.n, now.n - before.n);
    expect_stream(t, &log, &end, text, n, matched);
}

/* ---- streams in the loop ---- */

/* The pieces of ids 0 … 12; END is the end of text, and its piece must not be shown. */
static const char *const pieces[SCRIPT_VOCAB] = {"a", "b", "ST", "OP", "c", "d", "\xe2\x82", "\xac", ".", "<end>", "x", "y", "z"};

static const char *piece_of(const void *vocabulary, int id, int *n_bytes)
{
    const char *const *all = vocabulary;

    *n_bytes = strlen(all[id]);
    return all[id];
}

static const struct {
    const char *name;
    int ids[SCRIPT], n_ctx, max_new;
    stop_reason reason;
    int n_new;
    const char *shown;
} loops[] = {
    {"text until the limit", {0, 1, 4}, 20, 3, STOP_LENGTH, 3, "abc"},
    {"a stop string over two tokens", {0, 2, 3, 4}, 20, 6, STOP_STRING, 3, "a"},
    {"a stop string with the last token allowed", {0, 2, 3, 4}, 20, 3, STOP_STRING, 3, "a"},
    {"a stop string with the last token that fits", {0, 2, 3, 4}, 5, 9, STOP_STRING, 3, "a"},
    {"half a stop string at the limit", {0, 2, 3, 4}, 20, 2, STOP_LENGTH, 2, "aST"},
    {"half a stop string, then end of text", {0, 2, END}, 20, 6, STOP_END_OF_TEXT, 3, "aST"},
    {"half a stop string, then the context is full", {0, 2, 3}, 4, 6, STOP_CONTEXT, 2, "aST"},
    {"half a character, then end of text", {0, 6, END}, 20, 6, STOP_END_OF_TEXT, 3, "a" BAD BAD},
    {"a character over two tokens", {0, 6, 7, END}, 20, 6, STOP_END_OF_TEXT, 4, "a" EURO},
    {"end of text at once", {END}, 20, 6, STOP_END_OF_TEXT, 1, ""},
    {"half a stop string, then no token can be chosen", {0, 2, -1}, 20, 6, STOP_ERROR, 2, "aST"},
    {"a stop string begun in the prompt", {3, 1}, 20, 2, STOP_LENGTH, 2, "OPb"},
};

enum { N_LOOPS = sizeof loops / sizeof *loops };

static void run_loop(trace *t, int i)
{
    script s = {.ids = loops[i].ids, .fail_at = -1};
    real *logits = new_reals(SCRIPT_VOCAB);
    loop g = scripted_loop(&s, logits);
    text_log log = {.n = 0};
    int *tokens = malloc(loops[i].n_ctx * sizeof *tokens), n = 2;
    stream out;
    failure f;

    stream_init(&out, halt, 1, log_shown, &log);
    tokens[0] = 2; /* ST: the prompt's text must not count towards a stop string */
    tokens[1] = 2;
    g.out = &out;
    g.piece = piece_of;
    g.vocabulary = pieces;
    g.n_ctx = loops[i].n_ctx;
    g.max_new_tokens = loops[i].max_new;
    g.end_of_text = END;
    trace_int(t, generate(&g, tokens, &n, &f), "stop reason");
    trace_ids(t, tokens, n, "tokens");
    trace_text(t, log.bytes, log.n, "text shown");
    stream_free(&out);
    free(logits);
    free(tokens);
}

static void expect_loop(trace *t, int i)
{
    int tokens[SCRIPT] = {2, 2};

    memcpy(tokens + 2, loops[i].ids, loops[i].n_new * sizeof *tokens);
    trace_int(t, loops[i].reason, "stop reason");
    trace_ids(t, tokens, 2 + loops[i].n_new, "tokens");
    trace_text(t, loops[i].shown, strlen(loops[i].shown), "text shown");
}

static void run_1d(trace *t)
{
    random_stream r;

    for (int i = 0; i < N_STREAMS; i++) {
        trace_case(t, "%s", streams[i].name);
        run_stream(t, streams[i].stops, count_strings(streams[i].stops, 3), streams[i].pieces,
                   count_strings(streams[i].pieces, 8));
    }
    trace_case(t, "zero bytes in the text");
    run_zeros(t);
    trace_case(t, "%d tokens", LONG);
    run_long(t);
    for (int i = 0; i < N_RANDOM; i++) {
        make_stream(i, &r);
        trace_case(t, "random stream %d", i);
        run_stream(t, r.stop_list, r.n_stops, r.piece_list, RANDOM_PIECES);
    }
    for (int i = 0; i < N_LOOPS; i++) {
        trace_case(t, "in the loop: %s", loops[i].name);
        run_loop(t, i);
    }
}

static void expect_1d(trace *t)
{
    random_stream r;

    for (int i = 0; i < N_STREAMS; i++) {
        text_log log = log_of(streams[i].log), end = log_of(streams[i].end);
        trace_case(t, "%s", streams[i].name);
        expect_stream(t, &log, &end, streams[i].text, strlen(streams[i].text), streams[i].matched);
    }
    trace_case(t, "zero bytes in the text");
    expect_zeros(t);
    trace_case(t, "%d tokens", LONG);
    expect_long(t);
    for (int i = 0; i < N_RANDOM; i++) {
        make_stream(i, &r);
        trace_case(t, "random stream %d", i);
        expect_random(t, &r);
    }
    for (int i = 0; i < N_LOOPS; i++) {
        trace_case(t, "in the loop: %s", loops[i].name);
        expect_loop(t, i);
    }
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "1a", .points = 2, .title = "arg-max", .needs = "", .run = run_1a, .expect = expect_1a},
        {.id = "1b", .points = 4, .title = "the loop: run, take the last row, choose, append", .needs = "1a", .run = run_1b,
         .expect = expect_1b},
        {.id = "1c", .points = 4, .title = "when to stop, and what to refuse", .needs = "1b", .run = run_1c, .expect = expect_1c},
        {.id = "1d", .points = 6, .title = "stop strings in streamed text", .needs = "1b 1c", .run = run_1d, .expect = expect_1d},
    };
    static const lab lab1 = {"lab1", "the decoding loop", steps, sizeof steps / sizeof *steps, false};

    return check_main(&lab1, argc, argv);
}
