/* Compiled entries and where they are kept: on the code object they stand in for, under the key of a region, so that
 * they go with the one or the other. What the frame hook and the call path need of it is in _entries.h; the functions of
 * the module at the end are for frontend/entries.py. */
#include "frontend/_entries.h"

#include <stddef.h>
#include <structmember.h>

#include "_module.h"
#include "frontend/_continue.h"
#include "frontend/_hook.h"
#include "guards/_tree.h"

Py_ssize_t fx_extra_index = -1;

static PyObject *this_module; /* borrowed: the extension is never unloaded */

static int add_flags(PyCodeObject *code, int flags);

/* ---- Entry ---- */

static int
tree_kind(PyObject *tree)
{
    PyObject *native = PyObject_GetAttrString(this_module, "GuardTree");
    if (native == NULL) {
        PyErr_Clear();
    }
    else {
        int is_native = PyObject_IsInstance(tree, native);
        Py_DECREF(native);
        if (is_native != 0) {
            return is_native;
        }
    }
    if (tree != Py_None && !PyCallable_Check(tree)) {
        PyErr_Format(PyExc_TypeError, "tree must be a GuardTree, None or a callable, not %.100s",
                     Py_TYPE(tree)->tp_name);
        return -1;
    }
    return 0;
}

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tree", "code", "payload", NULL};
    PyObject *tree, *code, *payload = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|O:Entry", names, &tree, &PyCode_Type, &code, &payload)) {
        return NULL;
    }
    int is_native = tree_kind(tree);
    if (is_native < 0) {
        return NULL;
    }
    PyCodeObject *generated = (PyCodeObject *)code;
    const int unwanted = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    if ((generated->co_flags & unwanted) || generated->co_kwonlyargcount) {
        PyErr_SetString(PyExc_ValueError, "the code of an entry takes the argument slots as plain positional "
                                          "parameters, and is no generator");
        return NULL;
    }
    if (add_flags(generated, FX_TRANSFORMED) < 0) {
        return NULL;
    }
    FxEntry *self = (FxEntry *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->tree = Py_NewRef(tree);
        self->code = Py_NewRef(code);
        self->payload = Py_NewRef(payload);
        self->tree_is_native = is_native;
    }
    return (PyObject *)self;
}

static int
entry_traverse(FxEntry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->tree);
    Py_VISIT(self->code);
    Py_VISIT(self->payload);
    Py_VISIT(self->func);
    return 0;
}

static int
entry_clear(FxEntry *self)
{
    Py_CLEAR(self->tree);
    Py_CLEAR(self->payload);
    Py_CLEAR(self->func);
    Py_CLEAR(self->code);
    return 0;
}

static void
entry_dealloc(FxEntry *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    entry_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
entry_repr(FxEntry *self)
{
    return PyUnicode_FromFormat("<entry for %U, %zd hits>", ((PyCodeObject *)self->code)->co_qualname, self->hits);
}

static PyMemberDef entry_members[] = {
    {"tree", T_OBJECT, offsetof(FxEntry, tree), READONLY, "the guards"},
    {"code", T_OBJECT, offsetof(FxEntry, code), READONLY, "the generated code"},
    {"payload", T_OBJECT, offsetof(FxEntry, payload), READONLY, "whatever has to live as long as the entry"},
    {"hits", T_PYSSIZET, offsetof(FxEntry, hits), READONLY, "how often it ran"},
    {NULL},
};

PyTypeObject FxEntry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.Entry",
    .tp_doc = "Entry(tree, code, payload=None)\n--\n\nGenerated code, with the guards under which it may stand in for a "
              "frame.\nA tree of None always holds; a callable is called as tree(args, closure, globals, builtins).",
    .tp_basicsize = sizeof(FxEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_repr = (reprfunc)entry_repr,
    .tp_members = entry_members,
    .tp_weaklistoffset = offsetof(FxEntry, weakrefs),
};

/* ---- what hangs on a code object ---- */

static CodeExtra *
make_extra(PyCodeObject *code)
{
    CodeExtra *extra = find_extra(code);
    if (extra == NULL) {
        extra = PyMem_Calloc(1, sizeof(CodeExtra));
        if (extra == NULL) {
            PyErr_NoMemory();
        }
        else if (fx_code_extra_set(code, fx_extra_index, extra) < 0) {
            PyMem_Free(extra);
            extra = NULL;
        }
    }
    return extra;
}

static void
release_groups(Group *groups, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_XDECREF(groups[i].key_ref);
        Py_XDECREF(groups[i].key);
        Py_DECREF(groups[i].entries);
    }
    PyMem_Free(groups);
}

