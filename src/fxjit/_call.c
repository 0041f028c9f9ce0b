/* The callables through which a program enters and leaves compiled regions, as C objects, because what they do is paid
 * on every call:
 *
 *   CompiledFunction  calls its function with a region set (what `fxjit.compile` hands out)
 *   DisabledFunction  calls its function with no region (what `fxjit.disable` hands out, and graphs once compiled)
 *
 * Where the arguments of the call are the argument slots of the function's frame, the entries are looked up here, before
 * a frame is made; so they are for modules of which nothing but `forward` runs (frontend/_modules.c). The frame hook does
 * the same for all other calls. */
#include "_call.h"

#include "frontend/_hook.h"

#include <stddef.h>
#include <structmember.h>

#include "_module.h"
#include "_ranges.h"
#include "frontend/_modules.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *fn;
    FxRegion *region;   /* CompiledFunction; NULL: calls run without one */
    PyObject *prologue; /* CompiledFunction; called without arguments before each call */
    PyObject *dict;
    PyObject *weakrefs;
    PyObject *range; /* DisabledFunction; a str: what a profiler shows of its calls; NULL: nothing */
    char opaque; /* DisabledFunction: keeps frames away from the evaluators of others as well */
} FxCallable;

static int stance_eager; /* process-wide: compiled functions run as if they were not */

/* ---- calls ---- */

static PyObject *
call_without_region(PyObject *fn, int bypass, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    FxHookState before;
    fx_hook_switch(NULL, bypass, &before);
    PyObject *result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
    fx_hook_restore(&before);
    return result;
}

static PyObject *
disabled_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    FxCallable *self = (FxCallable *)callable;
    void *range = self->range != NULL && fxjit_profiled() ? fxjit_begin_range(PyUnicode_AsUTF8(self->range), NULL) : NULL;
    PyObject *result = call_without_region(self->fn, self->opaque ? 1 : fx_hook_bypass(), args, nargsf, kwnames);
    fxjit_end_range(range);
    return result;
}

/* Whether these arguments are what the function's frame would start with, in the same order. */
static inline int
arguments_are_slots(PyObject *fn, Py_ssize_t nargs, PyObject *kwnames)
{
    if (kwnames != NULL || !PyFunction_Check(fn)) {
        return 0;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(fn);
    return nargs == code->co_argcount && code->co_kwonlyargcount == 0 &&
           (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0;
}

/* Runs an entry for these arguments, as fx_hook_run_entry; 0 where that takes a frame to find out. */
static int
run_entry(FxRegion *region, PyObject *fn, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **result)
{
    if (arguments_are_slots(fn, nargs, kwnames)) {
        return fx_hook_run_entry(region, (PyFunctionObject *)fn, args, nargs, result);
    }
    FxBoundCall call;
    if (!fx_bind_module_call(fn, args, nargs, kwnames, &call)) {
        return 0;
    }
    PyFunctionObject *forward = (PyFunctionObject *)Py_NewRef(call.func);
    int ran = fx_hook_run_entry(region, forward, call.slots, call.nslots, result);
    Py_DECREF(forward);
    fx_release_bound(&call);
    return ran;
}

static PyObject *
compiled_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    FxCallable *self = (FxCallable *)callable;
    if (self->prologue != NULL) {
        PyObject *prologue = Py_NewRef(self->prologue);
        PyObject *ignored = PyObject_CallNoArgs(prologue);
        Py_DECREF(prologue);
        if (ignored == NULL) {
            return NULL;
        }
        Py_DECREF(ignored);
    }
    if (stance_eager || self->region == NULL) {
        return call_without_region(self->fn, fx_hook_bypass(), args, nargsf, kwnames);
    }
    FxRegion *region = (FxRegion *)Py_NewRef(self->region); /* the attribute can be set during the call */
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    PyObject *result;
    FxHookState before;
    fx_hook_switch(region, 0, &before);
    if (!run_entry(region, self->fn, args, nargs, kwnames, &result)) {
        result = PyObject_Vectorcall(self->fn, args, nargsf, kwnames);
    }
    fx_hook_restore(&before);
    Py_DECREF(region);
    return result;
}

/* ---- the objects ---- */

static FxCallable *
callable_new(PyTypeObject *type, PyObject *fn, vectorcallfunc vectorcall)
{
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "%s needs a callable, not %.100s", type->tp_name, Py_TYPE(fn)->tp_name);
        return NULL;
    }
    FxCallable *self = (FxCallable *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = vectorcall;
    self->fn = Py_NewRef(fn);
    self->dict = PyDict_New();
    /* Name, doc, annotations and __wrapped__, as any decorator would. */
    PyObject *functools = self->dict == NULL ? NULL : PyImport_ImportModule("functools");
    PyObject *done = functools == NULL ? NULL : PyObject_CallMethod(functools, "update_wrapper", "OO", self, fn);
    Py_XDECREF(functools);
    if (done == NULL) {
        Py_CLEAR(self);
    }
    Py_XDECREF(done);
    return self;
}

