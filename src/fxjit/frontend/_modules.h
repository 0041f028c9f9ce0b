/* Calls of nn.Modules that come to nothing but a call of `forward`, without the Python in between. */
#ifndef FXJIT_MODULES_H
#define FXJIT_MODULES_H

#include "cpython_compat.h"

/* The most argument slots that arguments are bound to here. */
#define FX_BOUND_SLOTS 48

/* What a frame of `func` would start with; owned. */
typedef struct {
    PyFunctionObject *func;
    PyObject *slots[FX_BOUND_SLOTS];
    Py_ssize_t nslots;
} FxBoundCall;

/* Whether calling `method`, a bound `nn.Module.__call__` or `_call_impl`, with these arguments runs nothing but the
 * module's `forward`, a Python function: then with what its frame would start. 0: not so, or not known; no exception. */
int fx_bind_module_call(PyObject *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, FxBoundCall *call);

void fx_release_bound(FxBoundCall *call);

#endif
