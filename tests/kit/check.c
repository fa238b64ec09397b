/* The main function of every check: runs the steps, judges them, has them diagnosed and reported.
   One executable is all of it: `--run` and `--expect` are how it calls itself (and its twin in float) in a sandbox. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <getopt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

#include <cmocka.h> /* last: it defines fail() and more as macros */

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#define look_for_leaks() __lsan_do_recoverable_leak_check()
#else
#define look_for_leaks() ((void)0)
#endif

enum { MAX_STEPS = 16 };

/* Right and wrong are decided in double; float shows what rounding costs, which grows with the numbers. */
static const tolerance allowed[N_PRECISIONS] = {{1e-6, 0}, {0, 1e-5}};

typedef struct {
    const char *run, *expect, *record, *trace;                /* how it's called by itself and by make */
    const char *twin, *answer, *step, *format, *mistake_file; /* how it's called by make */
    double seconds;
} options;

static const lab *checked;
static options chosen;
static job expected[N_PRECISIONS];
static int n_precisions;
static result results[MAX_STEPS];
static int n_results;

/* ---- inside the sandbox ---- */

static int run_answer(const step *s)
{
    trace *t = trace_open(chosen.trace);

    if (!t)
        return 2;
    trace_step(t, s->id);
    s->run(t);
    if (fcntl(1, F_GETFD) < 0)
        return CLOSED_OUTPUT_STATUS;
    fflush(stdout);
    trace_finish(t);
    look_for_leaks();
    _exit(0); /* what the answer may have left to be done at exit isn't part of the step */
}

/* "all", or one step. */
static int run_expectations(const char *id)
{
    trace *t = trace_open(chosen.trace);

    if (!t)
        return 2;
    for (int i = 0; i < checked->n_steps; i++)
        if (strcmp(id, "all") == 0 || strcmp(id, checked->steps[i].id) == 0) {
            trace_step(t, checked->steps[i].id);
            checked->steps[i].expect(t);
        }
    trace_finish(t);
    return 0;
}

/* ---- judging a step ---- */

static job job_of(int precision, const char *mode, const char *step)
{
    return (job){.executable = precision == DOUBLE ? "/proc/self/exe" : chosen.twin, .mode = mode, .step = step,
                 .answer = chosen.answer, .seconds = chosen.seconds};
}

/* The first step that s builds on and that didn't pass, or NULL. */
static const step *unmet_need(const step *s)
{
    for (int i = 0; i < n_results; i++)
        if (results[i].step->id != s->id && results[i].verdict != PASSED && strstr(s->needs, results[i].step->id))
            return results[i].step;
    return NULL;
}

/* Keeps the first lines that the answer printed, but not a sanitizer's or a TODO's, which are explained already. */
static void keep_output(const job *j, result *r)
{
    size_t n = 0;

    if (j->outcome.kind == CRASHED || j->outcome.kind == NOT_WRITTEN || j->outcome.leak[0])
        return;
    for (int lines = 0; lines < 8 && n < sizeof r->printed - 1 && j->output[n]; n++)
        lines += j->output[n] == '\n';
    snprintf(r->printed, n + 1, "%s", j->output);
}

/* The verdict on one precision: PASSED, or what is wrong in the sentence. */
static verdict judge(const job *j, int precision, result *r)
{
    comparison *c = &r->compared[precision];
    char sentence[600];

    compare_step(expected[precision].trace, j->trace, r->step->id, allowed[precision], c);
    outcome_sentence(j, sentence, sizeof sentence);
    if (!sentence[0] && c->right)
        return PASSED;
    const char *at = trace_last_case(j->trace), *in = precision == FLOAT ? "In float, " : "";
    if (j->outcome.kind == NOT_WRITTEN)
        snprintf(r->sentence, sizeof r->sentence, "%s", sentence);
    else if (sentence[0])
        snprintf(r->sentence, sizeof r->sentence, "%s%s%s%s", in, at, at[0] ? ": " : "", sentence);
    else
        snprintf(r->sentence, sizeof r->sentence, "%s%s", in, c->sentence);
    if (j->outcome.kind != NOT_WRITTEN)
        return FAILED;
    return strcmp(j->outcome.what, r->step->id) ? WAITS : UNWRITTEN;
}

