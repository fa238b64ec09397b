/* The reader of safetensors files on whole files and on every kind of broken one: a refusal must name the file, the
   tensor and the fault. In headers below, ' stands for ". */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broken.h"

#include <cmocka.h> /* last: it defines a macro fail */

#define REFUSED(header, n_data, ...) \
    do { \
        failure f_ = parse_fails(file_of(header, n_data)); \
        assert_true(says(&f_, "FILE: ", __VA_ARGS__, NULL)); \
    } while (0)

static failure parse_fails(file_bytes file)
{
    failure f = {""};

    assert_null(safetensors_parse(file.bytes, file.n, "FILE", &f));
    free(file.bytes);
    return f;
}

static safetensors *parsed(file_bytes file)
{
    failure f = {""};
    safetensors *s = safetensors_parse(file.bytes, file.n, "FILE", &f);

    if (!s)
        fail_msg("refused: %s", f.sentence);
    return s;
}

static void accepted(const char *header, size_t n_data)
{
    file_bytes file = file_of(header, n_data);

    safetensors_close(parsed(file));
    free(file.bytes);
}

/* ---- whole files ---- */

static const char two_tensors[] = "{'__metadata__':{'k':'v','é':'ü'},"
                                  "'b':{'dtype':'F32','shape':[2,3],'data_offsets':[8,32]},"
                                  "'a':{'dtype':'F64','shape':[1],'data_offsets':[0,8]}}  ";

static void tensors_come_in_the_order_of_their_data(void **state)
{
    file_bytes file = file_of(two_tensors, 32);
    safetensors *s = parsed(file);
    const tensor *a = safetensors_at(s, 0), *b = safetensors_at(s, 1);

    (void)state;
    assert_int_equal(safetensors_count(s), 2);
    assert_string_equal(a->name, "a");
    assert_string_equal(b->name, "b");
    assert_string_equal(a->dtype, "F64");
    assert_string_equal(b->dtype, "F32");
    assert_int_equal(b->n_axes, 2);
    assert_memory_equal(b->shape, ((long[]){2, 3}), 2 * sizeof(long));
    assert_int_equal(a->n, 1);
    assert_int_equal(b->n, 6);
    assert_int_equal(*(const unsigned char *)a->data, 0);
    assert_int_equal(*(const unsigned char *)b->data, 8);
    safetensors_close(s);
    free(file.bytes);
}

static void tensors_metadata_and_path_are_found(void **state)
{
    file_bytes file = file_of(two_tensors, 32);
    safetensors *s = parsed(file);

    (void)state;
    assert_ptr_equal(safetensors_find(s, "b"), safetensors_at(s, 1));
    assert_null(safetensors_find(s, "c"));
    assert_null(safetensors_find(s, "__metadata__"));
    assert_string_equal(safetensors_metadata(s, "k"), "v");
    assert_string_equal(safetensors_metadata(s, "é"), "ü");
    assert_null(safetensors_metadata(s, "b"));
    assert_string_equal(safetensors_path(s), "FILE");
    safetensors_close(s);
    free(file.bytes);
}

static void a_file_without_tensors_or_metadata_is_whole(void **state)
{
    file_bytes file = file_of("{}", 0);
    safetensors *s = parsed(file);

    (void)state;
    assert_int_equal(safetensors_count(s), 0);
    assert_null(safetensors_metadata(s, "k"));
    safetensors_close(s);
    free(file.bytes);
    accepted("{'__metadata__':{}}", 0);
}

static void a_scalar_has_no_axes_and_one_element(void **state)
{
    file_bytes file = file_of("{'a':{'dtype':'F32','shape':[],'data_offsets':[0,4]}}", 4);
    safetensors *s = parsed(file);

    (void)state;
    assert_int_equal(safetensors_at(s, 0)->n_axes, 0);
    assert_int_equal(safetensors_at(s, 0)->n, 1);
    safetensors_close(s);
    free(file.bytes);
}