static int
check_region(PyObject *region)
{
    if (region != Py_None && !PyObject_TypeCheck(region, &FxRegion_Type)) {
        PyErr_Format(PyExc_TypeError, "region must be a Region or None, not %.100s", Py_TYPE(region)->tp_name);
        return -1;
    }
    return 0;
}

static PyObject *
compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "region", NULL};
    PyObject *fn, *region;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:CompiledFunction", names, &fn, &region) ||
        check_region(region) < 0) {
        return NULL;
    }
    FxCallable *self = callable_new(type, fn, compiled_call);
    if (self != NULL && region != Py_None) {
        self->region = (FxRegion *)Py_NewRef(region);
    }
    return (PyObject *)self;
}

static PyObject *
disabled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "opaque", "range", NULL};
    PyObject *fn, *range = NULL;
    int opaque = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|pU:DisabledFunction", names, &fn, &opaque, &range) ||
        (range != NULL && PyUnicode_AsUTF8(range) == NULL)) {
        return NULL;
    }
    FxCallable *self = callable_new(type, fn, disabled_call);
    if (self != NULL) {
        self->opaque = (char)opaque;
        self->range = range != NULL && PyUnicode_GET_LENGTH(range) > 0 ? Py_NewRef(range) : NULL;
    }
    return (PyObject *)self;
}

static int
callable_traverse(FxCallable *self, visitproc visit, void *arg)
{
    Py_VISIT(self->fn);
    Py_VISIT(self->region);
    Py_VISIT(self->prologue);
    Py_VISIT(self->dict);
    return 0;
}

static int
callable_clear(FxCallable *self)
{
    /* Not `fn`: a finalizer elsewhere in the garbage may still call us; clearing the rest breaks every cycle that goes
     * through what we added, and a cycle through fn is broken at fn. */
    Py_CLEAR(self->region);
    Py_CLEAR(self->prologue);
    Py_CLEAR(self->dict);
    return 0;
}

static void
callable_dealloc(FxCallable *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    callable_clear(self);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->range);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
callable_bind(PyObject *self, PyObject *instance, PyObject *owner)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static PyObject *
compiled_repr(FxCallable *self)
{
    return PyUnicode_FromFormat("<compiled %R>", self->fn);
}

static PyObject *
disabled_repr(FxCallable *self)
{
    return PyUnicode_FromFormat("<disabled %R>", self->fn);
}

static PyObject *
get_region(FxCallable *self, void *closure)
{
    return Py_NewRef(self->region == NULL ? Py_None : (PyObject *)self->region);
}

static int
set_region_attribute(FxCallable *self, PyObject *value, void *closure)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "region can be set to None, not deleted");
        return -1;
    }
    if (check_region(value) < 0) {
        return -1;
    }
    Py_XSETREF(self->region, value == Py_None ? NULL : (FxRegion *)Py_NewRef(value));
    return 0;
}

static PyObject *
get_prologue(FxCallable *self, void *closure)
{
    return Py_NewRef(self->prologue == NULL ? Py_None : self->prologue);
}

static int
set_prologue(FxCallable *self, PyObject *value, void *closure)
{
    if (value != NULL && value != Py_None && !PyCallable_Check(value)) {
        PyErr_Format(PyExc_TypeError, "prologue must be callable or None, not %.100s", Py_TYPE(value)->tp_name);
        return -1;
    }
    Py_XSETREF(self->prologue, value == NULL || value == Py_None ? NULL : Py_NewRef(value));
    return 0;
}

/* Copied as functions are: by reference. */
static PyObject *
callable_itself(PyObject *self, PyObject *ignored)
{
    return Py_NewRef(self);
}

