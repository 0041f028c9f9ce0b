/* Products of float32 matrices by tiles of bfloat16 (AMX), as exact as by float32's own instructions.
 *
 * A float32 is the sum of three bfloat16 numbers, of 8 bits each. Of the nine products of two such sums the three smallest are left
 * out, which together are at most 2^-23 of the whole and 2^-26 as a rule; each of the other six is exact, and is added up in
 * float32. (The scheme is that of Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
 * 2019.)
 *
 * Tiles take numbers below 2^-126 for zero, of which small numbers' last bits would be some. So each operand is multiplied by SCALE
 * and the sums by its square's inverse, which is exact. What could overflow by that, or is not finite, is found while packing, for
 * each panel, and goes by vectors. Panels are the same for all numbers of threads, and so are the results. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_gemm_blocks.h"
#include "_wide.h"

#if defined(FXJIT_HAS_WIDE) && defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,amx-tile,amx-bf16")))

enum {
    SIDE = 16,                      /* rows of a tile, and its columns of float32 or of pairs of bfloat16 */
    HEIGHT = 2 * SIDE,              /* rows of a panel of a */
    TERMS = 2 * SIDE,               /* of a tile of bfloat16 */
    TILE = SIDE * SIDE * 4,         /* bytes */
    PIECES = 3,
    CHUNK = PIECES * 2 * TILE,      /* bytes of a panel's TERMS terms: for each piece two tiles */
    HEAD = 64,                      /* bytes before a panel's chunks: the exponent of its largest number */
    DEPTH = 24 * TERMS,
    BLOCK_ROWS = 8 * HEIGHT,        /* 1.2 MB: processors with tiles have second-level caches of 2 MB */
    HIGHEST = 60,                   /* exponents that a number may have, */
    HIGHEST_OF_BOTH = 127 - 80 - 12 /* and that two panels' largest may have together: with SCALE twice and DEPTH terms no overflow */
};
#define SCALE 0x1p40f

/* -- leave to use tiles --------------------------------------------------------------------------------------------*/

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

static int
has_tiles(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return 0;
    }
    const unsigned bfloat16 = 1u << 22, tiles = 1u << 24;
    return (d & bfloat16) && (d & tiles) && __builtin_cpu_supports("avx512bw");
}

/* -- packing -------------------------------------------------------------------------------------------------------*/

/* Eight bits of each number, rounded to nearest; the rest stays, which is exact. */
TILES static inline __m512
leading(__m512 *rest)
{
    __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(*rest), _mm512_set1_epi32(0x8000));
    __m512 piece = _mm512_castsi512_ps(_mm512_and_epi32(rounded, _mm512_set1_epi32((int)0xffff0000)));
    *rest = _mm512_sub_ps(*rest, piece);
    return piece;
}

/* 16 pairs of numbers in pieces, each to a tile, two tiles apart. */
TILES static inline void
store_pairs(__m512 x, __m512 y, char *to)
{
    x = _mm512_mul_ps(x, _mm512_set1_ps(SCALE));
    y = _mm512_mul_ps(y, _mm512_set1_ps(SCALE));
    UNROLLED for (int piece = 0; piece < PIECES; piece++) {
        __m512i p = _mm512_castps_si512(piece < PIECES - 1 ? leading(&x) : x);
        __m512i q = _mm512_castps_si512(piece < PIECES - 1 ? leading(&y) : y);
        _mm512_store_si512(to + piece * 2 * TILE, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(p, 16), q));
    }
}

/* Vector `at` of `vectors` ones; the others are zeros. */
TILES static inline __attribute__((always_inline)) __m512
vector_at(const float *from, int64_t step, int64_t vectors, __mmask16 there, int at)
{
    return at < vectors ? _mm512_maskz_loadu_ps(there, from + at * step) : _mm512_setzero_ps();
}

/* Tiles of up to SIDE lines and TERMS terms, one for each piece: the pairs of a line's terms, which are 16 apart, in a row of the
 * tile, or in a column, with `columns`. `line` and `term` are distances in memory, one of which is 1. The largest magnitude; NaN,
 * which tiles keep, is none. */
TILES static inline __attribute__((always_inline)) __m512
pack_tiles(const float *from, int64_t line, int64_t term, int64_t lines, int64_t terms, char *to, int columns, __m512 largest)
{
    const int along = term == 1; /* a line's terms lie one after the other */
    const float *second = from + SIDE * term;
    const int64_t step = along ? line : term, firsts = along ? lines : terms, seconds = along ? lines : terms - SIDE;
    const __mmask16 left = first_lanes(along ? terms : lines), right = first_lanes(along ? terms - SIDE : lines);
    __m512 x[SIDE], y[SIDE];
    if (along != !columns) {
        UNROLLED for (int i = 0; i < SIDE; i++) {
            x[i] = vector_at(from, step, firsts, left, i);
        }
        turn(x);
        UNROLLED for (int i = 0; i < SIDE; i++) {
            y[i] = vector_at(second, step, seconds, right, i);
        }
        turn(y);
    }
    UNROLLED for (int i = 0; i < SIDE; i++) {
        if (along == !columns) {
            x[i] = vector_at(from, step, firsts, left, i);
            y[i] = vector_at(second, step, seconds, right, i);
        }
        largest = _mm512_range_ps(largest, _mm512_range_ps(x[i], y[i], 11), 11); /* the larger magnitude */
        store_pairs(x[i], y[i], to + i * 64);
    }
    return largest;
}

