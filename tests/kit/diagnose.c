/* Known mistakes: reading their files, and finding the one that matches. */
#define _GNU_SOURCE
#include "diagnose.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fingerprint.h"
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

/* ---- finding ---- */

/* Whether the line is the mistake's that the step's fingerprint shows; puts its name there. */
static bool is_it(char *line, const char *step, const fingerprint *got, char *name, size_t size)
{
    char *at_step = strtok(line, "\t"), *at_name = strtok(NULL, "\t"), *at_print = strtok(NULL, "\n");
    fingerprint known;

    if (!at_print || strcmp(at_step, step) || fingerprint_parse(at_print, &known) || !same_fingerprint(&known, got))
        return false;
    snprintf(name, size, "%s", at_name);
    return true;
}

void diagnose(const char *lab, const char *step, const job *got, mistake *found)
{
    char line[512], path[160], name[64] = "";
    fingerprint print;
    failure f;

    *found = (mistake){0};
    snprintf(path, sizeof path, "tests/mistakes/%s.known", lab);
    FILE *known = fopen(path, "r");
    if (!known)
        return;
    fingerprint_of(got, step, &print);
    while (!name[0] && fgets(line, sizeof line, known))
        is_it(line, step, &print, name, sizeof name);
    fclose(known);
    snprintf(path, sizeof path, "tests/mistakes/%s/%s.patch", lab, name);
    if (name[0] && mistake_read(path, found, &f))
        *found = (mistake){0}; /* a mistake that was removed since: `make known` forgets it */
}
