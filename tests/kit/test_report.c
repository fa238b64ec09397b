/* The four formats of one made-up summary: a step that passes, one that fails by a known mistake, one that waits and one
   that isn't written. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

#include <cmocka.h> /* last: it defines a macro fail */

enum { COLUMNS = 100 };

#define NASTY "a <b> & \"c\" \033[31m\x01 \xff\xc3 é"
#define NASTY_PLAIN "a <b> & \"c\" ?[31m? ?? é"
#define NASTY_XML "a &lt;b&gt; &amp; &quot;c&quot; ?[31m? ?? é"

/* ---- the summary ---- */

static const step steps[] = {
    {.id = "9a", .title = "one", .needs = "", .float_note = " (a note)"},
    {.id = "9b", .title = "two <&>", .needs = ""},
    {.id = "9c", .title = "three", .needs = "9b"},
    {.id = "9d", .title = "four", .needs = ""},
};
static const lab lab9 = {"lab9", "a made-up lab", steps, 4, false};

static const result results[] = {
    {.step = &steps[0],
     .verdict = PASSED,
     .compared = {{.right = true, .n_arrays = 2, .n_values = 30, .n_counts = 4, .largest = 2e-13, .bound = 1e-6,
                   .largest_at = "a model at place 3", .n_rows = 5, .n_top = 5},
                  {.right = true, .n_arrays = 2, .n_values = 30, .largest = 3e-7, .bound = 1e-5}},
     .leak = "12 bytes are never freed"},
    {.step = &steps[1],
     .verdict = FAILED,
     .sentence = NASTY ": 1, but 2 is right; and this goes on for so long that it has to be broken into more than one line "
                       "of a hundred columns, or even two of them, whatever else is in it",
     .mistake = {.name = "a-mistake", .step = "9b", .says = "This is what a mistake does.", .hint = "Don't.", .from = "X1"},
     .compared = {{.n_arrays = 1, .n_values = 1, .largest = INFINITY, .bound = 1e-6}},
     .printed = "first line\n" NASTY "\nno end"},
    {.step = &steps[2], .verdict = WAITS, .sentence = "It builds on step 9b"},
    {.step = &steps[3], .verdict = UNWRITTEN, .sentence = "step 9d is not written yet (x.c:4)"},
};

static const summary all = {.lab = &lab9, .answer = "x\xff.c", .results = results, .n_results = 4, .n = {1, 1, 1, 1}};

typedef void format(const summary *s, FILE *to);

/* The report as a string, to be freed. */
static char *written(format *write, const summary *s)
{
    char *text;
    size_t n;
    FILE *to = open_memstream(&text, &n);

    assert_non_null(to);
    write(s, to);
    fclose(to);
    return text;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" isn't in:\n%s", part, text);
}

static void has_not(const char *text, const char *part)
{
    if (strstr(text, part))
        fail_msg("\"%s\" is in:\n%s", part, text);
}

static void begins_with(const char *text, const char *part)
{
    if (strncmp(text, part, strlen(part)))
        fail_msg("\"%s\" isn't the beginning of:\n%s", part, text);
}

/* Nothing but newlines and what a terminal shows. */
static void is_plain(const char *text)
{
    has_not(text, "\xff");
    for (; *text; text++)
        assert_true(*text == '\n' || (unsigned char)*text >= 32);
}

/* ---- text ---- */

static void text_has_a_word_for_each_verdict_and_a_tally(void **state)
{
    char *text = written(report_text, &all);

    has(text, "\n  9a  pass   one\n");
    has(text, "\n  9b  FAIL   two <&>\n");
    has(text, "\n  9c  waits  three\n            It builds on step 9b.\n");
    has(text, "\n  9d  to do  four\n            step 9d is not written yet (x.c:4).\n");
    has(text, "\nlab9: 1 of 4 steps pass, 1 fails, 1 waits, 1 isn't written yet\n");
    is_plain(text);
    free(text);
}

