/* A right answer in another style: hypotheses are nodes of a tree, each with its parent and its token, and are only
   written out at the end; candidates come from a heap; each live beam owns its cache and copies it for further children. */
#include "beam.h"

#include <float.h>
#include <stdlib.h>
#include <tgmath.h>

#include "sampling.h"

/* One pass: the maximum so far, and the sum of exponentials relative to it. */
int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    long double most = -INFINITY, sum = 0;

    for (int i = 0; i < n_vocab; i++) {
        long double x = (long double)logits[i] / temperature;
        if (isnan(logits[i]) || logits[i] > (sizeof(real) == sizeof(double) ? DBL_MAX : FLT_MAX))
            return -1;
        if (x == -INFINITY)
            continue;
        if (x > most) {
            sum = sum * exp(most - x) + 1;
            most = x;
        } else
            sum += exp(x - most);
    }
    if (!(temperature > 0 && temperature < INFINITY) || sum == 0)
        return -1;
    for (int i = 0; i < n_vocab; i++)
        log_p[i] = (long double)logits[i] / temperature - most - log(sum);
    return 0;
}

/* ---- a heap with the worst candidate at its root ---- */

static bool worse(candidate a, candidate b)
{
    if (a.sum == b.sum)
        return a.beam == b.beam ? a.id > b.id : a.beam > b.beam;
    return a.sum < b.sum;
}

static void sink(candidate *heap, int n, int i)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && worse(heap[child + 1], heap[child]))
            child++;
        if (!worse(heap[child], heap[i]))
            return;
        candidate c = heap[i];
        heap[i] = heap[child];
        heap[child] = c;
    }
}

int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    int n = 0;

    for (int b = n_beams - 1; b >= 0; b--)
        for (int id = n_vocab - 1; id >= 0; id--) {
            candidate c = {.id = id, .beam = b, .sum = log_p[(long)b * n_vocab + id] + sums[b]};
            if (c.sum == -INFINITY)
                continue;
            if (n < n_best) {
                best[n++] = c;
                for (int i = n / 2 - 1; n == n_best && i >= 0; i--)
                    sink(best, n, i);
            } else if (n && worse(best[0], c)) {
                best[0] = c;
                sink(best, n, 0);
            }
        }
    for (int i = n / 2 - 1; i >= 0; i--)
        sink(best, n, i);
    for (int left = n - 1; left > 0; left--) {
        candidate c = best[0];
        best[0] = best[left];
        best[left] = c;
        sink(best, left, 0);
    }
    return n;
}

int cache_copy(cache *to, const cache *from)
{
    const model_shape s = from->m->shape;
    int width = s.n_kv_head * s.d_head;
    real rows[2][width];

    if (to->capacity < from->length)
        return -1;
    cache_truncate(to, 0);
    while (to->length < from->length) {
        for (int l = 0; l < s.n_layer; l++) {
            for (int j = 0; j < width; j++) {
                rows[0][j] = cache_key(from, l, j / s.d_head, to->length)[j % s.d_head];
                rows[1][j] = cache_value(from, l, j / s.d_head, to->length)[j % s.d_head];
            }
            cache_append(to, l, rows[0], rows[1], 1);
        }
        cache_advance(to, 1);
    }
    return 0;
}

/* The last child of a parent moves, the others copy before it does; what is left over goes to the back. */
int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    for (int i = 0; i < n && i < n_caches; i++)
        if (parents[i] < 0 || parents[i] > n_caches - 1)
            return -1;
    if (n <= 0 || n_caches < n)
        return -1;
    int *children = calloc(n_caches, sizeof *children), free_at = 0;
    cache **now = calloc(n_caches, sizeof *now);
    for (int i = 0; i < n; i++)
        children[parents[i]]++;
    int *left = calloc(n_caches, sizeof *left);
    for (int i = 0; i < n_caches; i++)
        left[i] = children[i];
    for (int i = 0; i < n; i++) {
        if (--left[parents[i]] == 0) {
            now[i] = caches[parents[i]];
            continue;
        }
        while (children[free_at])
            free_at++;
        now[i] = caches[free_at++];
        cache_copy(now[i], caches[parents[i]]);
    }
    for (int i = n; i < n_caches; i++) {
        while (children[free_at])
            free_at++;
        now[i] = caches[free_at++];
    }
    for (int i = 0; i < n_caches; i++)
        caches[i] = now[i];
    free(children);
    free(left);
    free(now);
    return 0;
}

double length_normalised(double sum, int length, double alpha)
{
    return alpha == 0 ? sum : sum / exp(alpha * log((double)length));
}

double best_reachable(double sum, int length, int limit, double alpha)
{
    double best = length_normalised(sum, limit, alpha);

    for (int n = length + 1; n < limit; n++)
        best = fmax(best, length_normalised(sum, n, alpha));
    return best;
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    int low = 0, high = *n;

    while (low < high) {
        int middle = (low + high) / 2;
        if (list[middle].score >= h.score)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == room)
        return -1;
    for (hypothesis carried = h, swap; high <= *n && high < room; high++) {
        if (high == *n) {
            list[high] = carried;
            ++*n;
            return low;
        }
        swap = list[high];
        list[high] = carried;
        carried = swap;
    }
    return low;
}

/* ---- the search ---- */

typedef struct node {
    struct node *parent, *older; /* older: all nodes are in one list, to be freed */
    int id, depth;
} node;