/* `fxjit.regions.reduced`. */
static PyObject *
callable_reduce(PyObject *self, PyObject *ignored)
{
    PyObject *module = PyImport_ImportModule("fxjit.regions");
    PyObject *reduced = module == NULL ? NULL : PyObject_CallMethod(module, "reduced", "O", self);
    Py_XDECREF(module);
    return reduced;
}

static PyMethodDef callable_methods[] = {
    {"__copy__", callable_itself, METH_NOARGS, NULL},
    {"__deepcopy__", callable_itself, METH_O, NULL},
    {"__reduce__", callable_reduce, METH_NOARGS, NULL},
    {NULL},
};

/* Methods in Python (artifact.py). */
static PyObject *
call_artifact(const char *name, PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *module = PyImport_ImportModule("fxjit.artifact");
    PyObject *function = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    PyObject *all = function == NULL ? NULL : PyTuple_New(PyTuple_GET_SIZE(args) + 1);
    PyObject *result = NULL;
    if (all != NULL) {
        PyTuple_SET_ITEM(all, 0, Py_NewRef(self));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
            PyTuple_SET_ITEM(all, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
        }
        result = PyObject_Call(function, all, kwargs);
    }
    Py_XDECREF(all);
    Py_XDECREF(function);
    Py_XDECREF(module);
    return result;
}

static PyObject *
compiled_save(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return call_artifact("save", self, args, kwargs);
}

static PyObject *
compiled_aot_compile(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return call_artifact("aot_compile", self, args, kwargs);
}

#define SAVE_DOC "(path)\n--\n\nWrites it to a file, with which another process starts compiled: fxjit.load(path)."

static PyMethodDef compiled_methods[] = {
    {"save", (PyCFunction)(void (*)(void))compiled_save, METH_VARARGS | METH_KEYWORDS, "save" SAVE_DOC},
    {"save_compiled_function", (PyCFunction)(void (*)(void))compiled_save, METH_VARARGS | METH_KEYWORDS,
     "save_compiled_function" SAVE_DOC},
    {"aot_compile", (PyCFunction)(void (*)(void))compiled_aot_compile, METH_VARARGS | METH_KEYWORDS,
     "aot_compile(*args, **kwargs)\n--\n\nCompiles for these arguments by one call, and gives itself back."},
    {"__copy__", callable_itself, METH_NOARGS, NULL},
    {"__deepcopy__", callable_itself, METH_O, NULL},
    {"__reduce__", callable_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef callable_members[] = {
    {"fn", T_OBJECT, offsetof(FxCallable, fn), READONLY, "the function that is called"},
    {NULL},
};

/* What libraries read of any function (inspect.getfullargspec, torch.export): that of the function inside. */
static PyObject *
get_of_function(FxCallable *self, void *name)
{
    return PyObject_GetAttrString(self->fn, (const char *)name);
}

#define OF_FUNCTION(name) {name, (getter)get_of_function, NULL, "what the function has", name}
/* While torch.export traces, whose front end looks into functions only, a compiled function says that it is one. At other times
   torch.compile would guard it as a function, which it is not. */
static PyObject *
get_class(FxCallable *self, void *unused)
{
    PyObject *compiler = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.compiler");
    int is_function = self->fn != NULL && (PyFunction_Check(self->fn) || PyMethod_Check(self->fn));
    if (is_function && compiler != NULL) {
        PyObject *exports = PyObject_CallMethod(compiler, "is_exporting", NULL);
        is_function = exports == NULL ? -1 : PyObject_IsTrue(exports);
        Py_XDECREF(exports);
        if (is_function < 0) {
            return NULL;
        }
    } else {
        is_function = 0;
    }
    return Py_NewRef(is_function ? (PyObject *)&PyFunction_Type : (PyObject *)Py_TYPE(self));
}

#define FUNCTION_ATTRIBUTES                                                                                       \
    {"__class__", (getter)get_class, NULL, "a function's while torch.export traces", NULL},                       \
    OF_FUNCTION("__code__"), OF_FUNCTION("__defaults__"), OF_FUNCTION("__kwdefaults__"), OF_FUNCTION("__globals__"), \
        OF_FUNCTION("__closure__")

static PyGetSetDef compiled_getset[] = {
    {"region", (getter)get_region, (setter)set_region_attribute, "what calls activate; None: nothing", NULL},
    {"prologue", (getter)get_prologue, (setter)set_prologue, "called without arguments before each call, or None", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    FUNCTION_ATTRIBUTES,
    {NULL},
};

static PyMemberDef disabled_members[] = {
    {"fn", T_OBJECT, offsetof(FxCallable, fn), READONLY, "the function that is called"},
    {"opaque", T_BOOL, offsetof(FxCallable, opaque), READONLY, "whether other frame evaluators are kept out as well"},
    {NULL},
};

static PyGetSetDef disabled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    FUNCTION_ATTRIBUTES,
    {NULL},
};

#define FX_CALLABLE_TYPE                                                                                            \
    .tp_basicsize = sizeof(FxCallable),                                                                             \
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, \
    .tp_vectorcall_offset = offsetof(FxCallable, vectorcall), .tp_call = PyVectorcall_Call,                         \
    .tp_dealloc = (destructor)callable_dealloc, .tp_traverse = (traverseproc)callable_traverse,                     \
    .tp_clear = (inquiry)callable_clear, .tp_descr_get = callable_bind,                                             \
    .tp_dictoffset = offsetof(FxCallable, dict), .tp_weaklistoffset = offsetof(FxCallable, weakrefs),               \
    .tp_getattro = PyObject_GenericGetAttr, .tp_setattro = PyObject_GenericSetAttr

static PyTypeObject FxCompiledFunction_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.CompiledFunction",
    .tp_doc = "CompiledFunction(fn, region)\n--\n\nCalls fn with the region set on this thread.",
    .tp_new = compiled_new,
    .tp_repr = (reprfunc)compiled_repr,
    .tp_members = callable_members,
    .tp_getset = compiled_getset,
    .tp_methods = compiled_methods,
    FX_CALLABLE_TYPE,
};

int
fx_is_compiled(PyObject *callable)
{
    return Py_IS_TYPE(callable, &FxCompiledFunction_Type);
}

static PyTypeObject FxDisabledFunction_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.DisabledFunction",
    .tp_doc = "DisabledFunction(fn, opaque=False, range='')\n--\n\nCalls fn with no region on this thread; opaque also keeps its "
              "frames away from other frame evaluators; a profiler shows each call under the name `range`.",
    .tp_new = disabled_new,
    .tp_repr = (reprfunc)disabled_repr,
    .tp_members = disabled_members,
    .tp_getset = disabled_getset,
    .tp_methods = callable_methods,
    FX_CALLABLE_TYPE,
};

