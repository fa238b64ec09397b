/* Keeps the frequencies from one call to the next, and makes them anew when the width or the base is another one. Refuses
   row by row in a first loop, and works in a second. */
#include "positions.h"

#include <math.h>
#include <stddef.h>

enum { MOST = 1 << 16 };

static const double *frequencies(int d, double base)
{
    static double kept[MOST / 2], kept_base;
    static int kept_d;

    if (d != kept_d || base != kept_base)
        for (int i = 0; i < d / 2; i++)
            kept[i] = exp2(-log2(base) * 2 * i / d);
    kept_d = d;
    kept_base = base;
    return kept;
}

static int is_row(int start, int i, int limit)
{
    return i < limit && start >= -i && start < limit - i;
}

void sinusoidal(int start, int n, int d, real *out)
{
    const double *f = frequencies(d, 10000);

    for (int j = 0; j < d; j++)
        for (int i = 0; i < n; i++) {
            double angle = f[j >> 1] * (start + i);
            out[i * d + j] = j & 1 ? cos(angle) : sin(angle);
        }
}

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    for (int i = 0; i < n; i++)
        if (!is_row(start, i, n_rows))
            return -1;
    const real *from = &table[start * d];
    for (int i = 0; i < n; i++, from += d, out += d)
        for (int j = 0; j < d; j++)
            out[j] = from[j];
    return 0;
}

void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    const double *f = frequencies(d_head, base);

    for (int i = 0; i < n; i++)
        for (int h = 0; h < heads; h++)
            for (int pair = 0; pair < d_head / 2; pair++, x += 2) {
                real c = cos(f[pair] * (start + i)), s = sin(f[pair] * (start + i)), first = x[0];
                x[0] = c * first - s * x[1];
                x[1] = s * first + c * x[1];
            }
}

int add_positions(const model *m, int start, int n, real *x)
{
    int d = m->shape.d_model;
    real row[d];

    for (int i = 0; i < n; i++)
        if (!is_row(start, i, m->shape.n_ctx))
            return -1;
    for (int i = 0; i < n; i++) {
        switch (m->shape.position) {
        case ROTARY: return 0;
        case SINUSOIDAL: sinusoidal(start + i, 1, d, row); break;
        case LEARNED: learned(m->position_embedding, m->shape.n_ctx, d, start + i, 1, row); break;
        }
        for (int j = 0; j < d; j++)
            x[(size_t)i * d + j] += row[j];
    }
    return 0;
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    if (m->shape.position == ROTARY)
        for (int i = 0; i < n; i++)
            for (int h = 0; h < heads; h++, x += m->shape.d_head)
                rope_inplace(x, start + i, 1, 1, m->shape.d_head, m->shape.rope_base);
}
