/* Lab 1, written differently: no loops but recursion, from the arg-max of two halves to a generate that calls itself for
   the rest of the text. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1a ---- */

static int acceptable(const real *row, int n)
{
    if (n == 1)
        return row[0] < INFINITY; /* false for NaN */
    return acceptable(row, n / 2) && acceptable(row + n / 2, n - n / 2);
}

static int best_of(const real *row, int from, int to)
{
    if (to - from == 1)
        return from;
    int middle = from + (to - from) / 2, left = best_of(row, from, middle), right = best_of(row, middle, to);
    return row[right] > row[left] ? right : left;
}

int argmax(const real *logits, int n_vocab)
{
    if (n_vocab < 1 || !acceptable(logits, n_vocab))
        return -1;
    int best = best_of(logits, 0, n_vocab);
    return logits[best] == -INFINITY ? -1 : best;
}

/* ---- 1b ---- */

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    const uncached *u = state;
    const real *last = u->rows + (size_t)u->m->shape.n_vocab * (n - 1);

    return model_forward(u->m, tokens, n, u->rows)
               ? -1
               : (memcpy(logits, last, u->m->shape.n_vocab * sizeof *last), 0);
}

/* ---- 1d ---- */

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    *s = (stream){.stops = stops, .n_stops = n_stops, .emit = emit, .to = to, .matched = -1};
}

void stream_free(stream *s)
{
    free(s->text);
    *s = (stream){.matched = -1};
}

/* Whether the n bytes begin with the stop string (1), are a beginning of it (2), or neither (0). */
static int match(const char *text, int n, const char *stop)
{
    if (*stop == 0)
        return 1;
    if (n == 0)
        return 2;
    return *text == *stop ? match(text + 1, n - 1, stop + 1) : 0;
}

/* The longest of the stop strings from i on that stand here, or `best`. */
static int longest_here(const stream *s, int at, int i, int best)
{
    if (i == s->n_stops)
        return best;
    int here = match(s->text + at, s->length - at, s->stops[i]) == 1;
    return longest_here(s, at, i + 1, here && (best < 0 || strlen(s->stops[i]) > strlen(s->stops[best])) ? i : best);
}

static int first_match(stream *s, int at)
{
    if (at >= s->length)
        return -1;
    s->matched = longest_here(s, at, 0, -1);
    return s->matched >= 0 ? at : first_match(s, at + 1);
}

static int begins_some(const stream *s, int at, int i)
{
    return i < s->n_stops && (match(s->text + at, s->length - at, s->stops[i]) || begins_some(s, at, i + 1));
}

static int first_held(const stream *s, int at)
{
    return at >= s->length || begins_some(s, at, 0) ? at : first_held(s, at + 1);
}

/* How many bytes more, of `left`, follow well: -1 if one doesn't; `missing` counts those that haven't come. */
static int tail(const unsigned char *p, int n, int left, int least, int most, int *missing)
{
    if (left == 0)
        return 0;
    if (n == 0) {
        *missing = left;
        return 0;
    }
    return *p >= least && *p <= most ? tail(p + 1, n - 1, left - 1, 0x80, 0xbf, missing) : -1;
}

static int character(const unsigned char *p, int n, int *missing)
{
    int c = *p, more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;

    *missing = 0;
    if ((c >= 0x80 && c <= 0xc1) || c >= 0xf5)
        return -1;
    if (tail(p + 1, n - 1, more, c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf, missing))
        return -1;
    return more + 1;
}

static void show(stream *s, int end, int to_the_end)
{
    int missing;

    if (s->shown >= end)
        return;
    int size = character((unsigned char *)s->text + s->shown, end - s->shown, &missing);
    if (missing && !to_the_end)
        return;
    if (size < 0 || missing) {
        s->emit(s->to, "\xef\xbf\xbd", 3);
        s->shown += 1;
    } else {
        s->emit(s->to, s->text + s->shown, size);
        s->shown += size;
    }
    show(s, end, to_the_end);
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    char *longer = realloc(s->text, (size_t)s->length + n_bytes + 1);

    if (!longer)
        return -1;
    s->text = longer;
    memcpy(longer + s->length, bytes, n_bytes);
    s->capacity = s->length += n_bytes;
    int cut = first_match(s, s->shown);
    s->length = cut < 0 ? s->length : cut;
    show(s, cut < 0 ? first_held(s, s->shown) : cut, cut >= 0);
    return cut >= 0;
}

void stream_finish(stream *s)
{
    show(s, s->length, 1);
}

/* ---- the loop ---- */

static stop_reason rest(const loop *g, int *tokens, int *n, int n_new, failure *f)
{
    int n_bytes = 0, pushed = 0;

    if (n_new == g->max_new_tokens)
        return STOP_LENGTH;
    if (*n == g->n_ctx)
        return STOP_CONTEXT;
    if (g->next(g->next_state, tokens, *n, g->logits))
        return fail(f, "next failed");
    int id = g->choose ? g->choose(g->choose_state, g->logits, g->n_vocab, tokens + *n - n_new, n_new)
                       : argmax(g->logits, g->n_vocab);
    if (id < 0)
        return fail(f, "nothing to choose");
    tokens[*n] = id;
    ++*n;
    if (id == g->end_of_text)
        return STOP_END_OF_TEXT;
    if (g->out) {
        const char *bytes = g->piece(g->vocabulary, id, &n_bytes);
        pushed = stream_push(g->out, bytes, n_bytes);
    }
    return pushed > 0 ? STOP_STRING : pushed < 0 ? fail(f, "out of memory") : rest(g, tokens, n, n_new + 1, f);
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    if (*n == 0)
        return fail(f, "the prompt has no tokens");
    if (*n > g->n_ctx)
        return fail(f, "the context has room for %d tokens, not for the prompt's %d", g->n_ctx, *n);
    if (g->max_new_tokens < 0)
        return fail(f, "max_new_tokens can't be negative");
    stop_reason why = rest(g, tokens, n, 0, f);
    if (g->out)
        stream_finish(g->out);
    return why;
}
