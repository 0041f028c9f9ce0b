/* Matrix products of programs and kernels: by the BLAS that ATen calls, or by our own kernels where those were measured to be
 * faster: _products.c. */
#ifndef FXJIT_PRODUCTS_H
#define FXJIT_PRODUCTS_H

#include <Python.h>

#include "_gemm.h"

typedef void (*gemm_fn)(const char *, const char *, const int *, const int *, const int *, const void *, const void *,
                        const int *, const void *, const int *, const void *, void *, const int *);

/* 0, or -1 where there is no memory. Without the GIL. */
int fxjit_multiply(const product_t *product);
/* Whether our kernels multiply such batches, and says in `first` which of them: else ATen does. */
int fxjit_own_batches(product_t *first, const batch_t *batch);

PyObject *fxjit_product_class(PyObject *module, PyObject *args);
PyObject *fxjit_time_product(PyObject *module, PyObject *args);
PyObject *fxjit_set_product_library(PyObject *module, PyObject *args);
/* The address of what multiplies float32 as Fortran's sgemm, for kernels that do it on a thread of their own. */
PyObject *fxjit_blas_address(PyObject *module, PyObject *ignored);

#endif
