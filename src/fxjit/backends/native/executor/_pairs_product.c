/* Products of bfloat16 by pairs of numbers (_pairs.c), mostly by weights whose columns are contiguous, as those of linear layers. A block
 * of columns is packed for the second-level cache, and meets some rows at a time. Of few rows these are packed, once, and meet the
 * columns where they lie, which are read once; results are turned on their way out then. Sums are floats and are rounded once, at the
 * end. The number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_wide.h"
#include "_pairs.h"

#ifdef FXJIT_HAS_WIDE

enum {
    ROWS_AT_ONCE = FXJIT_PAIR_ROWS,
    DEPTH = 1024,          /* terms of a packed block */
    BLOCK = 512 << 10,     /* bytes of the second-level cache that packed columns take */
    ALIASED = 512,         /* bytes of which rows' distance is no multiple: else they share sets of the first-level cache, */
    EXTRA = 32,            /* and are copied, so many terms apart */
    FEW = 64,             /* rows up to which packing each column would show, */
    FEW_BYTES = 1 << 20,   /* if they are as many bytes when they are packed, */
    TIMES = 4,             /* and columns are so many times as many */
    TOGETHER = 8 * FXJIT_PAIR_ROWS, /* columns whose results are turned at once */
    LINE = 64,
    WORK = 1 << 18,        /* multiplications for which a thread is called */
};

typedef struct {
    const pairs_product_t *product;
    const uint32_t *packed; /* few rows */
    int failed;
} pairs_task_t;

static int64_t
whole(int64_t count, int64_t of)
{
    return (count + of - 1) / of * of;
}

/* Rows of pairs that a kernel can read: where they lie, or copied. */
static const uint32_t *
lines_of(const uint16_t *from, int64_t line, int64_t rows, int64_t terms, uint16_t *copy, int64_t *pairs)
{
    if (line % 2 == 0 && terms % 2 == 0 && line * 2 % ALIASED != 0) {
        *pairs = line / 2;
        return (const uint32_t *)from;
    }
    *pairs = (DEPTH + EXTRA) / 2;
    for (int64_t row = 0; row < rows; row++) {
        uint16_t *to = copy + row * (DEPTH + EXTRA);
        memcpy(to, from + row * line, (size_t)terms * 2);
        to[terms] = 0;
    }
    return (const uint32_t *)copy;
}

/* -- columns that are packed ---------------------------------------------------------------------------------------*/

/* Columns of a block: whole panels. */
static int64_t
columns_of_block(const pairs_product_t *p)
{
    int64_t fit = BLOCK / 2 / whole(least(p->k, DEPTH), 2) / FXJIT_PAIR_COLUMNS * FXJIT_PAIR_COLUMNS;
    return least(whole(p->n, FXJIT_PAIR_COLUMNS), fit < FXJIT_PAIR_COLUMNS ? FXJIT_PAIR_COLUMNS : fit);
}

/* The columns' terms from one on, so many of them, in panels: where they are packed for good, or packed now. */
static const uint32_t *
packed_columns(const pairs_product_t *p, int64_t column, int64_t columns, int64_t term, int64_t terms, uint32_t *room)
{
    if (p->packed != NULL) {
        return p->packed + term / 2 * whole(p->n, FXJIT_PAIR_COLUMNS) + column * ((terms + 1) / 2);
    }
    if (p->by_rows) {
        fxjit_pairs_join(p->b + term * p->b_line + column, p->b_line, terms, columns, room);
    }
    else {
        fxjit_pairs_turn(p->b + column * p->b_line + term, p->b_line, columns, terms, room);
    }
    return room;
}