/* ---- functions of the module ---- */

static PyObject *
run_disabled(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "run_disabled() needs a callable");
        return NULL;
    }
    return call_without_region(args[0], fx_hook_bypass(), args + 1, nargs - 1, kwnames);
}

static PyObject *
set_stance_eager(PyObject *module, PyObject *value)
{
    int eager = PyObject_IsTrue(value);
    if (eager < 0) {
        return NULL;
    }
    PyObject *before = PyBool_FromLong(stance_eager);
    stance_eager = eager;
    return before;
}

/* What LOAD_DEREF does with a cell of the frame's own, for code that has the cell from elsewhere. */
static PyObject *
read_cell(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyCell_Check(args[0]) || !PyUnicode_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read_cell() takes a cell and a name");
        return NULL;
    }
    PyObject *contents = PyCell_Get(args[0]);
    if (contents == NULL) {
        PyErr_Format(PyExc_UnboundLocalError, "cannot access local variable '%U' where it is not associated with a value",
                     args[1]);
    }
    return contents;
}

static PyMethodDef functions[] = {
    {"read_cell", (PyCFunction)(void (*)(void))read_cell, METH_FASTCALL,
     "read_cell(cell, name, /)\n--\n\nWhat the cell of the frame's own variable holds; UnboundLocalError if nothing."},
    {"run_disabled", (PyCFunction)(void (*)(void))run_disabled, METH_FASTCALL | METH_KEYWORDS,
     "run_disabled(fn, /, *args, **kwargs)\n--\n\nCall fn with no region on this thread."},
    {"set_stance_eager", set_stance_eager, METH_O,
     "set_stance_eager(eager, /)\n--\n\nMake compiled functions run as they are, or no longer; returns the previous."},
    {NULL},
};

int
fxjit_call_init(PyObject *module)
{
    if (PyModule_AddType(module, &FxCompiledFunction_Type) < 0 ||
        PyModule_AddType(module, &FxDisabledFunction_Type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
