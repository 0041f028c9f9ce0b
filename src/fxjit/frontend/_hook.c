/* The frame hook (PEP 523): sees a frame before its first instruction, in a thread that runs a compiled region, and
 * decides in C what happens to it: run as it is, run a compiled entry whose guards hold, or ask the region's callback.
 *
 *   frame -> flags of its code object -> entries of (code, region's key), in order -> callback -> entry, or as it is
 *
 * There is no policy here: which code is skipped, what is compiled and how much of it is decided in Python and left on
 * the code object as flags and entries. The evaluator is installed while at least one thread needs it. Evaluators that
 * others installed are called for every frame that we don't answer ourselves.
 *
 * All entry points run under the GIL; what a thread is doing is in `here`, what the process is doing in `hook`. */
#include "frontend/_hook.h"

#include <stddef.h>
#include <structmember.h>
#ifdef __GLIBC__
#include <pthread.h>
#endif

#include "_module.h"

#if __has_include("guards/_tree.h")
#include "guards/_tree.h"
#else
int fxjit_tree_check(PyObject *tree, PyObject *const *args, Py_ssize_t nargs, PyObject *closure, PyObject *globals,
                     PyObject *builtins);
#pragma weak fxjit_tree_check
#endif

#define FX_SKIP 1           /* run as it is; what it calls is still seen */
#define FX_SKIP_RECURSIVE 2 /* run as it is with no region */
#define FX_TRANSFORMED 4    /* our own generated code: run as it is, by CPython's evaluator at once */
#define FX_FROZEN 8         /* its entries are used, the callback is not asked for more */

/* ---- state ---- */

typedef struct {
    FxHookState now;
    int active;                     /* whether this thread is counted in hook.threads */
    _PyInterpreterFrame *delegated; /* the frame that was last passed on to another evaluator */
    char *stack_floor;              /* do not recurse below this address; NULL: not looked up yet */
} HookThread;

static _Thread_local HookThread here;

static struct {
    Py_ssize_t threads;            /* threads that need the evaluator */
    _PyFrameEvalFunction previous; /* the evaluator we found when we installed ours */
    Py_ssize_t extra_index;        /* our slot on code objects */
    PyObject *module;              /* borrowed: the extension is never unloaded */
    int under_tracers;             /* compiled code runs also where somebody follows the lines */
} hook = {0, NULL, -1, NULL, 0};

static PyObject *hook_evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);

/* ---- installing ---- */

static inline PyInterpreterState *
interpreter(void)
{
    return PyThreadState_GET()->interp;
}

static void
install(void)
{
    _PyFrameEvalFunction found = _PyInterpreterState_GetEvalFrameFunc(interpreter());
    /* Ours can still be there when another evaluator was put over it and taken off after our last region ended. */
    if (found != hook_evaluate) {
        hook.previous = found;
        _PyInterpreterState_SetEvalFrameFunc(interpreter(), hook_evaluate);
    }
}

static void
uninstall(void)
{
    /* An evaluator installed over ours calls us, and will put us back when it goes: then we are inert, and take
     * ourselves off at the first frame we see (`pass_on`). */
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter()) == hook_evaluate) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter(), hook.previous);
    }
}

static inline int
other_evaluator_is_below(void)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter());
    return (current == hook_evaluate ? hook.previous : current) != _PyEval_EvalFrameDefault;
}

/* The thread needs the evaluator in a region, and where it keeps frames away from the evaluators of others. */
static inline void
count_thread(void)
{
    int needed = here.now.region != NULL || (here.now.bypass && other_evaluator_is_below());
    if (needed == here.active) {
        return;
    }
    here.active = needed;
    if (needed) {
        if (hook.threads++ == 0) {
            install();
        }
    }
    else if (--hook.threads == 0) {
        uninstall();
    }
}

#if FX_MUST_WATCH_C_STACK
#define STACK_RESERVE (256 * 1024)

static char *
find_stack_floor(void)
{
    char *floor = (char *)1;
#ifdef __GLIBC__
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        void *lowest;
        size_t size;
        if (pthread_attr_getstack(&attributes, &lowest, &size) == 0 && size > 2 * STACK_RESERVE) {
            floor = (char *)lowest + STACK_RESERVE;
        }
        pthread_attr_destroy(&attributes);
    }
#endif
    return floor;
}