static void empty_tensors_may_lie_between_others(void **state)
{
    (void)state;
    accepted("{'a':{'dtype':'F32','shape':[1],'data_offsets':[0,4]},'e':{'dtype':'F32','shape':[0,9],'data_offsets':"
             "[4,4]},'b':{'dtype':'F32','shape':[1],'data_offsets':[4,8]},'z':{'dtype':'U8','shape':[0],"
             "'data_offsets':[8,8]}}", 8);
    accepted("{'b':{'dtype':'F32','shape':[1],'data_offsets':[0,4]},'e':{'dtype':'F32','shape':[0],'data_offsets':"
             "[0,0]}}", 4);
    accepted("{'e':{'dtype':'F32','shape':[0],'data_offsets':[0,0]},'b':{'dtype':'F32','shape':[1],'data_offsets':"
             "[0,4]}}", 4);
}

static void each_known_dtype_has_its_size(void **state)
{
    static const struct {
        const char *name;
        int size;
    } known[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                 {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
    char header[200];

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int n = 3 * known[i].size;
        snprintf(header, sizeof header, "{'a':{'dtype':'%s','shape':[3],'data_offsets':[0,%d]}}", known[i].name, n);
        accepted(header, n);
    }
}

static void closing_nothing_is_fine(void **state)
{
    (void)state;
    safetensors_close(NULL);
}

/* ---- the length of the header ---- */

static failure length_fails(uint64_t length, size_t n)
{
    file_bytes file = file_of("{}", 0);

    memcpy(file.bytes, &length, 8);
    file.n = n;
    return parse_fails(file);
}

static void a_file_too_short_for_the_length_is_refused(void **state)
{
    (void)state;
    failure f = length_fails(2, 0);
    assert_true(says(&f, "FILE: ", "0 bytes", "too few", NULL));
    f = length_fails(2, 7);
    assert_true(says(&f, "FILE: ", "7 bytes", "too few", NULL));
    f = length_fails(0, 8);
    assert_true(says(&f, "FILE: ", "header", "JSON object", NULL));
}

static void a_header_longer_than_the_file_is_refused(void **state)
{
    (void)state;
    failure f = length_fails(3, 10);
    assert_true(says(&f, "FILE: ", "length is 3", "only 2 bytes follow", NULL));
    f = length_fails(2, 9);
    assert_true(says(&f, "FILE: ", "length is 2", "only 1 bytes follow", NULL));
    f = length_fails(100000000, 10);
    assert_true(says(&f, "length is 100000000", "only 2 bytes follow", NULL));
}

static void a_header_longer_than_the_format_allows_is_refused(void **state)
{
    (void)state;
    failure f = length_fails(100000001, 10);
    assert_true(says(&f, "FILE: ", "length is 100000001", "limit", NULL));
    f = length_fails(UINT64_MAX, 10);
    assert_true(says(&f, "FILE: ", "length is 18446744073709551615", "limit", NULL));
}

/* ---- the header's JSON ---- */

static void a_header_that_is_no_object_is_refused(void **state)
{
    (void)state;
    REFUSED("", 0, "JSON object");
    REFUSED("[]", 0, "JSON object");
    REFUSED(" {}", 0, "JSON object");
}

static void a_header_that_is_no_json_is_refused(void **state)
{
    (void)state;
    REFUSED("{", 0, "valid JSON");
    REFUSED("{}x", 0, "valid JSON");
    REFUSED("{'a\xff':1}", 0, "valid JSON");
    REFUSED("{'a\\u0000b':1}", 0, "valid JSON");
    REFUSED("{'__metadata__':{'k':'a\\u0000b'}}", 0, "valid JSON");
    REFUSED("{'a':99999999999999999999}", 0, "valid JSON");
}

static void a_name_given_twice_is_refused(void **state)
{
    (void)state;
    REFUSED("{'a':{'dtype':'F32','shape':[0],'data_offsets':[0,0]},'a':{'dtype':'F32','shape':[0],'data_offsets':"
            "[0,0]}}", 0, "duplicate", "a");
    REFUSED("{'__metadata__':{'k':'v','k':'w'}}", 0, "duplicate", "k");
}

static void metadata_that_is_not_text_to_text_is_refused(void **state)
{
    (void)state;
    REFUSED("{'__metadata__':[]}", 0, "__metadata__", "object");
    REFUSED("{'__metadata__':{'a':'b','n_ctx':256}}", 0, "__metadata__", "n_ctx", "string");
    REFUSED("{'__metadata__':{'a\\n':null}}", 0, "__metadata__", "a\\x0a", "string");
}

/* ---- one tensor's entry ---- */

static void an_entry_that_is_no_object_is_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':[]}", 0, "tensor wq", "object");
    REFUSED("{'wq':null}", 0, "tensor wq", "object");
}

