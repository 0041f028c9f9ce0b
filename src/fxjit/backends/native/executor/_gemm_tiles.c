/* Products of float32 matrices by tiles of bfloat16 (AMX), as exact as by float32's own instructions.
 *
 * A float32 is the sum of three bfloat16 numbers, of 8 bits each. Of the nine products of two such sums the three smallest are left
 * out, which together are at most 2^-23 of the whole and 2^-26 as a rule; each of the other six is exact, and is added up in
 * float32. (The scheme is that of Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
 * 2019.)
 *
 * Tiles take numbers below 2^-126 for zero, of which small numbers' last bits would be some. So each operand is multiplied by SCALE
 * and the sums by its square's inverse, which is exact. What could overflow by that, or is not finite, is found while packing, for
 * each panel, and goes by vectors. Panels are the same for all numbers of threads, and so are the results.
 *
 * A packed block of a and one of b, much smaller, are in the second-level cache together: packed numbers take six bytes, which are
 * written at half the speed where they go to the third. So each thread packs what it multiplies, and none waits for another. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_wide.h"
#include "_gemm_tiles.h"
#include "_rooms.h"

#if defined(FXJIT_HAS_WIDE) && defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,amx-tile,amx-bf16")))

enum {
    SIDE = 16,                      /* rows of a tile, and its columns of float32 or of pairs of bfloat16 */
    PANEL = 2 * SIDE,               /* lines of a panel: rows of a, or columns of b */
    TERMS = 2 * SIDE,               /* of a tile of bfloat16 */
    TILE = SIDE * SIDE * 4,         /* bytes */
    PIECES = 3,
    CHUNK = PIECES * 2 * TILE,      /* bytes of a panel's TERMS terms: for each piece two tiles */
    HEAD = 64,                      /* bytes before a panel's chunks: the exponent of its largest number */
    DEPTH = 16 * TERMS,             /* terms of a packed block, at most */
    PANEL_BYTES = HEAD + DEPTH / TERMS * CHUNK, /* at most */
    STAYING = 12 * PANEL,           /* lines of the block that stays packed: 1.2 MB of the second-level cache's 2 MB */
    PASSING = 2 * PANEL,            /* lines of the other operand's blocks: 200 KB */
    FAR = 1 << 23,                  /* numbers of an operand that no cache keeps */
    KEPT = 64,                      /* rooms for both */
    HIGHEST = 60,                   /* exponents that a number may have, */
    HIGHEST_OF_BOTH = 127 - 80 - 12 /* and that two panels' largest may have together: with SCALE twice and DEPTH terms no overflow */
};
#define SCALE 0x1p40f
/* Multiplications of a cycle, and cycles for packing a number. */
#define CYCLE 85
#define LINE 0.6

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

