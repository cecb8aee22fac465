/* Finds the rows of a plain pickle: dictionaries of the same keys, one after the other.
 *
 * A row is `}(`, then each key, as the pickle remembers it, with a value of its kind, then `u`. The values are those of
 * formats/recorder/pickled_rows.py, whose patterns find the same rows where there is no compiler. No byte outside
 * [data, data + size) is read, and nesting is bounded. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint64_t u64;
typedef const u8 *cursor; /* a place in the data, or NULL where what is looked for is not there */

enum { NUMBER, PAIR, LIST };           /* kinds of values */
enum { MOST_ITEMS = 256, MOST_AXES = 64 }; /* of a list, and of a list in it */

/* To the end of a short number, or of the name of a value that the pickle remembers. */
static cursor after_short(cursor p, cursor end) {
    if (p == NULL || p >= end) return NULL;
    int size = *p == 'K' || *p == 'h' ? 2 : *p == 'M' ? 3 : *p == 'J' || *p == 'j' ? 5 : 0;
    return size > 0 && end - p >= size ? p + size : NULL;
}

static cursor after_number(cursor p, cursor end) {
    cursor after = after_short(p, end);
    if (after != NULL || p >= end) return after;
    int size = *p == 'N' || *p == 0x88 || *p == 0x89 ? 1 : *p == 'G' ? 9 : 0;
    if (*p == 0x8a && end - p > 1 && (p[1] == 7 || p[1] == 8)) size = 2 + p[1];
    return size > 0 && end - p >= size ? p + size : NULL;
}

static cursor after_pair(cursor p, cursor end) {
    p = after_short(after_short(p, end), end);
    return p != NULL && p < end && *p == 0x86 ? p + 1 : NULL;
}

/* To the end of a list, whose items may be lists of short numbers where it is not one of these itself. What is no item
 * after its beginning is left: the list is an empty one then. */
static cursor after_list(cursor p, cursor end, bool is_inner) {
    if (p >= end || *p != ']') return NULL;
    cursor begun = ++p;
    bool is_open = p < end && *p == '(';
    int most = !is_open ? 1 : is_inner ? MOST_AXES : MOST_ITEMS;
    p += is_open;
    for (int n = 0; n <= most; n++) {
        if (p < end && *p == (is_open ? 'e' : 'a') && (is_open || n == 1)) return p + 1;
        cursor item = after_short(p, end);
        if (item == NULL && !is_inner) item = after_list(p, end, true);
        if (item == NULL) return begun;
        p = item;
    }
    return begun;
}

/* Finds up to `most` rows of `n_fields` at data[at]: the end of each, and where the values of its fields begin and end
 * (rows, fields). The keys stand one after the other, each as the pickle names it. Returns the number of rows. */
int64_t find_rows(const u8 *data, u64 size, u64 at, const u8 *keys, const u8 *kinds, int64_t n_fields, int64_t most,
                  int32_t *row_end, int32_t *begin, int32_t *end) {
    cursor p = data + at, stop = data + size;
    for (int64_t row = 0; row < most; row++) {
        if (stop - p < 2 || p[0] != '}' || p[1] != '(') return row;
        p += 2;
        cursor key = keys;
        for (int64_t field = 0; field < n_fields; field++) {
            int key_size = *key == 'h' ? 2 : 5;
            if (stop - p < key_size || memcmp(p, key, (size_t)key_size)) return row;
            p += key_size;
            key += key_size;
            begin[row * n_fields + field] = (int32_t)(p - data);
            p = kinds[field] == NUMBER ? after_number(p, stop)
                : kinds[field] == PAIR ? after_pair(p, stop) : after_list(p, stop, false);
            if (p == NULL) return row;
            end[row * n_fields + field] = (int32_t)(p - data);
        }
        if (p >= stop || *p != 'u') return row;
        row_end[row] = (int32_t)(++p - data);
    }
    return most;
}
