/* Products of float32 matrices: registers hold ROWS by COLUMNS numbers of the result (14 x 32 with AVX-512, 6 x 16 with AVX2), which
 * grow by one column of a and one row of b at a time; both are packed before, so that they are read in order. It is Goto's scheme: a block of b for the third-level cache,
 * packed by all threads for all of them, a block of a for each thread's second-level cache. Where there are few rows, they stay in
 * that cache and a few columns at a time are packed beside them; for few columns, rows are not packed at all.
 *
 * A sum is a chain of at most CHAIN products, and chains are added up one after the other, so that its error is that of MKL's
 * products. The number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#include "_wide.h"
#include "_gemm.h"
#include "_gemm_kernels.h"
#include "_gemm_tiles.h"
#include "_rooms.h"

#ifdef FXJIT_HAS_WIDE

#pragma GCC optimize("O3") /* 1 to 4 hundredths faster with 32 to 128 rows, on a Zen 4 */

enum {
    CHAIN = 192,        /* products of one sum; a panel of b of so many rows stays in the first-level cache */
    DEPTH = 4 * CHAIN,  /* of a packed block */
    BLOCK_ROWS = 12 * ROWS, /* of a: 516 KB, with AVX2 221 */
    BLOCK_COLUMNS = 1024, /* of b: 3 MB */
    SHORT = FXJIT_SHORT_ROWS, /* rows that are packed once, for all columns, in blocks of less depth: at least of one chain */
    ROOM = BLOCK_ROWS * DEPTH > SHORT * CHAIN ? BLOCK_ROWS * DEPTH : SHORT * CHAIN, /* packed numbers of a */
    ALONE = 256,        /* columns of each thread from which all threads pack them rather than wait for each other */
    DIRECT_COLUMNS = 512, /* up to which rows are read where they lie, */
    ALIASED = 512,      /* but where they are a multiple of so many numbers apart: a panel's rows share a set of the first-level cache or two */
    HELD = 1 << 16,     /* packed numbers of b that stay in the second-level cache while all rows go by */
    LINE = 64,
    AT_ONCE = 4,        /* panels of b that are packed line by line */
    FEW = 4,            /* rows up to which nothing is packed: each number of b is read once; */
    MOST_FEW = 12,      /* where the columns of b are contiguous and of at least LONG numbers */
    LONG = 256,
    TOGETHER = 8,       /* rows of b that are added up at once there */
    AHEAD = 4096,       /* bytes that are fetched ahead of columns that are read one after the other, */
    LINES = 8,          /* with so many sums, one for each line of the cache */
    WORK = 1 << 17,     /* multiplications for which a thread is called: 2 us */
    TILED = 64,         /* rows, columns and terms from which tiles are faster than vectors: 64 x 64 x 64 1.1 to 1.4 times */
};

/* -- rows of a that are packed ------------------------------------------------------------------------------------*/

#define PACKED(R, HALVES) KERNEL(packed, R, HALVES, PACKED_AT, a += R)
OF_ALL_HEIGHTS(PACKED, 1)
OF_ALL_HEIGHTS(PACKED, 2)

#define PACKED_AT_HEIGHT(R, HALVES) [R] = packed_##HALVES##_##R,
static const gemm_kernel_fn packed_kernels[2][ROWS + 1] = {
    {OF_ALL_HEIGHTS(PACKED_AT_HEIGHT, 1)},
    {OF_ALL_HEIGHTS(PACKED_AT_HEIGHT, 2)},
};

/* -- memory for packed blocks, kept from product to product --------------------------------------------------------*/

enum { KEPT_ROWS = 64, KEPT_COLUMNS = 8 };

static void *kept_rows[KEPT_ROWS], *kept_columns[KEPT_COLUMNS];

static float *
take_rows(void)
{
    return take_room(kept_rows, KEPT_ROWS, (ROOM + LANES) * sizeof(float));
}

static float *
take_columns(void)
{
    return take_room(kept_columns, KEPT_COLUMNS, (BLOCK_COLUMNS * DEPTH + LANES) * sizeof(float));
}

static void
give_rows(float *room)
{
    give_room(kept_rows, KEPT_ROWS, room);
}

static void
give_columns(float *room)
{
    give_room(kept_columns, KEPT_COLUMNS, room);
}

/* -- packing -------------------------------------------------------------------------------------------------------*/

