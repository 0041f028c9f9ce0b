/* Vectors of 16 floats, by AVX-512 (_wide.h). */
#ifndef FXJIT_WIDE_AVX512_H
#define FXJIT_WIDE_AVX512_H

#define WIDE __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#define IN_SET(name) name##_avx512

enum {
    LANES = 16,
    COLUMNS = 2 * LANES, /* of a panel, and of the results that registers hold: 14 rows of two vectors */
    ROWS = 14,
};

#define OF_ALL_HEIGHTS(MAKE, ...) \
    MAKE(1, ##__VA_ARGS__) MAKE(2, ##__VA_ARGS__) MAKE(3, ##__VA_ARGS__) MAKE(4, ##__VA_ARGS__) MAKE(5, ##__VA_ARGS__) \
    MAKE(6, ##__VA_ARGS__) MAKE(7, ##__VA_ARGS__) MAKE(8, ##__VA_ARGS__) MAKE(9, ##__VA_ARGS__) MAKE(10, ##__VA_ARGS__) \
    MAKE(11, ##__VA_ARGS__) MAKE(12, ##__VA_ARGS__) MAKE(13, ##__VA_ARGS__) MAKE(14, ##__VA_ARGS__)

/* Heights, from two rows on, of which registers hold the sums of two panels. */
enum { TWICE = 6 };
#define OF_TWICE(MAKE, ...) \
    MAKE(2, ##__VA_ARGS__) MAKE(3, ##__VA_ARGS__) MAKE(4, ##__VA_ARGS__) MAKE(5, ##__VA_ARGS__) MAKE(6, ##__VA_ARGS__)

typedef __m512 vec_t;
/* Some of the lanes: a mask. */
typedef __mmask16 lanes_t;

static inline lanes_t
first_lanes(int64_t count)
{
    return (lanes_t)(count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}

#define vec_zero _mm512_setzero_ps
#define vec_all _mm512_set1_ps
#define vec_load _mm512_load_ps /* from where a line of the cache begins; _any: from anywhere */
#define vec_load_any _mm512_loadu_ps
#define vec_load_some _mm512_maskz_loadu_ps /* zeros in other lanes */
#define vec_store _mm512_store_ps
#define vec_store_any _mm512_storeu_ps
#define vec_store_some _mm512_mask_storeu_ps
#define vec_add _mm512_add_ps
#define vec_sub _mm512_sub_ps
#define vec_mul _mm512_mul_ps
#define vec_div _mm512_div_ps
#define vec_min _mm512_min_ps
#define vec_max _mm512_max_ps
#define vec_and _mm512_and_ps
#define vec_andnot _mm512_andnot_ps
#define vec_or _mm512_or_ps
#define vec_fma _mm512_fmadd_ps
#define vec_fnma _mm512_fnmadd_ps
#define vec_sum _mm512_reduce_add_ps
#define vec_largest _mm512_reduce_max_ps
#define vec_scale _mm512_scalef_ps /* x * 2^n */
#define vec_rough_reciprocal _mm512_rcp14_ps

WIDE INLINED vec_t
vec_round(vec_t x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
}

/* The lanes of x, and those of y elsewhere. */
WIDE INLINED vec_t
vec_first(lanes_t lanes, vec_t x, vec_t y)
{
    return _mm512_mask_blend_ps(lanes, y, x);
}

/* x, and zeros where y <= 0. */
WIDE INLINED vec_t
vec_where_positive(vec_t y, vec_t x)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LE_OQ), _mm512_setzero_ps());
}

WIDE INLINED int
vec_any_less(vec_t x, vec_t y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ) != 0;
}

/* Vectors of bfloat16 and float16, which are rounded to nearest. */
WIDE INLINED vec_t
vec_of_bfloat16(const uint16_t *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16));
}

WIDE INLINED void
vec_to_bfloat16(uint16_t *to, vec_t x)
{
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

WIDE INLINED vec_t
vec_of_float16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
}

WIDE INLINED void
vec_to_float16(uint16_t *to, vec_t x)
{
    _mm256_storeu_si256((void *)to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Numbers that are `step` apart. */
WIDE INLINED vec_t
vec_gather_some(lanes_t there, const float *from, int64_t step)
{
    __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    places = _mm512_mullo_epi32(places, _mm512_set1_epi32((int)step));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, places, from, 4);
}

/* A vector's numbers as doubles. */
typedef struct {
    __m512d low, high;
} doubles_t;

WIDE INLINED doubles_t
doubles_zero(void)
{
    return (doubles_t){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

WIDE INLINED doubles_t
doubles_add(doubles_t sums, vec_t x)
{
    sums.low = _mm512_add_pd(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    sums.high = _mm512_add_pd(sums.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
    return sums;
}

WIDE INLINED vec_t
doubles_rounded(doubles_t sums)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(sums.low)), _mm512_cvtpd_ps(sums.high), 1);
}

WIDE static inline __m512
pairs(__m512 a, __m512 b, int high)
{
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
}

/* 16 rows of 16 numbers become columns. */
WIDE INLINED void
turn(vec_t r[LANES])
{
    vec_t t[LANES];
    UNROLLED for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLLED for (int i = 0; i < LANES; i += 4) {
        r[i] = pairs(t[i], t[i + 2], 0);
        r[i + 1] = pairs(t[i], t[i + 2], 1);
        r[i + 2] = pairs(t[i + 1], t[i + 3], 0);
        r[i + 3] = pairs(t[i + 1], t[i + 3], 1);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Column p of 16 rows, of which there are `rows`, in vector p; what stands for the other rows is theirs. */
WIDE INLINED void
load_turned(const float *from, int64_t line, int64_t rows, vec_t r[LANES])
{
    UNROLLED for (int64_t i = 0; i < LANES; i++) {
        r[i] = vec_load_any(from + (i < rows ? i : rows - 1) * line);
    }
    turn(r);
}

#endif
