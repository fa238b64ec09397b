/* The inside of a model, for the code that makes one (build.c, load.c) and runs it (model.c). Labs don't include this. */
#ifndef PARTS_H
#define PARTS_H

#include <stddef.h>

#include "model.h"
#include "weights.h"

/* One tensor that a model of this shape has: its name in the file, and where its values belong. */
typedef struct {
    char name[48];
    int n_axes;
    long shape[2];
    real *values; /* [shape[0]][shape[1]], or [shape[0]] */
} slot;

struct model_parts {
    slot *slots; /* [n_slots]: each tensor of the file */
    int n_slots;
    layer *layers;      /* [L]: what model.layers points to */
    weight *weights;    /* [L][UNEMBEDDING]: role r of layer l is weights[l * UNEMBEDDING + r] */
    norm_weight *norms; /* [L][2]: attention_norm, mlp_norm */
    norm_weight final_norm;
    weight unembedding;
    real *token_embedding; /* [V][D] */
    real *positions;       /* sinusoidal, learned: [n_ctx][D], added; rotary: [n_ctx][d_head], cos and sin in turn */
    real *scratch;         /* [n_ctx][max(2 d_ff, D)]: the inside of mlp() and unembed() */
    real *arena;           /* the memory that all the arrays above lie in: [n_reals] */
    size_t n_reals;
    char *vocabulary;      /* UTF-8, or NULL */
};

/* A model of this shape whose weights aren't set yet (its position tables are). Works out d_head. Returns NULL and a
   sentence that names the first field that is impossible. */
model *model_new(model_shape shape, failure *f);

/* model_new's two halves, for a caller that wants to compare the slots with a file before memory is taken by what the
   file claims: the plan has no arena yet, and NULL for every slot's values. */
model *model_plan(model_shape shape, failure *f);
int model_allocate(model *m, failure *f);

/* model_load for a file that's read already. */
struct safetensors;
model *model_from(const struct safetensors *s, failure *f);

#endif