/* Rows from `from` to `to` by columns from `first` to `last`. */
static int
multiply_range(const pairs_product_t *p, int64_t from, int64_t to, int64_t first, int64_t last)
{
    const int64_t block = columns_of_block(p), pairs = whole(least(p->k, DEPTH), 2) / 2;
    const int64_t kept = p->k > DEPTH ? to - from : ROWS_AT_ONCE; /* sums of all rows, where there are several blocks of terms */
    const int64_t groups = (to - from + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    const int64_t sizes[] = {block * pairs * 4, kept * block * 4, ROWS_AT_ONCE * (DEPTH + EXTRA) * 2};
    char *room;
    if (posix_memalign((void **)&room, 64, (size_t)(sizes[0] + sizes[1] + sizes[2])) != 0) {
        return -1;
    }
    uint32_t *packed = (uint32_t *)room;
    float *sums = (float *)(room + sizes[0]);
    uint16_t *copy = (uint16_t *)(room + sizes[0] + sizes[1]);
    for (int64_t column = first; column < last; column += block) {
        const int64_t columns = least(block, last - column);
        for (int64_t term = 0; term < p->k; term += DEPTH) {
            const int64_t terms = least(DEPTH, p->k - term), steps = (terms + 1) / 2;
            const uint32_t *panels = packed_columns(p, column, columns, term, terms, packed);
            for (int64_t group = 0, row = from; group < groups; group++) {
                const int64_t height = (to - row + groups - group - 1) / (groups - group);
                int64_t line;
                const uint32_t *a = lines_of(p->a + row * p->a_line + term, p->a_line, height, terms, copy, &line);
                float *here = kept == ROWS_AT_ONCE ? sums : sums + (row - from) * block;
                fxjit_pairs_multiply(a, line, 0, panels, steps, height, columns, steps, here, block, term != 0);
                if (term + terms == p->k) {
                    fxjit_pairs_finish(here, block, p->bias == NULL ? NULL : p->bias + column, height, columns,
                                       p->out + row * p->line + column, p->line);
                }
                row += height;
            }
        }
    }
    free(room);
    return 0;
}

/* -- few rows that are packed --------------------------------------------------------------------------------------*/

static int
has_few_rows(const pairs_product_t *p)
{
    return p->packed == NULL && !p->by_rows && p->m <= FEW && p->n >= TIMES * p->m && whole(p->m, FXJIT_PAIR_COLUMNS) * p->k * 2 <= FEW_BYTES;
}

/* All rows, which are packed by blocks of terms. */
static uint32_t *
pack_few(const pairs_product_t *p)
{
    const int64_t columns = whole(p->m, FXJIT_PAIR_COLUMNS);
    uint32_t *packed;
    if (posix_memalign((void **)&packed, 64, (size_t)(columns * whole(p->k, 2) * 2)) != 0) {
        return NULL;
    }
    for (int64_t term = 0; term < p->k; term += DEPTH) {
        fxjit_pairs_turn(p->a + term, p->a_line, p->m, least(DEPTH, p->k - term), packed + columns * term / 2);
    }
    return packed;
}

/* Columns that meet the packed rows one after the other: `height` of them, `terms` of each. */
typedef struct {
    int64_t column, height, term, terms;
} chunk_t;

/* Asks for a part of the chunk, `part` of `parts`, to be in the second-level cache by the time it is read. */
static void
fetch(const pairs_product_t *p, const chunk_t *chunk, int64_t part, int64_t parts)
{
    const int64_t lines = (chunk->terms * 2 + LINE - 1) / LINE;
    for (int64_t row = chunk->height * part / parts; row < chunk->height * (part + 1) / parts; row++) {
        const char *from = (const char *)(p->b + (chunk->column + row) * p->b_line + chunk->term);
        for (int64_t line = 0; line < lines; line++) {
            __builtin_prefetch(from + line * LINE, 0, 2);
        }
    }
}

/* The chunk behind it: further terms of the same columns, or the next columns. */
static chunk_t
chunk_after(const pairs_product_t *p, const chunk_t *chunk, int64_t last)
{
    chunk_t next = *chunk;
    next.term += DEPTH;
    if (next.term >= p->k) {
        next.term = 0;
        next.column += chunk->height;
        next.height = least(ROWS_AT_ONCE, last - next.column);
    }
    next.terms = least(DEPTH, p->k - next.term);
    return next;
}

static int
multiply_few(const pairs_task_t *task, int64_t first, int64_t last)
{
    const pairs_product_t *p = task->product;
    const int64_t columns = whole(p->m, FXJIT_PAIR_COLUMNS), panels = columns / FXJIT_PAIR_COLUMNS, bytes = TOGETHER * columns * 4;
    char *room;
    if (posix_memalign((void **)&room, 64, (size_t)(bytes + ROWS_AT_ONCE * (DEPTH + EXTRA) * 2)) != 0) {
        return -1;
    }
    float *sums = (float *)room;
    uint16_t *copy = (uint16_t *)(room + bytes);
    int64_t begin = first;
    chunk_t chunk = {first, least(ROWS_AT_ONCE, last - first), 0, least(DEPTH, p->k)};
    while (chunk.column < last) {
        const chunk_t next = chunk_after(p, &chunk, last);
        const int64_t steps = (chunk.terms + 1) / 2;
        int64_t line;
        const uint32_t *b = lines_of(p->b + chunk.column * p->b_line + chunk.term, p->b_line, chunk.height, chunk.terms, copy, &line);
        for (int64_t panel = 0; panel < panels; panel++) {
            const int64_t at = panel * FXJIT_PAIR_COLUMNS;
            if (next.column < last) {
                fetch(p, &next, panel, panels);
            }
            fxjit_pairs_multiply(b, line, 0, task->packed + columns * chunk.term / 2 + at * steps, steps, chunk.height,
                                 least(FXJIT_PAIR_COLUMNS, p->m - at), steps, sums + (chunk.column - begin) * columns + at, columns,
                                 chunk.term != 0);
        }
        const int64_t end = next.column;
        if (end != chunk.column && (end - begin == TOGETHER || end >= last)) {
            fxjit_pairs_finish_turned(sums, columns, p->bias == NULL ? NULL : p->bias + begin, least(end, last) - begin, p->m,
                                      p->out + begin, p->line);
            begin = end;
        }
        chunk = next;
    }
    free(room);
    return 0;
}

/* -- calls ---------------------------------------------------------------------------------------------------------*/

static void
multiply_share(pairs_task_t *task, int64_t thread, int64_t threads)
{
    const pairs_product_t *p = task->product;
    const int by_rows = task->packed == NULL && p->m >= TIMES * p->n;
    const int64_t unit = by_rows ? ROWS_AT_ONCE : FXJIT_PAIR_COLUMNS, count = by_rows ? p->m : p->n, units = (count + unit - 1) / unit;
    const int64_t first = units * thread / threads * unit, last = least(units * (thread + 1) / threads * unit, count);
    int done = 0;
    if (first < last && task->packed != NULL) {
        done = multiply_few(task, first, last);
    }
    else if (first < last) {
        done = by_rows ? multiply_range(p, first, last, 0, p->n) : multiply_range(p, 0, p->m, first, last);
    }
    if (done < 0) {
        __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
    }
}

static void
multiply_in_region(void *data)
{
    multiply_share(data, fxjit_openmp.thread(), fxjit_openmp.threads());
}

int
fxjit_pairs_product(const pairs_product_t *p)
{
    uint32_t *packed = has_few_rows(p) ? pack_few(p) : NULL;
    pairs_task_t task = {p, packed, 0};
    int threads = fxjit_openmp.inside() ? 1 : (int)least(fxjit_openmp.most(), p->m * p->n * p->k / WORK + 1);
    if (threads == 1) {
        multiply_share(&task, 0, 1);
    }
    else {
        fxjit_openmp.parallel(multiply_in_region, &task, (unsigned)threads, 0);
    }
    free(packed);
    return task.failed ? -1 : 0;
}

int64_t
fxjit_packed_pairs(int64_t columns, int64_t terms)
{
    return whole(columns, FXJIT_PAIR_COLUMNS) * whole(terms, 2) / 2;
}

void
fxjit_pairs_pack(const pairs_product_t *p, uint32_t *to)
{
    for (int64_t term = 0; term < p->k; term += DEPTH) {
        const int64_t terms = least(DEPTH, p->k - term);
        packed_columns(p, 0, p->n, term, terms, to + term / 2 * whole(p->n, FXJIT_PAIR_COLUMNS));
    }
}

#else

int64_t
fxjit_packed_pairs(int64_t columns, int64_t terms)
{
    Py_FatalError("there are no kernels of pairs for this processor");
}

void
fxjit_pairs_pack(const pairs_product_t *p, uint32_t *to)
{
    Py_FatalError("there are no kernels of pairs for this processor");
}

int
fxjit_pairs_product(const pairs_product_t *p)
{
    Py_FatalError("there are no kernels of pairs for this processor");
}

#endif
