/* Kernels on a GPU (_cuda.c), for the executor. */
#ifndef FXJIT_CUDA_H
#define FXJIT_CUDA_H

#include <Python.h>
#include <stdint.h>

int fxjit_is_cuda_kernel(PyObject *object);
/* Over addresses: 1 when launched, 0 when another binary must be (call the object), -1 with an exception. */
int fxjit_cuda_run(PyObject *kernel, void **data, Py_ssize_t tensors, const int64_t *integers, Py_ssize_t count);

#endif
