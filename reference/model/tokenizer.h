/* Text to token ids and back, for the shipped models: one token a character, and an end-of-text token that stands for
   no text. Its vocabulary travels in the model file. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>

#include "failure.h"

typedef struct {
    int n_vocab;     /* characters, and the end-of-text token */
    int end_of_text; /* n_vocab - 1 */
    char (*pieces)[5]; /* [n_vocab]: each character's UTF-8 bytes, 0-terminated; "" for the end-of-text token */
} tokenizer;

/* `vocabulary`: the characters in the order of their ids, as UTF-8. Returns -1 and a sentence if it's NULL, empty, not
   UTF-8 or names a character twice. */
int tokenizer_init(tokenizer *t, const char *vocabulary, failure *f);
void tokenizer_free(tokenizer *t);

/* The ids of text's n_bytes bytes, at most `capacity` of them. Returns how many, or -1 and a sentence that shows the
   character that isn't in the vocabulary (or the byte that isn't UTF-8) and its byte offset, or says that the text
   has more characters than `capacity`. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, int *ids, int capacity, failure *f);

/* The UTF-8 bytes of one token, 0-terminated; NULL if the id isn't in 0 … n_vocab-1. */
const char *tokenizer_piece(const tokenizer *t, int id);

#endif
