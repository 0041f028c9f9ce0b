/* The kernels of _attention.c by AVX2. */
#define FXJIT_AVX2
#include "../_attention.c"
