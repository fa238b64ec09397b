/* Runs a program for a test and keeps what it printed. Leaves out limits: those are what sandbox.h is for, which is
   itself under test. */
#ifndef CAPTURE_H
#define CAPTURE_H

typedef struct {
    char *out, *err;    /* 0-terminated */
    int status;         /* the exit status, or 128 + the signal that ended it */
    double cpu_seconds; /* of the program and of all that it waited for */
} captured;

/* argv ends with NULL; `before` (or NULL) is called in the new process first. Stops the test program if that fails. */
captured capture(const char *const *argv, void (*before)(void));
void captured_free(captured *c);

/* The same with its arguments in place: RUN("build/x", "--help"). */
#define RUN(...) capture((const char *const[]){__VA_ARGS__, NULL}, NULL)

#endif