static void text_says_what_a_passing_step_was_compared_in(void **state)
{
    char *text = written(report_text, &all);

    has(text, "30 values, |Δ| ≤ 2.0e-13 (a model at place 3); 5 of 5 top tokens; 4 counts equal; in\n");
    has(text, "float |Δ| ≤ 3.00e-07, allowed 1.00e-05 (a note).");
    has(text, "Warning: 12 bytes are never freed.\n");
    free(text);
}

static void text_says_the_mistake_its_hint_and_where_to_read(void **state)
{
    char *text = written(report_text, &all);

    has(text, "This is what a mistake does.\n            Hint: Don't.\n");
    has(text, "Read step 9b in LABS.md; `make lab9 STEP=9b` runs this step alone.\n");
    has(text, "            It printed:\n            | first line\n            | " NASTY_PLAIN "\n            | no end\n");
    free(text);
}

static void a_convention_has_no_hint(void **state)
{
    result other = results[1];
    summary s = {.lab = &lab9, .answer = "x.c", .results = &other, .n_results = 1, .n = {[FAILED] = 1}};

    other.mistake.is_convention = true;
    char *text = written(report_text, &s);
    has_not(text, "Hint");
    has(text, "This is what a mistake does.\n            Don't.\n");
    has(text, "lab9: 0 of 1 step passes, 1 fails\n");
    free(text);
}

static int columns(const char *line, size_t n)
{
    int columns = 0;

    for (size_t i = 0; i < n; i++)
        columns += (line[i] & 0xc0) != 0x80;
    return columns;
}

static void lines_are_broken_before_column_100(void **state)
{
    char *text = written(report_text, &all);
    int longest = 0;

    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        int n = columns(line, strcspn(line, "\n"));
        longest = n > longest ? n : longest;
    }
    assert_in_range(longest, COLUMNS - 10, COLUMNS);
    has(text, "of them, whatever\n            else is in it.\n"); /* and nothing is lost */
    free(text);
}

/* A sentence of words of n letters comes out whole, in lines of at most 100 columns, of which one is full if it can be. */
static void a_line_of_exactly_100_columns_is_not_broken(void **state)
{
    result r = {.step = &steps[0], .verdict = WAITS};
    summary s = {.lab = &lab9, .answer = "x.c", .results = &r, .n_results = 1, .n = {[WAITS] = 1}};

    for (int n = 86; n <= 88; n++) { /* with the full stop and the indentation: 99, 100 and 101 columns */
        memset(r.sentence, 'e', n);
        r.sentence[43] = ' ';
        r.sentence[n] = 0;
        char *text = written(report_text, &s);
        has(text, n == 88 ? "ee\n            ee" : "ee ee");
        free(text);
    }
}

static void a_character_of_two_bytes_takes_one_column(void **state)
{
    result r = {.step = &steps[0], .verdict = WAITS};
    summary s = {.lab = &lab9, .answer = "x.c", .results = &r, .n_results = 1, .n = {[WAITS] = 1}};

    for (int i = 0; i < 87; i++)
        strcat(r.sentence, i == 43 ? " " : "é");
    char *text = written(report_text, &s);
    has(text, "éé éé");
    free(text);
}

/* ---- colour ---- */

/* What the report in text writes to a terminal. */
static void write_to_terminal(char *text, size_t size)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    size_t n = 0;

    assert_true(master >= 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    FILE *terminal = fopen(ptsname(master), "r+");
    assert_non_null(terminal);
    summary s = all;
    s.n_results = 1;
    report_text(&s, terminal);
    fflush(terminal);
    fcntl(master, F_SETFL, O_NONBLOCK);
    for (ssize_t more; (more = read(master, text + n, size - 1 - n)) > 0;)
        n += more;
    text[n] = 0;
    fclose(terminal);
    close(master);
    has(text, "pass");
}

static void set_terminal(const char *term, const char *no_color)
{
    term ? setenv("TERM", term, 1) : unsetenv("TERM");
    no_color ? setenv("NO_COLOR", no_color, 1) : unsetenv("NO_COLOR");
}

