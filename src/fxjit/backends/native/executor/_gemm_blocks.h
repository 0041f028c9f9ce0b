/* What the kernels of float32 products share: one scheme of blocks (_gemm.c), two ways to pack and to multiply them. */
#ifndef FXJIT_GEMM_BLOCKS_H
#define FXJIT_GEMM_BLOCKS_H

#include "_gemm.h"

enum {
    PANEL = 32,         /* columns of a packed panel of b */
    BLOCK_COLUMNS = 1024, /* of b: 3 MB */
};

/* A part of a product: rows and columns from one number to another, `depth` terms from `row` on, and the packed columns, which
 * begin at `from_column`. */
typedef struct {
    int64_t from_row, to_row, from_column, to_column, row, depth;
    const char *columns;
} part_t;

typedef struct {
    int64_t depth;                         /* terms of a packed block */
    int64_t height;                        /* rows that stay together when threads share them */
    int64_t rows_bytes;                    /* of a packed block of a */
    int64_t (*panel_bytes)(int64_t depth); /* of a packed panel of columns */
    void (*pack)(const matrix_t *b, int64_t row, int64_t depth, int64_t column, int64_t count, char *to);
    /* `room` is for packed rows; 0, or -1 where there is no memory. */
    int (*multiply)(const product_t *product, const part_t *part, char *room);
} blocks_t;

/* By bfloat16 tiles: NULL where the processor has none, or where there is no leave to use them. */
const blocks_t *fxjit_gemm_tiles(void);
/* A part by vectors, with nothing packed before; 0, or -1 where there is no memory. */
int fxjit_gemm_by_vectors(const product_t *product);

#endif
