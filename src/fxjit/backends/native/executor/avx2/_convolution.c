/* The kernels of _convolution.c by AVX2. */
#define FXJIT_AVX2
#include "../_convolution.c"
