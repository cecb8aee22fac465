/* Scans the events of a chrome trace into columns.
 *
 * scan_events() takes whole events off a piece of a file and stops at the first of which it is not sure that
 * the decoder in Python would read it the same way: an escape or a foreign letter in a text that is wanted, an
 * unusual number, anything that is no JSON. Python takes that one and calls again behind it; so nothing is
 * repaired or reported here. An event's (ph, name, cat, pid, tid) is interned: written as a row of JSON at the
 * end of `keys` and looked up by its hash. A row that is new stays, for Python to decode; else the next one
 * overwrites it. No byte outside [data, data + size) is read, nesting is bounded, no look-up is long: an event
 * that would break this is one to stop at. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define STOP(why) return (cursor)(uintptr_t)(why)
#define FAILED(p) __builtin_expect((uintptr_t)(p) <= ODD, 0)
#define REQUIRE(condition) do { if (__builtin_expect(!(condition), 0)) STOP(ODD); } while (0)
#define TRY(p, call) do { p = (call); if (FAILED(p)) return p; } while (0)

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef const u8 *cursor; /* a place in the data, or MORE where the data ended too early, or ODD */

enum { MORE, ODD, FULL, CLOSED }; /* why a scan stopped; as in formats/reader.py */
enum { PH, NAME, CAT, PID, TID, TS, DUR, ARGS, ID, ID2, BP, S, OTHER, WANTED, END };
enum { IN_EVENT = 2, IN_ARGS = 4, DEEPER = 6 }; /* of what object a member is; + 1 for its first */
enum { MOST_DEPTH = 60, MOST_PROBES = 128, MOST_DIGITS = 18, MOST_KEY = 1 << 16, SLACK = 64, LEADS = 4096 };
static const int64_t NO_TIME = INT64_MIN;
static const u64 FARTHEST_NS = 36525ull * 86400 * 1000000000; /* as in formats/values.py */

typedef struct { cursor at; u32 size; } span; /* of size 0: the member is missing, or null */
typedef struct { /* what stood before a member's value in an earlier event (space, comma, name, colon), or an */
    u8 text[32]; /* object's end; most often the same bytes stand there again and need no second look */
    u32 size, mask, name_at, name_size; /* `mask`: as many low bits; of the name with its quotes, in the text */
    u8 context, what; /* IN_…, or 0: of no use for another event; PH … OTHER, or WANTED, or END */
} lead;
typedef struct { u64 hash, at; u32 size, number; } slot; /* a row of `keys`; `number` from 1, 0: empty */
typedef struct {
    u8 *keys; /* rows of JSON, each ended by a comma */
    slot *slots;
    u64 keys_size, keys_used, most_used, n_keys, n_slots, n_wanted;
    lead leads[LEADS]; /* by the place in the event, and its kind */
    bool with_points;
    char wanted[]; /* names of members of args, each ended by 0, n_wanted bytes; x* is what begins with x */
} scanner;
typedef struct {     /* what one call writes; the texts have room for SLACK bytes more than the data */
    int64_t most, n; /* events */
    int32_t *key;    /* (n) numbers of keys, from 0 */
    int64_t *ts_ns, *dur_ns, n_args, args_size, ids_size, new_size;
    int32_t *args_row;  /* (n_args) the events that have wanted args */
    u8 *args;           /* their wanted args, as JSON objects, each ended by a comma */
    u8 *ids;            /* the ids of events that are no slices, as JSON values, each ended by a comma */
    const u8 *new_keys; /* rows of JSON of the keys that were new, each ended by a comma */
} columns;
/* To what is not plain in a text: quotes, escapes, no ASCII. */
INLINE cursor special(cursor p, cursor end) {
#if defined(__SSE2__)
    for (; end - p >= 16; p += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)p);
        __m128i quote = _mm_cmpeq_epi8(x, _mm_set1_epi8('"')), slash = _mm_cmpeq_epi8(x, _mm_set1_epi8('\\'));
        __m128i no_text = _mm_cmplt_epi8(x, _mm_set1_epi8(0x20)); /* signed: from 0x80 on, too */
        int found = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), no_text));
        if (found) return p + __builtin_ctz((u32)found);
    }
