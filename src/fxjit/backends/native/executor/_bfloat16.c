/* Few rows of bfloat16 by weights whose columns are contiguous, as those of linear layers are: decoding of few sequences, which the
 * reading of the weights bounds. These are bfloat16, or integers of eight bits, which bfloat16 holds. Products are exact in float, sums
 * are floats and are rounded once at the end. By AVX-512 with its instructions for bytes and words, or by AVX2 (_wide.h). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_wide.h"
#include "../../../_tensor.h"
#include "_bfloat16.h"
#include "_gemm.h"

#ifdef FXJIT_HAS_WIDE

enum {
    PAIRS = 2 * LANES,
    MOST = 6,         /* at once at most */
    AHEAD = 4096,     /* bytes that are fetched ahead of a row that is read alone, */
    TOGETHER = 4,     /* with so many sums of pairs, one for each line of the cache */
    WORK = 1 << 17,   /* multiplications for which a thread is called */
};

/* a: lines of floats, PAIRS at a time those of even and then those of odd places; in their order for narrow weights. */
typedef struct {
    const few_t *product;
    const float *a;
    int64_t line;
} task_t;

#ifdef FXJIT_AVX2

#define HALVES WIDE

typedef __m256i pairs_t;

HALVES INLINED vec_t
lower_halves(pairs_t x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

HALVES INLINED vec_t
upper_halves(pairs_t x)
{
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u)));
}

HALVES INLINED vec_t
first_floats(pairs_t x)
{
    return lower_halves(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)));
}

HALVES INLINED vec_t
last_floats(pairs_t x)
{
    return lower_halves(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}

HALVES INLINED pairs_t
load(const uint16_t *from, int64_t count)
{
    uint16_t some[PAIRS] = {0};
    if (count >= PAIRS) {
        return _mm256_loadu_si256((const void *)from);
    }
    memcpy(some, from, (size_t)count * sizeof *from);
    return _mm256_loadu_si256((const void *)some);
}

HALVES INLINED void
take_narrow(const int8_t *from, int64_t count, vec_t *x, vec_t *y)
{
    int8_t some[PAIRS] = {0};
    if (count < PAIRS) {
        memcpy(some, from, (size_t)count);
        from = some;
    }
    __m128i both = _mm_loadu_si128((const void *)from);
    *x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(both));
    *y = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(both, both)));
}

#else

#define HALVES __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma")))

typedef __m512i pairs_t;

HALVES INLINED vec_t
lower_halves(pairs_t x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

HALVES INLINED vec_t
upper_halves(pairs_t x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)));
}

HALVES INLINED vec_t
first_floats(pairs_t x)
{
    return lower_halves(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)));
}

HALVES INLINED vec_t
last_floats(pairs_t x)
{
    return lower_halves(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)));
}

HALVES INLINED pairs_t
load(const uint16_t *from, int64_t count)
{
    return count >= PAIRS ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
}

HALVES INLINED void
take_narrow(const int8_t *from, int64_t count, vec_t *x, vec_t *y)
{
    __m256i both = count >= PAIRS ? _mm256_loadu_si256((const void *)from)
                                  : _mm256_maskz_loadu_epi8((__mmask32)((1u << count) - 1), from);
    *x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(both)));
    *y = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(both, 1)));
}

#endif

HALVES static void
widen(const few_t *product, float *to, int64_t line)
{
    for (int64_t i = 0; i < product->m; i++, to += line) {
        for (int64_t p = 0; p < product->k; p += PAIRS) {
            pairs_t x = load(product->a + i * product->a_line + p, product->k - p);
            vec_store(to + p, product->narrow ? first_floats(x) : lower_halves(x));
            vec_store(to + p + LANES, product->narrow ? last_floats(x) : upper_halves(x));
        }
    }
}

static float
widened(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t
rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

HALVES INLINED void
take_pairs(const char *from, int64_t count, int narrow, vec_t *x, vec_t *y)
{
    if (narrow) {
        take_narrow((const int8_t *)from, count, x, y);
    }
    else {
        pairs_t both = load((const uint16_t *)from, count);
        *x = lower_halves(both);
        *y = upper_halves(both);
    }
}

/* One row by columns that follow each other in memory, which is read from one end to the other: faster than several columns at
 * a time, where there are registers enough for sums of one. */
HALVES INLINED void
dot_alone(const task_t *task, int64_t from, int64_t to, int narrow)
{
    const few_t *product = task->product;
    const int64_t item = narrow ? sizeof(int8_t) : sizeof(uint16_t), k = product->k;
    for (int64_t column = from; column < to; column++) {
        const char *line = (const char *)product->b + column * k * item;
        const float *a = task->a;
        vec_t s[TOGETHER], t[TOGETHER], x, y;
        UNROLLED for (int i = 0; i < TOGETHER; i++) {
            s[i] = t[i] = vec_zero();
        }
        int64_t p = 0;
        for (; p + TOGETHER * PAIRS <= k; p += TOGETHER * PAIRS, a += TOGETHER * PAIRS) {
            UNROLLED for (int i = 0; i < TOGETHER; i++) {
                const char *pairs = line + (p + i * PAIRS) * item;
                __builtin_prefetch(pairs + AHEAD, 0, 3);
                take_pairs(pairs, PAIRS, narrow, &x, &y);
                s[i] = vec_fma(x, vec_load(a + i * PAIRS), s[i]);
                t[i] = vec_fma(y, vec_load(a + i * PAIRS + LANES), t[i]);
            }
        }
        for (; p < k; p += PAIRS, a += PAIRS) {
            take_pairs(line + p * item, k - p, narrow, &x, &y);
            s[0] = vec_fma(x, vec_load(a), s[0]);
            t[0] = vec_fma(y, vec_load(a + LANES), t[0]);
        }
        UNROLLED for (int i = 0; i < TOGETHER; i++) {
            s[i] = vec_add(s[i], t[i]);
        }
        float sum = vec_sum(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3])));
        product->out[column] = rounded(sum + (product->bias == NULL ? 0 : widened(product->bias[column])));
    }
}

