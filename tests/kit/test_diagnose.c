/* The files of known mistakes, and which mistake a trace is found to be: in a folder of its own, with mistakes made up
   and their traces recorded by hand. */
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

static void make_mistake(const char *name, const char *head, double value, outcome_kind kind, const char *what)
{
    char path[128];
    job j = job_with(value, kind, what);

    snprintf(path, sizeof path, "tests/mistakes/lab9/%s.patch", name);
    write_file(path, head);
    snprintf(path, sizeof path, "build/mistakes/lab9/%s.trace", name);
    assert_int_equal(mistake_record(&j, path), 0);
    trace_close(j.trace);
}

static void is_found(double value, outcome_kind kind, const char *what, const char *name)
{
    job j = job_with(value, kind, what);
    mistake m;

    diagnose("lab9", "9b", &j, true, &m);
    assert_string_equal(m.name, name);
    trace_close(j.trace);
}

static void the_mistake_of_the_same_numbers_is_found(void **state)
{
    job j = job_with(2 + 1e-12, ENDED, "");
    mistake m;

    diagnose("lab9", "9b", &j, true, &m);
    assert_string_equal(m.name, "two");
    assert_string_equal(m.says, "It adds.");
    trace_close(j.trace);
    is_found(1, ENDED, "", "one");
}

static void nothing_is_said_of_other_numbers(void **state)
{
    is_found(2 + 1e-8, ENDED, "", "");
    is_found(0, ENDED, "", "");
}

static void nothing_is_said_of_another_outcome(void **state)
{
    is_found(2, TIMED_OUT, "", "");
    is_found(2, CRASHED, "heap-buffer-overflow", "");
    is_found(3, CRASHED, "heap-buffer-overflow", "crash");
    is_found(3, CRASHED, "SEGV", "");
    is_found(3, ENDED, "", "");
}

static void nothing_is_said_of_another_step_or_lab(void **state)
{
    job j = job_with(2, ENDED, "");
    mistake m;

    diagnose("lab9", "9a", &j, true, &m);
    assert_string_equal(m.name, "");
    diagnose("lab8", "9b", &j, true, &m);
    assert_string_equal(m.name, "");
    trace_close(j.trace);
    is_found(4, ENDED, "", ""); /* the mistake of step 9a */
}

static void a_trace_that_makes_no_sense_is_no_match(void **state)
{
    is_found(5, ENDED, "", "");
}

static void an_unfinished_trace_is_no_match(void **state)
{
    is_found(7, ENDED, "", "");
}

static void a_trace_that_cannot_be_made_is_no_match_and_stays_missing(void **state)
{
    is_found(6, ENDED, "", "");
    assert_int_equal(access("build/mistakes/lab9/untraced.trace", F_OK), -1);
}

static void a_trace_is_no_larger_than_what_is_in_it(void **state)
{
    struct stat about;

    assert_int_equal(stat("build/mistakes/lab9/one.trace", &about), 0);
    assert_in_range(about.st_size, 500, 2000);
}

/* The third number of a trace's file says whether it's finished. */
static void unfinish(const char *path)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    fseek(file, 16, SEEK_SET);
    fwrite("\0\0\0\0\0\0\0", 1, 8, file);
    fclose(file);
}

/* The folder that the tests run in, with mistakes that only their traces tell apart. */
static int make_folder(void **state)
{
    static char folder[] = "/tmp/diagnose-XXXXXX";
    static const char *const folders[] = {"tests", "tests/mistakes", "tests/mistakes/lab9", "build", "build/mistakes",
                                          "build/mistakes/lab9"};

    if (!mkdtemp(folder) || chdir(folder))
        return -1;
    for (int i = 0; i < 6; i++)
        mkdir(folders[i], 0777);
    make_mistake("one", HEAD, 1, ENDED, "");
    make_mistake("two", HEAD, 2, ENDED, "");
    make_mistake("crash", HEAD, 3, CRASHED, "heap-buffer-overflow");
    make_mistake("step", "step: 9a\nsays: It adds.\nhint: Don't.\nfrom: X1\n", 4, ENDED, "");
    make_mistake("broken", HEAD, 5, ENDED, "");
    write_file("build/mistakes/lab9/broken.trace", "This is no trace, though it's longer than the header of one would have "
                                                   "to be: a hundred bytes and a half of that, or thereabouts, or more.");
    make_mistake("unfinished", HEAD, 7, ENDED, "");
    unfinish("build/mistakes/lab9/unfinished.trace");
    make_mistake("untraced", HEAD, 6, ENDED, "");
    unlink("build/mistakes/lab9/untraced.trace");
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
        cmocka_unit_test(a_trace_that_makes_no_sense_is_no_match),
        cmocka_unit_test(an_unfinished_trace_is_no_match),
        cmocka_unit_test(a_trace_that_cannot_be_made_is_no_match_and_stays_missing),
        cmocka_unit_test(a_trace_is_no_larger_than_what_is_in_it),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