/* Lanes of a packed line of which so many numbers are left: whole vectors reach into the next line, which is written later, and are
 * faster than masked ones where there is no AVX-512. */
static inline lanes_t
lanes_of_line(int64_t left, int is_last)
{
    return first_lanes(is_last ? left : LANES);
}

/* What whole vectors leave: `depth` numbers of `count` lines, `line` apart, to `depth` lines of `width`, at most a vector, that begin
 * `step` apart; what is wider than `count` is zeros. The last line is stored in as many lanes as it has. */
WIDE static void
pack_corner(const float *from, int64_t line, int64_t count, int64_t depth, float *to, int64_t width, int64_t step)
{
    for (int64_t p = 0; p < depth; p += LANES) {
        int64_t deep = least(LANES, depth - p);
        vec_t r[LANES];
        UNROLLED for (int i = 0; i < LANES; i++) {
            r[i] = i < count ? vec_load_some(first_lanes(deep), from + i * line + p) : vec_zero();
        }
        turn(r);
        UNROLLED for (int i = 0; i < LANES; i++) {
            if (i < deep) {
                vec_store_some(to + (p + i) * step, lanes_of_line(width, p + i == depth - 1), r[i]);
            }
        }
    }
}

/* `count` lines of `depth` numbers, `line` apart, to `depth` lines of `width`; what is wider than `count` is zeros. One vector, or
 * whole ones. */
WIDE static void
pack_turned(const float *from, int64_t line, int64_t count, int64_t depth, float *to, int64_t width)
{
    for (int64_t first = 0; first < width; first += LANES) {
        int64_t there = least(LANES, count - first), wide = least(LANES, width - first), p = 0;
        const float *lines = from + first * line;
        /* The last line of less than a vector is stored by itself: a whole one would reach into what is packed behind it. */
        for (; there == wide && p + LANES + (wide < LANES) <= depth; p += LANES) {
            vec_t r[LANES];
            load_turned(lines + p, line, wide, r);
            UNROLLED for (int i = 0; i < LANES; i++) {
                vec_store_any(to + (p + i) * width + first, r[i]);
            }
        }
        pack_corner(lines + p, line, there, depth - p, to + p * width + first, wide, width);
    }
}

/* `depth` lines of `count` numbers, `line` apart, to panels of `depth` lines of `width` each, at most a vector, and the last one of what
 * is left: all of a line before the next one. Whole vectors reach into a panel's next line, which is written later. */
WIDE static void
pack_rows_straight(const float *from, int64_t line, int64_t count, int64_t depth, float *to, int64_t width)
{
    for (int64_t p = 0; p < depth; p++, from += line) {
        int64_t first = 0;
        for (; p + 1 < depth && first + LANES <= count; first += width) {
            vec_store_any(to + first * depth + p * width, vec_load_any(from + first));
        }
        for (; first < count; first += width) {
            int64_t wide = least(width, count - first);
            lanes_t there = first_lanes(wide);
            vec_store_some(to + first * depth + p * wide, there, vec_load_some(there, from + first));
        }
    }
}

/* `depth` lines of `count` numbers, `line` apart, to panels of `depth` lines of COLUMNS; what is wider than `count` is zeros. A few
 * panels at a time: lines of many, a multiple of 4 KB apart, would share a set of the first-level cache. */
WIDE static void
pack_straight(const float *from, int64_t line, int64_t count, int64_t depth, float *to)
{
    int64_t at = 0, end = 0;
    for (; at + COLUMNS <= count; at = end) {
        end = at + least(AT_ONCE * COLUMNS, (count - at) / COLUMNS * COLUMNS);
        for (int64_t p = 0; p < depth; p++) {
            for (int64_t first = at; first < end; first += COLUMNS) {
                vec_t left = vec_load_any(from + p * line + first), right = vec_load_any(from + p * line + first + LANES);
                vec_store(to + first * depth + p * COLUMNS, left);
                vec_store(to + first * depth + p * COLUMNS + LANES, right);
            }
        }
    }
    lanes_t left = first_lanes(count - at), right = first_lanes(count - at - LANES);
    for (int64_t p = 0; at < count && p < depth; p++) {
        vec_store(to + at * depth + p * COLUMNS, vec_load_some(left, from + p * line + at));
        vec_store(to + at * depth + p * COLUMNS + LANES, vec_load_some(right, from + p * line + at + LANES));
    }
}

