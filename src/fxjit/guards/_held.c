/* Objects that guards compare with (_held.h): taking hold of one, and letting it go. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "_held.h"

static PyObject *
guards_let_go(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ref))
{
    Py_RETURN_NONE;
}

static PyMethodDef guards_let_go_def = {
    "guards_let_go", guards_let_go, METH_O,
    "guards_let_go(ref)\n\nDoes nothing: weak references of guards have it as their callback, which tells them from the program's.",
};
static PyObject *callback; /* made once */

int
fxjit_held_module_init(PyObject *module)
{
    if (callback == NULL) {
        callback = PyCFunction_New(&guards_let_go_def, NULL);
    }
    return callback == NULL ? -1 : PyModule_AddObjectRef(module, guards_let_go_def.ml_name, callback);
}

PyObject *
fxjit_weakly(PyObject *obj)
{
    return PyWeakref_NewRef(obj, callback);
}

int
fxjit_held_init(fxjit_held *held, PyObject *obj)
{
    held->obj = obj;
    held->ref = fxjit_weakly(obj);
    held->how = HELD_WEAK;
    if (held->ref == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            held->obj = NULL;
            return -1;
        }
        PyErr_Clear();
        held->how = HELD_STRONG;
        Py_INCREF(obj);
    }
    return 0;
}

int
fxjit_held_plain(fxjit_held *held, PyObject *obj)
{
    held->obj = Py_NewRef(obj);
    held->ref = NULL;
    held->how = HELD_PLAIN;
    return 0;
}

int
fxjit_held_from_pair(fxjit_held *held, PyObject *pair)
{
    PyObject *obj;
    int plain;
    memset(held, 0, sizeof(*held));
    if (!PyTuple_Check(pair)) {
        PyErr_SetString(PyExc_TypeError, "expected a pair (object, plain)");
        return -1;
    }
    if (!PyArg_ParseTuple(pair, "Op", &obj, &plain)) {
        return -1;
    }
    return plain ? fxjit_held_plain(held, obj) : fxjit_held_init(held, obj);
}

void
fxjit_held_clear(fxjit_held *held)
{
    PyObject *obj = held->how == HELD_WEAK ? NULL : held->obj;
    held->obj = NULL;
    held->how = HELD_STRONG;
    Py_CLEAR(held->ref);
    Py_XDECREF(obj);
}

int
fxjit_held_traverse(fxjit_held *held, visitproc visit, void *arg)
{
    if (held->how != HELD_WEAK) {
        Py_VISIT(held->obj);
    }
    Py_VISIT(held->ref);
    return 0;
}
