/* Calls of nn.Modules that come to nothing but a call of `forward`.
 *
 * `nn.Module.__call__` is Python: it looks whether the module was compiled in place, whether torch.jit traces, and for
 * eight kinds of hooks, and then calls `forward`. The same is asked here in C, of the class by CPython's cache of
 * attributes and of the instance by its dict. Whatever is not as torch made it means that the Python runs. */
#include "frontend/_modules.h"

#include <string.h>

#include "_call.h"
#include "_module.h"

/* From nn.Module, once it is known (`know_modules`). */
static struct {
    PyObject *call, *call_impl; /* the functions */
    PyObject *namespace;        /* of the module that defines it: has the hooks of all modules */
    PyObject *tracing_state;    /* true while torch.jit traces */
} torch_modules;

static PyTypeObject *caller;         /* the class whose instances module_call is for */
static ternaryfunc call_as_python; /* how they were called before */

enum { GETATTRIBUTE, CALL, CALLED, CALL_IMPL, COMPILED_CALL_IMPL, FORWARD, MODULES, ORIGINAL, INITIALIZE_HOOK, NUM_NAMES };
#define NUM_HOOKS 4

static PyObject *names[NUM_NAMES], *hooks[NUM_HOOKS], *global_hooks[NUM_HOOKS];

static int
intern_names(void)
{
    const char *const texts[NUM_NAMES] = {
        "__getattribute__", "__call__", "_called", "_call_impl", "_compiled_call_impl", "forward", "_modules", "_orig_mod",
        "_initialize_hook",
    };
    const char *const kinds[NUM_HOOKS] = {"backward_hooks", "backward_pre_hooks", "forward_hooks", "forward_pre_hooks"};
    for (int i = 0; i < NUM_NAMES; i++) {
        if ((names[i] = PyUnicode_InternFromString(texts[i])) == NULL) {
            return -1;
        }
    }
    for (int i = 0; i < NUM_HOOKS; i++) {
        hooks[i] = PyUnicode_FromFormat("_%s", kinds[i]);
        global_hooks[i] = PyUnicode_FromFormat("_global_%s", kinds[i]);
        if (hooks[i] == NULL || global_hooks[i] == NULL) {
            return -1;
        }
        PyUnicode_InternInPlace(&hooks[i]);
        PyUnicode_InternInPlace(&global_hooks[i]);
    }
    return 0;
}

/* The dict of an instance, borrowed, if looking up names in it runs no Python code; else NULL. */
static PyObject *
plain_dict(PyObject *instance)
{
    PyObject **slot = _PyObject_GetDictPtr(instance);
    PyObject *dict = slot == NULL ? NULL : *slot;
    return dict != NULL && PyDict_CheckExact(dict) && fx_dict_has_only_str_keys(dict) ? dict : NULL;
}

/* The item, borrowed; NULL if there is none. Keys of such dicts compare without failing. */
static inline PyObject *
item(PyObject *dict, PyObject *name)
{
    return PyDict_GetItemWithError(dict, name);
}

/* Whether the dict has, under each of these names, a dict of torch's kind with nothing in it. */
static int
are_empty(PyObject *dict, PyObject *const *which)
{
    for (int i = 0; i < NUM_HOOKS; i++) {
        PyObject *found = item(dict, which[i]);
        if (found == NULL || !(PyDict_CheckExact(found) || PyODict_CheckExact(found)) || PyDict_GET_SIZE(found) != 0) {
            return 0;
        }
    }
    return 1;
}

/* Whether the class leaves calls and attributes as nn.Module has them. */
static int
class_is_plain(PyTypeObject *type, int from_call)
{
    if (_PyType_Lookup(type, names[GETATTRIBUTE]) != _PyType_Lookup(&PyBaseObject_Type, names[GETATTRIBUTE])) {
        return 0;
    }
    for (int i = 0; i < NUM_HOOKS; i++) {
        if (_PyType_Lookup(type, hooks[i]) != NULL) {
            return 0;
        }
    }
    return !from_call || (_PyType_Lookup(type, names[CALL_IMPL]) == torch_modules.call_impl &&
                          _PyType_Lookup(type, names[COMPILED_CALL_IMPL]) == Py_None);
}