/* Called by CPython when the code object goes, and by nobody else. */
static void
release_extra(void *pointer)
{
    CodeExtra *extra = pointer;
    if (extra == NULL) {
        return;
    }
    PyObject *type, *value, *traceback; /* a code object can go while an exception is on its way */
    PyErr_Fetch(&type, &value, &traceback);
    Group *groups = extra->groups;
    Py_ssize_t size = extra->size;
    PyObject *state = extra->state;
    PyMem_Free(extra);
    release_groups(groups, size);
    Py_XDECREF(state);
    PyErr_Restore(type, value, traceback);
}

/* Takes the group at `index` out. The caller releases what it held, when the table is consistent again. */
static Group
take_group(CodeExtra *extra, Py_ssize_t index)
{
    Group taken = extra->groups[index];
    extra->size--;
    memmove(&extra->groups[index], &extra->groups[index + 1], (extra->size - index) * sizeof(Group));
    return taken;
}

static void
drop_groups_of_dead_keys(CodeExtra *extra)
{
    for (Py_ssize_t i = extra->size - 1; i >= 0; i--) {
        if (group_key(&extra->groups[i]) == NULL) {
            Group taken = take_group(extra, i);
            Py_XDECREF(taken.key_ref);
            Py_DECREF(taken.entries);
            i = Py_MIN(i, extra->size); /* releasing runs code, which may have changed the table */
        }
    }
}

static PyObject *
key_died(PyObject *code_ref, PyObject *key_ref)
{
    PyObject *code = fx_weakref_target(code_ref);
    if (code != NULL) {
        Py_INCREF(code);
        CodeExtra *extra = find_extra((PyCodeObject *)code);
        if (extra != NULL) {
            drop_groups_of_dead_keys(extra);
        }
        Py_DECREF(code);
    }
    Py_RETURN_NONE;
}

static PyMethodDef key_died_def = {"_key_died", key_died, METH_O, NULL};

/* A weak reference to the key that takes the code's entries of this key away when the key goes. */
static PyObject *
watch_key(PyCodeObject *code, PyObject *key)
{
    PyObject *watcher = NULL, *code_ref = PyWeakref_NewRef((PyObject *)code, NULL);
    if (code_ref != NULL) {
        PyObject *callback = PyCFunction_New(&key_died_def, code_ref);
        Py_DECREF(code_ref);
        if (callback != NULL) {
            watcher = PyWeakref_NewRef(key, callback);
            Py_DECREF(callback);
        }
    }
    return watcher;
}

static Group *
make_group(PyCodeObject *code, CodeExtra *extra, PyObject *key)
{
    Group *group = find_group(extra, key);
    if (group != NULL) {
        return group;
    }
    Group fresh = {NULL, NULL, NULL, 0};
    if (Py_TYPE(key)->tp_weaklistoffset != 0) {
        fresh.key_ref = watch_key(code, key);
        if (fresh.key_ref == NULL) {
            return NULL;
        }
    }
    else {
        fresh.key = Py_NewRef(key);
    }
    fresh.entries = PyTuple_New(0);
    Group *groups = PyMem_Realloc(extra->groups, (extra->size + 1) * sizeof(Group));
    if (groups == NULL || fresh.entries == NULL) {
        Py_XDECREF(fresh.key_ref);
        Py_XDECREF(fresh.key);
        Py_XDECREF(fresh.entries);
        PyErr_NoMemory();
        return NULL;
    }
    extra->groups = groups;
    groups[extra->size] = fresh;
    return &groups[extra->size++];
}

static int
add_flags(PyCodeObject *code, int flags)
{
    CodeExtra *extra = make_extra(code);
    if (extra == NULL) {
        return -1;
    }
    extra->flags |= flags;
    return 0;
}

/* A copy of `entries` without `left_out` (NULL: all stay) and with `first` before and `last` behind the rest. */
static PyObject *
rearranged(PyObject *entries, PyObject *left_out, PyObject *first, PyObject *last)
{
    Py_ssize_t size = PyTuple_GET_SIZE(entries), kept = 0, at = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        kept += PyTuple_GET_ITEM(entries, i) != left_out;
    }
    PyObject *copy = PyTuple_New(kept + (first != NULL) + (last != NULL));
    if (copy == NULL) {
        return NULL;
    }
    if (first != NULL) {
        PyTuple_SET_ITEM(copy, at++, Py_NewRef(first));
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (entry != left_out) {
            PyTuple_SET_ITEM(copy, at++, Py_NewRef(entry));
        }
    }
    if (last != NULL) {
        PyTuple_SET_ITEM(copy, at++, Py_NewRef(last));
    }
    return copy;
}

