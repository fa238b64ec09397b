/* A right answer in another style: two banks of caches, so that a step copies from one into the other and never reorders;
   candidates by repeated selection; everything of one beam lies in one struct. */
#include "beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampling.h"

/* In double throughout; each pass looks at finite logits alone. */
int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    const double t = temperature;
    double most = 0, total = 0;
    int finite = 0;

    if (isnan(t) || isinf(t) || t <= 0)
        return -1;
    for (const real *x = logits; x < logits + n_vocab; x++) {
        if (isnan(*x) || (isinf(*x) && *x > 0))
            return -1;
        if (!isinf(*x) && (finite++ == 0 || *x > most))
            most = *x;
    }
    if (!finite)
        return -1;
    for (int i = n_vocab; i-- > 0;)
        total += isinf(logits[i]) ? 0 : exp((logits[i] - most) / t);
    for (int i = n_vocab; i-- > 0;)
        log_p[i] = isinf(logits[i]) ? -INFINITY : (logits[i] - most) / t - log(total);
    return 0;
}

/* Whether a comes before b among the candidates. */
static bool before(const candidate *a, const candidate *b)
{
    return a->sum > b->sum || (a->sum == b->sum && (a->beam < b->beam || (a->beam == b->beam && a->id < b->id)));
}

/* The n-th best is the best of those that come behind the one before it. */
int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    int n = 0;

    for (; n < n_best; n++) {
        candidate next = {-INFINITY, 0, 0};
        for (int b = 0; b < n_beams; b++)
            for (int id = 0; id < n_vocab; id++) {
                candidate c = {sums[b] + log_p[b * n_vocab + id], b, id};
                if (c.sum > next.sum && (n == 0 || before(&best[n - 1], &c)))
                    next = c;
            }
        if (next.sum == -INFINITY)
            break;
        best[n] = next;
    }
    return n;
}

static void copy_token(cache *to, const cache *from, int layer, int position)
{
    int d = from->m->shape.d_head, heads = from->m->shape.n_kv_head;
    real k[heads][d], v[heads][d];

    for (int h = 0; h < heads; h++) {
        memcpy(k[h], cache_key(from, layer, h, position), sizeof k[h]);
        memcpy(v[h], cache_value(from, layer, h, position), sizeof v[h]);
    }
    cache_append(to, layer, k[0], v[0], 1);
}

int cache_copy(cache *to, const cache *from)
{
    if (from->length > to->capacity)
        return -1;
    cache_reset(to);
    for (int p = 0; p < from->length; p++, cache_advance(to, 1))
        for (int l = from->m->shape.n_layer - 1; l >= 0; l--)
            copy_token(to, from, l, p);
    return 0;
}

/* Writes the copies first, into caches without children, and turns them into children of themselves; what is left is a
   matter of pointers. */
int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    if (n < 1 || n_caches < n)
        return -1;
    for (const int *p = parents; p < parents + n; p++)
        if (*p < 0 || *p >= n_caches)
            return -1;
    int from[n_caches];
    bool used[n_caches];
    for (int i = 0; i < n_caches; i++)
        used[i] = false;
    for (int i = 0; i < n; i++)
        used[parents[i]] = true;
    for (int i = 0; i < n; i++) {
        from[i] = parents[i];
        for (int k = 0; k < i; k++)
            if (from[k] == parents[i]) {
                int spare = 0;
                while (used[spare])
                    spare++;
                used[spare] = true;
                cache_copy(caches[spare], caches[parents[i]]);
                from[i] = spare;
                break;
            }
    }
    for (int i = n, spare = 0; i < n_caches; i++, spare++) {
        while (used[spare])
            spare++;
        from[i] = spare;
    }
    cache *moved[n_caches];
    for (int i = 0; i < n_caches; i++)
        moved[i] = caches[from[i]];
    memcpy(caches, moved, sizeof moved);
    return 0;
}

double length_normalised(double sum, int length, double alpha)
{
    double divisor = pow(length, alpha);

    return sum / divisor;
}

double best_reachable(double sum, int length, int limit, double alpha)
{
    int next = length < limit ? length + 1 : limit;

    return fmax(length_normalised(sum, next, alpha), length_normalised(sum, limit, alpha));
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    if (*n == room && !(h.score > list[room - 1].score))
        return -1;
    int at = *n == room ? room - 1 : (*n)++;
    list[at] = h;
    while (at > 0 && list[at].score > list[at - 1].score) {
        hypothesis better = list[at];
        list[at] = list[at - 1];
        list[--at] = better;
    }
    return at;
}

/* ---- the search ---- */

typedef struct {
    cache cache;
    int *tokens;
    double sum;
    real *log_p; /* of what follows */
} beam;

typedef struct {
    beam *beams; /* [K] */
    int n;
} bank;

static int open_bank(bank *b, const beam_options *o, int capacity, int limit)
{
    b->n = 0;
    b->beams = calloc(o->n_beams, sizeof *b->beams);
    for (int i = 0; b->beams && i < o->n_beams; i++) {
        b->beams[i].tokens = calloc(limit, sizeof(int));
        b->beams[i].log_p = calloc(o->m->shape.n_vocab, sizeof(real));
        if (!b->beams[i].tokens || !b->beams[i].log_p || cache_init(&b->beams[i].cache, o->m, capacity))
            return -1;
    }
    return b->beams ? 0 : -1;
}

static void close_bank(bank *b, int n_beams)
{
    for (int i = 0; b->beams && i < n_beams; i++) {
        cache_free(&b->beams[i].cache);
        free(b->beams[i].tokens);
        free(b->beams[i].log_p);
    }
    free(b->beams);
}

