/* Runs a step in a process of its own, so that a crash, an endless loop, exit() or a flood of output costs that step
   and nothing else. Leaves out what the step computed: that's in the trace. */
#ifndef SANDBOX_H
#define SANDBOX_H

#include <stddef.h>

#include "trace.h"

typedef enum {
    ENDED,       /* the step returned */
    NOT_WRITTEN, /* it came to a TODO */
    CRASHED,     /* a signal or a sanitizer ended it */
    MISSING,     /* it has no function of a name that was called */
    EXITED,      /* it called exit() or the like */
    TIMED_OUT,
    TOO_MUCH_MEMORY,
    TOO_MUCH_OUTPUT,
    CLOSED_OUTPUT, /* it returned, but without its standard output */
    NOT_STARTED,   /* not the answer's fault: the process couldn't be made */
} outcome_kind;

enum { SANITIZER_STATUS = 86, CLOSED_OUTPUT_STATUS = 78 }; /* exit statuses that stand for an outcome */

typedef struct {
    outcome_kind kind;
    int status;     /* EXITED: the exit status */
    char what[128]; /* CRASHED: "heap-buffer-overflow", "Segmentation fault", …; NOT_WRITTEN: the step; MISSING: the
                       function; NOT_STARTED: why */
    char at[256];   /* CRASHED, NOT_WRITTEN: file:line in the answer, where it's known */
    char leak[320]; /* what was never freed and where it was allocated, or "" */
} outcome;

typedef struct {
    /* Set by the caller: */
    const char *executable, *mode, *step; /* is run as: executable mode step --trace FILE */
    const char *answer;                   /* the answer's source file, as the compiler was given it */
    const char *library;                  /* the folder that has the answer, compiled: answer.so; or NULL */
    bool ignores_leaks;                   /* looking for them takes as long as a short step itself */
    double seconds;                       /* the most that it may compute; it may take longer on a busy machine */
    /* Set by sandbox_start: */
    trace *trace;
    int process, pipe;
    double started;
    char *output; /* what it printed, on stdout and stderr alike, 0-terminated; a 0 in it is a '?' */
    size_t n_output;
    /* Set by sandbox_finish: */
    outcome outcome;
} job;

enum { OUTPUT_BYTES = 1 << 20 }; /* the most that a step may print */

void sandbox_start(job *j);           /* returns at once; a failure shows as NOT_STARTED */
void sandbox_finish(job *jobs, int n); /* waits for all of them, which run side by side, and ends every other child too */
void sandbox_free(job *j);

/* What the outcome means for a reader, as a sentence without a full stop; "" for ENDED. */
void outcome_sentence(const job *j, char *sentence, size_t size);

#endif
