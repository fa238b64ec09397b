/* compare_step and fingerprints on traces made by hand: what is right, what isn't, and what the sentence says; what has the
   same fingerprint; and traces whose bytes make no sense, which must never stop the reader. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compare.h"
#include "fingerprint.h"
#include "random.h"

#include <cmocka.h> /* last: it defines a macro fail */

static const tolerance in_double = {1e-6, 0}, in_float = {0, 1e-5};

/* ---- traces ---- */

/* A trace of step "1a" in memory, at the case "a model". */
static trace *new_trace(void)
{
    int fd = memfd_create("trace", 0);
    trace *t = trace_open_fd(fd);

    assert_non_null(t);
    close(fd);
    trace_step(t, "1a");
    trace_case(t, "a model");
    return t;
}

static trace *trace_of_reals(const double *a, int n)
{
    trace *t = new_trace();

    trace_reals(t, a, AXES({"place", 0, n}), "sums");
    return t;
}

static trace *trace_of_text(const char *text)
{
    trace *t = new_trace();

    trace_text(t, text, strlen(text), "text shown");
    return t;
}

static trace *trace_of_counts(long long first, long long second, const char *name)
{
    trace *t = new_trace();

    trace_counts(t, (long long[]){first, second}, AXES({"layer", 0, 2}), name);
    return t;
}

/* Compares and closes both. */
static comparison compared(trace *expected, trace *got, tolerance allowed)
{
    comparison c;

    compare_step(expected, got, "1a", allowed, &c);
    trace_close(expected);
    trace_close(got);
    return c;
}

static comparison compared_reals(const double *expected, const double *got, int n, tolerance allowed)
{
    return compared(trace_of_reals(expected, n), trace_of_reals(got, n), allowed);
}

static comparison compared_number(double expected, double got, tolerance allowed)
{
    return compared_reals(&expected, &got, 1, allowed);
}

static void is_right(comparison c)
{
    assert_string_equal(c.sentence, "");
    assert_true(c.right);
}

static void is_wrong(comparison c, const char *sentence)
{
    assert_false(c.right);
    assert_string_equal(c.sentence, sentence);
}

/* ---- numbers ---- */

static void equal_numbers_are_right_and_counted(void **state)
{
    const double a[] = {1, -2, 3e10};
    comparison c = compared_reals(a, a, 3, in_double);

    is_right(c);
    assert_int_equal(c.n_arrays, 1);
    assert_int_equal(c.n_values, 3);
    assert_true(c.largest == 0 && c.bound == 1e-6);
}

static void a_difference_inside_the_tolerance_is_right(void **state)
{
    is_right(compared_number(1, 1 + 0.99e-6, in_double));
    is_right(compared_number(1, 1 - 0.99e-6, in_double));
    is_right(compared_number(1000, 1000 + 0.99e-6, in_double));
}

static void a_difference_outside_the_tolerance_is_wrong(void **state)
{
    is_wrong(compared_number(1, 1.00000101, in_double), "a model: sums at place 0: 1.00000101, but 1 is right");
    is_wrong(compared_number(1, 0.99999899, in_double), "a model: sums at place 0: 0.99999899, but 1 is right");
    is_wrong(compared_number(1000, 1000.00000101, in_double), "a model: sums at place 0: 1000.000001, but 1000 is right");
}

static void the_tolerance_in_float_grows_with_the_largest_number_alone(void **state)
{
    const double big[] = {100, 1}, near[] = {100, 1 + 0.99e-3}, far[] = {100, 1 + 1.01e-3};

    is_right(compared_reals(big, near, 2, in_float));
    is_wrong(compared_reals(big, far, 2, in_float), "a model: sums at place 1: 1.00101, but 1 is right");
    is_right(compared_number(0.5, 0.5 + 0.99e-5, in_float));
    assert_false(compared_number(0.5, 0.5 + 1.01e-5, in_float).right);
}

static void an_infinity_among_the_right_numbers_widens_no_tolerance(void **state)
{
    const double right[] = {-INFINITY, 1}, wrong[] = {-INFINITY, 2};

    is_right(compared_reals(right, right, 2, in_float));
    is_wrong(compared_reals(right, wrong, 2, in_float), "a model: sums at place 1: 2, but 1 is right");
}

static void zeros_are_wrong(void **state)
{
    const double right[] = {0.3, -0.1}, zeros[] = {0, 0};

    assert_false(compared_reals(right, zeros, 2, in_double).right);
    assert_false(compared_reals(right, zeros, 2, in_float).right);
}

