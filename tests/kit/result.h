/* What a check found out about one step: made by check.c, written down by report.c and formats.c. */
#ifndef RESULT_H
#define RESULT_H

#include "check.h"
#include "compare.h"
#include "diagnose.h"
#include "sandbox.h"

typedef enum { PASSED, FAILED, WAITS, UNWRITTEN, N_VERDICTS } verdict;

enum { DOUBLE, FLOAT, N_PRECISIONS };

typedef struct {
    const step *step;
    verdict verdict;
    char sentence[1024];                 /* what is wrong, or what it waits for; "" when it passed */
    mistake mistake;                     /* the known mistake that does just this; name "" if there is none */
    comparison compared[N_PRECISIONS];
    char leak[320];                      /* a warning, or "" */
    char printed[1024];                  /* the beginning of what the answer printed, "" for nothing */
} result;

typedef struct {
    const lab *lab;
    const char *answer; /* its source file */
    const result *results;
    int n_results;
    int n[N_VERDICTS];
} summary;

#endif
