/* The models that the checks run on, and the closed forms of the counts. */
#include "subjects.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "counts.h"
#include "random.h"

/* ---- the models ---- */

enum { N_SHIPPED = 4 };

static const char *const shipped[N_SHIPPED] = {"sinusoidal", "learned", "rotary", "shakespeare"};

#define SIZES .n_vocab = 41, .n_ctx = TEST_TOKENS, .norm_eps = 1e-5

static const struct {
    const char *name;
    model_shape shape;
} made[N_SUBJECTS - N_SHIPPED] = {
    {"grouped queries (6 heads on 2)", {SIZES, .rope_base = 10000, .d_model = 48, .n_layer = 3, .n_head = 6, .n_kv_head = 2, .d_ff = 64,
                                        .norm = RMS_NORM, .activation = SWIGLU, .position = ROTARY, .tied = true}},
    {"one key/value head", {SIZES, .rope_base = 10000, .d_model = 32, .n_layer = 2, .n_head = 4, .n_kv_head = 1, .d_ff = 40, .norm = LAYER_NORM,
                            .activation = GELU_TANH, .position = LEARNED, .bias = true}},
    {"one head", {SIZES, .rope_base = 10000, .d_model = 16, .n_layer = 1, .n_head = 1, .n_kv_head = 1, .d_ff = 24, .norm = RMS_NORM,
                  .activation = GELU_EXACT, .position = SINUSOIDAL, .tied = true}},
    {"base 500, biases", {SIZES, .rope_base = 500, .d_model = 40, .n_layer = 2, .n_head = 5, .n_kv_head = 5, .d_ff = 32,
                          .norm = LAYER_NORM, .activation = SWIGLU, .position = ROTARY, .bias = true}},
};

static void stop(const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    exit(2);
}

static const int *make_tokens(const model *m, uint64_t seed)
{
    generator g = {seed};
    int *tokens = malloc(TEST_TOKENS * sizeof *tokens);

    if (!tokens)
        stop("out of memory");
    for (int i = 0; i < TEST_TOKENS; i++)
        tokens[i] = random_bits(&g) % m->shape.n_vocab;
    return tokens;
}

const subject *get_subject(int i)
{
    static subject all[N_SUBJECTS];
    char path[64];
    failure f;

    if (all[i].m)
        return &all[i];
    if (i < N_SHIPPED) {
        snprintf(path, sizeof path, "data/models/%s.safetensors", shipped[i]);
        all[i].name = shipped[i];
        all[i].m = model_load(path, &f);
    } else {
        all[i].name = made[i - N_SHIPPED].name;
        all[i].m = model_random(made[i - N_SHIPPED].shape, i, &f);
    }
    if (!all[i].m)
        stop(f.sentence);
    all[i].tokens = make_tokens(all[i].m, i);
    return &all[i];
}

real *new_reals(size_t n)
{
    real *a = malloc(n * sizeof *a);

    if (!a)
        stop("out of memory");
    for (size_t i = 0; i < n; i++)
        a[i] = NAN;
    return a;
}

/* ---- the counts ---- */

static const struct {
    role role;
    const char *name;
} watched[] = {{KEY, "key projections"}, {VALUE, "value projections"}, {QUERY, "query projections"},
               {OUTPUT, "output projections"}, {UP, "MLP projections"}};

enum { N_WATCHED = sizeof watched / sizeof *watched };

static void trace_per_layer(trace *t, const model *m, const char *name, const long long *counts)
{
    trace_counts(t, counts, AXES({"layer", 0, m->shape.n_layer}), name);
}

static void trace_per_head(trace *t, const model *m, const long long *counts)
{
    trace_counts(t, counts, AXES({"layer", 0, m->shape.n_layer}, {"head", 0, m->shape.n_head}), "attention scores");
}

void trace_used(trace *t, const model *m)
{
    long long layers[MAX_LAYERS], heads[m->shape.n_layer * m->shape.n_head];

    for (int i = 0; i < N_WATCHED; i++) {
        for (int l = 0; l < m->shape.n_layer; l++)
            layers[l] = counts_projections(watched[i].role, l);
        trace_per_layer(t, m, watched[i].name, layers);
    }
    for (int l = 0; l < m->shape.n_layer; l++)
        for (int h = 0; h < m->shape.n_head; h++)
            heads[l * m->shape.n_head + h] = counts_scores(l, h);
    trace_per_head(t, m, heads);
}

void expect_used(trace *t, const model *m, long long projected, long long scored)
{
    long long layers[MAX_LAYERS], heads[m->shape.n_layer * m->shape.n_head];

    for (int l = 0; l < m->shape.n_layer; l++)
        layers[l] = projected;
    for (int i = 0; i < m->shape.n_layer * m->shape.n_head; i++)
        heads[i] = scored;
    for (int i = 0; i < N_WATCHED; i++)
        trace_per_layer(t, m, watched[i].name, layers);
    trace_per_head(t, m, heads);
}

long long causal_pairs(int before, int n)
{
    return (long long)n * before + (long long)n * (n + 1) / 2;
}