static inline int
stack_is_exhausted(void)
{
    if (here.stack_floor == NULL) {
        here.stack_floor = find_stack_floor();
    }
    return (char *)__builtin_frame_address(0) < here.stack_floor;
}
#else
static inline int
stack_is_exhausted(void)
{
    return 0;
}
#endif

void
fx_hook_switch(FxRegion *region, int bypass, FxHookState *before)
{
    *before = here.now;
    here.now.region = (FxRegion *)Py_XNewRef(region);
    here.now.bypass = bypass;
    count_thread();
}

void
fx_hook_restore(FxHookState *before)
{
    FxRegion *ended = here.now.region;
    here.now = *before;
    count_thread();
    Py_XDECREF(ended); /* last: it may run code */
}

int
fx_hook_bypass(void)
{
    return here.now.bypass;
}

/* ---- Region ---- */

static PyObject *
region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "callback", NULL};
    PyObject *key, *callback = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Region", names, &key, &callback)) {
        return NULL;
    }
    if (callback != Py_None && !PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError, "callback must be callable or None, not %.100s",
                            Py_TYPE(callback)->tp_name);
    }
    FxRegion *self = (FxRegion *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->key = Py_NewRef(key);
        self->callback = callback == Py_None ? NULL : Py_NewRef(callback);
    }
    return (PyObject *)self;
}

static int
region_traverse(FxRegion *self, visitproc visit, void *arg)
{
    Py_VISIT(self->key);
    Py_VISIT(self->callback);
    return 0;
}

static int
region_clear(FxRegion *self)
{
    Py_CLEAR(self->key);
    Py_CLEAR(self->callback);
    return 0;
}

static void
region_dealloc(FxRegion *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    region_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
region_repr(FxRegion *self)
{
    return PyUnicode_FromFormat("<%sregion of %R>", self->callback == NULL ? "frozen " : "", self->key);
}

static PyMemberDef region_members[] = {
    {"key", T_OBJECT, offsetof(FxRegion, key), READONLY, "what the entries of this region are filed under, by identity"},
    {"callback", T_OBJECT, offsetof(FxRegion, callback), READONLY, "asked for an entry where none holds; None: frozen"},
    {NULL},
};

PyTypeObject FxRegion_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.Region",
    .tp_doc = "Region(key, callback=None)\n--\n\nWhat a compiled callable activates on its thread while it runs.",
    .tp_basicsize = sizeof(FxRegion),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = region_new,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear,
    .tp_repr = (reprfunc)region_repr,
    .tp_members = region_members,
    .tp_weaklistoffset = offsetof(FxRegion, weakrefs),
};

/* ---- Entry ---- */

typedef struct {
    PyObject_HEAD
    PyObject *tree;    /* GuardTree; None: always holds; another callable: called with the frame's things */
    PyObject *code;    /* the generated code */
    PyObject *payload; /* kept alive with the entry */
    PyObject *func;    /* a function object made of `code`, kept where one fits all calls */
    PyObject *weakrefs;
    Py_ssize_t hits;
    int tree_is_native;
} FxEntry;

static PyTypeObject FxEntry_Type;

static int add_flags(PyCodeObject *code, int flags);

