/* Matrix products of programs and kernels: by the BLAS that ATen calls, or by our own kernels where those were measured to be
 * faster: _products.c. */
#ifndef FXJIT_PRODUCTS_H
#define FXJIT_PRODUCTS_H

#include <Python.h>

#include "_gemm.h"

typedef void (*gemm_fn)(const char *, const char *, const int *, const int *, const int *, const void *, const void *,
                        const int *, const void *, const int *, const void *, void *, const int *);

/* One operand as BLAS wants it: whether it is transposed, and the distance of its rows (or columns). Its rows are contiguous,
 * or its columns are; lower/blas.py saw to that. */
static inline int
fxjit_leading(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int *ld)
{
    int transposed = !(column_stride == 1 || columns == 1);
    int64_t lines = transposed ? columns : rows, least = transposed ? rows : columns;
    int64_t stride = transposed ? column_stride : row_stride;
    *ld = (int)(lines > 1 ? stride : Py_MAX(least, 1));
    return transposed;
}

/* 0, or -1 where there is no memory. Without the GIL. */
int fxjit_multiply(const product_t *product);
/* out = a b (+ bias, or NULL), of which b is packed; a's rows and out's are contiguous. The same. */
int fxjit_multiply_packed_floats(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_line, const float *packed,
                                 const float *bias, float *out, int64_t line);
/* Whether our kernels multiply such batches, and says in `first` which of them: else ATen does. */
int fxjit_own_batches(product_t *first, const batch_t *batch);

PyObject *fxjit_product_class(PyObject *module, PyObject *args);
PyObject *fxjit_time_product(PyObject *module, PyObject *args);
PyObject *fxjit_set_product_library(PyObject *module, PyObject *args);
PyObject *fxjit_multiply_pairs(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* Weights that are packed once: _packed_weights.c. */
PyObject *fxjit_packed_size(PyObject *module, PyObject *args);
PyObject *fxjit_pack_weight(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *fxjit_multiply_packed(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* The address of what multiplies float32 as Fortran's sgemm, for kernels that do it on a thread of their own. */
PyObject *fxjit_blas_address(PyObject *module, PyObject *ignored);

#endif
