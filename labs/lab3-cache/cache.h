/* Lab 3, the KV cache: keep each token's keys and values, so that a step computes only what is new.
   Letters: n new rows (tokens), t tokens in the cache, D d_model, D_kv n_kv_head * d_head. */
#ifndef CACHE_H
#define CACHE_H

#include "model.h"

typedef struct {
    const model *m;
    int capacity; /* the most tokens that it can hold */
    int length;   /* t: the tokens that it holds, at positions 0 … t-1 */
    real *keys;   /* of every layer; how they lie in memory is the lab's choice */
    real *values;
    real *scratch; /* room for cache_forward, so that it needn't allocate; how large is the lab's choice, NULL too */
} cache;

/* ---- 3a: the store ---- */

/* An empty cache for `capacity` tokens of this model. Returns -1 if capacity isn't in 1 … n_ctx or memory runs out;
   the cache is then as after cache_free. */
int cache_init(cache *c, const model *m, int capacity);

void cache_free(cache *c); /* leaves capacity and length 0 and the pointers NULL; a second call does nothing */

/* Writes n ≥ 1 rows of keys k [n][D_kv] and values v [n][D_kv] of one layer at positions length … length+n-1. The length
   stays: it moves once for all layers, in cache_advance. Returns -1, and writes nothing, if they don't fit. */
int cache_append(cache *c, int layer, const real *k, const real *v, int n);

/* length += n, n ≥ 1, after every layer has its n rows. Returns -1, and changes nothing, if they don't fit. */
int cache_advance(cache *c, int n);

void cache_reset(cache *c); /* empties it: the next token stands at position 0 */

/* Keeps the first t tokens of every layer. Returns -1, and changes nothing, if t isn't in 0 … length. */
int cache_truncate(cache *c, int t);

/* The key or value [d_head] of one token, in one layer, of one key/value head; position may be one that
   cache_append wrote and cache_advance hasn't yet made part of the length. */
const real *cache_key(const cache *c, int layer, int kv_head, int position);
const real *cache_value(const cache *c, int layer, int kv_head, int position);

/* ---- 3b: one layer's attention ---- */

/* out [n][D]: what n new rows read from the cache in one layer. q [n][n_head * d_head] are their queries; their keys
   and values are in the cache already, at length … length+n-1. Row i sees positions 0 … length+i, no others, and
   computes no other scores. */
void cache_attention(const cache *c, int layer, const real *q, int n, real *out);

/* ---- 3c: the forward pass ---- */

/* logits [n][V] of n tokens that stand behind those in the cache, whose keys and values it leaves in the cache.
   Positions come from lab 4's add_positions and turn_heads; the keys are cached after turning.
   Returns -1, and changes nothing, if n is below 1, if they don't fit, or if an id isn't in the vocabulary. */
int cache_forward(cache *c, const int *tokens, int n, real *logits);

/* ---- 3d: a prompt in chunks ---- */

/* Feeds n tokens in chunks of `chunk` (the last may be shorter) and writes the last token's logits [V]. `rows`
   [chunk][V] is room for a chunk's logits. Returns -1, and changes nothing, if n or chunk is below 1, if the tokens
   don't fit, or if an id isn't in the vocabulary. */
int cache_prefill(cache *c, const int *tokens, int n, int chunk, real *rows, real *logits);

/* ---- 3e: the decoding loop on it ---- */

typedef struct {
    cache *c;
    int chunk;
    real *rows; /* [chunk][V] */
} cached;

/* The next_fn of lab 3 (see loop.h); its state is a cached. Writes the logits [V] after tokens [n], of which the cache
   holds the first `length` already: feeds the others, so a prompt once and then one token a step. Returns -1 if there
   is no new token or the cache refuses. */
int next_cached(void *state, const int *tokens, int n, real *logits);

#endif