/* `count` columns of b from `column` on, in panels. */
static void
pack_columns(const matrix_t *b, int64_t row, int64_t depth, int64_t column, int64_t count, float *to)
{
    const float *from = b->data + row * b->row + column * b->column;
    if (b->column == 1) {
        pack_straight(from, b->row, count, depth, to);
        return;
    }
    for (int64_t at = 0; at < count; at += COLUMNS) {
        pack_turned(from + at * b->column, b->column, least(COLUMNS, count - at), depth, to + at * depth, COLUMNS);
    }
}

void
fxjit_gemm_pack(const matrix_t *b, int64_t depth, int64_t column, int64_t count, float *to)
{
    pack_columns(b, 0, depth, column, count, to);
}

void
fxjit_gemm_pack_columns(const matrix_t *b, int64_t depth, int64_t columns, float *to)
{
    pack_columns(b, 0, depth, 0, columns, to);
}

int64_t
fxjit_gemm_packed_columns(int64_t columns)
{
    return (columns + COLUMNS - 1) / COLUMNS * COLUMNS;
}

/* -- blocks --------------------------------------------------------------------------------------------------------*/

/* A block of a product: rows and columns from one to another, the packed columns, which begin at `from_column`, and from which
 * row of b how many products are added up, of which a chain has so many. The packed columns' panels are `apart`. */
typedef struct {
    int64_t from_row, to_row, from_column, to_column, row, depth, chain, apart;
    const float *columns;
} block_t;

/* The panel that begins with a column, from a row of b on, where all columns are packed for good. */
static const float *
packed_panel(const product_t *product, int64_t row, int64_t column)
{
    return product->packed + column * product->k + row * COLUMNS;
}

/* What of b is packed next and fetched to the second-level cache meanwhile: `places` of so many lines of the cache. */
typedef struct {
    const char *place;
    int64_t apart, lines, at, left, share;
} fetch_t;

static fetch_t
fetch_of(const product_t *product, const block_t *block, int64_t column, int64_t count, int64_t calls)
{
    const matrix_t *b = &product->b;
    int64_t places = b->column == 1 ? block->depth : count, each = b->column == 1 ? count : block->depth;
    fetch_t fetch = {.place = (const char *)(b->data + block->row * b->row + column * b->column)};
    fetch.apart = (b->column == 1 ? b->row : b->column) * (int64_t)sizeof(float);
    if (product->packed != NULL) {
        places = (count + COLUMNS - 1) / COLUMNS;
        each = block->depth * COLUMNS;
        fetch.place = (const char *)packed_panel(product, block->row, column);
        fetch.apart = product->k * COLUMNS * (int64_t)sizeof(float);
    }
    fetch.lines = (each * (int64_t)sizeof(float) + LINE - 1) / LINE;
    fetch.left = places * fetch.lines;
    fetch.share = (fetch.left + calls - 1) / calls;
    return fetch;
}

static void
fetch_some(fetch_t *fetch)
{
    for (int64_t i = least(fetch->share, fetch->left); i > 0; i--, fetch->left--) {
        __builtin_prefetch(fetch->place + fetch->at * LINE, 0, 2);
        if (++fetch->at == fetch->lines) {
            fetch->at = 0;
            fetch->place += fetch->apart;
        }
    }
}

/* The rows in panels of almost equal height. */
static int64_t
height_of(int64_t rows)
{
    int64_t panels = (rows + ROWS - 1) / ROWS;
    return (rows + panels - 1) / panels;
}

static int64_t
chain_of(const product_t *product, int64_t depth)
{
    int64_t most = product->chain > 0 ? least(product->chain, CHAIN) : CHAIN, chains = (depth + most - 1) / most;
    return (depth + chains - 1) / chains;
}

/* Whether rows are read where they lie, which saves packing them for few columns; not where a panel of them would share one or two sets
 * of the first-level cache. */
static int
is_direct(const product_t *product)
{
    return product->a.column == 1 && product->a.row % ALIASED != 0 && product->n <= DIRECT_COLUMNS;
}