static void nan_is_never_right(void **state)
{
    assert_false(compared_number(1, NAN, in_double).right);
    assert_false(compared_number(1, -NAN, in_float).right);
    assert_false(compared_number(NAN, 1, in_double).right);
    assert_false(compared_number(NAN, NAN, in_double).right);
    assert_false(compared_number(INFINITY, NAN, in_double).right);
}

static void an_infinity_is_right_only_where_it_is_the_same(void **state)
{
    is_right(compared_number(INFINITY, INFINITY, in_double));
    is_right(compared_number(-INFINITY, -INFINITY, in_float));
    assert_false(compared_number(INFINITY, -INFINITY, in_double).right);
    assert_false(compared_number(INFINITY, 1e308, in_double).right);
    assert_false(compared_number(1, INFINITY, in_float).right);
    assert_false(compared_number(1e308, -1e308, in_float).right);
}

static void the_first_wrong_place_is_named_by_its_indices(void **state)
{
    double right[24], wrong[24];
    trace *expected = new_trace(), *got = new_trace();

    for (int i = 0; i < 24; i++)
        right[i] = wrong[i] = i;
    wrong[17] = wrong[20] = -1;
    trace_reals(expected, right, AXES({"layer", 0, 2}, {"position", 8, 3}, {"column", 0, 4}), "keys");
    trace_reals(got, wrong, AXES({"layer", 0, 2}, {"position", 8, 3}, {"column", 0, 4}), "keys");
    is_wrong(compared(expected, got, in_double),
             "a model: keys at layer 1, position 9, column 1: -1, but 17 is right");
}

static void the_first_of_two_wrong_arrays_is_named(void **state)
{
    trace *expected = new_trace(), *got = new_trace();

    for (int i = 0; i < 2; i++) {
        trace_case(expected, "model %d", i);
        trace_case(got, "model %d", i);
        trace_int(expected, 5, "length");
        trace_int(got, 4, "length");
    }
    is_wrong(compared(expected, got, in_double), "model 0: length: 4, but 5 is right");
}

static void the_largest_difference_and_its_place_are_kept(void **state)
{
    const double right[] = {1, 2, 3}, got[] = {1 + 1e-9, 2 - 5e-8, 3 + 1e-10};
    comparison c = compared_reals(right, got, 3, in_double);

    is_right(c);
    assert_true(fabs(c.largest - 5e-8) < 1e-12);
    assert_string_equal(c.largest_at, "a model at place 1");
}

/* ---- integers and counts ---- */

static void an_integer_must_be_equal(void **state)
{
    trace *expected = new_trace(), *got = new_trace();

    trace_int(expected, 1000000000, "length");
    trace_int(got, 1000000001, "length");
    is_wrong(compared(expected, got, in_float), "a model: length: 1000000001, but 1000000000 is right");
}

static void equal_counts_are_counted(void **state)
{
    comparison c = compared(trace_of_counts(3, 4, "key projections"), trace_of_counts(3, 4, "key projections"), in_double);

    is_right(c);
    assert_int_equal(c.n_counts, 2);
    assert_int_equal(c.n_values, 0);
}

static void too_low_a_count_is_work_not_done(void **state)
{
    is_wrong(compared(trace_of_counts(3, 4, "key projections"), trace_of_counts(3, 3, "key projections"), in_double),
             "a model: key projections at layer 1: 3, but 4 is right; part of the work isn't done, or is done without the "
             "counted primitive");
}

static void too_high_a_count_is_work_done_twice(void **state)
{
    is_wrong(compared(trace_of_counts(3, 4, "key projections"), trace_of_counts(9, 4, "key projections"), in_double),
             "a model: key projections at layer 0: 9, but 3 is right; some tokens are projected more than once");
    is_wrong(compared(trace_of_counts(3, 4, "attention scores"), trace_of_counts(9, 4, "attention scores"), in_double),
             "a model: attention scores at layer 0: 9, but 3 is right; scores that causality hides are computed too, or "
             "some twice");
}

/* ---- records ---- */

static trace *trace_of_ints(int n, const char *const *names)
{
    trace *t = new_trace();

    for (int i = 0; i < n; i++)
        trace_int(t, i, names[i]);
    return t;
}

static void a_missing_record_is_wrong(void **state)
{
    const char *const names[] = {"first", "second", "third"}, *const without[] = {"first", "third"};

    is_wrong(compared(trace_of_ints(2, names), trace_of_ints(1, names), in_double),
             "a model: second: the answer didn't come to this");
    is_wrong(compared(trace_of_ints(3, names), trace_of_ints(2, without), in_double),
             "a model: second: the answer didn't come to this");
}

