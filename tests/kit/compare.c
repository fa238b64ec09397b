/* Traces against each other, record by record. */
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

/* ---- saying where ---- */

/* Appends to a string of `size` bytes, cutting what doesn't fit. */
static void append_text(char *to, size_t size, const char *text)
{
    size_t n = strlen(to);

    snprintf(to + n, size - n, "%s", text);
}

/* " at position 9, token 12" for element i of a record. */
static void name_element(const record *r, size_t i, char *place, size_t size)
{
    char part[48];
    size_t below = r->n;

    place[0] = 0;
    for (uint32_t a = 0; a < r->n_axes; a++) {
        const axis *x = &r->axes[a];
        below /= x->n;
        snprintf(part, sizeof part, "%s%s %zu", a ? ", " : " at ", x->name, x->first + i / below % x->n);
        append_text(place, size, part);
    }
}

static void name_record(const record *r, char *text, size_t size)
{
    snprintf(text, size, "%s%s%s", r->where, r->where[0] ? ": " : "", r->name);
}

/* ---- numbers ---- */

static double largest_value(const record *r)
{
    double most = 0;

    for (size_t i = 0; r->kind != TEXT && i < r->n; i++)
        if (isfinite(record_number(r, i)))
            most = fmax(most, fabs(record_number(r, i)));
    return most;
}

/* The distance of two numbers: 0 where both are the same infinity, INFINITY where only one is finite. */
static double distance(double a, double b)
{
    if (a == b)
        return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
}

static void say_difference(const record *expected, const record *got, size_t i, comparison *c)
{
    double right = record_number(expected, i), is = record_number(got, i);
    char place[160], name[200];

    name_record(expected, name, sizeof name);
    name_element(expected, i, place, sizeof place);
    snprintf(c->sentence, sizeof c->sentence, "%s%s: %.10g, but %.10g is right", name, place, is, right);
    if (expected->kind != COUNTS)
        return;
    append_text(c->sentence, sizeof c->sentence,
                is < right ? "; part of the work isn't done, or is done without the counted primitive"
                           : strstr(expected->name, "score") ? "; scores that causality hides are computed too, or some twice"
                                                             : "; some tokens are projected more than once");
}

static void compare_reals(const record *expected, const record *got, double bound, comparison *c)
{
    for (size_t i = 0; i < expected->n; i++) {
        double d = distance(record_number(expected, i), record_number(got, i));
        if (d > bound && !c->sentence[0])
            say_difference(expected, got, i, c);
        if (d > c->largest || !c->bound) {
            char place[160];
            name_element(expected, i, place, sizeof place);
            snprintf(c->largest_at, sizeof c->largest_at, "%s%s", expected->where, place);
            c->largest = d;
            c->bound = bound;
        }
    }
    c->n_values += expected->n;
}

static void compare_integers(const record *expected, const record *got, comparison *c)
{
    for (size_t i = 0; i < expected->n && !c->sentence[0]; i++)
        if (record_number(expected, i) != record_number(got, i))
            say_difference(expected, got, i, c);
    if (expected->kind == COUNTS)
        c->n_counts += expected->n;
    else
        c->n_values += expected->n;
}

/* ---- logits: the top token of each row ---- */

/* The place of the row's largest number among n from `start` on, other than `except`. */
static size_t top(const record *r, size_t start, size_t n, size_t except)
{
    size_t best = except == start ? start + 1 : start;

    for (size_t i = start; i < start + n; i++)
        if (i != except && record_number(r, i) > record_number(r, best))
            best = i;
    return best;
}

/* A row whose two largest logits are nearer to each other than rounding may move them can have either on top. So where
   all numbers are within the bound, all tops are right: they're counted for the reader's sake. */
static void compare_tops(const record *expected, const record *got, double bound, comparison *c)
{
    size_t n = expected->axes[expected->n_axes - 1].n;

    for (size_t row = 0; n > 1 && row + n <= expected->n; row += n) {
        size_t best = top(expected, row, n, SIZE_MAX), second = top(expected, row, n, best);
        double margin = record_number(expected, best) - record_number(expected, second);
        c->n_rows++;
        if (top(got, row, n, SIZE_MAX) == best || margin <= 2 * bound)
            c->n_top++;
    }
}

/* ---- text ---- */

/* How many bytes are the same at the beginning. */
static size_t common_bytes(const record *a, const record *b)
{
    size_t n = 0;

    while (n < a->n && n < b->n && record_bytes(a)[n] == record_bytes(b)[n])
        n++;
    return n;
}

static void compare_text(const record *expected, const record *got, comparison *c)
{
    size_t same = common_bytes(expected, got), from = same;
    char name[200];

    c->n_values++;
    if ((same == expected->n && same == got->n) || c->sentence[0])
        return;
    /* Of a long text, what comes shortly before the difference, from where a character begins. */
    for (from = same > 40 ? same - 20 : 0; from < same && (record_bytes(got)[from] & 0xc0) == 0x80; from++)
        continue;
    name_record(expected, name, sizeof name);
    const char *cut = from ? "…" : "";
    snprintf(c->sentence, sizeof c->sentence, "%s: \"%s%s\", but \"%s%s\" is right", name, cut,
             quote(record_bytes(got) + from, got->n - from).text, cut,
             quote(record_bytes(expected) + from, expected->n - from).text);
}

/* ---- a whole step ---- */

static bool same_quantity(const record *a, const record *b)
{
    return a->kind == b->kind && strcmp(a->name, b->name) == 0 && strcmp(a->where, b->where) == 0;
}

/* Both of the same kind and size, so that they can be compared element by element. */
static bool comparable(const record *a, const record *b)
{
    return same_quantity(a, b) && (a->n == b->n || a->kind == TEXT) && memcmp(a->axes, b->axes, sizeof a->axes) == 0;
}

/* Where the traces part: e is to come, g came; either may be NULL. */
static void say_misfit(const record *e, const record *g, comparison *c)
{
    char name[200];

    name_record(e ? e : g, name, sizeof name);
    if (e && g && same_quantity(e, g) && e->n != g->n)
        snprintf(c->sentence, sizeof c->sentence, "%s: %llu values, but %llu are right", name, (unsigned long long)g->n,
                 (unsigned long long)e->n);
    else
        snprintf(c->sentence, sizeof c->sentence, "%s: %s", name,
                 e ? "the answer didn't come to this" : "the answer produced this, which it shouldn't have come to");
}

static void compare_record(const record *expected, const record *got, tolerance allowed, comparison *c)
{
    double bound = allowed.absolute + allowed.relative * fmax(1, largest_value(expected));

    c->n_arrays++;
    if (expected->kind == TEXT)
        compare_text(expected, got, c);
    else if (expected->kind == INTS || expected->kind == COUNTS)
        compare_integers(expected, got, c);
    else
        compare_reals(expected, got, bound, c);
    if (expected->kind == LOGITS)
        compare_tops(expected, got, bound, c);
}

void compare_step(const trace *expected, const trace *got, const char *step, tolerance allowed, comparison *c)
{
    const record *e = trace_next(expected, step, NULL), *g = trace_next(got, step, NULL);

    *c = (comparison){0};
    for (; e && g && comparable(e, g); e = trace_next(expected, step, e), g = trace_next(got, step, g))
        compare_record(e, g, allowed, c);
    if ((e || g) && !c->sentence[0])
        say_misfit(e, g, c);
    if (c->n_arrays == 0 && !c->sentence[0])
        snprintf(c->sentence, sizeof c->sentence, "nothing was compared");
    c->right = !c->sentence[0];
}