/* ---- running an entry ---- */

static int
entry_holds(FxEntry *entry, PyObject *const *slots, Py_ssize_t nslots, PyFunctionObject *func)
{
    PyObject *closure = func->func_closure, *globals = func->func_globals, *builtins = func->func_builtins;
    if (entry->tree_is_native) {
        return fxjit_tree_check(entry->tree, slots, nslots, closure, globals, builtins);
    }
    if (entry->tree == Py_None) {
        return 1;
    }
    PyObject *args = PyTuple_New(nslots);
    if (args == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < nslots; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(slots[i]));
    }
    PyObject *answer = PyObject_CallFunctionObjArgs(entry->tree, args, closure == NULL ? Py_None : closure, globals,
                                                    builtins, NULL);
    Py_DECREF(args);
    int holds = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return holds;
}

/* A function object may be kept on the entry if it keeps nothing alive that would not live anyway. The entry hangs on a
 * code object, which the garbage collector does not look into: a namespace that holds the code (exec'd functions, a
 * module that was thrown away) could never be freed. The namespace of an imported module lives as long as the program. */
static int
globals_live_on(PyObject *globals)
{
    PyObject *name = PyDict_GetItemString(globals, "__name__");
    if (name == NULL || !PyUnicode_Check(name)) {
        return 0;
    }
    PyObject *module = PyDict_GetItemWithError(PyImport_GetModuleDict(), name);
    if (module == NULL) {
        PyErr_Clear();
        return 0;
    }
    return PyModule_Check(module) && PyModule_GetDict(module) == globals;
}

void
fx_set_builtins(PyObject *made, PyObject *builtins)
{
    PyFunctionObject *func = (PyFunctionObject *)made;
    if (func->func_builtins != builtins) {
        Py_SETREF(func->func_builtins, Py_NewRef(builtins));
    }
}

static PyObject *
entry_function(FxEntry *entry, PyFunctionObject *func)
{
    PyFunctionObject *kept = (PyFunctionObject *)entry->func;
    if (kept != NULL && kept->func_globals == func->func_globals && kept->func_builtins == func->func_builtins) {
        return Py_NewRef((PyObject *)kept);
    }
    PyObject *made = PyFunction_New(entry->code, func->func_globals);
    if (made == NULL) {
        return NULL;
    }
    fx_set_builtins(made, func->func_builtins);
    if (func->func_closure != NULL && ((PyCodeObject *)entry->code)->co_nfreevars > 0) {
        if (PyFunction_SetClosure(made, func->func_closure) < 0) {
            Py_DECREF(made);
            return NULL;
        }
    }
    else if (entry->func == NULL && globals_live_on(func->func_globals)) {
        entry->func = Py_NewRef(made);
    }
    return made;
}

int
fx_entry_fits(FxEntry *entry, PyCodeObject *code)
{
    PyCodeObject *generated = (PyCodeObject *)entry->code;
    Py_ssize_t nslots = fx_argument_slots(code);
    if (!is_plain_function(code)) {
        PyErr_Format(PyExc_ValueError, "%U is a generator, a coroutine or a body: no entry can stand in for it",
                     code->co_qualname);
        return 0;
    }
    if (generated->co_argcount != nslots) {
        PyErr_Format(PyExc_ValueError, "the entry's code takes %d arguments, a frame of %U has %zd",
                     generated->co_argcount, code->co_qualname, nslots);
        return 0;
    }
    if (generated->co_nfreevars != 0 && generated->co_nfreevars != code->co_nfreevars) {
        PyErr_Format(PyExc_ValueError, "the entry's code has %d free variables, %U has %d", generated->co_nfreevars,
                     code->co_qualname, code->co_nfreevars);
        return 0;
    }
    return 1;
}

PyObject *
fx_entry_run(FxEntry *entry, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots)
{
    PyObject *callee = entry_function(entry, func);
    if (callee == NULL) {
        return NULL;
    }
    entry->hits++;
    PyObject *result = PyObject_Vectorcall(callee, slots, nslots, NULL);
    Py_DECREF(callee);
    return result;
}