/* The rows from one to another, unless they are read where they lie: of each chain its panels, in the order in which they are read. */
static void
pack_panels(const product_t *product, const block_t *block, int64_t top, int64_t bottom, float *packed)
{
    if (is_direct(product)) {
        return;
    }
    int64_t height = height_of(bottom - top);
    const float *from = product->a.data + top * product->a.row;
    for (int64_t p = 0; p < block->depth; p += block->chain) {
        int64_t chain = least(block->chain, block->depth - p);
        const float *part = from + (block->row + p) * product->a.column;
        float *to = packed + (bottom - top) * p;
        if (product->a.column != 1) {
            pack_rows_straight(part, product->a.column, bottom - top, chain, to, height);
            continue;
        }
        for (int64_t i = 0; i < bottom - top; i += height) {
            int64_t count = least(height, bottom - top - i);
            pack_turned(part + i * product->a.row, product->a.row, count, chain, to + i * chain, count);
        }
    }
}

/* The rows from one to another, packed or not, by a panel of packed columns, the first of which is `at`: one chain of all rows after
 * the other, whose part of the panel stays in the first-level cache. */
static void
multiply_panel(const product_t *product, const block_t *block, int64_t top, int64_t bottom, const float *packed,
                const float *panel, int64_t at, fetch_t *fetch)
{
    lanes_t left = first_lanes(block->to_column - at), right = first_lanes(block->to_column - at - LANES);
    int direct = is_direct(product);
    const gemm_kernel_fn *kernels = (direct ? direct_kernels : packed_kernels)[right != 0];
    const float *lying = product->a.data + block->row;
    int64_t height = height_of(bottom - top);
    for (int64_t p = 0; p < block->depth; p += block->chain) {
        int64_t chain = least(block->chain, block->depth - p);
        int add = product->add || block->row || p;
        for (int64_t i = top; i < bottom; i += height) {
            int64_t count = least(height, bottom - i);
            const float *rows = direct ? lying + i * product->a.row + p : packed + (bottom - top) * p + (i - top) * chain;
            if (fetch != NULL) {
                fetch_some(fetch);
            }
            kernels[count](chain, rows, product->a.row, panel + p * COLUMNS, product->out + i * product->line + at, product->line,
                           left, right, add);
        }
    }
}

static void
multiply_block(const product_t *product, const block_t *block, float *packed)
{
    int by_rows = is_direct(product) && (block->to_column - block->from_column) * block->depth <= HELD;
    for (int64_t top = block->from_row; top < block->to_row; top += by_rows ? ROWS : BLOCK_ROWS) {
        int64_t bottom = least(top + (by_rows ? ROWS : BLOCK_ROWS), block->to_row);
        pack_panels(product, block, top, bottom, packed);
        for (int64_t at = block->from_column; at < block->to_column; at += COLUMNS) {
            const float *panel = block->columns + (at - block->from_column) / COLUMNS * block->apart;
            multiply_panel(product, block, top, bottom, packed, panel, at, NULL);
        }
    }
}

typedef struct {
    const product_t *product;
    const batch_t *batch;
    float *columns; /* packed */
    int failed;
} task_t;

/* Threads share the rows, and pack b together. */
static void
by_rows(void *data)
{
    task_t *task = data;
    const product_t *product = task->product;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads();
    float *rows = take_rows();
    if (rows == NULL) {
        __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
    }
    block_t block = {.from_row = product->m * thread / threads, .to_row = product->m * (thread + 1) / threads,
                   .columns = task->columns};
    for (block.row = 0; block.row < product->k; block.row += DEPTH) {
        block.depth = least(DEPTH, product->k - block.row);
        block.chain = chain_of(product, block.depth);
        block.apart = block.depth * COLUMNS;
        for (block.from_column = 0; block.from_column < product->n; block.from_column = block.to_column) {
            block.to_column = least(block.from_column + BLOCK_COLUMNS, product->n);
            int64_t count = block.to_column - block.from_column, panels = (count + COLUMNS - 1) / COLUMNS;
            int64_t first = panels * thread / threads * COLUMNS, end = least(panels * (thread + 1) / threads * COLUMNS, count);
            pack_columns(&product->b, block.row, block.depth, block.from_column + first, end - first,
                         task->columns + first * block.depth);
            fxjit_openmp.barrier();
            if (rows != NULL) {
                multiply_block(product, &block, rows);
            }
            fxjit_openmp.barrier();
        }
    }
    give_rows(rows);
}

/* So few rows that they are packed once, for all columns: a few columns are packed and multiplied while they are in the second-level
 * cache, to which the next ones are fetched meanwhile. */
