/* Lab 1, written differently: each push renders all of the text anew into a fresh buffer and emits what's new of it in
   one piece; characters are judged by their code point; the loop works out beforehand how many tokens there's room for. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int argmax(const real *logits, int n_vocab)
{
    real most = -INFINITY;
    int best = -1;

    for (int id = 0; id < n_vocab; id++) {
        if (!(logits[id] < INFINITY))
            return -1;
        if (logits[id] > most) {
            most = logits[id];
            best = id;
        }
    }
    return best;
}

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    uncached *u = state;
    int v = u->m->shape.n_vocab, status = model_forward(u->m, tokens, n, u->rows);

    for (int id = 0; status == 0 && id < v; id++)
        logits[id] = u->rows[(size_t)n * v - v + id];
    return status;
}

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    memset(s, 0, sizeof *s);
    s->stops = stops;
    s->n_stops = n_stops;
    s->emit = emit;
    s->to = to;
    s->matched = -1;
}

void stream_free(stream *s)
{
    free(s->text);
    stream_init(s, NULL, 0, NULL, NULL);
}

/* The number of bytes that the first byte of a character announces, or 0. */
static int announced(unsigned char byte)
{
    static const struct {
        unsigned char mask, is;
        int size;
    } kinds[] = {{0x80, 0x00, 1}, {0xe0, 0xc0, 2}, {0xf0, 0xe0, 3}, {0xf8, 0xf0, 4}};

    for (int i = 0; i < 4; i++)
        if ((byte & kinds[i].mask) == kinds[i].is)
            return kinds[i].size;
    return 0;
}

/* Whether the smallest and the largest code point that these bytes can lead to leave room for a character. */
static int possible(long from, long to, int size)
{
    static const long least[] = {0, 0, 0x80, 0x800, 0x10000};

    return to >= least[size] && from <= 0x10ffff && !(from >= 0xd800 && to <= 0xdfff);
}

/* The bytes of the character at p; 0: not whole yet; -1: none. */
static int measure(const unsigned char *p, int n)
{
    int size = announced(p[0]);

    if (size < 2)
        return size ? 1 : -1;
    long code = p[0] & (0x7f >> size);
    for (int i = 1;; i++) {
        int open = 6 * (size - i); /* bits that aren't known yet */
        if (!possible(code << open, ((code + 1) << open) - 1, size))
            return -1;
        if (i == size)
            return size;
        if (i == n)
            return 0;
        if (p[i] >> 6 != 2)
            return -1;
        code = code << 6 | (p[i] & 63);
    }
}

/* Renders text [0, end) into `to`, and says how many bytes of text that took and, in n_old, how much of the result comes
   from the first s->shown bytes. */
static int render(const stream *s, int end, int finished, char *to, int *n_to, int *n_old)
{
    int i = 0;

    *n_to = *n_old = 0;
    while (i < end) {
        int size = measure((unsigned char *)s->text + i, end - i);
        if (size == 0 && !finished)
            break;
        if (i == s->shown)
            *n_old = *n_to;
        if (size > 0) {
            memcpy(to + *n_to, s->text + i, size);
            *n_to += size;
            i += size;
        } else {
            memcpy(to + *n_to, "\xef\xbf\xbd", 3);
            *n_to += 3;
            i++;
        }
    }
    if (i == s->shown)
        *n_old = *n_to;
    return i;
}

static int update(stream *s, int end, int finished)
{
    int n_to, n_old;
    char *to = malloc(3 * (size_t)end + 1);

    if (!to)
        return -1;
    s->shown = render(s, end, finished, to, &n_to, &n_old);
    if (n_to > n_old)
        s->emit(s->to, to + n_old, n_to - n_old);
    free(to);
    return 0;
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    char *text = realloc(s->text, s->length + n_bytes + 1);
    int end, i;

    if (!text)
        return -1;
    s->text = text;
    memcpy(text + s->length, bytes, n_bytes);
    s->length += n_bytes;
    for (end = 0; end < s->length; end++) {
        int left = s->length - end, held = 0;
        size_t longest = 0;
        for (i = 0; i < s->n_stops; i++) {
            size_t size = strlen(s->stops[i]);
            if (size > longest && size <= (size_t)left && !memcmp(text + end, s->stops[i], size)) {
                s->matched = i;
                longest = size;
            }
            held |= size > (size_t)left && !memcmp(text + end, s->stops[i], left);
        }
        if (longest) {
            s->length = end;
            return update(s, end, 1) ? -1 : 1;
        }
        if (held)
            break;
    }
    /* A stop string may be whole behind the beginning of another one. */
    for (int at = end + 1; at < s->length; at++)
        for (i = 0; i < s->n_stops; i++) {
            int size = strlen(s->stops[i]);
            if (size <= s->length - at && !memcmp(text + at, s->stops[i], size) &&
                (s->matched < 0 || size > (int)strlen(s->stops[s->matched])))
                s->matched = i;
            if (i == s->n_stops - 1 && s->matched >= 0) {
                s->length = at;
                return update(s, at, 1) ? -1 : 1;
            }
        }
    return update(s, end, 0);
}

void stream_finish(stream *s)
{
    update(s, s->length, 1);
}

static int one_token(const loop *g, const int *tokens, int n, int n_new, failure *f)
{
    if (g->next(g->next_state, tokens, n, g->logits) != 0)
        return fail(f, "no logits");
    int id = g->choose == NULL ? argmax(g->logits, g->n_vocab)
                               : g->choose(g->choose_state, g->logits, g->n_vocab, &tokens[n - n_new], n_new);
    if (id == -1)
        fail(f, "no token can be chosen");
    return id;
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    int room = g->n_ctx - *n, budget = g->max_new_tokens;
    stop_reason why = budget <= room ? STOP_LENGTH : STOP_CONTEXT;

    if (*n <= 0 || room < 0 || budget < 0)
        return fail(f, "a prompt of %d tokens in a context of %d, with a limit of %d", *n, g->n_ctx, budget);
    if (budget > room)
        budget = room;
    for (int i = 0; i < budget; i++) {
        int id = one_token(g, tokens, *n, i, f), status = 0, n_bytes;
        if (id < 0) {
            why = STOP_ERROR;
            break;
        }
        tokens[*n] = id;
        *n += 1;
        if (id == g->end_of_text) {
            why = STOP_END_OF_TEXT;
            break;
        }
        if (g->out) {
            const char *bytes = g->piece(g->vocabulary, id, &n_bytes);
            status = stream_push(g->out, bytes, n_bytes);
        }
        if (status) {
            why = status < 0 ? fail(f, "out of memory") : STOP_STRING;
            break;
        }
    }
    if (g->out)
        stream_finish(g->out);
    return why;
}
