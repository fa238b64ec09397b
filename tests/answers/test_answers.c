/* `make answers` on files of every kind: what it says, and its exit status. What is right is typed in here, worked out
   by hand; the program works it out by itself. Runs the program built around the reference answers. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char program[] = "build/answers-reference";

static const struct {
    const char *name, *right, *near, *wrong; /* right; right within the tolerance ("" if exact); just not right */
} exercises[] = {
    {"projections_uncached", "300", "", "301"},
    {"scores_uncached", "364", "364.0", "78"},
    {"projections_uncached_prompt_8", "468", "", "469"},
    {"ids_appended", "3", "", "2"},
    {"bytes_shown", "4", "", "6"},
    {"top_p_kept", "3", "", "4"},
    {"top_p_first", "0.5556", "0.5549", "0.5"},
    {"penalised_positive", "1.6", "1.6009", "1.602"},
    {"penalised_negative", "-2.5", "-2.4995", "2.5"},
    {"temperature_half", "0.8808", "0.8815", "0.7311"},
    {"drawn_id", "2", "", "1"},
    {"projections_cached", "24", "2.4e1", "25"},
    {"scores_cached", "78", "", "77"},
    {"projections_cached_prompt_8", "31", "", "32"},
    {"projections_ratio", "15.1", "15.06", "15.2"},
    {"scores_last_chunk", "95", "", "15"},
    {"next_position", "50", "", "51"},
    {"rope_angle", "0.5", "0.4991", "0.005"},
    {"sinusoid", "0.02999", "0.03", "0.0003"},
    {"beam_candidates", "264", "", "66"},
    {"beam_score", "-1.7321", "-1.7325", "-1"},
    {"beam_bound", "-0.2222", "-0.2230", "-0.4"},
    {"cache_gib", "2", "2.0", "1"},
    {"cache_mib_grouped", "512", "", "2048"},
    {"decode_intensity", "1", "0.995", "2"},
    {"decode_speed", "7.57", "7.6", "7.5"},
    {"tokens_as_heavy", "25204", "25250", "25300"},
};

enum { N = sizeof exercises / sizeof *exercises, OUTPUT = 1 << 16 };

/* ---- running it ---- */

typedef struct {
    int status;
    char text[OUTPUT]; /* on stdout and stderr */
} outcome;

static void read_all(FILE *from, char *text)
{
    text[fread(text, 1, OUTPUT - 1, from)] = 0;
}

static outcome *run(const char *arguments)
{
    static outcome o;
    char command[256];

    snprintf(command, sizeof command, "%s %s 2>&1", program, arguments);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    read_all(output, o.text);
    o.status = WEXITSTATUS(pclose(output));
    return &o;
}

/* Runs it on a file of these bytes. */
static outcome *run_on(const char *bytes, size_t n)
{
    char path[] = "/tmp/answers-XXXXXX", arguments[64];
    int file = mkstemp(path);

    assert_true(file >= 0 && write(file, bytes, n) == (ssize_t)n);
    close(file);
    snprintf(arguments, sizeof arguments, "%s reference", path);
    outcome *o = run(arguments);
    unlink(path);
    return o;
}

static outcome *run_on_text(const char *text)
{
    return run_on(text, strlen(text));
}

/* All right, but for exercise `other` (-1: none), which has this line. */
static const char *all_right(int other, const char *line)
{
    static char text[4096];
    size_t n = 0;

    for (int i = 0; i < N; i++)
        n += i == other ? snprintf(text + n, sizeof text - n, "%s\n", line)
                        : snprintf(text + n, sizeof text - n, "%s = %s\n", exercises[i].name, exercises[i].right);
    return text;
}

static outcome *run_with(int other, const char *value)
{
    char line[96];

    snprintf(line, sizeof line, "%s = %s", exercises[other].name, value);
    return run_on_text(all_right(other, line));
}

/* What it says of an exercise: the words behind its name. */
static const char *said_of(const outcome *o, const char *name)
{
    static char words[128];
    char start[64];

    snprintf(start, sizeof start, "\n  %s ", name);
    const char *line = strncmp(o->text, start + 1, strlen(start + 1)) == 0 ? o->text - 1 : strstr(o->text, start);
    assert_non_null(line);
    line += strlen(start);
    line += strspn(line, " ");
    snprintf(words, sizeof words, "%.*s", (int)strcspn(line, "\n"), line);
    return words;
}

static void says(const outcome *o, const char *text)
{
    if (!strstr(o->text, text))
        fail_msg("\"%s\" isn't in: %s", text, o->text);
}

/* ---- the tests ---- */

static void right_numbers_are_right(void **state)
{
    outcome *o = run_on_text(all_right(-1, ""));

    assert_int_equal(o->status, 0);
    says(o, "answers: 27 of 27 right, 0 wrong, 0 empty");
}

static void numbers_within_the_tolerance_are_right(void **state)
{
    for (int i = 0; i < N; i++)
        if (exercises[i].near[0])
            assert_int_equal(run_with(i, exercises[i].near)->status, 0);
}

static void wrong_numbers_are_wrong_and_the_right_one_is_not_shown(void **state)
{
    for (int i = 0; i < N; i++) {
        outcome *o = run_with(i, exercises[i].wrong);
        assert_int_equal(o->status, 1);
        assert_string_equal(said_of(o, exercises[i].name), "wrong");
        says(o, "26 of 27 right, 1 wrong, 0 empty");
    }
}

static void the_file_that_the_kit_ships_has_a_line_for_each(void **state)
{
    outcome *o = run("labs/answers.txt");

    for (int i = 0; i < N; i++)
        assert_non_null(said_of(o, exercises[i].name));
    assert_null(strstr(o->text, "there's no"));
}

