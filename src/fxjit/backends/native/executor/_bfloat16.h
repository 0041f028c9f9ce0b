/* Products of few rows of bfloat16 by kernels of our own, for processors with AVX2 or AVX-512: _bfloat16.c. */
#ifndef FXJIT_BFLOAT16_H
#define FXJIT_BFLOAT16_H

#include <stdint.h>

enum { FXJIT_FEW_ROWS = 12 };

/* out[m, n] = a[m, k] b[k, n] (+ bias[n], or NULL), m at most FXJIT_FEW_ROWS: rows of a, columns of b and rows of out are
 * contiguous, and as far apart as their lines say. */
typedef struct {
    int64_t m, n, k;
    const uint16_t *a, *bias;
    const void *b; /* bfloat16, or integers of eight bits where it is narrow */
    int narrow;
    int64_t a_line, b_line, line;
    uint16_t *out;
} few_t;

/* 0, or -1 where there is no memory. Without the GIL. */
int fxjit_few_bfloat16(const few_t *product);

#endif
