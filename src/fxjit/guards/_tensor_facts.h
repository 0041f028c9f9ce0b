/* What a trace relied on about a tensor (_tensor_facts.c). */
#ifndef FXJIT_GUARDS_TENSOR_FACTS_H
#define FXJIT_GUARDS_TENSOR_FACTS_H

#include <Python.h>

typedef struct fxjit_tensor_facts fxjit_tensor_facts;

/* From ("tensor", type, keys, dtype, device type, device index, layout, strided, requires_grad, sizes, strides). What *out is
 * set to must be freed, also after a failure. */
int fxjit_tensor_facts_init(fxjit_tensor_facts **out, PyObject *op);
void fxjit_tensor_facts_free(fxjit_tensor_facts *facts);
int fxjit_tensor_facts_traverse(fxjit_tensor_facts *facts, visitproc visit, void *arg);
/* Whether they hold for this object: 1, 0, or -1 with an exception. */
int fxjit_tensor_facts_hold(const fxjit_tensor_facts *facts, PyObject *value);

#endif
