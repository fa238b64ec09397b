/* A program's output goes into two unnamed files, so that neither can fill up and block it. */
#define _GNU_SOURCE
#include "capture.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char *read_all(FILE *file)
{
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    char *text = calloc(1, n + 1);

    assert(text);
    rewind(file);
    assert(fread(text, 1, n, file) == (size_t)n);
    fclose(file);
    return text;
}

static double seconds(struct timeval t)
{
    return t.tv_sec + t.tv_usec * 1e-6;
}

captured capture(const char *const *argv, void (*before)(void))
{
    FILE *out = tmpfile(), *err = tmpfile();
    struct rusage used;
    int status;

    assert(out && err);
    fflush(NULL);
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        dup2(fileno(out), 1);
        dup2(fileno(err), 2);
        if (before)
            before();
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    assert(wait4(child, &status, 0, &used) == child);
    captured c = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                  .cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime)};
    c.out = read_all(out);
    c.err = read_all(err);
    return c;
}

void captured_free(captured *c)
{
    free(c->out);
    free(c->err);
    *c = (captured){0};
}
