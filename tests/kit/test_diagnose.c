/* The files of known mistakes, and which mistake a trace is found to be: in a folder of its own, with mistakes made up
   and their fingerprints taken of traces made by hand. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "diagnose.h"
#include "fingerprint.h"

#include <cmocka.h> /* last: it defines a macro fail */

#define HEAD "step: 9b\nsays: It adds.\nhint: Don't.\nfrom: X1\n"

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* ---- reading ---- */

static void is_read(const char *text, mistake *m)
{
    failure f = {""};

    write_file("top-p-0.9.patch", text);
    if (mistake_read("./top-p-0.9.patch", m, &f))
        fail_msg("%s", f.sentence);
}

static void is_rejected(const char *text, const char *sentence)
{
    mistake m;
    failure f = {""};

    write_file("bad.patch", text);
    assert_int_equal(mistake_read("bad.patch", &m, &f), -1);
    if (!strstr(f.sentence, sentence))
        fail_msg("\"%s\" isn't in \"%s\"", sentence, f.sentence);
}

static void a_mistake_is_read(void **state)
{
    mistake m;

    is_read(HEAD "\n--- a/x.c\n+++ b/x.c\nsays: this is part of the patch\n", &m);
    assert_string_equal(m.name, "top-p-0.9");
    assert_string_equal(m.step, "9b");
    assert_string_equal(m.says, "It adds.");
    assert_string_equal(m.hint, "Don't.");
    assert_string_equal(m.from, "X1");
    assert_false(m.is_convention);
}

static void a_convention_is_read(void **state)
{
    mistake m;

    is_read("kind: convention\n" HEAD, &m);
    assert_true(m.is_convention);
    is_read("kind: mistake\n" HEAD, &m);
    assert_false(m.is_convention);
}

static void a_file_without_a_field_is_rejected(void **state)
{
    static const char missing[] = "bad.patch: a mistake's file begins with the lines step:, says:, hint: and from:";

    is_rejected("", missing);
    is_rejected("says: It adds.\nhint: Don't.\nfrom: X1\n", missing);
    is_rejected("step: 9b\nhint: Don't.\nfrom: X1\n", missing);
    is_rejected("step: 9b\nsays: It adds.\nfrom: X1\n", missing);
    is_rejected("step: 9b\nsays: It adds.\nhint: Don't.\n", missing);
    is_rejected("\n" HEAD, missing);
    is_rejected("step:9b\nsays: It adds.\nhint: Don't.\nfrom: X1\n", missing);
}

static void a_field_that_does_not_fit_is_rejected(void **state)
{
    char text[3000];

    for (int n = 700; n <= 2000; n += 1300) {
        snprintf(text, sizeof text, "step: 9b\nhint: Don't.\nfrom: X1\nsays: %0*d\n", n, 1);
        is_rejected(text, "bad.patch: this line is too long: says: 000");
    }
    is_rejected("step: 9bcdefgh\n" HEAD, "bad.patch: this line is too long: step: 9bcdefgh");
}

static void a_missing_file_is_rejected(void **state)
{
    mistake m;
    failure f;

    assert_int_equal(mistake_read("no-such.patch", &m, &f), -1);
    assert_string_equal(f.sentence, "no-such.patch: No such file or directory");
}

/* ---- finding ---- */

/* A finished job whose step recorded one number. */
static job job_with(double value, outcome_kind kind, const char *what)
{
    int fd = memfd_create("trace", 0);
    job j = {.trace = trace_open_fd(fd), .outcome = {.kind = kind}};

    close(fd);
    assert_non_null(j.trace);
    snprintf(j.outcome.what, sizeof j.outcome.what, "%s", what);
    trace_step(j.trace, "9b");
    trace_reals(j.trace, &value, AXES({"place", 0, 1}), "sum");
    return j;
}

static void is_found(double value, outcome_kind kind, const char *what, const char *name)
{
    job j = job_with(value, kind, what);
    mistake m;

    diagnose("lab9", "9b", &j, &m);
    assert_string_equal(m.name, name);
    trace_close(j.trace);
}

static void the_mistake_of_the_same_numbers_is_found(void **state)
{
    job j = job_with(2 + 1e-12, ENDED, "");
    mistake m;

    diagnose("lab9", "9b", &j, &m);
    assert_string_equal(m.name, "two");
    assert_string_equal(m.says, "It adds.");
    trace_close(j.trace);
    is_found(1, ENDED, "", "one");
}

static void nothing_is_said_of_other_numbers(void **state)
{
    is_found(2 + 1e-6, ENDED, "", "");
    is_found(0, ENDED, "", "");
}

static void nothing_is_said_of_another_outcome(void **state)
{
    is_found(2, TIMED_OUT, "", "");
    is_found(2, CRASHED, "heap-buffer-overflow", "");
    is_found(3, CRASHED, "heap-buffer-overflow", "crash");
    is_found(3, CRASHED, "SEGV", "");
    is_found(3, ENDED, "", "");
    is_found(3, MISSING, "heap-buffer-overflow", "");
}

