/* `make offset`: what a forgotten offset costs. Each of the small models reads a text as a decoder does, a few tokens in
   one call and then one at a time, through the cache of lab 3 with the positions of lab 4: once as they are, once with
   every call starting at 0. Prints nats per character by position. Leaves out writing text with either.

   The linker is told to wrap add_positions and turn_heads: the cache then calls the two functions __wrap_… below, and
   __real_… are those of the lab. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache.h"
#include "positions.h"
#include "tokenizer.h"

enum { PROMPT = 16, CONTEXT = 256, MAX_BYTES = 1 << 20 };

/* The first band is what the first call reads: there the two can't differ. */
static const int bands[] = {0, PROMPT, 32, 64, 128, CONTEXT};

static const char *const models[] = {"sinusoidal", "learned", "rotary"};

enum { N_BANDS = sizeof bands / sizeof *bands - 1, N_MODELS = sizeof models / sizeof *models };

static void stop(const char *sentence)
{
    fprintf(stderr, "offset: %s\n", sentence);
    exit(2);
}

/* ---- the mistake ---- */

static bool forgets;

int __real_add_positions(const model *m, int start, int n, real *x);
void __real_turn_heads(const model *m, int start, int n, int heads, real *x);

int __wrap_add_positions(const model *m, int start, int n, real *x)
{
    return __real_add_positions(m, forgets ? 0 : start, n, x);
}

void __wrap_turn_heads(const model *m, int start, int n, int heads, real *x)
{
    __real_turn_heads(m, forgets ? 0 : start, n, heads, x);
}

/* ---- the measurement ---- */

typedef struct {
    double nats[N_BANDS + 1]; /* the last is of all bands */
    long n[N_BANDS + 1];
} tally;

static void count(tally *t, int position, double nats)
{
    int band = 0;

    while (position >= bands[band + 1])
        band++;
    t->nats[band] += nats;
    t->n[band]++;
    t->nats[N_BANDS] += nats;
    t->n[N_BANDS]++;
}

/* -log of the probability that the softmax of logits [V] gives a token. */
static double surprise(const real *logits, int n_vocab, int token)
{
    double most = -INFINITY, sum = 0;

    for (int id = 0; id < n_vocab; id++)
        most = fmax(most, logits[id]);
    for (int id = 0; id < n_vocab; id++)
        sum += exp(logits[id] - most);
    return log(sum) + most - logits[token];
}

/* Reads a window of n tokens; at position i it is asked for token i+1, which must be there. */
static void read_window(cache *c, const int *tokens, int n, real *logits, tally *t)
{
    int n_vocab = c->m->shape.n_vocab;

    cache_reset(c);
    for (int at = 0, now; at < n; at += now) {
        now = at > 0 ? 1 : n < PROMPT ? n : PROMPT;
        if (cache_forward(c, tokens + at, now, logits))
            stop("the cached pass refused a token");
        for (int i = 0; i < now; i++)
            count(t, at + i, surprise(logits + (size_t)i * n_vocab, n_vocab, tokens[at + i + 1]));
    }
}

/* Windows of CONTEXT tokens; tallies [2]: with the offset, and without. */
static void measure(const model *m, const int *tokens, int n, tally *tallies)
{
    real *logits = malloc((size_t)PROMPT * m->shape.n_vocab * sizeof *logits);
    cache c;

    if (!logits || cache_init(&c, m, CONTEXT))
        stop("a model's context is too short, or memory ran out");
    for (int i = 0; i < 2; i++) {
        forgets = i;
        for (int at = 0; at < n - 1; at += CONTEXT)
            read_window(&c, tokens + at, n - 1 - at < CONTEXT ? n - 1 - at : CONTEXT, logits, &tallies[i]);
    }
    cache_free(&c);
    free(logits);
}

/* Loads a model, takes the text apart with its vocabulary and measures. Returns how many characters it has. */
static int measure_model(const char *name, const char *text, size_t n_bytes, tally *tallies)
{
    int *tokens = malloc((n_bytes + 1) * sizeof *tokens);
    char path[64];
    tokenizer words;
    failure f;

    snprintf(path, sizeof path, "data/models/%s.safetensors", name);
    model *m = model_load(path, &f);
    if (!tokens || !m || tokenizer_init(&words, model_vocabulary(m), &f))
        stop(tokens ? f.sentence : "out of memory");
    int n = tokenizer_encode(&words, text, n_bytes, tokens, n_bytes, &f);
    if (n < 0)
        stop(f.sentence);
    if (n < 2)
        stop("the text has fewer than two characters: nothing can be predicted");
    measure(m, tokens, n, tallies);
    tokenizer_free(&words);
    model_free(m);
    free(tokens);
    return n;
}

/* ---- the table ---- */

static void print_band(int band, tally (*tallies)[2])
{
    char name[32] = "all";

    if (!tallies[0][0].n[band])
        return;
    if (band < N_BANDS)
        snprintf(name, sizeof name, "%d to %d", bands[band], bands[band + 1] - 1);
    printf("%-12s", name);
    for (int i = 0; i < N_MODELS; i++)
        printf("%12.3f%10.3f", tallies[i][0].nats[band] / tallies[i][0].n[band],
               tallies[i][1].nats[band] / tallies[i][1].n[band]);
    printf("\n");
}

static void print_table(const char *path, int n, tally (*tallies)[2])
{
    printf("%s: %d characters in windows of %d, %d in one call, then one at a time.\n"
           "Nats per character by position, with the offset and with the offset forgotten:\n\n%-12s", path, n, CONTEXT,
           PROMPT, "");
    for (int i = 0; i < N_MODELS; i++)
        printf("%22s", models[i]);
    printf("\n%-12s", "position");
    for (int i = 0; i < N_MODELS; i++)
        printf("%12s%10s", "with", "without");
    printf("\n");
    for (int band = 0; band <= N_BANDS; band++)
        print_band(band, tallies);
}

static char *read_text(const char *path, size_t *n_bytes)
{
    char *text = malloc(MAX_BYTES);
    FILE *file = fopen(path, "rb");

    if (!text || !file) {
        perror(path);
        exit(2);
    }
    *n_bytes = fread(text, 1, MAX_BYTES, file);
    if (ferror(file) || fgetc(file) != EOF)
        stop("the text can't be read, or is longer than 1 MiB");
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    static tally tallies[N_MODELS][2];
    size_t n_bytes;
    int n = 0;

    if (argc != 2)
        stop("usage: make offset [TEXT=file] [FROM=reference]");
    char *text = read_text(argv[1], &n_bytes);
    for (int i = 0; i < N_MODELS; i++)
        n = measure_model(models[i], text, n_bytes, tallies[i]);
    print_table(argv[1], n, tallies);
    free(text);
    return 0;
}
