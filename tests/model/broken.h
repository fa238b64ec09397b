/* Builds model files in memory, whole ones and broken ones, for the tests of what reads them. Its list of tensors is
   written out from data/train.py, not taken from build.c. Leaves out everything that's checked: that's each test's. */
#ifndef BROKEN_H
#define BROKEN_H

#include <stdbool.h>
#include <stddef.h>

#include "model.h"
#include "safetensors.h"

typedef struct {
    unsigned char *bytes; /* free() them */
    size_t n;
} file_bytes;

/* A file of this header (' stands for ") and n_data bytes 0, 1, 2 … of data. */
file_bytes file_of(const char *header, size_t n_data);

/* ---- a whole model file that a test can spoil ---- */

typedef struct {
    char name[48], dtype[8];
    int n_axes;
    long shape[5];
} draft_tensor;

typedef struct {
    char key[24], value[64];
} draft_field;

typedef struct {
    draft_tensor tensors[40];
    int n_tensors;
    draft_field fields[20]; /* the metadata */
    int n_fields;
    int odd;          /* the element of the whole data that is odd_value, not draft_value; -1 for none */
    double odd_value;
} draft;

/* One layer, d_model 4, 2 heads, d_ff 3, n_ctx 4, vocabulary "ab". Sinusoidal: layer norm, biases, tanh GELU, tied.
   Learned: the same with exact GELU, untied. Rotary: RMS norm, no biases, SwiGLU, 1 key/value head, tied. */
draft draft_of(position_kind position);

draft_tensor *draft_find(draft *d, const char *name);
draft_tensor *draft_add(draft *d, const char *name, int n_axes, long rows, long columns);
void draft_remove(draft *d, const char *name);
void draft_set(draft *d, const char *key, const char *value); /* NULL removes the field */
int draft_first(const draft *d, const char *name); /* the first element of a tensor, counted through the whole data */
double draft_value(int element);

/* The tensors' data lie in the order of the draft, without holes. */
file_bytes draft_bytes(const draft *d);

/* ---- files on disk ---- */

/* Writes a temporary file and puts its path into path [64]. */
void write_temporary(char *path, const void *bytes, size_t n);

/* ---- what must hold for any bytes at all ---- */

/* Reads the bytes as a file and as a model, and stops the program if a tensor lies outside the data, a weight isn't
   finite or a sentence is empty or has control bytes. Returns whether they are a model. */
bool exercise(const void *bytes, size_t n);

/* Each word in turn must be in the sentence, in this order; the last argument is NULL. Prints the sentence if not. */
bool says(const failure *f, const char *word, ...) __attribute__((sentinel));

#endif
