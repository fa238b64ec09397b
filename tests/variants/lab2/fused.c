/* The chain in one go: sampler_probabilities doesn't call the steps, but ranks all tokens once and cuts the ranking
   short. Ids are ranked, not values: an index sort (Shell's) over room[].id alone. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "sampling.h"

static const double forgiven[] = {[sizeof(float)] = 1e-6, [sizeof(double)] = 1e-12};

/* Shell sort of the ids by falling x, then rising id. */
static void rank_ids(const real *x, int n, ranked *order)
{
    int gap = 1;

    for (int i = 0; i < n; i++)
        order[i].id = i;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int i = gap; i < n; i++) {
            int id = order[i].id, j = i;
            for (; j >= gap; j -= gap) {
                int other = order[j - gap].id;
                if (x[other] > x[id] || (x[other] == x[id] && other < id))
                    break;
                order[j].id = other;
            }
            order[j].id = id;
        }
}

static bool usable(const real *x, int n)
{
    bool some = false, all = true;

    for (int i = 0; i < n; i++) {
        some = some || (x[i] >= -DBL_MAX && x[i] <= DBL_MAX);
        all = all && x[i] < (real)INFINITY;
    }
    return some && all;
}

static double exp_below(double x, double most, double temperature)
{
    if (temperature > 0)
        return exp((x - most) / temperature);
    return x == most;
}

/* How many of the n first in `order` are the nucleus of the weights p, whose total is `all` (so that p need not sum to
   1), and in *sum what they have. */
static int nucleus(const real *p, double all, const ranked *order, int n, double mass, double *sum)
{
    int kept = 0;

    *sum = 0;
    while (kept < n && (kept == 0 || mass >= 1 || *sum / all < mass - forgiven[sizeof(real)]))
        *sum += p[order[kept++].id];
    return kept;
}

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    int top = 0;
    double sum = 0;

    if (!usable(logits, n_vocab) || !(temperature >= 0) || !(temperature < (real)INFINITY))
        return -1;
    for (int i = 1; i < n_vocab; i++)
        if (logits[i] > logits[top])
            top = i;
    for (int i = 0; i < n_vocab; i++)
        sum += p[i] = temperature == 0 ? i == top : exp_below(logits[i], logits[top], temperature);
    for (int i = 0; i < n_vocab; i++)
        p[i] = p[i] / sum;
    return 0;
}

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    if (!usable(logits, n_vocab) || k < 0)
        return -1;
    rank_ids(logits, n_vocab, room);
    for (int i = n_vocab; i-- > 0;)
        kept[room[i].id] = k != 0 && i >= k ? -(real)INFINITY : logits[room[i].id];
    return 0;
}

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    double sum = 0;

    for (int i = 0; i < n_vocab; i++) {
        if (!(p[i] >= 0) || p[i] > DBL_MAX)
            return -1;
        sum += p[i];
    }
    if (sum == 0 || mass != mass)
        return -1;
    rank_ids(p, n_vocab, room);
    int n = nucleus(p, 1, room, n_vocab, mass, &sum);
    for (int i = 0; i < n_vocab; i++)
        kept[room[i].id] = i < n ? p[room[i].id] / sum : 0;
    return 0;
}

static bool penalty_applies(int n_vocab, const int *tokens, int n, real penalty)
{
    for (int i = 0; i < n; i++)
        if (tokens[i] >= n_vocab || tokens[i] < 0)
            return false;
    return penalty > 0 && penalty < (real)INFINITY;
}

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    if (!usable(logits, n_vocab) || !penalty_applies(n_vocab, tokens, n, penalty))
        return -1;
    for (int id = 0; id < n_vocab; id++)
        out[id] = logits[id];
    for (int i = 0; i < n; i++)
        if (out[tokens[i]] == logits[tokens[i]]) /* not yet */
            out[tokens[i]] = logits[tokens[i]] * (logits[tokens[i]] > 0 ? 1 / penalty : penalty);
    return 0;
}

int draw(const real *p, int n_vocab, real u)
{
    int last = -1, chosen = -1;
    double total = 0;

    for (int i = 0; i < n_vocab; i++) {
        if (isnan(p[i]) || isinf(p[i]) || p[i] < 0)
            return -1;
        total += p[i];
        if (p[i] > 0)
            last = i;
        if (chosen < 0 && total > u)
            chosen = i;
    }
    if (last < 0 || !(u >= 0) || !(u < 1))
        return -1;
    return chosen < 0 ? last : chosen;
}

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    double all = 0, sum;

    if (!(s->temperature >= 0) || isinf(s->temperature) || s->top_k < 0 || isnan(s->top_p))
        return -1;
    if (penalise(logits, n_vocab, tokens, n, s->penalty, s->logits))
        return -1;
    rank_ids(s->logits, n_vocab, s->room);
    int left = s->temperature == 0 ? 1 : s->top_k == 0 || s->top_k > n_vocab ? n_vocab : s->top_k;
    for (int i = 0; i < left; i++) {
        int id = s->room[i].id;
        all += s->p[id] = exp_below(s->logits[id], s->logits[s->room[0].id], s->temperature);
    }
    left = nucleus(s->p, all, s->room, left, s->top_p, &sum);
    for (int id = 0; id < n_vocab; id++)
        p[id] = 0;
    for (int i = 0; i < left; i++)
        p[s->room[i].id] = exp_below(s->logits[s->room[i].id], s->logits[s->room[0].id], s->temperature) / sum;
    return 0;
}

/* The chain needs all of the sampler's rooms, so the result stands on the stack. */
int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    sampler *s = state;
    real p[n_vocab > 0 ? n_vocab : 1];

    if (sampler_probabilities(s, logits, n_vocab, generated - s->n_prompt, n_generated + s->n_prompt, p))
        return -1;
    return draw(p, n_vocab, random_uniform(&s->random));
}
