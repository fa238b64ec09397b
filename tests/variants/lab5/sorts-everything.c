/* A right answer in another style: ranks by sorting, swaps the structs of the caches instead of pointers to them, keeps
   the finished ones in a list of its own and copies them out at the end. */
#include "beam.h"

#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "sampling.h"

int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    int top = -1;
    real sum = 0;

    if (!isfinite(temperature) || temperature <= 0)
        return -1;
    for (int i = 0; i < n_vocab; i++) {
        if (!(logits[i] < INFINITY))
            return -1;
        if (logits[i] > -INFINITY && (top < 0 || logits[i] > logits[top]))
            top = i;
    }
    if (top < 0)
        return -1;
    real most = logits[top] / temperature;
    for (int i = 0; i < n_vocab; i++)
        sum += exp(logits[i] / temperature - most);
    real log_z = most + log(sum);
    for (int i = 0; i < n_vocab; i++)
        log_p[i] = logits[i] / temperature - log_z;
    return 0;
}

static int compare(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->sum > y->sum)
        return -1;
    if (x->sum < y->sum)
        return 1;
    return x->beam < y->beam ? -1 : x->beam > y->beam ? 1 : x->id < y->id ? -1 : x->id > y->id;
}

int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    size_t size = (size_t)n_beams * n_vocab, n = 0;
    candidate *all = malloc(size * sizeof *all);

    for (size_t i = 0; all && i < size; i++) {
        candidate c = {.sum = sums[i / n_vocab] + (double)log_p[i], .beam = i / n_vocab, .id = i % n_vocab};
        if (!isinf(c.sum))
            all[n++] = c;
    }
    if (all)
        qsort(all, n, sizeof *all, compare);
    if (n > (size_t)n_best)
        n = n_best;
    if (n)
        memcpy(best, all, n * sizeof *best);
    free(all);
    return n;
}

/* A layer at a time: all tokens of one layer, then all of the next; the length moves at the end. */
int cache_copy(cache *to, const cache *from)
{
    int n = from->length, heads = from->m->shape.n_kv_head, d = from->m->shape.d_head;

    if (n > to->capacity)
        return -1;
    cache_reset(to);
    if (n == 0)
        return 0;
    real *keys = malloc((size_t)n * heads * d * sizeof *keys), *values = malloc((size_t)n * heads * d * sizeof *values);
    for (int l = 0; l < from->m->shape.n_layer; l++) {
        for (int h = 0; h < heads; h++)
            for (int p = 0; p < n; p++)
                for (int i = 0; i < d; i++) {
                    keys[(p * heads + h) * d + i] = cache_key(from, l, h, p)[i];
                    values[(p * heads + h) * d + i] = cache_value(from, l, h, p)[i];
                }
        cache_append(to, l, keys, values, n);
    }
    cache_advance(to, n);
    free(keys);
    free(values);
    return 0;
}

/* place[c] is where old content c lies now; contents are exchanged until each first child has its parent's. */
static void exchange(cache **caches, int *content, int i, int j)
{
    cache held = *caches[i];
    int c = content[i];

    *caches[i] = *caches[j];
    *caches[j] = held;
    content[i] = content[j];
    content[j] = c;
}

int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    if (n < 1 || n > n_caches)
        return -1;
    for (int i = 0; i < n; i++)
        if (parents[i] < 0 || parents[i] >= n_caches)
            return -1;
    int content[n_caches], first[n];
    for (int i = 0; i < n_caches; i++)
        content[i] = i;
    for (int i = 0; i < n; i++) {
        first[i] = i;
        for (int k = i; k-- > 0;)
            if (parents[k] == parents[i])
                first[i] = k;
        for (int k = 0; first[i] == i && k < n_caches; k++)
            if (content[k] == parents[i] && k != i) {
                exchange(caches, content, i, k);
                break;
            }
    }
    /* an exchange for a later beam may have moved a first child's content: put those right */
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++)
            for (int k = 0; first[i] == i && content[i] != parents[i] && k < n_caches; k++)
                if (content[k] == parents[i]) {
                    exchange(caches, content, i, k);
                    moved = true;
                    break;
                }
    }
    for (int i = 0; i < n; i++)
        if (first[i] != i)
            cache_copy(caches[i], caches[first[i]]);
    return 0;
}

double length_normalised(double sum, int length, double alpha)
{
    return sum * pow((double)length, -alpha);
}

double best_reachable(double sum, int length, int limit, double alpha)
{
    if (length >= limit)
        return length_normalised(sum, limit, alpha);
    double shortest = length_normalised(sum, length + 1, alpha), longest = length_normalised(sum, limit, alpha);
    return shortest > longest ? shortest : longest;
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    int place = 0;

    for (; place < *n; place++)
        if (list[place].score < h.score)
            break;
    if (place >= room)
        return -1;
    if (*n < room)
        (*n)++;
    for (int i = *n - 1; i > place; i--)
        list[i] = list[i - 1];
    list[place] = h;
    return place;
}

typedef struct {
    int *tokens;
    double sum;
} beam;

