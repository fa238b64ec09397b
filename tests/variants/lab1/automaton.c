/* Lab 1, written differently: stop strings are searched with the failure function of Knuth, Morris and Pratt, whose last
   state is what has to be held back; UTF-8 is a machine that eats one byte at a time; generate is a machine as well. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int argmax(const real *logits, int n_vocab)
{
    int best = 0;

    if (n_vocab < 1)
        return -1;
    for (int id = 0; id < n_vocab; id++) {
        if (isnan(logits[id]) || (isinf(logits[id]) && logits[id] > 0))
            return -1;
        best = logits[id] > logits[best] ? id : best;
    }
    return isinf(logits[best]) ? -1 : best;
}

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    const uncached *u = state;
    const size_t row = u->m->shape.n_vocab;

    if (model_forward(u->m, tokens, n, u->rows) == -1)
        return -1;
    memmove(logits, &u->rows[row * n - row], row * sizeof(real));
    return 0;
}

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    *s = (stream){stops, n_stops, emit, to, NULL, 0, 0, 0, -1};
}

void stream_free(stream *s)
{
    free(s->text);
    stream_init(s, NULL, 0, NULL, NULL);
}

/* ---- UTF-8, a byte at a time ---- */

typedef enum { START, TAIL1, TAIL2, TAIL3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, REJECT } utf8_state;

static utf8_state step_utf8(utf8_state at, unsigned char byte)
{
    int tail = byte >= 0x80 && byte < 0xc0;

    switch (at) {
    case START:
        if (byte < 0x80)
            return START;
        if (byte < 0xc2 || byte > 0xf4)
            return REJECT;
        if (byte < 0xe0)
            return TAIL1;
        if (byte < 0xf0)
            return byte == 0xe0 ? AFTER_E0 : byte == 0xed ? AFTER_ED : TAIL2;
        return byte == 0xf0 ? AFTER_F0 : byte == 0xf4 ? AFTER_F4 : TAIL3;
    case TAIL1: return tail ? START : REJECT;
    case TAIL2: return tail ? TAIL1 : REJECT;
    case TAIL3: return tail ? TAIL2 : REJECT;
    case AFTER_E0: return tail && byte >= 0xa0 ? TAIL1 : REJECT;
    case AFTER_ED: return tail && byte < 0xa0 ? TAIL1 : REJECT;
    case AFTER_F0: return tail && byte >= 0x90 ? TAIL2 : REJECT;
    case AFTER_F4: return tail && byte < 0x90 ? TAIL2 : REJECT;
    default: return REJECT;
    }
}

static void feed(stream *s, int end)
{
    utf8_state at = START;

    for (int i = s->shown; i < end; i++) {
        at = step_utf8(at, s->text[i]);
        if (at == REJECT) {
            s->emit(s->to, "\xef\xbf\xbd", 3);
            i = s->shown++; /* go on behind the first byte of what was no character */
            at = START;
        } else if (at == START) {
            s->emit(s->to, s->text + s->shown, i + 1 - s->shown);
            s->shown = i + 1;
        }
    }
}

void stream_finish(stream *s)
{
    feed(s, s->length);
    while (s->shown < s->length) {
        s->emit(s->to, "\xef\xbf\xbd", 3);
        s->shown++;
        feed(s, s->length);
    }
}

/* ---- stop strings ---- */

/* Where `stop` first stands in the text, or -1, and how many of its bytes the end of the text has begun with. */
static int run_automaton(const stream *s, const char *stop, int *begun)
{
    int n = strlen(stop), at = 0, back[n + 1];

    back[0] = -1;
    for (int i = 0, j = -1; i < n; back[++i] = ++j)
        while (j >= 0 && stop[i] != stop[j])
            j = back[j];
    for (int i = s->shown; i < s->length; i++) {
        while (at >= 0 && s->text[i] != stop[at])
            at = back[at];
        if (++at == n) {
            *begun = 0;
            return i + 1 - n;
        }
    }
    *begun = at;
    return -1;
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    int begun, longest = 0, first = -1;

    if (n_bytes > s->capacity - s->length) {
        int capacity = s->capacity + s->capacity / 2 + n_bytes;
        void *text = realloc(s->text, capacity);
        if (!text)
            return -1;
        s->text = text;
        s->capacity = capacity;
    }
    for (int i = 0; i < n_bytes; i++)
        s->text[s->length++] = bytes[i];
    for (int i = 0; i < s->n_stops; i++) {
        int at = run_automaton(s, s->stops[i], &begun);
        longest = begun > longest ? begun : longest;
        if (at < 0)
            continue;
        if (first < 0 || at < first || (at == first && strlen(s->stops[i]) > strlen(s->stops[s->matched]))) {
            first = at;
            s->matched = i;
        }
    }
    if (first < 0) {
        feed(s, s->length - longest);
        return 0;
    }
    s->length = first;
    stream_finish(s);
    return 1;
}

/* ---- the loop ---- */

typedef struct {
    const loop *g;
    int *tokens, *n, n_prompt, id;
    failure *f;
    stop_reason why;
} machine;

typedef int stage; /* which of the stages below is next; -1: none */
enum { LIMITS, MODEL, CHOICE, TEXT, DONE = -1 };

static stage stop(machine *x, stop_reason why)
{
    x->why = why;
    return DONE;
}

static stage limits(machine *x)
{
    if (*x->n - x->n_prompt == x->g->max_new_tokens)
        return stop(x, STOP_LENGTH);
    return *x->n == x->g->n_ctx ? stop(x, STOP_CONTEXT) : MODEL;
}

static stage run_model(machine *x)
{
    if (x->g->next(x->g->next_state, x->tokens, *x->n, x->g->logits))
        return stop(x, fail(x->f, "the model has no logits to offer"));
    return CHOICE;
}

static stage choose(machine *x)
{
    const loop *g = x->g;

    if (g->choose)
        x->id = g->choose(g->choose_state, g->logits, g->n_vocab, x->tokens + x->n_prompt, *x->n - x->n_prompt);
    else
        x->id = argmax(g->logits, g->n_vocab);
    if (x->id < 0)
        return stop(x, fail(x->f, "the logits allow no token"));
    x->tokens[(*x->n)++] = x->id;
    return x->id == g->end_of_text ? stop(x, STOP_END_OF_TEXT) : TEXT;
}

static stage push_text(machine *x)
{
    int n_bytes;

    if (!x->g->out)
        return LIMITS;
    const char *bytes = x->g->piece(x->g->vocabulary, x->id, &n_bytes);
    switch (stream_push(x->g->out, bytes, n_bytes)) {
    case 0: return LIMITS;
    case 1: return stop(x, STOP_STRING);
    default: return stop(x, fail(x->f, "the text has outgrown the memory"));
    }
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    static stage (*const stages[])(machine *) = {limits, run_model, choose, push_text};
    machine x = {g, tokens, n, *n, -1, f, STOP_ERROR};

    if (*n < 1)
        fail(f, "there's no prompt");
    else if (*n > g->n_ctx)
        fail(f, "%d tokens don't fit into %d", *n, g->n_ctx);
    else if (g->max_new_tokens < 0)
        fail(f, "a limit of %d", g->max_new_tokens);
    else
        for (stage next = LIMITS; next != DONE;)
            next = stages[next](&x);
    if (g->out)
        stream_finish(g->out);
    return x.why;
}
