/* `make answers`: reads "name = number" lines and says for each exercise whether it's right, wrong or empty, without
   saying what is right. Some numbers can be counted: then it also says whether the labs' code that this program is
   linked with counts the same. Exit status: 0 all are right, 1 one isn't, 2 the file can't be read or a line in it isn't
   "name = value". */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache.h"
#include "cost.h"
#include "counts.h"
#include "loop.h"

/* ---- the exercises ---- */

enum { NOT_COUNTED, UNCACHED, CACHED };

/* What can be counted: the projections or the scores of n tokens after a prompt of p. */
typedef struct {
    int way, p, n;
    bool scores;
} countable;

typedef struct {
    const char *name;
    double right, tolerance;
    countable counted;
} exercise;

enum { MAX_EXERCISES = 64 };

static usage without_cache(int64_t p, int64_t n)
{
    usage u = {0, 0};

    if (usage_uncached(p, n, &u))
        abort();
    return u;
}

static usage with_cache(int64_t p, int64_t n)
{
    usage u = {0, 0};

    if (usage_cached(p, n, &u))
        abort();
    return u;
}

static double bytes_of(int64_t n_kv_head, int64_t n_tokens)
{
    int64_t bytes = 0;

    if (cache_bytes(&(cache_shape){32, n_kv_head, 128, n_tokens, 2, 1}, &bytes))
        abort();
    return bytes;
}

static const model_shape llama_2_7b = {.n_vocab = 32000, .n_ctx = 4096, .d_model = 4096, .n_layer = 32, .n_head = 32,
                                       .n_kv_head = 32, .d_head = 128, .d_ff = 11008, .norm = RMS_NORM,
                                       .activation = SWIGLU, .position = ROTARY};

static work decode_of_llama(void)
{
    work w = {0, 0, 0};

    if (work_decode(&llama_2_7b, 0, 2, &w))
        abort();
    return w;
}

/* The id that a loop finds which takes later equals too. */
static int last_of_largest(const double *a, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (a[i] >= a[best])
            best = i;
    return best;
}

/* The probability of id i among logits x [n]. In the small, so without fear of overflow. */
static double probability(const double *x, int n, double temperature, int i)
{
    double sum = 0;

    for (int j = 0; j < n; j++)
        sum += exp(x[j] / temperature);
    return exp(x[i] / temperature) / sum;
}

/* How many logits x [n] are at least as large as this one. */
static int as_large(const double *x, int n, double bound)
{
    int n_large = 0;

    for (int i = 0; i < n; i++)
        n_large += x[i] >= bound;
    return n_large;
}

/* The ids that are kept of probabilities in falling order: until their sum reaches `mass`. */
static int kept(const double *p, double mass)
{
    int n = 0;

    for (double sum = 0; sum < mass - 1e-12; n++)
        sum += p[n];
    return n;
}

/* The same of the logits 3, 2, 1. */
static int kept_at(double temperature, double mass)
{
    static const double x[] = {3, 2, 1};
    double p[3];

    for (int i = 0; i < 3; i++)
        p[i] = probability(x, 3, temperature, i);
    return kept(p, mass);
}

/* The last one's probability for logits start, start + 1, start + 2, all positive or 0, the last two penalised. */
static double penalised_last(double start, double penalty)
{
    return probability((double[]){start, (start + 1) / penalty, (start + 2) / penalty}, 3, 1, 2);
}

/* How many factors it takes until their product is 0 in float. */
static int factors_until_zero(float factor)
{
    volatile float product = 1; /* volatile: rounded to float at each step, on every machine */
    int n = 0;

    for (; product > 0; n++)
        product *= factor;
    return n;
}

/* The prompt is run once, and then each new token but the last in each of the beams. */
static usage with_beams(int64_t p, int64_t n, int64_t n_beams)
{
    usage prompt = with_cache(p, 1), one = with_cache(p, n);

    return (usage){prompt.projections + n_beams * (one.projections - prompt.projections),
                   prompt.scores + n_beams * (one.scores - prompt.scores)};
}

