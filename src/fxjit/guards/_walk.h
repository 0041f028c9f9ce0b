/* The inside of a guard tree, shared by _tree.c, which builds and walks it, _accessors.c and _conditions.c, which know its
 * parts, and _fast_path.c, which skips what cannot have changed. */
#ifndef FXJIT_GUARDS_WALK_H
#define FXJIT_GUARDS_WALK_H

#include <Python.h>

#include <stdint.h>

#include "../_process_state.h"
#include "../_tensor.h"
#include "_checks.h"
#include "_shape_program.h"

typedef enum {
#define ACCESSOR(id, name, root) GET_##id,
#include "tree.def"
} accessor;

typedef struct {
    accessor get;
    int parent;       /* -1: the frame */
    int end;          /* one past the subtree */
    int slot;         /* where conditions find the object; -1: nowhere */
    int guard;        /* the guard that fails when the object is not there */
    int first_check;  /* checks[first_check .. first_check + num_checks) */
    int num_checks;
    Py_ssize_t index; /* argument slot, cell, position, dimension; GET_ITEM: the key if a small int; GET_ATTR: no _name */
    PyObject *arg;    /* constant object, attribute name, key, function */
} node;

typedef enum {
#define CONDITION(id, name, operands, when) COND_##id,
#include "tree.def"
} condition_kind;

typedef struct {
    condition_kind kind;
    int guard;
    int num_slots;
    int *slots;
    fxjit_state state;
    int64_t wanted;     /* of the state */
    fxjit_held expected;
    PyObject *callable; /* or the dict of COND_DICT_ITEM */
    PyObject *key;
    fxjit_shape_program program;
} condition;

typedef enum { HOT_NOTHING, HOT_NODE, HOT_CONDITION } hot_kind;

#define MAX_RESTLESS 8

typedef struct {
    PyObject_HEAD
    node *nodes;
    int num_nodes;
    fxjit_check *checks;
    int num_checks;
    condition *conditions;
    int num_conditions;
    int num_early;      /* the first of the conditions, which cost next to nothing */
    int *slot_nodes;    /* the node that fills each slot */
    int num_slots;
    int num_python;
    PyObject *guards;   /* tuple of kinds.Guard */
    PyObject *weakrefs;
    /* What failed in the last check, if it failed; a hint only. */
    hot_kind hot;
    int hot_index;
    struct fxjit_snapshot *snapshot; /* _fast_path.c; NULL: nothing is known to stay as it was */
    int full_checks;               /* that held since the last attempt to take one */
    int back_off;                  /* how many it takes until the next */
    PyObject *restless[MAX_RESTLESS]; /* dicts and lists that spoilt a snapshot; addresses, not to be looked into */
    int num_restless, next_restless;
    PyObject **empty_slots;        /* all NULL, for the fast path; NULL while one check has them */
    int scanning;                  /* a fast check is under way: the snapshot stays as it is */
} tree;

#define FIRST_BACK_OFF 2

/* One check of one frame. */
typedef struct {
    tree *t;
    PyObject *const *args;
    Py_ssize_t nargs;
    PyObject *closure, *globals, *builtins;
    PyObject **slots;
    hot_kind failed;
    int failed_index;
    int failed_guard;
} run;

/* ---- _accessors.c ---- */

/* Sets how the node's object is reached; -1 with an exception if there is no such accessor or it takes no such argument. */
int fxjit_accessor_init(node *n, PyObject *name, PyObject *arg);
int fxjit_accessors_init(PyObject *module);
/* A node's object, as a new reference; NULL (perhaps with an exception) when it is not there. */
PyObject *fxjit_fetch(const run *r, const node *n, PyObject *parent);

/* ---- _conditions.c ---- */

/* From (guard, (slot, ...), op). */
int fxjit_condition_init(tree *t, condition *c, PyObject *spec);
int fxjit_condition_traverse(condition *c, visitproc visit, void *arg);
void fxjit_condition_clear(condition *c);
/* 1 holds, 0 does not, -1 exception. The slots it needs are filled. */
int fxjit_condition_run(const condition *c, PyObject *const *slots);
int fxjit_conditions_init(PyObject *module);

/* ---- _tree.c ---- */

/* Fetches a node's object and runs its checks. 1 with *out, a new reference; else 0 or -1. */
int fxjit_visit_node(run *r, int index, PyObject *parent, PyObject **out);
/* The node and all below it: 1, 0, -1. */
int fxjit_walk(run *r, int index, PyObject *parent);
/* The conditions [begin, end): 1, 0, -1. */
int fxjit_conditions_hold(run *r, int begin, int end);
/* One condition, its slots filled; remembers it if it fails. */
int fxjit_condition_holds(run *r, int index);

/* ---- _fast_path.c ---- */

/* After a check that held: a snapshot of what it depended on, if enough of it is watchable. Never fails. */
void fxjit_take_snapshot(run *r);
/* The check by the snapshot, with empty slots, which it leaves empty. 1: holds. 0: not known, check in full. -1:
 * exception. */
int fxjit_fast_path_holds(run *r);
void fxjit_fast_path_free(tree *t);
int fxjit_fast_path_init(PyObject *module);
/* Whether every answer of fxjit_fast_path_holds is compared with a full check. */
extern int fxjit_fast_path_verify;

#endif