#define PACK(NAME, LINE, TERM, COLUMNS) \
    TILES static __m512 NAME(const float *from, int64_t line, int64_t term, int64_t lines, int64_t terms, char *to, __m512 largest) \
    { \
        if (lines >= SIDE && terms == TERMS) { \
            return pack_tiles(from, LINE, TERM, SIDE, TERMS, to, COLUMNS, largest); \
        } \
        return pack_tiles(from, LINE, TERM, lines, terms, to, COLUMNS, largest); \
    }
PACK(rows_along, line, 1, 0)
PACK(rows_across, 1, term, 0)
PACK(columns_along, line, 1, 1)
PACK(columns_across, 1, term, 1)
typedef __m512 (*pack_fn)(const float *, int64_t, int64_t, int64_t, int64_t, char *, __m512);

/* A panel of up to 32 lines: its head, and its chunks. */
TILES static void
pack_panel(pack_fn pack, const float *from, int64_t line, int64_t term, int64_t lines, int64_t terms, char *to)
{
    __m512 largest = _mm512_setzero_ps();
    char *head = to;
    to += HEAD;
    for (int64_t at = 0; at < terms; at += TERMS, from += TERMS * term, to += CHUNK) {
        int64_t count = least(TERMS, terms - at);
        largest = pack(from, line, term, least(SIDE, lines), count, to, largest);
        if (lines > SIDE) {
            largest = pack(from + SIDE * line, line, term, lines - SIDE, count, to + TILE, largest);
        }
    }
    *(int32_t *)head = (_mm512_reduce_max_epi32(_mm512_castps_si512(largest)) >> 23) - 127;
}

static int64_t
panel_bytes(int64_t depth)
{
    return HEAD + (depth + TERMS - 1) / TERMS * CHUNK;
}

static void
pack_columns(const matrix_t *b, int64_t row, int64_t depth, int64_t column, int64_t count, char *to)
{
    const float *from = b->data + row * b->row + column * b->column;
    pack_fn pack = b->row == 1 ? columns_along : columns_across;
    for (int64_t at = 0; at < count; at += PANEL, to += panel_bytes(depth)) {
        pack_panel(pack, from + at * b->column, b->column, b->row, least(PANEL, count - at), depth, to);
    }
}

/* -- the kernel ----------------------------------------------------------------------------------------------------*/

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes_t;

/* Two panels' products to 32 rows of 32 numbers: the smaller pieces first. Tiles 0 to 3 are sums, 4 and 5 of a, 6 and 7 of b. */
#define ROWS_OF(PIECE) \
    _tile_loadd(4, a + PIECE * 2 * TILE, 64); \
    if (DOWN == 2) { \
        _tile_loadd(5, a + PIECE * 2 * TILE + TILE, 64); \
    }
#define COLUMNS_OF(PIECE) \
    _tile_loadd(6, b + PIECE * 2 * TILE, 64); \
    if (ACROSS == 2) { \
        _tile_loadd(7, b + PIECE * 2 * TILE + TILE, 64); \
    }
#define ADD \
    _tile_dpbf16ps(0, 4, 6); \
    if (ACROSS == 2) { \
        _tile_dpbf16ps(1, 4, 7); \
    } \
    if (DOWN == 2) { \
        _tile_dpbf16ps(2, 5, 6); \
    } \
    if (DOWN == 2 && ACROSS == 2) { \
        _tile_dpbf16ps(3, 5, 7); \
    }

TILES static inline __attribute__((always_inline)) void
multiply_panels(int64_t terms, const char *a, const char *b, float *sums, const int DOWN, const int ACROSS)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    a += HEAD;
    b += HEAD;
    for (int64_t at = 0; at < terms; at += TERMS, a += CHUNK, b += CHUNK) {
        ROWS_OF(2) COLUMNS_OF(0) ADD
        ROWS_OF(1) ADD
        COLUMNS_OF(1) ADD
        ROWS_OF(0) ADD
        COLUMNS_OF(2) ADD
        COLUMNS_OF(0) ADD
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + SIDE, 128);
    _tile_stored(2, sums + SIDE * PANEL, 128);
    _tile_stored(3, sums + SIDE * PANEL + SIDE, 128);
}

