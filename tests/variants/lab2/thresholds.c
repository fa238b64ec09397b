/* Finds the value at which the cut falls, and how many tokens of just that value are kept: the lowest ids. Values are
   sorted without their ids, by a merge sort whose second half lies in the output. Everything real is real: float sums
   where the contract doesn't ask for double. */
#include <math.h>
#include <string.h>
#include <tgmath.h>

#include "sampling.h"

/* Sorts a [n] by falling value, with b [n] as room. */
static void merge_sort(real *a, real *b, int n)
{
    int half = n / 2, i = 0, j = half;

    if (n < 2)
        return;
    merge_sort(a, b, half);
    merge_sort(a + half, b + half, n - half);
    for (int k = 0; k < n; k++)
        b[k] = j >= n || (i < half && a[i] >= a[j]) ? a[i++] : a[j++];
    memcpy(a, b, n * sizeof *a);
}

/* kept = values above `cut`, and the first n_equal of those equal to it; `none` elsewhere. */
static void cut_at(const real *x, int n, real cut, int n_equal, real none, real *kept)
{
    for (int id = 0; id < n; id++)
        kept[id] = x[id] > cut || (x[id] == cut && n_equal-- > 0) ? x[id] : none;
}

static int refused(const real *x, int n)
{
    int n_finite = 0;

    for (int id = 0; id < n; id++)
        if (isfinite(x[id]))
            n_finite++;
        else if (!(x[id] < 0))
            return 1;
    return n_finite == 0;
}

int softmax_temperature(const real *logits, int n_vocab, real temperature, real *p)
{
    real most = -INFINITY, sum = 0;

    if (refused(logits, n_vocab) || !(temperature >= 0 && temperature < INFINITY))
        return -1;
    for (int id = 0; id < n_vocab; id++)
        most = fmax(most, logits[id]);
    for (int id = 0; id < n_vocab; id++) {
        real below = logits[id] - most;
        p[id] = below == 0 ? 1 : temperature == 0 ? 0 : exp(below / temperature);
        if (temperature == 0 && sum == 1)
            p[id] = 0; /* an equal one came before */
        sum += p[id];
    }
    for (int id = 0; id < n_vocab; id++)
        p[id] *= 1 / sum;
    return 0;
}

int top_k(const real *logits, int n_vocab, int k, ranked *room, real *kept)
{
    if (refused(logits, n_vocab) || k < 0)
        return -1;
    if (k == 0 || k > n_vocab)
        k = n_vocab;
    real *sorted = (real *)room; /* [V]: a ranked has room for a real */
    memcpy(sorted, logits, n_vocab * sizeof *sorted);
    merge_sort(sorted, kept, n_vocab);
    int n_equal = 0;
    for (int i = 0; i < k; i++)
        n_equal += sorted[i] == sorted[k - 1];
    real cut = sorted[k - 1];
    cut_at(logits, n_vocab, cut, n_equal, -INFINITY, kept);
    return 0;
}

int top_p(const real *p, int n_vocab, real mass, ranked *room, real *kept)
{
    real most = 0;

    for (int id = 0; id < n_vocab; id++) {
        if (!isfinite(p[id]) || p[id] < 0)
            return -1;
        most = fmax(most, p[id]);
    }
    if (most == 0 || isnan(mass))
        return -1;
    real *sorted = (real *)room;
    memcpy(sorted, p, n_vocab * sizeof *sorted);
    merge_sort(sorted, kept, n_vocab);
    double total = sorted[0], epsilon = sizeof(real) == 4 ? 1e-6 : 1e-12;
    int n = 1;
    while (n < n_vocab && (mass >= 1 || mass - total > epsilon))
        total += sorted[n++];
    int n_equal = 0;
    for (int i = 0; i < n; i++)
        n_equal += sorted[i] == sorted[n - 1];
    cut_at(p, n_vocab, sorted[n - 1], n_equal, 0, kept);
    for (int id = 0; id < n_vocab; id++)
        kept[id] /= (real)total;
    return 0;
}

static real penalised(real logit, real penalty)
{
    return logit < 0 ? logit * penalty : logit / penalty;
}

int penalise(const real *logits, int n_vocab, const int *tokens, int n, real penalty, real *out)
{
    int lowest = 0, highest = 0;

    if (refused(logits, n_vocab) || !isfinite(penalty) || penalty <= 0)
        return -1;
    for (int i = 0; i < n; i++) {
        lowest = tokens[i] < lowest ? tokens[i] : lowest;
        highest = tokens[i] > highest ? tokens[i] : highest;
    }
    if (lowest < 0 || highest >= n_vocab)
        return -1;
    memcpy(out, logits, n_vocab * sizeof *out);
    while (n-- > 0)
        out[tokens[n]] = penalised(logits[tokens[n]], penalty);
    return 0;
}

int draw(const real *p, int n_vocab, real u)
{
    double total = 0;
    int n_passed = 0, last = -1;

    if (isnan(u) || u < 0 || u >= 1)
        return -1;
    for (int id = 0; id < n_vocab; id++) {
        if (!isfinite(p[id]) || p[id] < 0)
            return -1;
        total += p[id];
        n_passed += total <= u; /* the totals rise, so those that don't exceed u stand in front */
        if (p[id] > 0)
            last = id;
    }
    return last < 0 || n_passed < n_vocab ? (last < 0 ? -1 : n_passed) : last;
}

int sampler_probabilities(sampler *s, const real *logits, int n_vocab, const int *tokens, int n, real *p)
{
    if (penalise(logits, n_vocab, tokens, n, s->penalty, s->p))
        return -1;
    if (s->temperature > 1) /* hot: the order of top-k and the temperature makes no difference */
        for (int id = 0; id < n_vocab; id++)
            s->p[id] /= s->temperature;
    if (top_k(s->p, n_vocab, s->top_k, s->room, s->logits))
        return -1;
    if (softmax_temperature(s->logits, n_vocab, s->temperature > 1 && s->temperature < INFINITY ? 1 : s->temperature, s->p))
        return -1;
    return top_p(s->p, n_vocab, s->top_p, s->room, p);
}

int choose_sampled(void *state, const real *logits, int n_vocab, const int *generated, int n_generated)
{
    sampler *s = (sampler *)state;
    generator start = s->random;
    real u = random_uniform(&s->random);

    if (sampler_probabilities(s, logits, n_vocab, generated - s->n_prompt, n_generated + s->n_prompt, s->logits) == 0)
        return draw(s->logits, n_vocab, u);
    s->random = start;
    return -1;
}
