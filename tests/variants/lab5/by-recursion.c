/* A right answer in another style: each step of the search is a call within the call of the step before; lists are linked;
   what may end is decided from the best length found by trying. */
#include "beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampling.h"

static double sum_of_exponentials(const real *x, int n, double shift, double t)
{
    if (n == 1)
        return exp((x[0] - shift) / t);
    return sum_of_exponentials(x, n / 2, shift, t) + sum_of_exponentials(x + n / 2, n - n / 2, shift, t);
}

int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    real most = -INFINITY;
    bool good = temperature > 0 && temperature < INFINITY;

    for (int i = 0; i < n_vocab; i++) {
        good = good && logits[i] < INFINITY;
        if (logits[i] > most)
            most = logits[i];
    }
    if (!good || most == -INFINITY)
        return -1;
    double log_sum = log(sum_of_exponentials(logits, n_vocab, most, temperature));
    for (int i = 0; i < n_vocab; i++)
        log_p[i] = ((double)logits[i] - most) / temperature - log_sum;
    return 0;
}

/* Merges, one after the other, each beam's own ranking into that of all beams before it. */
int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    int n = 0, own_room = n_best < n_vocab ? n_best : n_vocab;
    candidate *own = malloc((own_room + 1) * sizeof *own), *merged = malloc((n_best + 1) * sizeof *merged);

    for (int b = 0; b < n_beams; b++) {
        int n_own = 0, i = 0, j = 0, k = 0;
        for (int id = 0; id < n_vocab && own_room; id++) {
            double sum = sums[b] + log_p[(size_t)b * n_vocab + id];
            if (sum == -INFINITY || (n_own == own_room && sum <= own[n_own - 1].sum))
                continue;
            int at = n_own < own_room ? n_own++ : n_own - 1;
            for (; at > 0 && own[at - 1].sum < sum; at--)
                own[at] = own[at - 1];
            own[at] = (candidate){sum, b, id};
        }
        while (k < n_best && (i < n || j < n_own))
            merged[k++] = j == n_own || (i < n && best[i].sum >= own[j].sum) ? best[i++] : own[j++];
        memcpy(best, merged, k * sizeof *best);
        n = k;
    }
    free(own);
    free(merged);
    return n;
}

int cache_copy(cache *to, const cache *from)
{
    const model_shape *s = &from->m->shape;
    int width = s->n_kv_head * s->d_head, n = from->length;

    if (n > to->capacity)
        return -1;
    real *rows = malloc(((size_t)2 * n * width + 1) * sizeof *rows), *k = rows, *v = rows + (size_t)n * width;
    if (!rows)
        return -1;
    cache_reset(to);
    for (int l = 0; l < s->n_layer; l++) {
        for (int p = 0; p < n; p++)
            for (int h = 0; h < s->n_kv_head; h++) {
                memcpy(k + (size_t)p * width + h * s->d_head, cache_key(from, l, h, p), s->d_head * sizeof *k);
                memcpy(v + (size_t)p * width + h * s->d_head, cache_value(from, l, h, p), s->d_head * sizeof *v);
            }
        cache_append(to, l, k, v, n);
    }
    free(rows);
    return cache_advance(to, n);
}

/* Sorts by parent: of a run of equal parents the first takes the cache, the others copy from it into free ones. */
int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    bool bad = n < 1 || n > n_caches;

    for (int i = 0; !bad && i < n; i++)
        bad = parents[i] < 0 || parents[i] >= n_caches;
    if (bad)
        return -1;
    cache *free_ones[n_caches], *result[n_caches];
    int n_free = 0;
    for (int i = 0; i < n_caches; i++)
        result[i] = NULL;
    for (int p = 0; p < n_caches; p++) {
        int children = 0;
        for (int i = 0; i < n; i++)
            if (parents[i] == p && children++ == 0)
                result[i] = caches[p];
        if (!children)
            free_ones[n_free++] = caches[p];
    }
    for (int i = 0; i < n_caches; i++)
        if (!result[i]) {
            result[i] = free_ones[--n_free];
            if (i < n)
                cache_copy(result[i], caches[parents[i]]);
        }
    memcpy(caches, result, sizeof result);
    return 0;
}

double length_normalised(double sum, int length, double alpha)
{
    return sum / pow(length, alpha);
}

double best_reachable(double sum, int length, int limit, double alpha)
{
    if (length + 1 >= limit)
        return length_normalised(sum, limit, alpha);
    double here = length_normalised(sum, length + 1, alpha), later = best_reachable(sum, length + 1, limit, alpha);
    return here > later ? here : later;
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    int ahead = 0;

    for (int i = 0; i < *n; i++)
        ahead += list[i].score >= h.score;
    if (ahead == room)
        return -1;
    int moved = *n == room ? room - 1 - ahead : *n - ahead;
    for (int i = ahead + moved; i > ahead; i--)
        list[i] = list[i - 1];
    list[ahead] = h;
    *n = ahead + moved + 1;
    return ahead;
}

/* ---- the search: a step gets the live beams of the one before ---- */

typedef struct {
    const beam_options *o;
    int n_prompt, limit, n_done;
    cache **caches;
    hypothesis *done; /* tokens: own memory [limit] each, until the end */
} search;

