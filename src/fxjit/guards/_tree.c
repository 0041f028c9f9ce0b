/* The guard tree: the guards of one compiled entry, grouped by the sources they share, so that a check fetches each
 * object once. tree.py builds it from a GuardSet; fxjit_tree_check walks it for a frame about to start.
 *
 * Nodes are objects on the way from the frame to what is guarded, in preorder: a node's subtree is nodes[i+1 .. end).
 * A node has an accessor (how to get from its parent to it) and checks. What concerns no object or several is a
 * condition; the objects it needs are kept in slots during the walk.
 *
 * Order: conditions that cost nothing, the walk, the other conditions. When the last call did not hold, the check that
 * failed is tried first: with several entries on one code object, all but one fail, mostly at the same place.
 *
 * Whatever Exception a look-up raises means that the guard does not hold, unless it came from outside (errors.is_foreign). */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <stddef.h>
#include <string.h>

#include "../_module.h"
#include "_tree.h"
#include "_walk.h"

#define SLOTS_ON_STACK 32

/* -- the walk ------------------------------------------------------------------------------------------------------*/

/* Whether an exception is none of the look-up's. */
static int
is_foreign(PyObject *error)
{
    PyObject *errors = PyImport_ImportModule("fxjit.errors");
    PyObject *answer = errors == NULL ? NULL : PyObject_CallMethod(errors, "is_foreign", "O", error);
    int foreign = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(errors);
    Py_XDECREF(answer);
    return foreign;
}