#endif
    while (p < end && *p != '"' && *p != '\\' && *p >= 0x20 && *p < 0x80) p++;
    return p;
}
INLINE bool follows(const lead *l, cursor p) { /* whether the lead's text is at `p`; 32 bytes are there */
#if defined(__SSE2__)
    const __m128i *x = (const __m128i *)p, *y = (const __m128i *)l->text;
    u32 low = (u32)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(x), _mm_loadu_si128(y)));
    u32 high = (u32)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(x + 1), _mm_loadu_si128(y + 1)));
    return (~(low | high << 16) & l->mask) == 0;
#else
    return memcmp(p, l->text, l->size) == 0;
#endif
}

/* What follows begins at a place, which is not the end, and returns another, which may be; see `cursor`. */
INLINE cursor skip_space(cursor p, cursor end) { /* to what is none: never to the end */
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    if (p >= end) STOP(MORE);
    return p;
}
INLINE cursor skip_text(cursor p, cursor end, bool *odd) { /* `odd`: not all plain ASCII */
    for (p = special(p + 1, end); p < end; p = special(p, end)) {
        if (*p == '"') return p + 1;
        *odd = true;
        if (*p++ >= 0x80) continue;
        REQUIRE(p[-1] == '\\' && p < end && *p && strchr("\"\\/bfnrt", *p++)); /* \u is for Python */
    }
    STOP(MORE);
}
INLINE cursor skip_digits(cursor p, cursor end) {
    cursor first = p;
    while (p < end && (u8)(*p - '0') < 10) p++;
    if (p >= end) STOP(MORE);
    REQUIRE(p > first && p - first < 640); /* as in formats/whole.py */
    return p;
}
/* `*point` is the decimal point, or the end; `*odd` becomes true for an exponent, or many digits. */
INLINE cursor skip_number(cursor p, cursor end, cursor *point, bool *odd) {
    p += *p == '-';
    cursor first = p;
    TRY(p, skip_digits(p, end));
    REQUIRE(*first != '0' || p == first + 1);
    *point = p;
    if (*p == '.') TRY(p, skip_digits(p + 1, end));
    bool is_u64 = p == *point && first[-1] != '-' && (p - first < 20 || (p - first == 20 && memcmp(first, "18", 2) < 0));
    *odd |= (p - first > (p > *point ? MOST_DIGITS + 2 : MOST_DIGITS) && !is_u64) || (*p | 32) == 'e';
    if ((*p | 32) != 'e') return p;
    if (++p < end) p += *p == '+' || *p == '-';
    return skip_digits(p, end);
}
INLINE cursor skip_word(cursor p, cursor end) {
    int size = *p == 'f' ? 5 : 4;
    if (end - p < size) STOP(MORE);
    REQUIRE(memcmp(p, *p == 't' ? "true" : *p == 'f' ? "false" : "null", (size_t)size) == 0);
    return p + size;
}

