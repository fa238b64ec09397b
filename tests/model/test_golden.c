/* The given model against PyTorch's float64 logits (data/golden), and what model_forward, embed and the counters promise
   whatever the weights are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"
#include "model.h"
#include "safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { N_GOLDEN = 32 };

static model *open_model(const char *name)
{
    char path[80];
    failure f;

    snprintf(path, sizeof path, "data/models/%s.safetensors", name);
    model *m = model_load(path, &f);
    if (!m)
        fail_msg("%s", f.sentence);
    return m;
}

static double larger(double a, double b)
{
    return a > b || isnan(a) ? a : b;
}

static void parse_tokens(const char *list, int *tokens)
{
    char *end = (char *)list;

    for (int i = 0; i < N_GOLDEN; i++)
        tokens[i] = strtol(end, &end, 10);
    assert_int_equal(*end, 0);
}

/* The largest |Δ| to PyTorch's logits, and the largest logit. */
static double golden_distance(const char *name, double *scale)
{
    char path[80];
    failure f;
    int tokens[N_GOLDEN];
    model *m = open_model(name);
    size_t n = (size_t)N_GOLDEN * m->shape.n_vocab;
    real *logits = malloc(n * sizeof *logits);
    double *right = malloc(n * sizeof *right), most = 0;

    snprintf(path, sizeof path, "data/golden/%s.safetensors", name);
    safetensors *s = safetensors_open(path, &f);
    assert_non_null(s);
    const tensor *t = safetensors_find(s, "logits");
    assert_true(t && t->n == n);
    memcpy(right, t->data, n * sizeof *right);
    parse_tokens(safetensors_metadata(s, "tokens"), tokens);
    assert_int_equal(model_forward(m, tokens, N_GOLDEN, logits), 0);
    *scale = 1;
    for (size_t i = 0; i < n; i++) {
        most = larger(fabs(logits[i] - right[i]), most);
        *scale = larger(fabs(right[i]), *scale);
    }
    safetensors_close(s);
    model_free(m);
    free(logits);
    free(right);
    return most;
}

static void check_golden(void **state)
{
    double scale, most = golden_distance(*state, &scale);
    double allowed = sizeof(real) == sizeof(double) ? 1e-9 : 1e-5 * scale;

    print_message("%s: |Δ| ≤ %.2e, allowed %.2e\n", (const char *)*state, most, allowed);
    assert_true(most <= allowed);
}

static void a_later_token_changes_no_earlier_row(void **state)
{
    model *m = open_model("rotary");
    int n_vocab = m->shape.n_vocab, tokens[] = {1, 2, 3, 4}, others[] = {1, 2, 30, 31};
    real *a = malloc(4 * n_vocab * sizeof *a), *b = malloc(4 * n_vocab * sizeof *b);

    model_forward(m, tokens, 4, a);
    model_forward(m, others, 4, b);
    assert_memory_equal(a, b, 2 * n_vocab * sizeof *a);
    assert_memory_not_equal(a + 2 * n_vocab, b + 2 * n_vocab, n_vocab * sizeof *a);
    model_free(m);
    free(a);
    free(b);
}

static void what_cannot_be_run_is_refused(void **state)
{
    model *m = open_model("learned");
    int n_ctx = m->shape.n_ctx, n_vocab = m->shape.n_vocab, bad[] = {0, n_vocab}, negative[] = {-1};
    int *tokens = calloc(n_ctx + 1, sizeof *tokens);
    real *logits = malloc((size_t)(n_ctx + 1) * n_vocab * sizeof *logits);

    assert_int_equal(model_forward(m, tokens, 0, logits), -1);
    assert_int_equal(model_forward(m, tokens, n_ctx + 1, logits), -1);
    assert_int_equal(model_forward(m, tokens, n_ctx, logits), 0);
    assert_int_equal(model_forward(m, bad, 2, logits), -1);
    assert_int_equal(model_forward(m, negative, 1, logits), -1);
    bad[1] = n_vocab - 1;
    assert_int_equal(model_forward(m, bad, 2, logits), 0);
    model_free(m);
    free(tokens);
    free(logits);
}

static void each_projection_and_score_is_counted(void **state)
{
    model *m = open_model("rotary");
    int tokens[7] = {0};
    real *logits = malloc(7 * m->shape.n_vocab * sizeof *logits);

    counts_reset();
    model_forward(m, tokens, 7, logits);
    for (int l = 0; l < m->shape.n_layer; l++) {
        for (role r = QUERY; r < UNEMBEDDING; r++)
            assert_int_equal(counts_projections(r, l), 7);
        for (int h = 0; h < m->shape.n_head; h++)
            assert_int_equal(counts_scores(l, h), 7 * 8 / 2);
    }
    assert_int_equal(counts_projections(UNEMBEDDING, 0), 7);
    counts_reset();
    assert_int_equal(counts_projections(KEY, 0), 0);
    assert_int_equal(counts_scores(0, 0), 0);
    model_free(m);
    free(logits);
}

static void softmax_sums_to_one_whatever_the_size(void **state)
{
    real row[] = {10000, 9999, -INFINITY, -10000}, p[4];

    softmax(row, 4, p);
    assert_true(fabs(p[0] + p[1] - 1) < 1e-6 && p[2] == 0 && p[3] == 0);
    assert_true(fabs(p[0] - 0.7310585786) < 1e-6);
}

int main(void)
{
    static char *names[] = {"sinusoidal", "learned", "rotary", "shakespeare"};
    const struct CMUnitTest tests[] = {
        {"sinusoidal agrees with PyTorch", check_golden, NULL, NULL, names[0]},
        {"learned agrees with PyTorch", check_golden, NULL, NULL, names[1]},
        {"rotary agrees with PyTorch", check_golden, NULL, NULL, names[2]},
        {"shakespeare agrees with PyTorch", check_golden, NULL, NULL, names[3]},
        cmocka_unit_test(a_later_token_changes_no_earlier_row),
        cmocka_unit_test(what_cannot_be_run_is_refused),
        cmocka_unit_test(each_projection_and_score_is_counted),
        cmocka_unit_test(softmax_sums_to_one_whatever_the_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
