/* Checks on one object: the leaves of the guard tree. _checks.c, with _constants.c and _tensor_facts.c; used by _tree.c. */
#ifndef FXJIT_GUARDS_CHECKS_H
#define FXJIT_GUARDS_CHECKS_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

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

/* An iterator over a dict's keys or a set's elements, without the class's own __iter__: guards run no code of the user's. */
PyObject *fxjit_stored_keys(PyObject *container);

/* ---- _constants.c ---- */

/* Whether a and b are the same constant: 1, 0, or -1 with an exception. */
int fxjit_same_constant(PyObject *a, PyObject *b);
/* Whether a constant of this type is the same for ever: strings, numbers and tuples of them are. */
int fxjit_never_changes(PyObject *value);
int fxjit_constants_init(PyObject *module);

/* ---- _tensor_facts.c ---- */

typedef struct fxjit_tensor_facts fxjit_tensor_facts;

/* From ("tensor", type, keys, dtype, device type, device index, layout, strided, requires_grad, sizes, strides). What *out is
 * set to must be freed, also after a failure. */
int fxjit_tensor_facts_init(fxjit_tensor_facts **out, PyObject *op);
void fxjit_tensor_facts_free(fxjit_tensor_facts *facts);
int fxjit_tensor_facts_traverse(fxjit_tensor_facts *facts, visitproc visit, void *arg);
/* Whether they hold for this object: 1, 0, or -1 with an exception. */
int fxjit_tensor_facts_hold(const fxjit_tensor_facts *facts, PyObject *value);

/* ---- _checks.c ---- */

static inline int
fxjit_held_matches(const fxjit_held *held, PyObject *value)
{
    return held->how == HELD_PLAIN ? fxjit_same_constant(held->obj, value) : fxjit_held_is(held, value);
}

typedef struct {
    int kind;
    int guard; /* index into the tree's guards */
    union {
        fxjit_held held;
        int64_t number;
        struct {
            fxjit_held *items;
            Py_ssize_t n;
        } many;
        fxjit_tensor_facts *tensor;
    };
    bool present;
    unsigned int version; /* of the class, when a check on it last held */
} fxjit_check;

/* Makes a check of an operation ("type", int), ... (kinds.py `ops`, lowered by tree.py). */
int fxjit_check_init(fxjit_check *check, PyObject *op, int guard);
void fxjit_check_clear(fxjit_check *check);
int fxjit_check_traverse(fxjit_check *check, visitproc visit, void *arg);

/* 1 holds, 0 does not, -1 exception. */
int fxjit_check_run(fxjit_check *check, PyObject *value);

/* What the outcome of a check on this very object can change with. */
typedef enum {
    DEPENDS_ON_TYPE,          /* nothing but the object's type, or not even that */
    DEPENDS_ON_LENGTH,        /* the length of a tuple */
    DEPENDS_ON_ITEMS,         /* what an object that never changes holds */
    DEPENDS_ON_CONTENTS,      /* the keys of the object, which is a dict; the length of a list */
    DEPENDS_ON_INSTANCE_DICT, /* the keys of its __dict__ */
    DEPENDS_ON_TENSOR,        /* what a TensorImpl says */
    DEPENDS_ON_CODE,          /* which code object the function runs */
    DEPENDS_ON_CLASS,         /* the version of the object, which is a class */
    DEPENDS_ON_MORE,
} fxjit_dependence;

fxjit_dependence fxjit_check_depends(const fxjit_check *check, PyObject *value);

/* obj.__dict__ without the class's __getattribute__; a new reference. */
PyObject *fxjit_instance_dict(PyObject *obj);

int fxjit_checks_init(PyObject *module);

#endif
