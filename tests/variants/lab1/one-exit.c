/* Lab 1, written differently: everything in few long functions with goto and a single exit, and the bytes that wait are
   copied to a buffer of their own, from whose front they're moved away as they're shown. */
#define _GNU_SOURCE
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int argmax(const real *logits, int n_vocab)
{
    int best = -1, id = 0;

again:
    if (id >= n_vocab)
        goto out;
    if (logits[id] != logits[id] || logits[id] > 0) {
        if (logits[id] != logits[id] || isinf(logits[id])) {
            best = -1;
            goto out;
        }
    }
    if (!isinf(logits[id]) && (best == -1 || logits[id] > logits[best]))
        best = id;
    id++;
    goto again;
out:
    return best;
}

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    uncached *u = state;
    int status = model_forward(u->m, tokens, n, u->rows);

    if (status)
        goto out;
    const real *p = u->rows;
    for (int i = 1; i < n; i++)
        p += u->m->shape.n_vocab;
    for (int id = 0; id < u->m->shape.n_vocab; id++)
        *logits++ = *p++;
out:
    return status;
}

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    s->stops = stops, s->n_stops = n_stops, s->emit = emit, s->to = to;
    s->text = NULL, s->length = s->capacity = s->shown = 0, s->matched = -1;
}

void stream_free(stream *s)
{
    free(s->text);
    stream_init(s, NULL, 0, NULL, NULL);
}

/* Takes whole characters from the front of the buffer; returns how many bytes it took. */
static int drain(stream *s, unsigned char *buffer, int n, int at_end)
{
    int taken = 0;

    while (n > 0) {
        int need, bad = 0, whole, c = buffer[0];
        if (c <= 0x7f)
            need = 1;
        else if (c >= 0xc2 && c <= 0xdf)
            need = 2;
        else if (c >= 0xe0 && c <= 0xef)
            need = 3;
        else if (c >= 0xf0 && c <= 0xf4)
            need = 4;
        else
            need = 1, bad = 1;
        for (int i = 1; i < need && i < n; i++)
            bad |= buffer[i] < 0x80 || buffer[i] > 0xbf;
        if (n > 1 && need > 1) {
            bad |= c == 0xe0 && buffer[1] < 0xa0;
            bad |= c == 0xed && buffer[1] > 0x9f;
            bad |= c == 0xf0 && buffer[1] < 0x90;
            bad |= c == 0xf4 && buffer[1] > 0x8f;
        }
        whole = !bad && n >= need;
        if (!bad && !whole && !at_end)
            goto out;
        s->emit(s->to, whole ? (char *)buffer : "\xef\xbf\xbd", whole ? need : 3);
        need = whole ? need : 1;
        n -= need;
        taken += need;
        memmove(buffer, buffer + need, n);
    }
out:
    return taken;
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    int status = -1, cut = -1, waiting = s->length - s->shown + n_bytes, free_bytes = waiting;
    unsigned char *buffer = malloc(waiting + 1);
    char *text = realloc(s->text, s->length + n_bytes + 1);

    if (text)
        s->text = text;
    if (!buffer || !text)
        goto out;
    if (n_bytes)
        memcpy(text + s->length, bytes, n_bytes);
    s->length += n_bytes;
    s->capacity = s->length + 1;
    memcpy(buffer, text + s->shown, waiting);
    for (int i = 0; i < s->n_stops; i++) {
        int n = strlen(s->stops[i]);
        unsigned char *found = memmem(buffer, waiting, s->stops[i], n);
        if (found && (cut < 0 || found - buffer < cut ||
                      (found - buffer == cut && n > (int)strlen(s->stops[s->matched])))) {
            cut = found - buffer;
            s->matched = i;
        }
        for (int tail = n - 1; tail > 0; tail--)
            if (tail <= waiting && memcmp(buffer + waiting - tail, s->stops[i], tail) == 0) {
                if (waiting - tail < free_bytes)
                    free_bytes = waiting - tail;
                break;
            }
    }
    if (cut >= 0) {
        s->length = s->shown + cut;
        free_bytes = cut;
    }
    s->shown += drain(s, buffer, free_bytes, cut >= 0);
    status = cut >= 0;
out:
    free(buffer);
    return status;
}

void stream_finish(stream *s)
{
    unsigned char *buffer = malloc(s->length - s->shown + 1);

    if (!buffer)
        return;
    memcpy(buffer, s->text ? s->text + s->shown : "", s->length - s->shown);
    s->shown += drain(s, buffer, s->length - s->shown, 1);
    free(buffer);
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    stop_reason why = STOP_ERROR;
    int generated = 0, id, n_bytes, status;

    if (*n < 1 || *n > g->n_ctx || g->max_new_tokens < 0) {
        fail(f, "%d tokens of prompt, %d tokens of context, %d new tokens: that can't be", *n, g->n_ctx, g->max_new_tokens);
        goto out;
    }
    if (g->max_new_tokens == 0) {
        why = STOP_LENGTH;
        goto out;
    }
    if (*n == g->n_ctx) {
        why = STOP_CONTEXT;
        goto out;
    }
more:
    status = g->next(g->next_state, tokens, *n, g->logits);
    if (status) {
        fail(f, "no logits");
        goto out;
    }
    id = !g->choose ? argmax(g->logits, g->n_vocab)
                    : g->choose(g->choose_state, g->logits, g->n_vocab, tokens + (*n - generated), generated);
    if (id < 0) {
        fail(f, "no token");
        goto out;
    }
    tokens[*n] = id;
    *n = *n + 1;
    generated++;
    if (g->end_of_text >= 0 && id == g->end_of_text) {
        why = STOP_END_OF_TEXT;
        goto out;
    }
    if (g->out != NULL) {
        const char *bytes = g->piece(g->vocabulary, id, &n_bytes);
        status = stream_push(g->out, bytes, n_bytes);
        if (status < 0) {
            fail(f, "no memory");
            goto out;
        }
        if (status > 0) {
            why = STOP_STRING;
            goto out;
        }
    }
    if (generated >= g->max_new_tokens)
        why = STOP_LENGTH;
    else if (*n >= g->n_ctx)
        why = STOP_CONTEXT;
    else
        goto more;
out:
    if (g->out)
        stream_finish(g->out);
    return why;
}
