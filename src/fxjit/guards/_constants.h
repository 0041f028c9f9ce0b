/* Constants: when two objects are the same one. */
#ifndef FXJIT_GUARDS_CONSTANTS_H
#define FXJIT_GUARDS_CONSTANTS_H

#include <Python.h>

/* Whether a and b are the same constant: 1, 0, or -1 with an exception. */
int fxjit_same_constant(PyObject *a, PyObject *b);
/* Whether a constant of this type is the same for ever: strings, numbers and tuples of them are. */
int fxjit_never_changes(PyObject *value);
int fxjit_constants_init(PyObject *module);

#endif
