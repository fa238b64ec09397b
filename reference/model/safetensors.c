/* Reads safetensors files: maps the file, checks its header, and hands out names, shapes and places in the data.
   Leaves out quantised and 8-bit float dtypes, and a file that another program shortens while it's mapped. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's numbers are copied as they are");

enum { MAX_HEADER = 100000000 }; /* bytes: the format's own limit */

struct safetensors {
    char *path;
    json_t *header;  /* owns the tensors' names */
    tensor *tensors; /* [count], in the order of their data */
    int count;
    void *map; /* NULL if the bytes belong to the caller */
    size_t n_map;
};

typedef struct {
    const char *bytes;
    size_t n;
} span;

/* ---- one tensor's entry in the header ---- */

static size_t dtype_size(const char *dtype)
{
    static const struct {
        const char *name;
        size_t size;
    } known[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                 {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(dtype, known[i].name) == 0)
            return known[i].size;
    return 0;
}

static int read_dtype(tensor *t, const json_t *entry, failure *f)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));

    if (!dtype)
        return fail(f, "dtype is missing or isn't a string");
    if (dtype_size(dtype) == 0)
        return fail(f, "dtype %s isn't known", quote(dtype, strlen(dtype)).text);
    strcpy(t->dtype, dtype); /* every known one fits */
    t->float_bits = strcmp(dtype, "F32") == 0 ? 32 : strcmp(dtype, "F64") == 0 ? 64 : 0;
    return 0;
}

static int read_shape(tensor *t, const json_t *entry, failure *f)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t n_bytes;

    if (!json_is_array(shape))
        return fail(f, "shape is missing or isn't a list");
    if (json_array_size(shape) > MAX_AXES)
        return fail(f, "shape has %zu axes, more than %d", json_array_size(shape), MAX_AXES);
    t->n_axes = json_array_size(shape);
    t->n = 1;
    for (int i = 0; i < t->n_axes; i++) {
        const json_t *axis = json_array_get(shape, i);
        if (!json_is_integer(axis) || json_integer_value(axis) < 0)
            return fail(f, "axis %d of shape isn't a whole number from 0 on", i);
        t->shape[i] = json_integer_value(axis);
        if (__builtin_mul_overflow(t->n, t->shape[i], &t->n))
            return fail(f, "shape has more elements than memory has bytes");
    }
    if (__builtin_mul_overflow(t->n, dtype_size(t->dtype), &n_bytes))
        return fail(f, "shape has more elements than memory has bytes");
    return 0;
}

static size_t byte_size(const tensor *t)
{
    return t->n * dtype_size(t->dtype);
}

static int read_offsets(tensor *t, const json_t *entry, span data, failure *f)
{
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(pair, 0), *end = json_array_get(pair, 1);

    if (json_array_size(pair) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return fail(f, "data_offsets is missing or isn't a list of two whole numbers");
    long long from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from)
        return fail(f, "data_offsets [%lld, %lld] are negative or end before they begin", from, to);
    if ((size_t)to > data.n)
        return fail(f, "data_offsets [%lld, %lld] go past the file's %zu bytes of data", from, to, data.n);
    if ((size_t)(to - from) != byte_size(t))
        return fail(f, "data_offsets span %lld bytes, but dtype and shape make %zu", to - from, byte_size(t));
    t->data = data.bytes + from;
    return 0;
}

static int read_entry(tensor *t, const char *name, const json_t *entry, span data, failure *f)
{
    char prefix[sizeof(quoted) + 8];

    *t = (tensor){.name = name};
    if (!json_is_object(entry))
        fail(f, "its entry isn't a JSON object");
    else if (!read_dtype(t, entry, f) && !read_shape(t, entry, f) && !read_offsets(t, entry, data, f))
        return 0;
    snprintf(prefix, sizeof prefix, "tensor %s", quote(name, strlen(name)).text);
    return fail_in(f, prefix);
}

/* ---- all the entries together ---- */

static int check_metadata(json_t *metadata, failure *f)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return fail(f, "__metadata__ isn't a JSON object");
    json_object_foreach(metadata, key, value)
        if (!json_is_string(value))
            return fail(f, "__metadata__: the value of %s isn't a string", quote(key, strlen(key)).text);
    return 0;
}

static int read_entries(safetensors *s, span data, failure *f)
{
    const char *name;
    json_t *entry;

    s->tensors = calloc(json_object_size(s->header) + 1, sizeof *s->tensors); /* + 1: never 0 bytes */
    if (!s->tensors)
        return fail(f, "there isn't enough memory for the list of tensors");
    json_object_foreach(s->header, name, entry) {
        int bad = strcmp(name, "__metadata__") == 0 ? check_metadata(entry, f)
                                                    : read_entry(&s->tensors[s->count++], name, entry, data, f);
        if (bad)
            return -1;
    }
    return 0;
}

/* By place in the data; of two that begin at the same byte, the empty one first. */
static int by_place(const void *a, const void *b)
{
    const tensor *t = a, *u = b;

    if (t->data != u->data)
        return (const char *)t->data < (const char *)u->data ? -1 : 1;
    return (t->n > u->n) - (t->n < u->n);
}

