/* Walking pointers and recursion: a chunk is its first row and a shorter chunk behind it; a row of several heads is its
   first head and the others. */
#include "positions.h"

#include <math.h>
#include <string.h>

/* Where the last row stands, in a type that holds it. */
static int outside(int start, int n, int rows)
{
    const int64_t first = start, last = first + n - 1;

    return first < 0 || last >= rows;
}

void sinusoidal(int start, int n, int d, real *out)
{
    if (n == 0)
        return;
    for (real *at = out; at < out + d; at += 2) {
        const double wavelength = pow(1e4, (at - out) / (double)d); /* over 2 pi */
        at[0] = sin(start / wavelength);
        at[1] = cos(start / wavelength);
    }
    sinusoidal(start + 1, n - 1, d, out + d);
}

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    if (outside(start, n, n_rows))
        return -1;
    const real *first = table + (size_t)start * d;
    memmove(out, first, (const char *)(first + (size_t)n * d) - (const char *)first);
    return 0;
}

static void turn_one(real *pair, double angle)
{
    const double length = hypot(pair[0], pair[1]), direction = atan2(pair[1], pair[0]) + angle;

    pair[0] = length * cos(direction);
    pair[1] = length * sin(direction);
}

void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    if (n == 0)
        return;
    for (int h = 0; h < heads; h++)
        for (int left = d_head; left > 0; left -= 2, x += 2)
            turn_one(x, start * pow(base, (left - d_head) / (double)d_head));
    rope_inplace(x, start + 1, n - 1, heads, d_head, base);
}

static void add_sinusoids(int position, int d, real *x)
{
    for (int j = 0; j < d; j++)
        x[j] += j % 2 ? cos(position / pow(1e4, (j - 1.0) / d)) : sin(position / pow(1e4, (double)j / d));
}

int add_positions(const model *m, int start, int n, real *x)
{
    const int d = m->shape.d_model, kind = m->shape.position;

    if (outside(start, n, m->shape.n_ctx))
        return -1;
    for (int position = start; position < start + n; position++, x += d)
        if (kind == SINUSOIDAL)
            add_sinusoids(position, d, x);
        else if (kind == LEARNED)
            add(x, &m->position_embedding[(size_t)position * d], d);
    return 0;
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    const model_shape s = m->shape;

    if (s.position == ROTARY)
        rope_inplace(x, start, n, heads, s.d_head, s.rope_base);
}
