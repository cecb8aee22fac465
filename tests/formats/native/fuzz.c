/* Feeds damaged events to the scanner, in memory of exactly their size; made with sanitizers by test_fuzz.py. */
#include "rewrite.c"
#include <stdio.h>

static const char *const SEEDS[] = {
    "{\"ph\":\"X\",\"name\":\"a\",\"cat\":\"c\",\"pid\":1,\"tid\":\"t\",\"ts\":12.345,\"dur\":7,\"args\":{\"stream\":7}},",
    "{\n  \"ph\": \"X\", \"name\": \"a name that is longer than thirty-two bytes\", \"ts\": 1795219501232034.125,\n"
    "  \"args\": {\n    \"input0\": [1, [2, {\"x\": null}], true, false], \"y\": \"\\\"\\n\", \"stream\": -1.5e3\n  }\n},\n",
    "{\"ph\":\"s\",\"id\":17,\"ts\":1,\"pid\":null},{\"ph\":\"f\",\"id\":\"x\",\"bp\":\"e\",\"ts\":-0.5} , ",
    "{\"ph\":\"C\",\"name\":\"\xc3\xa9\",\"a\":{},\"b\":[],\"c\":{\"d\":{\"e\":[[[]]]}},\"id2\":1},",
};
static const char BYTES[] = "{}[]\",:\\ \n0123456789.-+eEtfnu\xc3\xff\x01";
static u64 state;

static u64 below(u64 n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

/* Rewrites a text by a scanner of its own, and writes what was found; returns how many events that are. */
static u64 rewrite_all(const u8 *text, u64 size, bool args_are_key, bool plain) {
    scanner *s = new_scanner("", 0, false);
    u8 *data = malloc(size), *tails = malloc(size + SLACK);
    memcpy(data, text, size);
    int32_t key[5], lengths[5], head_length = 3;
    int64_t ts[5], dur[5], begins[5] = {0}, head_at = 0;
    bool is_slice = plain;
    rewritten out = {.most = 5, .key = key, .ts_ns = ts, .dur_ns = dur, .lengths = lengths, .tails = tails};
    place here = {.ids_from = below(2) ? -1 : (int64_t)(below(8192) << 40), .args_are_key = args_are_key};
    u64 at = 0, n = 0, most_keys = below(2) ? 100 : 1 << 20;
    for (int why = FULL; why == FULL;) {
        u64 before = at;
        why = rewrite_events(s, data, size, &at, &out, &here, most_keys, plain);
        if (at < before || at > size || out.n > 5 || out.tails_size > (int64_t)size) abort();
        if (why == FULL && out.n != 5) abort();
        n += (u64)out.n;
        int32_t heads[5] = {0};
        for (int i = 1; i < out.n; i++) begins[i] = begins[i - 1] + lengths[i - 1];
        texts from = {tails, begins, lengths}, one = {(const u8 *)"abc", &head_at, &head_length};
        u64 most = (u64)out.tails_size + 5 * 67;
        u8 *to = malloc(most);
        if (gather_texts((u64)out.n, &from, to) != (u64)out.tails_size) abort();
        if (write_events((u64)out.n, ts, dur, heads, &from, &one, &is_slice, to) > most) abort();
        free(to);
    }
    free(data), free(tails);
    free_scanner(s);
    return n;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
    static const char WANTED[] = "stream\0input*\0";
    u64 events = 0;
    for (int round = 0; round < rounds; round++) {
        scanner *s = new_scanner(WANTED, below(2) ? sizeof WANTED - 1 : 0, below(2));
        for (int piece = 0; piece < 8; piece++) {
            u8 text[4096];
            u64 size = 0;
            for (u64 n = below(8); n > 0; n--) {
                const char *seed = SEEDS[below(sizeof SEEDS / sizeof *SEEDS)];
                memcpy(text + size, seed, strlen(seed));
                size += strlen(seed);
            }
            for (u64 n = below(4); size && n > 0; n--) text[below(size)] = (u8)BYTES[below(sizeof BYTES - 1)];
            for (u64 n = below(9) == 0 ? below(300) : 0; n > 0 && size; n--) text[below(size)] = '[';
            size = below(3) ? size : below(size + 1);
            u8 *data = malloc(size), *args = malloc(size + SLACK), *ids = malloc(size + SLACK);
            memcpy(data, text, size);
            int32_t key[5], args_row[5];
            int64_t ts[5], dur[5];
            columns out = {.most = 5, .key = key, .ts_ns = ts, .dur_ns = dur, .args_row = args_row, .args = args, .ids = ids};
            u64 at = 0;
            for (int why = FULL; why == FULL;) {
                u64 before = at;
                why = scan_events(s, data, size, &at, &out, round & 1);
                if (at < before || at > size || out.n > 5 || out.n_args > out.n) abort();
                if (out.args_size > (int64_t)size || out.ids_size > (int64_t)size) abort();
                if (why == FULL && out.n != 5) abort();
                events += (u64)out.n;
            }
            free(data), free(args), free(ids);
            events += rewrite_all(text, size, below(2), round & 1);
        }
        free_scanner(s);
    }
    printf("%llu\n", (unsigned long long)events);
    return 0;
}
