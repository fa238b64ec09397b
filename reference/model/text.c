/* Strict UTF-8 (Unicode 15, section 3.9, table 3-7), and text quoted in sentences. */
#include "text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int length_by_first_byte(unsigned char first)
{
    if (first < 0x80)
        return 1;
    return first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
}

int decode_character(const char *bytes, size_t n, int *code)
{
    static const int least[] = {0, 0, 0x80, 0x800, 0x10000}; /* below it the form is overlong */
    const unsigned char *b = (const unsigned char *)bytes;
    int length = n > 0 ? length_by_first_byte(b[0]) : 0;

    if (length == 0 || (size_t)length > n)
        return 0;
    *code = length == 1 ? b[0] : b[0] & 0x7f >> length;
    for (int i = 1; i < length; i++) {
        if (b[i] >> 6 != 2)
            return 0;
        *code = *code << 6 | (b[i] & 0x3f);
    }
    bool surrogate = *code >= 0xd800 && *code <= 0xdfff;
    return *code < least[length] || *code >= N_CODES || surrogate ? 0 : length;
}

/* A terminal obeys the control characters U+0000 … U+001F and U+007F … U+009F. */
static bool is_printable(int code)
{
    return code >= 0x20 && !(code >= 0x7f && code < 0xa0);
}

quoted quote(const char *bytes, size_t n)
{
    static const char cut[] = "…";
    quoted q;
    size_t i = 0, used = 0;

    while (i < n && used + 4 + sizeof cut <= sizeof q.text) {
        int code, length = decode_character(bytes + i, n - i, &code);
        if (length > 0 && is_printable(code)) {
            memcpy(q.text + used, bytes + i, length);
            used += length;
            i += length;
        } else {
            used += sprintf(q.text + used, "\\x%02x", (unsigned char)bytes[i++]);
        }
    }
    strcpy(q.text + used, i < n ? cut : "");
    return q;
}