static void run_step(result *r)
{
    job jobs[N_PRECISIONS];

    for (int p = 0; p < n_precisions; p++) {
        jobs[p] = job_of(p, "--run", r->step->id);
        sandbox_start(&jobs[p]);
    }
    sandbox_finish(jobs, n_precisions);
    for (int p = 0; p < n_precisions && r->verdict == PASSED; p++)
        r->verdict = judge(&jobs[p], p, r);
    const step *need = r->verdict == FAILED ? unmet_need(r->step) : NULL;
    if (need) {
        r->verdict = WAITS;
        snprintf(r->sentence, sizeof r->sentence, "It builds on step %s", need->id);
    }
    if (r->verdict == FAILED)
        diagnose(checked->name, r->step->id, &jobs[DOUBLE], &r->mistake);
    keep_output(&jobs[DOUBLE], r);
    snprintf(r->leak, sizeof r->leak, "%s", jobs[DOUBLE].outcome.leak);
    for (int p = 0; p < n_precisions; p++)
        sandbox_free(&jobs[p]);
}

/* ---- the tests: one for each step, run by cmocka ---- */

static void test_step(void **state)
{
    result *r = *state;

    run_step(r);
    if (r->verdict == FAILED)
        fail();
    if (r->verdict != PASSED)
        skip();
}

static void run_all_tests(void)
{
    struct CMUnitTest tests[MAX_STEPS];
    int keep[2] = {dup(1), dup(2)}, nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

    for (int i = 0; i < n_results; i++)
        tests[i] = (struct CMUnitTest){results[i].step->id, test_step, NULL, NULL, &results[i]};
    fflush(NULL);
    dup2(nowhere, 1); /* what cmocka has to say, the report says in full */
    dup2(nowhere, 2);
    _cmocka_run_group_tests(checked->name, tests, n_results, NULL, NULL);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(keep[i], i + 1);
        close(keep[i]);
    }
    close(nowhere);
}

/* ---- the whole check ---- */

/* The right values, worked out in processes of their own, one for each precision. -1 if that fails. */
static int expect_all(void)
{
    int status = 0;

    n_precisions = chosen.twin ? N_PRECISIONS : 1;
    for (int p = 0; p < n_precisions; p++) {
        expected[p] = job_of(p, "--expect", chosen.step ? chosen.step : "all");
        expected[p].seconds = 60;
        sandbox_start(&expected[p]);
    }
    sandbox_finish(expected, n_precisions);
    for (int p = 0; p < n_precisions; p++)
        if (expected[p].outcome.kind != ENDED) {
            fprintf(stderr, "%s: the right values can't be worked out: %s\n", checked->name, expected[p].output);
            status = -1;
        }
    return status;
}

static int report(void)
{
    static const struct {
        const char *name;
        void (*write)(const summary *, FILE *);
    } formats[] = {{"text", report_text}, {"tap", report_tap}, {"junit", report_junit}, {"json", report_json}};
    summary s = {.lab = checked, .answer = chosen.answer, .results = results, .n_results = n_results};

    for (int i = 0; i < n_results; i++)
        s.n[results[i].verdict]++;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, chosen.format) == 0)
            formats[i].write(&s, stdout);
    return n_results > 0 && s.n[PASSED] == n_results ? 0 : 1;
}

static int check_all(void)
{
    if (expect_all())
        return 2;
    for (int i = 0; i < checked->n_steps; i++)
        if (!chosen.step || strcmp(chosen.step, checked->steps[i].id) == 0)
            results[n_results++].step = &checked->steps[i];
    run_all_tests();
    return 0;
}

/* ---- known mistakes ---- */

/* Runs one step of a mistake and keeps its trace, for diagnose(). */
static int record_step(const step *s)
{
    job j = job_of(DOUBLE, "--run", s->id);

    sandbox_start(&j);
    sandbox_finish(&j, 1);
    int status = j.outcome.kind == NOT_STARTED ? 2 : mistake_record(&j, chosen.trace);
    sandbox_free(&j);
    return status ? 2 : 0;
}

/* Checks a mistake as if it were an answer and prints one row: where it was to be caught, where it was, whether it was
   named. */
