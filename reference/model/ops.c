/* The counted primitives and the arithmetic beside them. The only file that knows BLAS, and which of its routines
   serves which precision. Leaves out the model that the weights belong to. */
#include "counts.h"

#include <assert.h>
#include <cblas.h>
#include <string.h>
#include <tgmath.h>

#define gemm _Generic((real)0, double: cblas_dgemm, float: cblas_sgemm)
#define gemv _Generic((real)0, double: cblas_dgemv, float: cblas_sgemv)

/* BLAS isn't compiled with the address sanitizer, so what is handed to it is looked at here: a buffer that is too
   short stops the program in the function that passed it. */
#if defined __has_feature /* clang's way to say what gcc's __SANITIZE_ADDRESS__ says */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
static void check_region(const real *start, size_t n)
{
    const volatile char *bad = __asan_region_is_poisoned((void *)start, n * sizeof *start);

    if (bad)
        (void)*bad;
}
#else
#define check_region(start, n) ((void)0)
#endif

/* ---- the counters ---- */

static long long projections[N_ROLES][MAX_LAYERS], scores_counted[MAX_LAYERS][MAX_HEADS];

void counts_reset(void)
{
    memset(projections, 0, sizeof projections);
    memset(scores_counted, 0, sizeof scores_counted);
}

long long counts_projections(role r, int layer)
{
    return projections[r][layer];
}

long long counts_scores(int layer, int h)
{
    return scores_counted[layer][h];
}

/* ---- the primitives ---- */

void project(const weight *w, const real *x, int n, real *y)
{
    check_region(x, (size_t)n * w->n_in);
    check_region(y, (size_t)n * w->n_out);
    projections[w->role][w->layer] += n;
    for (int i = 0; i < n; i++)
        if (w->bias)
            memcpy(y + (size_t)i * w->n_out, w->bias, w->n_out * sizeof *y);
    real beta = w->bias ? 1 : 0;
    if (n == 1)
        gemv(CblasRowMajor, CblasNoTrans, w->n_out, w->n_in, 1, w->matrix, w->n_in, x, 1, beta, y, 1);
    else if (n > 1)
        gemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, w->n_out, w->n_in, 1, x, w->n_in, w->matrix, w->n_in, beta, y,
             w->n_out);
}

void attention_scores(int layer, int h, const real *q, const real *keys, int stride, int n, int d_head, real *scores)
{
    assert(layer >= 0 && layer < MAX_LAYERS && h >= 0 && h < MAX_HEADS);
    check_region(q, d_head);
    for (int j = 0; j < n; j++)
        check_region(keys + (size_t)j * stride, d_head);
    check_region(scores, n);
    scores_counted[layer][h] += n;
    gemv(CblasRowMajor, CblasNoTrans, n, d_head, 1 / sqrt((real)d_head), keys, stride, q, 1, 0, scores, 1);
}

void softmax(const real *x, int n, real *y)
{
    real most = -INFINITY, sum = 0;

    for (int j = 0; j < n; j++)
        most = fmax(most, x[j]);
    for (int j = 0; j < n; j++)
        sum += y[j] = exp(x[j] - most);
    for (int j = 0; j < n; j++)
        y[j] /= sum;
}

void mix(const real *weights, const real *values, int stride, int n, int d_head, real *out)
{
    check_region(weights, n);
    for (int j = 0; j < n; j++)
        check_region(values + (size_t)j * stride, d_head);
    check_region(out, d_head);
    gemv(CblasRowMajor, CblasTrans, n, d_head, 1, values, stride, weights, 1, 0, out, 1);
}

static void norm_row(const norm_weight *w, const real *x, real *y)
{
    real mean = 0, square = 0;

    for (int i = 0; w->bias && i < w->d; i++)
        mean += x[i] / w->d;
    for (int i = 0; i < w->d; i++)
        square += (x[i] - mean) * (x[i] - mean) / w->d;
    real scale = 1 / sqrt(square + w->eps);
    for (int i = 0; i < w->d; i++)
        y[i] = (x[i] - mean) * scale * w->gain[i] + (w->bias ? w->bias[i] : 0);
}

void norm(const norm_weight *w, const real *x, int n, real *y)
{
    for (int i = 0; i < n; i++)
        norm_row(w, x + (size_t)i * w->d, y + (size_t)i * w->d);
}

void add(real *x, const real *y, int count)
{
    for (int i = 0; i < count; i++)
        x[i] += y[i];
}
