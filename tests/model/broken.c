/* Model files in memory, whole and broken. */
#include "broken.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"
#include "tokenizer.h"

/* ---- raw files ---- */

/* The header's length, the header, and room for n_data bytes, of which *data is the first. */
static file_bytes with_header(const char *header, size_t n_data, unsigned char **data)
{
    uint64_t n_header = strlen(header);
    file_bytes file = {malloc(8 + n_header + n_data), 8 + n_header + n_data};

    assert(file.bytes);
    memcpy(file.bytes, &n_header, 8);
    memcpy(file.bytes + 8, header, n_header);
    *data = file.bytes + 8 + n_header;
    return file;
}

file_bytes file_of(const char *header, size_t n_data)
{
    char text[8192];
    unsigned char *data;

    assert(strlen(header) < sizeof text);
    strcpy(text, header);
    for (char *c = text; *c; c++)
        if (*c == '\'')
            *c = '"';
    file_bytes file = with_header(text, n_data, &data);
    for (size_t i = 0; i < n_data; i++)
        data[i] = i;
    return file;
}

/* ---- drafts ---- */

draft_tensor *draft_find(draft *d, const char *name)
{
    for (int i = 0; i < d->n_tensors; i++)
        if (strcmp(d->tensors[i].name, name) == 0)
            return &d->tensors[i];
    assert(!"no tensor of this name");
    return NULL;
}

draft_tensor *draft_add(draft *d, const char *name, int n_axes, long rows, long columns)
{
    draft_tensor *t = &d->tensors[d->n_tensors++];

    assert(d->n_tensors <= 40);
    *t = (draft_tensor){.dtype = "F32", .n_axes = n_axes, .shape = {rows, columns, 1, 1, 1}};
    strcpy(t->name, name);
    return t;
}

void draft_remove(draft *d, const char *name)
{
    draft_tensor *t = draft_find(d, name);

    memmove(t, t + 1, (char *)&d->tensors[d->n_tensors--] - (char *)(t + 1));
}

void draft_set(draft *d, const char *key, const char *value)
{
    int i = 0;

    while (i < d->n_fields && strcmp(d->fields[i].key, key) != 0)
        i++;
    if (!value) {
        assert(i < d->n_fields);
        d->fields[i] = d->fields[--d->n_fields];
        return;
    }
    d->n_fields += i == d->n_fields;
    strcpy(d->fields[i].key, key);
    strcpy(d->fields[i].value, value);
}

static int n_elements(const draft_tensor *t)
{
    int n = 1;

    for (int i = 0; i < t->n_axes; i++)
        n *= t->shape[i];
    return n;
}

int draft_first(const draft *d, const char *name)
{
    int n = 0;

    for (const draft_tensor *t = d->tensors; strcmp(t->name, name) != 0; t++)
        n += n_elements(t);
    return n;
}

double draft_value(int element)
{
    return (element - 100) / 64.0; /* exact in float */
}

static void add_norm(draft *d, const char *name, bool bias)
{
    char full[48];

    snprintf(full, sizeof full, "%s.weight", name);
    draft_add(d, full, 1, 4, 1);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias)
        draft_add(d, full, 1, 4, 1);
}

static void add_projection(draft *d, const char *name, long n_out, long n_in, bool bias)
{
    char full[48];

    snprintf(full, sizeof full, "layers.0.%s.weight", name);
    draft_add(d, full, 2, n_out, n_in);
    snprintf(full, sizeof full, "layers.0.%s.bias", name);
    if (bias)
        draft_add(d, full, 1, n_out, 1);
}

static void add_tensors(draft *d, position_kind position)
{
    bool gpt = position != ROTARY;
    long d_kv = gpt ? 4 : 2;

    draft_add(d, "token_embedding", 2, 3, 4);
    if (position == LEARNED)
        draft_add(d, "position_embedding", 2, 4, 4);
    add_norm(d, "layers.0.attention_norm", gpt);
    add_norm(d, "layers.0.mlp_norm", gpt);
    add_projection(d, "query", 4, 4, gpt);
    add_projection(d, "output", 4, 4, gpt);
    add_projection(d, "key", d_kv, 4, gpt);
    add_projection(d, "value", d_kv, 4, gpt);
    add_projection(d, "up", 3, 4, gpt);
    add_projection(d, "down", 4, 3, gpt);
    if (!gpt)
        add_projection(d, "gate", 3, 4, false);
    add_norm(d, "final_norm", gpt);
    if (position == LEARNED)
        draft_add(d, "unembedding.weight", 2, 3, 4);
}

draft draft_of(position_kind position)
{
    static const char *const kinds[3][6] = {{"layer_norm", "gelu_tanh", "sinusoidal", "true", "tied", "2"},
                                            {"layer_norm", "gelu_exact", "learned", "true", "untied", "2"},
                                            {"rms_norm", "swiglu", "rotary", "false", "tied", "1"}};
    static const char *const keys[] = {"norm", "activation", "position", "bias", "output", "n_kv_head"};
    static const char *const same[][2] = {{"n_vocab", "3"}, {"n_ctx", "4"},        {"d_model", "4"},
                                          {"n_layer", "1"}, {"n_head", "2"},       {"d_ff", "3"},
                                          {"norm_eps", "1e-05"}, {"rope_base", "10000.0"}, {"vocabulary", "ab"},
                                          {"validation_loss", "1.4821"}};
    draft d = {.odd = -1};

    add_tensors(&d, position);
    for (int i = 0; i < 6; i++)
        draft_set(&d, keys[i], kinds[position][i]);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        draft_set(&d, same[i][0], same[i][1]);
    return d;
}

