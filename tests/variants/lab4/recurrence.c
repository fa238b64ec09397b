/* No power in the loop: frequencies by repeated multiplication, and each row's angles from the row before it by the
   addition theorems. */
#include "positions.h"

#include <math.h>
#include <string.h>

typedef struct {
    double cos, sin;        /* of the row's angle */
    double step_cos, step_sin; /* of one position */
} hand;

static hand hand_at(int position, double frequency)
{
    return (hand){cos(position * frequency), sin(position * frequency), cos(frequency), sin(frequency)};
}

static void step(hand *a)
{
    double c = a->cos * a->step_cos - a->sin * a->step_sin;

    a->sin = a->sin * a->step_cos + a->cos * a->step_sin;
    a->cos = c;
}

void sinusoidal(int start, int n, int d, real *out)
{
    double ratio = pow(10000, -2.0 / d), frequency = 1;

    for (int j = 0; j < d; j += 2, frequency *= ratio) {
        hand a = hand_at(start, frequency);
        for (int i = 0; i < n; i++, step(&a)) {
            out[i * d + j] = a.sin;
            out[i * d + j + 1] = a.cos;
        }
    }
}

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    long long end = (long long)start + n;

    if (start < 0 || end > n_rows)
        return -1;
    while (n--)
        memcpy(out + (size_t)n * d, table + ((size_t)start + n) * d, d * sizeof *out);
    return 0;
}

void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    double ratio = pow(base, -2.0 / d_head), frequency = 1;

    for (int j = 0; j < d_head; j += 2, frequency *= ratio) {
        hand a = hand_at(start, frequency);
        real *pair = x + j;
        for (int i = 0; i < n; i++, step(&a))
            for (int h = 0; h < heads; h++, pair += d_head) {
                real old[2] = {pair[0], pair[1]};
                pair[0] = a.cos * old[0] - a.sin * old[1];
                pair[1] = a.sin * old[0] + a.cos * old[1];
            }
    }
}

int add_positions(const model *m, int start, int n, real *x)
{
    int d = m->shape.d_model;
    long long end = (long long)start + n;

    if (start < 0 || end > m->shape.n_ctx)
        return -1;
    if (m->shape.position == LEARNED)
        add(x, m->position_embedding + (size_t)start * d, n * d);
    if (m->shape.position == SINUSOIDAL)
        for (int i = 0; i < n; i++) {
            real row[d];
            sinusoidal(start + i, 1, d, row);
            add(x + i * d, row, d);
        }
    return 0;
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    if (m->shape.position != ROTARY)
        return;
    for (int i = 0; i < n; i++)
        rope_inplace(x + (size_t)i * heads * m->shape.d_head, start + i, 1, heads, m->shape.d_head, m->shape.rope_base);
}
