/* A trace: the named arrays that a step produced, written by the process that runs the answer and read by the one that
   judges it. It lies in a shared file, so that what was written before a crash is still there after it.
   Leaves out what is right (compare.h) and how the process is run (sandbox.h). */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "real.h"

enum { TRACE_AXES = 3 };

typedef enum {
    REALS = 1, /* compared within a tolerance */
    LOGITS,    /* the same, and the top token of each row besides */
    INTS,      /* compared exactly */
    COUNTS,    /* the same: how often the answer used a counted primitive */
    TEXT,      /* bytes, compared exactly */
} record_kind;

/* What an index of an array means: "position" 8 … 31 is {"position", 8, 24}. */
typedef struct {
    char name[16];
    int32_t first, n;
} axis;

typedef struct {
    uint32_t kind, n_axes;
    axis axes[TRACE_AXES];
    char step[8];
    char where[104]; /* the case: which model, which sizes */
    char name[64];   /* the quantity */
    uint64_t n;      /* elements: doubles, int64s or bytes; they follow, padded to 8 bytes */
} record;

typedef struct trace trace;

/* Maps the file (made if it's missing) for writing. NULL and errno if that fails. */
trace *trace_open(const char *path);
trace *trace_open_fd(int fd);
trace *trace_read(const char *path); /* the same for reading alone: changes nothing, and makes no file */
void trace_close(trace *t);

/* ---- writing ---- */

void trace_step(trace *t, const char *step); /* the records that follow belong to this step … */
void trace_case(trace *t, const char *format, ...) __attribute__((format(printf, 2, 3))); /* … and to this case */

/* The axes of an array, the last index first in memory: AXES({"position", 8, 24}, {"token", 0, 66}). */
#define AXES(...) (const axis[TRACE_AXES + 1]){__VA_ARGS__}

void trace_reals(trace *t, const real *a, const axis *axes, const char *name);
void trace_logits(trace *t, const real *a, const axis *axes, const char *name);
void trace_ints(trace *t, const int *a, const axis *axes, const char *name);
void trace_counts(trace *t, const long long *a, const axis *axes, const char *name);
void trace_int(trace *t, int value, const char *name); /* without axes: a single number */
void trace_text(trace *t, const char *bytes, size_t n, const char *name);

void trace_finish(trace *t); /* the step returned: without this the trace counts for nothing */

/* ---- reading: nothing in the file is trusted ---- */

bool trace_is_started(const trace *t); /* it has come to a step */
bool trace_is_finished(const trace *t);
const char *trace_last_case(const trace *t); /* what the step was at when it stopped; "" if it named no case */

/* The next record of the step after `at` (NULL: the first), or NULL at the end or where the file makes no sense. */
const record *trace_next(const trace *t, const char *step, const record *at);

double record_number(const record *r, size_t i); /* element i of any kind but TEXT */
const char *record_bytes(const record *r);       /* the bytes of a TEXT */

#endif
