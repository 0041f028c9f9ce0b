/* Products of bfloat16 by pairs of numbers, and packing for them (_pairs.h). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_wide.h"
#include "_gemm.h"
#include "_pairs.h"

#if defined(FXJIT_HAS_WIDE) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <cpuid.h>

#pragma GCC optimize("O3")

#define PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512bf16")))

enum { PANEL = FXJIT_PAIR_COLUMNS, MOST_ROWS = FXJIT_PAIR_ROWS, LANES_16 = 2 * LANES };

int
fxjit_pairs_run(void)
{
    static int known = -1;
    unsigned a, b, c, d;
    if (known < 0) {
        known = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)) && __builtin_cpu_supports("avx512bw");
    }
    return known && fxjit_has_avx512();
}

/* -- products ------------------------------------------------------------------------------------------------------*/

typedef void (*pairs_fn)(int64_t depth, const uint32_t *a, int64_t a_line, const uint32_t *b, float *out, int64_t line, int add);

PAIRS INLINED __m512bh
pair_everywhere(const uint32_t *a)
{
    return (__m512bh)_mm512_set1_epi32((int)*a);
}

PAIRS INLINED __m512bh
pairs_at(const uint32_t *b)
{
    return (__m512bh)_mm512_load_si512(b);
}

/* Rows of a where they lie (three for each pointer: addresses take few registers), or across: columns of them. */
#define LYING(i) group[(i) / 3] + (i) % 3 * a_line
#define ACROSS(i) a + (i)
#define NEXT_LYING(R) UNROLLED for (int i = 0; i < (R + 2) / 3; i++) { group[i]++; }
#define NEXT_ACROSS(R) a += a_line

#define KERNEL(NAME, R, VECTORS, AT, NEXT) \
    PAIRS static void NAME##_##VECTORS##_##R(int64_t depth, const uint32_t *restrict a, int64_t a_line, \
                                             const uint32_t *restrict b, float *restrict out, int64_t line, int add) \
    { \
        __m512 s[R], t[R]; \
        const uint32_t *group[(R + 2) / 3]; \
        UNROLLED for (int i = 0; i < (R + 2) / 3; i++) { \
            group[i] = a + 3 * i * a_line; \
        } \
        (void)group; \
        UNROLLED for (int i = 0; i < R; i++) { \
            s[i] = add ? _mm512_loadu_ps(out + i * line) : _mm512_setzero_ps(); \
            t[i] = add && VECTORS == 2 ? _mm512_loadu_ps(out + i * line + LANES) : _mm512_setzero_ps(); \
        } \
        for (int64_t p = 0; p < depth; p++, b += PANEL) { \
            __m512bh first = pairs_at(b), second = VECTORS == 2 ? pairs_at(b + LANES) : first; \
            UNROLLED for (int i = 0; i < R; i++) { \
                __m512bh x = pair_everywhere(AT(i)); \
                s[i] = _mm512_dpbf16_ps(s[i], first, x); \
                t[i] = VECTORS == 2 ? _mm512_dpbf16_ps(t[i], second, x) : t[i]; \
            } \
            NEXT(R); \
        } \
        UNROLLED for (int i = 0; i < R; i++) { \
            _mm512_storeu_ps(out + i * line, s[i]); \
            if (VECTORS == 2) { \
                _mm512_storeu_ps(out + i * line + LANES, t[i]); \
            } \
        } \
    }
#define MAKE_LYING(R, VECTORS) KERNEL(lying, R, VECTORS, LYING, NEXT_LYING)
#define MAKE_ACROSS(R, VECTORS) KERNEL(across, R, VECTORS, ACROSS, NEXT_ACROSS)
OF_ALL_HEIGHTS(MAKE_LYING, 1)
OF_ALL_HEIGHTS(MAKE_LYING, 2)
OF_ALL_HEIGHTS(MAKE_ACROSS, 1)
OF_ALL_HEIGHTS(MAKE_ACROSS, 2)

#define LYING_AT_HEIGHT(R, VECTORS) [R] = lying_##VECTORS##_##R,
#define ACROSS_AT_HEIGHT(R, VECTORS) [R] = across_##VECTORS##_##R,
static const pairs_fn kernels[2][2][MOST_ROWS + 1] = {
    {{OF_ALL_HEIGHTS(LYING_AT_HEIGHT, 1)}, {OF_ALL_HEIGHTS(LYING_AT_HEIGHT, 2)}},
    {{OF_ALL_HEIGHTS(ACROSS_AT_HEIGHT, 1)}, {OF_ALL_HEIGHTS(ACROSS_AT_HEIGHT, 2)}},
};

void
fxjit_pairs_multiply(const uint32_t *a, int64_t a_line, int across, const uint32_t *b, int64_t b_rows, int64_t rows,
                     int64_t columns, int64_t depth, float *out, int64_t line, int add)
{
    const int64_t groups = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t column = 0; column < columns; column += PANEL, b += PANEL * b_rows) {
        const pairs_fn *of_height = kernels[across][columns - column > LANES];
        for (int64_t group = 0, row = 0; group < groups; group++) {
            int64_t height = (rows - row + groups - group - 1) / (groups - group);
            of_height[height](depth, a + row * (across ? 1 : a_line), a_line, b, out + row * line + column, line, add);
            row += height;
        }
    }
}

/* -- packing -------------------------------------------------------------------------------------------------------*/

PAIRS INLINED __m512i
numbers_at(const uint16_t *from, int64_t count)
{
    __mmask32 there = count >= LANES_16 ? 0xffffffff : count <= 0 ? 0 : (1u << count) - 1;
    return _mm512_maskz_loadu_epi16(there, from);
}

