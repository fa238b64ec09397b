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

/* The known mistake of this lab and step whose fingerprint is that of the job; name "" if there is none. The fingerprints
   stand in tests/mistakes/LAB.known, a line each: the step, the name, the fingerprint, separated by tabs. `make known`
   writes it. */
void diagnose(const char *lab, const char *step, const job *got, mistake *found);

#endif
