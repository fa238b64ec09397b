/* Reads safetensors files: an 8-byte little-endian header length, a JSON header, then raw little-endian data
   (format: huggingface/safetensors, README). Everything is checked before it's used, so that no file can make the
   program crash or allocate by an unchecked number. Leaves out what the tensors mean: that's load.c. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stddef.h>

#include "failure.h"

enum { MAX_AXES = 4 };

typedef struct {
    const char *name;
    char dtype[8];  /* as in the file: "F32", "F64", … */
    int float_bits; /* 32, 64: F32 and F64, which can be read; 0: any other */
    int n_axes;
    long shape[MAX_AXES];
    size_t n;         /* elements in all: the shape's product */
    const void *data; /* inside the mapped file; not aligned for certain */
} tensor;

typedef struct safetensors safetensors;

/* Maps the file. Returns NULL and a sentence that starts with the path. */
safetensors *safetensors_open(const char *path, failure *f);

/* The same for bytes in memory, which must outlive the result; `name` stands in the sentences for the path. */
safetensors *safetensors_parse(const void *bytes, size_t n, const char *name, failure *f);

void safetensors_close(safetensors *s); /* NULL is fine */

int safetensors_count(const safetensors *s);
const tensor *safetensors_at(const safetensors *s, int i);               /* i < count, in the order of their data */
const tensor *safetensors_find(const safetensors *s, const char *name);  /* NULL if there is none */
const char *safetensors_metadata(const safetensors *s, const char *key); /* NULL if there is none */
const char *safetensors_path(const safetensors *s);                      /* a long one loses its beginning */

/* One element, i < n, as a double. Returns -1 and a sentence that starts with the tensor's name for a dtype other than
   F32 and F64 and for a value that isn't finite. */
int tensor_element(const tensor *t, size_t i, double *value, failure *f);

/* All of a tensor's elements [n] as doubles. The same faults, in a sentence that starts with the path. */
int tensor_read(const safetensors *s, const tensor *t, double *values, failure *f);

#endif
