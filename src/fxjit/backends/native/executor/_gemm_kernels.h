/* The innermost loops of products of float32 (_gemm.c): up to 14 rows by 32 columns of a result, or by 16, stay in registers, and
 * each step adds a column of a times a row of b. Rows of b are packed in panels of 32; a is packed too, or read where it lies. */
#ifndef FXJIT_GEMM_KERNELS_H
#define FXJIT_GEMM_KERNELS_H

#include "_wide.h"

enum {
    ROWS = 14,
    COLUMNS = 32,
};

/* One chain of `depth` products; rows of a that lie where they are, are `a_line` apart, those of the result `line`. `left` and
 * `right`: which of the 16 columns of each half there are; with `add` they are added to. */
typedef void (*gemm_kernel_fn)(int64_t depth, const float *a, int64_t a_line, const float *b, float *out, int64_t line,
                               __mmask16 left, __mmask16 right, int add);

#define PACKED_AT(i) a[i]
#define DIRECT_AT(i) group[(i) / 3][(i) % 3 * a_line] /* three rows for each pointer: addresses take few registers */

#define KERNEL(NAME, R, HALVES, AT, STEP) \
    WIDE static void NAME##_##HALVES##_##R(int64_t depth, const float *restrict a, int64_t a_line, const float *restrict b, \
                                           float *restrict out, int64_t line, __mmask16 left, __mmask16 right, int add) \
    { \
        __m512 s[R], t[R]; \
        const float *group[(R + 2) / 3]; \
        UNROLLED for (int i = 0; i < (R + 2) / 3; i++) { \
            group[i] = a + 3 * i * a_line; \
        } \
        (void)group; /* of rows that are packed */ \
        UNROLLED for (int i = 0; i < R; i++) { \
            s[i] = t[i] = _mm512_setzero_ps(); \
            __builtin_prefetch(out + i * line, 1); \
            if (HALVES == 2) { \
                __builtin_prefetch(out + i * line + LANES, 1); \
            } \
        } \
        for (int64_t p = 0; p < depth; p++, b += COLUMNS) { \
            __m512 first = _mm512_load_ps(b), second = HALVES == 2 ? _mm512_load_ps(b + LANES) : first; \
            UNROLLED for (int i = 0; i < R; i++) { \
                __m512 x = _mm512_set1_ps(AT(i)); \
                s[i] = _mm512_fmadd_ps(x, first, s[i]); \
                t[i] = HALVES == 2 ? _mm512_fmadd_ps(x, second, t[i]) : t[i]; \
            } \
            STEP; \
        } \
        UNROLLED for (int i = 0; i < R; i++, out += line) { \
            s[i] = add ? _mm512_add_ps(s[i], _mm512_maskz_loadu_ps(left, out)) : s[i]; \
            _mm512_mask_storeu_ps(out, left, s[i]); \
            if (HALVES == 2) { \
                t[i] = add ? _mm512_add_ps(t[i], _mm512_maskz_loadu_ps(right, out + LANES)) : t[i]; \
                _mm512_mask_storeu_ps(out + LANES, right, t[i]); \
            } \
        } \
    }
#define PACKED(R, HALVES) KERNEL(packed, R, HALVES, PACKED_AT, a += R)
#define DIRECT(R, HALVES) \
    KERNEL(direct, R, HALVES, DIRECT_AT, UNROLLED for (int i = 0; i < (R + 2) / 3; i++) { group[i]++; })
#define OF_ALL_HEIGHTS(MAKE, HALVES) \
    MAKE(1, HALVES) MAKE(2, HALVES) MAKE(3, HALVES) MAKE(4, HALVES) MAKE(5, HALVES) MAKE(6, HALVES) MAKE(7, HALVES) \
    MAKE(8, HALVES) MAKE(9, HALVES) MAKE(10, HALVES) MAKE(11, HALVES) MAKE(12, HALVES) MAKE(13, HALVES) MAKE(14, HALVES)
OF_ALL_HEIGHTS(PACKED, 1)
OF_ALL_HEIGHTS(PACKED, 2)
OF_ALL_HEIGHTS(DIRECT, 1)
OF_ALL_HEIGHTS(DIRECT, 2)

#define TABLE(NAME, HALVES) \
    {NULL, NAME##_##HALVES##_1, NAME##_##HALVES##_2, NAME##_##HALVES##_3, NAME##_##HALVES##_4, NAME##_##HALVES##_5, \
     NAME##_##HALVES##_6, NAME##_##HALVES##_7, NAME##_##HALVES##_8, NAME##_##HALVES##_9, NAME##_##HALVES##_10, \
     NAME##_##HALVES##_11, NAME##_##HALVES##_12, NAME##_##HALVES##_13, NAME##_##HALVES##_14}
static const gemm_kernel_fn packed_kernels[2][ROWS + 1] = {TABLE(packed, 1), TABLE(packed, 2)};
static const gemm_kernel_fn direct_kernels[2][ROWS + 1] = {TABLE(direct, 1), TABLE(direct, 2)};

#endif
