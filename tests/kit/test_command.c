/* The command line of a check: what it refuses, with exit status 2 and a sentence; and its help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"

#include <cmocka.h> /* last: it defines a macro fail */

#define CHECK "build/float/tests/kit/hostile"

/* Nothing on stdout, and a sentence on stderr that begins like this. */
static void is_refused(captured c, const char *sentence)
{
    assert_int_equal(c.status, 2);
    assert_string_equal(c.out, "");
    if (strncmp(c.err, sentence, strlen(sentence)))
        fail_msg("\"%s\" isn't how this begins: %s", sentence, c.err);
    captured_free(&c);
}

static void an_unknown_step_is_refused(void **state)
{
    is_refused(RUN(CHECK, "--step", "9z"), "lab0: there's no step 9z; its steps are 0a 0b\n");
    is_refused(RUN(CHECK, "--step", "0"), "lab0: there's no step 0; its steps are 0a 0b\n");
    is_refused(RUN(CHECK, "--run", "9z", "--trace", "/dev/null"), "lab0: there's no step 9z; its steps are 0a 0b\n");
}

static void an_unknown_format_is_refused(void **state)
{
    is_refused(RUN(CHECK, "--format", "xml"), "lab0: there's no format xml (--help says more)\n");
    is_refused(RUN(CHECK, "--format", "tap junit"), "lab0: there's no format tap junit (--help says more)\n");
    is_refused(RUN(CHECK, "--format", "ext"), "lab0: there's no format ext (--help says more)\n");
}

static void an_unknown_argument_is_refused(void **state)
{
    is_refused(RUN(CHECK, "0a"), "lab0: there's no such argument: 0a (--help says more)\n");
    is_refused(RUN(CHECK, "--fast"), "");
    is_refused(RUN(CHECK, "--step"), "");
    is_refused(RUN(CHECK, "--run", "0a"), "lab0: missing: --trace (--help says more)\n");
}

static void a_time_limit_that_is_none_is_refused(void **state)
{
    static const char *const limits[] = {"soon", "1x", "0", "-1", "nan", "inf", "1e30", ""};

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        is_refused(RUN(CHECK, "--time-limit", limits[i]), "lab0: a time limit is a number of seconds above 0");
}

static void a_refused_time_limit_is_quoted(void **state)
{
    captured c = RUN(CHECK, "--time-limit", "1x");

    assert_non_null(strstr(c.err, "not 1x (--help"));
    captured_free(&c);
}

static void help_is_printed_on_stdout_with_exit_status_0(void **state)
{
    captured c = RUN(CHECK, "--help");

    assert_int_equal(c.status, 0);
    assert_string_equal(c.err, "");
    assert_int_equal(strncmp(c.out, "usage: make lab0 ", 17), 0);
    captured_free(&c);
}

static void an_empty_step_or_format_is_the_usual_one(void **state)
{
    unsetenv("HOSTILE");
    captured c = RUN(CHECK, "--step", "", "--format", "");

    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "lab0: 2 of 2 steps pass\n"));
    captured_free(&c);
}

static void one_step_is_run_alone(void **state)
{
    captured c = RUN(CHECK, "--step", "0b", "--format", "tap");

    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, "TAP version 13\n1..1\nok 1 - 0b harmless\n");
    captured_free(&c);
}

static void a_mistakes_file_that_is_missing_is_said(void **state)
{
    static const char *const asked[] = {"--check-mistakes", "--print-known"};

    unsetenv("HOSTILE");
    for (int i = 0; i < 2; i++) {
        captured c = RUN(CHECK, asked[i], "build/no-such.patch");
        assert_int_equal(c.status, 2);
        assert_string_equal(c.out, "");
        assert_string_equal(c.err, "build/no-such.patch: No such file or directory\n");
        captured_free(&c);
    }
}

static void a_mistakes_file_without_a_step_is_said(void **state)
{
    captured c = RUN(CHECK, "--check-mistakes", "/dev/null");

    assert_int_equal(c.status, 2);
    assert_string_equal(c.out, "");
    assert_string_equal(c.err, "/dev/null: a mistake's file begins with the lines step:, says:, hint: and from:\n");
    captured_free(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_step_is_refused),
        cmocka_unit_test(an_unknown_format_is_refused),
        cmocka_unit_test(an_unknown_argument_is_refused),
        cmocka_unit_test(a_time_limit_that_is_none_is_refused),
        cmocka_unit_test(a_refused_time_limit_is_quoted),
        cmocka_unit_test(help_is_printed_on_stdout_with_exit_status_0),
        cmocka_unit_test(an_empty_step_or_format_is_the_usual_one),
        cmocka_unit_test(one_step_is_run_alone),
        cmocka_unit_test(a_mistakes_file_that_is_missing_is_said),
        cmocka_unit_test(a_mistakes_file_without_a_step_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