static void a_record_too_many_is_wrong(void **state)
{
    const char *const names[] = {"first", "second"};

    is_wrong(compared(trace_of_ints(1, names), trace_of_ints(2, names), in_double),
             "a model: second: the answer produced this, which it shouldn't have come to");
}

static void a_wrong_value_before_a_missing_record_is_what_is_said(void **state)
{
    trace *expected = new_trace(), *got = new_trace();

    trace_int(expected, 1, "first");
    trace_int(expected, 1, "second");
    trace_int(got, 2, "first");
    is_wrong(compared(expected, got, in_double), "a model: first: 2, but 1 is right");
}

static void another_case_another_kind_or_other_axes_are_wrong(void **state)
{
    trace *expected = new_trace(), *got = new_trace();
    trace_int(expected, 1, "value");
    trace_case(got, "another model");
    trace_int(got, 1, "value");
    is_wrong(compared(expected, got, in_double), "a model: value: the answer didn't come to this");

    is_wrong(compared(trace_of_counts(3, 4, "sums"), trace_of_reals((double[]){3, 4}, 2), in_double),
             "a model: sums: the answer didn't come to this");

    expected = new_trace(), got = new_trace();
    trace_reals(expected, (double[]){1, 2}, AXES({"row", 0, 2}), "sums");
    trace_reals(got, (double[]){1, 2}, AXES({"row", 1, 2}), "sums");
    is_wrong(compared(expected, got, in_double), "a model: sums: the answer didn't come to this");
}

static void another_size_is_wrong_and_said(void **state)
{
    const double a[] = {1, 2, 3};

    is_wrong(compared(trace_of_reals(a, 3), trace_of_reals(a, 2), in_double), "a model: sums: 2 values, but 3 are right");
    is_wrong(compared(trace_of_reals(a, 2), trace_of_reals(a, 3), in_double), "a model: sums: 3 values, but 2 are right");
}

static void nothing_compared_is_not_right(void **state)
{
    is_wrong(compared(new_trace(), new_trace(), in_double), "nothing was compared");
}

static void records_of_another_step_do_not_count(void **state)
{
    trace *expected = new_trace(), *got = new_trace();

    trace_int(expected, 1, "value");
    trace_step(got, "1b");
    trace_case(got, "a model");
    trace_int(got, 1, "value");
    is_wrong(compared(expected, got, in_double), "a model: value: the answer didn't come to this");
}

static void an_empty_array_is_right_where_it_is_expected(void **state)
{
    is_right(compared_reals((double[]){1}, (double[]){2}, 0, in_double));
}

/* ---- text ---- */

static void equal_text_is_right(void **state)
{
    is_right(compared(trace_of_text("Grüße\n"), trace_of_text("Grüße\n"), in_double));
    is_right(compared(trace_of_text(""), trace_of_text(""), in_double));
}

static void other_text_is_wrong_and_quoted(void **state)
{
    is_wrong(compared(trace_of_text("abc"), trace_of_text("abd"), in_double),
             "a model: text shown: \"abd\", but \"abc\" is right");
    is_wrong(compared(trace_of_text("abc"), trace_of_text("ab"), in_double),
             "a model: text shown: \"ab\", but \"abc\" is right");
    is_wrong(compared(trace_of_text("é"), trace_of_text("\xc3\033"), in_double),
             "a model: text shown: \"\\xc3\\x1b\", but \"é\" is right");
}

static void a_difference_late_in_a_long_text_is_shown(void **state)
{
    char right[301], wrong[301];

    memset(right, 'a', 300);
    right[300] = 0;
    memcpy(wrong, right, sizeof wrong);
    wrong[298] = 'b';
    is_wrong(compared(trace_of_text(right), trace_of_text(wrong), in_double),
             "a model: text shown: \"…aaaaaaaaaaaaaaaaaaaaba\", but \"…aaaaaaaaaaaaaaaaaaaaaa\" is right");
}

/* ---- the top token ---- */

static comparison compared_logits(const double *expected, const double *got, int rows, int n, tolerance allowed)
{
    trace *e = new_trace(), *g = new_trace();

    trace_logits(e, expected, AXES({"position", 0, rows}, {"token", 0, n}), "logits");
    trace_logits(g, got, AXES({"position", 0, rows}, {"token", 0, n}), "logits");
    return compared(e, g, allowed);
}

