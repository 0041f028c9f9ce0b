/* The kernels of _depthwise.c by AVX2. */
#define FXJIT_AVX2
#include "../_depthwise.c"
