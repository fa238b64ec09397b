/* What the given model computes: the pieces that labs call, and the whole forward pass without a cache, which labs are
   compared with. Leaves out making a model (build.c) and reading one (load.c).
   Letters: n rows, D d_model, H heads. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "parts.h"

/* ---- the pieces ---- */

int embed(const model *m, const int *tokens, int n, real *x)
{
    int d = m->shape.d_model;

    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->shape.n_vocab)
            return -1;
    for (int i = 0; i < n; i++)
        memcpy(x + (size_t)i * d, m->parts->token_embedding + (size_t)tokens[i] * d, d * sizeof *x);
    return 0;
}

/* GELU (Hendrycks and Gimpel 2016): x Φ(x), or its approximation by tanh. */
static real gelu_exact(real x)
{
    return x * (real)0.5 * (1 + erf(x * (real)M_SQRT1_2));
}

static real gelu_tanh(real x)
{
    return x * (real)0.5 * (1 + tanh((real)(M_2_SQRTPI * M_SQRT1_2) * (x + (real)0.044715 * x * x * x)));
}

static real silu(real x)
{
    return x / (1 + exp(-x));
}

void mlp(const model *m, int l, const real *x, int n, real *y)
{
    const layer *at = &m->layers[l];
    size_t size = (size_t)n * m->shape.d_ff;
    real *up = m->parts->scratch, *gate = up + size;

    assert(n <= m->shape.n_ctx);
    project(at->up, x, n, up);
    switch (m->shape.activation) {
    case GELU_TANH:
        for (size_t i = 0; i < size; i++)
            up[i] = gelu_tanh(up[i]);
        break;
    case GELU_EXACT:
        for (size_t i = 0; i < size; i++)
            up[i] = gelu_exact(up[i]);
        break;
    case SWIGLU:
        project(at->gate, x, n, gate);
        for (size_t i = 0; i < size; i++)
            up[i] *= silu(gate[i]);
    }
    project(at->down, up, n, y);
}

void unembed(const model *m, const real *x, int n, real *logits)
{
    real *rows = m->parts->scratch;

    assert(n <= m->shape.n_ctx);
    norm(&m->parts->final_norm, x, n, rows);
    project(&m->parts->unembedding, rows, n, logits);
}

/* ---- the whole forward pass ---- */

/* The arrays of one pass over n rows: D d_model, D_kv n_kv_head * d_head. */
typedef struct {
    real *x, *h;       /* [n][D]: the residual stream, and what a sublayer reads and writes */
    real *q, *k, *v;   /* [n][D], [n][D_kv], [n][D_kv] */
    real *mixed;       /* [n][D]: what the heads read from the values */
    real *scores;      /* [n] */
} pass;

static real *pass_init(pass *p, const model_shape *s, int n)
{
    size_t d = (size_t)n * s->d_model, d_kv = (size_t)n * s->n_kv_head * s->d_head;
    real *memory = malloc((4 * d + 2 * d_kv + n) * sizeof *memory);

    if (memory)
        *p = (pass){memory, memory + d, memory + 2 * d, memory + 4 * d, memory + 4 * d + d_kv, memory + 3 * d,
                    memory + 4 * d + 2 * d_kv};
    return memory;
}

static void add_position_rows(const model *m, real *x, int n)
{
    if (m->shape.position != ROTARY)
        add(x, m->parts->positions, n * m->shape.d_model);
}

/* Turns the pairs of each of n rows' heads, x [n][heads][d_head], by the row's angles (Su et al. 2021, eq. 34). */
static void turn_rows(const model *m, real *x, int n, int heads)
{
    int d = m->shape.d_head;

    if (m->shape.position != ROTARY)
        return;
    for (int i = 0; i < n * heads; i++, x += d) {
        const real *table = m->parts->positions + (size_t)(i / heads) * d;
        for (int j = 0; j < d; j += 2) {
            real even = x[j], odd = x[j + 1];
            x[j] = even * table[j] - odd * table[j + 1];
            x[j + 1] = even * table[j + 1] + odd * table[j];
        }
    }
}

static void attend(const model *m, int l, pass *p, int n)
{
    const model_shape *s = &m->shape;
    int d_kv = s->n_kv_head * s->d_head;

    for (int i = 0; i < n; i++)
        for (int h = 0; h < s->n_head; h++) {
            size_t query = (size_t)i * s->d_model + h * s->d_head, kv = h / (s->n_head / s->n_kv_head) * s->d_head;
            attention_scores(l, h, p->q + query, p->k + kv, d_kv, i + 1, s->d_head, p->scores);
            softmax(p->scores, i + 1, p->scores);
            mix(p->scores, p->v + kv, d_kv, i + 1, s->d_head, p->mixed + query);
        }
}

static void run_layer(const model *m, int l, pass *p, int n)
{
    const layer *at = &m->layers[l];
    int d = m->shape.d_model;

    norm(at->attention_norm, p->x, n, p->h);
    project(at->query, p->h, n, p->q);
    project(at->key, p->h, n, p->k);
    project(at->value, p->h, n, p->v);
    turn_rows(m, p->q, n, m->shape.n_head);
    turn_rows(m, p->k, n, m->shape.n_kv_head);
    attend(m, l, p, n);
    project(at->output, p->mixed, n, p->h);
    add(p->x, p->h, n * d);
    norm(at->mlp_norm, p->x, n, p->h);
    mlp(m, l, p->h, n, p->q);
    add(p->x, p->q, n * d);
}

int model_forward(const model *m, const int *tokens, int n, real *logits)
{
    pass p;
    int status = -1;

    if (n < 1 || n > m->shape.n_ctx)
        return -1;
    real *memory = pass_init(&p, &m->shape, n);
    if (memory && !embed(m, tokens, n, p.x)) {
        add_position_rows(m, p.x, n);
        for (int l = 0; l < m->shape.n_layer; l++)
            run_layer(m, l, &p, n);
        unembed(m, p.x, n, logits);
        status = 0;
    }
    free(memory);
    return status;
}