static void top_tokens_are_counted(void **state)
{
    const double right[] = {1, 2, 3, 6, 5, 4}, wrong[] = {1, 2, 3, 4, 5, 6};
    comparison c = compared_logits(right, right, 2, 3, in_double);

    is_right(c);
    assert_int_equal(c.n_rows, 2);
    assert_int_equal(c.n_top, 2);
    c = compared_logits(right, wrong, 2, 3, in_double);
    is_wrong(c, "a model: logits at position 1, token 0: 4, but 6 is right");
    assert_int_equal(c.n_rows, 2);
    assert_int_equal(c.n_top, 1);
}

static void two_nearly_equal_logits_can_be_in_either_order(void **state)
{
    const double right[] = {3, 3 + 5e-6, 1}, swapped[] = {3 + 5e-6, 3, 1};

    is_right(compared_logits(right, swapped, 1, 3, in_float));
    assert_false(compared_logits(right, swapped, 1, 3, in_double).right);
}

static void a_top_token_that_rounding_cannot_move_must_be_on_top(void **state)
{
    const double right[] = {3, 4, 1}, wrong[] = {4, 3, 1};
    comparison c = compared_logits(right, wrong, 1, 3, (tolerance){0.4, 0});

    assert_false(c.right);
    assert_int_equal(c.n_top, 0);
}

static void a_vocabulary_of_one_has_no_top_token(void **state)
{
    comparison c = compared_logits((double[]){1, 2}, (double[]){1, 2}, 2, 1, in_double);

    is_right(c);
    assert_int_equal(c.n_rows, 0);
}

/* ---- fingerprints ---- */

static fingerprint print_with(trace *t, outcome o)
{
    job j = {.trace = t, .outcome = o};
    fingerprint f;

    fingerprint_of(&j, "1a", &f);
    trace_close(t);
    return f;
}

static fingerprint print_of(trace *t)
{
    return print_with(t, (outcome){.kind = ENDED});
}

/* Closes both. */
static bool same(trace *a, trace *b)
{
    fingerprint of_a = print_of(a), of_b = print_of(b);
    bool is_same = same_fingerprint(&of_a, &of_b);

    assert_true(is_same == same_fingerprint(&of_b, &of_a));
    return is_same;
}

static bool same_reals(double a, double b)
{
    return same(trace_of_reals(&a, 1), trace_of_reals(&b, 1));
}

static void equal_traces_have_the_same_fingerprint(void **state)
{
    const char *const names[] = {"first", "second"};
    const double a[] = {1, -2, 3e10};

    assert_true(same(trace_of_reals(a, 3), trace_of_reals(a, 3)));
    assert_true(same(trace_of_ints(2, names), trace_of_ints(2, names)));
    assert_true(same(trace_of_text("ab"), trace_of_text("ab")));
    assert_true(same(trace_of_text(""), trace_of_text("")));
    assert_true(same(trace_of_counts(1, 2, "a"), trace_of_counts(1, 2, "a")));
}

enum { MANY = 70000 };

/* What a model's logits are about: between -10 and 10. */
static void fill(double *a)
{
    generator g = {1};

    for (int i = 0; i < MANY; i++)
        a[i] = 20 * random_uniform(&g) - 10;
}

static void rounding_keeps_the_fingerprint(void **state)
{
    static double exact[MANY], rounded[MANY];

    assert_true(same_reals(1, 1 + 1e-12));
    assert_true(same_reals(-1000, -1000 - 1e-12));
    fill(exact);
    for (int i = 0; i < MANY; i++)
        rounded[i] = exact[i] + (i % 2 ? 1e-12 : -1e-12);
    assert_true(same(trace_of_reals(exact, MANY), trace_of_reals(rounded, MANY)));
    for (int i = 0; i < MANY; i++)
        rounded[i] = exact[i] + 1e-12; /* all one way */
    assert_true(same(trace_of_reals(exact, MANY), trace_of_reals(rounded, MANY)));
}

static void one_number_among_many_changes_the_fingerprint(void **state)
{
    static double a[MANY];

    fill(a);
    fingerprint right = print_of(trace_of_reals(a, MANY));
    for (int i = 0; i <= MANY; i += MANY / 10) {
        int place = i < MANY ? i : MANY - 1;
        double kept = a[place];
        a[place] += 1e-6;
        fingerprint wrong = print_of(trace_of_reals(a, MANY));
        a[place] = kept;
        if (same_fingerprint(&right, &wrong))
            fail_msg("1e-6 at place %d isn't seen", place);
    }
}