static int
torch_jit_traces(void)
{
    PyObject *state = PyObject_CallNoArgs(torch_modules.tracing_state);
    int none = state == Py_None;
    Py_XDECREF(state);
    PyErr_Clear();
    return !none;
}

/* The function that a call of this bound method runs and nothing else, borrowed; or NULL. */
static PyFunctionObject *
forward_of_call(PyObject *method)
{
    PyObject *called = PyMethod_GET_FUNCTION(method), *module = PyMethod_GET_SELF(method);
    int from_call = called == torch_modules.call;
    if ((!from_call && called != torch_modules.call_impl) || !class_is_plain(Py_TYPE(module), from_call)) {
        return NULL;
    }
    PyObject *dict = plain_dict(module);
    if (dict == NULL || item(dict, names[FORWARD]) != NULL || !are_empty(dict, hooks) ||
        !are_empty(torch_modules.namespace, global_hooks) ||
        (from_call && (item(dict, names[CALL_IMPL]) != NULL || item(dict, names[COMPILED_CALL_IMPL]) != NULL)) ||
        torch_jit_traces()) {
        return NULL;
    }
    PyObject *forward = _PyType_Lookup(Py_TYPE(module), names[FORWARD]);
    return forward != NULL && PyFunction_Check(forward) ? (PyFunctionObject *)forward : NULL;
}

/* ---- binding ---- */

/* The place of a parameter among the positional and keyword ones; -1 if there is none of this name. */
static Py_ssize_t
parameter_named(const PyCodeObject *code, PyObject *name)
{
    Py_ssize_t count = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) { /* both interned */
            return i;
        }
    }
    return -1;
}

static int
bind_keywords(FxBoundCall *call, const PyCodeObject *code, PyObject *const *values, PyObject *kwnames)
{
    PyObject *collected = call->slots[call->nslots - 1]; /* of a function that has **kwargs */
    int collects = (code->co_flags & CO_VARKEYWORDS) != 0;
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (!PyUnicode_CheckExact(name) || !PyUnicode_CHECK_INTERNED(name)) {
            return 0;
        }
        Py_ssize_t place = parameter_named(code, name);
        if (place >= 0) {
            if (place < code->co_posonlyargcount || call->slots[place] != NULL) {
                return 0;
            }
            call->slots[place] = Py_NewRef(values[i]);
        }
        else if (!collects || PyDict_SetItem(collected, name, values[i]) < 0) {
            return 0;
        }
    }
    return 1;
}

static int
bind_defaults(FxBoundCall *call, const PyCodeObject *code)
{
    PyObject *defaults = call->func->func_defaults, *of_keywords = call->func->func_kwdefaults;
    Py_ssize_t last = code->co_argcount + code->co_kwonlyargcount;
    Py_ssize_t first_default = code->co_argcount - (defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults));
    for (Py_ssize_t i = 0; i < last; i++) {
        if (call->slots[i] != NULL) {
            continue;
        }
        if (i >= code->co_argcount) {
            PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
            call->slots[i] = of_keywords == NULL ? NULL : Py_XNewRef(item(of_keywords, name));
        }
        else if (i >= first_default) {
            call->slots[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, i - first_default));
        }
        if (call->slots[i] == NULL) {
            return 0;
        }
    }
    return 1;
}

