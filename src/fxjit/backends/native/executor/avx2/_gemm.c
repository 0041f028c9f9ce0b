/* The kernels of _gemm.c by AVX2. */
#define FXJIT_AVX2
#include "../_gemm.c"
