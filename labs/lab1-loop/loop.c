/* Lab 1, the decoding loop. Write each function where its TODO stands; loop.h says what it must do, and LABS.md why.
   `make lab1` says how far you are. */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "todo.h"

/* ---- 1a: choosing ---- */

int argmax(const real *logits, int n_vocab)
{
    TODO("1a");
}

/* ---- 1b: the logits of the next token, without a cache ---- */

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    TODO("1b");
}

/* ---- 1d: text that is shown while it's made ---- */

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    *s = (stream){.stops = stops, .n_stops = n_stops, .emit = emit, .to = to, .matched = -1};
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    TODO("1d");
}

void stream_finish(stream *s)
{
    TODO("1d");
}

void stream_free(stream *s)
{
    free(s->text);
    *s = (stream){.matched = -1};
}

/* ---- 1b, 1c: the loop. Step 1b: max_new_tokens alone; 1c: the other reasons to stop, and the errors; 1d: the text ---- */

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    TODO("1b");
}