/* Rows of a, or columns of b, some terms of each. */
static void
pack_lines(const product_t *product, int columns, int64_t from, int64_t to, int64_t term, int64_t depth, char *packed)
{
    const matrix_t *of = columns ? &product->b : &product->a;
    int64_t line = columns ? of->column : of->row, step = columns ? of->row : of->column;
    pack_fn pack = columns ? (step == 1 ? columns_along : columns_across) : (step == 1 ? rows_along : rows_across);
    for (; from < to; from += PANEL, packed += panel_bytes(depth)) {
        pack_panel(pack, of->data + from * line + term * step, line, step, least(PANEL, to - from), depth, packed);
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
    float sums[PANEL * PANEL] __attribute__((aligned(64)));
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

/* A part of a product, some of its terms, and the packed operands. */
typedef struct {
    part_t part;
    int64_t term, depth;
    char *rows, *columns;
} block_t;

static int
fits(const char *a, const char *b)
{
    int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    return first < HIGHEST && second < HIGHEST && first + second < HIGHEST_OF_BOTH;
}

static int
by_vectors(const product_t *product, const block_t *block, const part_t *part)
{
    product_t some = {
        .m = part->to_row - part->from_row, .n = part->to_column - part->from_column, .k = block->depth,
        .a = product->a, .b = product->b, .out = product->out + part->from_row * product->line + part->from_column,
        .line = product->line, .add = product->add || block->term,
    };
    some.a.data += part->from_row * some.a.row + block->term * some.a.column;
    some.b.data += block->term * some.b.row + part->from_column * some.b.column;
    return fxjit_gemm_alone(&some);
}

static int
multiply_block(const product_t *product, const block_t *block)
{
    const int64_t bytes = panel_bytes(block->depth);
    const part_t *all = &block->part;
    const char *columns = block->columns;
    for (int64_t column = all->from_column; column < all->to_column; column += PANEL, columns += bytes) {
        const char *rows = block->rows;
        for (int64_t row = all->from_row; row < all->to_row; row += PANEL, rows += bytes) {
            part_t part = {.from_row = row, .to_row = least(row + PANEL, all->to_row),
                           .from_column = column, .to_column = least(column + PANEL, all->to_column)};
            if (fits(rows, columns)) {
                multiply_tiles(block->depth, rows, columns, part.to_row - row, part.to_column - column,
                               product->out + row * product->line + column, product->line, product->add || block->term);
            }
            else if (by_vectors(product, block, &part) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* Eight tiles of 16 rows of 64 bytes. */
static const tile_shapes_t shapes = {
    .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE},
};

TILES static void
begin_tiles(void)
{
    _tile_loadconfig(&shapes);
}

TILES static void
end_tiles(void)
{
    _tile_release();
}

static void *kept[KEPT];

/* Which operand stays packed: where the terms of only one's lines follow each other, the other one, since lines that do not are
 * packed many at once or read piece by piece. Else the one of fewer lines, whose blocks are fewer, unless the other one would be
 * read from memory for each of these blocks. */
static int
columns_stay(const product_t *product, const part_t *all)
{
    int rows_along = product->a.column == 1, columns_along = product->b.row == 1;
    int64_t rows = all->to_row - all->from_row, columns = all->to_column - all->from_column;
    if (rows_along != columns_along) {
        return rows_along;
    }
    return columns < rows || (columns_along && rows > STAYING && columns * product->k > FAR);
}

/* `staying` lines from `from` on, packed, by all of the other operand's; `passed`: those are packed, in one block, since before. */
static int
multiply_staying(const product_t *product, block_t *block, const part_t *all, int columns, int passed)
{
    int64_t first = columns ? all->from_row : all->from_column, end = columns ? all->to_row : all->to_column;
    int64_t *from = columns ? &block->part.from_row : &block->part.from_column;
    int64_t *to = columns ? &block->part.to_row : &block->part.to_column;
    for (*from = first; *from < end; *from = *to) {
        *to = least(*from + PASSING, end);
        if (!passed) {
            pack_lines(product, !columns, *from, *to, block->term, block->depth, columns ? block->rows : block->columns);
        }
        if (multiply_block(product, block) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The size of almost equal blocks of whole tiles, of at most `most`. */
static int64_t
in_equal_blocks(int64_t size, int64_t most)
{
    int64_t chunks = (size + TERMS - 1) / TERMS, blocks = (chunks * TERMS + most - 1) / most;
    return blocks > 0 ? (chunks + blocks - 1) / blocks * TERMS : TERMS;
}

int
fxjit_gemm_by_tiles(const product_t *product, const part_t *all)
{
    char *staying = take_room(kept, KEPT, (size_t)(STAYING + PASSING) / PANEL * PANEL_BYTES);
    if (staying == NULL) {
        return -1;
    }
    char *passing = staying + STAYING / PANEL * PANEL_BYTES;
    int columns = columns_stay(product, all), failed = 0;
    block_t block = {.rows = columns ? passing : staying, .columns = columns ? staying : passing};
    int64_t first = columns ? all->from_column : all->from_row, end = columns ? all->to_column : all->to_row;
    int64_t others = columns ? all->to_row - all->from_row : all->to_column - all->from_column;
    int64_t *from = columns ? &block.part.from_column : &block.part.from_row;
    int64_t *to = columns ? &block.part.to_column : &block.part.to_row;
    const int64_t depth = in_equal_blocks(product->k, DEPTH), lines = in_equal_blocks(end - first, STAYING);
    begin_tiles();
    for (block.term = 0; !failed && block.term < product->k; block.term += block.depth) {
        block.depth = least(depth, product->k - block.term);
        for (*from = first; !failed && *from < end; *from = *to) {
            *to = least(*from + lines, end);
            pack_lines(product, columns, *from, *to, block.term, block.depth, staying);
            failed = multiply_staying(product, &block, all, columns, others <= PASSING && *from > first) < 0;
        }
    }
    end_tiles();
    give_room(kept, KEPT, staying);
    return failed ? -1 : 0;
}

/* -- threads -------------------------------------------------------------------------------------------------------*/

static int64_t
share(int64_t lines, int64_t at, int64_t parts)
{
    return least((lines + PANEL - 1) / PANEL * at / parts * PANEL, lines);
}

/* Cycles for each term: numbers to multiply, and lines to pack; of the operand that passes by as often as there are blocks. */
static double
cycles_of(const product_t *product, int64_t rows, int64_t columns)
{
    part_t part = {.to_row = rows, .to_column = columns};
    int64_t staying = columns_stay(product, &part) ? columns : rows, passing = rows + columns - staying;
    int64_t blocks = passing <= PASSING ? 1 : (staying + STAYING - 1) / STAYING;
    return (double)(rows * columns) / CYCLE + (double)(staying + passing * blocks) * LINE;
}

part_t
fxjit_tiles_share(const product_t *product, int64_t thread, int64_t threads)
{
    int64_t down = 1;
    double least_cycles = 0;
    for (int64_t parts = 1; parts <= threads; parts++) {
        int64_t across = threads / parts;
        int64_t rows = ((product->m + PANEL - 1) / PANEL + parts - 1) / parts * PANEL;
        int64_t columns = ((product->n + PANEL - 1) / PANEL + across - 1) / across * PANEL;
        double cycles = cycles_of(product, rows, columns);
        if (parts == 1 || cycles < least_cycles) {
            down = parts;
            least_cycles = cycles;
        }
    }
    int64_t across = threads / down, row = thread / across, column = thread % across;
    if (row >= down) {
        return (part_t){0};
    }
    return (part_t){.from_row = share(product->m, row, down), .to_row = share(product->m, row + 1, down),
                    .from_column = share(product->n, column, across), .to_column = share(product->n, column + 1, across)};
}

int
fxjit_tiles_run(void)
{
    static int known = -1;
    if (known < 0) {
        known = has_tiles() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }
    return known;
}

#else

int
fxjit_tiles_run(void)
{
    return 0;
}

int
fxjit_gemm_by_tiles(const product_t *product, const part_t *part)
{
    (void)product;
    (void)part;
    return -1;
}

part_t
fxjit_tiles_share(const product_t *product, int64_t thread, int64_t threads)
{
    (void)product;
    (void)thread;
    (void)threads;
    return (part_t){0};
}

#endif