/* Fills the table, in the order of LABS.md, and returns how many there are. */
static int list_exercises(exercise *all)
{
    static const double tie[] = {7, 7, 3}, ties[] = {7, 3, 3, 3}, two[] = {1, 0}, p[] = {.5, .3, .1, .05, .05};
    const double pi = acos(-1);
    const int n_kept = kept(p, .9);
    double kept_sum = 0;
    const usage beams = with_beams(8, 24, 4);
    const work w = decode_of_llama();

    for (int i = 0; i < n_kept; i++)
        kept_sum += p[i];
    const exercise list[] = {
        {"tie_last", last_of_largest(tie, 3), 0, {0}},
        {"projections_uncached", without_cache(1, 24).projections, 0, {UNCACHED, 1, 24, false}},
        {"scores_uncached", without_cache(1, 12).scores, 0, {UNCACHED, 1, 12, true}},
        {"projections_uncached_prompt_8", without_cache(8, 24).projections, 0, {UNCACHED, 8, 24, false}},
        {"ids_appended", 3, 0, {0}},
        {"bytes_shown", strlen("the "), 0, {0}},

        {"temperature_half", probability(two, 2, 0.5, 0), 0.001, {0}},
        {"temperature_two", probability(two, 2, 2, 0), 0.001, {0}},
        {"top_k_kept", 2, 0, {0}},
        {"top_k_kept_with_ties", as_large(ties, 4, ties[2 - 1]), 0, {0}},
        {"top_p_kept", n_kept, 0, {0}},
        {"top_p_first", p[0] / kept_sum, 0.001, {0}},
        {"penalised_top", penalised_last(0, 1.2), 0.001, {0}},
        {"penalised_top_shifted", penalised_last(10, 1.2), 0.001, {0}},
        {"penalised_positive", 2.0 / 1.25, 0.001, {0}},
        {"penalised_negative", -2.0 * 1.25, 0.001, {0}},
        {"drawn_id", 2, 0, {0}},
        {"kept_temperature_first", kept_at(0.5, 0.8), 0, {0}},
        {"kept_temperature_last", kept_at(1, 0.8), 0, {0}},

        {"scores_chunk", with_cache(5 + 3, 1).scores - with_cache(5, 1).scores, 0, {0}},
        {"projections_cached", with_cache(1, 24).projections, 0, {CACHED, 1, 24, false}},
        {"scores_cached", with_cache(1, 12).scores, 0, {CACHED, 1, 12, true}},
        {"projections_cached_prompt_8", with_cache(8, 24).projections, 0, {CACHED, 8, 24, false}},
        {"projections_ratio", (double)without_cache(8, 24).projections / with_cache(8, 24).projections, 0.05, {0}},
        {"scores_last_chunk", with_cache(21, 1).scores - with_cache(16, 1).scores, 0, {0}},

        {"sinusoid_column", sin(3 / pow(10000, 2.0 / 4)), 0.0005, {0}},
        {"slowest_wave", 2 * pi * pow(10000, 14.0 / 16), 199, {0}},
        {"last_start", 1024 - 5, 0, {0}},
        {"rope_angle", 100 * pow(10000, -2.0 / 4), 0.001, {0}},
        {"rope_angle_large_base", 100 * pow(1000000, -2.0 / 4), 0.001, {0}},
        {"rope_score", 1.7, 0.001, {0}}, /* 33 - 31 is 3 - 1 */
        {"nats_of_a_guess", log(66), 0.01, {0}},
        {"positions_forgotten", 6, 0, {0}}, /* the prompt's; every later token stands at 0 */

        {"beam_log_softmax", -120 - log1p(exp(-120)), 0.01, {0}},
        {"beam_underflow_factors", factors_until_zero(0.01f), 0, {0}},
        {"beam_candidates", 4 * 66, 0, {0}},
        {"beam_copies", 4 - 2, 0, {0}}, /* beams, less the different parents */
        {"beam_score", -3 / sqrt(3), 0.001, {0}},
        {"beam_bound", -2.0 / 9, 0.001, {0}},
        {"beam_texts", pow(4, 4), 0, {0}},
        {"beam_width", pow(4, 4 - 1), 0, {0}},
        {"beam_projections", beams.projections, 0, {0}},
        {"beam_scores", beams.scores, 0, {0}},

        {"cache_gib", bytes_of(32, 4096) / (1 << 30), 0, {0}},
        {"cache_mib_grouped", bytes_of(8, 4096) / (1 << 20), 0, {0}},
        {"decode_intensity", w.intensity, 0.01, {0}},
        {"tokens_as_heavy", (w.bytes - bytes_of(32, 1)) / bytes_of(32, 1), 50, {0}},
        {"decode_speed", passes_per_second(&w, 100e9, INFINITY), 0.05, {0}},
    };

    _Static_assert(sizeof list / sizeof *list <= MAX_EXERCISES, "there's no room for all exercises");
    memcpy(all, list, sizeof list);
    return sizeof list / sizeof *list;
}

