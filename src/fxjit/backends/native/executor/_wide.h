/* What kernels of our own for AVX-512 share (_gemm.c, _convolution.c): vectors of 16 floats, and OpenMP. */
#ifndef FXJIT_WIDE_H
#define FXJIT_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__)
#define FXJIT_HAS_WIDE 1
#include <immintrin.h>
#include <stdint.h>

#define WIDE __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#define UNROLLED _Pragma("GCC unroll 16")

enum { LANES = 16 };

/* OpenMP as libtorch has it, once fxjit_gemm_runs() is true. */
typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    void (*barrier)(void);
    int (*thread)(void);
    int (*threads)(void);
    int (*most)(void);
    int (*inside)(void);
} openmp_t;

extern openmp_t fxjit_openmp;

static inline int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline __mmask16
first_lanes(int64_t count)
{
    return (__mmask16)(count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}

WIDE static inline __m512
pairs(__m512 a, __m512 b, int high)
{
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
}

/* 16 rows of 16 numbers become columns. */
WIDE static inline __attribute__((always_inline)) void
turn(__m512 r[LANES])
{
    __m512 t[LANES];
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

#endif
#endif
