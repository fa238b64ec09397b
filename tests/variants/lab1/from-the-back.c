/* Lab 1, written differently: arg-max, stop strings and held bytes are all searched from the back, so that the last hit
   is the first in the text; the loop counts down what is left, and has the next
   row of logits ready before it needs it. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int argmax(const real *logits, int n_vocab)
{
    const real *best = NULL;

    for (const real *p = logits + (n_vocab > 0 ? n_vocab : 0); p-- > logits;) {
        if (isnan(*p) || *p == INFINITY)
            return -1;
        if (*p > -INFINITY && (!best || *p >= *best))
            best = p;
    }
    return best ? (int)(best - logits) : -1;
}

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    const uncached *u = state;
    int v = u->m->shape.n_vocab;

    if (model_forward(u->m, tokens, n, u->rows) != 0)
        return -1;
    for (const real *from = u->rows + (size_t)n * v, *begin = from - v; from-- > begin;)
        logits[from - begin] = *from;
    return 0;
}

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    *s = (stream){.stops = stops, .n_stops = n_stops, .emit = emit, .to = to, .matched = -1};
}

void stream_free(stream *s)
{
    free(s->text);
    *s = (stream){.matched = -1};
}

/* An unfinished character at the end of text [from, end) begins here; if there's none, `end`. */
static int unfinished_from(const unsigned char *text, int from, int end)
{
    for (int back = 1; back <= 3 && end - back >= from; back++) {
        int c = text[end - back], second = back > 1 ? text[end - back + 1] : -1;
        if (c >= 0x80 && c < 0xc0)
            continue;
        if (c < 0xc2 || c > 0xf4 || back >= (c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4))
            return end;
        if (second >= 0 && ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) || (c == 0xf0 && second < 0x90) ||
                            (c == 0xf4 && second > 0x8f)))
            return end;
        return end - back;
    }
    return end;
}

/* How many bytes the character at p has, with `n` there; 0 if they're none. */
static int whole(const unsigned char *p, int n)
{
    if (p[0] < 0x80)
        return 1;
    int size = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    unsigned long packed = 0;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n < size)
        return 0;
    for (int i = size - 1; i > 0; i--)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    packed = (unsigned long)p[0] << 8 | p[1];
    if (packed < 0xc280 || (packed >= 0xe000 && packed < 0xe0a0) || (packed >= 0xeda0 && packed < 0xee00) ||
        (packed >= 0xf000 && packed < 0xf090) || packed > 0xf48f)
        return 0;
    return size;
}

static void show(stream *s, int end)
{
    while (s->shown < end) {
        int size = whole((unsigned char *)s->text + s->shown, end - s->shown);
        if (size)
            s->emit(s->to, s->text + s->shown, size);
        else
            s->emit(s->to, "\xef\xbf\xbd", 3);
        s->shown += size ? size : 1;
    }
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    int hold, at, found = -1;

    while (s->capacity < s->length + n_bytes) {
        s->capacity = s->capacity ? 2 * s->capacity : 16;
        char *text = realloc(s->text, s->capacity);
        if (!text)
            return -1;
        s->text = text;
    }
    while (n_bytes-- > 0)
        s->text[s->length++] = *bytes++;
    hold = s->length;
    for (at = s->length - 1; at >= s->shown; at--) {
        int longest = -1, left = s->length - at;
        for (int i = s->n_stops - 1; i >= 0; i--) {
            int n = strlen(s->stops[i]);
            if (memcmp(s->text + at, s->stops[i], n < left ? n : left))
                continue;
            if (n > left)
                hold = at;
            else if (longest < 0 || n >= (int)strlen(s->stops[longest]))
                longest = i;
        }
        if (longest >= 0) {
            s->matched = longest;
            found = at;
        }
    }
    if (found >= 0) {
        s->length = found;
        show(s, found);
        return 1;
    }
    show(s, unfinished_from((unsigned char *)s->text, s->shown, hold));
    return 0;
}

void stream_finish(stream *s)
{
    show(s, s->length);
}

static int first_error(const loop *g, int n, failure *f)
{
    return n < 1                   ? fail(f, "a prompt needs a token")
           : n > g->n_ctx          ? fail(f, "the context's %d tokens are fewer than the prompt's %d", g->n_ctx, n)
           : g->max_new_tokens < 0 ? fail(f, "a negative limit")
                                   : 0;
}

static int push(const loop *g, int id)
{
    int n_bytes;

    if (!g->out)
        return 0;
    const char *bytes = g->piece(g->vocabulary, id, &n_bytes);
    return stream_push(g->out, bytes, n_bytes);
}

/* The logits of the next token, if there's to be one: 0, or STOP_ERROR. */
static int prepare(const loop *g, const int *tokens, int n, int wanted, failure *f)
{
    return wanted > 0 && g->next(g->next_state, tokens, n, g->logits) ? fail(f, "no logits for token %d", n) : 0;
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    const int *generated = tokens + *n;
    int left = g->max_new_tokens, room = g->n_ctx - *n, pushed = 0, id = -1, error = first_error(g, *n, f);

    if (!error)
        error = prepare(g, tokens, *n, left < room ? left : room, f);
    while (!error && left > 0 && room > 0) {
        id = g->choose ? g->choose(g->choose_state, g->logits, g->n_vocab, generated, tokens + *n - generated)
                       : argmax(g->logits, g->n_vocab);
        if (id < 0) {
            error = fail(f, "the row of token %d has no largest logit", *n);
            break;
        }
        tokens[(*n)++] = id;
        left--;
        room--;
        pushed = id == g->end_of_text ? 0 : push(g, id);
        if (id == g->end_of_text || pushed)
            break;
        error = prepare(g, tokens, *n, left < room ? left : room, f);
    }
    if (g->out)
        stream_finish(g->out);
    if (error || pushed < 0)
        return error ? error : fail(f, "out of memory");
    if (id >= 0 && id == g->end_of_text)
        return STOP_END_OF_TEXT;
    return pushed ? STOP_STRING : left == 0 ? STOP_LENGTH : STOP_CONTEXT;
}