static void counted_numbers_are_compared_with_the_labs_code(void **state)
{
    outcome *o = run_on_text(all_right(-1, ""));

    assert_string_equal(said_of(o, "projections_uncached"), "right; the code in reference counts the same");
    assert_string_equal(said_of(o, "scores_cached"), "right; the code in reference counts the same");
    assert_string_equal(said_of(o, "drawn_id"), "right");
}

static void an_empty_value_and_a_missing_line_are_empty(void **state)
{
    outcome *o = run_on_text("# nothing but\n\n  top_p_first =  \r\n");

    assert_int_equal(o->status, 1);
    assert_string_equal(said_of(o, "top_p_first"), "empty");
    assert_string_equal(said_of(o, "scores_cached"), "empty: there's no line for it");
    says(o, "0 of 27 right, 0 wrong, 27 empty");
}

static void an_empty_file_is_all_empty(void **state)
{
    outcome *o = run_on_text("");

    assert_int_equal(o->status, 1);
    says(o, "0 of 27 right, 0 wrong, 27 empty");
}

static void a_number_with_something_behind_it_is_refused(void **state)
{
    static const char *const values[] = {"300x", "300 tokens", "300 # sure", "300,0", "1 300", "three hundred", "nan",
                                         "inf", "1e999", "=300", "-", "300 = 300"};

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        outcome *o = run_with(0, values[i]);
        assert_int_equal(o->status, 1);
        assert_string_equal(said_of(o, "projections_uncached"),
                            "wrong: this isn't a number, or there's something behind it");
    }
}

static void spaces_tabs_comments_and_carriage_returns_do_not_matter(void **state)
{
    static const char *const lines[] = {"projections_uncached=300", "  projections_uncached\t=\t300  ",
                                        "projections_uncached = 300\r", "# a comment = 5\nprojections_uncached = +300",
                                        "\n\n   # more\nprojections_uncached = 3e2"};

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_int_equal(run_on_text(all_right(0, lines[i]))->status, 0);
}

static void the_last_line_needs_no_newline(void **state)
{
    const char *text = all_right(-1, "");

    assert_int_equal(run_on(text, strlen(text) - 1)->status, 0);
}

static void an_unknown_name_is_reported(void **state)
{
    outcome *o = run_on_text(all_right(0, "projections_uncached = 300\nprojektions = 5"));

    assert_int_equal(o->status, 1);
    says(o, ":2: there's no exercise \"projektions\"");
}

static void a_second_line_for_a_name_is_reported(void **state)
{
    outcome *o = run_on_text(all_right(0, "projections_uncached = 300\nprojections_uncached = 1"));

    assert_int_equal(o->status, 1);
    says(o, ":2: a second line for \"projections_uncached\"");
    assert_string_equal(said_of(o, "projections_uncached"), "right; the code in reference counts the same");
}

static void a_line_that_is_not_name_equals_value_is_status_2(void **state)
{
    static const char *const lines[] = {"projections_uncached 300", "300", "= 300", "projections uncached = 300", "  ="};

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        outcome *o = run_on_text(all_right(0, lines[i]));
        assert_int_equal(o->status, 2);
        says(o, ":1: this isn't \"name = value\"");
        says(o, "26 of 27 right");
    }
}

static void bytes_that_are_not_text_are_status_2(void **state)
{
    static const char bytes[] = "drawn_id = 2\ndrawn\0id = 2\n";
    outcome *o = run_on(bytes, sizeof bytes - 1);

    assert_int_equal(o->status, 2);
    says(o, ":2: this isn't text");
}

static void a_very_long_line_is_read_whole(void **state)
{
    static char text[20000];

    memset(text, ' ', sizeof text - 1);
    memcpy(text, "drawn_id =", 10);
    text[sizeof text - 2] = '2';
    outcome *o = run_on_text(text);
    assert_string_equal(said_of(o, "drawn_id"), "right");
}

static void a_file_that_cannot_be_read_is_status_2(void **state)
{
    outcome *o = run("/tmp/there-is-no-such-file");

    assert_int_equal(o->status, 2);
    says(o, "No such file or directory");
    o = run("/tmp");
    assert_int_equal(o->status, 2);
    says(o, "Is a directory");
}

static void bad_arguments_are_status_2(void **state)
{
    assert_int_equal(run("--help")->status, 2);
    assert_int_equal(run("labs/answers.txt labs more")->status, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_numbers_are_right),
        cmocka_unit_test(numbers_within_the_tolerance_are_right),
        cmocka_unit_test(wrong_numbers_are_wrong_and_the_right_one_is_not_shown),
        cmocka_unit_test(the_file_that_the_kit_ships_has_a_line_for_each),
        cmocka_unit_test(counted_numbers_are_compared_with_the_labs_code),
        cmocka_unit_test(an_empty_value_and_a_missing_line_are_empty),
        cmocka_unit_test(an_empty_file_is_all_empty),
        cmocka_unit_test(a_number_with_something_behind_it_is_refused),
        cmocka_unit_test(spaces_tabs_comments_and_carriage_returns_do_not_matter),
        cmocka_unit_test(the_last_line_needs_no_newline),
        cmocka_unit_test(an_unknown_name_is_reported),
        cmocka_unit_test(a_second_line_for_a_name_is_reported),
        cmocka_unit_test(a_line_that_is_not_name_equals_value_is_status_2),
        cmocka_unit_test(bytes_that_are_not_text_are_status_2),
        cmocka_unit_test(a_very_long_line_is_read_whole),
        cmocka_unit_test(a_file_that_cannot_be_read_is_status_2),
        cmocka_unit_test(bad_arguments_are_status_2),
    };

    return cmocka_run_group_tests_name("answers", tests, NULL, NULL);
}