static node *grow(node **all, node *parent, int id)
{
    node *new = malloc(sizeof *new);

    *new = (node){parent, *all, id, parent ? parent->depth + 1 : 0};
    return *all = new;
}

static void spell(const node *at, int *tokens)
{
    for (; at->parent; at = at->parent)
        tokens[at->depth - 1] = at->id;
}

/* A hypothesis whose `tokens` stands for a node until the end. */
static hypothesis closed(const beam_options *o, node *at, double sum, bool ended)
{
    return (hypothesis){.tokens = (int *)(void *)at, .length = at->depth, .sum = sum,
                        .score = length_normalised(sum, at->depth, o->alpha), .ended = ended};
}

static bool may_go_on(const beam_options *o, const hypothesis *done, int n_done, const double *sums, int n, int depth, int limit)
{
    if (n == 0 || depth == limit)
        return false;
    if (n_done < o->n_beams)
        return true;
    for (int b = 0; b < n; b++)
        if (best_reachable(sums[b], depth, limit, o->alpha) > done[n_done - 1].score)
            return true;
    return false;
}

static const char *complaint(const beam_options *o, const int *prompt, int n_prompt)
{
    if (n_prompt <= 0)
        return "no prompt";
    if (n_prompt > o->m->shape.n_ctx - 1)
        return "no room behind the prompt";
    if (o->n_beams <= 0 || o->max_new_tokens <= 0)
        return "nothing to search";
    if (!(o->temperature > 0) || !(o->penalty > 0) || isinf(o->temperature) || isinf(o->penalty))
        return "temperature or penalty isn't above 0 and finite";
    if (isnan(o->alpha) || isinf(o->alpha))
        return "alpha isn't finite";
    while (n_prompt-- > 0)
        if (prompt[n_prompt] < 0 || prompt[n_prompt] >= o->m->shape.n_vocab)
            return "an id outside the vocabulary";
    return NULL;
}

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    const char *wrong = complaint(o, prompt, n_prompt);
    if (wrong)
        return fail(f, "%s", wrong);

    int K = o->n_beams, V = o->m->shape.n_vocab, room = o->m->shape.n_ctx - n_prompt, bad = 0, n_done = 0, n = 1;
    int limit = room < o->max_new_tokens ? room : o->max_new_tokens;
    node *all = NULL, **beams = calloc(K, sizeof *beams), **next = calloc(K, sizeof *next);
    cache *store = calloc(K, sizeof *store), **caches = calloc(K, sizeof *caches);
    hypothesis *done = calloc(K, sizeof *done);
    double *sums = calloc(K, sizeof *sums);
    int *parents = calloc(K, sizeof *parents), *tokens = calloc(limit, sizeof *tokens);
    real *logits = calloc(V, sizeof *logits), *rows = calloc((size_t)n_prompt * V, sizeof *rows);
    real *log_p = calloc((size_t)K * V, sizeof *log_p);
    candidate *best = calloc(2 * (size_t)K, sizeof *best);

    for (int b = 0; b < K; b++)
        bad |= cache_init(caches[b] = store + b, o->m, n_prompt + limit);
    beams[0] = grow(&all, NULL, -1);
    bad |= cache_forward(caches[0], prompt, n_prompt, rows);
    bad |= penalise(rows + (size_t)(n_prompt - 1) * V, V, tokens, 0, o->penalty, logits);
    bad |= log_softmax(logits, V, o->temperature, log_p);
    for (int depth = 1; !bad; depth++) {
        int found = top_candidates(sums, log_p, n, V, 2 * K, best), n_next = 0;
        for (int i = 0; i < found; i++) {
            bool ends = best[i].id == o->end_of_text;
            if (ends ? i >= K : n_next == K)
                continue;
            node *at = grow(&all, beams[best[i].beam], best[i].id);
            if (ends)
                keep_hypothesis(done, &n_done, K, closed(o, at, best[i].sum, true));
            else {
                next[n_next] = at;
                sums[n_next] = best[i].sum;
                parents[n_next++] = best[i].beam;
            }
        }
        n = n_next;
        for (int b = 0; b < n; b++)
            beams[b] = next[b];
        if (!may_go_on(o, done, n_done, sums, n, depth, limit)) {
            for (int b = 0; b < n && depth == limit; b++)
                keep_hypothesis(done, &n_done, K, closed(o, beams[b], sums[b], false));
            break;
        }
        cache_reorder(caches, K, parents, n);
        for (int b = 0; b < n && !bad; b++) {
            bad |= cache_forward(caches[b], &beams[b]->id, 1, rows);
            spell(beams[b], tokens);
            bad |= penalise(rows, V, tokens, depth, o->penalty, logits);
            bad |= log_softmax(logits, V, o->temperature, log_p + (size_t)b * V);
        }
    }
    for (int i = 0; i < n_done && !bad; i++) {
        spell((node *)(void *)done[i].tokens, results[i].tokens);
        done[i].tokens = results[i].tokens;
        results[i] = done[i];
    }
    for (node *older; all; all = older) {
        older = all->older;
        free(all);
    }
    for (int b = 0; b < K; b++)
        cache_free(store + b);
    void *memory[] = {beams, next, store, caches, done, sums, parents, tokens, logits, rows, log_p, best};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    return bad ? fail(f, "the model can't go on") : n_done;
}