PyObject *
fx_entry_run_for_frame(FxEntry *entry, PyFunctionObject *func, PyObject **slots, Py_ssize_t nslots)
{
    PyObject *callee = entry_function(entry, func);
    if (callee == NULL) {
        return NULL;
    }
    entry->hits++;
    PyObject *result = fx_hook_call_handing_over(callee, slots, nslots);
    Py_DECREF(callee);
    return result;
}

/* ---- looking one up ---- */

int
fx_find_entry(CodeExtra *extra, Group *group, PyObject *key, PyFunctionObject *func, PyObject *const *slots,
              Py_ssize_t nslots, FxEntry **found)
{
    *found = NULL;
    PyObject *entries = Py_NewRef(group->entries);
    Py_ssize_t size = PyTuple_GET_SIZE(entries), index;
    int holds = 0;
    for (index = 0; index < size; index++) {
        holds = entry_holds((FxEntry *)PyTuple_GET_ITEM(entries, index), slots, nslots, func);
        if (holds != 0) {
            break;
        }
    }
    if (holds > 0) {
        PyObject *entry = Py_NewRef(PyTuple_GET_ITEM(entries, index));
        *found = (FxEntry *)entry;
        group = index == 0 ? NULL : find_group(extra, key); /* a guard may have run code that changed the table */
        if (group != NULL && group->entries == entries) {
            PyObject *order = rearranged(entries, entry, entry, NULL);
            if (order == NULL) {
                PyErr_Clear();
            }
            else {
                Py_SETREF(group->entries, order);
            }
        }
    }
    Py_DECREF(entries);
    return holds < 0 ? -1 : 0;
}

/* ---- functions of the module ---- */

static PyObject *
add_entry(PyObject *module, PyObject *args)
{
    PyObject *code, *key, *entry;
    if (!PyArg_ParseTuple(args, "O!OO!:add_entry", &PyCode_Type, &code, &key, &FxEntry_Type, &entry)) {
        return NULL;
    }
    if (!fx_entry_fits((FxEntry *)entry, (PyCodeObject *)code)) {
        return NULL;
    }
    CodeExtra *extra = make_extra((PyCodeObject *)code);
    Group *group = extra == NULL ? NULL : make_group((PyCodeObject *)code, extra, key);
    if (group == NULL) {
        return NULL;
    }
    PyObject *longer = rearranged(group->entries, entry, NULL, entry);
    if (longer == NULL) {
        return NULL;
    }
    Py_SETREF(group->entries, longer);
    Py_RETURN_NONE;
}

static PyObject *
remove_entry(PyObject *module, PyObject *args)
{
    PyObject *code, *key, *entry;
    if (!PyArg_ParseTuple(args, "O!OO!:remove_entry", &PyCode_Type, &code, &key, &FxEntry_Type, &entry)) {
        return NULL;
    }
    CodeExtra *extra = find_extra((PyCodeObject *)code);
    Group *group = extra == NULL ? NULL : find_group(extra, key);
    PyObject *shorter = group == NULL ? NULL : rearranged(group->entries, entry, NULL, NULL);
    if (shorter == NULL) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        Py_RETURN_FALSE;
    }
    int found = PyTuple_GET_SIZE(shorter) < PyTuple_GET_SIZE(group->entries);
    Py_SETREF(group->entries, shorter);
    return PyBool_FromLong(found);
}

static PyObject *
list_entries(PyObject *module, PyObject *args)
{
    PyObject *code, *key;
    if (!PyArg_ParseTuple(args, "O!O:entries", &PyCode_Type, &code, &key)) {
        return NULL;
    }
    CodeExtra *extra = find_extra((PyCodeObject *)code);
    Group *group = extra == NULL ? NULL : find_group(extra, key);
    return group == NULL ? PyList_New(0) : PySequence_List(group->entries);
}

static PyObject *
list_keys(PyObject *module, PyObject *code)
{
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "keys() takes a code object, not %.100s", Py_TYPE(code)->tp_name);
    }
    CodeExtra *extra = find_extra((PyCodeObject *)code);
    PyObject *keys = PyList_New(0);
    for (Py_ssize_t i = 0; keys != NULL && extra != NULL && i < extra->size; i++) {
        PyObject *key = group_key(&extra->groups[i]);
        if (key != NULL && PyList_Append(keys, key) < 0) {
            Py_CLEAR(keys);
        }
    }
    return keys;
}