/* ---- counting, in a process of its own: the labs' code may stop at a TODO, crash, or never end ---- */

static const model_shape small = {.n_vocab = 41, .n_ctx = 64, .d_model = 16, .n_layer = 1, .n_head = 1, .n_kv_head = 1,
                                  .d_ff = 24, .norm = RMS_NORM, .activation = GELU_EXACT, .position = SINUSOIDAL,
                                  .tied = true, .norm_eps = 1e-5, .rope_base = 10000};

/* Generates n tokens after a prompt of p with the labs' code. Memory is given back by the end of the process. */
static double run_and_count(const countable *what)
{
    failure f;
    model *m = model_random(small, 1, &f);
    real *rows = calloc((small.n_ctx + 1) * small.n_vocab, sizeof *rows);
    int tokens[64] = {0}, n = what->p;
    uncached without = {m, rows};
    cache c;
    cached with = {&c, small.n_ctx, rows};
    bool uses_cache = what->way == CACHED;
    loop g = {.next = uses_cache ? next_cached : next_uncached, .logits = rows + small.n_ctx * small.n_vocab,
              .next_state = uses_cache ? (void *)&with : (void *)&without, .n_vocab = small.n_vocab,
              .n_ctx = small.n_ctx, .end_of_text = -1, .max_new_tokens = what->n};

    if (!m || !rows || (uses_cache && cache_init(&c, m, small.n_ctx)))
        _exit(1);
    counts_reset();
    if (generate(&g, tokens, &n, &f) != STOP_LENGTH)
        _exit(1);
    return what->scores ? counts_scores(0, 0) : counts_projections(KEY, 0);
}

static void become_counter(const countable *what, int to)
{
    struct rlimit cpu = {1, 1}, no_core = {0, 0};
    int nowhere = open("/dev/null", O_RDWR);

    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(10);
    for (int i = 0; i < 3; i++)
        dup2(nowhere, i);
    double count = run_and_count(what);
    _exit(write(to, &count, sizeof count) != sizeof count);
}

/* What the labs' code counts, or NaN if it doesn't come to an end. */
static double count_of(const countable *what)
{
    double count = NAN;
    int ends[2], status = 1;

    fflush(NULL);
    if (pipe(ends))
        return NAN;
    pid_t child = fork();
    if (child == 0)
        become_counter(what, ends[1]);
    close(ends[1]);
    bool is_whole = read(ends[0], &count, sizeof count) == sizeof count;
    close(ends[0]);
    if (child > 0)
        waitpid(child, &status, 0);
    return is_whole && status == 0 ? count : NAN;
}

/* ---- the file ---- */

