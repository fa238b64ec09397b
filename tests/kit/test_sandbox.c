/* The sandbox against the hostile answer of hostile.c: whatever step 0a does, it's a failure with a sentence that says
   what it did, step 0b passes, and nothing is left running. Each test reads the check's report in JSON. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "capture.h"

#include <cmocka.h> /* last: it defines a macro fail */

#define ANSWER "tests/kit/hostile.c"
#define DOUBLE_CHECK "build/double/tests/kit/hostile"
#define FLOAT_CHECK "build/float/tests/kit/hostile"

/* ---- running the check ---- */

typedef struct {
    captured printed;
    json_t *report;
} run;

static run run_check(const char *check, const char *twin, const char *seconds, const char *action, void (*before)(void))
{
    setenv("HOSTILE", action, 1);
    const char *argv[] = {check, "--answer", ANSWER, "--format", "json", "--time-limit", seconds,
                          twin ? "--float" : NULL, twin, NULL};
    run r = {.printed = capture(argv, before)};
    r.report = json_loads(r.printed.out, 0, NULL);
    if (!r.report)
        fail_msg("%s: no report: %s", action, r.printed.err);
    return r;
}

/* In both precisions, with time enough for whatever ends by itself. */
static run run_both(const char *action)
{
    return run_check(DOUBLE_CHECK, FLOAT_CHECK, "30", action, NULL);
}

static void run_free(run *r)
{
    captured_free(&r->printed);
    json_decref(r->report);
}

static const char *field(const run *r, int step, const char *name)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(r->report, "steps"), step), name));
}

/* Every child that is left when a check has ended has come to this process: there mustn't be one. */
static void nothing_is_left(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* The line of hostile.c that is marked HERE action. */
static int marked_line(const char *action)
{
    char line[256], mark[64];
    FILE *source = fopen(ANSWER, "r");
    int number = 0, found = 0;

    assert_non_null(source);
    snprintf(mark, sizeof mark, "/* HERE %s */", action);
    while (!found && fgets(line, sizeof line, source)) {
        number++;
        found = strstr(line, mark) ? number : 0;
    }
    fclose(source);
    assert_true(found);
    return found;
}

static void says(const run *r, const char *text)
{
    if (!strstr(field(r, 0, "sentence"), text))
        fail_msg("\"%s\" isn't in \"%s\"", text, field(r, 0, "sentence"));
}

static void says_place(const run *r, const char *action)
{
    char place[64];

    snprintf(place, sizeof place, "at " ANSWER ":%d: ", marked_line(action));
    says(r, place);
}

/* Step 0a has this verdict, 0b passes, the exit status and the tally agree, and nothing is left running. */
static void verdict_is(const run *r, const char *verdict)
{
    int passed = strcmp(verdict, "pass") ? 1 : 2;

    assert_string_equal(field(r, 0, "verdict"), verdict);
    assert_string_equal(field(r, 1, "verdict"), "pass");
    assert_int_equal(r->printed.status, passed == 2 ? 0 : 1);
    assert_int_equal(json_integer_value(json_object_get(r->report, "passed")), passed);
    assert_int_equal(json_integer_value(json_object_get(r->report, "exit_status")), passed == 2 ? 0 : 1);
    assert_string_equal(r->printed.err, "");
    nothing_is_left();
}

/* 0a fails, and one sentence says why: `text` is in it, and no second line. */
static run fails_with(const char *action, const char *text)
{
    run r = run_both(action);

    verdict_is(&r, "fail");
    says(&r, text);
    assert_null(strchr(field(&r, 0, "sentence"), '\n'));
    return r;
}

static void fails(const char *action, const char *text)
{
    run r = fails_with(action, text);

    run_free(&r);
}

static void fails_at_its_line(const char *action, const char *text)
{
    run r = fails_with(action, text);

    says_place(&r, action);
    run_free(&r);
}

/* The float check alone, where no sanitizer watches. */
static void fails_without_sanitizer(const char *action, const char *text)
{
    run r = run_check(FLOAT_CHECK, NULL, "30", action, NULL);

    verdict_is(&r, "fail");
    says(&r, text);
    run_free(&r);
}

/* ---- crashes ---- */

static void a_null_pointer_is_named_with_its_line(void **state)
{
    fails_at_its_line("null", "null pointer");
    fails_without_sanitizer("null", "it crashed: Segmentation fault");
}

static void abort_is_named(void **state)
{
    fails("abort", "a case: it crashed: Aborted");
    fails_without_sanitizer("abort", "it crashed: Aborted");
}

static void a_failed_assert_is_quoted_with_its_line(void **state)
{
    fails_at_its_line("assertion", "Assertion `one + one == 3' failed");
    run r = run_check(FLOAT_CHECK, NULL, "30", "assertion", NULL);
    says_place(&r, "assertion");
    run_free(&r);
}

static void endless_recursion_is_named(void **state)
{
    fails("recursion", "stack-overflow");
    fails_without_sanitizer("recursion", "it crashed: Segmentation fault");
}

static void lift_stack_limit(void)
{
    struct rlimit limit;

    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_STACK, &limit);
}

