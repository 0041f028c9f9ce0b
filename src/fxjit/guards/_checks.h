/* Checks on one object: the leaves of the guard tree, used by _tree.c. */
#ifndef FXJIT_GUARDS_CHECKS_H
#define FXJIT_GUARDS_CHECKS_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "_constants.h"
#include "_held.h"
#include "_tensor_facts.h"

/* An iterator over a dict's keys or a set's elements, without the class's own __iter__: guards run no code of the user's. */
PyObject *fxjit_stored_keys(PyObject *container);

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
