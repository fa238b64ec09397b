/* The tokenizer, and the strict UTF-8 and the quoting below it, against bytes worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "broken.h"
#include "text.h"
#include "tokenizer.h"

#include <cmocka.h> /* last: it defines a macro fail */

#define BYTES(literal) literal, sizeof literal - 1

/* ---- UTF-8 ---- */

static void is_character(const char *bytes, size_t n, int length, int expected)
{
    int code = -1;

    assert_int_equal(decode_character(bytes, n, &code), length);
    assert_int_equal(code, expected);
}

static int length_of(const char *bytes, size_t n)
{
    int code;

    return decode_character(bytes, n, &code);
}

static void the_first_and_last_character_of_each_length_are_decoded(void **state)
{
    (void)state;
    is_character(BYTES("\0"), 1, 0);
    is_character(BYTES("\x7f"), 1, 0x7f);
    is_character(BYTES("\xc2\x80"), 2, 0x80);
    is_character(BYTES("\xdf\xbf"), 2, 0x7ff);
    is_character(BYTES("\xe0\xa0\x80"), 3, 0x800);
    is_character(BYTES("\xef\xbf\xbf"), 3, 0xffff);
    is_character(BYTES("\xf0\x90\x80\x80"), 4, 0x10000);
    is_character(BYTES("\xf4\x8f\xbf\xbf"), 4, 0x10ffff);
}

static void only_the_first_character_is_decoded(void **state)
{
    (void)state;
    is_character(BYTES("\xc3\xa9zz"), 2, 0xe9);
}

static void overlong_forms_are_refused(void **state)
{
    (void)state;
    assert_int_equal(length_of(BYTES("\xc1\xbf")), 0);
    assert_int_equal(length_of(BYTES("\xe0\x9f\xbf")), 0);
    assert_int_equal(length_of(BYTES("\xf0\x8f\xbf\xbf")), 0);
}

static void surrogates_are_refused_and_their_neighbours_are_not(void **state)
{
    (void)state;
    is_character(BYTES("\xed\x9f\xbf"), 3, 0xd7ff);
    assert_int_equal(length_of(BYTES("\xed\xa0\x80")), 0);
    assert_int_equal(length_of(BYTES("\xed\xbf\xbf")), 0);
    is_character(BYTES("\xee\x80\x80"), 3, 0xe000);
}

static void numbers_above_unicode_are_refused(void **state)
{
    (void)state;
    assert_int_equal(length_of(BYTES("\xf4\x90\x80\x80")), 0);
    assert_int_equal(length_of(BYTES("\xf8\x88\x80\x80\x80")), 0);
    assert_int_equal(length_of(BYTES("\xf8\x90\x80\x80")), 0); /* the bits of U+10000 behind a wrong first byte */
    assert_int_equal(length_of(BYTES("\xff")), 0);
}

static void unfinished_and_stray_bytes_are_refused(void **state)
{
    (void)state;
    assert_int_equal(length_of(NULL, 0), 0);
    assert_int_equal(length_of("a", 0), 0);
    assert_int_equal(length_of(BYTES("\x80")), 0);
    assert_int_equal(length_of(BYTES("\xbf")), 0);
    assert_int_equal(length_of("\xc3\xa9", 1), 0);
    assert_int_equal(length_of("\xf0\x90\x80\x80", 3), 0);
    assert_int_equal(length_of(BYTES("\xc3z")), 0);
    assert_int_equal(length_of(BYTES("\xe2\x82z")), 0);
    assert_int_equal(length_of(BYTES("\xe2\x82\xc2")), 0);
}

/* ---- quoting ---- */

static void printable_text_is_quoted_as_it_is(void **state)
{
    (void)state;
    assert_string_equal(quote(BYTES(" ~é€😀\u00a0")).text, " ~é€😀\u00a0");
    assert_string_equal(quote("", 0).text, "");
}

