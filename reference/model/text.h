/* Text that came from outside: taking it apart as UTF-8, and showing it in a sentence. Leaves out what the characters
   stand for: that's tokenizer.h. */
#ifndef TEXT_H
#define TEXT_H

#include <stddef.h>

enum { N_CODES = 0x110000 }; /* Unicode's code points are 0 … N_CODES-1 */

/* The character that the n bytes begin with: returns its length, 1 … 4, and its code point. Returns 0 if they don't
   begin with a whole character of strict UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
int decode_character(const char *bytes, size_t n, int *code);

typedef struct {
    char text[96];
} quoted;

/* Bytes made fit for a sentence: control characters and what isn't UTF-8 become \xNN, and a long text is cut and ends
   with "…". Use as quote(bytes, n).text within one call. */
quoted quote(const char *bytes, size_t n);

#endif
