/* The main function of every check: runs the steps, judges them, has them diagnosed and reported.
   One executable is all of it: `--run` and `--expect` are how it calls itself (and its twin in float) in a sandbox. */
#define _GNU_SOURCE
#include "check.h"

#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mistakes.h"
#include "report.h"

#include <cmocka.h> /* last: it defines fail() and more as macros */

#ifdef __has_feature /* clang's way to say what gcc says by __SANITIZE_ADDRESS__ */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#define look_for_leaks() __lsan_do_recoverable_leak_check()
#else
#define look_for_leaks() ((void)0)
#endif

/* The check looks for leaks in the sandbox alone, and not at its own end: where no process may look into another, not
   being able to would be its exit status. The sanitizer calls this function. */
static bool looks_for_leaks = true;

int __lsan_is_turned_off(void)
{
    return !looks_for_leaks;
}

enum { MAX_STEPS = 16, MOST_SECONDS = 86400 };

/* Right and wrong are decided in double; float shows what rounding costs, which grows with the numbers. */
static const tolerance allowed[N_PRECISIONS] = {{1e-6, 0}, {0, 1e-5}};

typedef struct {
    const char *run, *expect, *trace;            /* how it's called by itself and by make */
    const char *twin, *answer, *step, *format;   /* how it's called by make */
    bool prints, checks;                         /* for make mistakes: the files are known mistakes */
    const char *expected[N_PRECISIONS];          /* files of what --expect all wrote, or NULL */
    double seconds;
} options;

static const lab *checked;
static options chosen;
static job expected[N_PRECISIONS];
static int n_precisions;
static result results[MAX_STEPS];
static int n_results;
static job jobs[MAX_STEPS * N_PRECISIONS]; /* [n_results][n_precisions] */

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
    looks_for_leaks = true;
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

/* Where make puts the compiled answer: answer.so in a folder named after the source, below that of the precision. */
static const char *library_of(int precision)
{
    static char folders[N_PRECISIONS][PATH_MAX];
    int n = strlen(chosen.answer);

    n -= n > 2 && strcmp(chosen.answer + n - 2, ".c") == 0 ? 2 : 0;
    if (checked->has_answer)
        return NULL;
    snprintf(folders[precision], PATH_MAX, "build/%s/%.*s", precision == DOUBLE ? "double" : "float", n, chosen.answer);
    return folders[precision];
}

static job job_of(int precision, const char *mode, const char *step)
{
    return (job){.executable = precision == DOUBLE ? "/proc/self/exe" : chosen.twin, .mode = mode, .step = step,
                 .answer = chosen.answer, .library = library_of(precision), .seconds = chosen.seconds};
}

/* The first step that s builds on and that didn't pass, or NULL. */
static const step *unmet_need(const step *s)
{
    for (int i = 0; i < n_results; i++)
        if (results[i].step->id != s->id && results[i].verdict != PASSED && strstr(s->needs, results[i].step->id))
            return results[i].step;
    return NULL;
}

/* Keeps the first lines that the answer printed, but not a sanitizer's or a TODO's, which are explained already. The
   leaks' report isn't among them. */
static void keep_output(const job *j, result *r)
{
    size_t n = 0;

    if (j->outcome.kind == CRASHED || j->outcome.kind == NOT_WRITTEN || j->outcome.kind == MISSING)
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

    if (j->outcome.kind == NOT_STARTED) {
        outcome_sentence(j, r->sentence, sizeof r->sentence);
        return FAILED;
    }
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
        snprintf(r->sentence, sizeof r->sentence, "%s%s%s", in, c->sentence,
                 precision == FLOAT ? ". In double it's right: look for double, or sizeof(double), where real is meant" : "");
    if (j->outcome.kind != NOT_WRITTEN)
        return FAILED;
    return strcmp(j->outcome.what, r->step->id) ? WAITS : UNWRITTEN;
}

/* Runs all steps in both precisions, side by side: every one is a process of its own. */
static void run_steps(void)
{
    for (int i = 0; i < n_results; i++)
        for (int p = 0; p < n_precisions; p++) {
            job *j = &jobs[i * n_precisions + p];
            *j = job_of(p, "--run", results[i].step->id);
            sandbox_start(j);
        }
    sandbox_finish(jobs, n_results * n_precisions);
}

static void judge_step(result *r)
{
    job *both = &jobs[(r - results) * n_precisions];
    verdict v = PASSED;

    for (int p = 0; p < n_precisions && v == PASSED; p++)
        v = judge(&both[p], p, r);
    r->verdict = v;
    const step *need = v == FAILED ? unmet_need(r->step) : NULL;
    if (need) {
        r->verdict = WAITS;
        snprintf(r->sentence, sizeof r->sentence, "It builds on step %s", need->id);
    }
    if (r->verdict == FAILED && both[DOUBLE].outcome.kind != NOT_STARTED)
        diagnose(checked->name, r->step->id, &both[DOUBLE], &r->mistake);
    keep_output(&both[DOUBLE], r);
    snprintf(r->leak, sizeof r->leak, "%s", both[DOUBLE].outcome.leak);
}

