/* Traces in a shared file: a header, then records one behind the other. */
#define _GNU_SOURCE
#include "trace.h"

#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRACE_BYTES = 1 << 28 }; /* reserved, not used: the file is sparse */

static const uint64_t magic = 0x3165636172742e2e, finished = 0x64656873696e6966;

typedef struct {
    uint64_t magic, used, finished; /* used: bytes of the file, this header's included */
    char step[8], where[104];
} header;

struct trace {
    header *file;
    size_t size; /* bytes of it that are mapped */
};

/* ---- opening ---- */

static trace *map_file(int fd, size_t size, int protection)
{
    trace *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->size = size;
    t->file = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (t->file == MAP_FAILED)
        return free(t), NULL;
    return t;
}

trace *trace_open_fd(int fd)
{
    trace *t = ftruncate(fd, TRACE_BYTES) ? NULL : map_file(fd, TRACE_BYTES, PROT_READ | PROT_WRITE);

    if (t && t->file->magic != magic)
        *t->file = (header){.magic = magic, .used = sizeof(header)};
    return t;
}

trace *trace_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    trace *t = fd < 0 ? NULL : trace_open_fd(fd);

    if (fd >= 0)
        close(fd);
    return t;
}

trace *trace_read(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    trace *t = NULL;

    if (fd >= 0 && fstat(fd, &about) == 0 && about.st_size >= (off_t)sizeof(header) && about.st_size <= TRACE_BYTES)
        t = map_file(fd, about.st_size, PROT_READ);
    if (fd >= 0)
        close(fd);
    return t;
}

void trace_close(trace *t)
{
    if (t)
        munmap(t->file, t->size);
    free(t);
}

/* ---- writing ---- */

void trace_step(trace *t, const char *step)
{
    snprintf(t->file->step, sizeof t->file->step, "%s", step);
    t->file->where[0] = 0;
}

void trace_case(trace *t, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(t->file->where, sizeof t->file->where, format, arguments);
    va_end(arguments);
}

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

static size_t element_size(uint32_t kind)
{
    return kind == TEXT ? 1 : 8;
}

/* Appends a record and returns the room for its n elements. */
static void *append(trace *t, record_kind kind, const axis *axes, size_t n, const char *name)
{
    size_t bytes = padded(n * element_size(kind));
    record *r = (record *)((char *)t->file + t->file->used);

    assert(t->file->used + sizeof *r + bytes <= TRACE_BYTES);
    *r = (record){.kind = kind, .n = n};
    for (; axes && r->n_axes < TRACE_AXES && axes[r->n_axes].name[0]; r->n_axes++)
        r->axes[r->n_axes] = axes[r->n_axes];
    memcpy(r->step, t->file->step, sizeof r->step);
    memcpy(r->where, t->file->where, sizeof r->where);
    snprintf(r->name, sizeof r->name, "%s", name);
    t->file->used += sizeof *r + bytes;
    return r + 1;
}

static size_t product(const axis *axes)
{
    size_t n = 1;

    for (int i = 0; i < TRACE_AXES && axes[i].name[0]; i++)
        n *= axes[i].n;
    return n;
}

static void append_reals(trace *t, record_kind kind, const real *a, const axis *axes, const char *name)
{
    size_t n = product(axes);
    double *values = append(t, kind, axes, n, name);

    for (size_t i = 0; i < n; i++)
        values[i] = a[i];
}

void trace_reals(trace *t, const real *a, const axis *axes, const char *name)
{
    append_reals(t, REALS, a, axes, name);
}

void trace_logits(trace *t, const real *a, const axis *axes, const char *name)
{
    append_reals(t, LOGITS, a, axes, name);
}

void trace_ints(trace *t, const int *a, const axis *axes, const char *name)
{
    size_t n = product(axes);
    int64_t *values = append(t, INTS, axes, n, name);

    for (size_t i = 0; i < n; i++)
        values[i] = a[i];
}

void trace_counts(trace *t, const long long *a, const axis *axes, const char *name)
{
    size_t n = product(axes);
    int64_t *values = append(t, COUNTS, axes, n, name);

    for (size_t i = 0; i < n; i++)
        values[i] = a[i];
}

void trace_int(trace *t, int value, const char *name)
{
    *(int64_t *)append(t, INTS, NULL, 1, name) = value;
}

void trace_text(trace *t, const char *bytes, size_t n, const char *name)
{
    void *room = append(t, TEXT, NULL, n, name);

    if (n)
        memcpy(room, bytes, n);
}

void trace_finish(trace *t)
{
    t->file->finished = finished;
}

/* ---- reading ---- */

bool trace_is_started(const trace *t)
{
    return t->file->step[0] != 0;
}

bool trace_is_finished(const trace *t)
{
    return t->file->finished == finished;
}

static bool is_string(const char *bytes, size_t size)
{
    return memchr(bytes, 0, size) != NULL;
}

const char *trace_last_case(const trace *t)
{
    return is_string(t->file->where, sizeof t->file->where) ? t->file->where : "";
}

/* Whether a whole record lies in the `left` bytes from r on. Its axes must multiply to n, so that an index can be
   told from an element's place. */
static bool is_sound(const record *r, size_t left)
{
    uint64_t n = 1;

    if (left < sizeof *r || r->kind < REALS || r->kind > TEXT || r->n_axes > TRACE_AXES || r->n > TRACE_BYTES)
        return false;
    if (padded(r->n * element_size(r->kind)) > left - sizeof *r)
        return false;
    for (uint32_t i = 0; i < r->n_axes; i++) {
        if (r->axes[i].n < 0 || !is_string(r->axes[i].name, sizeof r->axes[i].name) || n > TRACE_BYTES)
            return false;
        n *= r->axes[i].n;
    }
    return (r->n_axes == 0 || n == r->n) && is_string(r->step, sizeof r->step) &&
           is_string(r->where, sizeof r->where) && is_string(r->name, sizeof r->name);
}

/* The record behind `at` (NULL: the first), or NULL where there's none that makes sense. What goes before is sound, so
   it lies at a multiple of 8 whatever `used` says. */
static const record *record_after(const trace *t, const record *at)
{
    const char *start = (const char *)t->file;
    size_t used = t->file->used <= t->size ? t->file->used : t->size;
    size_t offset = at ? (const char *)(at + 1) - start + padded(at->n * element_size(at->kind)) : sizeof(header);
    const record *r = (const record *)(start + offset);

    return t->file->magic == magic && offset <= used && is_sound(r, used - offset) ? r : NULL;
}

const record *trace_next(const trace *t, const char *step, const record *at)
{
    do
        at = record_after(t, at);
    while (at && strcmp(at->step, step));
    return at;
}

double record_number(const record *r, size_t i)
{
    const void *elements = r + 1;

    return r->kind == REALS || r->kind == LOGITS ? ((const double *)elements)[i] : ((const int64_t *)elements)[i];
}

const char *record_bytes(const record *r)
{
    return (const char *)(r + 1);
}