static void
multiply_short(const product_t *product, int64_t from, int64_t to, float *rows, float *columns)
{
    const int64_t width = product->b.column == 1 ? 2 * COLUMNS : COLUMNS, panels = (product->m + ROWS - 1) / ROWS;
    block_t block = {.to_row = product->m, .from_column = from, .to_column = to};
    for (; block.row < product->k; block.row += block.depth) {
        int64_t end = least(product->k, block.row / DEPTH * DEPTH + DEPTH); /* sums are those of a block, whatever fits here */
        block.chain = chain_of(product, end - block.row / DEPTH * DEPTH);
        int64_t chains = BLOCK_ROWS * DEPTH / product->m / block.chain;
        block.depth = least(chains > 0 ? chains * block.chain : block.chain, end - block.row);
        int64_t calls = panels * ((block.depth + block.chain - 1) / block.chain) * (width / COLUMNS);
        pack_panels(product, &block, 0, product->m, rows);
        for (int64_t at = from; at < to; at += width) {
            int64_t count = least(width, to - at), next = at + count;
            fetch_t fetch = fetch_of(product, &block, next, least(width, to - next), calls);
            if (product->packed == NULL) {
                pack_columns(&product->b, block.row, block.depth, at, count, columns);
            }
            for (int64_t column = 0; column < count; column += COLUMNS) {
                const float *panel = product->packed == NULL ? columns + column * block.depth
                                                             : packed_panel(product, block.row, at + column);
                multiply_panel(product, &block, 0, product->m, rows, panel, at + column, &fetch);
            }
        }
    }
}

/* Many rows: block after block of b, and of a beside it. */
static void
multiply_blocks(const product_t *product, int64_t from, int64_t to, float *rows, float *columns)
{
    block_t block = {.to_row = product->m, .columns = columns};
    for (; block.row < product->k; block.row += DEPTH) {
        block.depth = least(DEPTH, product->k - block.row);
        block.chain = chain_of(product, block.depth);
        block.apart = (product->packed == NULL ? block.depth : product->k) * COLUMNS;
        for (block.from_column = from; block.from_column < to; block.from_column = block.to_column) {
            block.to_column = least(block.from_column + BLOCK_COLUMNS, to);
            if (product->packed == NULL) {
                pack_columns(&product->b, block.row, block.depth, block.from_column, block.to_column - block.from_column, columns);
            }
            else {
                block.columns = packed_panel(product, block.row, block.from_column);
            }
            multiply_block(product, &block, rows);
        }
    }
}

/* All rows by the columns from one to another, on this thread. */
static int
multiply_columns(const product_t *product, int64_t from, int64_t to)
{
    float *rows = take_rows(), *columns = take_columns();
    int failed = rows == NULL || columns == NULL;
    if (!failed && product->m <= SHORT) {
        multiply_short(product, from, to, rows, columns);
    }
    else if (!failed) {
        multiply_blocks(product, from, to, rows, columns);
    }
    give_rows(rows);
    give_columns(columns);
    return failed ? -1 : 0;
}

/* -- few rows ------------------------------------------------------------------------------------------------------*/

/* The columns of b are contiguous: a sum for each, a vector of numbers at a time. All sums are in registers, for which every loop over them
 * has to be unrolled. */
WIDE static inline __attribute__((always_inline)) void
dot(const product_t *product, int rows, int columns, int64_t column, int64_t count)
{
    const float *lines[FEW];
    UNROLLED for (int c = 0; c < columns; c++) {
        lines[c] = product->b.data + least(column + c, column + count - 1) * product->b.column;
    }
    for (int64_t from = 0; from < product->k; from += CHAIN * LANES) {
        int64_t to = least(from + CHAIN * LANES, product->k);
        vec_t s[MOST_FEW][FEW];
        UNROLLED for (int i = 0; i < rows; i++) {
            UNROLLED for (int c = 0; c < columns; c++) {
                s[i][c] = vec_zero();
            }
        }
        for (int64_t p = from; p < to; p += LANES) {
            lanes_t there = first_lanes(to - p);
            vec_t x[FEW];
            UNROLLED for (int c = 0; c < columns; c++) {
                x[c] = vec_load_some(there, lines[c] + p);
                __builtin_prefetch(lines[c] + p + columns * product->b.column, 0, 2); /* the next columns, across pages */
            }
            UNROLLED for (int i = 0; i < rows; i++) {
                vec_t y = vec_load_some(there, product->a.data + i * product->a.row + p);
                UNROLLED for (int c = 0; c < columns; c++) {
                    s[i][c] = vec_fma(x[c], y, s[i][c]);
                }
            }
        }
        UNROLLED for (int i = 0; i < rows; i++) {
            float *out = product->out + i * product->line + column;
            UNROLLED for (int c = 0; c < columns; c++) {
                float sum = vec_sum(s[i][c]);
                if (c < count) {
                    out[c] = product->add || from ? out[c] + sum : sum;
                }
            }
        }
    }
}

