/* The kernels of _recurrent_rows.c by AVX2. */
#define FXJIT_AVX2
#include "../_recurrent_rows.c"
