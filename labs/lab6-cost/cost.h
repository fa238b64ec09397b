/* Lab 6, what generating text costs: closed forms for what the labs' code counts, and for memory and time.
   Letters: p tokens of prompt, n new tokens. All integers are 64 bits wide; a function returns -1, and writes nothing,
   when an argument is out of range or a result doesn't fit. */
#ifndef COST_H
#define COST_H

#include <stdint.h>

#include "model.h"

/* ---- 6a: how often ---- */

typedef struct {
    int64_t projections; /* tokens whose key and value are computed, in one layer */
    int64_t scores;      /* query-key products, in one head of one layer */
} usage;

/* For n tokens after a prompt of p, each chosen from a run of the model on all tokens before it; p ≥ 1, n ≥ 0. */
int usage_uncached(int64_t p, int64_t n, usage *u); /* each run computes all tokens anew */
int usage_cached(int64_t p, int64_t n, usage *u);   /* the prompt is run once, then one token at a time */

/* ---- 6b: how much memory ---- */

typedef struct {
    int64_t n_layer, n_kv_head, d_head, n_tokens, bytes_per_number, n_sequences; /* each at least 1 */
} cache_shape;

/* Bytes of the keys and values. */
int cache_bytes(const cache_shape *s, int64_t *bytes);

/* ---- 6c: how much work ---- */

typedef struct {
    int64_t multiply_adds; /* of all projections, the scores and the mixing of values */
    int64_t bytes;         /* moved: each weight matrix read once, and the keys and values of all tokens read once */
    double intensity;      /* floating-point operations (two for each multiply-add) for each byte */
} work;

/* A pass over p tokens with an empty cache, of which only the last one's logits are computed. Biases, norms and
   activations aren't counted. bytes_per_number: of weights and cache alike. */
int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w);

/* One token behind t others in the cache. t ≥ 0. */
int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w);

/* ---- 6d: how fast ---- */

/* Passes for each second that a machine can do at most: it moves so many bytes and does so many floating-point
   operations a second, and the slower of the two decides (the roofline, Williams et al. 2009). 0 if an argument isn't
   above 0. */
double passes_per_second(const work *w, double bytes_per_second, double operations_per_second);

#endif