static void note(search *s, const int *tokens, int length, double sum, bool ended)
{
    int K = s->o->n_beams;
    double score = length_normalised(sum, length, s->o->alpha);

    if (s->n_done == K && score <= s->done[K - 1].score)
        return;
    hypothesis h = {s->n_done == K ? s->done[K - 1].tokens : malloc(s->limit * sizeof(int)), length, sum, score, ended};
    memcpy(h.tokens, tokens, length * sizeof(int));
    keep_hypothesis(s->done, &s->n_done, K, h);
}

/* texts [n_live][limit] of `length` tokens each, with their sums, and the log-probabilities [n_live][V] of what follows. */
static int step(search *s, int n_live, int length, int *texts, const double *sums, const real *log_p)
{
    int K = s->o->n_beams, V = s->o->m->shape.n_vocab, limit = s->limit, n_new = 0, status = 0;
    candidate *best = malloc(2 * (size_t)K * sizeof *best);
    int *new_texts = malloc((size_t)K * limit * sizeof *new_texts), parents[K];
    real *new_log_p = malloc((size_t)K * V * sizeof *new_log_p), *logits = malloc(2 * (size_t)V * sizeof *logits);
    double new_sums[K], bound = -INFINITY;
    int n = top_candidates(sums, log_p, n_live, V, 2 * K, best);

    for (int i = 0; i < n; i++) {
        int *text = texts + (size_t)best[i].beam * limit;
        text[length] = best[i].id;
        if (best[i].id == s->o->end_of_text) {
            if (i < K)
                note(s, text, length + 1, best[i].sum, true);
            continue;
        }
        if (n_new == K)
            continue;
        memcpy(new_texts + (size_t)n_new * limit, text, (length + 1) * sizeof *text);
        new_sums[n_new] = best[i].sum;
        parents[n_new++] = best[i].beam;
    }
    length++;
    for (int b = 0; b < n_new; b++) {
        if (length == limit)
            note(s, new_texts + (size_t)b * limit, length, new_sums[b], false);
        bound = fmax(bound, best_reachable(new_sums[b], length, limit, s->o->alpha));
    }
    bool over = n_new == 0 || length == limit || (s->n_done == K && !(bound > s->done[K - 1].score));
    if (!over)
        status = cache_reorder(s->caches, K, parents, n_new);
    for (int b = 0; !over && !status && b < n_new; b++) {
        int *text = new_texts + (size_t)b * limit;
        status = cache_forward(s->caches[b], text + length - 1, 1, logits) ||
                 penalise(logits, V, text, length, s->o->penalty, logits + V) ||
                 log_softmax(logits + V, V, s->o->temperature, new_log_p + (size_t)b * V);
    }
    if (!over && !status)
        status = step(s, n_new, length, new_texts, new_sums, new_log_p);
    free(best);
    free(new_texts);
    free(new_log_p);
    free(logits);
    return status;
}

static bool within(double x)
{
    return x > 0 && isfinite(x);
}

static int first_step(search *s, const int *prompt)
{
    int V = s->o->m->shape.n_vocab, chunk = 5, text[s->limit];
    real *memory = malloc((size_t)(chunk + 3) * V * sizeof *memory), *logits = memory + (size_t)chunk * V;
    double sum = 0;

    text[0] = 0;
    int status = cache_prefill(s->caches[0], prompt, s->n_prompt, chunk, memory, logits) ||
                 penalise(logits, V, text, 0, s->o->penalty, logits + V) ||
                 log_softmax(logits + V, V, s->o->temperature, logits + 2 * V) ||
                 step(s, 1, 0, text, &sum, logits + 2 * V);
    free(memory);
    return status;
}

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    int left = o->m->shape.n_ctx - n_prompt;
    bool good = n_prompt > 0 && left > 0 && o->n_beams > 0 && o->max_new_tokens > 0 && within(o->temperature) &&
                within(o->penalty) && isfinite(o->alpha);

    for (int i = 0; good && i < n_prompt; i++)
        good = prompt[i] >= 0 && prompt[i] < o->m->shape.n_vocab;
    if (!good)
        return fail(f, "the prompt or an option is out of range");
    int K = o->n_beams;
    search s = {.o = o, .n_prompt = n_prompt, .limit = left < o->max_new_tokens ? left : o->max_new_tokens};
    cache *store = calloc(K, sizeof *store);
    s.caches = calloc(K, sizeof *s.caches);
    s.done = calloc(K, sizeof *s.done);
    int status = 0;
    for (int b = 0; b < K; b++) {
        s.caches[b] = &store[b];
        status |= cache_init(&store[b], o->m, n_prompt + s.limit);
    }
    status = status || first_step(&s, prompt);
    for (int i = 0; i < s.n_done; i++) {
        hypothesis h = s.done[i];
        memcpy(results[i].tokens, h.tokens, h.length * sizeof(int));
        free(h.tokens);
        h.tokens = results[i].tokens;
        results[i] = h;
    }
    for (int b = 0; b < K; b++)
        cache_free(&store[b]);
    free(store);
    free(s.caches);
    free(s.done);
    return status ? fail(f, "the model can't go on") : s.n_done;
}
