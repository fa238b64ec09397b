/* Lab 5, beam search. */
#include "beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampling.h"

/* ---- 5a: the top candidates over beams × vocabulary ---- */

int log_softmax(const real *logits, int n_vocab, real temperature, real *log_p)
{
    double most = -INFINITY, sum = 0;

    if (!(temperature > 0) || isinf(temperature))
        return -1;
    for (int id = 0; id < n_vocab; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY)
            return -1;
        most = fmax(most, logits[id]);
    }
    if (most == -INFINITY)
        return -1;
    for (int id = 0; id < n_vocab; id++)
        sum += exp((logits[id] - most) / temperature);
    for (int id = 0; id < n_vocab; id++)
        log_p[id] = (logits[id] - most) / temperature - log(sum);
    return 0;
}

/* Puts c behind those of best [n] that are as good; the worst drops out where there are n_best already. Returns how
   many there are then. */
static int insert(candidate *best, int n, int n_best, candidate c)
{
    int place = n;

    while (place > 0 && best[place - 1].sum < c.sum)
        place--;
    if (place == n_best)
        return n;
    n = n < n_best ? n + 1 : n;
    memmove(best + place + 1, best + place, (n - 1 - place) * sizeof *best);
    best[place] = c;
    return n;
}

int top_candidates(const double *sums, const real *log_p, int n_beams, int n_vocab, int n_best, candidate *best)
{
    int n = 0;

    for (int b = 0; b < n_beams; b++)
        for (int id = 0; id < n_vocab; id++) {
            candidate c = {sums[b] + log_p[(size_t)b * n_vocab + id], b, id};
            if (c.sum > -INFINITY)
                n = insert(best, n, n_best, c);
        }
    return n;
}

/* ---- 5b: the caches follow their beams ---- */

int cache_copy(cache *to, const cache *from)
{
    const model_shape *s = &from->m->shape;
    size_t bytes = s->d_head * sizeof(real);
    real k[s->n_kv_head * s->d_head], v[s->n_kv_head * s->d_head];

    if (from->length > to->capacity)
        return -1;
    cache_reset(to);
    for (int p = 0; p < from->length; p++) {
        for (int l = 0; l < s->n_layer; l++) {
            for (int h = 0; h < s->n_kv_head; h++) {
                memcpy(k + h * s->d_head, cache_key(from, l, h, p), bytes);
                memcpy(v + h * s->d_head, cache_value(from, l, h, p), bytes);
            }
            cache_append(to, l, k, v, 1);
        }
        cache_advance(to, 1);
    }
    return 0;
}

static bool are_parents(const int *parents, int n, int n_caches)
{
    if (n < 1 || n > n_caches)
        return false;
    for (int i = 0; i < n; i++)
        if (parents[i] < 0 || parents[i] >= n_caches)
            return false;
    return true;
}

/* The first child of a parent takes over its cache; the others get a copy, in a cache that has no children. */
int cache_reorder(cache **caches, int n_caches, const int *parents, int n)
{
    if (!are_parents(parents, n, n_caches))
        return -1;
    cache *old[n_caches];
    bool taken[n_caches];
    memcpy(old, caches, sizeof old);
    memset(taken, 0, sizeof taken);
    for (int i = 0; i < n_caches; i++) {
        bool first = i < n && !taken[parents[i]];
        caches[i] = first ? old[parents[i]] : NULL;
        if (first)
            taken[parents[i]] = true;
    }
    for (int i = 0, next = 0; i < n_caches; i++) {
        if (caches[i])
            continue;
        while (taken[next])
            next++;
        caches[i] = old[next++];
        if (i < n)
            cache_copy(caches[i], old[parents[i]]);
    }
    return 0;
}

/* ---- 5c: finished hypotheses ---- */

double length_normalised(double sum, int length, double alpha)
{
    return sum / pow(length, alpha);
}

/* A sum is at most 0, so with α > 0 the longest text has the best score, and with α < 0 the shortest. */
double best_reachable(double sum, int length, int limit, double alpha)
{
    return length_normalised(sum, alpha > 0 || length == limit ? limit : length + 1, alpha);
}

