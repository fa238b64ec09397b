/* `make speed`: how many tokens a second this machine decodes: predicted by lab 6 from a measured bandwidth and rate of
   arithmetic, and timed with the reference cache. It reports the ratio of the two and leaves out a verdict: a time says
   as much about the machine and what else it does as about the code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache.h"
#include "cost.h"
#include "weights.h"

enum { PROMPT = 32, CONTEXT = 256, ROUNDS = 5 };

static void stop(const char *sentence)
{
    fprintf(stderr, "speed: %s\n", sentence);
    exit(2);
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes);

    if (!memory)
        stop("out of memory");
    return memset(memory, 1, bytes);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- the machine ---- */

/* How often a second work(state) can be done: the best of some rounds, because nothing makes a machine faster than it
   is, and much makes it slower. */
static double best_rate(void (*work)(void *state), void *state)
{
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        double start = now(), seconds = 0;
        int times = 0;
        for (; seconds < 0.02; seconds = now() - start, times++)
            work(state);
        best = times / seconds > best ? times / seconds : best;
    }
    return best;
}

typedef struct {
    char *bytes;
    size_t n;
} buffer;

/* Looking for a byte that isn't there reads them all, as fast as the C library knows how. */
static void read_once(void *state)
{
    const buffer *b = state;
    volatile int absent = 2;

    if (memchr(b->bytes, absent, b->n))
        abort();
}

/* Bytes for each second, read from a buffer of this size: a small one stays in a cache of the processor, from where it
   comes faster. */
static double bandwidth(size_t n)
{
    buffer b = {room(n), n};
    double rate = n * best_rate(read_once, &b);

    free(b.bytes);
    return rate;
}

enum { WIDTH = 512, ROWS = 256 };

typedef struct {
    weight w;
    real *x, *y;
} product;

static void multiply_once(void *state)
{
    product *p = state;

    project(&p->w, p->x, ROWS, p->y);
}

/* Floating-point operations for each second, two for each multiply-add, of one large matrix product. */
static double operations(void)
{
    real *memory = room((WIDTH + 2 * ROWS) * WIDTH * sizeof *memory);
    product p = {{.role = UP, .n_out = WIDTH, .n_in = WIDTH, .matrix = memory}, memory + WIDTH * WIDTH,
                 memory + (WIDTH + ROWS) * WIDTH};

    for (int i = 0; i < (WIDTH + 2 * ROWS) * WIDTH; i++)
        memory[i] = i % 7;
    double rate = 2.0 * ROWS * WIDTH * WIDTH * best_rate(multiply_once, &p);
    free(memory);
    return rate;
}

/* ---- a model: tokens PROMPT … CONTEXT - 1, one at a time ---- */

static work work_behind(const model *m, int t)
{
    work w;

    if (work_decode(&m->shape, t, sizeof(real), &w))
        stop("work_decode refuses a model that it should take");
    return w;
}

static double predicted_seconds(const model *m, double bytes_per_second, double operations_per_second)
{
    double seconds = 0;

    for (int t = PROMPT; t < CONTEXT; t++) {
        work w = work_behind(m, t);
        seconds += 1 / passes_per_second(&w, bytes_per_second, operations_per_second);
    }
    return seconds;
}

static double timed_seconds(const model *m)
{
    int tokens[CONTEXT];
    real *rows = room((size_t)PROMPT * m->shape.n_vocab * sizeof *rows);
    double best = 0;
    cache c;

    for (int i = 0; i < CONTEXT; i++)
        tokens[i] = i % m->shape.n_vocab;
    if (cache_init(&c, m, CONTEXT) || cache_forward(&c, tokens, PROMPT, rows))
        stop("the model can't be run");
    for (int round = 0; round < ROUNDS; round++) {
        cache_truncate(&c, PROMPT);
        double start = now();
        for (int t = PROMPT; t < CONTEXT; t++)
            cache_forward(&c, tokens + t, 1, rows);
        double seconds = now() - start;
        best = round == 0 || seconds < best ? seconds : best;
    }
    cache_free(&c);
    free(rows);
    return best;
}

static void report(const char *name, const model *m, double operations_per_second)
{
    work w = work_behind(m, (PROMPT + CONTEXT) / 2);
    double bytes_per_second = bandwidth(w.bytes), n = CONTEXT - PROMPT;
    double predicted = predicted_seconds(m, bytes_per_second, operations_per_second), timed = timed_seconds(m);

    printf("%-22s %9.2f %9.2f %10.1f %14.0f %14.0f %8.2f\n", name, w.bytes / 1e6, w.intensity, bytes_per_second / 1e9,
           n / predicted, n / timed, predicted / timed);
}

/* ---- all of them ---- */

static const char *const shipped[] = {"sinusoidal", "learned", "rotary", "shakespeare"};

static const model_shape larger = {.n_vocab = 1024, .n_ctx = CONTEXT, .d_model = 320, .n_layer = 8, .n_head = 10,
                                   .n_kv_head = 5, .d_ff = 928, .norm = RMS_NORM, .activation = SWIGLU,
                                   .position = ROTARY, .tied = true, .norm_eps = 1e-5, .rope_base = 10000};

int main(void)
{
    double operations_per_second = operations();
    failure f;

    printf("One thread, numbers of %zu bytes; a matrix product does %.0f Gflop/s. Tokens %d to %d are decoded.\n\n",
           sizeof(real), operations_per_second / 1e9, PROMPT, CONTEXT - 1);
    printf("%-22s %9s %9s %10s %14s %14s %8s\n", "", "MB moved", "flop", "GB/s", "predicted", "clock", "clock /");
    printf("%-22s %9s %9s %10s %14s %14s %8s\n", "model", "a token", "a byte", "measured", "tokens/s", "tokens/s",
           "predicted");
    for (int i = 0; i < 5; i++) {
        char path[64];
        snprintf(path, sizeof path, "data/models/%s.safetensors", i < 4 ? shipped[i] : "");
        model *m = i < 4 ? model_load(path, &f) : model_random(larger, 1, &f);
        if (!m)
            stop(f.sentence);
        report(i < 4 ? shipped[i] : "random, 10 million", m, operations_per_second);
        model_free(m);
    }
    printf("\nThe prediction is the most that the roofline allows. Below it lies what isn't counted: norms, positions,\n"
           "softmax, and the calls themselves, which weigh most in the smallest model.\n");
    return 0;
}
