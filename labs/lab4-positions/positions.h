/* Lab 4, position offsets: row i of a chunk that starts at position `start` stands at position start + i.
   Angles are computed in double, whatever `real` is. Letters: n rows, D d_model. Unless a line says otherwise, n is at
   least 1, start at least 0, and the arrays hold exactly the rows that are named. */
#ifndef POSITIONS_H
#define POSITIONS_H

#include "model.h"

/* 4a. out [n][D]: the sinusoids of positions start … start+n-1. Column 2i is sin, column 2i+1 is cos, of
   pos / 10000^(2i/D) (Vaswani et al. 2017, section 3.5). D, here d, is even. */
void sinusoidal(int start, int n, int d, real *out);

/* 4b. out [n][D]: rows start … start+n-1 of table [n_rows][D]. Returns -1, and writes nothing, if one of them isn't in
   the table, with any start (below 0 too) and any n from 1 up; 0 otherwise. */
int learned(const real *table, int n_rows, int d, int start, int n, real *out);

/* 4c. RoPE (Su et al. 2021, eq. 34; pairs as in llama2.c): turns each neighbouring pair (2i, 2i+1) of each head of
   x [n][heads][d_head] in place, by pos * base^(-2i/d_head), from the first axis towards the second. d_head is even,
   base above 1. */
void rope_inplace(real *x, int start, int n, int heads, int d_head, double base);

/* 4d. What a cached pass calls, whichever kind of positions the model has.
   Adds the rows' positions to x [n][D], the embedded tokens; a rotary model's x it leaves as it is. Returns -1, and
   changes nothing, if a position isn't in 0 … n_ctx-1, of any kind of model, with any start and any n from 1 up; 0
   otherwise. */
int add_positions(const model *m, int start, int n, real *x);

/* Turns queries or keys x [n][heads][d_head] in place; does nothing for a model that isn't rotary. `heads` is n_head for
   queries, n_kv_head for keys. The positions are in the context. */
void turn_heads(const model *m, int start, int n, int heads, real *x);

#endif
