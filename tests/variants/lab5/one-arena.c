/* A right answer in another style: one block of memory for the whole search, flat candidates ranked by a threshold, caches
   moved along the cycles of the permutation. */
#include "beam.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sampling.h"

int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    int best = 0;

    for (int i = 0; i < n_vocab; i++) {
        if (logits[i] != logits[i] || logits[i] == (real)INFINITY)
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    if (n_vocab < 1 || logits[best] == (real)-INFINITY || temperature != temperature || temperature <= 0 ||
        temperature == (real)INFINITY)
        return -1;
    /* the largest one's own term is 1: log1p of the others' keeps small sums */
    double others = 0, most = logits[best];
    for (int i = 0; i < n_vocab; i++)
        if (i != best)
            others += exp((logits[i] - most) / temperature);
    double log_z = log1p(others);
    for (int i = 0; i < n_vocab; i++)
        log_p[i] = (logits[i] - most) / temperature - log_z;
    return 0;
}

/* Takes candidates while there is room, then replaces the worst, which is looked for anew each time; sorts at the end. */
int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    int n = 0, worst = 0;

    for (size_t flat = 0; flat < (size_t)n_beams * n_vocab && n_best > 0; flat++) {
        candidate c;
        c.beam = (int)(flat / (size_t)n_vocab);
        c.id = (int)(flat % (size_t)n_vocab);
        c.sum = sums[c.beam] + (double)log_p[flat];
        if (!(c.sum > -INFINITY) || (n == n_best && c.sum <= best[worst].sum))
            continue;
        if (n == n_best) { /* the last of the worst goes, and the order of the others stays */
            memmove(best + worst, best + worst + 1, (n - 1 - worst) * sizeof *best);
            n--;
        }
        best[n++] = c;
        worst = 0;
        for (int i = 1; i < n; i++)
            if (best[i].sum <= best[worst].sum)
                worst = i;
    }
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && best[k].sum > best[k - 1].sum; k--) {
            candidate c = best[k];
            best[k] = best[k - 1];
            best[k - 1] = c;
        }
    return n;
}

int cache_copy(cache *to, const cache *from)
{
    int fits = from->length <= to->capacity, d = from->m->shape.d_head, n = from->m->shape.n_kv_head * d;
    real pair[2 * n];

    if (fits)
        cache_reset(to);
    for (int p = 0; fits && p < from->length; p++) {
        for (int l = 0; l < from->m->shape.n_layer; l++) {
            for (int h = 0; h < n / d; h++)
                for (int i = 0; i < d; i++) {
                    pair[h * d + i] = cache_key(from, l, h, p)[i];
                    pair[n + h * d + i] = cache_value(from, l, h, p)[i];
                }
            cache_append(to, l, pair, pair + n, 1);
        }
        cache_advance(to, 1);
    }
    return fits ? 0 : -1;
}

/* First makes parents a permutation: a second child is given a childless cache, and a note to copy. Then turns cycles. */
int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    if (n < 1 || n > n_caches)
        return -1;
    for (int i = n - 1; i >= 0; i--)
        if (parents[i] < 0 || parents[i] >= n_caches)
            return -1;
    int source[n_caches], taker[n_caches], original[n_caches];
    for (int i = 0; i < n_caches; i++)
        taker[i] = original[i] = source[i] = -1;
    for (int i = n - 1; i >= 0; i--)
        if (taker[parents[i]] < 0)
            taker[source[i] = parents[i]] = i;
    for (int i = 0, at = 0; i < n_caches; i++) {
        if (source[i] >= 0)
            continue;
        while (taker[at] >= 0)
            at++;
        taker[at] = i;
        source[i] = at;
        if (i < n)
            original[i] = taker[parents[i]];
    }
    for (int start = 0; start < n_caches; start++) {
        cache *first = caches[start];
        int i = start;
        while (source[i] != start && source[i] >= 0) {
            int from = source[i];
            caches[i] = caches[from];
            source[i] = -1;
            i = from;
        }
        if (source[i] == start) {
            caches[i] = first;
            source[i] = -1;
        }
    }
    for (int i = 0; i < n; i++)
        if (original[i] >= 0)
            cache_copy(caches[i], caches[original[i]]);
    return 0;
}

double length_normalised(double sum, int length, double alpha)
{
    return exp2(-alpha * log2(length)) * sum;
}

double best_reachable(double sum, int length, int limit, double alpha)
{
    int best = limit;

    if (alpha <= 0 && length < limit)
        best = length + 1;
    return length_normalised(sum, best, alpha);
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    for (int i = 0; i < *n; i++)
        if (h.score > list[i].score) {
            int end = *n < room ? (*n)++ : room - 1;
            while (end > i) {
                list[end] = list[end - 1];
                end--;
            }
            list[i] = h;
            return i;
        }
    if (*n >= room)
        return -1;
    list[*n] = h;
    return (*n)++;
}

/* ---- the search ---- */

typedef struct {
    char *block;
    size_t used;
} arena;

/* NULL while the arena has no block: then it only counts. */
static void *take(arena *a, size_t n, size_t size)
{
    a->used = (a->used + 15) / 16 * 16;
    void *at = a->block ? a->block + a->used : NULL;
    a->used += n * size;
    return at;
}

