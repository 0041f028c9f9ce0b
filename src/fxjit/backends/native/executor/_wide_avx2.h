/* Vectors of 8 floats, by AVX2 (_wide.h), under the names of _wide_avx512.h. */
#ifndef FXJIT_WIDE_AVX2_H
#define FXJIT_WIDE_AVX2_H

#define WIDE __attribute__((target("avx2,fma,f16c")))
#define IN_SET(name) name##_avx2

enum {
    LANES = 8,
    COLUMNS = 2 * LANES,
    ROWS = 6, /* of 16 registers 12 are sums, two a row of b, and one a number of a */
};

#define OF_ALL_HEIGHTS(MAKE, ...) \
    MAKE(1, ##__VA_ARGS__) MAKE(2, ##__VA_ARGS__) MAKE(3, ##__VA_ARGS__) MAKE(4, ##__VA_ARGS__) MAKE(5, ##__VA_ARGS__) \
    MAKE(6, ##__VA_ARGS__)

enum { TWICE = 2 };
#define OF_TWICE(MAKE, ...) MAKE(2, ##__VA_ARGS__)

typedef __m256 vec_t;
/* Some of the lanes: how many, from the first one on. */
typedef int lanes_t;

static inline lanes_t
first_lanes(int64_t count)
{
    return (lanes_t)(count >= LANES ? LANES : count <= 0 ? 0 : count);
}

WIDE INLINED __m256i
lanes_mask(lanes_t lanes)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

#define vec_zero _mm256_setzero_ps
#define vec_all _mm256_set1_ps
#define vec_load _mm256_load_ps
#define vec_load_any _mm256_loadu_ps
#define vec_store _mm256_store_ps
#define vec_store_any _mm256_storeu_ps
#define vec_add _mm256_add_ps
#define vec_sub _mm256_sub_ps
#define vec_mul _mm256_mul_ps
#define vec_div _mm256_div_ps
#define vec_min _mm256_min_ps
#define vec_max _mm256_max_ps
#define vec_and _mm256_and_ps
#define vec_andnot _mm256_andnot_ps
#define vec_or _mm256_or_ps
#define vec_fma _mm256_fmadd_ps
#define vec_fnma _mm256_fnmadd_ps
#define vec_rough_reciprocal _mm256_rcp_ps

WIDE INLINED vec_t
vec_load_some(lanes_t there, const float *from)
{
    return there == LANES ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, lanes_mask(there));
}

/* A masked store takes some ten cycles on a Zen 3, so whole vectors are stored without. */
WIDE INLINED void
vec_store_some(float *to, lanes_t there, vec_t x)
{
    if (there == LANES) {
        _mm256_storeu_ps(to, x);
    }
    else {
        _mm256_maskstore_ps(to, lanes_mask(there), x);
    }
}

WIDE INLINED float
vec_sum(vec_t x)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

WIDE INLINED float
vec_largest(vec_t x)
{
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
}

WIDE INLINED vec_t
vec_first(lanes_t lanes, vec_t x, vec_t y)
{
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(lanes_mask(lanes)));
}

WIDE INLINED vec_t
vec_round(vec_t x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^n, for |n| <= 126. */
WIDE INLINED vec_t
power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* x * 2^n, for whole |n| <= 252, by two halves of n: the result may be infinite, or not normal. */
WIDE INLINED vec_t
vec_scale(vec_t x, vec_t n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(x, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}

WIDE INLINED vec_t
vec_where_positive(vec_t y, vec_t x)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_LE_OQ), x);
}

WIDE INLINED int
vec_any_less(vec_t x, vec_t y)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_LT_OQ)) != 0;
}

WIDE INLINED vec_t
vec_of_bfloat16(const uint16_t *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16));
}

WIDE INLINED void
vec_to_bfloat16(uint16_t *to, vec_t x)
{
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128((void *)to, _mm256_castsi256_si128(packed));
}

WIDE INLINED vec_t
vec_of_float16(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
}

WIDE INLINED void
vec_to_float16(uint16_t *to, vec_t x)
{
    _mm_storeu_si128((void *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

WIDE INLINED vec_t
vec_gather_some(lanes_t there, const float *from, int64_t step)
{
    __m256i places = _mm256_mullo_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32((int)step));
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), from, places, _mm256_castsi256_ps(lanes_mask(there)), 4);
}

typedef struct {
    __m256d low, high;
} doubles_t;

WIDE INLINED doubles_t
doubles_zero(void)
{
    return (doubles_t){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

WIDE INLINED doubles_t
doubles_add(doubles_t sums, vec_t x)
{
    sums.low = _mm256_add_pd(sums.low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    sums.high = _mm256_add_pd(sums.high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    return sums;
}

WIDE INLINED vec_t
doubles_rounded(doubles_t sums)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(sums.low)), _mm256_cvtpd_ps(sums.high), 1);
}

/* 8 rows of 8 numbers become columns. */
WIDE INLINED void
turn(vec_t r[LANES])
{
    vec_t t[LANES];
    UNROLLED for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLLED for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    UNROLLED for (int i = 0; i < LANES; i++) {
        r[i] = t[i];
    }
}

/* Column p of 8 rows, of which there are `rows`, in vector p; what stands for the other rows is theirs. Halves of rows that are four
 * apart share a vector as they are read, which saves a third of the shuffles: two a cycle, of which most of the time was. */
WIDE INLINED void
load_turned(const float *from, int64_t line, int64_t rows, vec_t r[LANES])
{
    UNROLLED for (int64_t half = 0; half < 2; half++) {
        vec_t x[4], y[4];
        UNROLLED for (int64_t i = 0; i < 4; i++) {
            const float *low = from + (i < rows ? i : rows - 1) * line + 4 * half;
            const float *high = from + (i + 4 < rows ? i + 4 : rows - 1) * line + 4 * half;
            x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        }
        UNROLLED for (int i = 0; i < 4; i += 2) {
            y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
            y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
        }
        UNROLLED for (int i = 0; i < 2; i++) {
            r[4 * half + 2 * i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
            r[4 * half + 2 * i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        }
    }
}

#endif