static PyObject *
clear_code(PyObject *module, PyObject *code)
{
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "clear() takes a code object, not %.100s", Py_TYPE(code)->tp_name);
    }
    CodeExtra *extra = find_extra((PyCodeObject *)code);
    if (extra != NULL) {
        Group *groups = extra->groups;
        Py_ssize_t size = extra->size;
        PyObject *state = extra->state;
        extra->groups = NULL;
        extra->size = 0;
        extra->state = NULL;
        extra->flags &= FX_TRANSFORMED;
        release_groups(groups, size);
        Py_XDECREF(state);
    }
    Py_RETURN_NONE;
}

static PyObject *
set_flags(PyObject *module, PyObject *args)
{
    PyObject *code, *key = NULL;
    int flags;
    if (!PyArg_ParseTuple(args, "O!i|O:set_flags", &PyCode_Type, &code, &flags, &key)) {
        return NULL;
    }
    CodeExtra *extra = make_extra((PyCodeObject *)code);
    Group *group = extra == NULL || key == NULL ? NULL : make_group((PyCodeObject *)code, extra, key);
    if (extra == NULL || (key != NULL && group == NULL)) {
        return NULL;
    }
    *(group == NULL ? &extra->flags : &group->flags) = flags;
    Py_RETURN_NONE;
}

static PyObject *
get_flags(PyObject *module, PyObject *args)
{
    PyObject *code, *key = NULL;
    if (!PyArg_ParseTuple(args, "O!|O:get_flags", &PyCode_Type, &code, &key)) {
        return NULL;
    }
    CodeExtra *extra = find_extra((PyCodeObject *)code);
    return PyLong_FromLong(flags_for(extra, extra == NULL || key == NULL ? NULL : find_group(extra, key)));
}

static PyObject *
set_state(PyObject *module, PyObject *args)
{
    PyObject *code, *state;
    if (!PyArg_ParseTuple(args, "O!O:set_state", &PyCode_Type, &code, &state)) {
        return NULL;
    }
    CodeExtra *extra = make_extra((PyCodeObject *)code);
    if (extra == NULL) {
        return NULL;
    }
    Py_XSETREF(extra->state, Py_NewRef(state));
    Py_RETURN_NONE;
}

static PyObject *
get_state(PyObject *module, PyObject *code)
{
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "get_state() takes a code object, not %.100s", Py_TYPE(code)->tp_name);
    }
    CodeExtra *extra = find_extra((PyCodeObject *)code);
    return Py_NewRef(extra == NULL || extra->state == NULL ? Py_None : extra->state);
}

static PyMethodDef functions[] = {
    {"add_entry", add_entry, METH_VARARGS, "add_entry(code, key, entry, /)\n--\n\nFile an entry behind the others."},
    {"remove_entry", remove_entry, METH_VARARGS, "remove_entry(code, key, entry, /)\n--\n\nFalse if it was not there."},
    {"entries", list_entries, METH_VARARGS, "entries(code, key, /)\n--\n\nThe entries, in the order they are tried."},
    {"keys", list_keys, METH_O, "keys(code, /)\n--\n\nThe keys under which this code has entries."},
    {"clear", clear_code, METH_O, "clear(code, /)\n--\n\nDrop entries, state and flags (but TRANSFORMED)."},
    {"set_flags", set_flags, METH_VARARGS, "set_flags(code, flags, key=..., /)\n--\n\nFor one key or for all."},
    {"get_flags", get_flags, METH_VARARGS, "get_flags(code, key=..., /)\n--\n\nAs they stand for all, or for a key."},
    {"set_state", set_state, METH_VARARGS, "set_state(code, state, /)\n--\n\nLet an object live on the code object."},
    {"get_state", get_state, METH_O, "get_state(code, /)\n--\n\nWhat set_state left, or None."},
    {NULL},
};

int
fxjit_entries_init(PyObject *module)
{
    this_module = module;
    fx_extra_index = fx_code_extra_request(release_extra);
    if (fx_extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "fxjit needs a slot on code objects, and other extensions hold all of them");
        return -1;
    }
    if (PyModule_AddType(module, &FxEntry_Type) < 0 || PyModule_AddType(module, &FxContinue_Type) < 0 ||
        PyModule_AddIntConstant(module, "SKIP", FX_SKIP) < 0 ||
        PyModule_AddIntConstant(module, "SKIP_RECURSIVE", FX_SKIP_RECURSIVE) < 0 ||
        PyModule_AddIntConstant(module, "TRANSFORMED", FX_TRANSFORMED) < 0 ||
        PyModule_AddIntConstant(module, "FROZEN", FX_FROZEN) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
