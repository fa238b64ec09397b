/* What ops.h keeps opaque, for the code that makes a model (model.c, load.c). Labs don't include this. */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "ops.h"

typedef enum { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, UNEMBEDDING, N_ROLES } role;

struct weight {
    role role;
    int layer; /* 0 for the unembedding */
    int n_out, n_in;
    real *matrix; /* [n_out][n_in] */
    real *bias;   /* [n_out], or NULL */
};

struct norm_weight {
    int d;
    real eps;
    real *gain; /* [d] */
    real *bias; /* [d]: layer norm; NULL: RMS norm */
};

#endif
