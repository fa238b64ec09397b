/* Text to token ids and back, one token a character. Leaves out where the vocabulary comes from: that's load.c. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

/* ---- the vocabulary ---- */

/* Copies each character to its piece. seen [N_CODES] notes the characters met so far. Returns how many there are. */
static int read_pieces(char (*pieces)[5], const char *vocabulary, unsigned char *seen, failure *f)
{
    size_t n_bytes = strlen(vocabulary), at = 0;
    int n = 0;

    while (at < n_bytes) {
        int code, length = decode_character(vocabulary + at, n_bytes - at, &code);
        if (length == 0)
            return fail(f, "byte %zu of the vocabulary, %s, isn't UTF-8", at, quote(vocabulary + at, 1).text);
        if (seen[code]++)
            return fail(f, "the vocabulary names the character %s again at byte %zu",
                        quote(vocabulary + at, length).text, at);
        memcpy(pieces[n++], vocabulary + at, length);
        at += length;
    }
    return n;
}

int tokenizer_init(tokenizer *t, const char *vocabulary, failure *f)
{
    *t = (tokenizer){0};
    if (!vocabulary)
        return fail(f, "the model has no vocabulary");
    char(*pieces)[5] = calloc(strlen(vocabulary) + 1, sizeof *pieces);
    unsigned char *seen = calloc(N_CODES, 1);
    int n = -1;

    if (!pieces || !seen)
        fail(f, "there isn't enough memory for the vocabulary");
    else if (!*vocabulary)
        fail(f, "the vocabulary is empty");
    else
        n = read_pieces(pieces, vocabulary, seen, f);
    free(seen);
    if (n < 0) {
        free(pieces);
        return -1;
    }
    *t = (tokenizer){.n_vocab = n + 1, .end_of_text = n, .pieces = pieces};
    return 0;
}

void tokenizer_free(tokenizer *t)
{
    free(t->pieces);
    *t = (tokenizer){0};
}

/* ---- text to ids and back ---- */

/* The id of a character of `length` bytes, or -1. The end-of-text token's piece is left out: it would be U+0000. */
static int find_piece(const tokenizer *t, const char *character, int length)
{
    for (int id = 0; id < t->end_of_text; id++)
        if (memcmp(t->pieces[id], character, length) == 0)
            return id;
    return -1;
}

int tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, int *ids, int capacity, failure *f)
{
    int n = 0;

    for (size_t at = 0; at < n_bytes; n++) {
        int code, length = decode_character(text + at, n_bytes - at, &code);
        if (length == 0)
            return fail(f, "byte %zu of the text, %s, isn't UTF-8", at, quote(text + at, 1).text);
        int id = find_piece(t, text + at, length);
        if (id < 0)
            return fail(f, "the character %s at byte %zu isn't in the vocabulary", quote(text + at, length).text, at);
        if (n == capacity)
            return fail(f, "the text has more than %d characters", capacity);
        ids[n] = id;
        at += length;
    }
    return n;
}

const char *tokenizer_piece(const tokenizer *t, int id)
{
    return id >= 0 && id < t->n_vocab ? t->pieces[id] : NULL;
}
