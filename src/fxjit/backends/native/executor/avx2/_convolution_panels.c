/* The kernels of _convolution_panels.c by AVX2. */
#define FXJIT_AVX2
#include "../_convolution_panels.c"
