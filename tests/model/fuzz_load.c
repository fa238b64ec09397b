/* Feeds arbitrary bytes to everything that reads a model file. Build with clang -fsanitize=fuzzer,address,undefined and
   run on tests/model/seeds with -dict=tests/model/fuzz_load.dict -malloc_limit_mb=64 -rss_limit_mb=1024.
   test_seeds.c runs the same function on the seeds alone. */
#include <stdint.h>
#include <string.h>

#include "broken.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    exercise(bytes, n);
    return 0;
}

/* Every other time the header's length is put right after the change: otherwise few inputs would get past it. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned int seed)
{
    n = LLVMFuzzerMutate(bytes, n, most);
    if (seed % 2 == 0 || n < 8)
        return n;
    uint64_t n_header = n - 8;
    while (n_header > 0 && bytes[7 + n_header] != '}')
        n_header--;
    memcpy(bytes, &n_header, 8);
    return n;
}