/* ---- the tests: one for each step, run by cmocka ---- */

static void test_step(void **state)
{
    result *r = *state;

    /* If the check itself crashes, cmocka goes on behind this function: that mustn't leave a step that passes. */
    r->verdict = FAILED;
    snprintf(r->sentence, sizeof r->sentence, "The check itself broke down here, which is the kit's fault");
    judge_step(r);
    if (r->verdict == PASSED)
        r->sentence[0] = 0;
    if (r->verdict == FAILED)
        fail();
    if (r->verdict != PASSED)
        skip();
}

static void run_all_tests(void)
{
    struct CMUnitTest tests[MAX_STEPS];
    int keep[2] = {fcntl(1, F_DUPFD_CLOEXEC, 3), fcntl(2, F_DUPFD_CLOEXEC, 3)};
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

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

/* Says why the right values aren't there: in the expectations' own words, if they ended the program with some. */
static void say_unexpected(const job *j)
{
    char sentence[600];

    outcome_sentence(j, sentence, sizeof sentence);
    if (j->outcome.kind == EXITED && j->output[0])
        snprintf(sentence, sizeof sentence, "%.*s", (int)strcspn(j->output, "\n"), j->output);
    fprintf(stderr, "%s: the right values can't be worked out: %s\n", checked->name, sentence);
    if (j->outcome.kind == CRASHED)
        fprintf(stderr, "%s\n", j->output);
}

/* The right values of one precision: from the file that make keeps of them, or worked out now, in a process of its own.
   -1 if that fails. */
static int expect_precision(int p)
{
    expected[p] = job_of(p, "--expect", chosen.step ? chosen.step : "all");
    expected[p].seconds = 60;
    expected[p].ignores_leaks = true;
    expected[p].library = NULL; /* the answer has no part in it */
    if (chosen.expected[p]) {
        expected[p].trace = trace_read(chosen.expected[p]);
        if (expected[p].trace && trace_is_finished(expected[p].trace))
            return 0;
        fprintf(stderr, "%s: %s has no right values: remove it, and make works them out anew\n", checked->name,
                chosen.expected[p]);
        return -1;
    }
    sandbox_start(&expected[p]);
    sandbox_finish(&expected[p], 1);
    if (expected[p].outcome.kind != ENDED)
        return say_unexpected(&expected[p]), -1;
    return 0;
}

static int expect_all(void)
{
    n_precisions = chosen.twin ? N_PRECISIONS : 1;
    for (int p = 0; p < n_precisions; p++)
        if (expect_precision(p))
            return -1;
    return 0;
}

typedef void report_fn(const summary *s, FILE *to);

static report_fn *find_format(const char *name)
{
    static const struct {
        const char *name;
        report_fn *write;
    } formats[] = {{"text", report_text}, {"tap", report_tap}, {"junit", report_junit}, {"json", report_json},
                 {"rows", report_rows}};

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].write;
    return NULL;
}

static int report(void)
{
    summary s = {.lab = checked, .answer = chosen.answer, .results = results, .n_results = n_results};

    for (int i = 0; i < n_results; i++)
        s.n[results[i].verdict]++;
    find_format(chosen.format)(&s, stdout);
    if (fflush(stdout) || ferror(stdout)) {
        perror(checked->name);
        return 2;
    }
    return n_results > 0 && s.n[PASSED] == n_results ? 0 : 1;
}

/* Whether make has compiled the answer. */
static bool is_compiled(int precision)
{
    char path[PATH_MAX + 16];
    const char *folder = library_of(precision);

    snprintf(path, sizeof path, "%s/answer.so", folder ? folder : "");
    if (!folder || access(path, R_OK) == 0)
        return true;
    fprintf(stderr, "%s: %s isn't compiled: there's no %s\n", checked->name, chosen.answer, path);
    return false;
}

/* Runs the steps from `first` to `last`. Returns -1 if there's nothing to compare them with. */
static int check_steps(const step *first, const step *last)
{
    if (expect_all())
        return -1;
    for (int p = 0; p < n_precisions; p++)
        if (!is_compiled(p))
            return -1;
    assert(checked->n_steps <= MAX_STEPS);
    for (const step *s = first; s <= last; s++)
        results[n_results++].step = s;
    run_steps();
    run_all_tests();
    for (int i = 0; i < n_results * n_precisions; i++)
        sandbox_free(&jobs[i]);
    return 0;
}

/* ---- what is asked for ---- */

