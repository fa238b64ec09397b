/* Sorts nothing: picks the largest that is left, again and again, and marks what was picked in the room. */
#include <math.h>

#include "sampling.h"

static int is_good_row(const real *x, int n)
{
    int finite = 0;

    for (int i = 0; i < n; i++) {
        if (x[i] != x[i] || x[i] == HUGE_VAL)
            return 0;
        finite |= x[i] != -HUGE_VAL;
    }
    return finite;
}

/* The first of the largest that aren't marked, or -1. */
static int pick(const real *x, const ranked *marks, int n)
{
    int best = -1;

    for (int i = n - 1; i >= 0; i--)
        if (!marks[i].id && (best < 0 || x[i] >= x[best]))
            best = i;
    return best;
}

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    if (!is_good_row(logits, n_vocab) || temperature != temperature || temperature < 0 || temperature == HUGE_VAL)
        return -1;
    double most = -HUGE_VAL, sum = 0;
    int top = 0;
    for (int i = 0; i < n_vocab; i++)
        if (logits[i] > most) {
            most = logits[i];
            top = i;
        }
    if (temperature == 0) {
        for (int i = 0; i < n_vocab; i++)
            p[i] = 0;
        p[top] = 1;
        return 0;
    }
    for (int i = 0; i < n_vocab; i++)
        sum += exp((logits[i] - most) / temperature);
    double log_sum = log(sum);
    for (int i = 0; i < n_vocab; i++)
        p[i] = exp((logits[i] - most) / temperature - log_sum);
    return 0;
}

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    if (k < 0 || !is_good_row(logits, n_vocab))
        return -1;
    if (k == 0 || k >= n_vocab) {
        for (int i = 0; i < n_vocab; i++)
            kept[i] = logits[i];
        return 0;
    }
    for (int i = 0; i < n_vocab; i++) {
        room[i].id = 0;
        kept[i] = -HUGE_VAL;
    }
    while (k-- > 0) {
        int i = pick(logits, room, n_vocab);
        room[i].id = 1;
        kept[i] = logits[i];
    }
    return 0;
}

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    double all = 0, total = 0, enough = (double)mass - (sizeof(real) == 8 ? 1e-12 : 1e-6);

    for (int i = 0; i < n_vocab; i++) {
        if (isnan(p[i]) || isinf(p[i]) || p[i] < 0)
            return -1;
        all += p[i];
    }
    if (!(all > 0) || isnan(mass))
        return -1;
    for (int i = 0; i < n_vocab; i++) {
        room[i].id = mass >= 1;
        total += mass >= 1 ? p[i] : 0;
    }
    for (int i; mass < 1 && (total == 0 || total < enough) && (i = pick(p, room, n_vocab)) >= 0;) {
        room[i].id = 1;
        total += p[i];
    }
    for (int i = 0; i < n_vocab; i++)
        kept[i] = room[i].id ? p[i] / total : 0;
    return 0;
}

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    if (!is_good_row(logits, n_vocab) || isnan(penalty) || isinf(penalty) || penalty <= 0)
        return -1;
    for (int i = 0; i < n; i++)
        if ((unsigned)tokens[i] >= (unsigned)n_vocab)
            return -1;
    for (int i = 0; i < n_vocab; i++)
        out[i] = logits[i];
    for (int i = 0; i < n; i++) {
        int seen = 0;
        for (int j = 0; j < i && !seen; j++)
            seen = tokens[j] == tokens[i];
        if (seen)
            continue;
        if (out[tokens[i]] > 0)
            out[tokens[i]] /= penalty;
        else
            out[tokens[i]] *= penalty;
    }
    return 0;
}

int draw(const real *p, int n_vocab, real u)
{
    double below = 0;
    int chosen = -1, found = 0;

    if (!(u >= 0) || u >= 1)
        return -1;
    for (int i = 0; i < n_vocab; i++) {
        if (!(p[i] >= 0) || p[i] == HUGE_VAL)
            return -1;
        if (p[i] == 0 || found)
            continue;
        chosen = i;
        below += p[i];
        found = below > u;
    }
    return chosen;
}

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    int status = penalise(logits, n_vocab, tokens, n, s->penalty, s->logits);

    status = status ? status : top_k(s->logits, n_vocab, s->top_k, s->room, s->p);
    status = status ? status : softmax_temperature(s->p, n_vocab, s->temperature, s->logits);
    return status ? status : top_p(s->logits, n_vocab, s->top_p, s->room, p);
}

int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    sampler *s = state;

    if (sampler_probabilities(s, logits, n_vocab, &generated[-s->n_prompt], s->n_prompt + n_generated, s->p) < 0)
        return -1;
    real u = random_uniform(&s->random);
    return draw(s->p, n_vocab, u);
}