static int look_ahead(const beam_options *o, beam *b, int length, const real *logits)
{
    real penalised[o->m->shape.n_vocab];

    if (penalise(logits, o->m->shape.n_vocab, b->tokens, length, o->penalty, penalised))
        return -1;
    return log_softmax(penalised, o->m->shape.n_vocab, o->temperature, b->log_p);
}

/* The caller's rooms are kept apart, and handed out again when a hypothesis drops out. */
typedef struct {
    hypothesis *list;
    int n, **rooms, n_rooms;
} podium;

static void announce(podium *p, const beam_options *o, const int *tokens, int length, double sum, bool ended)
{
    int K = o->n_beams, *lost = p->n == K ? p->list[K - 1].tokens : NULL;
    hypothesis h = {NULL, length, sum, length_normalised(sum, length, o->alpha), ended};
    int place = keep_hypothesis(p->list, &p->n, K, h);

    if (place < 0)
        return;
    p->list[place].tokens = lost ? lost : p->rooms[--p->n_rooms];
    memcpy(p->list[place].tokens, tokens, length * sizeof *tokens);
}

static void step(const beam_options *o, const bank *now, bank *next, int length, podium *p)
{
    int K = o->n_beams, V = o->m->shape.n_vocab;
    double sums[now->n];
    real *rows = malloc((size_t)now->n * V * sizeof *rows);
    candidate best[2 * K];

    for (int b = 0; b < now->n; b++) {
        sums[b] = now->beams[b].sum;
        memcpy(rows + b * V, now->beams[b].log_p, V * sizeof *rows);
    }
    int n = top_candidates(sums, rows, now->n, V, 2 * K, best);
    free(rows);
    next->n = 0;
    for (int i = 0; i < n; i++) {
        const beam *parent = &now->beams[best[i].beam];
        if (best[i].id == o->end_of_text) {
            parent->tokens[length] = best[i].id;
            if (i < K)
                announce(p, o, parent->tokens, length + 1, best[i].sum, true);
        } else if (next->n < K) {
            beam *child = &next->beams[next->n++];
            memcpy(child->tokens, parent->tokens, length * sizeof(int));
            child->tokens[length] = best[i].id;
            child->sum = best[i].sum;
            cache_copy(&child->cache, &parent->cache);
        }
    }
}

static bool hopeless(const beam_options *o, const bank *b, const podium *p, int length, int limit)
{
    if (p->n < o->n_beams)
        return false;
    for (int i = 0; i < b->n; i++)
        if (best_reachable(b->beams[i].sum, length, limit, o->alpha) > p->list[p->n - 1].score)
            return false;
    return true;
}

static int go(const beam_options *o, const int *prompt, int n_prompt, int limit, bank *banks, podium *p)
{
    bank *now = &banks[0], *next = &banks[1];
    real logits[o->m->shape.n_vocab];

    for (int i = 0; i < n_prompt; i++)
        if (cache_forward(&now->beams[0].cache, prompt + i, 1, logits))
            return -1;
    if (look_ahead(o, &now->beams[0], 0, logits))
        return -1;
    now->n = 1;
    for (int length = 0;;) {
        step(o, now, next, length++, p);
        bank *swap = now;
        now = next;
        next = swap;
        if (length == limit)
            for (int b = 0; b < now->n; b++)
                announce(p, o, now->beams[b].tokens, length, now->beams[b].sum, false);
        if (length == limit || now->n == 0 || hopeless(o, now, p, length, limit))
            return 0;
        for (int b = 0; b < now->n; b++)
            if (cache_forward(&now->beams[b].cache, &now->beams[b].tokens[length - 1], 1, logits) ||
                look_ahead(o, &now->beams[b], length, logits))
                return -1;
    }
}

static int refuse(const beam_options *o, const int *prompt, int n_prompt, failure *f)
{
    const double numbers[] = {o->temperature, o->penalty};

    for (int i = 0; i < 2; i++)
        if (!(numbers[i] > 0 && numbers[i] < INFINITY))
            return fail(f, "%s is %g", i ? "the penalty" : "the temperature", numbers[i]);
    if (!(fabs(o->alpha) < INFINITY))
        return fail(f, "alpha is %g", o->alpha);
    if (o->n_beams < 1)
        return fail(f, "there are %d beams", o->n_beams);
    if (o->max_new_tokens < 1)
        return fail(f, "%d tokens are wanted", o->max_new_tokens);
    if (n_prompt < 1 || n_prompt >= o->m->shape.n_ctx)
        return fail(f, "the prompt has %d tokens", n_prompt);
    for (int i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= o->m->shape.n_vocab)
            return fail(f, "the prompt has token %d", prompt[i]);
    return 0;
}

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    if (refuse(o, prompt, n_prompt, f))
        return -1;
    int K = o->n_beams, limit = o->m->shape.n_ctx - n_prompt, *rooms[K];
    bank banks[2] = {{0}};
    podium p = {.list = results, .rooms = rooms, .n_rooms = K};

    if (o->max_new_tokens < limit)
        limit = o->max_new_tokens;
    for (int i = 0; i < K; i++)
        rooms[i] = results[i].tokens;
    int status = open_bank(&banks[0], o, n_prompt + limit, limit) || open_bank(&banks[1], o, n_prompt + limit, limit);
    if (!status)
        status = go(o, prompt, n_prompt, limit, banks, &p);
    close_bank(&banks[0], K);
    close_bank(&banks[1], K);
    return status ? fail(f, "the search failed") : p.n;
}