/* The format wants each byte of the data in exactly one tensor: otherwise a file could hide bytes from its readers. */
static int check_cover(safetensors *s, span data, failure *f)
{
    size_t covered = 0;

    qsort(s->tensors, s->count, sizeof *s->tensors, by_place);
    for (int i = 0; i < s->count; i++) {
        const tensor *t = &s->tensors[i];
        size_t begin = (const char *)t->data - data.bytes;
        if (begin < covered) /* not the first, which has nothing before it */
            return fail(f, "tensor %s overlaps tensor %s", quote(t->name, strlen(t->name)).text,
                        quote(t[-1].name, strlen(t[-1].name)).text);
        if (begin > covered)
            return fail(f, "tensor %s has a hole of %zu bytes before it", quote(t->name, strlen(t->name)).text,
                        begin - covered);
        covered += byte_size(t);
    }
    if (covered < data.n)
        return fail(f, "the last %zu bytes belong to no tensor", data.n - covered);
    return 0;
}

/* ---- the file ---- */

static int parse_json(safetensors *s, span text, failure *f)
{
    json_error_t error;

    if (text.n == 0 || text.bytes[0] != '{')
        return fail(f, "the header isn't a JSON object");
    s->header = json_loadb(text.bytes, text.n, JSON_REJECT_DUPLICATES, &error);
    if (!s->header)
        return fail(f, "the header isn't valid JSON: %s", quote(error.text, strlen(error.text)).text);
    return 0;
}

static int read_file(safetensors *s, span file, failure *f)
{
    uint64_t n_header;

    if (file.n < sizeof n_header)
        return fail(f, "the file has %zu bytes, too few for the length of a header", file.n);
    memcpy(&n_header, file.bytes, sizeof n_header);
    span rest = {file.bytes + sizeof n_header, file.n - sizeof n_header};
    if (n_header > MAX_HEADER)
        return fail(f, "the header's length is %llu, more than the format's limit of %d bytes",
                    (unsigned long long)n_header, MAX_HEADER);
    if (n_header > rest.n)
        return fail(f, "the header's length is %llu, but only %zu bytes follow", (unsigned long long)n_header, rest.n);
    span data = {rest.bytes + n_header, rest.n - n_header};
    if (parse_json(s, (span){rest.bytes, n_header}, f) || read_entries(s, data, f))
        return -1;
    return check_cover(s, data, f);
}

/* The part of a path that sentences show: they have to hold the fault too. */
static const char *end_of(const char *path)
{
    size_t n = strlen(path), most = 200;

    return n > most ? path + n - most : path;
}

safetensors *safetensors_parse(const void *bytes, size_t n, const char *name, failure *f)
{
    safetensors *s = calloc(1, sizeof *s);

    if (s)
        s->path = strdup(end_of(name));
    if (!s || !s->path)
        fail(f, "there isn't enough memory to read it");
    else if (!read_file(s, (span){bytes, n}, f))
        return s;
    fail_in(f, end_of(name));
    safetensors_close(s);
    return NULL;
}

/* Maps an open file; one that's empty has nothing to map. */
static int map_file(int fd, void **map, size_t *n, failure *f)
{
    struct stat status;

    if (fstat(fd, &status))
        return fail(f, "can't be read: %s", strerror(errno));
    if (S_ISDIR(status.st_mode))
        return fail(f, "is a directory");
    if (!S_ISREG(status.st_mode))
        return fail(f, "isn't a regular file");
    *n = status.st_size;
    *map = *n ? mmap(NULL, *n, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (*map == MAP_FAILED)
        return fail(f, "can't be mapped: %s", strerror(errno));
    return 0;
}

safetensors *safetensors_open(const char *path, failure *f)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: don't wait for a named pipe's writer */
    void *map = NULL;
    size_t n = 0;

    int bad = fd < 0 ? fail(f, "can't be opened: %s", strerror(errno)) : map_file(fd, &map, &n, f);
    if (fd >= 0)
        close(fd);
    if (bad) {
        fail_in(f, end_of(path));
        return NULL;
    }
    safetensors *s = safetensors_parse(map, n, path, f);
    if (s) {
        s->map = map;
        s->n_map = n;
    } else if (map) {
        munmap(map, n);
    }
    return s;
}

void safetensors_close(safetensors *s)
{
    if (!s)
        return;
    if (s->map)
        munmap(s->map, s->n_map);
    json_decref(s->header);
    free(s->tensors);
    free(s->path);
    free(s);
}

/* ---- what's in it ---- */

int safetensors_count(const safetensors *s)
{
    return s->count;
}

const tensor *safetensors_at(const safetensors *s, int i)
{
    return &s->tensors[i];
}

const tensor *safetensors_find(const safetensors *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->tensors[i].name, name) == 0)
            return &s->tensors[i];
    return NULL;
}

const char *safetensors_metadata(const safetensors *s, const char *key)
{
    return json_string_value(json_object_get(json_object_get(s->header, "__metadata__"), key));
}

const char *safetensors_path(const safetensors *s)
{
    return s->path;
}

/* ---- numbers; the data isn't aligned, so they are copied ---- */

static double float_at(const void *data, size_t i)
{
    float value;

    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return value;
}

static double double_at(const void *data, size_t i)
{
    double value;

    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return value;
}

int tensor_element(const tensor *t, size_t i, double *value, failure *f)
{
    if (t->float_bits == 32)
        *value = float_at(t->data, i);
    else if (t->float_bits == 64)
        *value = double_at(t->data, i);
    else
        return fail(f, "tensor %s: dtype is %s, but only F32 and F64 can be read", quote(t->name, strlen(t->name)).text,
                    t->dtype);
    if (!isfinite(*value))
        return fail(f, "tensor %s: element %zu is %g, but must be finite", quote(t->name, strlen(t->name)).text, i,
                    *value);
    return 0;
}

int tensor_read(const safetensors *s, const tensor *t, double *values, failure *f)
{
    for (size_t i = 0; i < t->n; i++)
        if (tensor_element(t, i, &values[i], f))
            return fail_in(f, s->path);
    return 0;
}
