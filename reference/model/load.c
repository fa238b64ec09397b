/* Reads a model file: its shape from the metadata, then its weights, each checked against what a model of this shape
   has. Leaves out the file format (safetensors.c) and the memory's layout (build.c). */
#include <ctype.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"
#include "safetensors.h"
#include "text.h"
#include "tokenizer.h"

/* ---- the metadata: every value is text ---- */

static const char *field(const safetensors *s, const char *key, failure *f)
{
    const char *text = safetensors_metadata(s, key);

    if (!text)
        fail(f, "the metadata has no %s", key);
    return text;
}

/* strtol and strtod skip white space and know words such as "nan"; a file's numbers begin with a digit or a minus. */
static bool begins_number(const char *text)
{
    return isdigit((unsigned char)text[text[0] == '-']);
}

static int not_a_number(const char *key, const char *text, failure *f)
{
    return fail(f, "%s is \"%s\", which isn't a number", key, quote(text, strlen(text)).text);
}

static int read_int(const safetensors *s, const char *key, int *value, failure *f)
{
    const char *text = field(s, key, f);
    char *end;

    if (!text)
        return -1;
    long number = strtol(text, &end, 10); /* what doesn't fit becomes LONG_MIN or LONG_MAX */
    if (!begins_number(text) || *end)
        return not_a_number(key, text, f);
    if (number < INT_MIN || number > INT_MAX)
        return fail(f, "%s is %s, which is out of range", key, quote(text, strlen(text)).text);
    *value = number;
    return 0;
}

static int read_double(const safetensors *s, const char *key, double *value, failure *f)
{
    const char *text = field(s, key, f);
    char *end;

    if (!text)
        return -1;
    *value = strtod(text, &end); /* what overflows becomes infinite, which check_shape refuses */
    if (!begins_number(text) || *end)
        return not_a_number(key, text, f);
    return 0;
}

/* `choices`: words between spaces. Returns the index of the one that the field names, or -1. */
static int read_choice(const safetensors *s, const char *key, const char *choices, failure *f)
{
    const char *text = field(s, key, f), *choice = choices;
    size_t n = text ? strlen(text) : 0;

    if (!text)
        return -1;
    for (int i = 0; *choice; i++) {
        size_t n_choice = strcspn(choice, " ");
        if (n == n_choice && memcmp(text, choice, n) == 0)
            return i;
        choice += n_choice + (choice[n_choice] == ' ');
    }
    return fail(f, "%s is \"%s\", but must be one of: %s", key, quote(text, n).text, choices);
}

static int read_sizes(const safetensors *s, model_shape *shape, failure *f)
{
    if (read_int(s, "n_vocab", &shape->n_vocab, f) || read_int(s, "n_ctx", &shape->n_ctx, f) ||
        read_int(s, "d_model", &shape->d_model, f) || read_int(s, "n_layer", &shape->n_layer, f) ||
        read_int(s, "n_head", &shape->n_head, f) || read_int(s, "n_kv_head", &shape->n_kv_head, f) ||
        read_int(s, "d_ff", &shape->d_ff, f) || read_double(s, "norm_eps", &shape->norm_eps, f) ||
        read_double(s, "rope_base", &shape->rope_base, f))
        return -1;
    return 0;
}

static int read_kinds(const safetensors *s, model_shape *shape, failure *f)
{
    static const struct {
        const char *key, *choices; /* in the order of the enum, or of false and true */
    } fields[] = {{"norm", "layer_norm rms_norm"},
                  {"activation", "gelu_tanh gelu_exact swiglu"},
                  {"position", "sinusoidal learned rotary"},
                  {"bias", "false true"},
                  {"output", "untied tied"}};
    int chosen[5];

    for (int i = 0; i < 5; i++)
        if ((chosen[i] = read_choice(s, fields[i].key, fields[i].choices, f)) < 0)
            return -1;
    shape->norm = chosen[0];
    shape->activation = chosen[1];
    shape->position = chosen[2];
    shape->bias = chosen[3];
    shape->tied = chosen[4];
    return 0;
}

/* ---- the tensors, before memory is taken for them ---- */

typedef struct {
    char text[MAX_AXES * 21 + 3];
} shape_text;

static shape_text show_shape(const long *shape, int n_axes)
{
    shape_text shown = {"["};
    size_t used = 1;

    for (int i = 0; i < n_axes; i++)
        used += snprintf(shown.text + used, sizeof shown.text - used, "%s%ld", i ? ", " : "", shape[i]);
    strcpy(shown.text + used, "]");
    return shown;
}

