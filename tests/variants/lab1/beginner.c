/* Lab 1, written differently: a beginner's first try at full length, with flags, counters, one thing per line, byte-wise
   comparisons and memory that grows by one byte at a time. */
#include "loop.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int argmax(const real *logits, int n_vocab)
{
    bool found = false;
    int index_of_maximum = 0;
    real maximum = 0;
    int i;

    if (n_vocab <= 0) {
        return -1;
    }
    /* first pass: is anything wrong with the row? */
    for (i = 0; i < n_vocab; i++) {
        if (isnan(logits[i])) {
            return -1;
        }
        if (isinf(logits[i]) && logits[i] > 0) {
            return -1;
        }
    }
    /* second pass: the maximum */
    for (i = 0; i < n_vocab; i++) {
        if (isinf(logits[i])) {
            continue;
        }
        if (found == false) {
            found = true;
            maximum = logits[i];
            index_of_maximum = i;
        } else if (logits[i] > maximum) {
            maximum = logits[i];
            index_of_maximum = i;
        }
    }
    if (found == false) {
        return -1;
    }
    return index_of_maximum;
}

int next_uncached(void *state, const int *tokens, int n, real *logits)
{
    uncached *u = (uncached *)state;
    int V = u->m->shape.n_vocab;
    int row = n - 1;
    int column;
    int result;

    result = model_forward(u->m, tokens, n, u->rows);
    if (result != 0) {
        return -1;
    }
    for (column = 0; column < V; column++) {
        logits[column] = u->rows[row * V + column];
    }
    return 0;
}

void stream_init(stream *s, const char *const *stops, int n_stops, emit_fn *emit, void *to)
{
    s->stops = stops;
    s->n_stops = n_stops;
    s->emit = emit;
    s->to = to;
    s->text = NULL;
    s->length = 0;
    s->capacity = 0;
    s->shown = 0;
    s->matched = -1;
}

/* true if the whole stop string is in the text at this place */
static bool stop_is_here(stream *s, int place, int which)
{
    int j = 0;

    while (s->stops[which][j] != '\0') {
        if (place + j >= s->length) {
            return false;
        }
        if (s->text[place + j] != s->stops[which][j]) {
            return false;
        }
        j++;
    }
    return true;
}

/* true if everything from this place to the end of the text is the beginning of the stop string */
static bool stop_may_come(stream *s, int place, int which)
{
    int j;

    for (j = 0; place + j < s->length; j++) {
        if (s->stops[which][j] == '\0') {
            return false;
        }
        if (s->text[place + j] != s->stops[which][j]) {
            return false;
        }
    }
    return true;
}

/* between low and high? */
static bool in(int byte, int low, int high)
{
    return byte >= low && byte <= high;
}

/* 1 = a whole character of *size bytes, 0 = could become one, -1 = not a character */
static int look_at_character(stream *s, int place, int end, int *size)
{
    int a = (unsigned char)s->text[place];
    int b = place + 1 < end ? (unsigned char)s->text[place + 1] : -1;
    int c = place + 2 < end ? (unsigned char)s->text[place + 2] : -1;
    int d = place + 3 < end ? (unsigned char)s->text[place + 3] : -1;
    bool b_is_good;

    if (in(a, 0x00, 0x7f)) {
        *size = 1;
        return 1;
    }
    if (in(a, 0xc2, 0xdf)) {
        *size = 2;
        b_is_good = in(b, 0x80, 0xbf);
    } else if (a == 0xe0) {
        *size = 3;
        b_is_good = in(b, 0xa0, 0xbf);
    } else if (a == 0xed) {
        *size = 3;
        b_is_good = in(b, 0x80, 0x9f);
    } else if (in(a, 0xe1, 0xef)) {
        *size = 3;
        b_is_good = in(b, 0x80, 0xbf);
    } else if (a == 0xf0) {
        *size = 4;
        b_is_good = in(b, 0x90, 0xbf);
    } else if (in(a, 0xf1, 0xf3)) {
        *size = 4;
        b_is_good = in(b, 0x80, 0xbf);
    } else if (a == 0xf4) {
        *size = 4;
        b_is_good = in(b, 0x80, 0x8f);
    } else {
        return -1;
    }
    if (b == -1) {
        return 0;
    }
    if (!b_is_good) {
        return -1;
    }
    if (*size == 2) {
        return 1;
    }
    if (c == -1) {
        return 0;
    }
    if (!in(c, 0x80, 0xbf)) {
        return -1;
    }
    if (*size == 3) {
        return 1;
    }
    if (d == -1) {
        return 0;
    }
    if (!in(d, 0x80, 0xbf)) {
        return -1;
    }
    return 1;
}