static void the_stack_has_a_limit_of_its_own(void **state)
{
    run r = run_check(FLOAT_CHECK, NULL, "200", "recursion", lift_stack_limit);

    verdict_is(&r, "fail");
    says(&r, "it crashed: Segmentation fault");
    run_free(&r);
}

static void a_heap_overflow_is_named_with_its_line(void **state)
{
    fails_at_its_line("overflow", "heap-buffer-overflow");
}

static void use_after_free_is_named_with_its_line(void **state)
{
    fails_at_its_line("after-free", "heap-use-after-free");
}

static void a_double_free_is_named_with_its_line(void **state)
{
    fails_at_its_line("double-free", "attempting double-free");
    fails_without_sanitizer("double-free", "it crashed: Aborted");
}

static void signed_overflow_is_named_with_its_line(void **state)
{
    fails_at_its_line("signed-overflow", "signed integer overflow: 2147483647 + 1");
}

static void a_signal_that_it_sends_itself_is_named(void **state)
{
    fails("kill-itself", "it crashed: Killed");
    fails("kill-group", "it crashed: Killed");
}

static void a_crash_in_float_alone_is_said_to_be_in_float(void **state)
{
    fails("float-alone", "In float, a case: it crashed: Aborted");
}

static void a_sanitizer_that_cannot_print_is_a_crash_all_the_same(void **state)
{
    fails("silent-crash", "it crashed: what the sanitizer");
}

static void a_zero_byte_hides_no_report(void **state)
{
    fails("crash-behind-zero", "heap-buffer-overflow");
}

/* ---- it doesn't end ---- */

static run stopped(const char *check, const char *twin, const char *action)
{
    run r = run_check(check, twin, "2", action, NULL);

    verdict_is(&r, "fail");
    says(&r, "it was still running after 2 s");
    return r;
}

static void is_stopped(const char *action)
{
    run r = stopped(DOUBLE_CHECK, FLOAT_CHECK, action);

    run_free(&r);
}

static void an_endless_loop_is_stopped(void **state)
{
    is_stopped("loop");
}

static void an_endless_loop_that_ignores_signals_is_stopped(void **state)
{
    is_stopped("deaf-loop");
    run r = stopped(FLOAT_CHECK, NULL, "deaf-loop");
    run_free(&r);
}

static void a_stopped_process_is_ended(void **state)
{
    is_stopped("stopped");
}

static void a_process_that_went_to_another_group_is_stopped(void **state)
{
    is_stopped("sleep-in-other-group");
}

static void waiting_for_a_silent_process_costs_no_time(void **state)
{
    run r = stopped(DOUBLE_CHECK, FLOAT_CHECK, "silent-sleep");

    if (r.printed.cpu_seconds > 1.2)
        fail_msg("it took %g s of computing", r.printed.cpu_seconds);
    run_free(&r);
}