/* `rows` by `columns` of the sums to the result. */
TILES static inline void
write_sums(const float *sums, int64_t rows, int64_t columns, float *out, int64_t line, int add)
{
    const __m512 scale = _mm512_set1_ps(1 / (SCALE * SCALE));
    __mmask16 left = first_lanes(columns), right = first_lanes(columns - LANES);
    for (int64_t i = 0; i < rows; i++, sums += PANEL, out += line) {
        __m512 x = _mm512_mul_ps(_mm512_load_ps(sums), scale), y = _mm512_mul_ps(_mm512_load_ps(sums + LANES), scale);
        if (add) {
            x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(left, out));
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(right, out + LANES));
        }
        _mm512_mask_storeu_ps(out, left, x);
        _mm512_mask_storeu_ps(out + LANES, right, y);
    }
}

TILES static void
multiply_tiles(int64_t terms, const char *a, const char *b, int64_t rows, int64_t columns, float *out, int64_t line, int add)
{
    float sums[HEIGHT * PANEL] __attribute__((aligned(64)));
    if (rows > SIDE) {
        if (columns > SIDE) {
            multiply_panels(terms, a, b, sums, 2, 2);
        }
        else {
            multiply_panels(terms, a, b, sums, 2, 1);
        }
    }
    else if (columns > SIDE) {
        multiply_panels(terms, a, b, sums, 1, 2);
    }
    else {
        multiply_panels(terms, a, b, sums, 1, 1);
    }
    write_sums(sums, rows, columns, out, line, add);
}

/* -- blocks --------------------------------------------------------------------------------------------------------*/

static int
fits(const char *a, const char *b)
{
    int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    return first < HIGHEST && second < HIGHEST && first + second < HIGHEST_OF_BOTH;
}

static int
by_vectors(const product_t *product, const part_t *part, int64_t row, int64_t rows, int64_t from, int64_t to, int add)
{
    product_t some = {
        .m = rows, .n = to - from, .k = part->depth, .out = product->out + row * product->line + from, .line = product->line,
        .a = product->a, .b = product->b, .add = add,
    };
    some.a.data += row * some.a.row + part->row * some.a.column;
    some.b.data += part->row * some.b.row + from * some.b.column;
    return fxjit_gemm_by_vectors(&some);
}

/* The packed rows by the packed columns; where a row's panel and a column's do not fit each other, by vectors, neighbours at once. */
static int
multiply_block(const product_t *product, const part_t *part, int64_t top, int64_t bottom, const char *room)
{
    const int64_t bytes = panel_bytes(part->depth);
    const int add = product->add || part->row;
    int64_t left[BLOCK_ROWS / HEIGHT]; /* from here on columns are left for vectors */
    for (int64_t i = 0; i < BLOCK_ROWS / HEIGHT; i++) {
        left[i] = -1;
    }
    for (int64_t at = part->from_column, done = 0; !done; at += PANEL) {
        done = at >= part->to_column; /* once more than there are panels, for what is left */
        at = least(at, part->to_column);
        int64_t columns = least(PANEL, part->to_column - at);
        const char *panel = part->columns + (at - part->from_column) / PANEL * bytes, *packed = room;
        for (int64_t row = top, i = 0; row < bottom; row += HEIGHT, i++, packed += bytes) {
            int64_t rows = least(HEIGHT, bottom - row);
            if (columns > 0 && !fits(packed, panel)) {
                left[i] = left[i] < 0 ? at : left[i];
                continue;
            }
            if (left[i] >= 0 && by_vectors(product, part, row, rows, left[i], at, add) < 0) {
                return -1;
            }
            left[i] = -1;
            if (columns > 0) {
                multiply_tiles(part->depth, packed, panel, rows, columns, product->out + row * product->line + at,
                               product->line, add);
            }
        }
    }
    return 0;
}

TILES static int
multiply_part(const product_t *product, const part_t *part, char *room)
{
    const matrix_t *a = &product->a;
    pack_fn pack = a->column == 1 ? rows_along : rows_across;
    tile_shapes_t shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = 64;
        shapes.rows[i] = SIDE;
    }
    _tile_loadconfig(&shapes);
    int failed = 0;
    for (int64_t top = part->from_row; !failed && top < part->to_row; top += BLOCK_ROWS) {
        int64_t bottom = least(top + BLOCK_ROWS, part->to_row);
        char *to = room;
        for (int64_t row = top; row < bottom; row += HEIGHT, to += panel_bytes(part->depth)) {
            pack_panel(pack, a->data + row * a->row + part->row * a->column, a->row, a->column, least(HEIGHT, bottom - row),
                       part->depth, to);
        }
        failed = multiply_block(product, part, top, bottom, room);
    }
    _tile_release();
    return failed;
}

static const blocks_t blocks = {
    .depth = DEPTH, .height = HEIGHT, .rows_bytes = BLOCK_ROWS / HEIGHT * (HEAD + DEPTH / TERMS * CHUNK), .panel_bytes = panel_bytes, .pack = pack_columns, .multiply = multiply_part,
};

const blocks_t *
fxjit_gemm_tiles(void)
{
    static int known = -1;
    if (known < 0) {
        known = has_tiles() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }
    return known ? &blocks : NULL;
}

#else

const blocks_t *
fxjit_gemm_tiles(void)
{
    return NULL;
}

#endif
