/* Runs every file of tests/model/seeds (or of the folder given) through what the fuzzer runs. Those named valid-* must
   be models, the rest mustn't; a crash that the fuzzer finds becomes one more file there. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "broken.h"

#include <cmocka.h> /* last: it defines a macro fail */

static const char *folder = "tests/model/seeds";

static void run_seed(const char *name)
{
    unsigned char bytes[1 << 16];
    char path[1024];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    if (exercise(bytes, n) != (strncmp(name, "valid-", 6) == 0))
        fail_msg("%s is taken for the wrong thing", path);
}

static void every_seed_is_what_its_name_says(void **state)
{
    int n = 0;
    DIR *all = opendir(folder);

    (void)state;
    assert_non_null(all);
    for (struct dirent *entry; (entry = readdir(all));)
        if (entry->d_name[0] != '.') {
            run_seed(entry->d_name);
            n++;
        }
    closedir(all);
    assert_true(n >= 3); /* a model of each kind of position, at the least */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_seed_is_what_its_name_says)};

    if (argc > 1)
        folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
