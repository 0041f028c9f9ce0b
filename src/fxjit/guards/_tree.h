/* The guard tree: all guards of one compiled entry, checked in one walk. _tree.c; the frame hook calls it. */
#ifndef FXJIT_GUARDS_TREE_H
#define FXJIT_GUARDS_TREE_H

#include <Python.h>

extern PyTypeObject FxjitGuardTree_Type;

#define FxjitGuardTree_CheckExact(op) Py_IS_TYPE((op), &FxjitGuardTree_Type)

/* Whether all guards hold for a frame about to start: 1, 0, or -1 with an exception (KeyboardInterrupt and its like
 * only; what a guard's own look-up raises means that it does not hold). `args` are the frame's argument slots, borrowed
 * for the time of the call; `closure` is a tuple of cells or NULL. No exception may be set on entry. */
int fxjit_tree_check(PyObject *tree, PyObject *const *args, Py_ssize_t nargs, PyObject *closure, PyObject *globals,
                     PyObject *builtins);

#endif