static int prepare(const beam_options *o, const real *logits, const int *tokens, int n, real *log_p)
{
    int n_vocab = o->m->shape.n_vocab, status = -1;
    real *room = malloc(n_vocab * sizeof *room);

    if (room && penalise(logits, n_vocab, tokens, n, o->penalty, room) == 0)
        status = log_softmax(room, n_vocab, o->temperature, log_p);
    free(room);
    return status;
}

static int *plus_one(const int *tokens, int n, int id)
{
    int *longer = malloc((n + 1) * sizeof *longer);

    memcpy(longer, tokens, n * sizeof *longer);
    longer[n] = id;
    return longer;
}

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    int K = o->n_beams, V = o->m->shape.n_vocab, limit = o->max_new_tokens, status = -1;

    if (n_prompt < 1 || n_prompt >= o->m->shape.n_ctx)
        return fail(f, "a prompt of %d tokens doesn't do", n_prompt);
    if (K < 1 || limit < 1)
        return fail(f, "there must be at least one beam and one new token");
    if (!isfinite(o->alpha) || !isfinite(o->temperature) || !isfinite(o->penalty) || o->temperature <= 0 || o->penalty <= 0)
        return fail(f, "alpha, temperature or penalty is out of range");
    for (int i = 0; i < n_prompt; i++)
        if (prompt[i] >= V || prompt[i] < 0)
            return fail(f, "%d isn't in the vocabulary", prompt[i]);
    if (limit > o->m->shape.n_ctx - n_prompt)
        limit = o->m->shape.n_ctx - n_prompt;

    cache store[K], *caches[K];
    hypothesis done[K];
    beam live[K], next[K];
    int n_done = 0, n_live = 1, parents[K];
    real *log_p = malloc((size_t)K * V * sizeof *log_p), *row = malloc((size_t)V * sizeof *row);
    candidate *all = malloc((size_t)K * V * sizeof *all);

    for (int b = 0; b < K; b++) {
        cache_init(&store[b], o->m, n_prompt + limit - 1);
        caches[b] = &store[b];
    }
    live[0] = (beam){malloc(sizeof(int)), 0};
    if (cache_prefill(caches[0], prompt, n_prompt, 1, row, row) || prepare(o, row, NULL, 0, log_p))
        goto cleanup;
    for (int length = 0;; length++) {
        double sums[K];
        for (int b = 0; b < n_live; b++)
            sums[b] = live[b].sum;
        int n = top_candidates(sums, log_p, n_live, V, n_live * V, all), n_next = 0;
        for (int rank = 0; rank < n; rank++) {
            candidate c = all[rank];
            if (c.id == o->end_of_text && rank < K) {
                hypothesis h = {plus_one(live[c.beam].tokens, length, c.id), length + 1, c.sum,
                                length_normalised(c.sum, length + 1, o->alpha), true};
                int *last = n_done == K ? done[K - 1].tokens : NULL;
                free(keep_hypothesis(done, &n_done, K, h) < 0 ? h.tokens : last);
            } else if (c.id != o->end_of_text && n_next < K) {
                parents[n_next] = c.beam;
                next[n_next++] = (beam){plus_one(live[c.beam].tokens, length, c.id), c.sum};
            }
        }
        for (int b = 0; b < n_live; b++)
            free(live[b].tokens);
        memcpy(live, next, n_next * sizeof *live);
        n_live = n_next;
        if (n_live == 0)
            break;
        if (length + 1 == limit) {
            for (int b = 0; b < n_live; b++) {
                hypothesis h = {live[b].tokens, limit, live[b].sum, length_normalised(live[b].sum, limit, o->alpha), false};
                int *last = n_done == K ? done[K - 1].tokens : NULL;
                free(keep_hypothesis(done, &n_done, K, h) < 0 ? h.tokens : last);
            }
            n_live = 0;
            break;
        }
        bool may_win = n_done < K;
        for (int b = 0; b < n_live && !may_win; b++)
            may_win = best_reachable(live[b].sum, length + 1, limit, o->alpha) > done[K - 1].score;
        if (!may_win)
            break;
        cache_reorder(caches, K, parents, n_live);
        for (int b = 0; b < n_live; b++)
            if (cache_forward(caches[b], &live[b].tokens[length], 1, row) ||
                prepare(o, row, live[b].tokens, length + 1, log_p + (size_t)b * V))
                goto cleanup;
    }
    status = n_done;
    for (int i = 0; i < n_done; i++) {
        int *room = results[i].tokens;
        memcpy(room, done[i].tokens, done[i].length * sizeof *room);
        results[i] = done[i];
        results[i].tokens = room;
    }
cleanup:
    for (int i = 0; i < n_done; i++)
        free(done[i].tokens);
    for (int b = 0; b < n_live; b++)
        free(live[b].tokens);
    for (int b = 0; b < K; b++)
        cache_free(&store[b]);
    free(log_p);
    free(row);
    free(all);
    return status < 0 ? fail(f, "the model failed") : status;
}
