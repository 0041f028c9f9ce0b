/* Reading tensors' data pointers and launching kernels, for what runs compiled graphs. */
#ifndef FXJIT_EXECUTOR_H
#define FXJIT_EXECUTOR_H

#include <Python.h>

/* To be called before the first `fxjit_data_pointer`: finds torch's function, once the shim is there. */
void fxjit_find_data_pointer(void);
/* The address of a tensor's first element; -1 with an exception. */
int fxjit_data_pointer(PyObject *tensor, void **out);

/* Kernels on a GPU (_cuda.c), over data pointers: 1 when launched, 0 when another binary must be (call the object), -1 with
 * an exception. */
int fxjit_is_cuda_kernel(PyObject *object);
int fxjit_cuda_run(PyObject *kernel, void **data, Py_ssize_t tensors, const int64_t *integers, Py_ssize_t count);

#endif
