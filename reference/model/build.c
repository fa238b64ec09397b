/* Makes a model of a given shape: checks the shape, lays out its memory, names its tensors. Leaves out where the
   weights come from (load.c reads a file) and what is computed with them (model.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"
#include "parts.h"
#include "random.h"

/* ---- the shape ---- */

static int check_range(const char *field, long value, long most, failure *f)
{
    if (value >= 1 && value <= most)
        return 0;
    return fail(f, "%s is %ld, but must be from 1 to %ld", field, value, most);
}

static int check_shape(model_shape *s, failure *f)
{
    if (check_range("n_vocab", s->n_vocab, 1 << 20, f) || check_range("n_ctx", s->n_ctx, 1 << 20, f) ||
        check_range("d_model", s->d_model, 1 << 16, f) || check_range("n_layer", s->n_layer, MAX_LAYERS, f) ||
        check_range("n_head", s->n_head, MAX_HEADS, f) || check_range("n_kv_head", s->n_kv_head, s->n_head, f) ||
        check_range("d_ff", s->d_ff, 1 << 18, f))
        return -1;
    if (s->d_model % s->n_head)
        return fail(f, "d_model %d isn't a multiple of n_head %d", s->d_model, s->n_head);
    if (s->n_head % s->n_kv_head)
        return fail(f, "n_head %d isn't a multiple of n_kv_head %d", s->n_head, s->n_kv_head);
    s->d_head = s->d_model / s->n_head;
    if (s->position == ROTARY && s->d_head % 2)
        return fail(f, "rotary positions turn pairs, but a head is %d wide", s->d_head);
    if (s->position == SINUSOIDAL && s->d_model % 2)
        return fail(f, "sinusoidal positions come in pairs, but d_model is %d", s->d_model);
    if (!(s->norm_eps >= 0 && s->norm_eps < 1))
        return fail(f, "norm_eps is %g, but must be at least 0 and below 1", s->norm_eps);
    if (!(s->rope_base > 1 && s->rope_base < 1e12))
        return fail(f, "rope_base is %g, but must be above 1 and below 1e12", s->rope_base);
    return 0;
}

/* ---- the memory: one arena; a first pass over all the arrays counts, a second names the tensors, a third hands the
   arena out (model_plan makes the first two, model_allocate the third) ---- */

typedef struct {
    struct model_parts *parts;
    real *arena; /* NULL while counting and naming */
    size_t used, n_slots;
} layout;

static real *take(layout *at, size_t n)
{
    real *array = at->arena ? at->arena + at->used : NULL;

    at->used += n;
    return array;
}

static real *take_tensor(layout *at, int n_axes, long rows, long columns, const char *name, const char *suffix)
{
    real *values = take(at, (size_t)rows * columns);

    if (at->parts->slots) {
        slot *s = &at->parts->slots[at->n_slots];
        *s = (slot){.n_axes = n_axes, .shape = {rows, columns}, .values = values};
        snprintf(s->name, sizeof s->name, "%s%s", name, suffix);
    }
    at->n_slots++;
    return values;
}

static void place_norm(layout *at, const model_shape *s, norm_weight *w, const char *name)
{
    w->d = s->d_model;
    w->eps = s->norm_eps;
    w->gain = take_tensor(at, 1, s->d_model, 1, name, ".weight");
    w->bias = s->norm == LAYER_NORM ? take_tensor(at, 1, s->d_model, 1, name, ".bias") : NULL;
}

static void place_weight(layout *at, const model_shape *s, int l, role r, int n_out, int n_in)
{
    static const char *const names[] = {"query", "key", "value", "output", "gate", "up", "down"};
    weight *w = &at->parts->weights[l * UNEMBEDDING + r];
    char name[40];

    snprintf(name, sizeof name, "layers.%d.%s", l, names[r]);
    *w = (weight){.role = r, .layer = l, .n_out = n_out, .n_in = n_in};
    w->matrix = take_tensor(at, 2, n_out, n_in, name, ".weight");
    w->bias = s->bias ? take_tensor(at, 1, n_out, 1, name, ".bias") : NULL;
}

static void place_layer(layout *at, const model_shape *s, int l)
{
    int d_kv = s->n_kv_head * s->d_head;
    norm_weight *norms = &at->parts->norms[2 * l];
    char name[40];

    snprintf(name, sizeof name, "layers.%d.attention_norm", l);
    place_norm(at, s, &norms[0], name);
    snprintf(name, sizeof name, "layers.%d.mlp_norm", l);
    place_norm(at, s, &norms[1], name);
    place_weight(at, s, l, QUERY, s->d_model, s->d_model);
    place_weight(at, s, l, KEY, d_kv, s->d_model);
    place_weight(at, s, l, VALUE, d_kv, s->d_model);
    place_weight(at, s, l, OUTPUT, s->d_model, s->d_model);
    if (s->activation == SWIGLU)
        place_weight(at, s, l, GATE, s->d_ff, s->d_model);
    place_weight(at, s, l, UP, s->d_ff, s->d_model);
    place_weight(at, s, l, DOWN, s->d_model, s->d_ff);
}

