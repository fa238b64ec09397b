/* The arithmetic that every lab is given. Weights are opaque: project() is the only way to multiply by one, so that
   it can count. Leaves out the cache, positions and choosing a token: those are the labs.
   Letters: n rows, D d_model, V vocabulary. All arrays are row-major and don't overlap unless a line says so. */
#ifndef OPS_H
#define OPS_H

#include "real.h"

typedef struct weight weight;           /* a matrix [out][in], and a bias [out] where the model has one */
typedef struct norm_weight norm_weight; /* a gain [D], and a bias [D] for layer norm */

/* y [n][out] = x [n][in] times the weight's transpose, plus its bias. Counts n projections under the weight's role
   and layer. */
void project(const weight *w, const real *x, int n, real *y);

/* One query row of one head against n keys: scores[j] = q · key_j / √d_head for j < n, where key_j starts at
   keys + j*stride (Vaswani et al. 2017, eq. 1). Counts n scores under the layer and the query head h. */
void attention_scores(int layer, int h, const real *q, const real *keys, int stride, int n, int d_head, real *scores);

/* y[j] = exp(x[j] - max x) / sum, for j < n; -INFINITY becomes exactly 0. y may be x. */
void softmax(const real *x, int n, real *y);

/* out [d_head] = sum over j < n of weights[j] * value_j, where value_j starts at values + j*stride. */
void mix(const real *weights, const real *values, int stride, int n, int d_head, real *out);

/* y [n][D] = the norm of each row of x [n][D]: layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019),
   as the model has it. y may be x. */
void norm(const norm_weight *w, const real *x, int n, real *y);

/* x [count] += y [count]: the residual connection. n rows of the residual stream are n * D numbers. */
void add(real *x, const real *y, int count);

#endif
