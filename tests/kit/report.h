/* Writes a check's results: for a person (report.c), or for a program (formats.c). */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "result.h"

/* One paragraph a step, and the tally as the last line. In colour on a terminal, unless NO_COLOR is set. */
void report_text(const summary *s, FILE *to);

void report_tap(const summary *s, FILE *to);   /* Test Anything Protocol, version 13 */
void report_junit(const summary *s, FILE *to); /* JUnit's XML, with the failures' text */
void report_json(const summary *s, FILE *to);
void report_rows(const summary *s, FILE *to);  /* lab, step, verdict, points, title: a line each, between tabs */

/* "3 of 5 steps pass, 1 fails, 1 waits". */
void tally(const summary *s, char *text, size_t size);

/* All there is to say about a step that didn't pass, sentence by sentence, each ended by a newline. */
void explanation(const summary *s, const result *r, char *text, size_t size);

/* Makes control characters, but newlines, and what isn't UTF-8 into '?', so that a terminal or a program can read it. */
void make_plain(char *text);

/* "pass", "fail", "waits" or "unwritten". */
const char *verdict_name(verdict v);

#endif
