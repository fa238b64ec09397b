/* What project() and attention_scores() counted since the last reset. For tests and plots only: a lab's code has no
   business here. */
#ifndef COUNTS_H
#define COUNTS_H

#include "weights.h"

enum { MAX_LAYERS = 128, MAX_HEADS = 128 }; /* a model with more is refused when it's loaded */

void counts_reset(void);
long long counts_projections(role r, int layer);
long long counts_scores(int layer, int h);

#endif
