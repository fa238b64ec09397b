/* The report for a person. */
#include "report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text.h"

enum { INDENT = 12, COLUMNS = 100 };

/* ---- sentences ---- */

static void say(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void say(char *text, size_t size, const char *format, ...)
{
    size_t n = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + n, size - n, format, arguments);
    va_end(arguments);
}

/* XML has no place for U+FFFE and U+FFFF either. */
static bool is_plain(int code)
{
    return code == '\n' || (code >= 32 && !(code >= 0x7f && code < 0xa0) && code != 0xfffe && code != 0xffff);
}

void make_plain(char *text)
{
    size_t n = strlen(text);
    char *to = text;

    for (size_t i = 0; i < n;) {
        int code, length = decode_character(text + i, n - i, &code);
        if (length > 0 && is_plain(code))
            to = (char *)memmove(to, text + i, length) + length;
        else
            *to++ = length > 0 && code == '\t' ? ' ' : '?';
        i += length > 0 ? length : 1;
    }
    *to = 0;
}

const char *verdict_name(verdict v)
{
    static const char *const names[] = {"pass", "fail", "waits", "unwritten"};

    return names[v];
}

void tally(const summary *s, char *text, size_t size)
{
    text[0] = 0;
    say(text, size, "%d of %d %s", s->n[PASSED], s->n_results, s->n_results == 1 ? "step passes" : "steps pass");
    if (s->n[FAILED])
        say(text, size, ", %d fail%s", s->n[FAILED], s->n[FAILED] == 1 ? "s" : "");
    if (s->n[WAITS])
        say(text, size, ", %d wait%s", s->n[WAITS], s->n[WAITS] == 1 ? "s" : "");
    if (s->n[UNWRITTEN])
        say(text, size, ", %d %s written yet", s->n[UNWRITTEN], s->n[UNWRITTEN] == 1 ? "isn't" : "aren't");
}

void explanation(const summary *s, const result *r, char *text, size_t size)
{
    const mistake *m = &r->mistake;

    text[0] = 0;
    if (r->sentence[0])
        say(text, size, "%s.\n", r->sentence);
    if (m->name[0])
        say(text, size, "%s\n%s%s\n", m->says, m->is_convention ? "" : "Hint: ", m->hint);
    if (r->verdict == FAILED)
        say(text, size, "Read step %s in LABS.md; `make %s STEP=%s` runs this step alone.\n", r->step->id, s->lab->name,
            r->step->id);
    make_plain(text);
}

/* What a passing step was compared in. */
static void evidence(const result *r, char *text, size_t size)
{
    const comparison *d = &r->compared[DOUBLE], *f = &r->compared[FLOAT];

    text[0] = 0;
    say(text, size, "%ld values", d->n_values);
    if (d->bound)
        say(text, size, ", |Δ| ≤ %.1e%s%s%s", d->largest, d->largest > 0 ? " (" : "", d->largest > 0 ? d->largest_at : "",
            d->largest > 0 ? ")" : "");
    if (d->n_rows)
        say(text, size, "; %ld of %ld top tokens", d->n_top, d->n_rows);
    if (d->n_counts)
        say(text, size, "; %ld counts equal", d->n_counts);
    if (f->bound)
        say(text, size, "; in float |Δ| ≤ %.2e, allowed %.2e%s", f->largest, f->bound,
            r->step->float_note ? r->step->float_note : "");
    say(text, size, ".\n");
}

/* ---- paragraphs ---- */

/* Columns that n bytes of UTF-8 take. */
static int width(const char *text, size_t n)
{
    int columns = 0;

    for (size_t i = 0; i < n; i++)
        columns += (text[i] & 0xc0) != 0x80;
    return columns;
}

/* Lines of text, broken between words and indented. */
static void print_lines(const char *text, FILE *to)
{
    for (int column = 0; *text;) {
        size_t n = strcspn(text, " \n");
        if (column && column + 1 + width(text, n) > COLUMNS) {
            fputc('\n', to);
            column = 0;
        }
        fprintf(to, "%*s%.*s", column ? 1 : INDENT, "", (int)n, text);
        column += width(text, n) + (column ? 1 : INDENT);
        text += n;
        if (*text == '\n') {
            fputc('\n', to);
            column = 0;
        }
        text += *text != 0;
    }
}

/* What the answer printed itself, line by line as it stands. */
static void print_output(const result *r, FILE *to)
{
    char printed[sizeof r->printed];

    if (!r->printed[0])
        return;
    snprintf(printed, sizeof printed, "%s", r->printed);
    make_plain(printed);
    fprintf(to, "%*sIt printed:\n", INDENT, "");
    for (const char *line = printed; *line;) {
        size_t n = strcspn(line, "\n");
        fprintf(to, "%*s| %.*s\n", INDENT, "", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

static void print_step(const summary *s, const result *r, bool colour, FILE *to)
{
    static const char *const words[] = {"pass ", "FAIL ", "waits", "to do"};
    static const char *const colours[] = {"\033[32m", "\033[1;31m", "\033[33m", "\033[36m"};
    char text[4096];

    fprintf(to, "  %s  %s%s%s  %s\n", r->step->id, colour ? colours[r->verdict] : "", words[r->verdict],
            colour ? "\033[0m" : "", r->step->title);
    if (r->verdict == PASSED)
        evidence(r, text, sizeof text);
    else
        explanation(s, r, text, sizeof text);
    print_lines(text, to);
    print_output(r, to);
    if (r->leak[0]) {
        snprintf(text, sizeof text, "Warning: %s.\n", r->leak);
        make_plain(text);
        print_lines(text, to);
    }
}

static bool wants_colour(FILE *to)
{
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");

    return isatty(fileno(to)) && (!no_color || !no_color[0]) && terminal && strcmp(terminal, "dumb");
}

void report_text(const summary *s, FILE *to)
{
    char text[1024];

    snprintf(text, sizeof text, "%s  %s  (%s)", s->lab->name, s->lab->title, s->answer);
    make_plain(text);
    fprintf(to, "%s\n\n", text);
    for (int i = 0; i < s->n_results; i++)
        print_step(s, &s->results[i], wants_colour(to), to);
    tally(s, text, sizeof text);
    fprintf(to, "\n%s: %s\n", s->lab->name, text);
}