/* The rows of b are contiguous: some of them at a time are added to the result. */
WIDE static inline __attribute__((always_inline)) void
add_rows(const product_t *product, int rows, int64_t from, int64_t to)
{
    for (int64_t p = 0; p < product->k; p += TOGETHER) {
        int64_t deep = least(TOGETHER, product->k - p);
        const float *b = product->b.data + p * product->b.row, *a = product->a.data + p * product->a.column;
        int add = product->add || p;
        for (int64_t at = from; at < to; at += LANES) {
            lanes_t there = first_lanes(to - at);
            vec_t s[FEW];
            UNROLLED for (int i = 0; i < rows; i++) {
                s[i] = vec_zero();
            }
            UNROLLED for (int q = 0; q < TOGETHER; q++) {
                if (q < deep) {
                    vec_t x = vec_load_some(there, b + q * product->b.row + at);
                    __builtin_prefetch(b + (q + TOGETHER) * product->b.row + at, 0, 2);
                    UNROLLED for (int i = 0; i < rows; i++) {
                        float y = a[i * product->a.row + q * product->a.column];
                        s[i] = vec_fma(vec_all(y), x, s[i]);
                    }
                }
            }
            UNROLLED for (int i = 0; i < rows; i++) {
                float *out = product->out + i * product->line + at;
                s[i] = add ? vec_add(s[i], vec_load_some(there, out)) : s[i];
                vec_store_some(out, there, s[i]);
            }
        }
    }
}

/* One row by columns that follow each other in memory, which is read from one end to the other. */
WIDE static void
dot_alone(const product_t *product, int64_t first, int64_t end)
{
    const int64_t k = product->k;
    for (int64_t column = first; column < end; column++) {
        const float *line = product->b.data + column * k, *a = product->a.data;
        float total = product->add ? product->out[column] : 0;
        for (int64_t from = 0; from < k; from += CHAIN * LANES) {
            const int64_t to = least(from + CHAIN * LANES, k);
            vec_t s[LINES];
            UNROLLED for (int i = 0; i < LINES; i++) {
                s[i] = vec_zero();
            }
            int64_t p = from;
            for (; p + LINES * LANES <= to; p += LINES * LANES) {
                UNROLLED for (int i = 0; i < LINES; i++) {
                    __builtin_prefetch((const char *)(line + p + i * LANES) + AHEAD, 0, 3);
                    s[i] = vec_fma(vec_load_any(line + p + i * LANES), vec_load_any(a + p + i * LANES), s[i]);
                }
            }
            for (; p < to; p += LANES) {
                lanes_t there = first_lanes(to - p);
                s[0] = vec_fma(vec_load_some(there, line + p), vec_load_some(there, a + p), s[0]);
            }
            UNROLLED for (int half = LINES / 2; half > 0; half /= 2) {
                UNROLLED for (int i = 0; i < half; i++) {
                    s[i] = vec_add(s[i], s[i + half]);
                }
            }
            total += vec_sum(s[0]);
        }
        product->out[column] = total;
    }
}

#define FEW_ROWS(R, C) \
    WIDE static void few_##R(const product_t *product, int64_t from, int64_t to) \
    { \
        if (R <= FEW && product->b.column == 1) { \
            add_rows(product, R, from, to); \
            return; \
        } \
        if (R == 1 && product->b.column == product->k) { \
            dot_alone(product, from, to); \
            return; \
        } \
        for (int64_t column = from; column < to; column += C) { \
            dot(product, R, C, column, least(C, to - column)); \
        } \
    }
FEW_ROWS(1, 4) FEW_ROWS(2, 4) FEW_ROWS(3, 4) FEW_ROWS(4, 4) FEW_ROWS(5, 4) FEW_ROWS(6, 4)
FEW_ROWS(7, 3) FEW_ROWS(8, 3) FEW_ROWS(9, 2) FEW_ROWS(10, 2) FEW_ROWS(11, 2) FEW_ROWS(12, 2)
static void (*const few[MOST_FEW + 1])(const product_t *, int64_t, int64_t) = {
    NULL, few_1, few_2, few_3, few_4, few_5, few_6, few_7, few_8, few_9, few_10, few_11, few_12,
};