static void show_until(stream *s, int end, bool nothing_follows)
{
    bool go_on = true;
    int size = 0;
    int kind;

    while (go_on && s->shown < end) {
        kind = look_at_character(s, s->shown, end, &size);
        if (kind == 1) {
            s->emit(s->to, &s->text[s->shown], size);
            s->shown = s->shown + size;
        } else if (kind == -1 || nothing_follows) {
            s->emit(s->to, "\xEF\xBF\xBD", 3);
            s->shown = s->shown + 1;
        } else {
            go_on = false;
        }
    }
}

int stream_push(stream *s, const char *bytes, int n_bytes)
{
    int i, place, which;
    int best = -1;
    int best_length = 0;
    int wait_from;

    for (i = 0; i < n_bytes; i++) {
        char *bigger = realloc(s->text, s->length + 1);
        if (bigger == NULL) {
            return -1;
        }
        s->text = bigger;
        s->text[s->length] = bytes[i];
        s->length++;
        s->capacity = s->length;
    }
    for (place = 0; place < s->length && best == -1; place++) {
        for (which = 0; which < s->n_stops; which++) {
            if (stop_is_here(s, place, which)) {
                int length = (int)strlen(s->stops[which]);
                if (length > best_length) {
                    best = which;
                    best_length = length;
                }
            }
        }
        if (best != -1) {
            s->matched = best;
            s->length = place;
            show_until(s, s->length, true);
            return 1;
        }
    }
    wait_from = s->length;
    for (place = s->length - 1; place >= 0; place--) {
        for (which = 0; which < s->n_stops; which++) {
            if (stop_may_come(s, place, which)) {
                wait_from = place;
            }
        }
    }
    show_until(s, wait_from, false);
    return 0;
}

void stream_finish(stream *s)
{
    show_until(s, s->length, true);
}

void stream_free(stream *s)
{
    if (s->text != NULL) {
        free(s->text);
    }
    stream_init(s, NULL, 0, NULL, NULL);
}

stop_reason generate(const loop *g, int *tokens, int *n, failure *f)
{
    int length_of_prompt = *n;
    int number_of_new_tokens = 0;
    bool finished = false;
    stop_reason reason = STOP_ERROR;

    if (length_of_prompt == 0) {
        sprintf(f->sentence, "empty prompt");
        return STOP_ERROR;
    }
    if (length_of_prompt > g->n_ctx) {
        sprintf(f->sentence, "prompt: %i tokens, context: %i tokens", length_of_prompt, g->n_ctx);
        return STOP_ERROR;
    }
    if (g->max_new_tokens < 0) {
        sprintf(f->sentence, "max_new_tokens must not be negative");
        return STOP_ERROR;
    }
    if (g->max_new_tokens == 0) {
        finished = true;
        reason = STOP_LENGTH;
    } else if (length_of_prompt == g->n_ctx) {
        finished = true;
        reason = STOP_CONTEXT;
    }
    while (!finished) {
        int new_token;
        int result = g->next(g->next_state, tokens, length_of_prompt + number_of_new_tokens, g->logits);
        if (result == -1) {
            sprintf(f->sentence, "model failed");
            finished = true;
            reason = STOP_ERROR;
            continue;
        }
        if (g->choose == NULL) {
            new_token = argmax(g->logits, g->n_vocab);
        } else {
            new_token = g->choose(g->choose_state, g->logits, g->n_vocab, &tokens[length_of_prompt], number_of_new_tokens);
        }
        if (new_token == -1) {
            sprintf(f->sentence, "no token");
            finished = true;
            reason = STOP_ERROR;
            continue;
        }
        tokens[length_of_prompt + number_of_new_tokens] = new_token;
        number_of_new_tokens++;
        *n = length_of_prompt + number_of_new_tokens;
        if (new_token == g->end_of_text) {
            finished = true;
            reason = STOP_END_OF_TEXT;
        } else {
            result = 0;
            if (g->out != NULL) {
                int number_of_bytes;
                const char *text = g->piece(g->vocabulary, new_token, &number_of_bytes);
                result = stream_push(g->out, text, number_of_bytes);
            }
            if (result == -1) {
                sprintf(f->sentence, "out of memory");
                finished = true;
                reason = STOP_ERROR;
            } else if (result == 1) {
                finished = true;
                reason = STOP_STRING;
            } else if (number_of_new_tokens == g->max_new_tokens) {
                finished = true;
                reason = STOP_LENGTH;
            } else if (*n == g->n_ctx) {
                finished = true;
                reason = STOP_CONTEXT;
            }
        }
    }
    if (g->out != NULL) {
        stream_finish(g->out);
    }
    return reason;
}
