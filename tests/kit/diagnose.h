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

/* Reads the lines "field: text" at the head of a mistake's file. Returns -1 and a sentence if one is missing or too
   long. */
int mistake_read(const char *path, mistake *m, failure *f);

/* The known mistake of this lab and step that left the same trace and the same outcome as the job; name "" if there is
   none. If it may build, it has make bring the traces of that step's mistakes up to date first. */
void diagnose(const char *lab, const char *step, const job *got, bool may_build, mistake *found);

/* Writes a finished job's trace and outcome into a file for diagnose to read. Returns -1 if it can't. */
int mistake_record(job *j, const char *path);

/* The job that mistake_record kept, as far as it was kept: its trace, its outcome's kind, status and what. To be given to
   sandbox_free. Returns -1 if there is no such file, or it makes no sense. */
int mistake_recall(const char *path, const char *step, job *j);

#endif
