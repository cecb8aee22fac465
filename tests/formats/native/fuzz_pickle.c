/* Feeds damaged rows of pickles to the finder, in memory of exactly their size; made with sanitizers by test_fuzz.py. */
#include "pickle.c"
#include "fuzz.h"
#include <stdio.h>
#include <stdlib.h>

static const u8 ROW[] = "}(h\x01K\x07h\x02h\x05h\x06\x86j\x03\0\0\0](](K\x01M\x00\x10" "e]h\x05" "ah\x05" "eh\x04\x8a\x08\1\2\3\4\5\6\7\x08u";
static const u8 KEYS[] = "h\x01h\x02j\x03\0\0\0h\x04", KINDS[] = {NUMBER, PAIR, LIST, NUMBER};
static const u8 BYTES[] = "}(]eauhjKMJNG\x88\x89\x8a\x86\x07\x08\xff";

int main(int count, char **args) {
    static u8 text[1 << 12];
    u64 rounds = count > 1 ? strtoull(args[1], NULL, 10) : 1, n_rows = 0;
    state = 88172645463325252ull + (count > 2 ? strtoull(args[2], NULL, 10) : 0);
    for (u64 round = 0; round < rounds; round++) {
        u64 size = 0;
        for (u64 rows = 1 + below(6); rows > 0; rows--, size += sizeof ROW - 1) memcpy(text + size, ROW, sizeof ROW - 1);
        for (u64 damages = below(4); damages > 0 && size > 0; damages--) {
            u64 at = below(size), kind = below(3);
            if (kind == 0) text[at] = BYTES[below(sizeof BYTES - 1)];
            else if (kind == 1) size = at;
            else memmove(text + at, text + at + 1, --size - at);
        }
        int64_t most = 1 + (int64_t)below(8);
        u8 *data = malloc(size);
        int32_t *end = malloc((u64)most * 9 * sizeof *end);
        memcpy(data, text, size);
        int64_t n = find_rows(data, size, below(2) && size ? below(size) : 0, KEYS, KINDS, 4, most, end, end + most,
                              end + 5 * most);
        if (n < 0 || n > most) abort();
        n_rows += (u64)n;
        free(data);
        free(end);
    }
    printf("%llu\n", (unsigned long long)n_rows);
    return 0;
}
