/* Vectors of floats for kernels of our own, which are compiled once for each instruction set: 16 numbers with AVX-512, and 8 with
 * AVX2 where FXJIT_AVX2 is defined (avx2/). The first file that a kernel includes: it gives functions their instruction set's names,
 * between which _instruction_sets.c chooses. */
#ifndef FXJIT_WIDE_H
#define FXJIT_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__)
#define FXJIT_HAS_WIDE 1
#include <immintrin.h>
#include <stdint.h>

#include "_openmp.h"

#define UNROLLED _Pragma("GCC unroll 16")
#define INLINED static inline __attribute__((always_inline))

#ifdef FXJIT_AVX2
#include "_wide_avx2.h"
#else
#include "_wide_avx512.h"
#endif

#define fxjit_gemm IN_SET(fxjit_gemm)
#define fxjit_gemm_by_size IN_SET(fxjit_gemm_by_size)
#define fxjit_gemm_alone IN_SET(fxjit_gemm_alone)
#define fxjit_gemm_batch IN_SET(fxjit_gemm_batch)
#define fxjit_gemm_pack IN_SET(fxjit_gemm_pack)
#define fxjit_gemm_pack_columns IN_SET(fxjit_gemm_pack_columns)
#define fxjit_gemm_packed_columns IN_SET(fxjit_gemm_packed_columns)
#define fxjit_convolution_room IN_SET(fxjit_convolution_room)
#define fxjit_convolution_threads IN_SET(fxjit_convolution_threads)
#define fxjit_convolve IN_SET(fxjit_convolve)
#define fxjit_depthwise_room IN_SET(fxjit_depthwise_room)
#define fxjit_convolve_depthwise IN_SET(fxjit_convolve_depthwise)
#define fxjit_weights_room IN_SET(fxjit_weights_room)
#define fxjit_convolve_weights IN_SET(fxjit_convolve_weights)
#define fxjit_pack_panel IN_SET(fxjit_pack_panel)
#define fxjit_pack_flipped_panel IN_SET(fxjit_pack_flipped_panel)
#define fxjit_take_rows IN_SET(fxjit_take_rows)
#define fxjit_turn_panel IN_SET(fxjit_turn_panel)
#define fxjit_take_squares IN_SET(fxjit_take_squares)
#define fxjit_run_layer IN_SET(fxjit_run_layer)
#define fxjit_forward_rows IN_SET(fxjit_forward_rows)
#define fxjit_backward_rows IN_SET(fxjit_backward_rows)
#define fxjit_attend IN_SET(fxjit_attend)
#define fxjit_attend_backward IN_SET(fxjit_attend_backward)
#define fxjit_attention_threads IN_SET(fxjit_attention_threads)
#define fxjit_attention_room IN_SET(fxjit_attention_room)
#define fxjit_few_bfloat16 IN_SET(fxjit_few_bfloat16)

static inline int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
#endif