static u8 meaning_of(const scanner *s, const u8 *name, size_t size, u8 context) {
    static const char *const NAMES[] = {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args", "id", "id2", "bp", "s"};
    for (u8 i = 0; context == IN_EVENT && i < OTHER; i++)
        if (size == strlen(NAMES[i]) && memcmp(name, NAMES[i], size) == 0) return i;
    for (u64 i = 0; context == IN_ARGS && i < s->n_wanted; i += strlen(s->wanted + i) + 1) {
        size_t same = strlen(s->wanted + i), open = same && s->wanted[i + same - 1] == '*';
        same -= open;
        if ((open ? size >= same : size == same) && memcmp(name, s->wanted + i, same) == 0) return WANTED;
    }
    return OTHER;
}
/* As next_member(), where something else stands than what is known of that place; now that is known. */
static cursor learn(const scanner *s, lead *l, cursor p, cursor end, u8 context) {
    cursor begin = p, name;
    bool odd = false;
    *l = (lead){.what = END};
    TRY(p, skip_space(p, end));
    if (*p++ != '}') {
        REQUIRE(context & 1 || p[-1] == ',');
        TRY(p, skip_space(p - (context & 1), end));
        name = p;
        REQUIRE(*p == '"');
        TRY(p, skip_text(p, end, &odd));
        REQUIRE(!odd || context >= DEEPER);
        *l = (lead){.name_at = (u32)(name - begin), .name_size = (u32)(p - name)};
        l->what = meaning_of(s, name + 1, l->name_size - 2, context & ~1);
        TRY(p, skip_space(p, end));
        REQUIRE(*p == ':');
        TRY(p, skip_space(p + 1, end));
    }
    l->size = (u32)(p - begin);
    l->mask = (u32)((1ull << (l->size & 63)) - 1);
    l->context = l->size > 32 ? 0 : context;
    memcpy(l->text, begin, l->size > 32 ? 0 : l->size);
    return p;
}

/* To the value of an object's next member, or behind the object: `*l` says which. */
INLINE cursor next_member(scanner *s, cursor p, cursor end, u8 context, u32 *trail, lead **l) {
    *l = &s->leads[(*trail)++ % LEADS];
    if ((*l)->context == context && end - p > 32 && follows(*l, p)) return p + (*l)->size;
    return learn(s, *l, p, end, context);
}
/* All grammar of a value is checked; `*odd` becomes true at an odd text or number. */
INLINE cursor skip_value(scanner *s, cursor p, cursor end, u32 *trail, bool *odd) {
    u64 in_object = 0; /* a bit for each level, the innermost lowest */
    cursor point;
    lead *l;
    for (int depth = 0;;) {
        bool is_first = *p == '{' || *p == '[';
        if (is_first) {
            REQUIRE(++depth <= MOST_DEPTH);
            in_object = in_object << 1 | (*p++ == '{');
        } else if (*p == '"')
            TRY(p, skip_text(p, end, odd));
        else
            TRY(p, *p < 'a' ? skip_number(p, end, &point, odd) : skip_word(p, end));
        for (; depth > 0; depth--, in_object >>= 1, is_first = false) { /* as long as an end follows */
            if (in_object & 1) {
                TRY(p, next_member(s, p, end, DEEPER + is_first, trail, &l));
                if (l->what == END) continue;
            } else {
                TRY(p, skip_space(p, end));
                if (*p++ == ']') continue;
                REQUIRE(is_first || p[-1] == ',');
                TRY(p, skip_space(p - is_first, end));
            }
            break;
        }
        if (depth == 0) return p;
    }
}

INLINE cursor read_time(cursor p, cursor end, int64_t *ns) { /* microseconds, of at most three decimals */
    static const u32 UNIT[] = {1000, 100, 10, 1};
    bool is_negative = *p == '-', odd = false;
    cursor point, last;
    TRY(last, skip_number(p, end, &point, &odd));
    u64 digits = 0, decimals = last > point ? (u64)(last - point - 1) : 0; /* nineteen fit, as *odd says */
    REQUIRE(!odd && decimals <= 3 && point - p < 20);
    for (p += is_negative; p < point; p++) digits = digits * 10 + (u64)(*p - '0');
    for (p++; p < last; p++) digits = digits * 10 + (u64)(*p - '0');
    REQUIRE(digits <= FARTHEST_NS / UNIT[decimals]);
    *ns = (is_negative ? -(int64_t)digits : (int64_t)digits) * UNIT[decimals];
    return last;
}
/* Writes a value, `null` for one that is missing, and the byte that follows it; returns where that ends. */
INLINE u8 *put(u8 *to, span what, cursor end, char after) {
    if (what.size == 0)
        memcpy(to, "null", what.size = 4);
    else if (what.size <= 32 && end - what.at >= 32)
        memcpy(to, what.at, 32); /* two instructions; SLACK has room for it */
    else
        memcpy(to, what.at, what.size);
    to[what.size] = (u8)after;
    return to + what.size + 1;
}

/* Makes room for `size` bytes of keys, and for one more key. */
static bool make_room(scanner *s, u64 size) {
    u64 n_slots = s->n_slots ? 2 * s->n_slots : 1024;
    u8 *keys = size > s->keys_size ? realloc(s->keys, 2 * size) : s->keys;
    if (keys == NULL) return false;
    s->keys_size = size > s->keys_size ? 2 * size : s->keys_size;
    s->keys = keys;
    if (2 * s->n_keys < s->n_slots) return true;
    slot *slots = calloc(n_slots, sizeof(slot));
    if (slots == NULL) return false;
    for (u64 i = 0, at; i < s->n_slots; i++) {
        for (at = s->slots[i].hash; s->slots[i].number && slots[at & (n_slots - 1)].number;) at++;
        if (s->slots[i].number) slots[at & (n_slots - 1)] = s->slots[i];
    }
    free(s->slots);
    s->slots = slots;
    s->n_slots = n_slots;
    return true;
}
/* Returns the number of a key of `n` values, from 0; -1 for one that cannot be interned. */
INLINE int64_t intern(scanner *s, const span *key, int n, cursor end) {
    u64 room = SLACK, word;
    for (int i = 0; i < n; i++) room += key[i].size + 8;
    if (room > MOST_KEY || s->n_keys == INT32_MAX) return -1;
    room += s->keys_used;
    if ((room > s->keys_size || 2 * s->n_keys >= s->n_slots) && !make_room(s, room)) return -1;
    u8 *row = s->keys + s->keys_used, *tail = row;
    *tail++ = '[';
    for (int i = 0; i < n; i++) tail = put(tail, key[i], end, i < n - 1 ? ',' : ']');
    *tail++ = ',';
    u32 size = (u32)(tail - row);
    u64 hash = size;
    memset(tail, 0, 8);
    for (u32 i = 0; i < size; i += 8) {
        memcpy(&word, row + i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (u64 probe = 0; probe < MOST_PROBES; probe++) {
        slot *one = &s->slots[(hash + probe) & (s->n_slots - 1)];
        if (one->number == 0) {
            if (s->keys_used >= s->most_used) return -1;
            *one = (slot){hash, s->keys_used, size, (u32)++s->n_keys};
            s->keys_used += size;
        } else if (one->hash != hash || one->size != size || memcmp(s->keys + one->at, row, size) != 0)
            continue;
        return one->number - 1;
    }
    return -1;
}
/* Writes the wanted members of an object at `*to`, which it moves if there are any. */
INLINE cursor filter_args(scanner *s, cursor p, cursor end, u32 *trail, u8 **to) {
    u8 *tail = *to, context = IN_ARGS + 1;
    *tail++ = '{';
    REQUIRE(*p++ == '{');
    for (;; context = IN_ARGS) {
        bool odd = false;
        cursor begin = p;
        lead *l;
        TRY(p, next_member(s, p, end, context, trail, &l));
        if (l->what == END) break;
        span name = {begin + l->name_at, l->what == WANTED ? l->name_size : 0}, value = {p, 0};
        TRY(p, skip_value(s, p, end, trail, &odd));
        if (name.size == 0) continue;
        REQUIRE(!odd);
        value.size = (u32)(p - value.at);
        tail = put(put(tail, name, end, ':'), value, end, ',');
    }
    if (tail == *to + 1) return p;
    memcpy(tail - 1, "},", 2);
    *to = tail + 1;
    return p;
}

INLINE cursor scan_event(scanner *s, columns *out, cursor p, cursor end) {
    span key[ID + 1] = {{0}}; /* the first five are interned */
    int64_t times[2] = {NO_TIME, NO_TIME};
    u8 *args = out->args + out->args_size, *args_end = args, context = IN_EVENT + 1;
    u32 seen = 0, trail = 0;
    for (p++;; context = IN_EVENT) {
        bool odd = false, any = false;
        lead *l;
        TRY(p, next_member(s, p, end, context, &trail, &l));
        if (l->what == END) break;
        u8 what = l->what;
        cursor begin = p, point = NULL;
        REQUIRE(what == OTHER || !(seen >> what & 1));
        seen |= 1u << what;
        if (*p == 'n' && what != ID2) /* as if it were missing */
            TRY(p, skip_word(p, end));
        else if (what == TS || what == DUR)
            TRY(p, read_time(p, end, &times[what - TS]));
        else if (what == ARGS && s->n_wanted)
            TRY(p, filter_args(s, p, end, &trail, &args_end));
        else if (what <= TID || (s->with_points && (what == ID || what == ID2))) {
            TRY(p, *p == '"' ? skip_text(p, end, &odd) : skip_number(p, end, &point, &odd));
            REQUIRE(!odd && what != ID2 && (point == NULL || (point == p && what != PH)));
            key[what] = (span){begin, (u32)(p - begin)};
            if (what == PH || what == CAT) trail += 1597u * p[-2]; /* events of a kind are built alike */
        } else
            TRY(p, skip_value(s, p, end, &trail, &any));
    }
    u8 phase = key[PH].size == 3 ? key[PH].at[1] : 0;
    bool is_slice = phase == 'X' || phase == 'B' || phase == 'E';
    REQUIRE(key[PH].size > 0 && phase != 'M'); /* metadata is seldom, and wanted whole */
    int64_t number = intern(s, key, 5, end);
    REQUIRE(number >= 0);
    if (is_slice && args_end > args) {
        out->args_row[out->n_args++] = (int32_t)out->n;
        out->args_size += args_end - args;
    }
    if (s->with_points && !is_slice)
        out->ids_size = put(out->ids + out->ids_size, key[ID], end, ',') - out->ids;
    out->key[out->n] = (int32_t)number;
    out->ts_ns[out->n] = times[0];
    out->dur_ns[out->n++] = times[1];
    return p;
}

static int scan(scanner *s, cursor *at, cursor end, columns *out) {
    for (cursor p = *at; !FAILED(p = skip_space(p, end)); *at = p) {
        if (*p == ',')
            p++;
        else if (*p != '{')
            return *at = p, *p == ']' ? CLOSED : ODD;
        else if (out->n >= out->most)
            return FULL;
        else if (FAILED(p = scan_event(s, out, p, end)))
            return (int)(uintptr_t)p;
    }
    return MORE;
}

/* Writes the events from byte `*at` on to `out`, moves `*at` behind them, and returns why it stopped. */
int scan_events(scanner *s, const u8 *data, u64 size, u64 *at, columns *out) {
    if (*at > size || size > INT32_MAX) return ODD;
    u64 known = s->keys_used;
    cursor p = data + *at;
    out->n = out->n_args = out->args_size = out->ids_size = 0;
    int why = scan(s, &p, data + size, out);
    *at = (u64)(p - data);
    out->new_size = (int64_t)(s->keys_used - known);
    out->new_keys = out->new_size ? s->keys + known : NULL;
    return why;
}

void free_scanner(scanner *s) {
    free(s->keys), free(s->slots), free(s);
}

/* Returns a scanner, or NULL for lack of memory; `wanted` as in its struct, of `size` bytes. */
scanner *new_scanner(const char *wanted, u64 size, bool with_points) {
    scanner *s = calloc(1, sizeof(scanner) + size + 1);
    if (s == NULL) return NULL;
    memcpy(s->wanted, wanted, size);
    s->n_wanted = size, s->most_used = UINT64_MAX, s->with_points = with_points;
    return s;
}