static void a_number_in_another_place_changes_the_fingerprint(void **state)
{
    assert_false(same(trace_of_reals((double[]){1, 2}, 2), trace_of_reals((double[]){2, 1}, 2)));
    assert_false(same(trace_of_reals((double[]){1, 0}, 2), trace_of_reals((double[]){0, 1}, 2)));
    assert_false(same(trace_of_reals((double[]){1, 2}, 2), trace_of_reals((double[]){1, 2}, 1)));
    assert_false(same(trace_of_reals((double[]){0, 0}, 2), trace_of_reals((double[]){0, 0}, 1)));
    assert_false(same_reals(1, -1));
}

static void what_is_no_number_is_told_apart(void **state)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0, 1e300, -1e300, 1e301, 1e6};
    enum { ODD = sizeof odd / sizeof *odd };

    assert_true(same_reals(NAN, -NAN));
    for (int i = 0; i < ODD; i++)
        for (int k = 0; k < ODD; k++)
            if (same_reals(odd[i], odd[k]) != (i == k))
                fail_msg("%g and %g", odd[i], odd[k]);
}

static void a_huge_number_hides_no_other(void **state)
{
    static const double huge[] = {NAN, INFINITY, -INFINITY, 1e300};

    for (int i = 0; i < 4; i++) {
        const double a[] = {huge[i], 1}, b[] = {huge[i], 1 + 1e-6};
        assert_false(same(trace_of_reals(a, 2), trace_of_reals(b, 2)));
    }
}

static void an_integer_or_a_byte_changes_the_fingerprint(void **state)
{
    assert_false(same(trace_of_counts(1, 2, "a"), trace_of_counts(1, 3, "a")));
    assert_false(same(trace_of_counts(1, 2, "a"), trace_of_counts(2, 1, "a")));
    assert_false(same(trace_of_counts(0, 1ll << 32, "a"), trace_of_counts(0, 0, "a")));
    assert_false(same(trace_of_text("a"), trace_of_text("b")));
    assert_false(same(trace_of_text("a"), trace_of_text("ab")));
    assert_false(same(trace_of_text(""), trace_of_text("a")));
}

static void other_records_change_the_fingerprint(void **state)
{
    const char *const names[] = {"first", "second"}, *const renamed[] = {"first", "third"};

    assert_false(same(trace_of_ints(2, names), trace_of_ints(1, names)));
    assert_false(same(trace_of_ints(2, names), trace_of_ints(2, renamed)));
    assert_false(same(trace_of_counts(1, 2, "a"), trace_of_counts(1, 2, "b")));
    assert_false(same(trace_of_counts(3, 4, "sums"), trace_of_reals((double[]){3, 4}, 2)));
}

/* Two numbers, recorded the other way round if `swapped`; the second one at another case if `apart`. */
static trace *trace_of_two(bool swapped, bool apart)
{
    trace *t = new_trace();

    for (int i = 0; i < 2; i++) {
        if (i == 1 && apart)
            trace_case(t, "another model");
        trace_int(t, 5, (i == 1) != swapped ? "second" : "first");
    }
    return t;
}

static void another_order_or_case_changes_the_fingerprint(void **state)
{
    assert_true(same(trace_of_two(false, false), trace_of_two(false, false)));
    assert_false(same(trace_of_two(false, false), trace_of_two(true, false)));
    assert_false(same(trace_of_two(false, false), trace_of_two(false, true)));
}

static void records_of_another_step_are_not_in_the_fingerprint(void **state)
{
    trace *t = trace_of_text("ab");

    trace_step(t, "1b");
    trace_int(t, 1, "value");
    assert_true(same(t, trace_of_text("ab")));
}

static bool same_outcome(outcome a, outcome b)
{
    fingerprint of_a = print_with(trace_of_text("ab"), a), of_b = print_with(trace_of_text("ab"), b);

    return same_fingerprint(&of_a, &of_b);
}

static void another_outcome_changes_the_fingerprint(void **state)
{
    static const outcome all[] = {
        {.kind = ENDED}, {.kind = TIMED_OUT}, {.kind = EXITED}, {.kind = EXITED, .status = 1}, {.kind = CRASHED, .what = "SEGV"},
        {.kind = CRASHED, .what = "Aborted"}, {.kind = MISSING, .what = "cache_init"}, {.kind = MISSING, .what = "cache_free"},
    };
    enum { ALL = sizeof all / sizeof *all };

    for (int i = 0; i < ALL; i++)
        for (int k = 0; k < ALL; k++)
            if (same_outcome(all[i], all[k]) != (i == k))
                fail_msg("outcomes %d and %d", i, k);
}

