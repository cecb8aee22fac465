/* Feeds damaged events to the scanner, in memory of exactly their size; made with sanitizers by test_fuzz.py. */
#define LIKES 2u
#define HOPE 32
#define REST 20
#include "rewrite.c"
#include "fuzz.h"
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

typedef struct { int64_t ts, dur; int32_t key, length; } found;

/* Rewrites a text by a scanner of its own, and writes what was found; returns how many events that are. Where
 * it is `forgetful`, a call takes one event and nothing is known of those before it, but their keys. */
static u64 rewrite_all(const u8 *text, u64 size, const place *here, u64 most_keys, bool plain, bool forgetful,
                       found *events, u64 *at) {
    scanner *s = new_scanner("", 0, false);
    u8 *data = malloc(size), *tails = malloc(size + SLACK);
    memcpy(data, text, size);
    int32_t key[5], lengths[5], head_length = 3;
    int64_t ts[5], dur[5], begins[5] = {0}, order[5], head_at = 0, most_at_once = forgetful ? 1 : 5;
    bool is_slice = plain;
    rewritten out = {.most = most_at_once, .key = key, .ts_ns = ts, .dur_ns = dur, .lengths = lengths, .tails = tails};
    u64 n = 0;
    *at = 0;
    for (int why = FULL; why == FULL;) {
        u64 before = *at;
        why = rewrite_events(s, data, size, at, &out, here, most_keys, plain);
        if (*at < before || *at > size || out.n > most_at_once || out.tails_size > (int64_t)size) abort();
        if (why == FULL && out.n != most_at_once) abort();
        if (forgetful && s->likes != NULL) memset(s->likes, 0, LIKES * sizeof(like));
        int32_t heads[5] = {0};
        for (int i = 1; i < out.n; i++) begins[i] = begins[i - 1] + lengths[i - 1];
        for (int i = 0; i < out.n; i++) events[n++] = (found){ts[i], dur[i], key[i], lengths[i]};
        texts from = {tails, begins, lengths}, one = {(const u8 *)"abc", &head_at, &head_length};
        u8 *to = malloc((u64)out.tails_size + 1);
        if (gather_texts((u64)out.n, &from, to) != (u64)out.tails_size) abort();
        free(to);
        for (u64 next = 0; next < (u64)out.n;) {
            u64 first = next, room = (u64)lengths[next] + BESIDE + 3 + below(100);
            to = malloc(room);
            if (write_events(&next, (u64)out.n, ts, dur, heads, &from, &one, &is_slice, to, room) > room) abort();
            if (next == first) abort();
            free(to);
        }
        if (order_times((u64)out.n, ts, order) == NO_ORDER) abort();
        for (int i = 1; i < out.n; i++)
            if (ts[order[i - 1]] > ts[order[i]] || (ts[order[i - 1]] == ts[order[i]] && order[i - 1] > order[i])) abort();
    }
    free(data), free(tails);
    free_scanner(s);
    return n;
}

/* Rewrites a text with and without a look at what came before: with the same result, as far as both are sure. */
static u64 rewrite_twice(const u8 *text, u64 size, bool plain) {
    static found events[2][4096];
    place here = {.ids_from = below(2) ? -1 : (int64_t)(below(8192) << 40), .args_are_key = below(4) > 0};
    u64 most_keys = below(2) ? 100 : 1 << 20, at[2], n[2];
    for (int i = 0; i < 2; i++) n[i] = rewrite_all(text, size, &here, most_keys, plain, i, events[i], &at[i]);
    u64 both = n[0] < n[1] ? n[0] : n[1];
    if (memcmp(events[0], events[1], both * sizeof(found)) != 0 || (n[0] == n[1] && at[0] != at[1])) abort();
    return both;
}

/* Scans a text; returns how many events there were. Where it is `forgetful`, as rewrite_all(). */
static u64 scan_all(scanner *s, const u8 *text, u64 size, bool plain, bool forgetful, found *events) {
    u8 *data = malloc(size), *args = malloc(size + SLACK), *ids = malloc(size + SLACK);
    memcpy(data, text, size);
    int32_t key[5], args_row[5];
    int64_t ts[5], dur[5], most = forgetful ? 1 : 5;
    columns out = {.most = most, .key = key, .ts_ns = ts, .dur_ns = dur, .args_row = args_row, .args = args, .ids = ids};
    u64 n = 0, at = 0;
    for (int why = FULL; why == FULL;) {
        u64 before = at;
        why = scan_events(s, data, size, &at, &out, plain);
        if (at < before || at > size || out.n > most || out.n_args > out.n) abort();
        if (out.args_size > (int64_t)size || out.ids_size > (int64_t)size) abort();
        if (why == FULL && out.n != most) abort();
        if (forgetful && s->likes != NULL) memset(s->likes, 0, LIKES * sizeof(like));
        for (int i = 0, j = 0; i < out.n; i++) {
            bool has_args = j < out.n_args && args_row[j] == i;
            events[n++] = (found){ts[i], dur[i], key[i], has_args};
            j += has_args;
        }
    }
    free(data), free(args), free(ids);
    return n;
}

/* Scans a text with and without a look at what came before, as rewrite_twice(). */
static u64 scan_twice(const u8 *text, u64 size, bool plain) {
    static found events[2][4096];
    u64 n[2], n_wanted = below(2) ? sizeof NAMES - 1 : 0, with_points = below(2);
    for (int i = 0; i < 2; i++) {
        scanner *s = new_scanner(NAMES, n_wanted, with_points);
        n[i] = scan_all(s, text, size, plain, i, events[i]);
        free_scanner(s);
    }
    u64 both = n[0] < n[1] ? n[0] : n[1];
    if (memcmp(events[0], events[1], both * sizeof(found)) != 0) abort();
    return both;
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
            static found unused[4096];
            events += scan_all(s, text, size, round & 1, false, unused);
            events += scan_twice(text, size, round & 1);
            events += rewrite_twice(text, size, round & 1);
        }
        free_scanner(s);
    }
    printf("%llu\n", (unsigned long long)events);
    return 0;
}