static void place_ends(layout *at, const model_shape *s)
{
    struct model_parts *p = at->parts;

    p->token_embedding = take_tensor(at, 2, s->n_vocab, s->d_model, "token_embedding", "");
    if (s->position == LEARNED)
        p->positions = take_tensor(at, 2, s->n_ctx, s->d_model, "position_embedding", "");
    else
        p->positions = take(at, (size_t)s->n_ctx * (s->position == ROTARY ? s->d_head : s->d_model));
    place_norm(at, s, &p->final_norm, "final_norm");
    p->unembedding = (weight){.role = UNEMBEDDING, .n_out = s->n_vocab, .n_in = s->d_model};
    p->unembedding.matrix = s->tied ? p->token_embedding : take_tensor(at, 2, s->n_vocab, s->d_model, "unembedding", ".weight");
    p->scratch = take(at, (size_t)s->n_ctx * (2 * s->d_ff > s->d_model ? 2 * s->d_ff : s->d_model));
}

static void place_all(layout *at, const model_shape *s)
{
    at->used = at->n_slots = 0;
    for (int l = 0; l < s->n_layer; l++)
        place_layer(at, s, l);
    place_ends(at, s);
}

static int plan(struct model_parts *p, const model_shape *s)
{
    layout at = {.parts = p};

    p->layers = calloc(s->n_layer, sizeof *p->layers);
    p->weights = calloc((size_t)s->n_layer * UNEMBEDDING, sizeof *p->weights);
    p->norms = calloc((size_t)s->n_layer * 2, sizeof *p->norms);
    if (!p->layers || !p->weights || !p->norms)
        return -1;
    place_all(&at, s);
    p->n_slots = at.n_slots;
    p->n_reals = at.used;
    p->slots = calloc(at.n_slots, sizeof *p->slots);
    if (!p->slots)
        return -1;
    place_all(&at, s);
    return 0;
}

/* ---- the model ---- */

static void wire(model *m)
{
    struct model_parts *p = m->parts;

    for (int l = 0; l < m->shape.n_layer; l++) {
        const weight *w = &p->weights[l * UNEMBEDDING];
        p->layers[l] = (layer){
            .attention_norm = &p->norms[2 * l], .mlp_norm = &p->norms[2 * l + 1], .query = &w[QUERY], .key = &w[KEY],
            .value = &w[VALUE], .output = &w[OUTPUT], .gate = m->shape.activation == SWIGLU ? &w[GATE] : NULL,
            .up = &w[UP], .down = &w[DOWN],
        };
    }
    m->layers = p->layers;
    m->position_embedding = m->shape.position == LEARNED ? p->positions : NULL;
}

/* The tables that model_forward reads: made once, in double, and not by the code of lab 4. */
static void fill_positions(model *m)
{
    const model_shape *s = &m->shape;
    bool rotary = s->position == ROTARY;
    int width = rotary ? s->d_head : s->d_model;
    double base = rotary ? s->rope_base : 10000;

    for (int t = 0; s->position != LEARNED && t < s->n_ctx; t++)
        for (int i = 0; i < width; i += 2) {
            double angle = t * pow(base, -(double)i / width);
            real *pair = &m->parts->positions[(size_t)t * width + i];
            pair[0] = rotary ? cos(angle) : sin(angle);
            pair[1] = rotary ? sin(angle) : cos(angle);
        }
}

model *model_plan(model_shape shape, failure *f)
{
    if (check_shape(&shape, f))
        return NULL;
    model *m = calloc(1, sizeof *m);
    if (m)
        m->parts = calloc(1, sizeof *m->parts);
    if (!m || !m->parts || plan(m->parts, &shape)) {
        fail(f, "there isn't enough memory for a model of this size");
        model_free(m);
        return NULL;
    }
    m->shape = shape;
    m->end_of_text = -1;
    return m;
}

int model_allocate(model *m, failure *f)
{
    struct model_parts *p = m->parts;
    layout at = {.parts = p};

    at.arena = p->arena = p->n_reals > SIZE_MAX / sizeof(real) ? NULL : malloc(p->n_reals * sizeof(real));
    if (!p->arena)
        return fail(f, "there isn't enough memory for a model of this size");
    place_all(&at, &m->shape);
    wire(m);
    fill_positions(m);
    return 0;
}

model *model_new(model_shape shape, failure *f)
{
    model *m = model_plan(shape, f);

    if (m && model_allocate(m, f)) {
        model_free(m);
        return NULL;
    }
    return m;
}

/* The sum of twelve uniform numbers has variance 1 and is nearly normal: enough for weights. */
static real random_normal(generator *g)
{
    real sum = -6;

    for (int i = 0; i < 12; i++)
        sum += random_uniform(g);
    return sum;
}

static void fill_slot(const slot *s, generator *g)
{
    size_t columns = s->n_axes == 2 ? s->shape[1] : 1, n = s->shape[0] * columns;
    bool gain = strstr(s->name, "norm.weight") != NULL;
    real scale = s->n_axes == 2 ? 1 / sqrt((double)columns) : 0.1;

    for (size_t i = 0; i < n; i++)
        s->values[i] = gain + scale * random_normal(g);
}

model *model_random(model_shape shape, uint64_t seed, failure *f)
{
    generator g = {seed};
    model *m = model_new(shape, f);

    for (int i = 0; m && i < m->parts->n_slots; i++)
        fill_slot(&m->parts->slots[i], &g);
    return m;
}

void model_free(model *m)
{
    struct model_parts *p = m ? m->parts : NULL;

    if (p) {
        free(p->slots);
        free(p->layers);
        free(p->weights);
        free(p->norms);
        free(p->arena);
        free(p->vocabulary);
    }
    free(p);
    free(m);
}
