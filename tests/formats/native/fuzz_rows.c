/* Feeds damaged rows to the reader, in memory of exactly their size; made with sanitizers by test_fuzz.py. */
#include "rows.c"
#include "fuzz.h"
#include <stdio.h>

static const char *const SEEDS[] = {
    "{\"step\": 1, \"step_ms\": 12.5, \"host\": \"a\", \"note\": \"x\\n\", \"time\": null}\n",
    "{\"step\":-0.5e-3,\"list\":[1, [2, null], \"b\"],\"step_ms\":0.1000000000000000055511151231257827}\r\n",
    "  {\"host\" : \"node-1\" , \"step\" : NaN , \"time\":\"12:00\",\"time\":\"\xc3\"}\n",
    "1,12.345,node-1,12:00,text\n",
    "-0,1700000000.1234567,a,b,\xc3\xa9\r\n",
    " nan ,+.5e5,a,b,\n",
    ",,,,\n",
};
static const char NAMES[] = "step\0step_ms\0host\0time";
static const char BYTES[] = "{}[]\",:\\ \n\r0123456789.-+eEnNaAultf\xc3\xff\x01";
static const int32_t COLUMN[] = {0, 1, 2, 3, -1};

/* Writes some rows, damaged now and then; returns their size. */
static u64 write_rows(u8 *text, bool is_csv) {
    u64 size = 0;
    for (u64 rows = 1 + below(5); rows > 0; rows--) {
        const char *seed = SEEDS[is_csv ? 3 + below(4) : below(3)];
        memcpy(text + size, seed, strlen(seed));
        size += strlen(seed);
    }
    size -= below(4) > 0; /* most often without the last newline */
    for (u64 damages = below(4); damages > 0 && size > 0; damages--) {
        u64 at = below(size), kind = below(3);
        if (kind == 0) text[at] = (u8)BYTES[below(sizeof BYTES)];
        else if (kind == 1) size = at;
        else memmove(text + at, text + at + 1, --size - at);
    }
    return size;
}

int main(int count, char **args) {
    static u8 text[1 << 12];
    u64 rounds = count > 1 ? strtoull(args[1], NULL, 10) : 1, n_rows = 0;
    state = 88172645463325252ull + (count > 2 ? strtoull(args[2], NULL, 10) : 0);
    for (u64 round = 0; round < rounds; round++) {
        bool is_csv = below(2);
        layout l = {.width = 4, .n_cells = is_csv ? 5 : 0, .column = COLUMN, .names = NAMES, .delimiter = ','};
        l.n_texts = below(2) ? 2 : 0; /* else they are read as numbers */
        u64 size = write_rows(text, is_csv), n_texts = 0;
        int64_t most = 1 + (int64_t)below(8);
        size_t room = l.n_texts ? size + 2 * (u64)most * (u64)l.n_texts : 0;
        u8 *data = malloc(size), *texts = malloc(room);
        double *table = malloc((u64)(most * l.width) * sizeof *table);
        memcpy(data, text, size);
        int64_t n = read_rows(&l, data, size, most, table, texts, &n_texts);
        if (n == 0 || n < -1 || n > most || (n > 0 && n_texts > room)) abort();
        n_rows += n > 0 ? (u64)n : 0;
        free(data), free(texts), free(table);
    }
    printf("%llu\n", (unsigned long long)n_rows);
}
