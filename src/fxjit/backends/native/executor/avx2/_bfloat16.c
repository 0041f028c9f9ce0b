/* The kernels of _bfloat16.c by AVX2. */
#define FXJIT_AVX2
#include "../_bfloat16.c"