/* `count` columns from one on: as many sums as registers hold, which all loops over them have to be unrolled for. */
HALVES INLINED void
dot(const task_t *task, int rows, int columns, int64_t column, int64_t count, int narrow)
{
    const few_t *product = task->product;
    const char *lines[MOST];
    const int64_t item = narrow ? sizeof(int8_t) : sizeof(uint16_t), ahead = columns * product->b_line * item;
    vec_t s[FXJIT_FEW_ROWS][MOST];
    UNROLLED for (int c = 0; c < columns; c++) {
        lines[c] = (const char *)product->b + least(column + c, column + count - 1) * product->b_line * item;
        UNROLLED for (int i = 0; i < rows; i++) {
            s[i][c] = vec_zero();
        }
    }
    for (int64_t p = 0; p < product->k; p += PAIRS) {
        vec_t x[MOST], y[MOST];
        UNROLLED for (int c = 0; c < columns; c++) {
            __builtin_prefetch(lines[c] + p * item + ahead, 0, 3); /* the next columns, across pages */
            take_pairs(lines[c] + p * item, product->k - p, narrow, &x[c], &y[c]);
        }
        UNROLLED for (int i = 0; i < rows; i++) {
            const float *a = task->a + i * task->line + p;
            vec_t first = vec_load(a), second = vec_load(a + LANES);
            UNROLLED for (int c = 0; c < columns; c++) {
                s[i][c] = vec_fma(x[c], first, s[i][c]);
                s[i][c] = vec_fma(y[c], second, s[i][c]);
            }
        }
    }
    UNROLLED for (int i = 0; i < rows; i++) {
        UNROLLED for (int c = 0; c < columns; c++) {
            float sum = vec_sum(s[i][c]);
            if (c < count) {
                sum += product->bias == NULL ? 0 : widened(product->bias[column + c]);
                product->out[i * product->line + column + c] = rounded(sum);
            }
        }
    }
}

#define FEW_ROWS(R, C) \
    HALVES static void few_##R(const task_t *task, int64_t from, int64_t to) \
    { \
        if (task->product->narrow) { \
            for (int64_t column = from; column < to; column += C) { \
                dot(task, R, C, column, least(C, to - column), 1); \
            } \
            return; \
        } \
        for (int64_t column = from; column < to; column += C) { \
            dot(task, R, C, column, least(C, to - column), 0); \
        } \
    }
#ifdef FXJIT_AVX2
FEW_ROWS(1, 4) FEW_ROWS(2, 3) FEW_ROWS(3, 2) FEW_ROWS(4, 2) FEW_ROWS(5, 2) FEW_ROWS(6, 1)
FEW_ROWS(7, 1) FEW_ROWS(8, 1) FEW_ROWS(9, 1) FEW_ROWS(10, 1) FEW_ROWS(11, 1) FEW_ROWS(12, 1)
#else
FEW_ROWS(1, 6) FEW_ROWS(2, 6) FEW_ROWS(3, 4) FEW_ROWS(4, 4) FEW_ROWS(5, 3) FEW_ROWS(6, 3)
FEW_ROWS(7, 2) FEW_ROWS(8, 2) FEW_ROWS(9, 2) FEW_ROWS(10, 2) FEW_ROWS(11, 2) FEW_ROWS(12, 2)
#endif
static void (*const few[FXJIT_FEW_ROWS + 1])(const task_t *, int64_t, int64_t) = {
    NULL, few_1, few_2, few_3, few_4, few_5, few_6, few_7, few_8, few_9, few_10, few_11, few_12,
};

HALVES static void
of_some(const task_t *task, int64_t from, int64_t to)
{
    const few_t *product = task->product;
    if (product->m > 1 || product->b_line != product->k) {
        few[product->m](task, from, to);
    }
    else if (product->narrow) {
        dot_alone(task, from, to, 1);
    }
    else {
        dot_alone(task, from, to, 0);
    }
}

static void
by_columns(void *data)
{
    const task_t *task = data;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads(), blocks = (task->product->n + LANES - 1) / LANES;
    of_some(task, blocks * thread / threads * LANES, least(blocks * (thread + 1) / threads * LANES, task->product->n));
}

int
fxjit_few_bfloat16(const few_t *product)
{
    int64_t line = (product->k + PAIRS - 1) / PAIRS * PAIRS;
    void *a;
    if (posix_memalign(&a, 64, (size_t)(product->m * line) * sizeof(float)) != 0) {
        return -1;
    }
    widen(product, a, line);
    task_t task = {product, a, line};
    int64_t work = product->m * product->n * product->k;
    int64_t threads = fxjit_openmp.inside() ? 1 : least(fxjit_openmp.most(), work / WORK + 1);
    if (threads == 1) {
        of_some(&task, 0, product->n);
    }
    else {
        fxjit_openmp.parallel(by_columns, &task, (unsigned)threads, 0);
    }
    free(a);
    return 0;
}

#endif
