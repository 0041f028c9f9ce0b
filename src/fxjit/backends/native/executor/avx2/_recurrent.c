/* The kernels of _recurrent.c by AVX2. */
#define FXJIT_AVX2
#include "../_recurrent.c"