/* Where it crashed, and what it leaked, isn't what it computed. */
static void a_line_or_a_leak_keeps_the_fingerprint(void **state)
{
    assert_true(same_outcome((outcome){.kind = CRASHED, .what = "SEGV", .at = "my.c:3"},
                             (outcome){.kind = CRASHED, .what = "SEGV", .at = "reference.c:7"}));
    assert_true(same_outcome((outcome){.kind = ENDED}, (outcome){.kind = ENDED, .leak = "12 bytes"}));
}

static void a_trace_without_records_matches_nothing(void **state)
{
    assert_false(same(new_trace(), new_trace()));
    assert_false(same(new_trace(), trace_of_text("")));
}

static void print_line(const fingerprint *f, char *line, size_t size)
{
    FILE *to = fmemopen(line, size, "w");

    assert_non_null(to);
    fingerprint_print(f, to);
    fclose(to);
}

static void a_printed_fingerprint_is_read_back(void **state)
{
    fingerprint all[] = {print_of(trace_of_text("ab")), print_of(trace_of_reals((double[]){1. / 3, -1e-300}, 2)),
                         print_of(trace_of_reals((double[]){INFINITY, 1e300}, 2)), print_of(new_trace()),
                         {1, UINT64_MAX, {-1e308, 5e-324, 0, 0.1}}, {1, 1, {0}}}, read;
    char line[256];

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        print_line(&all[i], line, sizeof line);
        assert_null(strpbrk(line, "\t\n"));
        assert_int_equal(fingerprint_parse(line, &read), 0);
        assert_int_equal(read.n_records, all[i].n_records);
        assert_true(read.exact == all[i].exact);
        assert_memory_equal(read.sums, all[i].sums, sizeof read.sums);
        assert_true(same_fingerprint(&read, &all[i]) == (read.n_records > 0));
    }
}

static void a_line_cut_short_is_refused(void **state)
{
    fingerprint right = print_of(trace_of_reals((double[]){0.1, 0.7}, 2)), read;
    char line[256];

    print_line(&right, line, sizeof line);
    for (int n = strrchr(line, ' ') + 1 - line; n >= 0; n--) {
        line[n] = 0;
        if (fingerprint_parse(line, &read) != -1)
            fail_msg("\"%s\" is read", line);
    }
}

static void a_garbled_line_is_refused(void **state)
{
    static const char *const lines[] = {"one 03f95f76e66e52bf 0 0 0 0", "1 wxyz 0 0 0 0", "1 03f95f76e66e52bf 0 O 0 0",
                                        "1 03f95f76e66e52bf 0, 0, 0, 0", "1a\tname\t1 03f95f76e66e52bf 0 0 0 0",
                                        "\xff\xfe\x01", "\n"};
    fingerprint read;

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (fingerprint_parse(lines[i], &read) != -1)
            fail_msg("\"%s\" is read", lines[i]);
}

static void a_sum_that_is_no_number_matches_nothing(void **state)
{
    fingerprint f;

    if (fingerprint_parse("1 03f95f76e66e52bf nan 0 0 0", &f) == 0)
        assert_false(same_fingerprint(&f, &f));
}

/* ---- traces that make no sense ---- */

enum { SAMPLE = 1 << 12 };

/* Writes a trace with a record of every kind, and reads the file back as bytes. Returns how many of them are used: the
   file is longer, and empty behind them. */
static size_t sample_bytes(const char *path, unsigned char *bytes)
{
    trace *t = trace_open(path);
    uint64_t used;

    assert_non_null(t);
    trace_step(t, "1a");
    trace_case(t, "a model");
    trace_logits(t, (double[]){1, 2, 3, 4}, AXES({"position", 5, 2}, {"token", 0, 2}), "logits");
    trace_int(t, 7, "length");
    trace_counts(t, (long long[]){1, 2}, AXES({"layer", 0, 2}), "key projections");
    trace_text(t, "some text", 9, "text");
    trace_finish(t);
    trace_close(t);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, SAMPLE, file), SAMPLE);
    fclose(file);
    memcpy(&used, bytes + 8, sizeof used);
    assert_in_range(used, 500, SAMPLE);
    return used;
}

static void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* Reads all there is; returns how many numbers and bytes that is. */
static size_t read_all(const trace *t)
{
    size_t n = strlen(trace_last_case(t)) + trace_is_finished(t) + trace_is_started(t);
    double sum = 0;

    for (const record *r = trace_next(t, "1a", NULL); r; r = trace_next(t, "1a", r)) {
        for (size_t i = 0; i < r->n; i++)
            sum += r->kind == TEXT ? record_bytes(r)[i] : record_number(r, i);
        n += r->n + strlen(r->name) + strlen(r->where);
    }
    return n + (isnan(sum) ? 1 : 0); /* so that the sum is worked out */
}