/* -- calls ---------------------------------------------------------------------------------------------------------*/

static int
is_few(const product_t *product)
{
    int dots = product->b.column != 1 && product->a.column == 1;
    if (product->packed != NULL) {
        return 0;
    }
    return product->m <= FEW ? dots || product->b.column == 1 : product->m <= MOST_FEW && dots && product->k >= LONG;
}

static int
multiply_range(const product_t *product, int64_t from, int64_t to)
{
    if (is_few(product)) {
        few[product->m](product, from, to);
        return 0;
    }
    if (product->by_tiles) {
        part_t part = {.from_row = 0, .to_row = product->m, .from_column = from, .to_column = to};
        return fxjit_gemm_by_tiles(product, &part);
    }
    return multiply_columns(product, from, to);
}

/* Threads share the columns. */
static void
by_columns(void *data)
{
    task_t *task = data;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads();
    int64_t panels = (task->product->n + COLUMNS - 1) / COLUMNS;
    int64_t from = panels * thread / threads * COLUMNS, to = least(panels * (thread + 1) / threads * COLUMNS, task->product->n);
    if (from < to && multiply_range(task->product, from, to) < 0) {
        __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
    }
}

/* Threads share rows and columns, and each packs its own. */
static void
by_parts(void *data)
{
    task_t *task = data;
    part_t part = fxjit_tiles_share(task->product, fxjit_openmp.thread(), fxjit_openmp.threads());
    if (part.from_row < part.to_row && part.from_column < part.to_column && fxjit_gemm_by_tiles(task->product, &part) < 0) {
        __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
    }
}

static int
threads_for(int64_t work)
{
    return fxjit_openmp.inside() ? 1 : (int)least(fxjit_openmp.most(), work / WORK + 1);
}

int
fxjit_gemm_alone(const product_t *product)
{
    return multiply_range(product, 0, product->n);
}

int
fxjit_gemm(const product_t *product)
{
    int threads = threads_for(product->m * product->n * product->k);
    if (threads == 1) {
        return fxjit_gemm_alone(product);
    }
    task_t task = {.product = product};
    if (product->by_tiles && !is_few(product)) {
        fxjit_openmp.parallel(by_parts, &task, (unsigned)threads, 0);
        return task.failed ? -1 : 0;
    }
    int wide = (product->m <= SHORT && product->n >= ALONE * threads) || product->packed != NULL;
    if (is_few(product) || wide || product->m < 2 * ROWS * threads) {
        fxjit_openmp.parallel(by_columns, &task, (unsigned)threads, 0);
        return task.failed ? -1 : 0;
    }
    task.columns = take_columns();
    if (task.columns == NULL) {
        return -1;
    }
    fxjit_openmp.parallel(by_rows, &task, (unsigned)threads, 0);
    give_columns(task.columns);
    return task.failed ? -1 : 0;
}

int
fxjit_gemm_by_size(const product_t *product)
{
    product_t chosen = *product;
    chosen.by_tiles = least(least(product->m, product->n), product->k) >= TILED && fxjit_tiles_run();
    return fxjit_gemm(&chosen);
}

static product_t
of_batch(const product_t *first, const batch_t *batch, int64_t at)
{
    product_t product = *first;
    product.a.data += at * batch->a;
    product.b.data += at * batch->b;
    product.out += at * batch->out;
    return product;
}

/* Threads share the products. */
static void
by_products(void *data)
{
    task_t *task = data;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads(), count = task->batch->count;
    for (int64_t at = count * thread / threads; at < count * (thread + 1) / threads; at++) {
        product_t product = of_batch(task->product, task->batch, at);
        if (multiply_range(&product, 0, product.n) < 0) {
            __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
        }
    }
}

int
fxjit_gemm_batch(const product_t *first, const batch_t *batch)
{
    int threads = threads_for(batch->count * first->m * first->n * first->k);
    if (threads > 1 && batch->count >= threads) {
        task_t task = {.product = first, .batch = batch};
        fxjit_openmp.parallel(by_products, &task, (unsigned)threads, 0);
        return task.failed ? -1 : 0;
    }
    for (int64_t at = 0; at < batch->count; at++) {
        product_t product = of_batch(first, batch, at);
        if (fxjit_gemm(&product) < 0) {
            return -1;
        }
    }
    return 0;
}

#endif