static void a_terminal_gets_colour(void **state)
{
    char text[4096];

    set_terminal("xterm", NULL);
    write_to_terminal(text, sizeof text);
    has(text, "  9a  \033[32mpass \033[0m  one");
    set_terminal("xterm", "");
    write_to_terminal(text, sizeof text);
    has(text, "\033[32m");
}

static void no_color_and_a_dumb_terminal_get_none(void **state)
{
    static const char *const settings[][2] = {{"xterm", "1"}, {"dumb", NULL}, {NULL, NULL}};
    char text[4096];

    for (int i = 0; i < 3; i++) {
        set_terminal(settings[i][0], settings[i][1]);
        write_to_terminal(text, sizeof text);
        has_not(text, "\033");
        has(text, "  9a  pass   one");
    }
}

static void a_pipe_gets_no_colour(void **state)
{
    char text[8192] = "";
    int ends[2];

    set_terminal("xterm", NULL);
    assert_int_equal(pipe(ends), 0);
    FILE *to = fdopen(ends[1], "w");
    report_text(&all, to);
    fclose(to);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    is_plain(text);
}

/* ---- TAP ---- */

static void tap_has_a_plan_and_a_line_for_each_step(void **state)
{
    char *text = written(report_tap, &all);

    begins_with(text, "TAP version 13\n1..4\nok 1 - 9a one\nnot ok 2 - 9b two <&>\n  ---\n");
    has(text, "\nnot ok 3 - 9c three\n  ---\n  verdict: waits\n  message: |\n    It builds on step 9b.\n  ...\n");
    has(text, "\nnot ok 4 - 9d four\n  ---\n  verdict: unwritten\n");
    has(text, "  verdict: fail\n  message: |\n    " NASTY_PLAIN ": 1, but 2");
    has(text, "\n    This is what a mistake does.\n    Hint: Don't.\n");
    is_plain(text);
    free(text);
}

/* ---- JUnit ---- */

static void junit_counts_the_steps_and_has_the_failures_text(void **state)
{
    char *text = written(report_junit, &all);

    has(text, "<testsuite name=\"lab9\" tests=\"4\" failures=\"1\" skipped=\"2\">\n");
    has(text, "<testcase classname=\"lab9\" name=\"9a one\"/>\n");
    has(text, "name=\"9b two &lt;&amp;&gt;\">\n    <failure message=\"" NASTY_XML ": 1, but 2 is right;");
    has(text, "This is what a mistake does.\nHint: Don't.\n");
    has(text, "</failure>\n  </testcase>\n");
    has(text, "name=\"9c three\">\n    <skipped message=\"It builds on step 9b\">");
    has(text, "name=\"9d four\">\n    <skipped message=\"step 9d is not written yet (x.c:4)\">");
    has(text, "</testsuite>\n");
    is_plain(text);
    free(text);
}

/* ---- JSON ---- */