/* Whatever is in the file: it's read, compared and looked up. */
static void survives(const char *path, const trace *good)
{
    comparison c;
    trace *t = trace_read(path);

    if (!t)
        return;
    read_all(t);
    compare_step(good, t, "1a", in_double, &c);
    fingerprint f = print_of(t);
    same_fingerprint(&f, &f);
}

/* Changes a few bytes, mostly to 0, 1 or 0xff, which are what sizes go wrong with. */
static void spoil(generator *g, unsigned char *bytes, size_t n)
{
    static const unsigned char favourites[] = {0, 1, 0x7f, 0x80, 0xff};

    for (int changes = 1 + random_bits(g) % 8; changes > 0; changes--)
        bytes[random_bits(g) % n] = random_bits(g) % 4 ? favourites[random_bits(g) % 5] : random_bits(g);
}

static void bytes_that_make_no_sense_stop_nothing(void **state)
{
    unsigned char bytes[SAMPLE], spoilt[SAMPLE];
    char path[] = "/tmp/trace-XXXXXX";
    generator g = {1};

    close(mkstemp(path));
    size_t n = sample_bytes(path, bytes);
    trace *good = trace_read(path);
    for (int i = 0; i < 2000; i++) {
        memcpy(spoilt, bytes, n);
        spoil(&g, spoilt, n);
        char other[] = "/tmp/trace-XXXXXX";
        close(mkstemp(other));
        write_bytes(other, spoilt, random_bits(&g) % 4 ? n : random_bits(&g) % n);
        survives(other, good);
        unlink(other);
    }
    trace_close(good);
    unlink(path);
}

/* The header's second number says how much of the file is used. */
static void a_lying_size_is_not_believed(void **state)
{
    static const uint64_t lies[] = {0, 1, 7, 135, 137, 1000, 1u << 28, (1u << 28) + 1, UINT64_MAX, UINT64_MAX - 7};
    unsigned char bytes[SAMPLE];
    char path[] = "/tmp/trace-XXXXXX", good_path[] = "/tmp/trace-XXXXXX";

    close(mkstemp(path));
    close(mkstemp(good_path));
    size_t n = sample_bytes(good_path, bytes);
    trace *good = trace_read(good_path);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(bytes + 8, &lies[i], 8);
        write_bytes(path, bytes, n);
        survives(path, good);
    }
    trace_close(good);
    unlink(path);
    unlink(good_path);
}

enum { HEADER = 136 };

static void spoil_record(record *r, int way)
{
    switch (way) {
    case 0: r->kind = 0; break;
    case 1: r->kind = TEXT + 1; break;
    case 2: r->n_axes = TRACE_AXES + 1; break;
    case 3: r->n = r->axes[0].n = 1 << 20; break; /* more than the file has */
    case 4: r->n = UINT64_MAX; break;
    case 5: r->axes[0].n = 3; break; /* the axes don't multiply to n */
    case 6: r->axes[0].n = r->axes[1].n = -2; break;
    case 7: memset(r->axes[1].name, 'x', sizeof r->axes[1].name); break;
    case 8: memset(r->step, 'x', sizeof r->step); break;
    case 9: memset(r->where, 'x', sizeof r->where); break;
    case 10: memset(r->name, 'x', sizeof r->name); break;
    }
}

static void a_record_that_makes_no_sense_ends_the_trace(void **state)
{
    unsigned char bytes[SAMPLE], spoilt[SAMPLE];
    char path[] = "/tmp/trace-XXXXXX";

    close(mkstemp(path));
    size_t n = sample_bytes(path, bytes);
    for (int way = -1; way <= 10; way++) {
        record first;
        memcpy(spoilt, bytes, n);
        memcpy(&first, spoilt + HEADER, sizeof first);
        spoil_record(&first, way);
        memcpy(spoilt + HEADER, &first, sizeof first);
        write_bytes(path, spoilt, n);
        trace *t = trace_read(path);
        const record *r = trace_next(t, "1a", NULL);
        if ((r != NULL) != (way == -1))
            fail_msg("spoilt in way %d, a record is %s", way, r ? "read" : "not read");
        trace_close(t);
    }
    unlink(path);
}

