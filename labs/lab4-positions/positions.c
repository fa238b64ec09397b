/* Lab 4, position offsets. Write each function where its TODO stands; positions.h says what it must do, and LABS.md why.
   `make lab4` says how far you are. */
#include "positions.h"

#include <math.h>
#include <string.h>

#include "todo.h"

/* ---- 4a: sinusoids ---- */

void sinusoidal(int start, int n, int d, real *out)
{
    TODO("4a");
}

/* ---- 4b: a learned table ---- */

int learned(const real *table, int n_rows, int d, int start, int n, real *out)
{
    TODO("4b");
}

/* ---- 4c: RoPE ---- */

void rope_inplace(real *x, int start, int n, int heads, int d_head, double base)
{
    TODO("4c");
}

/* ---- 4d: whichever kind the model has ---- */

int add_positions(const model *m, int start, int n, real *x)
{
    TODO("4d");
}

void turn_heads(const model *m, int start, int n, int heads, real *x)
{
    TODO("4d");
}