static void sleep_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* Starts a check whose step never ends, and returns once it has come to that. */
static pid_t start_endless_check(void)
{
    setenv("HOSTILE", "loop", 1);
    pid_t check = fork();
    if (check == 0) {
        execl(DOUBLE_CHECK, DOUBLE_CHECK, "--time-limit", "60", "--step", "0a", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 100; i++)
        sleep_a_little();
    return check;
}

static void a_check_that_is_killed_leaves_nothing_running(void **state)
{
    pid_t check = start_endless_check();
    int status, ended = 0;

    assert_int_equal(waitpid(check, &status, WNOHANG), 0);
    kill(check, SIGKILL);
    assert_int_equal(waitpid(check, &status, 0), check);
    for (int i = 0; i < 300 && !ended; i++) {
        sleep_a_little();
        ended = waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
    }
    assert_true(ended);
}

/* ---- it ends too early ---- */

static void exit_is_no_way_to_return(void **state)
{
    fails("exit-0", "a case: it ended the program (exit status 0) instead of returning");
    fails("exit-at-once", "it ended the program (exit status 0)");
    fails_without_sanitizer("exit-0", "it ended the program (exit status 0)");
}

static void ending_the_thread_or_becoming_another_program_is_no_way_to_return(void **state)
{
    fails("exit-thread", "it ended the program (exit status 0)");
    fails("become-true", "it ended the program (exit status 0)");
}

static void the_status_of_a_todo_without_its_line_is_no_todo(void **state)
{
    fails("exit-77", "it ended the program (exit status 77)");
}

static void the_status_of_a_missing_program_is_the_answers_own(void **state)
{
    fails("exit-127", "it ended the program (exit status 127)");
}

/* ---- output ---- */

static void closing_the_output_is_named(void **state)
{
    fails("close-descriptor", "it closed the standard output");
    fails("close-stdout", "it closed the standard output");
    fails_without_sanitizer("close-stdout", "it closed the standard output");
}

static void megabytes_of_output_are_stopped(void **state)
{
    fails("print-megabytes", "it printed more than 1 MB");
    fails_without_sanitizer("print-megabytes", "it printed more than 1 MB");
}

static void endless_output_is_stopped(void **state)
{
    fails("print-for-ever", "it printed more than 1 MB");
}

static void binary_output_is_shown_as_text(void **state)
{
    run r = fails_with("print-binary", "a case: value: 2, but 1 is right");

    assert_string_equal(field(&r, 0, "printed"), "before?[2J??? behind\n");
    run_free(&r);
}

/* ---- what isn't its own ---- */

static void closing_the_other_descriptors_does_no_harm(void **state)
{
    run r = run_both("close-all");

    verdict_is(&r, "pass");
    run_free(&r);
}

static void no_descriptor_but_the_trace_can_be_written_into(void **state)
{
    run r = run_both("write-into-all");

    verdict_is(&r, "fail");
    assert_string_equal(field(&r, 0, "printed"), "1 descriptors\n");
    run_free(&r);
}

static void give_endless_input(void)
{
    dup2(open("/dev/zero", O_RDONLY), 0);
}

static void the_input_is_empty(void **state)
{
    run r = run_check(DOUBLE_CHECK, FLOAT_CHECK, "5", "read-input", give_endless_input);

    verdict_is(&r, "pass");
    run_free(&r);
}

static void too_much_memory_is_named(void **state)
{
    run r = run_check(DOUBLE_CHECK, FLOAT_CHECK, "200", "eat-memory", NULL);

    verdict_is(&r, "fail");
    says(&r, "it used more than 1024 MB of memory");
    run_free(&r);
}

static void a_trace_cannot_be_cut_short(void **state)
{
    run r = run_both("cut-trace");

    verdict_is(&r, "pass");
    run_free(&r);
}

static void a_trace_that_is_written_over_is_no_right_trace(void **state)
{
    fails("scribble-zeros", "");
    fails("scribble-ones", "");
    fails("scribble-text", "");
}

static void processes_left_behind_are_ended(void **state)
{
    static const char *const actions[] = {"leave-child", "leave-session"};

    for (int i = 0; i < 2; i++) {
        run r = run_both(actions[i]);
        verdict_is(&r, "pass");
        run_free(&r);
    }
}

/* ---- not hostile, but to be told apart ---- */

static void a_harmless_step_passes(void **state)
{
    run r = run_both("nothing");

    verdict_is(&r, "pass");
    assert_string_equal(field(&r, 0, "sentence"), "");
    assert_string_equal(field(&r, 0, "leak"), "");
    assert_string_equal(field(&r, 0, "printed"), "");
    run_free(&r);
}

static void leaked_at(const char *action, const char *printed)
{
    char leak[128];
    run r = run_both(action);

    snprintf(leak, sizeof leak, "12 bytes are never freed, allocated at " ANSWER ":%d", marked_line(action));
    verdict_is(&r, "pass");
    assert_string_equal(field(&r, 0, "leak"), leak);
    assert_string_equal(field(&r, 0, "printed"), printed);
    assert_string_equal(field(&r, 1, "leak"), "");
    run_free(&r);
}

static void a_leak_is_a_warning_with_its_line(void **state)
{
    leaked_at("leak", "");
}

static void a_leak_hides_nothing_that_was_printed(void **state)
{
    leaked_at("print-and-leak", "it's a =====\n");
}

static void is_unwritten_at_its_line(const char *action)
{
    char sentence[128];
    run r = run_both(action);

    snprintf(sentence, sizeof sentence, "step 0a is not written yet (" ANSWER ":%d)", marked_line(action));
    verdict_is(&r, "unwritten");
    assert_string_equal(field(&r, 0, "sentence"), sentence);
    run_free(&r);
}

static void a_todo_is_named_with_its_line(void **state)
{
    is_unwritten_at_its_line("todo");
}

static void what_is_printed_before_a_todo_is_not_taken_for_it(void **state)
{
    is_unwritten_at_its_line("talkative-todo");
}

static void an_incomplete_trace_is_not_right(void **state)
{
    fails("return-early", "a case: value: the answer didn't come to this");
}

static void a_wrong_value_is_named(void **state)
{
    fails("wrong", "a case: value: 2, but 1 is right");
}

static void double_allows_1e_6_and_float_1e_5(void **state)
{
    run r = run_both("inside");

    verdict_is(&r, "pass");
    run_free(&r);
    fails("outside", "a case: sum at place 0: 1.0000011, but 1 is right");
    fails("outside-in-float", "In float, a case: sum at place 0: 1.0000109");
}

/* Memory that was never written: NaN where the sanitizer allocates, and a huge number where it doesn't. */
static void fresh_memory_is_filled_with_junk(void **state)
{
    run sanitized = run_check(DOUBLE_CHECK, NULL, "30", "junk", NULL);
    run plain = run_check(FLOAT_CHECK, NULL, "30", "junk", NULL);

    assert_string_equal(field(&sanitized, 0, "printed"), "-nan\n-nan\n");
    assert_string_equal(field(&plain, 0, "printed"), "3.4e+38\n3.4e+38\n");
    run_free(&sanitized);
    run_free(&plain);
}

/* ---- the check's own surroundings ---- */

static void ignore_children(void)
{
    signal(SIGCHLD, SIG_IGN);
}

static void close_input_and_errors(void)
{
    close(0);
    close(2);
}

static void a_check_that_inherits_ignored_children_still_waits_for_its_own(void **state)
{
    run r = run_check(DOUBLE_CHECK, FLOAT_CHECK, "30", "nothing", ignore_children);

    verdict_is(&r, "pass");
    run_free(&r);
}

static void a_check_with_closed_descriptors_works(void **state)
{
    run r = run_check(DOUBLE_CHECK, FLOAT_CHECK, "30", "nothing", close_input_and_errors);

    verdict_is(&r, "pass");
    run_free(&r);
}

/* As in many containers: no process may look into another, which is how leaks are found. */
static void forbid_looking(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};

    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void where_leaks_cannot_be_looked_for_nothing_is_said_of_them(void **state)
{
    run r = run_check(DOUBLE_CHECK, FLOAT_CHECK, "30", "print-and-leak", forbid_looking);

    verdict_is(&r, "pass");
    assert_string_equal(field(&r, 0, "leak"), "");
    assert_string_equal(field(&r, 0, "printed"), "it's a =====\n");
    run_free(&r);
}

static void a_missing_check_in_float_is_said_once(void **state)
{
    captured c = RUN(DOUBLE_CHECK, "--float", "build/nowhere");

    assert_int_equal(c.status, 2);
    assert_string_equal(c.out, "");
    assert_string_equal(c.err, "lab0: the right values can't be worked out: build/nowhere could not be run: "
                               "No such file or directory\n");
    captured_free(&c);
}

static void a_report_that_cannot_be_written_is_an_error(void **state)
{
    captured c = RUN("/bin/sh", "-c", DOUBLE_CHECK " >/dev/full");

    assert_int_equal(c.status, 2);
    assert_string_equal(c.err, "lab0: No space left on device\n");
    captured_free(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_null_pointer_is_named_with_its_line),
        cmocka_unit_test(abort_is_named),
        cmocka_unit_test(a_failed_assert_is_quoted_with_its_line),
        cmocka_unit_test(endless_recursion_is_named),
        cmocka_unit_test(the_stack_has_a_limit_of_its_own),
        cmocka_unit_test(a_heap_overflow_is_named_with_its_line),
        cmocka_unit_test(use_after_free_is_named_with_its_line),
        cmocka_unit_test(a_double_free_is_named_with_its_line),
        cmocka_unit_test(signed_overflow_is_named_with_its_line),
        cmocka_unit_test(a_signal_that_it_sends_itself_is_named),
        cmocka_unit_test(a_crash_in_float_alone_is_said_to_be_in_float),
        cmocka_unit_test(a_sanitizer_that_cannot_print_is_a_crash_all_the_same),
        cmocka_unit_test(a_zero_byte_hides_no_report),
        cmocka_unit_test(an_endless_loop_is_stopped),
        cmocka_unit_test(an_endless_loop_that_ignores_signals_is_stopped),
        cmocka_unit_test(a_stopped_process_is_ended),
        cmocka_unit_test(a_process_that_went_to_another_group_is_stopped),
        cmocka_unit_test(waiting_for_a_silent_process_costs_no_time),
        cmocka_unit_test(a_check_that_is_killed_leaves_nothing_running),
        cmocka_unit_test(exit_is_no_way_to_return),
        cmocka_unit_test(ending_the_thread_or_becoming_another_program_is_no_way_to_return),
        cmocka_unit_test(the_status_of_a_todo_without_its_line_is_no_todo),
        cmocka_unit_test(the_status_of_a_missing_program_is_the_answers_own),
        cmocka_unit_test(closing_the_output_is_named),
        cmocka_unit_test(megabytes_of_output_are_stopped),
        cmocka_unit_test(endless_output_is_stopped),
        cmocka_unit_test(binary_output_is_shown_as_text),
        cmocka_unit_test(closing_the_other_descriptors_does_no_harm),
        cmocka_unit_test(no_descriptor_but_the_trace_can_be_written_into),
        cmocka_unit_test(the_input_is_empty),
        cmocka_unit_test(too_much_memory_is_named),
        cmocka_unit_test(a_trace_cannot_be_cut_short),
        cmocka_unit_test(a_trace_that_is_written_over_is_no_right_trace),
        cmocka_unit_test(processes_left_behind_are_ended),
        cmocka_unit_test(a_harmless_step_passes),
        cmocka_unit_test(a_leak_is_a_warning_with_its_line),
        cmocka_unit_test(a_leak_hides_nothing_that_was_printed),
        cmocka_unit_test(a_todo_is_named_with_its_line),
        cmocka_unit_test(what_is_printed_before_a_todo_is_not_taken_for_it),
        cmocka_unit_test(an_incomplete_trace_is_not_right),
        cmocka_unit_test(a_wrong_value_is_named),
        cmocka_unit_test(double_allows_1e_6_and_float_1e_5),
        cmocka_unit_test(fresh_memory_is_filled_with_junk),
        cmocka_unit_test(a_check_that_inherits_ignored_children_still_waits_for_its_own),
        cmocka_unit_test(a_check_with_closed_descriptors_works),
        cmocka_unit_test(where_leaks_cannot_be_looked_for_nothing_is_said_of_them),
        cmocka_unit_test(a_missing_check_in_float_is_said_once),
        cmocka_unit_test(a_report_that_cannot_be_written_is_an_error),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* such as '*output*' */
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what a check leaves running comes to this process */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
