/* When two constants are the same for a trace: exactly the same type, and the same value to the last bit. constants.py says
 * it in Python; a test compares the two. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "_constants.h"

/* Types compared by == once the types are the same: constants.VALUE_TYPES. */
static PyObject *value_types;

static PyObject *
set_value_types(PyObject *Py_UNUSED(module), PyObject *types)
{
    if (!PyTuple_Check(types)) {
        PyErr_SetString(PyExc_TypeError, "set_value_types() takes a tuple of types");
        return NULL;
    }
    Py_XSETREF(value_types, Py_NewRef(types));
    Py_RETURN_NONE;
}

static int
is_value_type(PyTypeObject *type)
{
    if (value_types == NULL) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value_types); i++) {
        if ((PyTypeObject *)PyTuple_GET_ITEM(value_types, i) == type) {
            return 1;
        }
    }
    return 0;
}

static int
same_tuple(PyObject *a, PyObject *b)
{
    Py_ssize_t n = PyTuple_GET_SIZE(a);
    if (PyTuple_GET_SIZE(b) != n) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int same = fxjit_same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
        if (same != 1) {
            return same;
        }
    }
    return 1;
}

/* Whether some element of the set `b` is the same constant as x. */
static int
set_has_constant(PyObject *b, PyObject *x)
{
    PyObject *iterator = PyObject_GetIter(b);
    if (iterator == NULL) {
        return -1;
    }
    int same = 0;
    PyObject *item;
    while (same == 0 && (item = PyIter_Next(iterator)) != NULL) {
        same = fxjit_same_constant(x, item);
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    return same == 0 && PyErr_Occurred() ? -1 : same;
}

/* Whether each element of the set `a` is the same constant as some element of `b`. */
static int
set_holds_constants(PyObject *b, PyObject *a)
{
    PyObject *iterator = PyObject_GetIter(a);
    if (iterator == NULL) {
        return -1;
    }
    int same = 1;
    PyObject *item;
    while (same == 1 && (item = PyIter_Next(iterator)) != NULL) {
        same = set_has_constant(b, item);
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    return same == 1 && PyErr_Occurred() ? -1 : same;
}

/* Equal sets may hold 1 here and True there, and sets with NaN are equal to none. */
static int
same_frozenset(PyObject *a, PyObject *b)
{
    int same = PySet_GET_SIZE(a) == PySet_GET_SIZE(b);
    if (same == 1) {
        same = set_holds_constants(b, a);
    }
    return same == 1 ? set_holds_constants(a, b) : same;
}

/* Equal ranges may have other ends. */
static int
same_range(PyObject *a, PyObject *b)
{
    static const char *const parts[] = {"start", "stop", "step"};
    int same = 1;
    for (int i = 0; same == 1 && i < 3; i++) {
        PyObject *x = PyObject_GetAttrString(a, parts[i]), *y = PyObject_GetAttrString(b, parts[i]);
        same = x == NULL || y == NULL ? -1 : fxjit_same_constant(x, y);
        Py_XDECREF(x);
        Py_XDECREF(y);
    }
    return same;
}

static int
same_slice(PyObject *a, PyObject *b)
{
    PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
    int same = fxjit_same_constant(x->start, y->start);
    if (same == 1) {
        same = fxjit_same_constant(x->stop, y->stop);
    }
    if (same == 1) {
        same = fxjit_same_constant(x->step, y->step);
    }
    return same;
}

int
fxjit_same_constant(PyObject *a, PyObject *b)
{
    if (a == b) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b)) {
        return 0;
    }
    if (type == &PyUnicode_Type) {
        return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0;
    }
    if (type == &PyLong_Type || type == &PyBytes_Type) {
        return PyObject_RichCompareBool(a, b, Py_EQ);
    }
    if (type == &PyFloat_Type) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof(x)) == 0;
    }
    if (type == &PyComplex_Type) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return memcmp(&x.real, &y.real, sizeof(double)) == 0 && memcmp(&x.imag, &y.imag, sizeof(double)) == 0;
    }
    int (*deep)(PyObject *, PyObject *) = NULL;
    if (type == &PyTuple_Type) {
        deep = same_tuple;
    }
    else if (type == &PyFrozenSet_Type) {
        deep = same_frozenset;
    }
    else if (type == &PySlice_Type) {
        deep = same_slice;
    }
    else if (type == &PyRange_Type) {
        deep = same_range;
    }
    if (deep != NULL) {
        if (Py_EnterRecursiveCall(" in a guard")) {
            return -1;
        }
        int same = deep(a, b);
        Py_LeaveRecursiveCall();
        return same;
    }
    return is_value_type(type) ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
}

int
fxjit_never_changes(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyTuple_Type) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            if (!fxjit_never_changes(PyTuple_GET_ITEM(value, i))) {
                return 0;
            }
        }
        return 1;
    }
    return value == Py_None || value == Py_Ellipsis || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyComplex_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == &PyRange_Type ||
           is_value_type(type);
}

/* -- module --------------------------------------------------------------------------------------------------------*/

static PyObject *
same_constant(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *a, *b;
    if (!PyArg_ParseTuple(args, "OO:same_constant", &a, &b)) {
        return NULL;
    }
    int same = fxjit_same_constant(a, b);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyMethodDef methods[] = {
    {"set_value_types", set_value_types, METH_O,
     PyDoc_STR("set_value_types(types): the types whose instances are the same constant when they are equal")},
    {"same_constant", same_constant, METH_VARARGS,
     PyDoc_STR("same_constant(a, b) -> bool: as fxjit.guards.constants.same_constant")},
    {NULL, NULL, 0, NULL},
};

int
fxjit_constants_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