static const step *find_step(const char *id)
{
    for (int i = 0; id && i < checked->n_steps; i++)
        if (strcmp(checked->steps[i].id, id) == 0)
            return &checked->steps[i];
    return NULL;
}

static void usage(FILE *to)
{
    fprintf(to,
            "usage: make %s [FROM=labs|reference | FILE=path.c] [STEP=%s] [FORMAT=text|tap|junit|json|rows]\n"
            "or, what that runs:\n"
            "  --answer FILE      the answer's source, as the report is to name it\n"
            "  --float CHECK      the same check with float numbers\n"
            "  --expected FILE, --float-expected FILE\n"
            "                     the right values, as written by --expect all\n"
            "  --step STEP        run one step alone\n"
            "  --format FORMAT    text, tap, junit, json or rows\n"
            "  --time-limit S     seconds that a step may take (5)\n"
            "  --run STEP, --expect STEP with --trace FILE, --print-known FILE…, --check-mistakes FILE…:\n"
            "                     how make and the check itself call it\n",
            checked->name, checked->steps[0].id);
}

static int refuse(const char *what, const char *value)
{
    fprintf(stderr, "%s: %s %s (--help says more)\n", checked->name, what, value);
    return 2;
}

static int refuse_step(const char *id)
{
    fprintf(stderr, "%s: there's no step %s; its steps are", checked->name, id);
    for (int i = 0; i < checked->n_steps; i++)
        fprintf(stderr, " %s", checked->steps[i].id);
    fprintf(stderr, "\n");
    return 2;
}

static int parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"run", 1, 0, 'r'}, {"expect", 1, 0, 'e'}, {"print-known", 0, 0, 'c'}, {"trace", 1, 0, 't'}, {"float", 1, 0, 'f'},
        {"answer", 1, 0, 'a'}, {"step", 1, 0, 's'}, {"format", 1, 0, 'o'}, {"check-mistakes", 0, 0, 'm'},
        {"time-limit", 1, 0, 'l'}, {"expected", 1, 0, 'x'}, {"float-expected", 1, 0, 'y'}, {"help", 0, 0, 'h'}, {0}};
    char *end = "", *limit = "";

    chosen = (options){.format = "text", .seconds = 5, .answer = "the answer"};
    for (int c; (c = getopt_long(argc, argv, "h", known, NULL)) != -1;)
        switch (c) {
        case 'r': chosen.run = optarg; break;
        case 'e': chosen.expect = optarg; break;
        case 'c': chosen.prints = true; break;
        case 't': chosen.trace = optarg; break;
        case 'f': chosen.twin = optarg; break;
        case 'a': chosen.answer = optarg; break;
        case 's': chosen.step = *optarg ? optarg : NULL; break;
        case 'o': chosen.format = *optarg ? optarg : "text"; break;
        case 'x': chosen.expected[DOUBLE] = optarg; break;
        case 'y': chosen.expected[FLOAT] = optarg; break;
        case 'm': chosen.checks = true; break;
        case 'l': chosen.seconds = strtod(limit = optarg, &end); break;
        case 'h': usage(stdout); exit(0);
        default: usage(stderr); return 2;
        }
    if (optind < argc && !chosen.prints && !chosen.checks)
        return refuse("there's no such argument:", argv[optind]);
    if (*end || !(chosen.seconds > 0 && chosen.seconds <= MOST_SECONDS))
        return refuse("a time limit is a number of seconds above 0, up to a day, not", limit);
    if (!find_format(chosen.format))
        return refuse("there's no format", chosen.format);
    const char *asked[] = {chosen.step, chosen.run};
    for (int i = 0; i < 2; i++)
        if (asked[i] && !find_step(asked[i]))
            return refuse_step(asked[i]);
    if ((chosen.run || chosen.expect) && !chosen.trace)
        return refuse("missing:", "--trace");
    return 0;
}

/* What the parent process may have left in another state than usual: closed descriptors, whose numbers the sandbox's
   would take, and children that vanish unwaited for. */
static void prepare(void)
{
    int fd;

    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= 2)
        continue;
    if (fd > 2)
        close(fd);
    signal(SIGCHLD, SIG_DFL);
}

int check_main(const lab *l, int argc, char **argv)
{
    checked = l;
    looks_for_leaks = false;
    prepare();
    int status = parse(argc, argv);

    if (status)
        return status;
    if (chosen.run)
        return run_answer(find_step(chosen.run));
    if (chosen.expect)
        return run_expectations(chosen.expect);
    if (chosen.prints)
        return print_known(l, argv + optind, argc - optind);
    if (chosen.checks)
        return expect_all() ? 2 : check_mistakes(l, expected[DOUBLE].trace, allowed[DOUBLE], argv + optind, argc - optind);
    const step *last = checked->steps + checked->n_steps - 1, *one = find_step(chosen.step);
    return check_steps(one ? one : checked->steps, one ? one : last) ? 2 : report();
}
