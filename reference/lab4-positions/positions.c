/* Lab 4, position offsets. */
#include "positions.h"

#include <math.h>
#include <string.h>

/* ---- 4a, 4b: rows that are added to the embedded tokens ---- */

/* Vaswani et al. 2017, section 3.5. */
void sinusoidal(int start, int n, int d, real *out)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < d; j += 2) {
            double angle = (start + i) / pow(10000, (double)j / d);
            out[(size_t)i * d + j] = sin(angle);
            out[(size_t)i * d + j + 1] = cos(angle);
        }
}

/* Whether start … start+n-1 lie in 0 … limit-1; start + n itself could overflow. */
static int inside(int start, int n, int limit)
{
    return start >= 0 && n <= limit - start;
}

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    if (!inside(start, n, n_rows))
        return -1;
    memcpy(out, table + (size_t)start * d, (size_t)n * d * sizeof *out);
    return 0;
}

/* ---- 4c: pairs that are turned ---- */

/* Su et al. 2021, eq. 34. Both of a pair are read before either is written. */
void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    for (int i = 0; i < n * heads; i++, x += d_head)
        for (int j = 0; j < d_head; j += 2) {
            double angle = (start + i / heads) * pow(base, -(double)j / d_head);
            double even = x[j], odd = x[j + 1];
            x[j] = even * cos(angle) - odd * sin(angle);
            x[j + 1] = even * sin(angle) + odd * cos(angle);
        }
}

/* ---- 4d: whichever kind the model has ---- */

int add_positions(const model *m, int start, int n, real *x)
{
    int d = m->shape.d_model;
    real row[d];

    if (!inside(start, n, m->shape.n_ctx))
        return -1;
    for (int i = 0; i < n && m->shape.position != ROTARY; i++) {
        if (m->shape.position == SINUSOIDAL)
            sinusoidal(start + i, 1, d, row);
        else
            learned(m->position_embedding, m->shape.n_ctx, d, start + i, 1, row);
        add(x + (size_t)i * d, row, d);
    }
    return 0;
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    if (m->shape.position == ROTARY)
        rope_inplace(x, start, n, heads, m->shape.d_head, m->shape.rope_base);
}
