/* Lab 0: the check of an answer that does its worst. Step 0a does what the variable HOSTILE names; step 0b is harmless,
   and must pass whatever 0a did. Test material alone: test_sandbox.c runs it. */
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "todo.h"

/* Values that the compiler doesn't know. */
static volatile int zero = 0, one = 1, most = INT_MAX;
static volatile size_t ten = 10;
static int *volatile nowhere = NULL;
static void *volatile kept;
static trace *current;
static double offset; /* from the right sum */

/* ---- crashes; the lines marked HERE are those that a report must name ---- */

static void null(void)
{
    zero = *nowhere; /* HERE null */
}

static void aborting(void)
{
    abort();
}

static void assertion(void)
{
    assert(one + one == 3); /* HERE assertion */
}

static int descend(volatile char *above)
{
    volatile char room[4096];

    room[0] = above ? above[0] + 1 : 0;
    return zero ? 0 : descend(room) + room[0]; /* HERE recursion */
}

static void recursion(void)
{
    zero = descend(NULL);
}

static void overflow(void)
{
    int *a = malloc(ten * sizeof *a);

    kept = a;
    a[ten] = 1; /* HERE overflow */
    free(a);
}

static void after_free(void)
{
    int *a = malloc(ten * sizeof *a);

    kept = a;
    free(a);
    one = *(int *)kept; /* HERE after-free */
}

static void double_free(void)
{
    kept = malloc(ten);
    free(kept);
    free(kept); /* HERE double-free */
}

static void signed_overflow(void)
{
    zero = most + one; /* HERE signed-overflow */
}

static void kill_itself(void)
{
    raise(SIGKILL);
}

static void kill_group(void)
{
    kill(0, SIGKILL);
}

static void float_alone(void)
{
    if (sizeof(real) == sizeof(float))
        abort();
}

static void silent_crash(void)
{
    close(1);
    close(2);
    overflow();
    abort();
}

static void crash_behind_zero(void)
{
    putchar(0);
    fflush(stdout);
    overflow();
    abort();
}

/* ---- it doesn't end ---- */

static void loop(void)
{
    while (one)
        continue;
}

static void deaf_loop(void)
{
    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_IGN);
    loop();
}

static void stopped(void)
{
    raise(SIGSTOP);
}

static void silent_sleep(void)
{
    close(1);
    close(2);
    for (;;)
        pause();
}

/* Leaves the group that the sandbox put it in, for the check's own. */
static void sleep_in_other_group(void)
{
    while (setpgid(0, getpgid(getppid())) == 0)
        pause();
}

/* ---- it ends too early ---- */

static void exit_0(void)
{
    exit(0);
}

static void exit_at_once(void)
{
    _exit(0);
}

static void exit_77(void)
{
    exit(TODO_STATUS);
}

static void exit_127(void)
{
    exit(127);
}

static void exit_thread(void)
{
    pthread_exit(NULL);
}

static void become_true(void)
{
    execl("/bin/true", "true", (char *)NULL);
}

/* ---- output ---- */

static void close_descriptor(void)
{
    close(1);
}

static void close_stdout(void)
{
    fclose(stdout);
}

static void print_megabytes(void)
{
    for (int i = 0; i < 3 << 16; i++)
        puts("fifteen letters");
}

static void print_for_ever(void)
{
    for (;;)
        puts("again");
}

static void print_binary(void)
{
    printf("before\033[2J\x01\xff\xc3 behind\n");
    trace_int(current, 2, "value");
}

static void print_and_leak(void)
{
    puts("it's a =====");
    kept = malloc(12); /* HERE print-and-leak */
    kept = NULL;
}

/* ---- what isn't its own ---- */

static void close_all(void)
{
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
}

static void write_into_all(void)
{
    int written = 0;

    for (int fd = 3; fd < 1024; fd++)
        written += write(fd, "garbage", 7) == 7;
    printf("%d descriptors\n", written);
}

static void read_input(void)
{
    while (getchar() != EOF)
        continue;
}

static void eat_memory(void)
{
    for (;;) {
        char *a = malloc(1 << 24);
        if (a)
            memset(a, 1, 1 << 24);
        kept = a;
    }
}

static void cut_trace(void)
{
    for (int fd = 3; fd < 1024; fd++)
        if (ftruncate(fd, 0) == 0)
            _exit(0);
}

/* Fills the beginning of the trace with a byte, wherever it's mapped. */
static void scribble(int byte)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    void *start;

    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:trace") && sscanf(line, "%p-", &start) == 1)
            memset(start, byte, 1 << 16);
    if (maps)
        fclose(maps);
}

static void scribble_zeros(void)
{
    scribble(0);
}