static int check_mistake(void)
{
    mistake m;
    failure f;
    const result *caught = NULL;

    if (mistake_read(chosen.mistake_file, &m, &f)) {
        fprintf(stderr, "%s\n", f.sentence);
        return 2;
    }
    if (check_all())
        return 2;
    for (int i = n_results - 1; i >= 0; i--)
        if (results[i].verdict == FAILED)
            caught = &results[i];
    bool right = caught && strcmp(caught->step->id, m.step) == 0, named = right && strcmp(caught->mistake.name, m.name) == 0;
    printf("%s\t%s\t%s\t%s\t%s\t%s\n", checked->name, m.step, m.name, caught ? caught->step->id : "not caught",
           named ? "named" : caught && caught->mistake.name[0] ? caught->mistake.name : "not named", m.from);
    return 0;
}

/* ---- the command line ---- */

static void usage(FILE *to)
{
    fprintf(to,
            "usage: make %s [FROM=labs|reference | FILE=path.c] [STEP=%s] [FORMAT=text|tap|junit|json]\n"
            "or, what that runs:\n"
            "  --answer FILE      the answer's source, as the report is to name it\n"
            "  --float CHECK      the same check with float numbers\n"
            "  --step STEP        run one step alone\n"
            "  --format FORMAT    text, tap, junit or json\n"
            "  --time-limit S     seconds that a step may take (10)\n"
            "  --run STEP, --expect STEP, --record STEP with --trace FILE, --mistake FILE: see tests/kit/check.c\n",
            checked->name, checked->steps[0].id);
}

static int refuse(const char *what, const char *value)
{
    fprintf(stderr, "%s: %s %s\n", checked->name, what, value);
    usage(stderr);
    return 2;
}

static const step *find_step(const char *id)
{
    for (int i = 0; id && i < checked->n_steps; i++)
        if (strcmp(checked->steps[i].id, id) == 0)
            return &checked->steps[i];
    return NULL;
}

static int parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"run", 1, 0, 'r'}, {"expect", 1, 0, 'e'}, {"record", 1, 0, 'c'}, {"trace", 1, 0, 't'}, {"float", 1, 0, 'f'},
        {"answer", 1, 0, 'a'}, {"step", 1, 0, 's'}, {"format", 1, 0, 'o'}, {"mistake", 1, 0, 'm'},
        {"time-limit", 1, 0, 'l'}, {"help", 0, 0, 'h'}, {0}};
    char *end = "";

    chosen = (options){.format = "text", .seconds = 10, .answer = "the answer"};
    for (int c; (c = getopt_long(argc, argv, "h", known, NULL)) != -1;)
        switch (c) {
        case 'r': chosen.run = optarg; break;
        case 'e': chosen.expect = optarg; break;
        case 'c': chosen.record = optarg; break;
        case 't': chosen.trace = optarg; break;
        case 'f': chosen.twin = optarg; break;
        case 'a': chosen.answer = optarg; break;
        case 's': chosen.step = *optarg ? optarg : NULL; break;
        case 'o': chosen.format = *optarg ? optarg : "text"; break;
        case 'm': chosen.mistake_file = optarg; break;
        case 'l': chosen.seconds = strtod(optarg, &end); break;
        case 'h': usage(stdout); exit(0);
        default: usage(stderr); return 2;
        }
    if (optind < argc)
        return refuse("there's no such argument:", argv[optind]);
    if (*end || !(chosen.seconds > 0))
        return refuse("a time limit is a number of seconds above 0, not", optarg ? optarg : end);
    if (chosen.step && !find_step(chosen.step))
        return refuse("there's no step", chosen.step);
    if (!strstr("text tap junit json", chosen.format) || strlen(chosen.format) < 3)
        return refuse("there's no format", chosen.format);
    return 0;
}

int check_main(const lab *l, int argc, char **argv)
{
    checked = l;
    int status = parse(argc, argv);

    if (status)
        return status;
    if (find_step(chosen.run) && chosen.trace)
        return run_answer(find_step(chosen.run));
    if (chosen.expect && chosen.trace)
        return run_expectations(chosen.expect);
    if (find_step(chosen.record) && chosen.trace)
        return record_step(find_step(chosen.record));
    if (chosen.mistake_file)
        return check_mistake();
    return check_all() ? 2 : report();
}