/* As CPython does; where it would raise, it has the words for it. */
static int
bind(FxBoundCall *call, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const PyCodeObject *code = (const PyCodeObject *)call->func->func_code;
    Py_ssize_t named = code->co_argcount + code->co_kwonlyargcount;
    int collects = (code->co_flags & CO_VARKEYWORDS) != 0;
    if (nargs + 1 > code->co_argcount || named + collects > FX_BOUND_SLOTS || (code->co_flags & CO_VARARGS)) {
        return 0;
    }
    call->nslots = named + collects;
    memset(call->slots, 0, (size_t)call->nslots * sizeof(PyObject *));
    call->slots[0] = Py_NewRef(self);
    for (Py_ssize_t i = 0; i < nargs; i++) {
        call->slots[i + 1] = Py_NewRef(args[i]);
    }
    if (collects && (call->slots[named] = PyDict_New()) == NULL) {
        return 0;
    }
    return bind_keywords(call, code, args + nargs, kwnames) && bind_defaults(call, code);
}

void
fx_release_bound(FxBoundCall *call)
{
    for (Py_ssize_t i = 0; i < call->nslots; i++) {
        Py_XDECREF(call->slots[i]);
    }
}

int
fx_bind_module_call(PyObject *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, FxBoundCall *call)
{
    call->nslots = 0;
    if (!PyMethod_Check(method) || (call->func = forward_of_call(method)) == NULL) {
        return 0;
    }
    if (bind(call, PyMethod_GET_SELF(method), args, nargs, kwnames)) {
        return 1;
    }
    fx_release_bound(call);
    PyErr_Clear();
    return 0;
}

/* ---- module.py's OptimizedModule ---- */

/* Its `__call__`, where neither it nor the original has to do anything first. */
static PyObject *
module_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *dict = Py_TYPE(self) == caller ? plain_dict(self) : NULL;
    PyObject *forward = dict == NULL ? NULL : item(dict, names[FORWARD]);
    PyObject *children = forward == NULL ? NULL : item(dict, names[MODULES]);
    if (children != NULL && fx_is_compiled(forward) && are_empty(dict, hooks) && PyDict_CheckExact(children)) {
        PyObject *original = item(children, names[ORIGINAL]);
        PyObject *of_original = original == NULL ? NULL : plain_dict(original);
        if (of_original != NULL && item(of_original, names[INITIALIZE_HOOK]) == NULL &&
            _PyType_Lookup(Py_TYPE(original), names[CALL]) == item(dict, names[CALLED])) {
            Py_INCREF(forward);
            PyObject *result = PyObject_Call(forward, args, kwargs);
            Py_DECREF(forward);
            return result;
        }
    }
    return call_as_python(self, args, kwargs);
}

/* ---- functions of the module ---- */

static PyObject *
know_modules(PyObject *module, PyObject *args)
{
    PyObject *cls, *namespace, *tracing_state, *compiled;
    if (!PyArg_ParseTuple(args, "O!O!OO!:know_modules", &PyType_Type, &cls, &PyDict_Type, &namespace, &tracing_state,
                          &PyType_Type, &compiled)) {
        return NULL;
    }
    PyObject *call = PyObject_GetAttrString(cls, "__call__"), *call_impl = PyObject_GetAttr(cls, names[CALL_IMPL]);
    if (call == NULL || call_impl == NULL) {
        Py_XDECREF(call);
        Py_XDECREF(call_impl);
        return NULL;
    }
    Py_XSETREF(torch_modules.call, call);
    Py_XSETREF(torch_modules.call_impl, call_impl);
    Py_XSETREF(torch_modules.namespace, Py_NewRef(namespace));
    Py_XSETREF(torch_modules.tracing_state, Py_NewRef(tracing_state));
    Py_XSETREF(caller, (PyTypeObject *)Py_NewRef(compiled));
    if (caller->tp_call != module_call) {
        /* Not by an attribute: in traced code the Python method is what is called. Whoever sets `__call__` on the class
         * or derives a class from it gets CPython's own slot back. */
        call_as_python = caller->tp_call;
        caller->tp_call = module_call;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"know_modules", know_modules, METH_VARARGS,
     "know_modules(module_class, namespace, tracing_state, compiled_class, /)\n--\n\nCall modules whose `__call__` only "
     "calls `forward` without Python in between."},
    {NULL},
};

int
fxjit_modules_init(PyObject *module)
{
    return intern_names() < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
