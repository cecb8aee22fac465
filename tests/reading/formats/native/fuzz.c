/* Feeds damaged events to the scanner, in memory of exactly their size; made with sanitizers by test_fuzz.py. */
#include "scan.c"
static u64 state;

static u64 below(u64 n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}
#include <stdio.h>

static const char *const SEEDS[] = {
    "{\"ph\":\"X\",\"name\":\"a\",\"cat\":\"c\",\"pid\":1,\"tid\":\"t\",\"ts\":12.345,\"dur\":7,\"args\":{\"stream\":7}},",
    "{\n  \"ph\": \"X\", \"name\": \"a name that is longer than thirty-two bytes\", \"ts\": 1795219501232034.125,\n"
    "  \"args\": {\n    \"input0\": [1, [2, {\"x\": null}], true, false], \"y\": \"\\\"\\n\", \"stream\": -1.5e3\n  }\n},\n",
    "{\"ph\":\"s\",\"id\":17,\"ts\":1,\"pid\":null},{\"ph\":\"f\",\"id\":\"x\",\"bp\":\"e\",\"ts\":-0.5} , ",
    "{\"ph\":\"C\",\"name\":\"\xc3\xa9\",\"a\":{},\"b\":[],\"c\":{\"d\":{\"e\":[[[]]]}},\"id2\":1},",
};
static const char *const SLICES[] = {
    "{\"ph\":\"X\",\"args\":{\"name\":\"a\"},\"pid\":\"a\",\"ts\":12.345,\"dur\":7,\"tid\":\"0\"},\n",
    "{\"dur\": 17, \"ts\": 5, \"ph\": \"X\", \"name\": \"b\"}, ",
    "{\"ph\":\"X\",\"name\":\"c\",\"ts\":-1.5,\"dur\":0},",
};
static const char NAMES[] = "stream\0input*\0";
static const char BYTES[] = "{}[]\",:\\ \n0123456789.-+eEtfnu\xc3\xff\x01";

/* Scans a text; returns how many events there were. */
static u64 scan_all(scanner *s, const u8 *text, u64 size) {
    u8 *data = malloc(size), *args = malloc(size + SLACK), *ids = malloc(size + SLACK);
    memcpy(data, text, size);
    int32_t key[5], args_row[5];
    int64_t ts[5], dur[5], most = 5;
    columns out = {.most = most, .key = key, .ts_ns = ts, .dur_ns = dur, .args_row = args_row, .args = args, .ids = ids};
    u64 n = 0, at = 0;
    for (int why = FULL; why == FULL;) {
        u64 before = at;
        why = scan_events(s, data, size, &at, &out);
        if (at < before || at > size || out.n > most || out.n_args > out.n) abort();
        if (out.args_size > (int64_t)size || out.ids_size > (int64_t)size) abort();
        if (why == FULL && out.n != most) abort();
        n += (u64)out.n;
    }
    free(data), free(args), free(ids);
    return n;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
    u64 events = 0;
    for (int round = 0; round < rounds; round++) {
        scanner *s = new_scanner(NAMES, below(2) ? sizeof NAMES - 1 : 0, below(2));
        for (int piece = 0; piece < 8; piece++) {
            u8 text[8192];
            u64 size = 0, in_order = below(2);
            for (u64 n = below(16), i = 0; i < n; i++) { /* in order: as those of a kind recur in a file */
                const char *seed = in_order ? SLICES[i % 3] : SEEDS[below(sizeof SEEDS / sizeof *SEEDS)];
                memcpy(text + size, seed, strlen(seed));
                size += strlen(seed);
            }
            for (u64 n = below(4); size && n > 0; n--) text[below(size)] = (u8)BYTES[below(sizeof BYTES - 1)];
            for (u64 n = below(9) == 0 ? below(300) : 0; n > 0 && size; n--) text[below(size)] = '[';
            size = below(3) ? size : below(size + 1);
            events += scan_all(s, text, size);
        }
        free_scanner(s);
    }
    printf("%llu\n", (unsigned long long)events);
    return 0;
}