/* -1 with an exception that must pass through (KeyboardInterrupt...), else 0 and no exception. */
static int
swallow(void)
{
    if (!PyErr_Occurred()) {
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (traceback == NULL) { /* it came through no Python code */
        Py_XDECREF(type);
        Py_XDECREF(error);
        return 0;
    }
    PyErr_NormalizeException(&type, &error, &traceback);
    PyException_SetTraceback(error, traceback);
    int foreign = is_foreign(error);
    if (foreign > 0) {
        PyErr_Restore(type, error, traceback);
        return -1;
    }
    Py_DECREF(type);
    Py_DECREF(error);
    Py_DECREF(traceback);
    return foreign;
}

static int
failed(run *r, hot_kind kind, int index, int guard)
{
    r->failed = kind;
    r->failed_index = index;
    r->failed_guard = guard;
    return swallow();
}

/* Fetches a node's object and runs its checks. 1 with *out, a new reference; else 0 or -1. */
int
fxjit_visit_node(run *r, int index, PyObject *parent, PyObject **out)
{
    const node *n = &r->t->nodes[index];
    PyObject *value = fxjit_fetch(r, n, parent);
    if (value == NULL) {
        return failed(r, HOT_NODE, index, n->guard);
    }
    fxjit_check *check = r->t->checks + n->first_check, *end = check + n->num_checks;
    for (; check < end; check++) {
        if (fxjit_check_run(check, value) != 1) {
            Py_DECREF(value);
            return failed(r, HOT_NODE, index, check->guard);
        }
    }
    if (n->slot >= 0) {
        Py_XSETREF(r->slots[n->slot], Py_NewRef(value));
    }
    *out = value;
    return 1;
}

int
fxjit_walk(run *r, int index, PyObject *parent)
{
    PyObject *value;
    int holds = fxjit_visit_node(r, index, parent, &value);
    if (holds != 1) {
        return holds;
    }
    const node *nodes = r->t->nodes;
    for (int child = index + 1; child < nodes[index].end; child = nodes[child].end) {
        holds = fxjit_walk(r, child, value);
        if (holds != 1) {
            break;
        }
    }
    Py_DECREF(value);
    return holds;
}

int
fxjit_condition_holds(run *r, int index)
{
    const condition *c = &r->t->conditions[index];
    return fxjit_condition_run(c, r->slots) == 1 ? 1 : failed(r, HOT_CONDITION, index, c->guard);
}

int
fxjit_conditions_hold(run *r, int begin, int end)
{
    int holds = 1;
    for (int i = begin; holds == 1 && i < end; i++) {
        holds = fxjit_condition_holds(r, i);
    }
    return holds;
}

/* Visits a node by its path from the frame, with the checks along it: an object's type is checked before its attributes
 * are asked for. */
static int
visit_path(run *r, int index, PyObject **out)
{
    int parent = r->t->nodes[index].parent;
    if (parent < 0) {
        return fxjit_visit_node(r, index, NULL, out);
    }
    PyObject *base;
    int holds = visit_path(r, parent, &base);
    if (holds == 1) {
        holds = fxjit_visit_node(r, index, base, out);
        Py_DECREF(base);
    }
    return holds;
}

/* What failed the last time, alone. */
static int
hot_holds(run *r, hot_kind kind, int index)
{
    PyObject *value;
    if (kind == HOT_NODE) {
        int holds = visit_path(r, index, &value);
        if (holds == 1) {
            Py_DECREF(value);
        }
        return holds;
    }
    const condition *c = &r->t->conditions[index];
    for (int i = 0; i < c->num_slots; i++) {
        int holds = visit_path(r, r->t->slot_nodes[c->slots[i]], &value);
        if (holds != 1) {
            return holds;
        }
        Py_DECREF(value);
    }
    return fxjit_condition_run(c, r->slots) == 1 ? 1 : failed(r, HOT_CONDITION, index, c->guard);
}

static int
all_hold(run *r)
{
    tree *t = r->t;
    int holds = fxjit_conditions_hold(r, 0, t->num_early);
    for (int top = 0; holds == 1 && top < t->num_nodes; top = t->nodes[top].end) {
        holds = fxjit_walk(r, top, NULL);
    }
    return holds == 1 ? fxjit_conditions_hold(r, t->num_early, t->num_conditions) : holds;
}

static void
clear_slots(run *r, int num_slots)
{
    for (int i = 0; i < num_slots; i++) {
        Py_CLEAR(r->slots[i]);
    }
}

/* The fast path (_fast_path.c): its slots are mostly left empty, so they are kept from one check to the next. */
static int
run_fast_path(run *r)
{
    tree *t = r->t;
    PyObject **slots = t->empty_slots;
    t->empty_slots = NULL; /* a look-up may come back here */
    if (slots == NULL) {
        slots = PyMem_Calloc((size_t)t->num_slots + 1, sizeof(PyObject *));
        if (slots == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    r->slots = slots;
    int holds = fxjit_fast_path_holds(r);
    r->slots = NULL;
    if (t->empty_slots == NULL) {
        t->empty_slots = slots;
    }
    else {
        PyMem_Free(slots);
    }
    return holds;
}

static int
run_fully(run *r, int use_hot)
{
    tree *t = r->t;
    PyObject *few[SLOTS_ON_STACK];
    int num_slots = t->num_slots;
    r->slots = few;
    if (num_slots > SLOTS_ON_STACK) {
        r->slots = PyMem_Malloc(num_slots * sizeof(PyObject *));
        if (r->slots == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    memset(r->slots, 0, num_slots * sizeof(PyObject *));
    int holds = use_hot && t->hot != HOT_NOTHING ? hot_holds(r, t->hot, t->hot_index) : 1;
    if (holds == 1) {
        holds = all_hold(r);
    }
    if (holds == 1 && use_hot && t->snapshot == NULL && ++t->full_checks >= t->back_off) {
        fxjit_take_snapshot(r);
    }
    clear_slots(r, num_slots);
    if (r->slots != few) {
        PyMem_Free(r->slots);
    }
    return holds;
}

static int
run_tree(run *r, int use_hot)
{
    tree *t = r->t;
    /* A look-up may run code that drops the last reference to the tree. */
    Py_INCREF(t);
    int known = use_hot && t->snapshot != NULL && t->hot == HOT_NOTHING ? run_fast_path(r) : 0, holds = known;
    if (known == 0 || (known == 1 && fxjit_fast_path_verify)) {
        holds = run_fully(r, use_hot);
        if (known == 1 && holds == 0) {
            PyErr_Format(PyExc_SystemError, "fxjit took guard %d to hold without looking, and it does not",
                         r->failed_guard);
            holds = -1;
        }
    }
    t->hot = holds == 0 && r->failed_guard >= 0 ? r->failed : HOT_NOTHING;
    t->hot_index = r->failed_index;
    Py_DECREF(t);
    return holds;
}

int
fxjit_tree_check(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *closure, PyObject *globals,
                 PyObject *builtins)
{
    run r = {(tree *)self, args, nargs, closure, globals, builtins};
    if (r.t->guards == NULL) {
        return 0; /* cleared by the collector */
    }
    return run_tree(&r, 1);
}

/* -- building ------------------------------------------------------------------------------------------------------*/

/* (parent, end, accessor, argument, slot, guard, ((guard, op), ...)); checks go behind those already there. */
static int
init_node(tree *t, int index, PyObject *spec)
{
    node *n = &t->nodes[index];
    PyObject *name, *arg, *checks;
    if (!PyArg_ParseTuple(spec, "iiOOiiO!", &n->parent, &n->end, &name, &arg, &n->slot, &n->guard, &PyTuple_Type,
                          &checks)) {
        return -1;
    }
    if (fxjit_accessor_init(n, name, arg) < 0) {
        return -1;
    }
    if (n->parent >= index || n->end <= index || (n->get > GET_CLASS) != (n->parent >= 0) || n->slot >= t->num_slots) {
        PyErr_SetString(PyExc_ValueError, "the nodes are not in preorder");
        return -1;
    }
    if (n->slot >= 0) {
        t->slot_nodes[n->slot] = index;
    }
    n->first_check = t->num_checks;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
        int guard;
        PyObject *op;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(checks, i), "iO", &guard, &op)) {
            return -1;
        }
        fxjit_check *check = &t->checks[t->num_checks];
        t->num_checks++;
        n->num_checks++;
        if (fxjit_check_init(check, op, guard) < 0) {
            return -1;
        }
    }
    return 0;
}
static Py_ssize_t
count_checks(PyObject *nodes)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *spec = PyTuple_GET_ITEM(nodes, i);
        if (!PyTuple_Check(spec) || PyTuple_GET_SIZE(spec) != 7 || !PyTuple_Check(PyTuple_GET_ITEM(spec, 6))) {
            PyErr_SetString(PyExc_TypeError, "a node is a tuple (parent, end, accessor, argument, slot, guard, checks)");
            return -1;
        }
        count += PyTuple_GET_SIZE(PyTuple_GET_ITEM(spec, 6));
    }
    return count;
}

