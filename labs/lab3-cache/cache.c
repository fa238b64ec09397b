/* Lab 3, the KV cache. Write each function where its TODO stands; cache.h says what it must do, and LABS.md why.
   `make lab3` says how far you are. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "positions.h"
#include "todo.h"

/* ---- 3a: the store ---- */

int cache_init(cache *c, const model *m, int capacity)
{
    TODO("3a");
}

void cache_free(cache *c)
{
    TODO("3a");
}

int cache_append(cache *c, int layer, const real *k, const real *v, int n)
{
    TODO("3a");
}

int cache_advance(cache *c, int n)
{
    TODO("3a");
}

void cache_reset(cache *c)
{
    TODO("3a");
}

int cache_truncate(cache *c, int t)
{
    TODO("3a");
}

const real *cache_key(const cache *c, int layer, int kv_head, int position)
{
    TODO("3a");
}

const real *cache_value(const cache *c, int layer, int kv_head, int position)
{
    TODO("3a");
}

/* ---- 3b: one layer's attention ---- */

void cache_attention(const cache *c, int layer, const real *q, int n, real *out)
{
    TODO("3b");
}

/* ---- 3c: the forward pass ---- */

int cache_forward(cache *c, const int *tokens, int n, real *logits)
{
    TODO("3c");
}

/* ---- 3d: a prompt in chunks ---- */

int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits)
{
    TODO("3d");
}

/* ---- 3e: the decoding loop on it ---- */

int next_cached(void *state, const int *tokens, int n, real *logits)
{
    TODO("3e");
}
