/* Takes the events of a chrome trace apart for a place in another file, and puts events together again.
 *
 * rewrite_events() goes over a piece as scan_events() does, with its scanner, and stops likewise at the first
 * event that Python is to take: metadata, a member that few events have, a value that would not be copied as it
 * is. Of each other event it interns what recurs, reads the times, and copies the rest, its tail: an id, to
 * which `ids_from` is added, and the arguments, as they are written. Where arguments recur, too, a slice whose
 * bytes are those of the one that came next the last time, but for its times, is taken as that one. order_times(),
 * gather_texts() and write_events() are for merging: they find an order, copy tails in it, and write whole events.
 * Nothing here keeps a state of its own, so threads may share all but a scanner. */
#include "scan.c"

enum { PART_BP = 5, PART_S, PART_ARGS, MOST_PARTS }; /* of a key, after PH … TID; as in formats/whole.py */
enum { BESIDE = 64, MOST_MOVES = 16 }; /* bytes of an event beside its head and its tail; moves of a time */
enum { DISTINCT, EQUAL, NO_ORDER };    /* what order_times() found; as in formats/native/rewriter.py */
enum { ID_BITS = 40, ID_DIGITS = 13 };               /* of an id that is a number; as in formats/whole.py */
static const int64_t LONGEST_NS = 1000000000000000000; /* a duration; as in combine/event_text.py */

typedef struct { /* what one call writes; there is room in `tails` for SLACK bytes more than the data */
    int64_t most, n; /* events */
    int32_t *key;    /* (n) numbers of keys, from 0 */
    int64_t *ts_ns, *dur_ns; /* (n) a duration of -1 is none */
    int32_t *lengths;        /* (n) of their tails */
    int64_t tails_size, new_size;
    u8 *tails;          /* one after another */
    const u8 *new_keys; /* rows of JSON of the keys that were new, each ended by a comma */
} rewritten;
typedef struct { /* how they are rewritten */
    int64_t ids_from; /* -1: events with ids are for Python */
    bool args_are_key; /* they recur: intern them with the rest */
} place;