static void a_file_cut_short_is_read_as_far_as_it_goes(void **state)
{
    unsigned char bytes[SAMPLE];
    char path[] = "/tmp/trace-XXXXXX";
    comparison c;

    close(mkstemp(path));
    size_t n = sample_bytes(path, bytes);
    trace *good = trace_read(path);
    compare_step(good, good, "1a", in_double, &c);
    is_right(c);
    char cut_path[] = "/tmp/trace-XXXXXX";
    close(mkstemp(cut_path));
    write_bytes(cut_path, bytes, n - 8);
    trace *cut = trace_read(cut_path);
    compare_step(good, cut, "1a", in_double, &c);
    is_wrong(c, "a model: text: the answer didn't come to this");
    trace_close(cut);
    trace_close(good);
    unlink(path);
    unlink(cut_path);
}

static void reading_a_missing_file_makes_none(void **state)
{
    assert_null(trace_read("build/no-such.trace"));
    assert_int_equal(access("build/no-such.trace", F_OK), -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_numbers_are_right_and_counted),
        cmocka_unit_test(a_difference_inside_the_tolerance_is_right),
        cmocka_unit_test(a_difference_outside_the_tolerance_is_wrong),
        cmocka_unit_test(the_tolerance_in_float_grows_with_the_largest_number_alone),
        cmocka_unit_test(an_infinity_among_the_right_numbers_widens_no_tolerance),
        cmocka_unit_test(zeros_are_wrong),
        cmocka_unit_test(nan_is_never_right),
        cmocka_unit_test(an_infinity_is_right_only_where_it_is_the_same),
        cmocka_unit_test(the_first_wrong_place_is_named_by_its_indices),
        cmocka_unit_test(the_first_of_two_wrong_arrays_is_named),
        cmocka_unit_test(the_largest_difference_and_its_place_are_kept),
        cmocka_unit_test(an_integer_must_be_equal),
        cmocka_unit_test(equal_counts_are_counted),
        cmocka_unit_test(too_low_a_count_is_work_not_done),
        cmocka_unit_test(too_high_a_count_is_work_done_twice),
        cmocka_unit_test(a_missing_record_is_wrong),
        cmocka_unit_test(a_record_too_many_is_wrong),
        cmocka_unit_test(a_wrong_value_before_a_missing_record_is_what_is_said),
        cmocka_unit_test(another_case_another_kind_or_other_axes_are_wrong),
        cmocka_unit_test(another_size_is_wrong_and_said),
        cmocka_unit_test(nothing_compared_is_not_right),
        cmocka_unit_test(records_of_another_step_do_not_count),
        cmocka_unit_test(an_empty_array_is_right_where_it_is_expected),
        cmocka_unit_test(equal_text_is_right),
        cmocka_unit_test(other_text_is_wrong_and_quoted),
        cmocka_unit_test(a_difference_late_in_a_long_text_is_shown),
        cmocka_unit_test(top_tokens_are_counted),
        cmocka_unit_test(two_nearly_equal_logits_can_be_in_either_order),
        cmocka_unit_test(a_top_token_that_rounding_cannot_move_must_be_on_top),
        cmocka_unit_test(a_vocabulary_of_one_has_no_top_token),
        cmocka_unit_test(equal_traces_have_the_same_fingerprint),
        cmocka_unit_test(rounding_keeps_the_fingerprint),
        cmocka_unit_test(one_number_among_many_changes_the_fingerprint),
        cmocka_unit_test(a_number_in_another_place_changes_the_fingerprint),
        cmocka_unit_test(what_is_no_number_is_told_apart),
        cmocka_unit_test(a_huge_number_hides_no_other),
        cmocka_unit_test(an_integer_or_a_byte_changes_the_fingerprint),
        cmocka_unit_test(other_records_change_the_fingerprint),
        cmocka_unit_test(another_order_or_case_changes_the_fingerprint),
        cmocka_unit_test(records_of_another_step_are_not_in_the_fingerprint),
        cmocka_unit_test(another_outcome_changes_the_fingerprint),
        cmocka_unit_test(a_line_or_a_leak_keeps_the_fingerprint),
        cmocka_unit_test(a_trace_without_records_matches_nothing),
        cmocka_unit_test(a_printed_fingerprint_is_read_back),
        cmocka_unit_test(a_line_cut_short_is_refused),
        cmocka_unit_test(a_garbled_line_is_refused),
        cmocka_unit_test(a_sum_that_is_no_number_matches_nothing),
        cmocka_unit_test(bytes_that_make_no_sense_stop_nothing),
        cmocka_unit_test(a_lying_size_is_not_believed),
        cmocka_unit_test(a_record_that_makes_no_sense_ends_the_trace),
        cmocka_unit_test(a_file_cut_short_is_read_as_far_as_it_goes),
        cmocka_unit_test(reading_a_missing_file_makes_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