static void control_characters_and_broken_bytes_are_escaped(void **state)
{
    (void)state;
    assert_string_equal(quote(BYTES("a\n\x1b\x1f\x7f\xff\0z")).text, "a\\x0a\\x1b\\x1f\\x7f\\xff\\x00z");
    assert_string_equal(quote(BYTES("\xc2\x9b")).text, "\\xc2\\x9b");
}

static void a_long_text_is_cut_to_fit_between_characters(void **state)
{
    char text[400];

    (void)state;
    for (int i = 0; i < 200; i++)
        memcpy(text + 2 * i, "é", 2);
    quoted q = quote(text, sizeof text);
    size_t n = strlen(q.text);
    assert_true(n < sizeof q.text && n > 80);
    assert_string_equal(q.text + n - 3, "…");
    assert_memory_equal(q.text, text, n - 3);
    assert_int_equal((n - 3) % 2, 0);
    memset(text, '\n', sizeof text);
    assert_true(strlen(quote(text, sizeof text).text) < sizeof q.text);
}

/* ---- the vocabulary ---- */

static tokenizer made_of(const char *vocabulary)
{
    tokenizer t;
    failure f;

    assert_int_equal(tokenizer_init(&t, vocabulary, &f), 0);
    return t;
}

static failure refused(const char *vocabulary)
{
    tokenizer t;
    failure f = {""};

    assert_int_equal(tokenizer_init(&t, vocabulary, &f), -1);
    assert_null(t.pieces);
    assert_int_equal(t.n_vocab, 0);
    tokenizer_free(&t);
    return f;
}

static void end_of_text_comes_after_the_characters(void **state)
{
    tokenizer t = made_of("a\né€😀");

    (void)state;
    assert_int_equal(t.n_vocab, 6);
    assert_int_equal(t.end_of_text, 5);
    tokenizer_free(&t);
    assert_null(t.pieces);
}

static void an_empty_vocabulary_is_refused(void **state)
{
    (void)state;
    failure f = refused("");
    assert_true(says(&f, "vocabulary", "empty", NULL));
}

static void a_vocabulary_that_is_not_utf8_is_refused(void **state)
{
    (void)state;
    failure f = refused("ab\xff");
    assert_true(says(&f, "byte 2 ", "vocabulary", "\\xff", "UTF-8", NULL));
    f = refused("ab\xc3");
    assert_true(says(&f, "byte 2 ", "\\xc3", NULL));
}

static void a_character_named_twice_is_refused(void **state)
{
    (void)state;
    failure f = refused("aéb\né");
    assert_true(says(&f, "vocabulary", "é", "again", "byte 5", NULL));
    f = refused("\n\n");
    assert_true(says(&f, "\\x0a", "again", "byte 1", NULL));
}

/* ---- text to ids and back ---- */

static int encode(const char *vocabulary, const char *text, size_t n, int *ids, int capacity, failure *f)
{
    tokenizer t = made_of(vocabulary);

    int n_ids = tokenizer_encode(&t, text, n, ids, capacity, f);
    tokenizer_free(&t);
    return n_ids;
}

static void text_becomes_the_ids_of_its_characters(void **state)
{
    int ids[6] = {-7, -7, -7, -7, -7, -7};
    failure f;

    (void)state;
    assert_int_equal(encode("a\né€😀", BYTES("😀a€\né"), ids, 6, &f), 5);
    assert_memory_equal(ids, ((int[]){4, 0, 3, 1, 2, -7}), sizeof ids);
}

static void empty_text_has_no_ids(void **state)
{
    int id = -7;
    failure f;

    (void)state;
    assert_int_equal(encode("ab", "", 0, &id, 1, &f), 0);
    assert_int_equal(encode("ab", "ab", 0, &id, 0, &f), 0);
    assert_int_equal(id, -7);
}

static void only_the_bytes_given_are_read(void **state)
{
    int ids[3];
    failure f;

    (void)state;
    assert_int_equal(encode("ab", "abZ", 2, ids, 3, &f), 2);
}

