/* Reads the rows of a step log into a table of numbers.
 *
 * read_rows() takes whole lines: cells between delimiters, or a JSON object on each. It gives the table that
 * formats/step_log/lines.py makes of them in Python, bit for bit, or none at all where it is not sure of that: a quote,
 * an empty line, a number that is none or is out of range, a row of another length, an escape or a foreign letter in a
 * text that is wanted. Python reads those lines then, so nothing is repaired or reported here. Most objects have the
 * members of the one before in the same order: what stood before a value there is compared with what stands here. No
 * byte outside [data, data + size) is read, and nesting is bounded. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define REQUIRE(condition) do { if (__builtin_expect(!(condition), 0)) return NULL; } while (0)
#define TRY(p, call) do { p = (call); if (__builtin_expect(p == NULL, 0)) return NULL; } while (0)

typedef uint8_t u8;
typedef uint64_t u64;
typedef const u8 *cursor; /* a place in the data, or NULL for what is not surely read as in Python */

enum { MOST_MEMBERS = 256, MOST_DEPTH = 8, MOST_DIGITS = 19, LONGEST_NUMBER = 64, MOST_EXPONENT = 300 };
enum { MOST_TEXTS = 8, LONGEST_TEXT = 300, LONGEST_CELL = 1 << 16 }; /* beyond it Python cuts, or refuses */