static void nothing_is_said_of_another_step_or_lab(void **state)
{
    job j = job_with(2, ENDED, "");
    mistake m;

    diagnose("lab9", "9a", &j, &m);
    assert_string_equal(m.name, "");
    diagnose("lab8", "9b", &j, &m); /* it has no file */
    assert_string_equal(m.name, "");
    trace_close(j.trace);
    is_found(4, ENDED, "", ""); /* the mistake of step 9a */
}

static void a_step_that_recorded_nothing_is_no_match(void **state)
{
    job j = job_with(1, ENDED, "");
    mistake m;

    diagnose("lab9", "9c", &j, &m);
    assert_string_equal(m.name, "");
    trace_close(j.trace);
}

static void a_mistake_without_its_file_is_no_match(void **state)
{
    job j = job_with(5, ENDED, "");
    mistake m;

    diagnose("lab9", "9b", &j, &m);
    assert_string_equal(m.name, "");
    assert_string_equal(m.says, "");
    trace_close(j.trace);
}

static void a_broken_file_of_a_mistake_is_no_match(void **state)
{
    is_found(6, ENDED, "", "");
}

static void the_first_of_two_that_match_is_found(void **state)
{
    is_found(7, ENDED, "", "seven");
}

static void a_line_that_makes_no_sense_hides_no_other(void **state)
{
    is_found(8, ENDED, "", "behind");
}

/* ---- the folder that the tests run in ---- */

/* Adds the mistake's line to lab9.known; `mark` goes where its fingerprint begins. */
static void keep_line(const char *step, const char *name, const char *mark, job j)
{
    FILE *known = fopen("tests/mistakes/lab9.known", "a");
    fingerprint f;

    assert_non_null(known);
    fingerprint_of(&j, "9b", &f);
    fprintf(known, "%s\t%s\t%s", step, name, mark);
    fingerprint_print(&f, known);
    fprintf(known, "\n");
    fclose(known);
    trace_close(j.trace);
}

static void make_file(const char *name, const char *head)
{
    char path[128];

    snprintf(path, sizeof path, "tests/mistakes/lab9/%s.patch", name);
    write_file(path, head);
}

static void make_mistake(const char *name, const char *head, job j)
{
    make_file(name, head);
    keep_line("9b", name, "", j);
}

/* An empty line, one without tabs, with one, with nothing between them, one that begins with a zero byte, one that's too
   long, and one whose fingerprint isn't. */
static void keep_nonsense(void)
{
    FILE *known = fopen("tests/mistakes/lab9.known", "a");

    assert_non_null(known);
    fprintf(known, "\n9b\n9b\tone\n\t\t\t\n%c9b\tone\t1\n9b\tone\t%01500d\n9b\tone\tno fingerprint\n", 0, 1);
    fclose(known);
    keep_line("9b", "one", "garbled ", job_with(8, ENDED, ""));
}

/* Mistakes that only their fingerprints tell apart. */
static int make_folder(void **state)
{
    static char folder[] = "/tmp/diagnose-XXXXXX";
    static const char *const folders[] = {"tests", "tests/mistakes", "tests/mistakes/lab9"};

    if (!mkdtemp(folder) || chdir(folder))
        return -1;
    for (int i = 0; i < 3; i++)
        mkdir(folders[i], 0777);
    make_mistake("one", HEAD, job_with(1, ENDED, ""));
    make_mistake("two", HEAD, job_with(2, ENDED, ""));
    make_mistake("crash", HEAD, job_with(3, CRASHED, "heap-buffer-overflow"));
    make_file("step", "step: 9a\nsays: It adds.\nhint: Don't.\nfrom: X1\n");
    keep_line("9a", "step", "", job_with(4, ENDED, ""));
    keep_line("9b", "removed", "", job_with(5, ENDED, ""));
    make_mistake("headless", "", job_with(6, ENDED, ""));
    make_mistake("seven", HEAD, job_with(7, ENDED, ""));
    make_mistake("seven-too", HEAD, job_with(7, ENDED, ""));
    keep_nonsense();
    make_mistake("behind", HEAD, job_with(8, ENDED, ""));
    *state = folder;
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r %s", (char *)*state);
    return chdir("/") || system(command);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mistake_is_read),
        cmocka_unit_test(a_convention_is_read),
        cmocka_unit_test(a_file_without_a_field_is_rejected),
        cmocka_unit_test(a_field_that_does_not_fit_is_rejected),
        cmocka_unit_test(a_missing_file_is_rejected),
        cmocka_unit_test(the_mistake_of_the_same_numbers_is_found),
        cmocka_unit_test(nothing_is_said_of_other_numbers),
        cmocka_unit_test(nothing_is_said_of_another_outcome),
        cmocka_unit_test(nothing_is_said_of_another_step_or_lab),
        cmocka_unit_test(a_step_that_recorded_nothing_is_no_match),
        cmocka_unit_test(a_mistake_without_its_file_is_no_match),
        cmocka_unit_test(a_broken_file_of_a_mistake_is_no_match),
        cmocka_unit_test(the_first_of_two_that_match_is_found),
        cmocka_unit_test(a_line_that_makes_no_sense_hides_no_other),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
