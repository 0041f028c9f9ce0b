/* Reading tensors' data pointers, for those that launch kernels. */
#ifndef FXJIT_EXECUTOR_H
#define FXJIT_EXECUTOR_H

#include <Python.h>

/* To be called before the first `fxjit_data_pointer`: finds torch's function, once the shim is there. */
void fxjit_find_data_pointer(void);
/* The address of a tensor's first element; -1 with an exception. */
int fxjit_data_pointer(PyObject *tensor, void **out);

#endif
