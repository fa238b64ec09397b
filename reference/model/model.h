/* The given model: one decoder-only transformer with pre-norm blocks, read from a file that says its own shape.
   A lab walks its layers with the calls below and in ops.h, and never asks which kind of model it is.
   Letters: n rows (tokens), D d_model, V n_vocab, L n_layer. */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "failure.h"
#include "ops.h"

typedef enum { LAYER_NORM, RMS_NORM } norm_kind;
typedef enum { GELU_TANH, GELU_EXACT, SWIGLU } activation_kind;
typedef enum { SINUSOIDAL, LEARNED, ROTARY } position_kind;

typedef struct {
    int n_vocab, n_ctx, d_model, n_layer;
    int n_head, n_kv_head; /* n_kv_head divides n_head: query head h reads key/value head h / (n_head / n_kv_head) */
    int d_head;            /* d_model / n_head */
    int d_ff;
    norm_kind norm;
    activation_kind activation;
    position_kind position;
    bool bias; /* the projections have biases (layer norm has one always, RMS norm never) */
    bool tied; /* the unembedding is the token embedding */
    double norm_eps, rope_base;
} model_shape;

typedef struct {
    const norm_weight *attention_norm, *mlp_norm;
    const weight *query;       /* D to n_head * d_head */
    const weight *key, *value; /* D to n_kv_head * d_head */
    const weight *output;      /* n_head * d_head to D */
    const weight *gate;        /* D to d_ff; NULL without SwiGLU */
    const weight *up, *down;   /* D to d_ff, d_ff to D */
} layer;

typedef struct {
    model_shape shape;
    const layer *layers;            /* [L] */
    const real *position_embedding; /* [n_ctx][D] with learned positions, else NULL */
    int end_of_text;                /* the id that ends a text, or -1 */
    struct model_parts *parts;      /* what the model keeps to itself */
} model;

/* Reads a model file (see data/README.md for the format). Returns NULL and a sentence that names the file, the tensor
   or field, and what is wrong with it. */
model *model_load(const char *path, failure *f);

/* A model of this shape with random weights (standard deviation 1/√in), for tests and measurements. d_head is
   worked out from the rest. Returns NULL and a sentence if the shape is impossible. */
model *model_random(model_shape shape, uint64_t seed, failure *f);

void model_free(model *m); /* NULL is fine */

/* The characters of the model file's vocabulary, in the order of their ids, as UTF-8; NULL for a random model. */
const char *model_vocabulary(const model *m);

/* x [n][D] = the tokens' rows of the embedding table, without positions. Returns -1 if an id isn't in 0 … V-1. */
int embed(const model *m, const int *tokens, int n, real *x);

/* y [n][D] = down(activation(up(x))), or down(silu(gate(x)) * up(x)) (Shazeer 2020), of x [n][D], the normalised rows.
   Neither the norm before it nor the residual connection is part of it. y may be x. */
void mlp(const model *m, int layer, const real *x, int n, real *y);

/* logits [n][V] of x [n][D], the rows that leave the last layer: the final norm, then the unembedding. */
void unembed(const model *m, const real *x, int n, real *logits);

/* logits [n][V] for all n rows, each token seeing itself and those before it: the whole computation, without a cache.
   This is what a cached pass is compared with. Returns -1 if n isn't in 1 … n_ctx or an id isn't in 0 … V-1. */
int model_forward(const model *m, const int *tokens, int n, real *logits);

#endif
