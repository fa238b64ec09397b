/* Runs the known mistakes of a lab: to keep their traces, and to see that each is caught and named. */
#ifndef MISTAKES_H
#define MISTAKES_H

#include "check.h"
#include "compare.h"

/* For each of the files (tests/mistakes/LAB/NAME.patch): runs the step that it is to fail, and keeps its trace in
   build/mistakes/LAB/NAME.trace. Each has been compiled already. Returns an exit status: 0, or 2 if one can't be. */
int record_mistakes(const lab *l, char **files, int n);

/* For each of the files: the first step that fails, going by `expected`, and what it's diagnosed as; prints a row each.
   Their traces have been kept already. Returns an exit status: 0, or 2 if a file or its trace can't be read. */
int check_mistakes(const lab *l, const trace *expected, tolerance allowed, char **files, int n);

#endif
