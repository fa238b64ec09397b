/* Lab 1, the decoding loop. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1a: choosing ---- */

int argmax(const real *logits, int n_vocab)
{
    int best = -1;

    for (int id = 0; id < n_vocab; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY)
            return -1;
        if (logits[id] > (best < 0 ? -INFINITY : logits[best]))
            best = id;
    }
    return best;
}

/* ---- 1b: the logits of the next token, without a cache ---- */

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    const uncached *u = state;
    size_t n_vocab = u->m->shape.n_vocab;

    if (model_forward(u->m, tokens, n, u->rows))
        return -1;
    memcpy(logits, u->rows + (n - 1) * n_vocab, n_vocab * sizeof *logits);
    return 0;
}

/* ---- 1d: text that is shown while it's made ---- */

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    *s = (stream){.stops = stops, .n_stops = n_stops, .emit = emit, .to = to, .matched = -1};
}

static int append_bytes(stream *s, const char *bytes, int n_bytes)
{
    if (s->length + n_bytes > s->capacity) {
        int capacity = 2 * (s->length + n_bytes);
        char *text = realloc(s->text, capacity);
        if (!text)
            return -1;
        s->text = text;
        s->capacity = capacity;
    }
    if (n_bytes > 0)
        memcpy(s->text + s->length, bytes, n_bytes);
    s->length += n_bytes;
    return 0;
}

/* How many bytes of `stop` stand in the text from `at` on: all of them, fewer if the text ends there, or 0. */
static int stop_bytes_at(const stream *s, const char *stop, int at)
{
    int n = strlen(stop), left = s->length - at;

    n = left < n ? left : n;
    return memcmp(s->text + at, stop, n) == 0 ? n : 0;
}

/* Sets `matched` and cuts the text at the earliest stop string. It can't begin in what has been shown: that was shown
   because no stop string could begin there. */
static int find_stop(stream *s)
{
    for (int at = s->shown, longest = 0; at < s->length; at++) {
        for (int i = 0; i < s->n_stops; i++) {
            int n = strlen(s->stops[i]);
            if (n > longest && stop_bytes_at(s, s->stops[i], at) == n) {
                longest = n;
                s->matched = i;
            }
        }
        if (longest) {
            s->length = at;
            return 1;
        }
    }
    return 0;
}

/* The first byte that could still become part of a stop string, or the text's end. */
static int held_from(const stream *s)
{
    for (int at = s->shown; at < s->length; at++)
        for (int i = 0; i < s->n_stops; i++)
            if (stop_bytes_at(s, s->stops[i], at))
                return at;
    return s->length;
}

/* The bytes of the character of UTF-8 that starts at p, of which n bytes are there; 0 if it isn't whole yet, -1 if
   the first byte can't be part of one (Unicode 15, table 3-7). */
static int character_bytes(const unsigned char *p, int n)
{
    int size = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? -1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : -1;
    int low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80, high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;

    for (int i = 1; i < size && i < n; i++) {
        if (p[i] < low || p[i] > high)
            return -1;
        low = 0x80;
        high = 0xbf;
    }
    return size > n ? 0 : size;
}

/* Emits the text up to `end`, but for an unfinished last character; at the end of the text that one goes too. */
static void show(stream *s, int end, int at_end)
{
    while (s->shown < end) {
        const char *p = s->text + s->shown;
        int n = character_bytes((const unsigned char *)p, end - s->shown);
        if (n == 0 && !at_end)
            return;
        if (n > 0)
            s->emit(s->to, p, n);
        else
            s->emit(s->to, "\xef\xbf\xbd", 3);
        s->shown += n > 0 ? n : 1;
    }
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    if (append_bytes(s, bytes, n_bytes))
        return -1;
    int found = find_stop(s);
    show(s, found ? s->length : held_from(s), found);
    return found;
}

void stream_finish(stream *s)
{
    show(s, s->length, 1);
}

void stream_free(stream *s)
{
    free(s->text);
    *s = (stream){.matched = -1};
}

/* ---- 1b, 1c: the loop ---- */

static stop_reason check_start(const loop *g, int n, failure *f)
{
    if (n < 1)
        return fail(f, "the prompt is empty: the model needs at least one token to start from");
    if (n > g->n_ctx)
        return fail(f, "the prompt has %d tokens, but the model's context holds %d", n, g->n_ctx);
    if (g->max_new_tokens < 0)
        return fail(f, "max_new_tokens is %d, but must be 0 or more", g->max_new_tokens);
    return 0;
}

/* The id that comes after tokens [n], of which the first n_prompt are the prompt, or -1. */
static int next_token(const loop *g, const int *tokens, int n, int n_prompt, failure *f)
{
    if (g->next(g->next_state, tokens, n, g->logits))
        return fail(f, "the model gave no logits for token %d", n);
    int id = g->choose ? g->choose(g->choose_state, g->logits, g->n_vocab, tokens + n_prompt, n - n_prompt)
                       : argmax(g->logits, g->n_vocab);
    return id < 0 ? fail(f, "no token can be chosen from the logits of token %d", n) : id;
}

/* Hands the token's text to the stream: 1 if that completes a stop string, -1 if it fails. */
static int show_token(const loop *g, int id, failure *f)
{
    int n_bytes = 0;

    if (!g->out)
        return 0;
    const char *bytes = g->piece(g->vocabulary, id, &n_bytes);
    int found = stream_push(g->out, bytes, n_bytes);
    return found < 0 ? fail(f, "there isn't enough memory for the text") : found;
}

static stop_reason run(const loop *g, int *tokens, int *n, failure *f)
{
    int n_prompt = *n;

    if (check_start(g, n_prompt, f))
        return STOP_ERROR;
    while (*n - n_prompt < g->max_new_tokens && *n < g->n_ctx) {
        int id = next_token(g, tokens, *n, n_prompt, f);
        if (id < 0)
            return STOP_ERROR;
        tokens[(*n)++] = id;
        if (id == g->end_of_text)
            return STOP_END_OF_TEXT;
        int found = show_token(g, id, f);
        if (found)
            return found > 0 ? STOP_STRING : STOP_ERROR;
    }
    return *n - n_prompt >= g->max_new_tokens ? STOP_LENGTH : STOP_CONTEXT;
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    stop_reason why = run(g, tokens, n, f);

    if (g->out)
        stream_finish(g->out);
    return why;
}