static int
fill_tree(tree *t, PyObject *nodes, PyObject *conditions)
{
    Py_ssize_t num_checks = count_checks(nodes);
    if (num_checks < 0) {
        return -1;
    }
    Py_ssize_t num_nodes = PyTuple_GET_SIZE(nodes), num_conditions = PyTuple_GET_SIZE(conditions);
    t->nodes = PyMem_Calloc(num_nodes + 1, sizeof(node));
    t->checks = PyMem_Calloc(num_checks + 1, sizeof(fxjit_check));
    t->conditions = PyMem_Calloc(num_conditions + 1, sizeof(condition));
    t->slot_nodes = PyMem_Calloc(t->num_slots + 1, sizeof(int));
    if (t->nodes == NULL || t->checks == NULL || t->conditions == NULL || t->slot_nodes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < num_nodes; i++) {
        t->num_nodes = (int)i + 1;
        if (init_node(t, (int)i, PyTuple_GET_ITEM(nodes, i)) < 0) {
            return -1;
        }
        if (t->nodes[i].end > num_nodes) {
            PyErr_SetString(PyExc_ValueError, "the nodes are not in preorder");
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < num_conditions; i++) {
        t->num_conditions = (int)i + 1;
        if (!PyTuple_Check(PyTuple_GET_ITEM(conditions, i))) {
            PyErr_SetString(PyExc_TypeError, "a condition is a tuple (guard, slots, op)");
            return -1;
        }
        if (fxjit_condition_init(t, &t->conditions[i], PyTuple_GET_ITEM(conditions, i)) < 0) {
            return -1;
        }
    }
    if (t->num_early < 0 || t->num_early > t->num_conditions) {
        PyErr_SetString(PyExc_ValueError, "more early conditions than conditions");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(tree_doc,
"GuardTree(nodes, conditions, num_early, num_slots, guards)\n\n"
"Made by fxjit.guards.tree.build_tree, which says what the arguments are.");

static int tree_clear(tree *self);

static PyObject *
tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *nodes, *conditions, *guards;
    int num_early, num_slots;
    if ((kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0) ||
        !PyArg_ParseTuple(args, "O!O!iiO!:GuardTree", &PyTuple_Type, &nodes, &PyTuple_Type, &conditions, &num_early,
                          &num_slots, &PyTuple_Type, &guards)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "GuardTree() takes no keyword arguments");
        }
        return NULL;
    }
    tree *self = (tree *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->num_early = num_early;
    self->num_slots = num_slots < 0 ? 0 : num_slots;
    self->guards = Py_NewRef(guards);
    self->back_off = FIRST_BACK_OFF;
    if (fill_tree(self, nodes, conditions) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* -- the type ------------------------------------------------------------------------------------------------------*/

static int
tree_traverse(tree *self, visitproc visit, void *arg)
{
    Py_VISIT(self->guards);
    for (int i = 0; i < self->num_nodes; i++) {
        Py_VISIT(self->nodes[i].arg);
    }
    for (int i = 0; i < self->num_checks; i++) {
        int stop = fxjit_check_traverse(&self->checks[i], visit, arg);
        if (stop) {
            return stop;
        }
    }
    for (int i = 0; i < self->num_conditions; i++) {
        int stop = fxjit_condition_traverse(&self->conditions[i], visit, arg);
        if (stop) {
            return stop;
        }
    }
    return 0;
}

/* Empties the tree; a tree without guards holds for nobody. Dropping references may run code that comes back here. */
static int
tree_clear(tree *self)
{
    int num_nodes = self->num_nodes, num_checks = self->num_checks, num_conditions = self->num_conditions;
    self->num_nodes = self->num_checks = self->num_conditions = self->num_early = 0;
    self->hot = HOT_NOTHING;
    fxjit_fast_path_free(self);
    Py_CLEAR(self->guards);
    for (int i = 0; i < num_nodes; i++) {
        Py_CLEAR(self->nodes[i].arg);
    }
    for (int i = 0; i < num_checks; i++) {
        fxjit_check_clear(&self->checks[i]);
    }
    for (int i = 0; i < num_conditions; i++) {
        fxjit_condition_clear(&self->conditions[i]);
    }
    return 0;
}

static void
tree_dealloc(tree *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    tree_clear(self);
    PyMem_Free(self->nodes);
    PyMem_Free(self->checks);
    PyMem_Free(self->conditions);
    PyMem_Free(self->slot_nodes);
    PyMem_Free(self->empty_slots);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* The frame of Python's arguments (args, closure, globals, builtins). */
static int
parse_frame(run *r, tree *self, PyObject *args)
{
    PyObject *frame_args, *closure, *globals, *builtins;
    if (!PyArg_ParseTuple(args, "O!OO!O!", &PyTuple_Type, &frame_args, &closure, &PyDict_Type, &globals, &PyDict_Type,
                          &builtins)) {
        return -1;
    }
    if (closure != Py_None && !PyTuple_Check(closure)) {
        PyErr_SetString(PyExc_TypeError, "the closure must be a tuple of cells or None");
        return -1;
    }
    memset(r, 0, sizeof(*r));
    r->t = self;
    r->args = &PyTuple_GET_ITEM(frame_args, 0);
    r->nargs = PyTuple_GET_SIZE(frame_args);
    r->closure = closure == Py_None ? NULL : closure;
    r->globals = globals;
    r->builtins = builtins;
    return 0;
}

static PyObject *
tree_check(tree *self, PyObject *args)
{
    run r;
    if (parse_frame(&r, self, args) < 0) {
        return NULL;
    }
    int holds = self->guards == NULL ? 0 : run_tree(&r, 1);
    return holds < 0 ? NULL : PyBool_FromLong(holds);
}

static PyObject *
tree_first_failure(tree *self, PyObject *args)
{
    run r;
    if (parse_frame(&r, self, args) < 0) {
        return NULL;
    }
    if (self->guards == NULL) {
        Py_RETURN_NONE;
    }
    int holds = run_tree(&r, 0);
    if (holds < 0) {
        return NULL;
    }
    if (holds || self->guards == NULL) {
        Py_RETURN_NONE;
    }
    if (r.failed_guard < 0 || r.failed_guard >= PyTuple_GET_SIZE(self->guards)) {
        PyErr_SetString(PyExc_IndexError, "the tree names a guard it does not have");
        return NULL;
    }
    return Py_BuildValue("(iO)", r.failed_guard, PyTuple_GET_ITEM(self->guards, r.failed_guard));
}

static PyObject *
tree_get_num_guards(tree *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->guards == NULL ? 0 : PyTuple_GET_SIZE(self->guards));
}

static PyObject *
tree_get_guards(tree *self, void *Py_UNUSED(closure))
{
    return self->guards == NULL ? PyTuple_New(0) : Py_NewRef(self->guards);
}

static PyObject *
tree_get_num_python(tree *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->num_python);
}

static PyObject *
tree_get_num_nodes(tree *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->num_nodes);
}

static PyObject *
tree_get_has_snapshot(tree *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->snapshot != NULL);
}