static int
tree_kind(PyObject *tree)
{
    PyObject *native = PyObject_GetAttrString(hook.module, "GuardTree");
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

static PyTypeObject FxEntry_Type = {
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

typedef struct {
    PyObject *key_ref; /* weak reference to the key; NULL where the key allows none */
    PyObject *key;     /* the key itself, only where it allows no weak reference */
    PyObject *entries; /* tuple, replaced and never changed, so that whoever walks it is safe */
    int flags;
} Group;

typedef struct {
    int flags;       /* for every key */
    PyObject *state; /* Python's own notes about this code */
    Py_ssize_t size;
    Group *groups;
} CodeExtra;

static inline PyObject *
group_key(const Group *group)
{
    return group->key_ref == NULL ? group->key : fx_weakref_target(group->key_ref);
}

static inline CodeExtra *
find_extra(PyCodeObject *code)
{
    void *extra = NULL;
    if (fx_code_extra_get(code, hook.extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return (CodeExtra *)extra;
}

static CodeExtra *
make_extra(PyCodeObject *code)
{
    CodeExtra *extra = find_extra(code);
    if (extra == NULL) {
        extra = PyMem_Calloc(1, sizeof(CodeExtra));
        if (extra == NULL) {
            PyErr_NoMemory();
        }
        else if (fx_code_extra_set(code, hook.extra_index, extra) < 0) {
            PyMem_Free(extra);
            extra = NULL;
        }
    }
    return extra;
}

static inline Group *
find_group(CodeExtra *extra, PyObject *key)
{
    for (Py_ssize_t i = 0; i < extra->size; i++) {
        if (group_key(&extra->groups[i]) == key) {
            return &extra->groups[i];
        }
    }
    return NULL;
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

static PyObject *
entry_function(FxEntry *entry, PyFunctionObject *func)
{
    PyObject *kept = entry->func;
    if (kept != NULL && ((PyFunctionObject *)kept)->func_globals == func->func_globals) {
        return Py_NewRef(kept);
    }
    PyObject *made = PyFunction_New(entry->code, func->func_globals);
    if (made == NULL) {
        return NULL;
    }
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

/* Whether a frame of this code is a plain call of a function: no generator, no coroutine, no module or class body. */
static inline int
is_plain_function(const PyCodeObject *code)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR;
    return (code->co_flags & (wanted | generators)) == wanted;
}

static int
entry_fits(FxEntry *entry, PyCodeObject *code)
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

/* A debugger or coverage sees the lines of the user's program only if these run. */
static inline int
must_run_by_line(PyThreadState *tstate, const PyCodeObject *code)
{
    return !hook.under_tracers && fx_lines_are_followed(tstate, code);
}

static PyObject *
entry_run(FxEntry *entry, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots)
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

/* A strong reference to the first entry that holds, in `*found`; NULL there when none does. -1: a guard raised. */
static int
find_entry(CodeExtra *extra, Group *group, PyObject *key, PyFunctionObject *func, PyObject *const *slots,
           Py_ssize_t nslots, FxEntry **found)
{
    *found = NULL;
    if (group == NULL || PyTuple_GET_SIZE(group->entries) == 0) {
        return 0;
    }
    PyObject *entries = Py_NewRef(group->entries);
    Py_ssize_t size = PyTuple_GET_SIZE(entries), index;
    int holds = 0;
    here.now.bypass++; /* guards that are Python are not for us to compile */
    for (index = 0; index < size; index++) {
        holds = entry_holds((FxEntry *)PyTuple_GET_ITEM(entries, index), slots, nslots, func);
        if (holds != 0) {
            break;
        }
    }
    here.now.bypass--;
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

int
fx_hook_run_entry(FxRegion *region, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots,
                  PyObject **result)
{
    PyCodeObject *code = (PyCodeObject *)func->func_code;
    CodeExtra *extra = find_extra(code);
    Group *group = extra == NULL || extra->flags != 0 ? NULL : find_group(extra, region->key);
    if (group == NULL || must_run_by_line(PyThreadState_GET(), code) || (group->flags & (FX_SKIP | FX_SKIP_RECURSIVE))) {
        return 0;
    }
    FxEntry *entry;
    Py_INCREF(code); /* and with it `extra`: a guard may give the function other code */
    int failed = find_entry(extra, group, region->key, func, slots, nslots, &entry) < 0;
    Py_DECREF(code);
    if (failed) {
        *result = NULL;
        return 1;
    }
    if (entry == NULL) {
        return 0;
    }
    *result = entry_run(entry, func, slots, nslots);
    Py_DECREF(entry);
    return 1;
}

/* ---- the evaluator ---- */

static inline PyObject *
run_by_cpython(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
}

/* Leaves the frame to whoever was there before us. Two evaluators that were installed over each other in turns can end
 * up calling each other; a frame that comes back to us after we passed it on has seen them all. */
static PyObject *
pass_on(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    if (hook.threads == 0) {
        uninstall();
    }
    if (hook.previous == _PyEval_EvalFrameDefault) {
        return run_by_cpython(tstate, frame, throwflag);
    }
    _PyInterpreterFrame *outer = here.delegated;
    here.delegated = frame;
    PyObject *result = hook.previous(tstate, frame, throwflag);
    here.delegated = outer;
    return result;
}

static PyObject *
pass_on_without_region(PyThreadState *tstate, _PyInterpreterFrame *frame)
{
    FxHookState before;
    fx_hook_switch(NULL, here.now.bypass, &before);
    PyObject *result = pass_on(tstate, frame, 0);
    fx_hook_restore(&before);
    return result;
}

/* Asks the region's callback for an entry: strong reference, or NULL; with an exception set if something failed. */
static FxEntry *
ask_callback(FxRegion *region, PyFunctionObject *func, PyCodeObject *code, PyObject *const *slots, Py_ssize_t nslots)
{
    PyObject *args = PyTuple_New(nslots);
    if (args == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < nslots; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(slots[i]));
    }
    PyObject *closure = func->func_closure == NULL ? Py_None : func->func_closure;
    PyObject *callback = Py_NewRef(region->callback); /* the region may be cleared meanwhile */
    PyObject *parameters[] = {(PyObject *)region, (PyObject *)func,   (PyObject *)code,   args,
                              closure,            func->func_globals, func->func_builtins};
    FxHookState before;
    fx_hook_switch(NULL, 1, &before);
    PyObject *answer = PyObject_Vectorcall(callback, parameters, 7, NULL);
    fx_hook_restore(&before);
    Py_DECREF(callback);
    Py_DECREF(args);
    if (answer == Py_None) {
        Py_DECREF(answer);
        return NULL;
    }
    if (answer != NULL && !PyObject_TypeCheck(answer, &FxEntry_Type)) {
        PyErr_Format(PyExc_TypeError, "the region's callback must return an Entry or None, not %.100s",
                     Py_TYPE(answer)->tp_name);
        Py_CLEAR(answer);
    }
    if (answer != NULL && !entry_fits((FxEntry *)answer, code)) {
        Py_CLEAR(answer);
    }
    return (FxEntry *)answer;
}

/* The flags of a code object as they stand for one key. */
static inline int
flags_for(const CodeExtra *extra, const Group *group)
{
    return (extra == NULL ? 0 : extra->flags) | (group == NULL ? 0 : group->flags);
}

/* The frame of a plain function starts in a region, and its code is not to be skipped. */
static PyObject *
evaluate_in_region(PyThreadState *tstate, _PyInterpreterFrame *frame, CodeExtra *extra, Group *group, int flags)
{
    PyCodeObject *code = fx_frame_code(frame);
    PyFunctionObject *func = (PyFunctionObject *)fx_frame_function(frame);
    Py_ssize_t nslots = fx_argument_slots(code);
    FxRegion *region = (FxRegion *)Py_NewRef(here.now.region);
    FxEntry *entry = NULL;
    PyObject *result = NULL;
    int failed = find_entry(extra, group, region->key, func, frame->localsplus, nslots, &entry) < 0;
    if (!failed && entry == NULL && region->callback != NULL && !(flags & FX_FROZEN)) {
        entry = ask_callback(region, func, code, frame->localsplus, nslots);
        failed = entry == NULL && PyErr_Occurred() != NULL;
        extra = find_extra(code); /* the callback may have flagged the code: that holds for this call as well */
        flags = flags_for(extra, extra == NULL ? NULL : find_group(extra, region->key));
    }
    Py_DECREF(region);
    if (!failed && entry == NULL) {
        return flags & FX_SKIP_RECURSIVE ? pass_on_without_region(tstate, frame) : pass_on(tstate, frame, 0);
    }
    if (entry != NULL) {
        result = entry_run(entry, func, frame->localsplus, nslots);
        Py_DECREF(entry);
    }
    fx_frame_discard(tstate, frame);
    return result;
}

static PyObject *
hook_evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    if (here.now.bypass || frame == here.delegated) {
        return run_by_cpython(tstate, frame, throwflag);
    }
    /* tracing: the frame belongs to a trace or profile function, or to a callback of sys.monitoring */
    if (here.now.region == NULL || throwflag || tstate->tracing || !fx_frame_is_fresh_call(frame)) {
        return pass_on(tstate, frame, throwflag);
    }
    if (stack_is_exhausted()) {
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: the C stack of the thread is used up");
        fx_frame_discard(tstate, frame);
        return NULL;
    }
    PyCodeObject *code = fx_frame_code(frame);
    CodeExtra *extra = find_extra(code);
    Group *group = extra == NULL ? NULL : find_group(extra, here.now.region->key);
    int flags = flags_for(extra, group);
    if (flags & FX_TRANSFORMED) {
        return run_by_cpython(tstate, frame, throwflag);
    }
    if (flags & FX_SKIP_RECURSIVE) {
        return pass_on_without_region(tstate, frame);
    }
    PyObject *func = fx_frame_function(frame);
    if ((flags & FX_SKIP) || !is_plain_function(code) || func == NULL || !PyFunction_Check(func) ||
        must_run_by_line(tstate, code)) {
        return pass_on(tstate, frame, throwflag);
    }
    return evaluate_in_region(tstate, frame, extra, group, flags);
}

/* ---- functions of the module ---- */

static PyObject *
set_region(PyObject *module, PyObject *region)
{
    if (region != Py_None && !PyObject_TypeCheck(region, &FxRegion_Type)) {
        return PyErr_Format(PyExc_TypeError, "set_region() takes a Region or None, not %.100s",
                            Py_TYPE(region)->tp_name);
    }
    FxHookState before;
    fx_hook_switch(region == Py_None ? NULL : (FxRegion *)region, region == Py_None ? here.now.bypass : 0, &before);
    if (before.region == NULL) {
        Py_RETURN_NONE;
    }
    return (PyObject *)before.region;
}

static PyObject *
current_region(PyObject *module, PyObject *ignored)
{
    return Py_NewRef(here.now.region == NULL ? Py_None : (PyObject *)here.now.region);
}

static PyObject *
hook_info(PyObject *module, PyObject *ignored)
{
    int on_top = _PyInterpreterState_GetEvalFrameFunc(interpreter()) == hook_evaluate;
    return Py_BuildValue("{s:N,s:n,s:N,s:N}", "installed", PyBool_FromLong(on_top), "threads", hook.threads, "bypass",
                         PyBool_FromLong(here.now.bypass != 0), "chained",
                         PyBool_FromLong(other_evaluator_is_below()));
}

static PyObject *
add_entry(PyObject *module, PyObject *args)
{
    PyObject *code, *key, *entry;
    if (!PyArg_ParseTuple(args, "O!OO!:add_entry", &PyCode_Type, &code, &key, &FxEntry_Type, &entry)) {
        return NULL;
    }
    if (!entry_fits((FxEntry *)entry, (PyCodeObject *)code)) {
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

/* In the child of a fork only this thread is left, whatever the others were doing. */
static PyObject *
forget_other_threads(PyObject *module, PyObject *ignored)
{
    hook.threads = here.active;
    if (hook.threads == 0) {
        uninstall();
    }
    Py_RETURN_NONE;
}

static PyObject *
compile_under_tracers(PyObject *module, PyObject *value)
{
    int yes = PyObject_IsTrue(value);
    if (yes < 0) {
        return NULL;
    }
    PyObject *before = PyBool_FromLong(hook.under_tracers);
    hook.under_tracers = yes;
    return before;
}

static PyMethodDef functions[] = {
    {"set_region", set_region, METH_O, "set_region(region, /)\n--\n\nSet this thread's region; returns the previous."},
    {"current_region", current_region, METH_NOARGS, "current_region()\n--\n\nThis thread's region, or None."},
    {"hook_info", hook_info, METH_NOARGS, "hook_info()\n--\n\nWhether the evaluator is installed, and for how many."},
    {"forget_other_threads", forget_other_threads, METH_NOARGS,
     "forget_other_threads()\n--\n\nFor the child of a fork: no other thread is in a region."},
    {"compile_under_tracers", compile_under_tracers, METH_O,
     "compile_under_tracers(yes, /)\n--\n\nWhether frames whose lines a tracer follows are compiled and run compiled "
     "(they are not, from the start); returns the previous."},
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
fxjit_hook_init(PyObject *module)
{
    hook.module = module;
    hook.previous = _PyEval_EvalFrameDefault;
    hook.extra_index = fx_code_extra_request(release_extra);
    if (hook.extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "fxjit needs a slot on code objects, and other extensions hold all of them");
        return -1;
    }
    if (PyModule_AddType(module, &FxRegion_Type) < 0 || PyModule_AddType(module, &FxEntry_Type) < 0 ||
        PyModule_AddIntConstant(module, "SKIP", FX_SKIP) < 0 ||
        PyModule_AddIntConstant(module, "SKIP_RECURSIVE", FX_SKIP_RECURSIVE) < 0 ||
        PyModule_AddIntConstant(module, "TRANSFORMED", FX_TRANSFORMED) < 0 ||
        PyModule_AddIntConstant(module, "FROZEN", FX_FROZEN) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