PAIRS void
fxjit_pairs_turn(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to)
{
    const int64_t pairs = (width + 1) / 2;
    for (int64_t panel = 0; panel < count; panel += PANEL, to += PANEL * pairs) {
        for (int64_t side = 0; side < PANEL; side += LANES) {
            for (int64_t at = 0; at < width; at += LANES_16) {
                __m512 r[LANES];
                UNROLLED for (int64_t i = 0; i < LANES; i++) {
                    int64_t line = panel + side + i;
                    r[i] = line < count ? _mm512_castsi512_ps(numbers_at(from + line * row + at, width - at)) : _mm512_setzero_ps();
                }
                turn(r);
                for (int64_t i = 0; i < least(LANES, pairs - at / 2); i++) {
                    _mm512_store_ps(to + (at / 2 + i) * PANEL + side, r[i]);
                }
            }
        }
    }
}

/* Of two vectors of 32 numbers: pairs of their first and of their last 16. */
PAIRS INLINED void
store_joined(__m512i first, __m512i second, uint32_t *to)
{
    __m512i a = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(first)), b = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(second));
    _mm512_store_si512(to, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
    a = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(first, 1));
    b = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(second, 1));
    _mm512_store_si512(to + LANES, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

PAIRS void
fxjit_pairs_join(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to)
{
    for (int64_t panel = 0; panel < width; panel += PANEL) {
        for (int64_t i = 0; i < count; i += 2, to += PANEL) {
            const uint16_t *at = from + i * row + panel;
            store_joined(numbers_at(at, width - panel), i + 1 < count ? numbers_at(at + row, width - panel) : _mm512_setzero_si512(),
                         to);
        }
    }
}

PAIRS void
fxjit_pairs_take(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t at = 0; at < width; at += LANES_16, to += LANES) {
            _mm512_store_si512(to, numbers_at(from + i * row + at, width - at));
        }
    }
}

PAIRS void
fxjit_pairs_round(const float *from, int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i += LANES) {
        _mm256_storeu_si256((void *)((uint16_t *)to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
    }
}

PAIRS void
fxjit_pairs_of_rows(const float *first, const float *second, int64_t count, uint32_t *to)
{
    for (int64_t i = 0; i < count; i += LANES) {
        __m512i a = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(first + i)));
        if (second != NULL) {
            __m512i b = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(second + i)));
            a = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
        }
        _mm512_storeu_si512(to + i, a);
    }
}

PAIRS void
fxjit_pairs_finish(const float *sums, int64_t sums_line, const uint16_t *bias, int64_t rows, int64_t columns, uint16_t *out,
                   int64_t line)
{
    for (int64_t i = 0; i < rows; i++, sums += sums_line, out += line) {
        for (int64_t j = 0; j < columns; j += LANES) {
            const __mmask16 there = first_lanes(columns - j);
            __m512 x = _mm512_loadu_ps(sums + j);
            if (bias != NULL) {
                __m512i more = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, bias + j));
                x = _mm512_add_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(more, 16)));
            }
            _mm256_mask_storeu_epi16(out + j, there, (__m256i)_mm512_cvtneps_pbh(x));
        }
    }
}

PAIRS void
fxjit_pairs_finish_turned(const float *sums, int64_t sums_line, const uint16_t *bias, int64_t rows, int64_t columns, uint16_t *out,
                          int64_t line)
{
    for (int64_t row = 0; row < rows; row += LANES) {
        const __mmask16 there = first_lanes(rows - row);
        __m512 more = _mm512_setzero_ps();
        if (bias != NULL) {
            __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, bias + row));
            more = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
        }
        for (int64_t column = 0; column < columns; column += LANES) {
            __m512 r[LANES];
            UNROLLED for (int64_t i = 0; i < LANES; i++) {
                r[i] = row + i < rows ? _mm512_loadu_ps(sums + (row + i) * sums_line + column) : _mm512_setzero_ps();
            }
            turn(r);
            for (int64_t i = 0; i < least(LANES, columns - column); i++) {
                _mm256_mask_storeu_epi16(out + (column + i) * line + row, there, (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(r[i], more)));
            }
        }
    }
}

#else /* another processor, or a compiler that does not know them */

int
fxjit_pairs_run(void)
{
    return 0;
}

#define NOT_HERE Py_FatalError("there are no kernels of pairs for this processor")

void
fxjit_pairs_multiply(const uint32_t *a, int64_t a_line, int across, const uint32_t *b, int64_t b_rows, int64_t rows,
                     int64_t columns, int64_t depth, float *out, int64_t line, int add)
{
    NOT_HERE;
}

void
fxjit_pairs_turn(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to)
{
    NOT_HERE;
}

void
fxjit_pairs_join(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to)
{
    NOT_HERE;
}

void
fxjit_pairs_take(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to)
{
    NOT_HERE;
}

void
fxjit_pairs_round(const float *from, int64_t count, void *to)
{
    NOT_HERE;
}

void
fxjit_pairs_of_rows(const float *first, const float *second, int64_t count, uint32_t *to)
{
    NOT_HERE;
}

void
fxjit_pairs_finish(const float *sums, int64_t sums_line, const uint16_t *bias, int64_t rows, int64_t columns, uint16_t *out,
                   int64_t line)
{
    NOT_HERE;
}

void
fxjit_pairs_finish_turned(const float *sums, int64_t sums_line, const uint16_t *bias, int64_t rows, int64_t columns, uint16_t *out,
                          int64_t line)
{
    NOT_HERE;
}

#endif
