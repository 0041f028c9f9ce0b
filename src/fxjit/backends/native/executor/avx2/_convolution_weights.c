/* The kernels of _convolution_weights.c by AVX2. */
#define FXJIT_AVX2
#include "../_convolution_weights.c"
