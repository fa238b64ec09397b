/* What went wrong with a caller's or a file's data, as one sentence for a person. Faults of the kit's own code
   aren't reported here: they stop the program with file and line (assert). */
#ifndef FAILURE_H
#define FAILURE_H

typedef struct {
    char sentence[512]; /* no newline, no final full stop missing; cut to fit */
} failure;

/* Writes the sentence and returns -1, so that a function can end with `return fail(f, "…")`. */
int fail(failure *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds "what: " before the sentence of a failure that a called function reported, and returns -1. */
int fail_in(failure *f, const char *what);

#endif