static void a_dtype_that_is_missing_or_unknown_is_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':{'shape':[0],'data_offsets':[0,0]}}", 0, "tensor wq", "dtype", "string");
    REFUSED("{'wq':{'dtype':32,'shape':[0],'data_offsets':[0,0]}}", 0, "tensor wq", "dtype", "string");
    REFUSED("{'wq':{'dtype':'F3','shape':[0],'data_offsets':[0,0]}}", 0, "tensor wq", "dtype F3 isn't known");
    REFUSED("{'wq':{'dtype':'','shape':[0],'data_offsets':[0,0]}}", 0, "tensor wq", "dtype  isn't known");
    REFUSED("{'wq':{'dtype':'Q4_LONGER\\u0007','shape':[0],'data_offsets':[0,0]}}", 0, "dtype Q4_LONGER\\x07 isn't");
}

static void a_shape_that_is_no_list_of_sizes_is_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':{'dtype':'F32','data_offsets':[0,4]}}", 4, "tensor wq", "shape", "list");
    REFUSED("{'wq':{'dtype':'F32','shape':1,'data_offsets':[0,4]}}", 4, "tensor wq", "shape", "list");
    REFUSED("{'wq':{'dtype':'F32','shape':[1,'1'],'data_offsets':[0,4]}}", 4, "tensor wq", "axis 1", "whole number");
    REFUSED("{'wq':{'dtype':'F32','shape':[1.0],'data_offsets':[0,4]}}", 4, "tensor wq", "axis 0", "whole number");
    REFUSED("{'wq':{'dtype':'F32','shape':[-1,-1],'data_offsets':[0,4]}}", 4, "tensor wq", "axis 0", "whole number");
}

static void a_shape_has_four_axes_at_most(void **state)
{
    (void)state;
    accepted("{'wq':{'dtype':'F32','shape':[1,1,1,2],'data_offsets':[0,8]}}", 8);
    REFUSED("{'wq':{'dtype':'F32','shape':[1,1,1,1,2],'data_offsets':[0,8]}}", 8, "tensor wq", "5 axes", "than 4");
}

/* Each of these sizes is 0 modulo 2^64, so that only the check for overflow can tell. */
static void a_shape_whose_size_overflows_is_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':{'dtype':'U8','shape':[4294967296,4294967296],'data_offsets':[0,0]}}", 0, "tensor wq", "elements");
    REFUSED("{'wq':{'dtype':'F64','shape':[2305843009213693952],'data_offsets':[0,0]}}", 0, "tensor wq", "elements");
    accepted("{'wq':{'dtype':'F64','shape':[0,4294967296,4294967296],'data_offsets':[0,0]}}", 0);
}

static void offsets_that_are_no_pair_are_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':{'dtype':'F32','shape':[0]}}", 0, "tensor wq", "data_offsets", "two");
    REFUSED("{'wq':{'dtype':'F32','shape':[0],'data_offsets':[0]}}", 0, "tensor wq", "data_offsets", "two");
    REFUSED("{'wq':{'dtype':'F32','shape':[0],'data_offsets':[0,0,0]}}", 0, "tensor wq", "data_offsets", "two");
    REFUSED("{'wq':{'dtype':'F32','shape':[0],'data_offsets':[0.0,0]}}", 0, "tensor wq", "data_offsets", "two");
    REFUSED("{'wq':{'dtype':'F32','shape':[0],'data_offsets':[0,'0']}}", 0, "tensor wq", "data_offsets", "two");
    REFUSED("{'wq':{'dtype':'F32','shape':[0],'data_offsets':{}}}", 0, "tensor wq", "data_offsets", "two");
}