INLINE u8 *put_number(u8 *to, u64 number) {
    static const char PAIRS[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    u8 digits[20], *first = digits + sizeof digits;
    for (; number >= 10; number /= 100) memcpy(first -= 2, PAIRS + 2 * (number % 100), 2);
    if (number > 0 || first == digits + sizeof digits) *--first = (u8)('0' + number);
    return put_text(to, first, (size_t)(digits + sizeof digits - first));
}
/* Nanoseconds as decimal microseconds. */
INLINE u8 *put_time(u8 *to, int64_t ns) {
    u64 size = ns < 0 ? 0 - (u64)ns : (u64)ns, rest = size % 1000;
    if (ns < 0) *to++ = '-';
    to = put_number(to, size / 1000);
    if (rest == 0) return to;
    *to++ = '.';
    for (u64 unit = 100; rest > 0; rest %= unit, unit /= 10) *to++ = (u8)('0' + rest / unit);
    return to;
}
#define PUT(to, literal) put_text(to, literal, sizeof literal - 1)

INLINE void append(rewritten *out, u32 number, const int64_t *times, int64_t size) {
    out->key[out->n] = (int32_t)number;
    out->ts_ns[out->n] = times[0];
    out->dur_ns[out->n] = times[1];
    out->lengths[out->n++] = (int32_t)size;
    out->tails_size += size;
}
INLINE cursor rewrite_event(scanner *s, rewritten *out, cursor p, cursor end, const tools *t, const place *here) {
    span key[MOST_PARTS] = {{0}}, id = {0}, args = {0}, time_at[2] = {{0}};
    cursor first = p;
    int64_t times[2] = {NO_TIME, NO_TIME};
    u8 *tails = out->tails + out->tails_size, *tail = tails, context = IN_EVENT + 1;
    u32 seen = 0, trail = 0;
    for (p++;; context = IN_EVENT) {
        bool odd = false;
        lead *l;
        TRY(p, next_member(s, p, end, t, context, &trail, &l));
        if (l->what == END) break;
        u8 what = l->what;
        cursor begin = p, point = NULL;
        REQUIRE(what <= S && what != ID2 && !(seen >> what & 1));
        seen |= 1u << what;
        if (what == ARGS) {
            TRY(p, skip_value(s, p, end, t, &trail, &odd));
            args = (span){begin, (u32)(p - begin)};
        } else if (*p == 'n') /* as if it were missing */
            TRY(p, skip_word(p, end));
        else if (what == TS || what == DUR) {
            TRY(p, read_time(p, end, &times[what - TS]));
            time_at[what - TS] = (span){begin, (u32)(p - begin)};
        } else {
            TRY(p, *p == '"' ? skip_text(p, end, t, &odd) : skip_number(p, end, &point, &odd));
            REQUIRE(!odd && (point == NULL || (point == p && what != PH)));
            span *value = what == ID ? &id : &key[what == BP ? PART_BP : what == S ? PART_S : what];
            *value = (span){begin, (u32)(p - begin)};
            if (what == PH || what == CAT) trail += 1597u * p[-2]; /* events of a kind are built alike */
        }
    }
    u8 phase = key[PH].size == 3 ? key[PH].at[1] : 0;
    bool is_slice = phase == 'X';
    REQUIRE(key[PH].size > 0 && phase != 'M' && times[0] != NO_TIME);
    REQUIRE(is_slice ? times[1] >= 0 && times[1] <= LONGEST_NS : times[1] == NO_TIME);
    if (id.size > 0) {
        u64 number = 0;
        REQUIRE(here->ids_from >= 0 && id.size <= ID_DIGITS && !(phase && strchr("NODC", phase)));
        for (u32 i = 0; i < id.size; i++) {
            REQUIRE((u8)(id.at[i] - '0') < 10);
            number = number * 10 + (u64)(id.at[i] - '0');
        }
        REQUIRE(number >> ID_BITS == 0);
        tail = put_number(PUT(tail, ",\"id\":"), number + (u64)here->ids_from);
    }
    if (args.size > 0 && here->args_are_key) {
        REQUIRE(*args.at != 'n');
        key[PART_ARGS] = args;
    } else if (args.size > 0)
        tail = put_text(PUT(tail, ",\"args\":"), args.at, args.size);
    int64_t number = intern(s, key, here->args_are_key ? MOST_PARTS : PART_ARGS, end);
    REQUIRE(number >= 0);
    if (!is_slice) times[1] = -1;
    remember(s, (u32)number + 1, first, p, is_slice && tail == tails ? time_at : NULL);
    append(out, (u32)number, times, tail - tails);
    return p;
}

INLINE int rewrite(scanner *s, cursor *at, cursor end, rewritten *out, const tools *t, const place *here) {
    for (cursor p = *at; !FAILED(p = skip_space(p, end)); *at = p) {
        if (*p == ',')
            p++;
        else if (*p != '{')
            return *at = p, *p == ']' ? CLOSED : ODD;
        else if (out->n >= out->most)
            return FULL;
        else {
            cursor begin = p;
            u32 number;
            int64_t times[2];
            if (s->likes != NULL && !FAILED(p = take_like(s, begin, end, &number, times)) && times[1] >= 0 &&
                times[1] <= LONGEST_NS)
                append(out, number, times, 0);
            else if (FAILED(p = rewrite_event(s, out, begin, end, t, here)))
                return (int)(uintptr_t)p;
        }
    }
    return MORE;
}
static int rewrite_plain(scanner *s, cursor *at, cursor end, rewritten *out, const place *here) {
    return rewrite(s, at, end, out, &PLAIN, here);
}
#if defined(__x86_64__)
AVX2 static int rewrite_wide(scanner *s, cursor *at, cursor end, rewritten *out, const place *here) {
    return rewrite(s, at, end, out, &WIDE, here);
}
#else
#define rewrite_wide rewrite_plain
#endif

/* As scan_events(). Once its keys have `most_keys` bytes, the scanner takes no new ones. */
int rewrite_events(scanner *s, const u8 *data, u64 size, u64 *at, rewritten *out, const place *here,
                   u64 most_keys, bool plain) {
    if (*at > size || size > INT32_MAX) return ODD;
    bool wide = !plain && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
    u64 known = s->keys_used;
    cursor p = data + *at;
    s->most_used = most_keys;
    if (here->args_are_key) look_back(s);
    out->n = out->tails_size = 0;
    int why = (wide ? rewrite_wide : rewrite_plain)(s, &p, data + size, out, here);
    *at = (u64)(p - data);
    out->new_size = (int64_t)(s->keys_used - known);
    out->new_keys = out->new_size ? s->keys + known : NULL;
    return why;
}

typedef struct { /* texts in a buffer */
    const u8 *text;
    const int64_t *at;
    const int32_t *lengths;
} texts;

/* Copies `n` texts one after another, and returns where that ends. */
u64 gather_texts(u64 n, const texts *from, u8 *to) {
    u8 *first = to;
    for (u64 i = 0; i < n; i++) to = put_text(to, from->text + from->at[i], (size_t)from->lengths[i]);
    return (u64)(to - first);
}

/* Writes events from `*at` on, as many of `n` as there is room for, each after the end of the one before; as
 * text_of() in combine/event_text.py. Returns how many bytes that are. */
u64 write_events(u64 *at, u64 n, const int64_t *ts, const int64_t *dur, const int32_t *head, const texts *tails,
                 const texts *heads, const bool *is_slice, u8 *to, u64 room) {
    u8 *first = to;
    for (u64 i; (i = *at) < n; ++*at) {
        int32_t h = head[i];
        u64 head_size = (u64)heads->lengths[h], tail_size = (u64)tails->lengths[i];
        if (BESIDE + head_size + tail_size > room - (u64)(to - first)) break;
        to = put_time(PUT(to, "},\n{\"ts\":"), ts[i]);
        if (is_slice[h]) to = put_time(PUT(to, ",\"dur\":"), dur[i]);
        to = put_text(to, heads->text + heads->at[h], head_size);
        to = put_text(to, tails->text + tails->at[i], tail_size);
    }
    return (u64)(to - first);
}

/* Finds the order of times, those that are equal as they stand: puts each in one of as many stretches as there
 * are times, and moves it to its place there. Returns DISTINCT or EQUAL, or NO_ORDER where that would take long,
 * as nearly all lie together. */
int order_times(u64 n, const int64_t *ts, int64_t *order) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (u64 i = 0; i < n; i++) low = ts[i] < low ? ts[i] : low, high = ts[i] > high ? ts[i] : high;
    u64 width = n > 0 ? (u64)high - (u64)low : 0, shift = 0, moves = 0, equal = 0;
    while (width >> shift > n) shift++;
    u32 *starts = n < UINT32_MAX ? calloc((width >> shift) + 2, sizeof(u32)) : NULL;
    if (starts == NULL) return NO_ORDER;
    for (u64 i = 0; i < n; i++) starts[(((u64)ts[i] - (u64)low) >> shift) + 1]++;
    for (u64 i = 1; i <= width >> shift; i++) starts[i] += starts[i - 1];
    for (u64 i = 0; i < n; i++) order[starts[((u64)ts[i] - (u64)low) >> shift]++] = (int64_t)i;
    free(starts);
    for (u64 i = 1, at; i < n && moves <= MOST_MOVES * n; i++) {
        int64_t one = order[i], time = ts[one];
        for (at = i; at > 0 && ts[order[at - 1]] > time; at--, moves++) order[at] = order[at - 1];
        order[at] = one;
        equal += at > 0 && ts[order[at - 1]] == time;
    }
    return moves > MOST_MOVES * n ? NO_ORDER : equal > 0 ? EQUAL : DISTINCT;
}
