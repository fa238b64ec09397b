/* Lab 1, written differently: the stream takes every byte by itself through three stations (stop strings, then UTF-8,
   then a line of output), and the loop asks one function after each token why to stop. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int argmax(const real *logits, int n_vocab)
{
    int n_usable = 0, best = 0;

    for (int id = 0; id < n_vocab; id++) {
        real x = logits[id];
        if (!isfinite(x) && !(x < 0))
            return -1;
        if (!isfinite(x))
            continue;
        if (n_usable++ == 0 || x - logits[best] > 0)
            best = id;
    }
    return n_usable ? best : -1;
}

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    const uncached *u = state;
    real(*rows)[u->m->shape.n_vocab] = (void *)u->rows;

    if (model_forward(u->m, tokens, n, *rows) < 0)
        return -1;
    memcpy(logits, rows[n - 1], sizeof rows[n - 1]);
    return 0;
}

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    *s = (stream){.stops = stops, .n_stops = n_stops, .emit = emit, .to = to, .matched = -1};
}

void stream_free(stream *s)
{
    char *text = s->text;

    stream_init(s, NULL, 0, NULL, NULL);
    free(text);
}

/* The length of the longest end of text [n] that is a beginning of the stop string, the whole string included. */
static int overlap(const char *text, int n, const char *stop)
{
    int k = strlen(stop);

    for (k = k < n ? k : n; k > 0 && memcmp(text + n - k, stop, k); k--)
        ;
    return k;
}

/* Of a character's bytes p [n]: how many are missing, or -1 if it's none. */
static int missing(const unsigned char *p, int n)
{
    static const unsigned char first[][6] = {/* from, to, second from, second to, size */
        {0x00, 0x7f, 0, 0, 1},          {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3},    {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
        {0xf4, 0xf4, 0x80, 0x8f, 4}};

    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        const unsigned char *r = first[i];
        if (p[0] < r[0] || p[0] > r[1])
            continue;
        if (n > 1 && (p[1] < r[2] || p[1] > r[3]))
            return -1;
        for (int k = 2; k < n; k++)
            if (p[k] < 0x80 || p[k] > 0xbf)
                return -1;
        return r[4] - n;
    }
    return -1;
}

/* Lets the bytes up to `end` pass, one after the other. */
static void pass(stream *s, int end)
{
    for (int at = s->shown + 1; at <= end;) {
        int more = missing((unsigned char *)s->text + s->shown, at - s->shown);
        if (more == 0)
            s->emit(s->to, s->text + s->shown, at - s->shown);
        if (more < 0)
            s->emit(s->to, "\xef\xbf\xbd", 3);
        if (more == 0)
            s->shown = at;
        if (more < 0)
            s->shown++;
        at = more < 0 ? s->shown + 1 : at + 1;
    }
}

void stream_finish(stream *s)
{
    while (s->shown < s->length) {
        pass(s, s->length);
        if (s->shown < s->length) {
            s->emit(s->to, "\xef\xbf\xbd", 3);
            s->shown++;
        }
    }
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    int first = s->length + n_bytes, longest = 0, held = 0;

    if (first >= s->capacity) {
        void *more = realloc(s->text, first + 64);
        if (!more)
            return -1;
        s->text = more;
        s->capacity = first + 64;
    }
    for (int i = 0; i < n_bytes; i++) {
        s->text[s->length++] = bytes[i];
        for (int k = 0; k < s->n_stops; k++) {
            int n = strlen(s->stops[k]), at = s->length - n;
            if (overlap(s->text, s->length, s->stops[k]) == n && (at < first || (at == first && n > longest))) {
                first = at;
                longest = n;
                s->matched = k;
            }
        }
    }
    if (s->matched >= 0) {
        s->length = first;
        stream_finish(s);
        return 1;
    }
    for (int k = 0; k < s->n_stops; k++) {
        int n = overlap(s->text, s->length, s->stops[k]);
        held = n > held ? n : held;
    }
    pass(s, s->length - held);
    return 0;
}

enum { GO_ON = 100 };

static int why_stop(const loop *g, int n, int n_new)
{
    return n_new >= g->max_new_tokens ? STOP_LENGTH : n >= g->n_ctx ? STOP_CONTEXT : GO_ON;
}

static int after_token(const loop *g, int id, int n, int n_new, failure *f)
{
    if (id == g->end_of_text)
        return STOP_END_OF_TEXT;
    if (g->out) {
        int n_bytes = 0;
        const char *bytes = g->piece(g->vocabulary, id, &n_bytes);
        int found = stream_push(g->out, bytes, n_bytes);
        if (found)
            return found == 1 ? STOP_STRING : fail(f, "the stream failed");
    }
    return why_stop(g, n, n_new);
}

static int refuse(const loop *g, int n, failure *f)
{
    if (n > g->n_ctx)
        return fail(f, "%d > %d", n, g->n_ctx);
    return n <= 0 || g->max_new_tokens < 0 ? fail(f, "the loop can't start") : GO_ON;
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    int n_new = 0, why = refuse(g, *n, f);

    if (why == GO_ON)
        why = why_stop(g, *n, 0);
    while (why == GO_ON) {
        int id = -1;
        if (g->next(g->next_state, tokens, *n, g->logits) == 0)
            id = g->choose ? g->choose(g->choose_state, g->logits, g->n_vocab, tokens + *n - n_new, n_new)
                           : argmax(g->logits, g->n_vocab);
        if (id < 0)
            why = fail(f, "there's no token %d", *n);
        else {
            tokens[*n] = id;
            *n += 1;
            n_new += 1;
            why = after_token(g, id, *n, n_new, f);
        }
    }
    if (g->out)
        stream_finish(g->out);
    return why;
}
