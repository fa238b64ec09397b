/* Lab 6, what generating text costs: closed forms for what the labs' code counts, and for memory and time.
   Letters: p tokens of prompt, n new tokens, t tokens in the cache. All integers are 64 bits wide. The functions return
   0, or -1 when an argument is out of range or a result doesn't fit; then they write nothing. What comes up on the way
   to a result that fits may be larger. */
#ifndef COST_H
#define COST_H

#include <stdint.h>

#include "model.h"

/* ---- 6a: how often ---- */

typedef struct {
    int64_t projections; /* tokens whose key and value are computed, in one layer */
    int64_t scores;      /* query-key products that causality allows, in one head of one layer */
} usage;

/* For n tokens after a prompt of p, each chosen from a run of the model on all tokens before it; p ≥ 1, n ≥ 0. The last
   one is chosen and never fed to the model; for n = 0 the model isn't run at all. */
int usage_uncached(int64_t p, int64_t n, usage *u); /* each run computes all tokens anew */
int usage_cached(int64_t p, int64_t n, usage *u);   /* the prompt is run once, then one token at a time */

/* ---- 6b: how much memory ---- */

typedef struct {
    int64_t n_layer, n_kv_head, d_head, n_tokens, bytes_per_number, n_sequences; /* each at least 1 */
} cache_shape;

/* Bytes of the keys and values of n_tokens tokens in each of n_sequences sequences. */
int cache_bytes(const cache_shape *s, int64_t *bytes);

/* ---- 6c: how much work ---- */

/* The matrices that count are query, key, value, output, gate (SwiGLU alone), up and down of each layer, and the
   unembedding, tied or not. A row of the embedding or position table that is looked up is neither work nor bytes; a
   tied table is read once, as the unembedding. Biases, norms, RoPE, softmax, activations, what is written, and the rows
   between the matrices aren't counted at all. */
typedef struct {
    int64_t multiply_adds; /* of all projections, and d_head for each score and as many for mixing its value in; only
                              the scores that causality allows */
    int64_t bytes;         /* moved: each matrix read once, and the keys and values of all tokens read once */
    double intensity;      /* floating-point operations (two for each multiply-add) for each byte */
} work;

/* A pass over p ≥ 1 tokens with an empty cache, of which only the last one's logits are computed: the unembedding
   multiplies one row. bytes_per_number ≥ 1: of weights and cache alike. Every size of s but n_ctx is at least 1; n_ctx
   isn't looked at, so p may be larger. Of a model's shape n_head * d_head is d_model. */
int work_prefill(const model_shape *s, int64_t p, int64_t bytes_per_number, work *w);

/* One token behind t ≥ 0 others in the cache: it sees, and reads the keys and values of, t + 1 tokens, its own too. */
int work_decode(const model_shape *s, int64_t t, int64_t bytes_per_number, work *w);

/* ---- 6d: how fast ---- */

/* Passes for each second that a machine can do at most: it moves so many bytes and does so many floating-point
   operations a second, both at the same time, and the slower of the two decides (the roofline, Williams et al. 2009).
   0 if multiply_adds, bytes or one of the speeds isn't above 0 (NaN isn't). One of the speeds may be INFINITY: then the
   other decides. */
double passes_per_second(const work *w, double bytes_per_second, double operations_per_second);

#endif