static void a_character_outside_the_vocabulary_is_shown_with_its_offset(void **state)
{
    int ids[8];
    failure f;

    (void)state;
    assert_int_equal(encode("aé", BYTES("aéaßa"), ids, 8, &f), -1);
    assert_true(says(&f, "character ß", "byte 4", "vocabulary", NULL));
    assert_int_equal(encode("aé", BYTES("a\r"), ids, 8, &f), -1);
    assert_true(says(&f, "character \\x0d", "byte 1", NULL));
}

static void a_zero_byte_is_not_the_end_of_text_token(void **state)
{
    int ids[8];
    failure f;

    (void)state;
    assert_int_equal(encode("ab", BYTES("a\0b"), ids, 8, &f), -1);
    assert_true(says(&f, "character \\x00", "byte 1", NULL));
}

static void a_byte_that_is_not_utf8_is_shown_with_its_offset(void **state)
{
    int ids[8];
    failure f;

    (void)state;
    assert_int_equal(encode("aé", BYTES("éa\xff"), ids, 8, &f), -1);
    assert_true(says(&f, "byte 3 ", "\\xff", "UTF-8", NULL));
    assert_int_equal(encode("aé", "aé", 2, ids, 8, &f), -1); /* cut inside é */
    assert_true(says(&f, "byte 1 ", "\\xc3", "UTF-8", NULL));
}

static void text_longer_than_the_capacity_is_refused_and_nothing_is_written_past_it(void **state)
{
    int ids[3] = {-7, -7, -7};
    failure f;

    (void)state;
    assert_int_equal(encode("ab", "aba", 2, ids, 2, &f), 2);
    assert_int_equal(encode("ab", "aba", 3, ids, 2, &f), -1);
    assert_int_equal(ids[2], -7);
    assert_true(says(&f, "more than 2 characters", NULL));
}

static void a_piece_is_the_bytes_of_its_token(void **state)
{
    tokenizer t = made_of("aé😀");

    (void)state;
    assert_string_equal(tokenizer_piece(&t, 0), "a");
    assert_string_equal(tokenizer_piece(&t, 1), "é");
    assert_string_equal(tokenizer_piece(&t, 2), "😀");
    assert_string_equal(tokenizer_piece(&t, 3), "");
    assert_null(tokenizer_piece(&t, 4));
    assert_null(tokenizer_piece(&t, -1));
    tokenizer_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_and_last_character_of_each_length_are_decoded),
        cmocka_unit_test(only_the_first_character_is_decoded),
        cmocka_unit_test(overlong_forms_are_refused),
        cmocka_unit_test(surrogates_are_refused_and_their_neighbours_are_not),
        cmocka_unit_test(numbers_above_unicode_are_refused),
        cmocka_unit_test(unfinished_and_stray_bytes_are_refused),
        cmocka_unit_test(printable_text_is_quoted_as_it_is),
        cmocka_unit_test(control_characters_and_broken_bytes_are_escaped),
        cmocka_unit_test(a_long_text_is_cut_to_fit_between_characters),
        cmocka_unit_test(end_of_text_comes_after_the_characters),
        cmocka_unit_test(an_empty_vocabulary_is_refused),
        cmocka_unit_test(a_vocabulary_that_is_not_utf8_is_refused),
        cmocka_unit_test(a_character_named_twice_is_refused),
        cmocka_unit_test(text_becomes_the_ids_of_its_characters),
        cmocka_unit_test(empty_text_has_no_ids),
        cmocka_unit_test(only_the_bytes_given_are_read),
        cmocka_unit_test(a_character_outside_the_vocabulary_is_shown_with_its_offset),
        cmocka_unit_test(a_zero_byte_is_not_the_end_of_text_token),
        cmocka_unit_test(a_byte_that_is_not_utf8_is_shown_with_its_offset),
        cmocka_unit_test(text_longer_than_the_capacity_is_refused_and_nothing_is_written_past_it),
        cmocka_unit_test(a_piece_is_the_bytes_of_its_token),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
