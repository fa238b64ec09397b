/* Processes with limits: started, watched, ended and explained. */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "todo.h"

enum { MEMORY_BYTES = 1 << 30, POLL_MILLISECONDS = 5 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- starting ---- */

/* Fresh memory is filled with junk, so that a slot that was never written shows: the sanitizer writes bytes 0xff, which
   are NaN in either precision; without it, malloc writes 0x7f, a huge number. */
static void set_environment(void)
{
    setenv("ASAN_OPTIONS",
           "exitcode=86:max_malloc_fill_size=1073741824:malloc_fill_byte=255:leak_check_at_exit=0:detect_leaks=1:"
           "allocator_may_return_null=1:handle_abort=0:disable_coredump=1:detect_stack_use_after_return=0", 1);
    setenv("UBSAN_OPTIONS", "exitcode=86:print_stacktrace=0", 1);
    setenv("MALLOC_PERTURB_", "128", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

static void become_child(const job *j, int trace_fd, int output)
{
    struct rlimit no_core = {0, 0}, cpu = {j->seconds + 1, j->seconds + 2};
    char path[32];

    setpgid(0, 0);
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_CPU, &cpu);
    set_environment();
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(output, 1);
    dup2(output, 2);
    snprintf(path, sizeof path, "/proc/self/fd/%d", trace_fd);
    execl(j->executable, j->executable, j->mode, j->step, "--trace", path, (char *)NULL);
    _exit(127);
}

void sandbox_start(job *j)
{
    int trace_fd = memfd_create("trace", 0), ends[2] = {-1, -1};

    j->process = j->pipe = -1;
    j->n_output = 0;
    j->outcome = (outcome){.kind = NOT_STARTED};
    j->output = calloc(1, OUTPUT_BYTES + 1);
    j->trace = trace_fd < 0 ? NULL : trace_open_fd(trace_fd);
    if (j->output && j->trace && access(j->executable, X_OK) == 0 && pipe2(ends, O_CLOEXEC) == 0) {
        j->started = now();
        j->process = fork();
        if (j->process == 0)
            become_child(j, trace_fd, ends[1]);
        close(ends[1]);
        j->pipe = ends[0];
        fcntl(j->pipe, F_SETFL, O_NONBLOCK);
    }
    if (trace_fd >= 0)
        close(trace_fd);
}

/* ---- watching ---- */

/* Takes what the process printed; false once it printed too much. */
static bool read_output(job *j)
{
    for (;;) {
        ssize_t n = read(j->pipe, j->output + j->n_output, OUTPUT_BYTES - j->n_output);
        if (n <= 0)
            return true;
        j->n_output += n;
        if (j->n_output == OUTPUT_BYTES)
            return false;
    }
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

/* Why the process has to be stopped, or ENDED if it may go on. */
static outcome_kind over_limit(job *j)
{
    if (!read_output(j))
        return TOO_MUCH_OUTPUT;
    if (now() - j->started > j->seconds)
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
        copy_until(o->what, sizeof o->what, report + strlen(address), "\n(");
        char *on = strstr(o->what, " on ");
        if (on)
            *on = 0;
        find_place(j, report, o->at, sizeof o->at);
    } else if (error) {
        const char *line = error;
        while (line > j->output && line[-1] != '\n')
            line--;
        copy_until(o->what, sizeof o->what, error + strlen(undefined), "\n");
        find_place(j, line, o->at, sizeof o->at);
    }
    return report || error;
}

static void read_leak(job *j)
{
    const char *leak = strstr(j->output, "Direct leak of ");
    char place[256];

    if (!leak)
        return;
    find_place(j, leak, place, sizeof place);
    snprintf(j->outcome.leak, sizeof j->outcome.leak, "%d bytes are never freed%s%s", atoi(leak + 15),
             place[0] ? ", allocated at " : "", place);
}

/* A TODO's line is "FILE:LINE: step 3a is not written yet". */
static bool read_todo(job *j)
{
    const char *step = strstr(j->output, ": step ");
    const char *line = step;

    if (!step || !strstr(step, "is not written yet"))
        return false;
    while (line > j->output && line[-1] != '\n')
        line--;
    snprintf(j->outcome.at, sizeof j->outcome.at, "%.*s", (int)(step - line), line);
    copy_until(j->outcome.what, sizeof j->outcome.what, step + 7, " ");
    return true;
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
    else if (code == 127)
        o->kind = NOT_STARTED;
    else if (read_sanitizer(j))
        o->kind = CRASHED;
    else if (WIFSIGNALED(status)) {
        o->kind = CRASHED;
        snprintf(o->what, sizeof o->what, "%s", strsignal(WTERMSIG(status)));
        find_place(j, j->output, o->at, sizeof o->at);
    } else
        o->kind = EXITED;
    read_leak(j);
}

/* ---- finishing ---- */

/* Ends the job if it's over or over a limit; true while it still runs. */
static bool still_runs(job *j)
{
    int status;

    if (j->process < 0)
        return false;
    outcome_kind limit = over_limit(j);
    bool ended = waitpid(j->process, &status, WNOHANG) == j->process;
    if (!ended && limit == ENDED)
        return true;
    kill(-j->process, SIGKILL); /* and whatever it started */
    if (!ended)
        waitpid(j->process, &status, 0);
    bool flood = !read_output(j);
    close(j->pipe);
    j->process = -1;
    if (limit == TOO_MUCH_OUTPUT || flood)
        j->outcome.kind = TOO_MUCH_OUTPUT;
    else if (!ended)
        j->outcome.kind = limit;
    else
        explain(j, status);
    return false;
}

void sandbox_finish(job *jobs, int n)
{
    struct pollfd pipes[n];

    for (int running = 1; running;) {
        running = 0;
        for (int i = 0; i < n; i++) {
            running += still_runs(&jobs[i]);
            pipes[i] = (struct pollfd){.fd = jobs[i].process < 0 ? -1 : jobs[i].pipe, .events = POLLIN};
        }
        if (running) /* until one prints or ends, but look at their memory and time now and then */
            poll(pipes, n, POLL_MILLISECONDS);
    }
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
        snprintf(sentence, size, "%s could not be run: %.200s", j->executable, j->output ? j->output : strerror(errno));
}