static PyMethodDef tree_methods[] = {
    {"check", (PyCFunction)tree_check, METH_VARARGS,
     PyDoc_STR("check(args, closure, globals, builtins) -> bool: whether all guards hold for this frame")},
    {"first_failure", (PyCFunction)tree_first_failure, METH_VARARGS,
     PyDoc_STR("first_failure(args, closure, globals, builtins) -> (index, guard) | None")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tree_getset[] = {
    {"guards", (getter)tree_get_guards, NULL, PyDoc_STR("the guards, in the order they were added"), NULL},
    {"num_guards", (getter)tree_get_num_guards, NULL, NULL, NULL},
    {"num_python", (getter)tree_get_num_python, NULL, PyDoc_STR("how many checks run Python code"), NULL},
    {"has_snapshot", (getter)tree_get_has_snapshot, NULL, PyDoc_STR("whether the next check looks only at what may have changed"), NULL},
    {"num_nodes", (getter)tree_get_num_nodes, NULL, PyDoc_STR("how many objects a check fetches"), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject FxjitGuardTree_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fxjit._C.GuardTree",
    .tp_doc = tree_doc,
    .tp_basicsize = sizeof(tree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tree_new,
    .tp_dealloc = (destructor)tree_dealloc,
    .tp_traverse = (traverseproc)tree_traverse,
    .tp_clear = (inquiry)tree_clear,
    .tp_methods = tree_methods,
    .tp_getset = tree_getset,
    .tp_weaklistoffset = offsetof(tree, weakrefs),
};

int
fxjit_tree_init(PyObject *module)
{
    if (fxjit_held_module_init(module) < 0 || fxjit_checks_init(module) < 0 || fxjit_conditions_init(module) < 0 || fxjit_accessors_init(module) < 0 || fxjit_fast_path_init(module) < 0 || PyModule_AddType(module, &FxjitGuardTree_Type) < 0) {
        return -1;
    }
    return fxjit_shape_program_add_names(module);
}
