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
#include "text.h"

/* ---- the file of a mistake: "field: text" lines, an empty line, a patch on the reference answer ---- */

/* Takes the line's text if it's this field's; false if that doesn't fit. */
static bool read_field(const char *line, const char *field, char *text, size_t size)
{
    size_t n = strlen(field);

    if (strncmp(line, field, n) || strncmp(line + n, ": ", 2))
        return true;
    int length = strcspn(line + n + 2, "\n");
    return snprintf(text, size, "%.*s", length, line + n + 2) < (int)size;
}

static bool read_line(const char *line, mistake *m)
{
    char kind[16] = "";
    bool fits = read_field(line, "step", m->step, sizeof m->step) && read_field(line, "says", m->says, sizeof m->says) &&
                read_field(line, "hint", m->hint, sizeof m->hint) && read_field(line, "from", m->from, sizeof m->from) &&
                read_field(line, "kind", kind, sizeof kind);

    m->is_convention |= strcmp(kind, "convention") == 0;
    return fits;
}

/* "positions-restart" for tests/mistakes/lab3/positions-restart.patch. */
static void name_mistake(const char *path, mistake *m)
{
    const char *name = basename(path), *end = strstr(name, ".patch");

    snprintf(m->name, sizeof m->name, "%.*s", (int)(end ? (size_t)(end - name) : strlen(name)), name);
}

int mistake_read(const char *path, mistake *m, failure *f)
{
    char line[1024];
    bool fits = true;
    FILE *file = fopen(path, "r");

    *m = (mistake){0};
    if (!file)
        return fail(f, "%s: %s", path, strerror(errno));
    name_mistake(path, m);
    while (fits && fgets(line, sizeof line, file) && line[0] != '\n')
        fits = strchr(line, '\n') && read_line(line, m);
    fclose(file);
    if (!fits)
        return fail(f, "%s: this line is too long: %s", path, quote(line, strlen(line)).text);
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

int mistake_record(job *j, const char *path)
{
    char text[160];

    describe(&j->outcome, text, sizeof text);
    trace_trim(j->trace);
    trace_step(j->trace, "outcome");
    trace_text(j->trace, text, strlen(text), "outcome");
    trace_finish(j->trace);
    return trace_save(j->trace, path);
}

static bool same_outcome(const trace *known, const job *got)
{
    const record *r = trace_next(known, "outcome", NULL);
    char text[160];

    describe(&got->outcome, text, sizeof text);
    return r && r->kind == TEXT && r->n == strlen(text) && memcmp(record_bytes(r), text, r->n) == 0;
}

int mistake_recall(const char *path, const char *step, job *j)
{
    int kind;

    *j = (job){.step = step, .trace = trace_read(path)};
    const record *r = j->trace ? trace_next(j->trace, "outcome", NULL) : NULL;
    if (!r || r->kind != TEXT || r->n >= 160)
        return sandbox_free(j), -1;
    char text[160] = "";
    memcpy(text, record_bytes(r), r->n);
    if (sscanf(text, "%d %d %127[^\n]", &kind, &j->outcome.status, j->outcome.what) < 2)
        return sandbox_free(j), -1;
    j->outcome.kind = kind;
    return 0;
}

static bool matches(const char *path, const char *step, const job *got)
{
    trace *known = trace_read(path);
    bool same = known && trace_is_finished(known) && same_outcome(known, got) && same_trace(known, got->trace, step);

    trace_close(known);
    return same;
}

/* ---- having the traces made ---- */

/* Runs make for the traces of a step's mistakes; it does nothing if they are up to date. A mistake that can't be built
   only means that it can't be named: `make mistakes` is where that is an error. */
static void run_make(const char *lab, const char *step)
{
    char target[64];

    snprintf(target, sizeof target, "build/mistakes/%s/%s.traces", lab, step);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("MAKEFLAGS"); /* what the student asked of make isn't meant for this one */
        unsetenv("MAKEOVERRIDES");
        unsetenv("MFLAGS");
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(127);
        execlp("make", "make", "--silent", "--no-print-directory", target, (char *)NULL);
        _exit(127);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
}

static bool is_it(const char *lab, const mistake *m, const char *step, const job *got)
{
    char path[160];

    snprintf(path, sizeof path, "build/mistakes/%s/%s.trace", lab, m->name);
    return strcmp(m->step, step) == 0 && matches(path, step, got);
}

void diagnose(const char *lab, const char *step, const job *got, bool may_build, mistake *found)
{
    char pattern[64];
    glob_t files;
    failure f;

    *found = (mistake){0};
    if (may_build)
        run_make(lab, step);
    snprintf(pattern, sizeof pattern, "tests/mistakes/%s/*.patch", lab);
    if (glob(pattern, 0, NULL, &files))
        return;
    for (size_t i = 0; i < files.gl_pathc && !found->name[0]; i++) {
        mistake m;
        if (mistake_read(files.gl_pathv[i], &m, &f) == 0 && is_it(lab, &m, step, got))
            *found = m;
    }
    globfree(&files);
}
