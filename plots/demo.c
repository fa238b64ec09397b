/* `make demo`: the kit's main point in one screen. The trained model continues a prompt without and with a KV cache;
   both write the same text, and the counters and the clock say what the cache saves. Leaves out the plots. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache.h"
#include "counts.h"
#include "loop.h"
#include "tokenizer.h"

static const char model_file[] = "data/models/shakespeare.safetensors", prompt[] = "JULIET:\n";

enum { NEW = 24, TEXT = 160, PAIRS = 9 };

/* Both ways to get the next token's logits, with their memory. */
typedef struct {
    model *m;
    tokenizer words;
    uncached without;
    cache c;
    cached with;
    real *logits;
} demo;

static void stop(const char *sentence)
{
    fprintf(stderr, "demo: %s\n", sentence);
    exit(2);
}

static void demo_init(demo *d)
{
    failure f;

    d->m = model_load(model_file, &f);
    if (!d->m || tokenizer_init(&d->words, model_vocabulary(d->m), &f))
        stop(f.sentence);
    if (d->m->shape.n_ctx < (int)sizeof prompt + TEXT)
        stop("the model's context is too short for this");
    size_t n_ctx = d->m->shape.n_ctx, n_vocab = d->m->shape.n_vocab;
    real *rows = malloc((2 * n_ctx + 1) * n_vocab * sizeof *rows);
    if (!rows || cache_init(&d->c, d->m, n_ctx))
        stop("out of memory");
    d->without = (uncached){d->m, rows};
    d->with = (cached){&d->c, n_ctx, rows + n_ctx * n_vocab};
    d->logits = rows + 2 * n_ctx * n_vocab;
}

static void demo_free(demo *d)
{
    cache_free(&d->c);
    free(d->without.rows);
    tokenizer_free(&d->words);
    model_free(d->m);
}

/* Greedy: n_new tokens behind n_prompt, one way or the other. */
static void write_tokens(demo *d, bool with_cache, int n_prompt, int n_new, int *tokens)
{
    loop g = {.next = with_cache ? next_cached : next_uncached, .logits = d->logits, .n_vocab = d->m->shape.n_vocab,
              .n_ctx = d->m->shape.n_ctx, .end_of_text = -1, .max_new_tokens = n_new};
    failure f;

    g.next_state = with_cache ? (void *)&d->with : (void *)&d->without;
    cache_reset(&d->c);
    counts_reset();
    if (generate(&g, tokens, &n_prompt, &f) == STOP_ERROR)
        stop(f.sentence);
}

/* The largest |Δ| between both ways' logits over NEW steps with the same tokens, and how many top tokens agree. */
static double compare_ways(demo *d, const int *tokens, int n_prompt, int *n_same)
{
    int n_vocab = d->m->shape.n_vocab;
    real other[n_vocab];
    double most = 0;

    cache_reset(&d->c);
    *n_same = 0;
    for (int n = n_prompt; n < n_prompt + NEW; n++) {
        next_uncached(&d->without, tokens, n, other);
        next_cached(&d->with, tokens, n, d->logits);
        for (int id = 0; id < n_vocab; id++)
            most = fmax(most, fabs(d->logits[id] - other[id]));
        *n_same += argmax(d->logits, n_vocab) == argmax(other, n_vocab);
    }
    return most;
}

static double seconds_of(demo *d, bool with_cache, int n_prompt, int *tokens)
{
    struct timespec a, b;

    clock_gettime(CLOCK_MONOTONIC, &a);
    write_tokens(d, with_cache, n_prompt, NEW, tokens);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How many times as long it takes without the cache: the median of pairs run in turn. */
static double clock_ratio(demo *d, int n_prompt, int *tokens)
{
    double ratios[PAIRS];

    for (int i = 0; i < PAIRS; i++) {
        double without = seconds_of(d, false, n_prompt, tokens);
        ratios[i] = without / seconds_of(d, true, n_prompt, tokens);
    }
    qsort(ratios, PAIRS, sizeof *ratios, by_size);
    return ratios[PAIRS / 2];
}

static void print_text(const demo *d, const char *title, const int *tokens, int n)
{
    printf("%s\n\n    ", title);
    for (int i = 0; i < n; i++) {
        const char *piece = tokenizer_piece(&d->words, tokens[i]);
        printf("%s%s", piece, *piece == '\n' ? "    " : "");
    }
    printf("\n\n");
}

static void print_row(const char *what, long long without, long long with)
{
    printf("    %-52s %8lld %8lld   %.1f times\n", what, without, with, (double)without / with);
}

/* The counters after both ways: projections of keys in layer 0, or scores of its head 0. */
static void print_counts(demo *d, const char *what, bool scores, int n_prompt, int n_new, int *tokens)
{
    long long counted[2];

    for (int with = 0; with < 2; with++) {
        write_tokens(d, with, n_prompt, n_new, tokens);
        counted[with] = scores ? counts_scores(0, 0) : counts_projections(KEY, 0);
    }
    print_row(what, counted[0], counted[1]);
}

int main(void)
{
    demo d;
    int tokens[2][sizeof prompt + TEXT], n_same;
    failure f;

    demo_init(&d);
    int n = tokenizer_encode(&d.words, prompt, strlen(prompt), tokens[0], sizeof prompt, &f);
    if (n < 0)
        stop(f.sentence);
    memcpy(tokens[1], tokens[0], n * sizeof **tokens);
    for (int with = 0; with < 2; with++)
        write_tokens(&d, with, n, TEXT, tokens[with]);
    print_text(&d, "Without a cache the model writes:", tokens[0], n + TEXT);
    print_text(&d, "With a cache:", tokens[1], n + TEXT);
    double most = compare_ways(&d, tokens[0], n, &n_same);
    printf("The same tokens fed both ways: the logits differ by at most %.1e, the top token agrees %d times of %d.\n\n",
           most, n_same, NEW);
    printf("    %-52s %8s %8s\n", "counted in one layer, and one head of it", "without", "with");
    print_counts(&d, "K/V projections, 24 tokens after a prompt of 8", false, 8, 24, tokens[0]);
    print_counts(&d, "attention scores, 12 tokens after a prompt of 1", true, 1, 12, tokens[0]);
    printf("    %-52s %26.1f times\n\n", "the clock, 24 tokens after a prompt of 8", clock_ratio(&d, n, tokens[0]));
    printf("Now it's your turn: read LABS.md and write labs/lab1-loop/loop.c; `make lab1` says how far you are.\n");
    demo_free(&d);
    return 0;
}
