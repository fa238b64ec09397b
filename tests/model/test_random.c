/* SplitMix64 against its published first outputs, and uniform numbers at the ends of their range. Leaves out tests of
   randomness: the generator is known, so equal bits say all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "random.h"

#include <cmocka.h>

static void first_outputs_are(uint64_t seed, const uint64_t expected[5])
{
    generator g = {seed};

    for (int i = 0; i < 5; i++)
        assert_true(random_bits(&g) == expected[i]);
}

static void seed_1234567_gives_the_published_outputs(void **state)
{
    (void)state;
    first_outputs_are(1234567, (uint64_t[]){6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                            4593380528125082431u, 16408922859458223821u});
}

static void seed_0_works_and_gives_the_published_outputs(void **state)
{
    (void)state;
    first_outputs_are(0, (uint64_t[]){0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec,
                                      0x1b39896a51a8749b});
}

/* ---- uniform numbers: run the generator backwards to the state that gives chosen bits ---- */

static uint64_t unshift(uint64_t z, int by)
{
    uint64_t x = z;

    for (int i = 0; i < 64 / by; i++)
        x = z ^ x >> by;
    return x;
}

/* The inverse of an odd number modulo 2^64, by Newton's steps: each doubles the bits that are right, from 3. */
static uint64_t inverse(uint64_t a)
{
    uint64_t x = a;

    for (int i = 0; i < 5; i++)
        x *= 2 - a * x;
    return x;
}

static real uniform_of(uint64_t bits)
{
    uint64_t z = unshift(bits, 31) * inverse(0x94d049bb133111eb);
    z = unshift(z, 27) * inverse(0xbf58476d1ce4e5b9);
    generator g = {unshift(z, 30) - 0x9e3779b97f4a7c15}, same = g;

    assert_true(random_bits(&same) == bits);
    return random_uniform(&g);
}

static const int kept = sizeof(real) == sizeof(double) ? 53 : 24;

static void bits_of_0_give_0(void **state)
{
    (void)state;
    assert_true(uniform_of(0) == 0);
}

static void bits_of_1_throughout_give_the_largest_number_below_1(void **state)
{
    (void)state;
    assert_true(uniform_of(UINT64_MAX) == 1 - (real)1 / (1ull << kept));
    assert_true(uniform_of(UINT64_MAX) < 1);
}

static void the_lowest_bit_kept_is_the_smallest_step(void **state)
{
    (void)state;
    assert_true(uniform_of(1ull << (64 - kept)) == (real)1 / (1ull << kept));
    assert_true(uniform_of((1ull << (64 - kept)) - 1) == 0);
}

static void the_highest_bit_is_a_half(void **state)
{
    (void)state;
    assert_true(uniform_of(1ull << 63) == (real)0.5);
}

static void a_draw_takes_one_step_of_the_generator(void **state)
{
    generator g = {5}, same = {5};

    (void)state;
    random_uniform(&g);
    random_bits(&same);
    assert_true(g.state == same.state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_1234567_gives_the_published_outputs),
        cmocka_unit_test(seed_0_works_and_gives_the_published_outputs),
        cmocka_unit_test(bits_of_0_give_0),
        cmocka_unit_test(bits_of_1_throughout_give_the_largest_number_below_1),
        cmocka_unit_test(the_lowest_bit_kept_is_the_smallest_step),
        cmocka_unit_test(the_highest_bit_is_a_half),
        cmocka_unit_test(a_draw_takes_one_step_of_the_generator),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
