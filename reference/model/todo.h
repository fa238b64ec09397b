/* TODO("3a") marks a step of a lab that isn't written yet. */
#ifndef TODO_H
#define TODO_H

enum { TODO_STATUS = 77 };

#define TODO(step) todo(step, __FILE__, __LINE__)

/* Says on stderr that the step isn't written, where, and ends the program with TODO_STATUS. */
_Noreturn void todo(const char *step, const char *file, int line);

#endif