static int check_slot(const safetensors *s, const slot *wanted, failure *f)
{
    const tensor *t = safetensors_find(s, wanted->name);

    if (!t)
        return fail(f, "tensor %s is missing", wanted->name);
    if (t->n_axes != wanted->n_axes || memcmp(t->shape, wanted->shape, t->n_axes * sizeof *t->shape) != 0)
        return fail(f, "tensor %s has the shape %s, but must have %s", t->name, show_shape(t->shape, t->n_axes).text,
                    show_shape(wanted->shape, wanted->n_axes).text);
    return 0;
}

static bool has_slot(const struct model_parts *p, const char *name)
{
    for (int i = 0; i < p->n_slots; i++)
        if (strcmp(p->slots[i].name, name) == 0)
            return true;
    return false;
}

/* A tensor too many comes first: then there are no more tensors than slots, and finding each slot's is quick. */
static int check_tensors(const safetensors *s, const struct model_parts *p, failure *f)
{
    for (int i = 0; i < safetensors_count(s); i++) {
        const char *name = safetensors_at(s, i)->name;
        if (!has_slot(p, name))
            return fail(f, "tensor %s isn't part of a model of this shape", quote(name, strlen(name)).text);
    }
    for (int i = 0; i < p->n_slots; i++)
        if (check_slot(s, &p->slots[i], f))
            return -1;
    return 0;
}

/* The file backs its tensors' sizes, but only n_ctx says how large the position table and the MLP's working memory
   are: they may take 32 MB (16 in float) and four times the weights, which is more than any known model needs. */
static int check_context(const safetensors *s, const model *m, failure *f)
{
    size_t n_weights = 0;

    for (int i = 0; i < safetensors_count(s); i++)
        n_weights += safetensors_at(s, i)->n;
    if (m->parts->n_reals - n_weights <= (1u << 22) + 4 * n_weights)
        return 0;
    return fail(f, "n_ctx is %d, which takes %zu numbers of working memory: too many beside %zu weights",
                m->shape.n_ctx, m->parts->n_reals - n_weights, n_weights);
}

static int check_vocabulary(const safetensors *s, const model *m, failure *f)
{
    const char *vocabulary = safetensors_metadata(s, "vocabulary");
    tokenizer t;

    if (!vocabulary)
        return 0;
    if (tokenizer_init(&t, vocabulary, f))
        return -1;
    int n_vocab = t.n_vocab;
    tokenizer_free(&t);
    if (n_vocab != m->shape.n_vocab)
        return fail(f, "the vocabulary has %d characters, so n_vocab must be %d, but it is %d", n_vocab - 1, n_vocab,
                    m->shape.n_vocab);
    return 0;
}

/* ---- the weights ---- */

static int fill_slot(const safetensors *s, const slot *to, failure *f)
{
    const double most = sizeof(real) == sizeof(float) ? FLT_MAX : DBL_MAX;
    const tensor *t = safetensors_find(s, to->name);

    for (size_t i = 0; i < t->n; i++) {
        double value;
        if (tensor_element(t, i, &value, f))
            return -1;
        if (fabs(value) > most)
            return fail(f, "tensor %s: element %zu is %g, which is too large for float", to->name, i, value);
        to->values[i] = value;
    }
    return 0;
}

static int keep_vocabulary(const safetensors *s, model *m, failure *f)
{
    const char *vocabulary = safetensors_metadata(s, "vocabulary");

    if (!vocabulary)
        return 0;
    m->parts->vocabulary = strdup(vocabulary);
    if (!m->parts->vocabulary)
        return fail(f, "there isn't enough memory for the vocabulary");
    m->end_of_text = m->shape.n_vocab - 1;
    return 0;
}

static int fill(const safetensors *s, model *m, failure *f)
{
    if (check_tensors(s, m->parts, f) || check_context(s, m, f) || check_vocabulary(s, m, f) || model_allocate(m, f))
        return -1;
    for (int i = 0; i < m->parts->n_slots; i++)
        if (fill_slot(s, &m->parts->slots[i], f))
            return -1;
    return keep_vocabulary(s, m, f);
}

/* ---- the model ---- */

model *model_from(const safetensors *s, failure *f)
{
    model_shape shape = {0};
    model *m = NULL;

    if (!read_sizes(s, &shape, f) && !read_kinds(s, &shape, f))
        m = model_plan(shape, f);
    if (m && !fill(s, m, f))
        return m;
    fail_in(f, safetensors_path(s));
    model_free(m);
    return NULL;
}

model *model_load(const char *path, failure *f)
{
    safetensors *s = safetensors_open(path, f);
    model *m = s ? model_from(s, f) : NULL;

    safetensors_close(s);
    return m;
}

const char *model_vocabulary(const model *m)
{
    return m->parts->vocabulary;
}
