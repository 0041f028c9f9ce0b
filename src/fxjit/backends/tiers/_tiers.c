/* What tiers need of C: a callable whose target is exchanged between two calls, and the fork that makes a helper process. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stddef.h>
#include <structmember.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../_module.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *target;
    PyObject *weakrefs;
} FxExchangeable;

/* A call that is under way keeps the target that it began with. */
static PyObject *
exchangeable_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *target = Py_NewRef(((FxExchangeable *)callable)->target);
    PyObject *result = PyObject_Vectorcall(target, args, nargsf, kwnames);
    Py_DECREF(target);
    return result;
}

static PyObject *
exchangeable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"target", NULL};
    PyObject *target;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Exchangeable", names, &target)) {
        return NULL;
    }
    FxExchangeable *self = (FxExchangeable *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = exchangeable_call;
        self->target = Py_NewRef(target);
    }
    return (PyObject *)self;
}

static PyObject *
exchangeable_get(FxExchangeable *self, void *closure)
{
    return Py_NewRef(self->target);
}

static int
exchangeable_set(FxExchangeable *self, PyObject *value, void *closure)
{
    if (value == NULL || !PyCallable_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "target is something that can be called");
        return -1;
    }
    Py_SETREF(self->target, Py_NewRef(value));
    return 0;
}

static int
exchangeable_traverse(FxExchangeable *self, visitproc visit, void *arg)
{
    Py_VISIT(self->target);
    return 0;
}

/* No tp_clear: a finalizer elsewhere in the garbage may still call it; a cycle through the target is broken there. */
static void
exchangeable_dealloc(FxExchangeable *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_CLEAR(self->target);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyGetSetDef exchangeable_getset[] = {
    {"target", (getter)exchangeable_get, (setter)exchangeable_set, "what the next call calls", NULL},
    {NULL},
};

static PyTypeObject FxExchangeable_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.Exchangeable",
    .tp_doc = "Exchangeable(target)\n--\n\nCalls `target`, which may be another one from one call to the next.",
    .tp_basicsize = sizeof(FxExchangeable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(FxExchangeable, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = exchangeable_new,
    .tp_dealloc = (destructor)exchangeable_dealloc,
    .tp_traverse = (traverseproc)exchangeable_traverse,
    .tp_getset = exchangeable_getset,
    .tp_weaklistoffset = offsetof(FxExchangeable, weakrefs),
};

/* A copy of this process that is the child of none of the program's: it is forked by a process that ends at once. What is
 * registered with os.register_at_fork is run as for every fork. */
static PyObject *
fork_helper(PyObject *module, PyObject *unused)
{
    int status = 0, error = 0;
    PyOS_BeforeFork();
    pid_t child = fork();
    if (child == 0) {
        pid_t helper = fork();
        if (helper != 0) {
            _exit(helper < 0);
        }
        PyOS_AfterFork_Child();
        Py_RETURN_TRUE;
    }
    error = errno;
    PyOS_AfterFork_Parent();
    if (child < 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pid_t waited;
    Py_BEGIN_ALLOW_THREADS;
    do {
        waited = waitpid(child, &status, 0);
    } while (waited < 0 && errno == EINTR);
    Py_END_ALLOW_THREADS;
    /* Where the program ignores SIGCHLD there is no status to be had. */
    if (waited == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        PyErr_SetString(PyExc_OSError, "the system gave no helper process");
        return NULL;
    }
    Py_RETURN_FALSE;
}

static PyMethodDef functions[] = {
    {"fork_helper", fork_helper, METH_NOARGS,
     "fork_helper()\n--\n\nForks a process that is no child of this one; True in it. OSError where there is none to be had."},
    {NULL},
};

int
fxjit_tiers_init(PyObject *module)
{
    return PyModule_AddType(module, &FxExchangeable_Type) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
