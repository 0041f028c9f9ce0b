/* Objects that guards compare with, held strongly, weakly or as constants. */
#ifndef FXJIT_GUARDS_HELD_H
#define FXJIT_GUARDS_HELD_H

#include <Python.h>

#include "_constants.h"

/* An object to compare with. */
typedef enum {
    HELD_STRONG, /* the object itself */
    HELD_WEAK,   /* the object itself, not kept alive: once it is gone nothing matches, whoever gets its address */
    HELD_PLAIN,  /* any object that is the same constant (constants.py) */
} fxjit_how;

typedef struct {
    PyObject *obj; /* borrowed if HELD_WEAK */
    PyObject *ref; /* the weak reference if HELD_WEAK */
    fxjit_how how;
} fxjit_held;

/* Adds the callback of weak references of guards to the module. */
int fxjit_held_module_init(PyObject *module);
/* A weak reference that is known as one of the guards' (frontend/interp/lifetimes.py): without a callback it would be the one that
 * a program's own `weakref.ref(obj)` gives. NULL with an exception. */
PyObject *fxjit_weakly(PyObject *obj);
/* Weak where the object knows weak references, else strong. */
int fxjit_held_init(fxjit_held *held, PyObject *obj);
int fxjit_held_plain(fxjit_held *held, PyObject *obj);
/* (object, plain): as HELD_PLAIN or as fxjit_held_init. */
int fxjit_held_from_pair(fxjit_held *held, PyObject *pair);
void fxjit_held_clear(fxjit_held *held);
int fxjit_held_traverse(fxjit_held *held, visitproc visit, void *arg);

static inline int
fxjit_held_is(const fxjit_held *held, PyObject *value)
{
    return held->obj == value && (held->ref == NULL || ((PyWeakReference *)held->ref)->wr_object == value);
}

/* Whether it is the one, or the same constant: 1, 0, or -1 with an exception. */
static inline int
fxjit_held_matches(const fxjit_held *held, PyObject *value)
{
    return held->how == HELD_PLAIN ? fxjit_same_constant(held->obj, value) : fxjit_held_is(held, value);
}

#endif