typedef struct {
    cache *store, **caches;
    int *texts[2], *parents;
    double *sums;
    real *log_p, *row, *penalised;
    candidate *best;
    int **rooms;
} memory;

static void lay_out(arena *a, memory *m, size_t K, size_t V, size_t limit)
{
    m->store = take(a, K, sizeof *m->store);
    m->caches = take(a, K, sizeof *m->caches);
    m->texts[0] = take(a, K * limit, sizeof(int));
    m->texts[1] = take(a, K * limit, sizeof(int));
    m->parents = take(a, K, sizeof(int));
    m->sums = take(a, K, sizeof(double));
    m->log_p = take(a, K * V, sizeof(real));
    m->row = take(a, V, sizeof(real));
    m->penalised = take(a, V, sizeof(real));
    m->best = take(a, 2 * K, sizeof(candidate));
    m->rooms = take(a, K, sizeof(int *));
}

#define REFUSE(when, ...) \
    if (when) \
    return fail(f, __VA_ARGS__)

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    const model_shape *shape = &o->m->shape;

    REFUSE(n_prompt < 1, "the prompt is empty");
    REFUSE(n_prompt >= shape->n_ctx, "%d tokens of prompt leave no room in a context of %d", n_prompt, shape->n_ctx);
    REFUSE(o->n_beams < 1, "%d beams are too few", o->n_beams);
    REFUSE(o->max_new_tokens < 1, "%d new tokens are too few", o->max_new_tokens);
    REFUSE(!(o->temperature > 0) || !isfinite(o->temperature), "temperature %g", (double)o->temperature);
    REFUSE(!(o->penalty > 0) || !isfinite(o->penalty), "penalty %g", (double)o->penalty);
    REFUSE(!isfinite(o->alpha), "alpha %g", o->alpha);
    for (int i = 0; i < n_prompt; i++)
        REFUSE(prompt[i] < 0 || prompt[i] >= shape->n_vocab, "token %d is %d", i, prompt[i]);

    int K = o->n_beams, V = shape->n_vocab, limit = shape->n_ctx - n_prompt, failed = 0, n_done = 0, n_live = 1, now = 0;
    if (limit > o->max_new_tokens)
        limit = o->max_new_tokens;
    arena a = {0};
    memory m;
    lay_out(&a, &m, K, V, limit);
    a = (arena){.block = calloc(1, a.used)};
    REFUSE(!a.block, "no memory");
    lay_out(&a, &m, K, V, limit);
    for (int b = 0; b < K; b++) {
        m.caches[b] = m.store + b;
        m.rooms[b] = results[b].tokens;
        failed |= cache_init(m.caches[b], o->m, n_prompt + limit);
    }
    failed = failed || cache_prefill(m.caches[0], prompt, n_prompt, 1, m.penalised, m.row);
    int length = 0, fed = 0; /* fed: how many live beams have their row */
    while (!failed) {
        for (fed = 0; fed < n_live && !failed; fed++) {
            const int *text = m.texts[now] + (ptrdiff_t)fed * limit;
            if (length > 0)
                failed = cache_forward(m.caches[fed], text + length - 1, 1, m.row);
            failed = failed || penalise(m.row, V, text, length, o->penalty, m.penalised) ||
                     log_softmax(m.penalised, V, o->temperature, m.log_p + (ptrdiff_t)fed * V);
        }
        if (failed)
            break;
        int n = top_candidates(m.sums, m.log_p, n_live, V, 2 * K, m.best), kept = 0;
        for (int i = 0; i < n; i++) {
            candidate c = m.best[i];
            const int *text = m.texts[now] + (ptrdiff_t)c.beam * limit;
            if (c.id == o->end_of_text && i < K) {
                hypothesis h = {NULL, length + 1, c.sum, length_normalised(c.sum, length + 1, o->alpha), true};
                int *room = n_done < K ? m.rooms[n_done] : results[K - 1].tokens, place = keep_hypothesis(results, &n_done, K, h);
                if (place >= 0) {
                    results[place].tokens = room;
                    memcpy(room, text, length * sizeof *room);
                    room[length] = c.id;
                }
            }
            if (c.id == o->end_of_text || kept == K)
                continue;
            int *child = m.texts[!now] + (ptrdiff_t)kept * limit;
            memcpy(child, text, length * sizeof *child);
            child[length] = c.id;
            m.sums[kept] = c.sum;
            m.parents[kept++] = c.beam;
        }
        now = !now;
        n_live = kept;
        length++;
        if (n_live == 0 || length == limit)
            break;
        if (n_done == K && best_reachable(m.sums[0], length, limit, o->alpha) <= results[K - 1].score)
            break;
        failed = cache_reorder(m.caches, K, m.parents, n_live);
    }
    for (int b = 0; !failed && length == limit && b < n_live; b++) {
        hypothesis h = {NULL, length, m.sums[b], length_normalised(m.sums[b], length, o->alpha), false};
        int *room = n_done < K ? m.rooms[n_done] : results[K - 1].tokens, place = keep_hypothesis(results, &n_done, K, h);
        if (place >= 0)
            results[place].tokens = memcpy(room, m.texts[now] + (ptrdiff_t)b * limit, length * sizeof *room);
    }
    for (int b = 0; b < K; b++)
        cache_free(m.store + b);
    free(a.block);
    return failed ? fail(f, "the model failed after %d tokens", length) : n_done;
}
