/* The call that generated code leaves to whoever ran it, at a graph break. */
#include "frontend/_continue.h"

#include <stddef.h>

#include "frontend/_entries.h"
#include "frontend/_hook.h"

/* New code that ends in a graph break returns one of these in place of calling its resume function: whoever
 * ran the code does that when its frame is gone. So a chain of breaks neither nests frames, nor keeps what the earlier
 * ones held, nor shows in a traceback. */
typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1]; /* the function, then its arguments */
} FxContinue;

static PyObject *
continue_new(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t size = PyVectorcall_NARGS(nargsf);
    if (size == 0 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0) || !PyFunction_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "Continue() takes a function and its positional arguments");
        return NULL;
    }
    FxContinue *self = PyObject_GC_NewVar(FxContinue, &FxContinue_Type, size);
    if (self == NULL) {
        return NULL;
    }
    if (((PyFunctionObject *)args[0])->func_globals == PyEval_GetGlobals()) {
        fx_set_builtins(args[0], PyEval_GetBuiltins());
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        self->items[i] = Py_NewRef(args[i]);
    }
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int
continue_traverse(FxContinue *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_VISIT(self->items[i]);
    }
    return 0;
}

static int
continue_clear(FxContinue *self)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_CLEAR(self->items[i]);
    }
    return 0;
}

static void
continue_dealloc(FxContinue *self)
{
    PyObject_GC_UnTrack(self);
    continue_clear(self);
    PyObject_GC_Del(self);
}

static PyObject *
continue_call(FxContinue *self, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) != 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a resume function takes no arguments here: it has them");
        return NULL;
    }
    return fx_finish(Py_NewRef((PyObject *)self));
}

PyTypeObject FxContinue_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.Continue",
    .tp_doc = "Continue(fn, /, *args)\n--\n\nWhat generated code returns in place of fn(*args). Call it once.",
    .tp_basicsize = offsetof(FxContinue, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall = (vectorcallfunc)continue_new,
    .tp_dealloc = (destructor)continue_dealloc,
    .tp_traverse = (traverseproc)continue_traverse,
    .tp_clear = (inquiry)continue_clear,
    .tp_call = (ternaryfunc)continue_call,
};

PyObject *
fx_finish(PyObject *result)
{
    while (result != NULL && Py_IS_TYPE(result, &FxContinue_Type)) {
        FxContinue *resumed = (FxContinue *)result;
        for (Py_ssize_t i = 0; i < Py_SIZE(resumed); i++) {
            if (resumed->items[i] == NULL) {
                PyErr_SetString(PyExc_RuntimeError, "a resume function runs once");
                Py_DECREF(resumed);
                return NULL;
            }
        }
        result = fx_hook_call_handing_over(resumed->items[0], resumed->items + 1, Py_SIZE(resumed) - 1);
        Py_DECREF(resumed);
    }
    return result;
}