int keep_hypothesis(hypothesis *list, int *n, int room, hypothesis h)
{
    int place = *n;

    while (place > 0 && list[place - 1].score < h.score)
        place--;
    if (place == room)
        return -1;
    *n = *n < room ? *n + 1 : room;
    memmove(list + place + 1, list + place, (*n - 1 - place) * sizeof *list);
    list[place] = h;
    return place;
}

/* ---- 5d, 5e: the search ---- */

typedef struct {
    const beam_options *o;
    int n_vocab, limit;
    int n_live, length;    /* the live beams, and how many tokens each has generated */
    int *tokens, *next;    /* [K][limit]: of the live beams, and of those that take their places */
    double *sums;          /* [K] */
    real *log_p;           /* [K][V] */
    real *logits;          /* [2][V]: of one beam, before and after the penalty */
    candidate *best;       /* [2K] */
    int *parents;          /* [K] */
    cache *store;          /* [K] */
    cache **caches;        /* [K]: caches[b] is that of live beam b */
    hypothesis *results;   /* [K]: their tokens are the caller's rooms, in any order */
    int n_results;
} search;

static int search_init(search *s, int n_prompt)
{
    size_t k = s->o->n_beams;

    s->tokens = malloc(k * s->limit * sizeof *s->tokens);
    s->next = malloc(k * s->limit * sizeof *s->next);
    s->sums = calloc(k, sizeof *s->sums);
    s->log_p = malloc(k * s->n_vocab * sizeof *s->log_p);
    s->logits = malloc(2 * (size_t)s->n_vocab * sizeof *s->logits);
    s->best = malloc(2 * k * sizeof *s->best);
    s->parents = malloc(k * sizeof *s->parents);
    s->store = calloc(k, sizeof *s->store);
    s->caches = malloc(k * sizeof *s->caches);
    if (!s->tokens || !s->next || !s->sums || !s->log_p || !s->logits || !s->best || !s->parents || !s->store || !s->caches)
        return -1;
    for (size_t b = 0; b < k; b++) {
        s->caches[b] = &s->store[b];
        if (cache_init(s->caches[b], s->o->m, n_prompt + s->limit))
            return -1;
    }
    return 0;
}

static void search_free(search *s)
{
    for (int b = 0; s->store && b < s->o->n_beams; b++)
        cache_free(&s->store[b]);
    free(s->tokens);
    free(s->next);
    free(s->sums);
    free(s->log_p);
    free(s->logits);
    free(s->best);
    free(s->parents);
    free(s->store);
    free(s->caches);
}

static int *tokens_of(const search *s, int b)
{
    return s->tokens + (size_t)b * s->limit;
}

/* The log-probabilities of what may follow beam b, from the logits that its last token gave. */
static int fill_row(search *s, int b)
{
    real *penalised = s->logits + s->n_vocab;

    if (penalise(s->logits, s->n_vocab, tokens_of(s, b), s->length, s->o->penalty, penalised))
        return -1;
    return log_softmax(penalised, s->n_vocab, s->o->temperature, s->log_p + (size_t)b * s->n_vocab);
}

/* The prompt is one beam: K copies of it would all be continued alike. There is room for K rows of logits, so that many
   tokens go in at a time. */
static int begin(search *s, const int *prompt, int n_prompt)
{
    s->n_live = 1;
    if (cache_prefill(s->caches[0], prompt, n_prompt, s->o->n_beams, s->log_p, s->logits))
        return -1;
    return fill_row(s, 0);
}

/* The tokens go where the list's free room is, or that of its worst, which this one drives out. */
static void finish(search *s, const int *tokens, int length, double sum, bool ended)
{
    int k = s->o->n_beams;
    hypothesis h = {.length = length, .sum = sum, .score = length_normalised(sum, length, s->o->alpha), .ended = ended};

    h.tokens = s->results[s->n_results < k ? s->n_results : k - 1].tokens;
    int place = keep_hypothesis(s->results, &s->n_results, k, h);
    if (place >= 0)
        memcpy(s->results[place].tokens, tokens, length * sizeof *tokens);
}

