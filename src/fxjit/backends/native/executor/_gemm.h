/* Products of float32 matrices by kernels of our own, for processors with AVX-512 or AVX2: _gemm.c. */
#ifndef FXJIT_GEMM_H
#define FXJIT_GEMM_H

#include <Python.h>
#include <stdint.h>

/* A matrix in memory: the distances of its rows and of its columns, one of which is 1. */
typedef struct {
    const float *data;
    int64_t row, column;
} matrix_t;

/* out[m, n] = a[m, k] b[k, n], or += with `add`; the rows of `out` are contiguous and `line` apart. */
typedef struct {
    int64_t m, n, k;
    matrix_t a, b;
    const float *packed; /* columns that fxjit_gemm_pack_columns packed, in the place of b; or NULL */
    float *out;
    int64_t line;
    int add;
    int64_t chain; /* products that are added up in a row at most, where that is less than by itself; 0: as by itself */
    int by_tiles; /* of bfloat16, where the processor has them (_gemm_tiles.c) */
} product_t;

/* How many products of one shape there are, and how far apart their matrices lie. */
typedef struct {
    int64_t count, a, b, out;
} batch_t;

/* Rows up to which the weights' reading shows in the time: they are read once for all rows, which fit one block. */
enum { FXJIT_SHORT_ROWS = 512 };

/* Whether this processor has what the kernels take, and whether that is AVX-512 (_instruction_sets.c). */
int fxjit_gemm_runs(void);
int fxjit_has_avx512(void);
/* On the threads that OpenMP gives, or inside of one of its regions on the caller's; 0, or -1 where there is no memory. */
int fxjit_gemm(const product_t *product);
/* The same, by vectors or by tiles as its sizes say: for products of other kernels, which nobody measured. */
int fxjit_gemm_by_size(const product_t *product);
/* On the caller's thread; where there is no memory, nothing is written. */
int fxjit_gemm_alone(const product_t *product);
int fxjit_gemm_batch(const product_t *first, const batch_t *batch);
/* `count` columns of b from `column` on in panels of two vectors, `depth` rows each; the last panel is filled up with zeros. */
void fxjit_gemm_pack(const matrix_t *b, int64_t depth, int64_t column, int64_t count, float *to);
/* All of b's columns so, and how many columns room is to be for. */
void fxjit_gemm_pack_columns(const matrix_t *b, int64_t depth, int64_t columns, float *to);
int64_t fxjit_gemm_packed_columns(int64_t columns);
/* Calls the function on the caller's thread, in a region of OpenMP: libraries that it calls take no threads of their own there. */
void fxjit_on_one_thread(void (*function)(void *), void *data);

PyObject *fxjit_vector_bits(PyObject *module, PyObject *ignored);
PyObject *fxjit_set_vector_bits(PyObject *module, PyObject *bits);

#endif