static const char *string_of(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static json_int_t integer_of(const json_t *o, const char *name)
{
    assert_true(json_is_integer(json_object_get(o, name)));
    return json_integer_value(json_object_get(o, name));
}

/* The report read back, to be given to json_decref. */
static json_t *read_json(const summary *s)
{
    char *text = written(report_json, s);
    json_t *o = json_loads(text, 0, NULL);

    assert_non_null(o);
    free(text);
    return o;
}

static void json_says_the_whole(void **state)
{
    json_t *o = read_json(&all);

    assert_string_equal(string_of(o, "lab"), "lab9");
    assert_string_equal(string_of(o, "answer"), "x?.c");
    assert_int_equal(integer_of(o, "exit_status"), 1);
    assert_int_equal(integer_of(o, "passed"), 1);
    assert_int_equal(integer_of(o, "failed"), 1);
    assert_int_equal(integer_of(o, "waiting"), 1);
    assert_int_equal(integer_of(o, "unwritten"), 1);
    assert_int_equal(json_array_size(json_object_get(o, "steps")), 4);
    json_decref(o);
}

static void json_says_the_verdicts(void **state)
{
    static const char *const verdicts[] = {"pass", "fail", "waits", "unwritten"};
    json_t *o = read_json(&all);

    for (int i = 0; i < 4; i++) {
        json_t *step = json_array_get(json_object_get(o, "steps"), i);
        assert_string_equal(string_of(step, "step"), steps[i].id);
        assert_string_equal(string_of(step, "verdict"), verdicts[i]);
    }
    json_decref(o);
}

static void json_says_the_sentence_the_mistake_and_the_numbers(void **state)
{
    json_t *o = read_json(&all), *list = json_object_get(o, "steps");
    json_t *first = json_array_get(list, 0), *second = json_array_get(list, 1);
    json_t *numbers = json_object_get(first, "double");

    assert_true(json_is_null(json_object_get(first, "mistake")));
    assert_string_equal(string_of(first, "leak"), "12 bytes are never freed");
    assert_int_equal(integer_of(numbers, "values"), 30);
    assert_int_equal(integer_of(numbers, "top_tokens"), 5);
    assert_true(json_real_value(json_object_get(numbers, "largest_difference")) == 2e-13);
    assert_string_equal(string_of(numbers, "at"), "a model at place 3");
    begins_with(string_of(second, "sentence"), NASTY_PLAIN ": 1, but 2 is right");
    assert_string_equal(string_of(second, "printed"), "first line\n" NASTY_PLAIN "\nno end");
    assert_string_equal(string_of(json_object_get(second, "mistake"), "name"), "a-mistake");
    assert_string_equal(string_of(json_object_get(second, "mistake"), "says"), "This is what a mistake does.");
    assert_null(json_object_get(json_object_get(second, "double"), "largest_difference")); /* JSON has no infinity */
    json_decref(o);
}

static void json_of_a_lab_that_passes_says_exit_status_0(void **state)
{
    summary s = {.lab = &lab9, .answer = "x.c", .results = results, .n_results = 1, .n = {[PASSED] = 1}};
    json_t *o = read_json(&s);

    assert_int_equal(integer_of(o, "exit_status"), 0);
    json_decref(o);
}

/* ---- plain text ---- */

static void becomes(const char *text, const char *plain)
{
    char copy[64];

    snprintf(copy, sizeof copy, "%s", text);
    make_plain(copy);
    assert_string_equal(copy, plain);
}

static void what_is_not_text_becomes_question_marks(void **state)
{
    becomes("", "");
    becomes("a\tb\nc\r", "a b\nc?");
    becomes("é€😀", "é€😀");
    becomes("\x7f\xc2\x80\xc2\x9f", "???"); /* control characters of one and of two bytes */
    becomes("\xe2\x82", "??");              /* cut short */
    becomes("\xed\xa0\x80", "???");         /* half of a surrogate pair */
    becomes("\xef\xbf\xbe", "?");           /* U+FFFE, which XML has no place for */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_has_a_word_for_each_verdict_and_a_tally),
        cmocka_unit_test(text_says_what_a_passing_step_was_compared_in),
        cmocka_unit_test(text_says_the_mistake_its_hint_and_where_to_read),
        cmocka_unit_test(a_convention_has_no_hint),
        cmocka_unit_test(lines_are_broken_before_column_100),
        cmocka_unit_test(a_line_of_exactly_100_columns_is_not_broken),
        cmocka_unit_test(a_character_of_two_bytes_takes_one_column),
        cmocka_unit_test(a_terminal_gets_colour),
        cmocka_unit_test(no_color_and_a_dumb_terminal_get_none),
        cmocka_unit_test(a_pipe_gets_no_colour),
        cmocka_unit_test(tap_has_a_plan_and_a_line_for_each_step),
        cmocka_unit_test(junit_counts_the_steps_and_has_the_failures_text),
        cmocka_unit_test(json_says_the_whole),
        cmocka_unit_test(json_says_the_verdicts),
        cmocka_unit_test(json_says_the_sentence_the_mistake_and_the_numbers),
        cmocka_unit_test(json_of_a_lab_that_passes_says_exit_status_0),
        cmocka_unit_test(what_is_not_text_becomes_question_marks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