/* Candidate c becomes live beam b. */
static void go_on(search *s, int b, const candidate *c)
{
    int *tokens = s->next + (size_t)b * s->limit;

    memcpy(tokens, tokens_of(s, c->beam), s->length * sizeof *tokens);
    tokens[s->length] = c->id;
    s->sums[b] = c->sum;
    s->parents[b] = c->beam;
}

/* One step: a beam has at most one candidate that ends the text, so 2K candidates hold K that don't. */
static void select_beams(search *s)
{
    int k = s->o->n_beams, n_live = 0;
    int n = top_candidates(s->sums, s->log_p, s->n_live, s->n_vocab, 2 * k, s->best);

    for (int i = 0; i < n && n_live < k; i++) {
        const candidate *c = &s->best[i];
        if (c->id != s->o->end_of_text)
            go_on(s, n_live++, c);
        else if (i < k) {
            tokens_of(s, c->beam)[s->length] = c->id;
            finish(s, tokens_of(s, c->beam), s->length + 1, c->sum, true);
        }
    }
    int *tokens = s->tokens;
    s->tokens = s->next;
    s->next = tokens;
    s->n_live = n_live;
    s->length++;
}

/* Live beam 0 has the largest sum, so no other can reach more. */
static bool is_over(const search *s)
{
    int k = s->o->n_beams;

    if (s->n_live == 0 || s->length == s->limit)
        return true;
    return s->n_results == k &&
           best_reachable(s->sums[0], s->length, s->limit, s->o->alpha) <= s->results[k - 1].score;
}

/* Runs the model on each live beam's newest token. */
static int feed(search *s)
{
    if (cache_reorder(s->caches, s->o->n_beams, s->parents, s->n_live))
        return -1;
    for (int b = 0; b < s->n_live; b++)
        if (cache_forward(s->caches[b], tokens_of(s, b) + s->length - 1, 1, s->logits) || fill_row(s, b))
            return -1;
    return 0;
}

static int run(search *s, const int *prompt, int n_prompt, failure *f)
{
    int status = begin(s, prompt, n_prompt);

    while (!status) {
        select_beams(s);
        if (is_over(s))
            break;
        status = feed(s);
    }
    if (status)
        return fail(f, "no token can be chosen after %d: the model or the penalty gave no usable logits", s->length);
    for (int b = 0; b < s->n_live && s->length == s->limit; b++)
        finish(s, tokens_of(s, b), s->length, s->sums[b], false);
    return 0;
}

static int check_request(const beam_options *o, const int *prompt, int n_prompt, failure *f)
{
    const model_shape *s = &o->m->shape;

    if (n_prompt < 1)
        return fail(f, "the prompt is empty: the model needs at least one token to start from");
    if (n_prompt >= s->n_ctx)
        return fail(f, "the prompt has %d tokens, which leaves no room in the model's context of %d", n_prompt, s->n_ctx);
    if (o->n_beams < 1 || o->max_new_tokens < 1)
        return fail(f, "n_beams is %d and max_new_tokens %d, but both must be 1 or more", o->n_beams, o->max_new_tokens);
    if (!(o->temperature > 0 && isfinite(o->temperature) && o->penalty > 0 && isfinite(o->penalty)))
        return fail(f, "temperature %g and penalty %g must be above 0 and finite", (double)o->temperature,
                    (double)o->penalty);
    if (!isfinite(o->alpha))
        return fail(f, "alpha is %g, but must be finite", o->alpha);
    for (int i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= s->n_vocab)
            return fail(f, "token %d of the prompt is %d, but the vocabulary has ids 0 to %d", i, prompt[i], s->n_vocab - 1);
    return 0;
}

int beam_search(const beam_options *o, const int *prompt, int n_prompt, hypothesis *results, failure *f)
{
    if (check_request(o, prompt, n_prompt, f))
        return -1;
    int fits = o->m->shape.n_ctx - n_prompt;
    search s = {.o = o, .n_vocab = o->m->shape.n_vocab, .limit = o->max_new_tokens < fits ? o->max_new_tokens : fits,
                .results = results};
    int status = search_init(&s, n_prompt) ? fail(f, "there isn't enough memory for %d beams", o->n_beams)
                                           : run(&s, prompt, n_prompt, f);
    search_free(&s);
    return status ? -1 : s.n_results;
}
