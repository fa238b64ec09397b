/* Written as definitions rather than loops over a sorted row: a quicksort of pointers into the room, recursion for the
   nucleus and the draw's end, and every step refuses through one macro. */
#include <math.h>
#include <stdlib.h>

#include "sampling.h"

#define REFUSE_IF(condition) \
    do { \
        if (condition) \
            return -1; \
    } while (0)

#define EACH(i, n) for (int i = 0; i < (n); i++)

typedef struct {
    int n_bad, n_finite, n_negative;
    double most, sum;
    int first; /* the first id of the largest */
} survey;

static survey look_at(const real *x, int n)
{
    survey s = {.most = -INFINITY, .first = -1};

    EACH (i, n) {
        double v = x[i];
        s.n_bad += isnan(v) || v == INFINITY;
        s.n_finite += isfinite(v) != 0;
        s.n_negative += v < 0;
        s.sum += v;
        if (v > s.most) {
            s.most = v;
            s.first = i;
        }
    }
    return s;
}

static int precedes(const ranked *a, const ranked *b)
{
    return a->value == b->value ? a->id < b->id : a->value > b->value;
}

/* Quicksort, the middle as pivot; the smaller part by recursion, the larger by going round again. */
static void sort(ranked *low, ranked *high)
{
    while (low < high) {
        ranked pivot = low[(high - low) / 2], *i = low, *j = high;
        while (i <= j) {
            while (precedes(i, &pivot))
                i++;
            while (precedes(&pivot, j))
                j--;
            if (i <= j) {
                ranked swap = *i;
                *i++ = *j;
                *j-- = swap;
            }
        }
        if (j - low < high - i) {
            sort(low, j);
            low = i;
        } else {
            sort(i, high);
            high = j;
        }
    }
}

static void rank_all(const real *x, int n, ranked *room)
{
    EACH (i, n) {
        room[i].value = x[i];
        room[i].id = i;
    }
    sort(room, room + n - 1);
}

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    survey s = look_at(logits, n_vocab);
    double z = 0;

    REFUSE_IF(s.n_bad || !s.n_finite);
    REFUSE_IF(isnan(temperature) || isinf(temperature) || temperature < 0);
    EACH (i, n_vocab)
        z += temperature > 0 ? exp((logits[i] - s.most) / temperature) : i == s.first;
    EACH (i, n_vocab)
        p[i] = (temperature > 0 ? exp((logits[i] - s.most) / temperature) : i == s.first) / z;
    return 0;
}

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    survey s = look_at(logits, n_vocab);

    REFUSE_IF(k < 0);
    REFUSE_IF(s.n_bad || !s.n_finite);
    if (k == 0)
        return top_k(logits, n_vocab, n_vocab, room, kept);
    rank_all(logits, n_vocab, room);
    EACH (i, n_vocab)
        kept[i] = -INFINITY;
    for (ranked *r = room; r < room + n_vocab && r < room + k; r++)
        kept[r->id] = r->value;
    return 0;
}

/* How many from `rest` on are needed to bring `total` to the goal: none if it's there. *total ends as what they have. */
static int needed(const ranked *rest, int n, double goal, double *total)
{
    int used = 0;

    for (; used < n && *total < goal; used++)
        *total += rest[used].value;
    return used;
}

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    survey s = look_at(p, n_vocab);
    const double slack = sizeof(real) > sizeof(float) ? 1e-12 : 1e-6;

    REFUSE_IF(s.n_bad || s.n_negative);
    REFUSE_IF(!(s.sum > 0));
    REFUSE_IF(isnan(mass));
    rank_all(p, n_vocab, room);
    double total = room[0].value;
    int n = 1 + needed(room + 1, n_vocab - 1, mass >= 1 ? INFINITY : mass - slack, &total);
    EACH (i, n_vocab)
        kept[room[i].id] = 0;
    EACH (i, n)
        kept[room[i].id] = room[i].value / total;
    return 0;
}

/* Whether tokens [n] has the id; a binary search isn't worth it for lists of a text's length. */
static int has(const int *tokens, int n, int id)
{
    return n > 0 && (tokens[n - 1] == id || has(tokens, n - 1, id));
}

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    survey s = look_at(logits, n_vocab);

    REFUSE_IF(s.n_bad || !s.n_finite);
    REFUSE_IF(!(penalty > 0) || penalty == (real)INFINITY);
    EACH (i, n)
        REFUSE_IF(tokens[i] < 0 || tokens[i] >= n_vocab);
    EACH (i, n_vocab) {
        out[i] = logits[i];
        if (n < 64 && has(tokens, n, i))
            out[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    }
    if (n >= 64) /* a long list: once through it is quicker, and logits keeps it to once a token */
        EACH (i, n)
            out[tokens[i]] = logits[tokens[i]] > 0 ? logits[tokens[i]] / penalty : logits[tokens[i]] * penalty;
    return 0;
}

static int last_possible(const real *p, int n)
{
    return n == 0 || p[n - 1] > 0 ? n - 1 : last_possible(p, n - 1);
}

int draw(const real *p, int n_vocab, real u)
{
    survey s = look_at(p, n_vocab);
    double left = u;

    REFUSE_IF(s.n_bad || s.n_negative);
    REFUSE_IF(!(s.sum > 0));
    REFUSE_IF(!(u >= 0) || !(u < 1));
    double total = 0;
    EACH (i, n_vocab) {
        total += p[i];
        if (total > left)
            return i;
    }
    return last_possible(p, n_vocab);
}

static int with_rooms(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    REFUSE_IF(penalise(logits, n_vocab, tokens, n, s->penalty, s->logits));
    REFUSE_IF(top_k(s->logits, n_vocab, s->top_k, s->room, s->p));
    REFUSE_IF(softmax_temperature(s->p, n_vocab, s->temperature, s->logits));
    REFUSE_IF(top_p(s->logits, n_vocab, s->top_p, s->room, p));
    return 0;
}

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    return with_rooms(s, logits, n_vocab, tokens, n, p);
}

int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    sampler *s = state;
    int n = s->n_prompt + n_generated;
    const int *end = generated + n_generated;

    REFUSE_IF(with_rooms(s, logits, n_vocab, end - n, n, s->p));
    return draw(s->p, n_vocab, random_uniform(&s->random));
}
