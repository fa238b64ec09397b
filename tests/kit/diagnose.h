/* Looks a failing step's trace up among the known mistakes (tests/mistakes): a mistake whose own trace is the same,
   number for number, is what the answer computes. */
#ifndef DIAGNOSE_H
#define DIAGNOSE_H

#include "failure.h"
#include "sandbox.h"

typedef struct {
    char name[64];  /* its file's name without .patch; "" for none */
    char step[8];   /* the step that it fails */
    char says[640]; /* what the answer does, for its author */
    char hint[320];
    char from[128];       /* the report that it comes from */
    bool is_convention; /* right elsewhere, but not the rule of this kit */
} mistake;

/* Reads the lines "field: text" at the head of a mistake's file. Returns -1 and a sentence if one is missing. */
int mistake_read(const char *path, mistake *m, failure *f);

/* The known mistake of this lab and step that left the same trace and the same outcome as the job; name "" if there is
   none. Builds the traces of that step's mistakes with make, if they aren't there yet. */
void diagnose(const char *lab, const char *step, const job *got, mistake *found);

/* Writes a finished job's trace and outcome into a file for diagnose to read. Returns -1 if it can't. */
int mistake_record(const job *j, const char *path);

#endif
