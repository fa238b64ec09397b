/* The known mistakes of a lab, run as answers. Two run at a time, as many as the smallest machine has cores. */
#define _GNU_SOURCE
#include "mistakes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose.h"
#include "fingerprint.h"

enum { AT_A_TIME = 2, SECONDS = 5 };

/* A mistake, and where make puts it. */
typedef struct {
    mistake m;
    char source[160], library[160];
} built;

static int find_built(const lab *l, const char *file, built *b)
{
    failure f;

    if (mistake_read(file, &b->m, &f)) {
        fprintf(stderr, "%s\n", f.sentence);
        return -1;
    }
    snprintf(b->source, sizeof b->source, "build/mistakes/%s/%s.c", l->name, b->m.name);
    snprintf(b->library, sizeof b->library, "build/double/build/mistakes/%s/%s", l->name, b->m.name);
    return 0;
}

static void start(job *j, const built *b, const char *step)
{
    *j = (job){.executable = "/proc/self/exe", .mode = "--run", .step = step, .answer = b->source, .library = b->library,
               .ignores_leaks = true, .seconds = SECONDS};
    sandbox_start(j);
}

/* ---- keeping fingerprints ---- */

static int print_some(const lab *l, char **files, int n)
{
    built all[AT_A_TIME];
    job jobs[AT_A_TIME];
    fingerprint f;
    int status = 0;

    for (int i = 0; i < n; i++)
        if (find_built(l, files[i], &all[i]))
            return -1;
    for (int i = 0; i < n; i++)
        start(&jobs[i], &all[i], all[i].m.step);
    sandbox_finish(jobs, n);
    for (int i = 0; i < n; i++) {
        fingerprint_of(&jobs[i], all[i].m.step, &f);
        printf("%s\t%s\t", all[i].m.step, all[i].m.name);
        fingerprint_print(&f, stdout);
        printf("\n");
        status |= jobs[i].outcome.kind == NOT_STARTED ? -1 : 0;
        sandbox_free(&jobs[i]);
    }
    return status;
}

int print_known(const lab *l, char **files, int n)
{
    int status = 0;

    for (int i = 0; i < n; i += AT_A_TIME)
        status |= print_some(l, files + i, n - i < AT_A_TIME ? n - i : AT_A_TIME);
    return status ? 2 : 0;
}

/* ---- catching and naming ---- */

static bool passes(const job *j, const trace *expected, tolerance allowed)
{
    comparison c;

    if (j->outcome.kind != ENDED)
        return false;
    compare_step(expected, j->trace, j->step, allowed, &c);
    return c.right;
}

/* Runs the steps up to the mistake's own; the first that fails is diagnosed. Returns it, NULL, or "" if nothing
   could be run. */
static const char *catch(const lab *l, const built *b, const trace *expected, tolerance allowed, mistake *found)
{
    job jobs[l->n_steps];
    int n = 0, first;

    do
        start(&jobs[n], b, l->steps[n].id);
    while (strcmp(l->steps[n++].id, b->m.step) && n < l->n_steps);
    sandbox_finish(jobs, n);
    bool started = jobs[0].outcome.kind != NOT_STARTED;
    for (first = 0; first < n && passes(&jobs[first], expected, allowed); first++)
        continue;
    if (first < n)
        diagnose(l->name, l->steps[first].id, &jobs[first], found);
    for (int i = 0; i < n; i++)
        sandbox_free(&jobs[i]);
    return !started ? "" : first < n ? l->steps[first].id : NULL;
}

static int check_one(const lab *l, const trace *expected, tolerance allowed, const char *file)
{
    built b;
    mistake found = {0};

    if (find_built(l, file, &b))
        return -1;
    const char *caught = catch(l, &b, expected, allowed, &found);
    if (caught && strcmp(caught, "") == 0) {
        fprintf(stderr, "%s: it can't be run: is it compiled?\n", file);
        return -1;
    }
    printf("%s\t%s\t%s\t%s\t%s\t%s\n", l->name, b.m.step, b.m.name, caught ? caught : "not caught",
           strcmp(found.name, b.m.name) == 0 ? "named" : found.name[0] ? found.name : "not named", b.m.from);
    return 0;
}

int check_mistakes(const lab *l, const trace *expected, tolerance allowed, char **files, int n)
{
    for (int i = 0; i < n; i++)
        if (check_one(l, expected, allowed, files[i]))
            return 2;
    return 0;
}
