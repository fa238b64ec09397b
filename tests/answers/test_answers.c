/* `make answers` on files of every kind: what it says, and its exit status. What is right is typed in here, worked out
   by hand; the program works it out by itself. Runs the program built around the reference answers. */
#define _GNU_SOURCE
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char program[] = "build/answers-reference";

/* In any order, but for the first: its line is what the tests below change. */
static const struct {
    const char *name, *right, *near, *wrong; /* right; right within the tolerance ("" if exact); just not right */
} exercises[] = {
    {"projections_uncached", "300", "", "301"},
    {"tie_last", "1", "", "0"},
    {"scores_uncached", "364", "364.0", "78"},
    {"projections_uncached_prompt_8", "468", "", "469"},
    {"ids_appended", "3", "", "2"},
    {"bytes_shown", "4", "", "6"},
    {"temperature_half", "0.8808", "0.8815", "0.7311"},
    {"temperature_two", "0.6225", "0.6215", "0.6236"},
    {"top_k_kept", "2", "", "4"},
    {"top_k_kept_with_ties", "4", "", "2"},
    {"top_p_kept", "3", "", "4"},
    {"top_p_first", "0.5556", "0.5549", "0.5"},
    {"penalised_top", "0.616", "0.6155", "0.6172"},
    {"penalised_top_shifted", "0.411", "0.4115", "0.4097"},
    {"penalised_positive", "1.6", "1.6009", "1.602"},
    {"penalised_negative", "-2.5", "-2.4995", "2.5"},
    {"drawn_id", "2", "", "1"},
    {"kept_temperature_first", "1", "", "2"},
    {"kept_temperature_last", "2", "", "1"},
    {"scores_chunk", "21", "", "24"},
    {"projections_cached", "24", "2.4e1", "25"},
    {"scores_cached", "78", "", "77"},
    {"projections_cached_prompt_8", "31", "", "32"},
    {"projections_ratio", "15.1", "15.06", "15.2"},
    {"scores_last_chunk", "95", "", "15"},
    {"sinusoid_column", "0.0300", "0.0304", "0.0306"},
    {"slowest_wave", "19869", "20000", "19660"},
    {"last_start", "1019", "", "1020"},
    {"rope_angle", "1", "0.9991", "0.998"},
    {"rope_angle_large_base", "0.1", "0.1009", "0.102"},
    {"rope_score", "1.7", "1.7009", "1.702"},
    {"nats_of_a_guess", "4.19", "4.18", "4.2"},
    {"positions_forgotten", "6", "", "26"},
    {"beam_log_softmax", "-120", "-120.009", "-120.02"},
    {"beam_underflow_factors", "23", "", "22"},
    {"beam_candidates", "264", "", "66"},
    {"beam_copies", "2", "", "4"},
    {"beam_score", "-1.7321", "-1.7325", "-1"},
    {"beam_bound", "-0.2222", "-0.2230", "-0.4"},
    {"beam_texts", "256", "", "255"},
    {"beam_width", "64", "", "256"},
    {"beam_projections", "100", "", "104"},
    {"beam_scores", "1876", "", "1984"},
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

static void says_tally(const outcome *o, int n_right, int n_wrong, int n_empty)
{
    char tally[96];

    snprintf(tally, sizeof tally, "answers: %d of %d right, %d wrong, %d empty\n", n_right, N, n_wrong, n_empty);
    says(o, tally);
}

/* ---- LABS.md ---- */

static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;

    assert_non_null(file);
    assert_true(getdelim(&text, &room, 0, file) > 0);
    fclose(file);
    return text;
}

static bool is_of_a_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = text; (at = strstr(at, word)); at += n)
        if ((at == text || !is_of_a_word(at[-1])) && !is_of_a_word(at[n]))
            return true;
    return false;
}

static bool is_exercise(const char *name)
{
    for (int i = 0; i < N; i++)
        if (strcmp(exercises[i].name, name) == 0)
            return true;
    return false;
}

/* Copies the name of a line that is only spaces, a name, and " =". */
static bool asks_for(const char *line, char name[64])
{
    int end = 0;

    return sscanf(line, " %63[A-Za-z0-9_] =%n", name, &end) == 1 && end > 0 && !line[end + strspn(line + end, " \r")];
}

/* ---- the tests ---- */

static void right_numbers_are_right(void **state)
{
    outcome *o = run_on_text(all_right(-1, ""));

    assert_int_equal(o->status, 0);
    says_tally(o, N, 0, 0);
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
        says_tally(o, N - 1, 1, 0);
    }
}

static void the_file_that_the_kit_ships_has_a_line_for_each(void **state)
{
    outcome *o = run("labs/answers.txt");

    for (int i = 0; i < N; i++)
        assert_non_null(said_of(o, exercises[i].name));
    assert_null(strstr(o->text, "there's no"));
}

/* That the sheet's names are those of `exercises` is what the test above says. */
static void each_name_stands_in_LABS_md(void **state)
{
    char *text = text_of("LABS.md"), missing[4096] = "";

    for (int i = 0; i < N; i++)
        if (!has_word(text, exercises[i].name))
            strcat(strcat(missing, " "), exercises[i].name);
    free(text);
    if (missing[0])
        fail_msg("not in LABS.md:%s", missing);
}

static void each_name_that_LABS_md_asks_for_is_in_the_sheet(void **state)
{
    char *text = text_of("LABS.md"), *rest = text, *line, name[64], unknown[4096] = "";

    while ((line = strsep(&rest, "\n")))
        if (asks_for(line, name) && !is_exercise(name) && strlen(unknown) < sizeof unknown - sizeof name - 1)
            strcat(strcat(unknown, " "), name);
    free(text);
    if (unknown[0])
        fail_msg("LABS.md asks for, but labs/answers.txt has no line for:%s", unknown);
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
    says_tally(o, 0, 0, N);
}

static void an_empty_file_is_all_empty(void **state)
{
    outcome *o = run_on_text("");

    assert_int_equal(o->status, 1);
    says_tally(o, 0, 0, N);
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
        says_tally(o, N - 1, 0, 1);
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
        cmocka_unit_test(each_name_stands_in_LABS_md),
        cmocka_unit_test(each_name_that_LABS_md_asks_for_is_in_the_sheet),
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
