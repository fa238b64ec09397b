/* What a program does when it comes to a step that isn't written yet. */
#include "todo.h"

#include <stdio.h>
#include <stdlib.h>

void todo(const char *step, const char *file, int line)
{
    fprintf(stderr, "%s:%d: step %s is not written yet\n", file, line, step);
    exit(TODO_STATUS);
}
