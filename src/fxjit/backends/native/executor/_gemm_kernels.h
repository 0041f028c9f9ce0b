/* The innermost loops of products of float32 (_gemm.c): up to ROWS rows of a result by two vectors of columns, or by one, stay in registers, and
 * each step adds a column of a times a row of b. Rows of b are packed in panels of two vectors; a is packed too, or read where it lies. */
#ifndef FXJIT_GEMM_KERNELS_H
#define FXJIT_GEMM_KERNELS_H

#include "_wide.h"

/* One chain of `depth` products; rows of a that lie where they are, are `a_line` apart, those of the result `line`. `left` and
 * `right`: which columns of each half there are; with `add` they are added to. */
typedef void (*gemm_kernel_fn)(int64_t depth, const float *a, int64_t a_line, const float *b, float *out, int64_t line,
                               lanes_t left, lanes_t right, int add);

#define PACKED_AT(i) a[i]
#define DIRECT_AT(i) group[(i) / 3][(i) % 3 * a_line] /* three rows for each pointer: addresses take few registers */

#define KERNEL(NAME, R, HALVES, AT, STEP) \
    WIDE static void NAME##_##HALVES##_##R(int64_t depth, const float *restrict a, int64_t a_line, const float *restrict b, \
                                           float *restrict out, int64_t line, lanes_t left, lanes_t right, int add) \
    { \
        vec_t s[R], t[R]; \
        const float *group[(R + 2) / 3]; \
        UNROLLED for (int i = 0; i < (R + 2) / 3; i++) { \
            group[i] = a + 3 * i * a_line; \
        } \
        (void)group; /* of rows that are packed */ \
        UNROLLED for (int i = 0; i < R; i++) { \
            s[i] = t[i] = vec_zero(); \
            __builtin_prefetch(out + i * line, 1); \
            if (HALVES == 2) { \
                __builtin_prefetch(out + i * line + LANES, 1); \
            } \
        } \
        for (int64_t p = 0; p < depth; p++, b += COLUMNS) { \
            vec_t first = vec_load(b), second = HALVES == 2 ? vec_load(b + LANES) : first; \
            UNROLLED for (int i = 0; i < R; i++) { \
                vec_t x = vec_all(AT(i)); \
                s[i] = vec_fma(x, first, s[i]); \
                t[i] = HALVES == 2 ? vec_fma(x, second, t[i]) : t[i]; \
            } \
            STEP; \
        } \
        UNROLLED for (int i = 0; i < R; i++, out += line) { \
            s[i] = add ? vec_add(s[i], vec_load_some(left, out)) : s[i]; \
            vec_store_some(out, left, s[i]); \
            if (HALVES == 2) { \
                t[i] = add ? vec_add(t[i], vec_load_some(right, out + LANES)) : t[i]; \
                vec_store_some(out + LANES, right, t[i]); \
            } \
        } \
    }
#define DIRECT(R, HALVES) \
    KERNEL(direct, R, HALVES, DIRECT_AT, UNROLLED for (int i = 0; i < (R + 2) / 3; i++) { group[i]++; })
OF_ALL_HEIGHTS(DIRECT, 1)
OF_ALL_HEIGHTS(DIRECT, 2)

#define DIRECT_AT_HEIGHT(R, HALVES) [R] = direct_##HALVES##_##R,
static const gemm_kernel_fn direct_kernels[2][ROWS + 1] = {
    {OF_ALL_HEIGHTS(DIRECT_AT_HEIGHT, 1)},
    {OF_ALL_HEIGHTS(DIRECT_AT_HEIGHT, 2)},
};

#endif
