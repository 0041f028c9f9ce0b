/* What others need to know of the callables of the call path. */
#ifndef FXJIT_CALL_H
#define FXJIT_CALL_H

#include <Python.h>

/* Whether it is what `fxjit.compile` hands out for a function. */
int fx_is_compiled(PyObject *callable);

#endif
