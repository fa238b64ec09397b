/* Sentences about faults in data. Leaves out where they are printed: that's the program's business. */
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>

int fail(failure *f, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(f->sentence, sizeof f->sentence, format, arguments);
    va_end(arguments);
    return -1;
}

int fail_in(failure *f, const char *what)
{
    failure inner = *f;

    return fail(f, "%s: %s", what, inner.sentence);
}
