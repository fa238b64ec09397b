/* The checks of real labs, as make builds them: an untouched skeleton scores nothing, the reference answer everything,
   and a missing model or function is said in one sentence. It's about labs/ as it's handed out: where a lab is begun, its skeleton's
   test is skipped. */
#define _GNU_SOURCE
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture.h"

#include <cmocka.h> /* last: it defines a macro fail */

typedef struct {
    const char *name, *file;
    int n_steps, n_todos;
} shipped;

static shipped lab1 = {"lab1", "lab1-loop/loop", 4, 5}, lab3 = {"lab3", "lab3-cache/cache", 5, 12};

static char *path_of(const char *format, ...)
{
    va_list arguments;
    char *path;

    va_start(arguments, format);
    assert_true(vasprintf(&path, format, arguments) > 0);
    va_end(arguments);
    return path;
}

static int count_todos(const shipped *lab)
{
    char line[512], *path = path_of("labs/%s.c", lab->file);
    FILE *file = fopen(path, "r");
    int n = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        n += strstr(line, "TODO(\"") != NULL;
    fclose(file);
    free(path);
    return n;
}

/* Runs the lab's check of the answer under labs or reference; its report in JSON is to be given to json_decref. */
static json_t *check(const shipped *lab, const char *from, int *status)
{
    char *precise = path_of("build/double/%s", lab->name), *coarse = path_of("build/float/%s", lab->name);
    char *answer = path_of("%s/%s.c", from, lab->file);
    captured c = RUN(precise, "--float", coarse, "--answer", answer, "--format", "json", "--time-limit", "60");
    json_t *report = json_loads(c.out, 0, NULL);

    if (!report)
        fail_msg("%s: no report: %s", answer, c.err);
    *status = c.status;
    captured_free(&c);
    free(precise);
    free(coarse);
    free(answer);
    return report;
}

static json_int_t integer_of(const json_t *report, const char *name)
{
    return json_integer_value(json_object_get(report, name));
}

static void an_untouched_skeleton_scores_nothing(void **state)
{
    const shipped *lab = *state;
    int status;

    if (count_todos(lab) < lab->n_todos)
        skip();
    json_t *report = check(lab, "labs", &status);
    assert_int_equal(status, 1);
    assert_int_equal(integer_of(report, "passed"), 0);
    assert_int_equal(integer_of(report, "failed"), 0);
    assert_int_equal(integer_of(report, "waiting") + integer_of(report, "unwritten"), lab->n_steps);
    json_decref(report);
}

static void the_reference_answer_scores_everything(void **state)
{
    const shipped *lab = *state;
    int status;
    json_t *report = check(lab, "reference", &status);

    assert_int_equal(status, 0);
    assert_int_equal(integer_of(report, "passed"), lab->n_steps);
    assert_int_equal(json_array_size(json_object_get(report, "steps")), lab->n_steps);
    json_decref(report);
}

/* Both precisions are compared, and the counts too. */
static void the_reference_answer_is_compared_in_both_precisions(void **state)
{
    static const char *const precisions[] = {"double", "float"};
    int status;
    json_t *report = check(&lab3, "reference", &status), *step = json_array_get(json_object_get(report, "steps"), 2);

    for (int p = 0; p < 2; p++) {
        const json_t *numbers = json_object_get(step, precisions[p]);
        assert_true(integer_of(numbers, "values") > 10000);
        assert_true(integer_of(numbers, "counts") > 100);
        assert_true(integer_of(numbers, "rows") > 100);
    }
    json_decref(report);
}

/* Lab 1's answer isn't one to lab 3: the function that a step calls first is named, and the step fails. */
static void a_missing_function_is_named(void **state)
{
    captured c = RUN("build/double/lab3", "--answer", "reference/lab1-loop/loop.c", "--format", "json", "--time-limit", "60");
    json_t *report = json_loads(c.out, 0, NULL), *step = json_array_get(json_object_get(report, "steps"), 0);
    const char *sentence = json_string_value(json_object_get(step, "sentence"));

    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "");
    assert_int_equal(integer_of(report, "passed"), 0);
    assert_int_equal(integer_of(report, "failed"), 1);
    assert_string_equal(json_string_value(json_object_get(step, "verdict")), "fail");
    assert_non_null(strstr(sentence, ": it has no function cache_init"));
    assert_string_equal(json_string_value(json_object_get(step, "printed")), "");
    json_decref(report);
    captured_free(&c);
}

static void a_missing_model_is_said_in_one_sentence(void **state)
{
    char *here = getcwd(NULL, 0), *precise = path_of("%s/build/double/lab3", here), *coarse = path_of("%s/build/float/lab3", here);

    assert_int_equal(chdir("/"), 0); /* where there's no data/models */
    captured c = RUN(precise, "--float", coarse);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(c.status, 2);
    assert_string_equal(c.out, "");
    assert_non_null(strstr(c.err, "data/models/"));
    assert_ptr_equal(strchr(c.err, '\n'), c.err + strlen(c.err) - 1);
    captured_free(&c);
    free(precise);
    free(coarse);
    free(here);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(an_untouched_skeleton_scores_nothing, &lab1),
        cmocka_unit_test_prestate(an_untouched_skeleton_scores_nothing, &lab3),
        cmocka_unit_test_prestate(the_reference_answer_scores_everything, &lab1),
        cmocka_unit_test_prestate(the_reference_answer_scores_everything, &lab3),
        cmocka_unit_test(the_reference_answer_is_compared_in_both_precisions),
        cmocka_unit_test(a_missing_function_is_named),
        cmocka_unit_test(a_missing_model_is_said_in_one_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
