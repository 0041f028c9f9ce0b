/* What hangs on code objects (_entries.c): the compiled entries under their keys, and flags. _hook.c looks them up. */
#ifndef FXJIT_ENTRIES_H
#define FXJIT_ENTRIES_H

#include "cpython_compat.h"

#define FX_SKIP 1           /* run as it is; what it calls is still seen */
#define FX_SKIP_RECURSIVE 2 /* run as it is with no region */
#define FX_TRANSFORMED 4    /* our own generated code: run as it is, by CPython's evaluator at once */
#define FX_FROZEN 8         /* its entries are used, the callback is not asked for more */

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

extern PyTypeObject FxEntry_Type;

typedef struct {
    PyObject *key_ref; /* weak reference to the key; NULL where the key allows none */
    PyObject *key;     /* the key itself, only where it allows no weak reference */
    PyObject *entries; /* tuple, replaced and never changed, so that whoever walks it is safe */
    int flags;
} Group;

typedef struct {
    int flags;       /* for every key */
    PyObject *state; /* what Python keeps about this code */
    Py_ssize_t size;
    Group *groups;
} CodeExtra;

static inline PyObject *
group_key(const Group *group)
{
    return group->key_ref == NULL ? group->key : fx_weakref_target(group->key_ref);
}

extern Py_ssize_t fx_extra_index; /* our slot on code objects */

static inline CodeExtra *
find_extra(PyCodeObject *code)
{
    void *extra = NULL;
    if (fx_code_extra_get(code, fx_extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return (CodeExtra *)extra;
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

/* The flags of a code object as they stand for one key. */
static inline int
flags_for(const CodeExtra *extra, const Group *group)
{
    return (extra == NULL ? 0 : extra->flags) | (group == NULL ? 0 : group->flags);
}

/* Whether a frame of this code is a plain call of a function: no generator, no coroutine, no module or class body. */
static inline int
is_plain_function(const PyCodeObject *code)
{
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int generators = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR;
    return (code->co_flags & (wanted | generators)) == wanted;
}

/* A function keeps the builtins that its module had when it was made; one that we make in its place has those too. */
void fx_set_builtins(PyObject *made, PyObject *builtins);

/* Whether the entry's code can stand in for a frame of `code`; 0 with an exception set where it cannot. */
int fx_entry_fits(FxEntry *entry, PyCodeObject *code);

/* Calls the entry's code with the argument slots, globals and closure of a frame of `func`. What comes back may be a
 * Continue. */
PyObject *fx_entry_run(FxEntry *entry, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots);

/* The same, and gives up the references in `slots` (NULL afterwards) when the code begins. */
PyObject *fx_entry_run_for_frame(FxEntry *entry, PyFunctionObject *func, PyObject **slots, Py_ssize_t nslots);

/* A strong reference to the first entry of the group that holds, in `*found`; NULL there when none does. -1: a guard
 * raised. Guards may run code, which may change the table under `extra`; the caller keeps the code object alive. */
int fx_find_entry(CodeExtra *extra, Group *group, PyObject *key, PyFunctionObject *func, PyObject *const *slots,
                  Py_ssize_t nslots, FxEntry **found);

#endif
