/* The same results for programs: TAP, JUnit's XML, JSON and rows. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "report.h"

/* ---- TAP ---- */

void report_tap(const summary *s, FILE *to)
{
    char text[4096];

    fprintf(to, "TAP version 13\n1..%d\n", s->n_results);
    for (int i = 0; i < s->n_results; i++) {
        const result *r = &s->results[i];
        fprintf(to, "%sok %d - %s %s\n", r->verdict == PASSED ? "" : "not ", i + 1, r->step->id, r->step->title);
        if (r->verdict == PASSED)
            continue;
        explanation(s, r, text, sizeof text);
        fprintf(to, "  ---\n  verdict: %s\n  message: |\n", verdict_name(r->verdict));
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            fprintf(to, "    %s\n", line);
        fprintf(to, "  ...\n");
    }
}

/* ---- JUnit ---- */

/* XML forbids control characters even as entities. */
static void print_escaped(const char *text, FILE *to)
{
    char plain[4096], *at = plain;

    snprintf(plain, sizeof plain, "%s", text);
    make_plain(plain);
    for (; *at; at++)
        switch (*at) {
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '&': fputs("&amp;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc(*at, to);
        }
}

static void print_case(const summary *s, const result *r, FILE *to)
{
    char text[4096];

    fprintf(to, "  <testcase classname=\"%s\" name=\"%s ", s->lab->name, r->step->id);
    print_escaped(r->step->title, to);
    if (r->verdict == PASSED) {
        fprintf(to, "\"/>\n");
        return;
    }
    fprintf(to, "\">\n    <%s message=\"", r->verdict == FAILED ? "failure" : "skipped");
    print_escaped(r->sentence, to);
    fprintf(to, "\">");
    explanation(s, r, text, sizeof text);
    print_escaped(text, to);
    fprintf(to, "</%s>\n  </testcase>\n", r->verdict == FAILED ? "failure" : "skipped");
}

void report_junit(const summary *s, FILE *to)
{
    fprintf(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    fprintf(to, "<testsuite name=\"%s\" tests=\"%d\" failures=\"%d\" skipped=\"%d\">\n", s->lab->name, s->n_results,
            s->n[FAILED], s->n[WAITS] + s->n[UNWRITTEN]);
    for (int i = 0; i < s->n_results; i++)
        print_case(s, &s->results[i], to);
    fprintf(to, "</testsuite>\n");
}

/* ---- JSON ---- */

/* A string that JSON takes, whatever its bytes are. */
static json_t *text_json(const char *text)
{
    char plain[4096];

    snprintf(plain, sizeof plain, "%s", text);
    make_plain(plain);
    return json_string(plain);
}

static json_t *comparison_json(const comparison *c)
{
    json_t *o = json_pack("{s:i, s:i, s:i, s:i, s:i}", "arrays", (int)c->n_arrays, "values", (int)c->n_values, "counts",
                          (int)c->n_counts, "rows", (int)c->n_rows, "top_tokens", (int)c->n_top);

    if (c->bound && isfinite(c->largest)) {
        json_object_set_new(o, "largest_difference", json_real(c->largest));
        json_object_set_new(o, "allowed", json_real(c->bound));
        json_object_set_new(o, "at", text_json(c->largest_at));
    }
    return o;
}

static json_t *mistake_json(const mistake *m)
{
    if (!m->name[0])
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:b}", "name", text_json(m->name), "says", text_json(m->says), "hint",
                     text_json(m->hint), "from", text_json(m->from), "is_convention", m->is_convention);
}

static json_t *result_json(const result *r)
{
    return json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "step", r->step->id, "title",
                     text_json(r->step->title), "verdict", verdict_name(r->verdict), "sentence", text_json(r->sentence),
                     "mistake", mistake_json(&r->mistake), "double", comparison_json(&r->compared[DOUBLE]), "float",
                     comparison_json(&r->compared[FLOAT]), "leak", text_json(r->leak), "printed", text_json(r->printed));
}

void report_json(const summary *s, FILE *to)
{
    json_t *steps = json_array();

    for (int i = 0; i < s->n_results; i++)
        json_array_append_new(steps, result_json(&s->results[i]));
    json_t *all = json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:o}", "lab", s->lab->name, "answer",
                            text_json(s->answer), "exit_status", s->n[PASSED] == s->n_results ? 0 : 1, "passed",
                            s->n[PASSED], "failed", s->n[FAILED], "waiting", s->n[WAITS], "unwritten", s->n[UNWRITTEN],
                            "steps", steps);
    json_dumpf(all, to, JSON_INDENT(2));
    fputc('\n', to);
    json_decref(all);
}

/* ---- rows ---- */

void report_rows(const summary *s, FILE *to)
{
    for (int i = 0; i < s->n_results; i++) {
        const result *r = &s->results[i];
        fprintf(to, "%s\t%s\t%s\t%d\t%s\n", s->lab->name, r->step->id, verdict_name(r->verdict), r->step->points,
                r->step->title);
    }
}
