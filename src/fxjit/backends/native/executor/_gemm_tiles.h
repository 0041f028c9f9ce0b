/* Products of float32 matrices by tiles of bfloat16: _gemm_tiles.c. */
#ifndef FXJIT_GEMM_TILES_H
#define FXJIT_GEMM_TILES_H

#include "_gemm.h"

/* Rows and columns of a product, from one number to another. */
typedef struct {
    int64_t from_row, to_row, from_column, to_column;
} part_t;

/* Whether this processor has such tiles, and the system gives leave to use them. */
int fxjit_tiles_run(void);
/* A part on the caller's thread; 0, or -1 where there is no memory. */
int fxjit_gemm_by_tiles(const product_t *product, const part_t *part);
/* The part of one of so many threads, which may be empty. */
part_t fxjit_tiles_share(const product_t *product, int64_t thread, int64_t threads);

#endif