static void offsets_that_run_backwards_are_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':{'dtype':'F32','shape':[1],'data_offsets':[4,3]}}", 8, "tensor wq", "[4, 3]", "before they begin");
    REFUSED("{'wq':{'dtype':'F32','shape':[1],'data_offsets':[-4,0]}}", 8, "tensor wq", "[-4, 0]", "negative");
}

static void offsets_past_the_data_are_refused(void **state)
{
    (void)state;
    accepted("{'wq':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 8);
    REFUSED("{'wq':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 7, "tensor wq", "[0, 8]", "past", "7 bytes");
    REFUSED("{'wq':{'dtype':'U8','shape':[9223372036854775807],'data_offsets':[0,9223372036854775807]}}", 7,
            "tensor wq", "past", "7 bytes");
}

static void offsets_that_disagree_with_the_shape_are_refused(void **state)
{
    (void)state;
    REFUSED("{'wq':{'dtype':'F32','shape':[2],'data_offsets':[0,9]}}", 9, "tensor wq", "span 9", "shape make 8");
    REFUSED("{'wq':{'dtype':'F32','shape':[2],'data_offsets':[0,7]}}", 7, "tensor wq", "span 7", "shape make 8");
}

/* ---- all the entries together ---- */

static void tensors_that_overlap_are_refused(void **state)
{
    (void)state;
    REFUSED("{'b':{'dtype':'U8','shape':[4],'data_offsets':[3,7]},'a':{'dtype':'U8','shape':[4],'data_offsets':[0,4]}}",
            7, "tensor b overlaps tensor a");
    REFUSED("{'a':{'dtype':'U8','shape':[4],'data_offsets':[0,4]},'b':{'dtype':'U8','shape':[4],'data_offsets':[0,4]}}",
            4, "overlaps tensor");
    REFUSED("{'e':{'dtype':'U8','shape':[0],'data_offsets':[2,2]},'a':{'dtype':'U8','shape':[4],'data_offsets':[0,4]}}",
            4, "tensor e overlaps tensor a");
}

static void data_that_no_tensor_claims_is_refused(void **state)
{
    (void)state;
    REFUSED("{'a':{'dtype':'U8','shape':[4],'data_offsets':[1,5]}}", 5, "tensor a", "hole of 1 bytes");
    REFUSED("{'a':{'dtype':'U8','shape':[4],'data_offsets':[0,4]},"
            "'b':{'dtype':'U8','shape':[4],'data_offsets':[6,10]}}", 10, "tensor b", "hole of 2 bytes");
    REFUSED("{'a':{'dtype':'U8','shape':[4],'data_offsets':[0,4]}}", 7, "last 3 bytes");
    REFUSED("{}", 1, "last 1 bytes");
}

/* ---- what sentences show ---- */

static void names_are_shown_without_control_bytes(void **state)
{
    (void)state;
    REFUSED("{'a\\u001b[2Jb\\n':1}", 0, "tensor a\\x1b[2Jb\\x0a", "object");
    REFUSED("{'a\\u009bz':1}", 0, "tensor a\\xc2\\x9bz", "object");
    REFUSED("{'a':1,\x1b[2J}", 0, "valid JSON", "\\x1b");
    REFUSED("{'a\\n':{'dtype':'U8','shape':[4],'data_offsets':[0,4]},"
            "'b\\t':{'dtype':'U8','shape':[4],'data_offsets':[3,7]}}", 7, "tensor b\\x09 overlaps tensor a\\x0a");
    REFUSED("{'a\\n':{'dtype':'U8','shape':[4],'data_offsets':[1,5]}}", 5, "tensor a\\x0a", "hole");
}

static void long_names_and_paths_leave_room_for_the_fault(void **state)
{
    char header[2000], path[2000] = "";
    failure f = {""};

    (void)state;
    snprintf(header, sizeof header, "{'%01000d':1}", 7);
    memset(path, '/', 1500);
    strcpy(path + 1500, "name.safetensors");
    file_bytes file = file_of(header, 0);
    assert_null(safetensors_parse(file.bytes, file.n, path, &f));
    assert_true(says(&f, "/name.safetensors: ", "tensor 0000", "…", "object", NULL));
    free(file.bytes);
}

/* ---- files on disk ---- */

static failure open_fails(const char *path)
{
    failure f = {""};

    assert_null(safetensors_open(path, &f));
    assert_true(says(&f, path, ": ", NULL));
    return f;
}

static void a_file_on_disk_is_read(void **state)
{
    char path[64];
    file_bytes file = file_of(two_tensors, 32);
    failure f;

    (void)state;
    write_temporary(path, file.bytes, file.n);
    safetensors *s = safetensors_open(path, &f);
    unlink(path);
    assert_non_null(s);
    assert_string_equal(safetensors_path(s), path);
    assert_int_equal(((const unsigned char *)safetensors_find(s, "b")->data)[23], 31);
    safetensors_close(s);
    free(file.bytes);
}

static bool is_mapped(const char *path)
{
    char line[1024];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        found = found || strstr(line, path);
    fclose(maps);
    return found;
}

static int lowest_free_descriptor(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static void a_file_is_closed_once_it_is_mapped_or_refused(void **state)
{
    char path[64];
    file_bytes file = file_of(two_tensors, 32);
    failure f;
    int before = lowest_free_descriptor();

    (void)state;
    write_temporary(path, file.bytes, file.n);
    safetensors *s = safetensors_open(path, &f);
    assert_non_null(s);
    assert_int_equal(lowest_free_descriptor(), before);
    open_fails("/tmp");
    assert_int_equal(lowest_free_descriptor(), before);
    safetensors_close(s);
    unlink(path);
    free(file.bytes);
}

static void a_file_is_unmapped_when_it_is_closed_or_refused(void **state)
{
    char path[64];
    file_bytes file = file_of(two_tensors, 33);
    failure f;

    (void)state;
    write_temporary(path, file.bytes, file.n);
    assert_null(safetensors_open(path, &f));
    assert_false(is_mapped(path));
    assert_int_equal(truncate(path, file.n - 1), 0);
    safetensors *s = safetensors_open(path, &f);
    assert_non_null(s);
    assert_true(is_mapped(path));
    safetensors_close(s);
    assert_false(is_mapped(path));
    unlink(path);
    free(file.bytes);
}

static void a_file_that_the_system_will_not_map_is_refused(void **state)
{
    char path[64];
    file_bytes file = file_of(two_tensors, 32);
    struct rlimit before, none;

    (void)state;
    write_temporary(path, file.bytes, file.n);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    failure f = {""};
    safetensors *s = safetensors_open(path, &f);
    setrlimit(RLIMIT_AS, &before);
    unlink(path);
    free(file.bytes);
    assert_null(s);
    assert_true(says(&f, path, ": can't be mapped: ", NULL));
}

static void a_missing_file_is_refused(void **state)
{
    (void)state;
    failure f = open_fails("/tmp/there/is/no/such.safetensors");
    assert_true(says(&f, "can't be opened", "No such file", NULL));
}

static void a_directory_is_refused(void **state)
{
    (void)state;
    failure f = open_fails("/tmp");
    assert_true(says(&f, "is a directory", NULL));
}

static void a_named_pipe_is_refused_without_waiting(void **state)
{
    char path[64];

    (void)state;
    write_temporary(path, "", 0);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(10);
    failure f = open_fails(path);
    alarm(0);
    unlink(path);
    assert_true(says(&f, "isn't a regular file", NULL));
}

static void an_empty_file_is_refused(void **state)
{
    char path[64];

    (void)state;
    write_temporary(path, "", 0);
    failure f = open_fails(path);
    unlink(path);
    assert_true(says(&f, "0 bytes", "too few", NULL));
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    file_bytes file = file_of(two_tensors, 32);
    failure f = {""};

    (void)state;
    for (size_t n = 0; n < file.n; n++) {
        void *exact = malloc(n); /* so that a read past the end shows under a sanitizer */
        memcpy(exact, file.bytes, n);
        assert_null(safetensors_parse(exact, n, "FILE", &f));
        assert_true(says(&f, "FILE: ", NULL));
        free(exact);
    }
    free(file.bytes);
}

static void a_cut_file_on_disk_is_refused(void **state)
{
    char path[64];
    file_bytes file = file_of(two_tensors, 32);

    (void)state;
    write_temporary(path, file.bytes, file.n - 1);
    failure f = open_fails(path);
    unlink(path);
    free(file.bytes);
    assert_true(says(&f, "tensor b", "past", "31 bytes", NULL));
}

/* ---- numbers ---- */

/* Overwrites the data of the one tensor "w" and reads it: the header's odd length leaves the data unaligned. */
static int read_tensor(const char *dtype, const void *data, int n, int size, double *values, failure *f)
{
    char header[100];

    snprintf(header, sizeof header, "{'w':{'dtype':'%s','shape':[%d],'data_offsets':[0,%d]}}", dtype, n, n * size);
    size_t length = strlen(header);
    header[length] = length % 2 ? '\0' : ' ';
    header[length + 1] = '\0';
    file_bytes file = file_of(header, n * size);
    memcpy(file.bytes + file.n - n * size, data, n * size);
    safetensors *s = parsed(file);
    int result = tensor_read(s, safetensors_find(s, "w"), values, f);
    safetensors_close(s);
    free(file.bytes);
    return result;
}

static void floats_and_doubles_are_read_exactly(void **state)
{
    double values[3];
    failure f;

    (void)state;
    assert_int_equal(read_tensor("F32", (float[]){0.1f, -3, 1e-45f}, 3, 4, values, &f), 0);
    assert_true(values[0] == (double)0.1f && values[1] == -3 && values[2] == (double)1e-45f);
    assert_int_equal(read_tensor("F64", (double[]){0.1, 1e300, -5e-324}, 3, 8, values, &f), 0);
    assert_true(values[0] == 0.1 && values[1] == 1e300 && values[2] == -5e-324);
}

static void one_element_is_read_by_its_index(void **state)
{
    file_bytes file = file_of("{'w':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 8);
    double value;
    failure f;

    (void)state;
    memcpy(file.bytes + file.n - 4, (float[]){2.5f}, 4);
    safetensors *s = parsed(file);
    assert_int_equal(tensor_element(safetensors_at(s, 0), 1, &value, &f), 0);
    assert_true(value == 2.5);
    safetensors_close(s);
    free(file.bytes);
}

static void a_value_that_is_not_finite_is_refused_by_its_index(void **state)
{
    double values[3];
    failure f;

    (void)state;
    assert_int_equal(read_tensor("F32", (float[]){1, NAN, 1}, 3, 4, values, &f), -1);
    assert_true(says(&f, "FILE: tensor w", "element 1", "nan", "finite", NULL));
    assert_int_equal(read_tensor("F32", (float[]){1, 1, -INFINITY}, 3, 4, values, &f), -1);
    assert_true(says(&f, "FILE: tensor w", "element 2", "-inf", "finite", NULL));
    assert_int_equal(read_tensor("F64", (double[]){INFINITY, 1, 1}, 3, 8, values, &f), -1);
    assert_true(says(&f, "FILE: tensor w", "element 0", "inf", "finite", NULL));
}

static void other_dtypes_are_not_read(void **state)
{
    double values[2];
    failure f;

    (void)state;
    assert_int_equal(read_tensor("I32", (int[]){1, 2}, 2, 4, values, &f), -1);
    assert_true(says(&f, "FILE: tensor w", "I32", "F32 and F64", NULL));
    assert_int_equal(read_tensor("BF16", (short[]){1, 2}, 2, 2, values, &f), -1);
    assert_true(says(&f, "FILE: tensor w", "BF16", NULL));
}

static void a_tensor_that_is_not_read_is_named_without_control_bytes(void **state)
{
    file_bytes file = file_of("{'w\\n':{'dtype':'F32','shape':[1],'data_offsets':[0,4]},"
                              "'i\\n':{'dtype':'I32','shape':[1],'data_offsets':[4,8]}}", 8);
    double value;
    failure f;

    (void)state;
    memcpy(file.bytes + file.n - 8, (float[]){NAN}, 4);
    safetensors *s = parsed(file);
    assert_int_equal(tensor_element(safetensors_at(s, 0), 0, &value, &f), -1);
    assert_true(says(&f, "tensor w\\x0a: element 0", NULL));
    assert_int_equal(tensor_element(safetensors_at(s, 1), 0, &value, &f), -1);
    assert_true(says(&f, "tensor i\\x0a: dtype is I32", NULL));
    safetensors_close(s);
    free(file.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_in_the_order_of_their_data),
        cmocka_unit_test(tensors_metadata_and_path_are_found),
        cmocka_unit_test(a_file_without_tensors_or_metadata_is_whole),
        cmocka_unit_test(a_scalar_has_no_axes_and_one_element),
        cmocka_unit_test(empty_tensors_may_lie_between_others),
        cmocka_unit_test(each_known_dtype_has_its_size),
        cmocka_unit_test(closing_nothing_is_fine),
        cmocka_unit_test(a_file_too_short_for_the_length_is_refused),
        cmocka_unit_test(a_header_longer_than_the_file_is_refused),
        cmocka_unit_test(a_header_longer_than_the_format_allows_is_refused),
        cmocka_unit_test(a_header_that_is_no_object_is_refused),
        cmocka_unit_test(a_header_that_is_no_json_is_refused),
        cmocka_unit_test(a_name_given_twice_is_refused),
        cmocka_unit_test(metadata_that_is_not_text_to_text_is_refused),
        cmocka_unit_test(an_entry_that_is_no_object_is_refused),
        cmocka_unit_test(a_dtype_that_is_missing_or_unknown_is_refused),
        cmocka_unit_test(a_shape_that_is_no_list_of_sizes_is_refused),
        cmocka_unit_test(a_shape_has_four_axes_at_most),
        cmocka_unit_test(a_shape_whose_size_overflows_is_refused),
        cmocka_unit_test(offsets_that_are_no_pair_are_refused),
        cmocka_unit_test(offsets_that_run_backwards_are_refused),
        cmocka_unit_test(offsets_past_the_data_are_refused),
        cmocka_unit_test(offsets_that_disagree_with_the_shape_are_refused),
        cmocka_unit_test(tensors_that_overlap_are_refused),
        cmocka_unit_test(data_that_no_tensor_claims_is_refused),
        cmocka_unit_test(names_are_shown_without_control_bytes),
        cmocka_unit_test(long_names_and_paths_leave_room_for_the_fault),
        cmocka_unit_test(a_file_on_disk_is_read),
        cmocka_unit_test(a_file_is_closed_once_it_is_mapped_or_refused),
        cmocka_unit_test(a_file_is_unmapped_when_it_is_closed_or_refused),
        cmocka_unit_test(a_file_that_the_system_will_not_map_is_refused),
        cmocka_unit_test(a_missing_file_is_refused),
        cmocka_unit_test(a_directory_is_refused),
        cmocka_unit_test(a_named_pipe_is_refused_without_waiting),
        cmocka_unit_test(an_empty_file_is_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_cut_file_on_disk_is_refused),
        cmocka_unit_test(floats_and_doubles_are_read_exactly),
        cmocka_unit_test(one_element_is_read_by_its_index),
        cmocka_unit_test(a_value_that_is_not_finite_is_refused_by_its_index),
        cmocka_unit_test(other_dtypes_are_not_read),
        cmocka_unit_test(a_tensor_that_is_not_read_is_named_without_control_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