typedef struct {
    exercise exercises[MAX_EXERCISES];
    char *values[MAX_EXERCISES]; /* as they stand in the file; NULL: there's no such line */
    int n;
    int n_strange, n_bad; /* names that are unknown or come twice; lines that aren't "name = value" */
} sheet;

static char *trim(char *text)
{
    size_t n = strlen(text);

    while (n > 0 && isspace((unsigned char)text[n - 1]))
        text[--n] = 0;
    return text + strspn(text, " \t");
}

static int find(const sheet *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->exercises[i].name, name) == 0)
            return i;
    return -1;
}

static void take_line(sheet *s, char *line, const char *path, int number)
{
    char *equals = strchr(line, '='), *text = trim(line);

    if (text[0] == '#' || text[0] == 0)
        return;
    if (equals)
        *equals = 0;
    const char *name = trim(text);
    int i = find(s, name);
    if (!equals || !name[0] || strpbrk(name, " \t")) {
        fprintf(stderr, "%s:%d: this isn't \"name = value\"\n", path, number);
        s->n_bad++;
    } else if (i < 0 || s->values[i]) {
        printf("%s:%d: %s \"%s\"\n", path, number, i < 0 ? "there's no exercise" : "a second line for", name);
        s->n_strange++;
    } else {
        s->values[i] = strdup(trim(equals + 1));
    }
}

/* Returns -1, and has said why, if the file can't be read. */
static int read_sheet(sheet *s, const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;

    for (int number = 1; file && (n = getline(&line, &room, file)) >= 0; number++)
        if (memchr(line, 0, n)) {
            fprintf(stderr, "%s:%d: this isn't text\n", path, number);
            s->n_bad++;
        } else {
            take_line(s, line, path, number);
        }
    int failed = !file || ferror(file);
    if (failed)
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    free(line);
    if (file)
        fclose(file);
    return failed ? -1 : 0;
}

/* ---- the verdicts ---- */

enum { RIGHT, WRONG, NO_NUMBER, EMPTY, MISSING, N_VERDICTS };

static const char *const words[N_VERDICTS] = {
    "right", "wrong", "wrong: this isn't a number, or there's something behind it", "empty", "empty: there's no line for it"};

static int judge(const exercise *e, const char *value)
{
    char *end;

    if (!value || !value[0])
        return value ? EMPTY : MISSING;
    double number = strtod(value, &end);
    if (*end || !isfinite(number))
        return NO_NUMBER;
    return fabs(number - e->right) <= e->tolerance + 1e-9 ? RIGHT : WRONG;
}

static void say(const exercise *e, const char *value, const char *code, int n[N_VERDICTS])
{
    int verdict = judge(e, value);

    n[verdict]++;
    printf("  %-30s %s", e->name, words[verdict]);
    if (verdict == RIGHT && code && e->counted.way != NOT_COUNTED) {
        double count = count_of(&e->counted);
        if (!isnan(count))
            printf("; %sthe code in %s counts %s", count == e->right ? "" : "but ", code,
                   count == e->right ? "the same" : "otherwise");
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "labs/answers.txt", *code = argc > 2 ? argv[2] : NULL;
    sheet s = {0};
    int n[N_VERDICTS] = {0};

    if (argc > 3 || path[0] == '-') {
        fprintf(stderr, "usage: answers [FILE [the folder of the labs' code that this program is linked with]]\n");
        return 2;
    }
    s.n = list_exercises(s.exercises);
    int failed = read_sheet(&s, path);
    for (int i = 0; i < s.n && !failed; i++)
        say(&s.exercises[i], s.values[i], code, n);
    for (int i = 0; i < s.n; i++)
        free(s.values[i]);
    if (failed)
        return 2;
    printf("\nanswers: %d of %d right, %d wrong, %d empty\n", n[RIGHT], s.n, n[WRONG] + n[NO_NUMBER],
           n[EMPTY] + n[MISSING]);
    return s.n_bad ? 2 : n[RIGHT] == s.n && !s.n_strange ? 0 : 1;
}