typedef struct { /* as in formats/native/row_reader.py */
    int64_t width, n_texts; /* columns of the table, of which the last are of texts */
    int64_t n_cells;        /* of each line; 0: lines are objects */
    const int32_t *column;  /* (n_cells) of each cell; -1: not wanted */
    const char *names;      /* (width) of the columns, each ended by 0: the members of objects */
    u8 delimiter;
} layout;
typedef struct { cursor at; int64_t size; } span; /* `at` NULL: null, or missing */
typedef struct { span text; int32_t column; } lead; /* what stands before a value, from the comma or the brace on */

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static const long double LONG_TENS[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                        1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                        1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

/* Whether the number next to digits * 10^exponent is found by one operation of more than 53 bits: it is where all that
 * is as near as two roundings of these has the same one. Digits are at most nineteen, and powers up to 27 exact. */
static bool is_near(u64 digits, int64_t exponent, double *value) {
    if (exponent < -27 || exponent > 27) return false;
    long double x = (long double)digits;
    x = exponent < 0 ? x / LONG_TENS[-exponent] : x * LONG_TENS[exponent];
    *value = (double)(x * (1 + 2 * LDBL_EPSILON));
    return *value == (double)(x * (1 - 2 * LDBL_EPSILON));
}

static bool is_converted(cursor p, cursor end, double *value) {
    char copy[LONGEST_NUMBER + 1], *stop;
    size_t size = (size_t)(end - p);
    if (size > LONGEST_NUMBER) return false;
    memcpy(copy, p, size);
    copy[size] = 0;
    *value = strtod(copy, &stop);
    return stop == copy + size && isfinite(*value); /* in some languages it stops at the point */
}

/* To the end of a number: as JSON has it, or as `np.loadtxt` takes it, too: +1, 007, 1. and .5 */
INLINE cursor read_number(cursor p, cursor end, bool is_json, double *value) {
    u64 digits = 0;
    int64_t decimals = 0, exponent = 0;
    bool is_negative = p < end && *p == '-';
    if (is_negative || (!is_json && p < end && *p == '+')) p++;
    cursor first = p;
    for (; p < end && (u8)(*p - '0') < 10; p++) digits = digits * 10 + (u64)(*p - '0');
    int64_t n = p - first;
    bool is_integer = true;
    REQUIRE(!is_json || n == 1 || (n > 1 && *first != '0'));
    if (p < end && *p == '.') {
        cursor point = p;
        for (p++; p < end && (u8)(*p - '0') < 10; p++) digits = digits * 10 + (u64)(*p - '0');
        decimals = p - point - 1;
        is_integer = false;
        REQUIRE(!is_json || decimals > 0);
    }
    n += decimals;
    REQUIRE(n > 0);
    if (p < end && (*p | 32) == 'e') {
        is_integer = false;
        bool is_small = ++p < end && *p == '-';
        if (is_small || (p < end && *p == '+')) p++;
        REQUIRE(p < end && (u8)(*p - '0') < 10);
        for (; p < end && (u8)(*p - '0') < 10; p++) {
            exponent = exponent * 10 + (*p - '0');
            REQUIRE(exponent <= MOST_EXPONENT);
        }
        if (is_small) exponent = -exponent;
    }
    exponent -= decimals;
    for (cursor zero = first; n > MOST_DIGITS && (*zero == '0' || *zero == '.'); zero++) n -= *zero == '0';
    double x;
    if (FLT_EVAL_METHOD == 0 && n <= MOST_DIGITS && digits <= 1ull << 53 && exponent >= -22 && exponent <= 22)
        x = exponent < 0 ? (double)digits / TENS[-exponent] : (double)digits * TENS[exponent]; /* one rounding */
    else if (n > MOST_DIGITS || !is_near(digits, exponent, &x))
        REQUIRE(exponent >= -MOST_EXPONENT && is_converted(first, p, &x));
    *value = is_negative && !(is_json && is_integer && digits == 0) ? -x : x; /* an integer -0 is 0 in JSON */
    return p;
}

INLINE cursor skip_blanks(cursor p, cursor end) {
    while (p < end && *p == ' ') p++;
    return p;
}

/* From behind the first quote to behind the last; whether what is no ASCII, or an escape, may stand there. */
INLINE cursor skip_text(cursor p, cursor end, bool is_foreign, bool is_escaped) {
    for (; p < end && *p != '"'; p++) {
        REQUIRE(*p >= 0x20 && (is_foreign || *p < 0x80));
        if (*p == '\\') REQUIRE(is_escaped && ++p < end && *p && strchr("\"\\/bfnrt", *p));
    }
    REQUIRE(p < end);
    return p + 1;
}

INLINE bool is_word(cursor p, cursor end, const char *word, int64_t size) {
    return end - p >= size && memcmp(p, word, (size_t)size) == 0;
}

static cursor skip_value(cursor p, cursor end, int depth) { /* objects are for Python */
    double value;
    REQUIRE(p < end && depth <= MOST_DEPTH);
    if (*p == '"') return skip_text(p + 1, end, true, true);
    if (*p == '[') {
        do {
            TRY(p, skip_value(skip_blanks(p + 1, end), end, depth + 1));
            p = skip_blanks(p, end);
        } while (p < end && *p == ',');
        REQUIRE(p < end && *p == ']');
        return p + 1;
    }
    if (is_word(p, end, "null", 4) || is_word(p, end, "true", 4)) return p + 4;
    if (is_word(p, end, "false", 5)) return p + 5;
    return read_number(p, end, true, &value);
}

static int32_t column_of(const layout *l, cursor name, size_t size) {
    const char *one = l->names;
    for (int32_t column = 0; column < l->width; column++, one += strlen(one) + 1)
        if (strlen(one) == size && memcmp(one, name, size) == 0) return column;
    return -1;
}

/* To the value of a member, of which another stood in this place of the object before: now it is known. */
static cursor learn(const layout *l, cursor p, cursor end, bool is_first, lead *known) {
    cursor begin = p, name;
    REQUIRE(p < end && *p == (is_first ? '{' : ','));
    p = skip_blanks(p + 1, end);
    REQUIRE(p < end && *p == '"');
    name = p + 1;
    TRY(p, skip_text(name, end, true, false));
    known->column = column_of(l, name, (size_t)(p - 1 - name));
    p = skip_blanks(p, end);
    REQUIRE(p < end && *p == ':');
    p = skip_blanks(p + 1, end);
    known->text = (span){begin, p - begin};
    return p;
}

/* To the end of a row that is an object; `leads` are those of the rows before. */
static cursor read_object(const layout *l, cursor p, cursor end, lead *leads, double *row, span *texts) {
    int64_t n_numbers = l->width - l->n_texts;
    p = skip_blanks(p, end);
    for (int64_t column = 0; column < n_numbers; column++) row[column] = NAN;
    for (int64_t text = 0; text < l->n_texts; text++) texts[text] = (span){NULL, 0};
    for (int member = 0; member == 0 || (p < end && *p != '}'); member++) {
        REQUIRE(member < MOST_MEMBERS);
        lead *known = &leads[member];
        int64_t size = known->text.size;
        if (size && end - p > size && memcmp(p, known->text.at, (size_t)size) == 0)
            p += size;
        else
            TRY(p, learn(l, p, end, member == 0, known));
        int32_t column = known->column;
        if (column < 0)
            TRY(p, skip_value(p, end, 0));
        else if (is_word(p, end, "null", 4)) {
            p += 4;
            if (column < n_numbers) row[column] = NAN;
            else texts[column - n_numbers] = (span){NULL, 0};
        } else if (column >= n_numbers) {
            cursor begin = p + 1;
            REQUIRE(p < end && *p == '"');
            TRY(p, skip_text(begin, end, false, false));
            texts[column - n_numbers] = (span){begin, p - 1 - begin};
        } else if (l->n_texts == 0 && is_word(p, end, "NaN", 3)) { /* not JSON, but taken by Python's second way */
            p += 3;
            row[column] = NAN;
        } else
            TRY(p, read_number(p, end, true, &row[column]));
        p = skip_blanks(p, end);
    }
    REQUIRE(p < end);
    return skip_blanks(p + 1, end);
}

INLINE bool is_line_end(cursor p, cursor end) {
    return p == end || *p == '\n' || (*p == '\r' && (p + 1 == end || p[1] == '\n'));
}

/* To the end of a row of cells. */
static cursor read_cells(const layout *l, cursor p, cursor end, double *row, span *texts) {
    int64_t n_numbers = l->width - l->n_texts;
    for (int64_t cell = 0; cell < l->n_cells; cell++) {
        if (cell > 0) REQUIRE(p < end && *p++ == l->delimiter);
        int32_t column = l->column[cell];
        cursor begin = p;
        if (column < 0 || column >= n_numbers) {
            for (; p < end && *p != l->delimiter && !is_line_end(p, end); p++)
                REQUIRE(*p >= 0x20 && *p != '"' && (column < 0 || *p < 0x80));
            REQUIRE(p - begin <= LONGEST_CELL);
            if (column < 0) continue;
            REQUIRE(p > begin); /* one without anything may become "nan", as cells around it are */
            texts[column - n_numbers] = (span){begin, p - begin};
        } else if (is_line_end(p, end) || *p == l->delimiter) {
            REQUIRE(l->n_texts == 0);
            row[column] = NAN;
        } else {
            p = skip_blanks(p, end);
            if (is_word(p, end, "nan", 3) || is_word(p, end, "NaN", 3)) {
                p += 3;
                row[column] = NAN;
            } else
                TRY(p, read_number(p, end, false, &row[column]));
            p = skip_blanks(p, end);
        }
    }
    return p;
}

/* Fills in the table (rows, width), of which columns of texts are left as they are, and the texts themselves, by rows,
 * each ended by a newline, 0 for one that is missing. They have room for `size` bytes and two for each of them. Returns
 * how many rows there are, -1 where Python is to read them; `most` is how many the table has room for. */
int64_t read_rows(const layout *l, const u8 *data, u64 size, int64_t most, double *table, u8 *texts, u64 *texts_size) {
    lead leads[MOST_MEMBERS];
    span own[MOST_TEXTS];
    cursor p = data, end = data + size;
    u8 *to = texts;
    if (l->n_texts > MOST_TEXTS) return -1;
    for (int member = 0; member < MOST_MEMBERS; member++) leads[member].text.size = 0;
    for (int64_t n = 0; n < most; n++, p++) {
        double *row = table + n * l->width;
        p = l->n_cells ? read_cells(l, p, end, row, own) : read_object(l, p, end, leads, row, own);
        if (p == NULL || !is_line_end(p, end)) return -1;
        for (int64_t text = 0; text < l->n_texts; text++) {
            if (own[text].size > LONGEST_TEXT) return -1;
            if (own[text].at != NULL) memcpy(to, own[text].at, (size_t)own[text].size);
            else *to++ = 0;
            to += own[text].size;
            *to++ = '\n';
        }
        p += p < end && *p == '\r';
        *texts_size = (u64)(to - texts);
        if (p == end) return n + 1;
    }
    return -1;
}
