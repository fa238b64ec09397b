/* Known mistakes: reading their files, having their traces made, and finding the one that matches. */
#define _GNU_SOURCE
#include "diagnose.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compare.h"

/* ---- the file of a mistake: "field: text" lines, an empty line, a patch on the reference answer ---- */

static void read_field(const char *line, const char *field, char *text, size_t size)
{
    size_t n = strlen(field);

    if (strncmp(line, field, n) || strncmp(line + n, ": ", 2))
        return;
    snprintf(text, size, "%s", line + n + 2);
    text[strcspn(text, "\n")] = 0;
}

static void read_line(const char *line, mistake *m)
{
    char kind[16] = "";

    read_field(line, "step", m->step, sizeof m->step);
    read_field(line, "says", m->says, sizeof m->says);
    read_field(line, "hint", m->hint, sizeof m->hint);
    read_field(line, "from", m->from, sizeof m->from);
    read_field(line, "kind", kind, sizeof kind);
    m->is_convention |= strcmp(kind, "convention") == 0;
}

int mistake_read(const char *path, mistake *m, failure *f)
{
    char line[1024];
    FILE *file = fopen(path, "r");

    *m = (mistake){0};
    if (!file)
        return fail(f, "%s: %s", path, strerror(errno));
    snprintf(m->name, sizeof m->name, "%s", basename(path));
    m->name[strcspn(m->name, ".")] = 0;
    while (fgets(line, sizeof line, file) && line[0] != '\n')
        read_line(line, m);
    fclose(file);
    if (!m->step[0] || !m->says[0] || !m->hint[0] || !m->from[0])
        return fail(f, "%s: a mistake's file begins with the lines step:, says:, hint: and from:", path);
    return 0;
}

/* ---- the trace of a mistake ---- */

/* What the trace file keeps of an outcome, as a text record of the step "outcome". */
static void describe(const outcome *o, char *text, size_t size)
{
    snprintf(text, size, "%d %d %s", o->kind, o->kind == EXITED ? o->status : 0, o->kind == CRASHED ? o->what : "");
}

int mistake_record(const job *j, const char *path)
{
    char text[160];
    trace *file = trace_open(path);

    if (!file)
        return -1;
    trace_copy(file, j->trace);
    describe(&j->outcome, text, sizeof text);
    trace_step(file, "outcome");
    trace_text(file, text, strlen(text), "outcome");
    trace_finish(file);
    trace_close(file);
    return 0;
}

static bool same_outcome(const trace *known, const job *got)
{
    const record *r = trace_next(known, "outcome", NULL);
    char text[160];

    describe(&got->outcome, text, sizeof text);
    return r && r->kind == TEXT && r->n == strlen(text) && memcmp(record_bytes(r), text, r->n) == 0;
}

static bool matches(const char *path, const char *step, const job *got)
{
    trace *known = trace_open(path);
    bool same = known && trace_is_finished(known) && same_outcome(known, got) && same_trace(known, got->trace, step);

    trace_close(known);
    return same;
}

/* ---- having the traces made ---- */

/* Runs make for the traces; it does nothing for those that are up to date. A mistake that can't be built only means
   that it can't be named: `make mistakes` is where that is an error. */
static void run_make(char **targets, int n)
{
    char *arguments[n + 6];
    int count = 0;

    arguments[count++] = "make";
    arguments[count++] = "--silent";
    arguments[count++] = "--keep-going";
    arguments[count++] = "--no-print-directory";
    for (int i = 0; i < n; i++)
        arguments[count++] = targets[i];
    arguments[count] = NULL;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("MAKEFLAGS"); /* what the student asked of make isn't meant for this one */
        unsetenv("MAKEOVERRIDES");
        unsetenv("MFLAGS");
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(127);
        execvp("make", arguments);
        _exit(127);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
}

/* The mistakes of one step, and the files of their traces. */
typedef struct {
    mistake *mistakes;
    char **traces;
    int n;
} candidates;

static void collect(const char *lab, const char *step, candidates *all)
{
    char pattern[64];
    glob_t files;
    failure f;

    snprintf(pattern, sizeof pattern, "tests/mistakes/%s/*.patch", lab);
    *all = (candidates){0};
    if (glob(pattern, 0, NULL, &files))
        return;
    all->mistakes = calloc(files.gl_pathc, sizeof *all->mistakes);
    all->traces = calloc(files.gl_pathc, sizeof *all->traces);
    for (size_t i = 0; all->mistakes && all->traces && i < files.gl_pathc; i++) {
        mistake *m = &all->mistakes[all->n];
        if (mistake_read(files.gl_pathv[i], m, &f) || strcmp(m->step, step))
            continue;
        if (asprintf(&all->traces[all->n], "build/mistakes/%s/%s.trace", lab, m->name) > 0)
            all->n++;
    }
    globfree(&files);
}

void diagnose(const char *lab, const char *step, const job *got, mistake *found)
{
    candidates all;

    *found = (mistake){0};
    collect(lab, step, &all);
    if (all.n)
        run_make(all.traces, all.n);
    for (int i = 0; i < all.n && !found->name[0]; i++)
        if (matches(all.traces[i], step, got))
            *found = all.mistakes[i];
    for (int i = 0; i < all.n; i++)
        free(all.traces[i]);
    free(all.traces);
    free(all.mistakes);
}
