/* Processes with limits: started, watched, ended and explained. */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "todo.h"

enum { MEMORY_BYTES = 1 << 30, STACK_BYTES = 8 << 20, POLL_MILLISECONDS = 5 };

/* How many times its time a step may take when it doesn't compute: on a busy machine it waits for the others. */
enum { IDLE = 4 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- starting ---- */

/* Fresh memory is filled with junk, so that a slot that was never written shows: the sanitizer writes bytes 0xff, which
   are NaN in either precision; without it, malloc writes 0x7f, a huge number. */
static void set_environment(const job *j)
{
    static const char options[] =
        "exitcode=86:max_malloc_fill_size=1073741824:malloc_fill_byte=255:leak_check_at_exit=0:allocator_may_return_null=1:"
        "handle_abort=0:disable_coredump=1:detect_stack_use_after_return=0:detect_leaks=";
    char all[sizeof options + 1];

    snprintf(all, sizeof all, "%s%d", options, !j->ignores_leaks);
    setenv("ASAN_OPTIONS", all, 1);
    if (j->library)
        setenv("LD_LIBRARY_PATH", j->library, 1); /* before the check's own idea of where answer.so is: the reference's */
    setenv("UBSAN_OPTIONS", "exitcode=86:print_stacktrace=0", 1);
    setenv("MALLOC_PERTURB_", "128", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

static void set_limits(double seconds)
{
    struct rlimit core = {0, 0}, cpu = {seconds + 1, seconds + 2}, stack = {STACK_BYTES, STACK_BYTES};

    setrlimit(RLIMIT_CORE, &core);
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_STACK, &stack);
}

/* Leaves the child with nothing open but its input, its output and the trace: whatever else the check or make has open
   isn't for the answer to write into, or to keep open. */
static void set_descriptors(int trace_fd, int output)
{
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(output, 1);
    dup2(output, 2);
    dup2(trace_fd, 3);
    for (int fd = 4; fd < 1024; fd++)
        close(fd);
}

static void become_child(const job *j, int trace_fd, int output)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it isn't to outlive a check that is interrupted */
    set_limits(j->seconds);
    set_environment(j);
    set_descriptors(trace_fd, output);
    execl(j->executable, j->executable, j->mode, j->step, "--trace", "/proc/self/fd/3", (char *)NULL);
    dprintf(1, "%s", strerror(errno));
    _exit(127);
}

/* Room for what the job writes. The trace can't be cut short, which would make reading it a bus error. */
static int make_room(job *j)
{
    int fd = memfd_create("trace", MFD_ALLOW_SEALING);

    j->output = calloc(1, OUTPUT_BYTES + 1);
    j->trace = fd < 0 ? NULL : trace_open_fd(fd);
    if (j->output && j->trace && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Without its own answer.so the check would find the reference's, and praise that. */
static bool has_answer(const job *j)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/answer.so", j->library ? j->library : "");
    return !j->library || access(path, R_OK) == 0;
}

void sandbox_start(job *j)
{
    int ends[2], trace_fd = make_room(j);

    j->process = j->pipe = -1;
    j->n_output = 0;
    j->outcome = (outcome){.kind = NOT_STARTED};
    if (trace_fd >= 0 && has_answer(j) && access(j->executable, X_OK) == 0 && pipe2(ends, O_CLOEXEC) == 0) {
        j->started = now();
        prctl(PR_SET_CHILD_SUBREAPER, 1); /* for end_leftovers */
        j->process = fork();
        if (j->process == 0)
            become_child(j, trace_fd, ends[1]);
        close(ends[1]);
        j->pipe = ends[0];
        fcntl(j->pipe, F_SETFL, O_NONBLOCK);
    }
    if (j->process < 0)
        snprintf(j->outcome.what, sizeof j->outcome.what, "%s", strerror(errno));
    else
        setpgid(j->process, j->process); /* as the child does itself: whichever is first */
    if (trace_fd >= 0)
        close(trace_fd);
}

/* ---- watching ---- */

static void close_pipe(job *j)
{
    if (j->pipe >= 0)
        close(j->pipe);
    j->pipe = -1;
}

/* Takes what the process printed; false once it printed too much. A pipe that has no writer left is closed, or poll()
   would return at once for ever. */
static bool read_output(job *j)
{
    while (j->pipe >= 0 && j->n_output < OUTPUT_BYTES) {
        char *to = j->output + j->n_output;
        ssize_t n = read(j->pipe, to, OUTPUT_BYTES - j->n_output);
        if (n < 0)
            break;
        if (n == 0)
            close_pipe(j);
        for (ssize_t i = 0; i < n; i++)
            if (!to[i])
                to[i] = '?'; /* or it would hide what follows */
        j->n_output += n;
    }
    return j->n_output < OUTPUT_BYTES;
}

static long resident_bytes(int process)
{
    char path[32];
    long size = 0, resident = 0;

    snprintf(path, sizeof path, "/proc/%d/statm", process);
    FILE *statm = fopen(path, "r");
    if (statm && fscanf(statm, "%ld %ld", &size, &resident) != 2)
        resident = 0;
    if (statm)
        fclose(statm);
    return resident * sysconf(_SC_PAGESIZE);
}

static double cpu_seconds(int process)
{
    clockid_t clock;
    struct timespec t = {0};

    if (clock_getcpuclockid(process, &clock) == 0)
        clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Why the process has to be stopped, or ENDED if it may go on. */
static outcome_kind over_limit(job *j)
{
    if (!read_output(j))
        return TOO_MUCH_OUTPUT;
    if (cpu_seconds(j->process) > j->seconds || now() - j->started > IDLE * j->seconds)
        return TIMED_OUT;
    if (resident_bytes(j->process) > MEMORY_BYTES)
        return TOO_MUCH_MEMORY;
    return ENDED;
}

/* ---- explaining how it ended ---- */

static void copy_until(char *to, size_t size, const char *from, const char *ends)
{
    size_t n = strcspn(from, ends);

    snprintf(to, size, "%.*s", (int)(n < size ? n : size - 1), from);
}

/* The beginning of the line of the output that `at` points into. */
static const char *line_of(const job *j, const char *at)
{
    while (at > j->output && at[-1] != '\n')
        at--;
    return at;
}

/* The first place in the answer's source that `text` names: "answer.c:12". */
static void find_place(const job *j, const char *text, char *place, size_t size)
{
    const char *at = j->answer ? strstr(text, j->answer) : NULL;

    while (at && at[strlen(j->answer)] != ':')
        at = strstr(at + 1, j->answer);
    place[0] = 0;
    if (at)
        snprintf(place, size, "%s:%d", j->answer, atoi(at + strlen(j->answer) + 1));
}

/* What the sanitizer's report says, or false if there is none. */
static bool read_sanitizer(job *j)
{
    static const char address[] = "ERROR: AddressSanitizer: ", undefined[] = ": runtime error: ";
    outcome *o = &j->outcome;
    const char *report = strstr(j->output, address), *error = strstr(j->output, undefined);

    if (report) {
        copy_until(o->what, sizeof o->what, report + strlen(address), "\n(:");
        char *on = strstr(o->what, " on ");
        if (on)
            *on = 0;
        find_place(j, report, o->at, sizeof o->at);
    } else if (error) {
        copy_until(o->what, sizeof o->what, error + strlen(undefined), "\n");
        find_place(j, line_of(j, error), o->at, sizeof o->at);
    }
    return report || error;
}

/* The report of leaks is the last thing printed, and no part of what the answer printed: it's cut off. Where a process
   may not be looked into, it says only so, and nothing is known of leaks. */
static void read_leak(job *j)
{
    char *report = strstr(j->output, "LeakSanitizer"), *leak = report ? strstr(report, "Direct leak of ") : NULL;
    char place[256];

    if (leak) {
        find_place(j, leak, place, sizeof place);
        snprintf(j->outcome.leak, sizeof j->outcome.leak, "%d bytes are never freed%s%s", atoi(leak + 15),
                 place[0] ? ", allocated at " : "", place);
    }
    if (!report)
        return;
    report = (char *)line_of(j, report);
    char *rule = report > j->output ? (char *)line_of(j, report - 1) : report;
    if (*rule == '=') /* above the report, on a line that it begins itself */
        report = rule > j->output ? rule - 1 : rule;
    *report = 0;
}

/* A TODO's line is "FILE:LINE: step 3a is not written yet". */
static bool read_todo(job *j)
{
    const char *end = strstr(j->output, " is not written yet\n"), *line = end ? line_of(j, end) : NULL;
    const char *step = line ? strstr(line, ": step ") : NULL;

    if (!step || step > end)
        return false;
    snprintf(j->outcome.at, sizeof j->outcome.at, "%.*s", (int)(step - line), line);
    copy_until(j->outcome.what, sizeof j->outcome.what, step + 7, " ");
    return true;
}

/* A signal's name; for a failed assert(), what it says. */
static void read_signal(job *j, int number)
{
    outcome *o = &j->outcome;
    const char *assertion = number == SIGABRT ? strstr(j->output, "Assertion `") : NULL;

    if (assertion)
        copy_until(o->what, sizeof o->what, assertion, "\n");
    else
        snprintf(o->what, sizeof o->what, "%s", strsignal(number));
    if (assertion && o->what[strlen(o->what) - 1] == '.')
        o->what[strlen(o->what) - 1] = 0;
    find_place(j, assertion ? line_of(j, assertion) : "", o->at, sizeof o->at);
}

/* What the dynamic linker says when a call finds no function. */
static bool read_missing(job *j)
{
    static const char says[] = "undefined symbol: ";
    const char *name = strstr(j->output, says);

    if (name)
        copy_until(j->outcome.what, sizeof j->outcome.what, name + strlen(says), " \n");
    return name != NULL;
}

/* From the wait status to an outcome, where no limit was passed. */
static void explain(job *j, int status)
{
    outcome *o = &j->outcome;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

    o->status = code;
    if (code == CLOSED_OUTPUT_STATUS)
        o->kind = CLOSED_OUTPUT;
    else if (trace_is_finished(j->trace))
        o->kind = ENDED;
    else if (code == TODO_STATUS && read_todo(j))
        o->kind = NOT_WRITTEN;
    else if (code == 127 && read_missing(j))
        o->kind = MISSING;
    else if (code == 127 && !trace_is_started(j->trace))
        o->kind = NOT_STARTED;
    else if (read_sanitizer(j))
        o->kind = CRASHED;
    else if (WIFSIGNALED(status)) {
        o->kind = CRASHED;
        read_signal(j, WTERMSIG(status));
    } else if (code == SANITIZER_STATUS) {
        o->kind = CRASHED;
        snprintf(o->what, sizeof o->what, "what the sanitizer had to say about it is lost");
    } else
        o->kind = EXITED;
    read_leak(j);
}

/* ---- finishing ---- */

/* Ends the job if it's over or over a limit; true while it still runs. */
static bool still_runs(job *j)
{
    siginfo_t end = {.si_pid = 0};
    int status;

    if (j->process < 0)
        return false;
    outcome_kind limit = over_limit(j);
    bool ended = waitid(P_PID, j->process, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == j->process;
    if (!ended && limit == ENDED)
        return true;
    kill(-j->process, SIGKILL); /* and whatever it started: while it isn't waited for, the number is its own */
    kill(j->process, SIGKILL);  /* it may have gone into another group */
    waitpid(j->process, &status, 0);
    j->process = -1;
    bool flood = !read_output(j);
    close_pipe(j);
    if (flood)
        j->outcome.kind = TOO_MUCH_OUTPUT;
    else if (!ended)
        j->outcome.kind = limit;
    else
        explain(j, status);
    return false;
}

/* Ends what the jobs left running in groups of their own. Their parents being gone, they are children of this process,
   and its only ones; theirs come after them. */
static void end_leftovers(void)
{
    char path[64];
    FILE *children;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    for (int found = 1; found && (children = fopen(path, "r"));) {
        int child;
        for (found = 0; fscanf(children, "%d", &child) == 1; found = 1) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
        }
        fclose(children);
    }
}

void sandbox_finish(job *jobs, int n)
{
    struct pollfd pipes[n + 1];

    for (int running = 1; running;) {
        running = 0;
        for (int i = 0; i < n; i++) {
            running += still_runs(&jobs[i]);
            pipes[i] = (struct pollfd){.fd = jobs[i].process < 0 ? -1 : jobs[i].pipe, .events = POLLIN};
        }
        if (running) /* until one prints or ends, but look at their memory and time now and then */
            poll(pipes, n, POLL_MILLISECONDS);
    }
    end_leftovers();
}

void sandbox_free(job *j)
{
    trace_close(j->trace);
    free(j->output);
    j->trace = NULL;
    j->output = NULL;
}

void outcome_sentence(const job *j, char *sentence, size_t size)
{
    const outcome *o = &j->outcome;
    const char *at = o->at[0] ? " at " : "";

    sentence[0] = 0;
    if (o->kind == NOT_WRITTEN)
        snprintf(sentence, size, "step %s is not written yet (%s)", o->what, o->at);
    else if (o->kind == CRASHED)
        snprintf(sentence, size, "it crashed%s%s: %s", at, o->at, o->what);
    else if (o->kind == MISSING)
        snprintf(sentence, size, "it has no function %s", o->what);
    else if (o->kind == EXITED)
        snprintf(sentence, size, "it ended the program (exit status %d) instead of returning", o->status);
    else if (o->kind == TIMED_OUT)
        snprintf(sentence, size, "it was still running after %g s, in an endless loop or nearly so", j->seconds);
    else if (o->kind == TOO_MUCH_MEMORY)
        snprintf(sentence, size, "it used more than %d MB of memory", MEMORY_BYTES >> 20);
    else if (o->kind == TOO_MUCH_OUTPUT)
        snprintf(sentence, size, "it printed more than %d MB", OUTPUT_BYTES >> 20);
    else if (o->kind == CLOSED_OUTPUT)
        snprintf(sentence, size, "it closed the standard output, which isn't its own");
    else if (o->kind == NOT_STARTED)
        snprintf(sentence, size, "%s could not be run: %.200s", j->executable, o->what[0] ? o->what : j->output);
}
