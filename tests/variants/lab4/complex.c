/* Complex numbers: a pair is one of them, and turning is a product. */
#include "positions.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>

/* e^(i pos base^(-2 pair / d)) */
static double complex unit(int position, int pair, int d, double base)
{
    return cexp(I * (position * exp(-log(base) * (2 * pair) / d)));
}

void sinusoidal(int start, int n, int d, real *out)
{
    for (int position = start; position < start + n; position++)
        for (int pair = 0; pair < d / 2; pair++) {
            double complex z = unit(position, pair, d, 10000);
            *out++ = cimag(z);
            *out++ = creal(z);
        }
}

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    if (start < 0 || start >= n_rows || n_rows - start < n)
        return -1;
    for (size_t i = 0; i < (size_t)n * d; i++)
        out[i] = table[(size_t)start * d + i];
    return 0;
}

void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    for (int pair = 0; pair < d_head / 2; pair++)
        for (int row = 0; row < n; row++) {
            double complex turn = unit(start + row, pair, d_head, base);
            for (int h = 0; h < heads; h++) {
                real *at = x + ((size_t)row * heads + h) * d_head + 2 * pair;
                double complex z = turn * (at[0] + I * at[1]);
                at[0] = creal(z);
                at[1] = cimag(z);
            }
        }
}

int add_positions(const model *m, int start, int n, real *x)
{
    const model_shape *s = &m->shape;

    if (start < 0 || start >= s->n_ctx || s->n_ctx - start < n)
        return -1;
    if (s->position == ROTARY)
        return 0;
    real *rows = malloc((size_t)n * s->d_model * sizeof *rows);
    if (!rows)
        return -1;
    if (s->position == LEARNED)
        learned(m->position_embedding, s->n_ctx, s->d_model, start, n, rows);
    else
        sinusoidal(start, n, s->d_model, rows);
    add(x, rows, n * s->d_model);
    free(rows);
    return 0;
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    switch (m->shape.position) {
    case ROTARY: rope_inplace(x, start, n, heads, m->shape.d_head, m->shape.rope_base); break;
    default: break;
    }
}