static void scribble_ones(void)
{
    scribble(0xff);
}

static void scribble_text(void)
{
    scribble('x');
}

/* ---- processes left behind, which hold the output open ---- */

static void leave_child(void)
{
    if (fork() == 0)
        for (;;)
            pause();
}

static void leave_session(void)
{
    if (fork() == 0) {
        setsid();
        if (fork() >= 0)
            for (;;)
                pause();
    }
    usleep(100000); /* until they are on their own */
}

/* ---- not hostile, but to be told apart ---- */

static void nothing(void)
{
}

static void leak(void)
{
    kept = malloc(12); /* HERE leak */
    kept = NULL;
}

static void unwritten(void)
{
    TODO("0a"); /* HERE todo */
}

static void talkative_todo(void)
{
    printf("loop: step 3 begins\n");
    fflush(stdout);
    TODO("0a"); /* HERE talkative-todo */
}

static void return_early(void)
{
    trace_case(current, "the first case");
    trace_int(current, 1, "value");
    trace_finish(current);
    _exit(0);
}

/* Prints the last number of a small and of a large array that were never written. */
static void junk(void)
{
    for (size_t n = ten; n <= 100000 * ten; n *= 100000) {
        kept = malloc(n * sizeof(real));
        printf("%.2g\n", ((real *)kept)[n - 1]);
        free(kept);
    }
}

static void wrong(void)
{
    trace_int(current, 2, "value");
}

static void inside(void)
{
    offset = sizeof(real) == sizeof(double) ? 0.9e-6 : 0.9e-5;
}

static void outside(void)
{
    offset = sizeof(real) == sizeof(double) ? 1.1e-6 : 0;
}

static void outside_in_float(void)
{
    offset = sizeof(real) == sizeof(double) ? 0 : 1.1e-5;
}

static const struct {
    const char *name;
    void (*run)(void);
} actions[] = {
    {"null", null}, {"abort", aborting}, {"assertion", assertion}, {"recursion", recursion}, {"overflow", overflow},
    {"after-free", after_free}, {"double-free", double_free}, {"signed-overflow", signed_overflow},
    {"kill-itself", kill_itself}, {"kill-group", kill_group}, {"float-alone", float_alone}, {"silent-crash", silent_crash},
    {"crash-behind-zero", crash_behind_zero}, {"loop", loop}, {"deaf-loop", deaf_loop}, {"stopped", stopped},
    {"silent-sleep", silent_sleep}, {"sleep-in-other-group", sleep_in_other_group}, {"exit-0", exit_0},
    {"exit-at-once", exit_at_once}, {"exit-77", exit_77}, {"exit-127", exit_127}, {"exit-thread", exit_thread},
    {"become-true", become_true}, {"close-descriptor", close_descriptor}, {"close-stdout", close_stdout},
    {"print-megabytes", print_megabytes}, {"print-for-ever", print_for_ever}, {"print-binary", print_binary},
    {"print-and-leak", print_and_leak}, {"close-all", close_all}, {"write-into-all", write_into_all},
    {"read-input", read_input}, {"eat-memory", eat_memory}, {"cut-trace", cut_trace}, {"scribble-zeros", scribble_zeros},
    {"scribble-ones", scribble_ones}, {"scribble-text", scribble_text}, {"leave-child", leave_child},
    {"leave-session", leave_session}, {"nothing", nothing}, {"leak", leak}, {"todo", unwritten},
    {"talkative-todo", talkative_todo}, {"return-early", return_early}, {"junk", junk}, {"wrong", wrong},
    {"inside", inside}, {"outside", outside}, {"outside-in-float", outside_in_float},
};

/* ---- the steps ---- */

static void run_0a(trace *t)
{
    const char *name = getenv("HOSTILE");

    current = t;
    trace_case(t, "a case");
    for (size_t i = 0; name && i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, name) == 0)
            actions[i].run();
    trace_int(t, 1, "value");
    trace_reals(t, &(real){1 + offset}, AXES({"place", 0, 1}), "sum");
}

static void run_0b(trace *t)
{
    trace_case(t, "a case");
    trace_int(t, 1, "value");
    trace_reals(t, &(real){1}, AXES({"place", 0, 1}), "sum");
}

int main(int argc, char **argv)
{
    static const step steps[] = {
        {.id = "0a", .title = "hostile", .needs = "", .run = run_0a, .expect = run_0b},
        {.id = "0b", .title = "harmless", .needs = "", .run = run_0b, .expect = run_0b},
    };
    static const lab lab0 = {"lab0", "an answer that does its worst", steps, sizeof steps / sizeof *steps, true};

    return check_main(&lab0, argc, argv);
}
