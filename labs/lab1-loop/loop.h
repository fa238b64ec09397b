/* Lab 1, the decoding loop: run the model, take the last row, choose a token, append it, stop in time.
   The loop asks for logits and for a token through two functions, so that the same loop runs with the cache of lab 3
   and the samplers of lab 2. Letters: n tokens, V n_vocab. */
#ifndef LOOP_H
#define LOOP_H

#include "model.h"

/* ---- 1a: choosing ---- */

/* The id of the largest of logits [V], the lowest id among equals. A logit may be -INFINITY. Returns -1 if n_vocab is
   below 1, if a logit is NaN or +INFINITY, or if all are -INFINITY. */
int argmax(const real *logits, int n_vocab);

/* ---- 1b: the logits of the next token, without a cache ---- */

/* Writes the logits [V] of the token that comes after tokens [n]. Returns 0, or -1 if they can't be had. */
typedef int next_fn(void *state, const int *tokens, int n, real *logits);

typedef struct {
    const model *m;
    real *rows; /* [n_ctx][V]: room for what model_forward writes */
} uncached;

/* The next_fn of lab 1; its state is an uncached. Runs the model on all n tokens and copies the last row. */
int next_uncached(void *state, const int *tokens, int n, real *logits);

/* ---- 1d: text that is shown while it's made ---- */

/* Shows n_bytes bytes of text: whole characters of UTF-8. */
typedef void emit_fn(void *to, const char *bytes, int n_bytes);

typedef struct {
    const char *const *stops; /* [n_stops]: none is "" */
    int n_stops;
    emit_fn *emit;
    void *to;       /* handed to emit */
    char *text;     /* [length]: all bytes generated so far; after a match, those before the stop string */
    int length, capacity;
    int shown;      /* how many bytes of text have been handed to emit */
    int matched;    /* the index of the stop string that was found, or -1 */
} stream;

/* An empty stream. The stop strings must outlive it. */
void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to);

/* Appends the bytes of one token; n_bytes may be 0. If a stop string is now in the text, cuts the text before the first
   byte of the match that starts earliest (the longest of those that start at that byte), sets `matched` (to the lowest
   index among equal ones), and returns 1. Else returns 0, or -1 when memory runs out. Either way it emits every byte that
   may be shown by now, and no other:
   - a byte that later bytes could still make part of a stop string waits, and so do those behind it, as if they hadn't
     come yet;
   - a character of UTF-8 waits until it's whole. A byte that can't be part of any is shown as U+FFFD, one for each.
   After a match nothing can follow, so the text before it is shown to its end. */
int stream_push(stream *s, const char *bytes, int n_bytes);

/* Emits what still waits: at the end nothing can complete it. Bytes of an unfinished character become U+FFFD each. */
void stream_finish(stream *s);

void stream_free(stream *s); /* leaves an empty stream without stop strings */

/* ---- 1b, 1c: the loop ---- */

/* Chooses a token from logits [V], which it leaves as they are. generated [n_generated] are the tokens after the
   prompt, which stands before them in the same array. Returns -1 if it can't choose. */
typedef int choose_fn(void *state, const real *logits, int n_vocab, const int *generated, int n_generated);

/* The bytes of a token's text, and how many. */
typedef const char *piece_fn(const void *vocabulary, int id, int *n_bytes);

typedef struct {
    next_fn *next;
    void *next_state;
    choose_fn *choose; /* NULL: argmax */
    void *choose_state;
    real *logits; /* [V]: room for one row */
    int n_vocab;
    int n_ctx;          /* the most tokens that the model can see, the prompt's included */
    int end_of_text;    /* the id that ends the text, or -1 */
    int max_new_tokens; /* how many ids may be appended, the end-of-text one included */
    stream *out;        /* where the text goes (1d), or NULL: ids only */
    piece_fn *piece;    /* with its vocabulary: the text of a token; not used without out */
    const void *vocabulary;
} loop;

typedef enum { STOP_ERROR = -1, STOP_END_OF_TEXT, STOP_STRING, STOP_LENGTH, STOP_CONTEXT } stop_reason;

/* Appends tokens to tokens [*n], which has room for n_ctx, until one of the reasons above holds. They are tested after
   each new token in this order: end of text, stop string, max_new_tokens reached, n_ctx tokens reached. Where
   max_new_tokens is 0, or the prompt already has n_ctx tokens, the answer is STOP_LENGTH or STOP_CONTEXT at once, and
   the model doesn't run. The end-of-text token is appended and isn't shown. At the end, after an error too, the stream is
   finished.
   Returns STOP_ERROR and a sentence for an empty prompt, for a prompt of more than n_ctx tokens (the sentence has both
   numbers), for max_new_tokens below 0, and when next, choose or the stream fails. */
stop_reason generate(const loop *g, int *tokens, int *n, failure *f);

#endif
