/* Lab 6, what generating text costs. Write each function where its TODO stands; cost.h says what it must do, and
   LABS.md why. `make lab6` says how far you are. */
#include "cost.h"

#include "todo.h"

/* ---- 6a: how often ---- */

int usage_uncached(int64_t p, int64_t n, usage *u)
{
    TODO("6a");
}

int usage_cached(int64_t p, int64_t n, usage *u)
{
    TODO("6a");
}

/* ---- 6b: how much memory ---- */

int cache_bytes(const cache_shape *s, int64_t *bytes)
{
    TODO("6b");
}

/* ---- 6c: how much work ---- */

int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w)
{
    TODO("6c");
}

int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w)
{
    TODO("6c");
}

/* ---- 6d: how fast ---- */

double passes_per_second(const work *w, double bytes_per_second, double operations_per_second)
{
    TODO("6d");
}