static size_t write_header(const draft *d, char *text, size_t size)
{
    size_t at = snprintf(text, size, "{\"__metadata__\":{"), offset = 0;

    for (int i = 0; i < d->n_fields; i++)
        at += snprintf(text + at, size - at, "%s\"%s\":\"%s\"", i ? "," : "", d->fields[i].key, d->fields[i].value);
    at += snprintf(text + at, size - at, "}");
    for (const draft_tensor *t = d->tensors; t < d->tensors + d->n_tensors; t++) {
        size_t n_bytes = n_elements(t) * (strcmp(t->dtype, "F64") == 0 ? 8 : 4);
        at += snprintf(text + at, size - at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (int i = 0; i < t->n_axes; i++)
            at += snprintf(text + at, size - at, "%s%ld", i ? "," : "", t->shape[i]);
        at += snprintf(text + at, size - at, "],\"data_offsets\":[%zu,%zu]}", offset, offset + n_bytes);
        offset += n_bytes;
    }
    snprintf(text + at, size - at, "}");
    return offset;
}

file_bytes draft_bytes(const draft *d)
{
    char header[8192];
    size_t n_data = write_header(d, header, sizeof header);
    unsigned char *data;
    file_bytes file = with_header(header, n_data, &data);
    int element = 0;

    for (const draft_tensor *t = d->tensors; t < d->tensors + d->n_tensors; t++)
        for (int i = 0; i < n_elements(t); i++, element++) {
            double value = element == d->odd ? d->odd_value : draft_value(element);
            float narrow = value;
            bool wide = strcmp(t->dtype, "F64") == 0;
            memcpy(data, wide ? (void *)&value : &narrow, wide ? 8 : 4);
            data += wide ? 8 : 4;
        }
    return file;
}

/* ---- files on disk ---- */

void write_temporary(char *path, const void *bytes, size_t n)
{
    strcpy(path, "/tmp/model-XXXXXX");
    int fd = mkstemp(path);

    assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

/* ---- what must hold for any bytes at all ---- */

static void demand(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "for some bytes this doesn't hold: %s\n", what);
    abort();
}

static void demand_sentence(const failure *f)
{
    demand(strncmp(f->sentence, "FILE: ", 6) == 0 && f->sentence[6], "the sentence names the file and the fault");
    for (const char *c = f->sentence; *c; c++)
        demand((unsigned char)*c >= 0x20 && *c != 0x7f, "the sentence has no control bytes");
}

static void exercise_tensor(const safetensors *s, const tensor *t, const void *bytes, size_t n)
{
    failure f = {""};
    double *values = malloc(t->n * sizeof *values + 1);
    const char *data = t->data, *end = (const char *)bytes + n;

    demand(values != NULL, "no tensor has more elements than the file has bytes");
    demand(data >= (const char *)bytes && data <= end && t->n <= (size_t)(end - data), "a tensor lies in the file");
    if (tensor_read(s, t, values, &f))
        demand_sentence(&f);
    else
        for (size_t i = 0; i < t->n; i++)
            demand(isfinite(values[i]), "numbers that are read are finite");
    demand(safetensors_find(s, t->name) == t, "a tensor is found by its name");
    free(values);
}

static void exercise_model(const model *m)
{
    tokenizer t;
    failure f;
    const struct model_parts *p = m->parts;

    for (int i = 0; i < p->n_slots; i++) {
        long n = p->slots[i].shape[0] * (p->slots[i].n_axes == 2 ? p->slots[i].shape[1] : 1);
        for (long j = 0; j < n; j++)
            demand(isfinite(p->slots[i].values[j]), "weights are finite");
    }
    demand(!model_vocabulary(m) == (m->end_of_text == -1), "an end-of-text token comes with a vocabulary");
    if (!model_vocabulary(m))
        return;
    demand(tokenizer_init(&t, model_vocabulary(m), &f) == 0, "the vocabulary makes a tokenizer");
    demand(t.n_vocab == m->shape.n_vocab && t.end_of_text == m->end_of_text, "it has as many tokens as the model");
    tokenizer_free(&t);
}

bool exercise(const void *bytes, size_t n)
{
    failure f = {""};
    safetensors *s = safetensors_parse(bytes, n, "FILE", &f);
    model *m = s ? model_from(s, &f) : NULL;

    if (!m)
        demand_sentence(&f);
    else
        exercise_model(m);
    for (int i = 0; s && i < safetensors_count(s); i++)
        exercise_tensor(s, safetensors_at(s, i), bytes, n);
    safetensors_close(s);
    model_free(m);
    return m != NULL;
}

bool says(const failure *f, const char *word, ...)
{
    const char *at = f->sentence;
    va_list more;

    va_start(more, word);
    for (; word && at; word = va_arg(more, const char *)) {
        at = strstr(at, word);
        if (at)
            at += strlen(word);
        else
            fprintf(stderr, "\"%s\" isn't in its place in: %s\n", word, f->sentence);
    }
    va_end(more);
    return at != NULL;
}
