/* Runs the known mistakes of a lab: to keep their fingerprints, and to see that each is caught and named. */
#ifndef MISTAKES_H
#define MISTAKES_H

#include "check.h"
#include "compare.h"

/* For each of the files (tests/mistakes/LAB/NAME.patch), which has been compiled already: runs the step that it is to
   fail, and prints its line of LAB.known (see diagnose.h). Returns an exit status: 0, or 2 if one can't be run. */
int print_known(const lab *l, char **files, int n);

/* For each of the files: runs the steps up to the one that it is to fail, and prints a row: the first that fails, going
   by `expected`, and what it's diagnosed as. Returns an exit status: 0, or 2 if one can't be run. */
int check_mistakes(const lab *l, const trace *expected, tolerance allowed, char **files, int n);

#endif
