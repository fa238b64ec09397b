/* Tables: cosines and sines of a whole chunk are laid out first, then used by every head; the even and the odd column
   are the same formula, a quarter turn apart. */
#define _GNU_SOURCE
#include "positions.h"

#include <stdlib.h>
#include <tgmath.h>

/* [n][d/2][2]: cos and sin in turn. */
static double *make_table(int start, int n, int d, double base)
{
    double *table = malloc((size_t)n * d * sizeof *table), frequency[d / 2];

    if (!table)
        abort();
    for (int pair = 0; pair < d / 2; pair++)
        frequency[pair] = 1 / pow(base, 2.0 * pair / d);
    for (int row = 0; row < n; row++)
        for (int pair = 0; pair < d / 2; pair++)
            sincos((start + row) * frequency[pair], &table[(size_t)row * d + 2 * pair + 1], &table[(size_t)row * d + 2 * pair]);
    return table;
}

void sinusoidal(int start, int n, int d, real *out)
{
    for (size_t i = 0; i < (size_t)n * d; i++) {
        int position = start + i / d, column = i % d;
        out[i] = sin(position * pow(10000.0, -(column - column % 2) / (double)d) + column % 2 * M_PI_2);
    }
}

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    if (start < 0 || start > n_rows - n)
        return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < d; j++)
            out[(size_t)i * d + j] = table[(size_t)(start + i) * d + j];
    return 0;
}

void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    double *table = make_table(start, n, d_head, base);

    for (size_t i = (size_t)n * heads; i-- > 0;) {
        const double *row = table + i / heads * d_head;
        real *head = x + i * d_head;
        for (int j = 0; j < d_head; j += 2) {
            double a = head[j] * row[j] - head[j + 1] * row[j + 1];
            double b = head[j] * row[j + 1] + head[j + 1] * row[j];
            head[j] = a, head[j + 1] = b;
        }
    }
    free(table);
}

int add_positions(const model *m, int start, int n, real *x)
{
    const int d = m->shape.d_model;

    if (start < 0 || start > m->shape.n_ctx - n)
        return -1;
    if (m->shape.position == SINUSOIDAL) {
        double *table = make_table(start, n, d, 10000);
        for (int i = 0; i < n * d; i++)
            x[i] += table[i ^ 1];
        free(table);
    } else if (m->shape.position == LEARNED) {
        for (int i = 0; i < n * d; i++)
            x[i] += m->position_embedding[(size_t)start * d + i];
    }
    return 0;
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    if (m->shape.position == ROTARY)
        rope_inplace(x, start, n, heads, m->shape.d_head, m->shape.rope_base);
}
