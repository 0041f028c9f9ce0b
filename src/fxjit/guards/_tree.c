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
 * Whatever Exception a look-up raises means that the guard does not hold. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <stddef.h>
#include <string.h>

#include "../_module.h"
#include "_tree.h"
#include "_walk.h"

static const char *const accessor_names[] = {
    "arg",  "cell", "deref",         "globals",       "builtins", "const", "class",       "attr",          "item",
    "key",  "type", "instance_dict", "cell_contents", "call",     "apply", "tensor_size", "tensor_stride", "tensor_offset",
    "class_item",
};

static const char *const condition_names[] = {
    "state", "probe", "dict_item", "same", "distinct", "shape", "python",
};

#define SLOTS_ON_STACK 32

/* -- accessors -----------------------------------------------------------------------------------------------------*/

/* -1 with an exception that must pass through (KeyboardInterrupt...), else 0 and no exception. */
static int
swallow(void)
{
    if (!PyErr_Occurred()) {
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return 0;
    }
    return -1;
}

static PyObject *
get_cell(const run *r, const node *n)
{
    if (r->closure == NULL || n->index >= PyTuple_GET_SIZE(r->closure)) {
        return NULL;
    }
    return Py_NewRef(PyTuple_GET_ITEM(r->closure, n->index));
}

static PyObject *
cell_contents(PyObject *cell)
{
    return cell != NULL && PyCell_Check(cell) ? PyCell_Get(cell) : NULL;
}

static PyObject *
get_deref(const run *r, const node *n)
{
    if (r->closure == NULL || n->index >= PyTuple_GET_SIZE(r->closure)) {
        return NULL;
    }
    return cell_contents(PyTuple_GET_ITEM(r->closure, n->index));
}

/* A dict's own item, never `__missing__`: looking must not write. Other containers are asked. */
static PyObject *
get_item(PyObject *container, const node *n)
{
    PyTypeObject *type = Py_TYPE(container);
    if (type == &PyDict_Type || (PyDict_Check(container) && type->tp_as_mapping != NULL &&
                                 type->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript)) {
        return Py_XNewRef(PyDict_GetItemWithError(container, n->arg));
    }
    if (type == &PyList_Type || type == &PyTuple_Type) {
        if (PyLong_CheckExact(n->arg) && n->index != PY_SSIZE_T_MAX) {
            Py_ssize_t size = Py_SIZE(container), index = n->index < 0 ? n->index + size : n->index;
            if (index < 0 || index >= size) {
                return NULL;
            }
            PyObject *item = type == &PyList_Type ? PyList_GET_ITEM(container, index)
                                                  : PyTuple_GET_ITEM(container, index);
            return Py_NewRef(item);
        }
    }
    return PyObject_GetItem(container, n->arg);
}

static PyObject *
get_key(PyObject *container, Py_ssize_t index)
{
    if (PyDict_Check(container) && !PyODict_Check(container)) {
        if (index >= PyDict_GET_SIZE(container)) {
            return NULL;
        }
        Py_ssize_t position = 0;
        PyObject *key = NULL;
        for (Py_ssize_t i = 0; i <= index; i++) {
            if (!PyDict_Next(container, &position, &key, NULL)) {
                return NULL;
            }
        }
        return Py_NewRef(key);
    }
    PyObject *iterator = fxjit_stored_keys(container);
    if (iterator == NULL) {
        return NULL;
    }
    PyObject *key = PyIter_Next(iterator);
    for (Py_ssize_t i = 0; key != NULL && i < index; i++) {
        Py_SETREF(key, PyIter_Next(iterator));
    }
    Py_DECREF(iterator);
    return key;
}

static PyObject *
call_method_with_index(PyObject *obj, const char *name, Py_ssize_t index)
{
    return PyObject_CallMethod(obj, name, "n", index);
}

static PyObject *
get_tensor_number(PyObject *tensor, const node *n)
{
    if (fxjit_tensor_is_plain(tensor)) {
        void *handle = fxjit_tensor_handle(tensor);
        int64_t dim, offset, *numbers;
        if (n->get == GET_TENSOR_OFFSET) {
            return fxjit_shim.get_storage_offset(handle, &offset) ? NULL : PyLong_FromLongLong(offset);
        }
        if (fxjit_shim.get_dim(handle, &dim)) {
            return NULL;
        }
        int64_t index = n->index < 0 ? n->index + dim : n->index;
        if (index < 0 || index >= dim) {
            return NULL;
        }
        int error = n->get == GET_TENSOR_SIZE ? fxjit_shim.get_sizes(handle, &numbers)
                                              : fxjit_shim.get_strides(handle, &numbers);
        return error ? NULL : PyLong_FromLongLong(numbers[index]);
    }
    if (n->get == GET_TENSOR_OFFSET) {
        return PyObject_CallMethod(tensor, "storage_offset", NULL);
    }
    return call_method_with_index(tensor, n->get == GET_TENSOR_SIZE ? "size" : "stride", n->index);
}

/* A variable of a module, as its dict has it; nothing of a module's class comes before that but dunder names. */
static PyObject *
get_attr(PyObject *obj, const node *n)
{
    if (PyModule_CheckExact(obj) && n->index) {
        PyObject *value = PyDict_GetItemWithError(PyModule_GetDict(obj), n->arg);
        if (value != NULL || PyErr_Occurred()) {
            return Py_XNewRef(value);
        }
    }
    return PyObject_GetAttr(obj, n->arg);
}

/* What the class's own namespace has, whatever its metaclass says of `__dict__`. */
static PyObject *
get_class_item(PyObject *cls, PyObject *name)
{
    PyObject *namespace = PyType_Check(cls) ? fx_type_dict((PyTypeObject *)cls) : NULL;
    return namespace == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(namespace, name));
}

/* The object of a node, as a new reference; NULL (perhaps with an exception) when it is not there. */
PyObject *
fxjit_fetch(const run *r, const node *n, PyObject *parent)
{
    switch (n->get) {
    case GET_ARG:
        return n->index < r->nargs ? Py_XNewRef(r->args[n->index]) : NULL;
    case GET_CELL:
        return get_cell(r, n);
    case GET_DEREF:
        return get_deref(r, n);
    case GET_GLOBALS:
        return Py_XNewRef(r->globals);
    case GET_BUILTINS:
        return Py_XNewRef(r->builtins);
    case GET_CONST:
        return Py_NewRef(n->arg);
    case GET_CLASS:
        return Py_XNewRef(fx_weakref_target(n->arg));
    case GET_ATTR:
        return get_attr(parent, n);
    case GET_ITEM:
        return get_item(parent, n);
    case GET_KEY:
        return get_key(parent, n->index);
    case GET_TYPE:
        return Py_NewRef((PyObject *)Py_TYPE(parent));
    case GET_INSTANCE_DICT:
        return fxjit_instance_dict(parent);
    case GET_CELL_CONTENTS:
        return cell_contents(parent);
    case GET_CALL:
        return PyObject_CallNoArgs(parent);
    case GET_APPLY:
        return PyObject_CallOneArg(n->arg, parent);
    case GET_TENSOR_SIZE:
    case GET_TENSOR_STRIDE:
    case GET_TENSOR_OFFSET:
        return get_tensor_number(parent, n);
    case GET_CLASS_ITEM:
        return get_class_item(parent, n->arg);
    }
    return NULL;
}

/* -- shape programs ------------------------------------------------------------------------------------------------*/

/* A stack machine on int64. A program is a list of words: an operation, and its operand where it has one. */
typedef enum { OP_CONST, OP_VAR, OP_ADD, OP_SUB, OP_MUL, OP_FLOORDIV, OP_MOD, OP_NEG, OP_MIN, OP_MAX, OP_EQ, OP_NE, OP_LT,
               OP_LE, OP_GT, OP_GE, OP_AND, OP_OR, OP_NOT } shape_op;

static const char *const shape_op_names[] = {
    "const", "var", "add", "sub", "mul", "floordiv", "mod", "neg", "min", "max", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "not",
};

#define NUM_SHAPE_OPS ((int64_t)(sizeof(shape_op_names) / sizeof(shape_op_names[0])))
#define SHAPE_STACK 64

static int
has_operand(int64_t op)
{
    return op == OP_CONST || op == OP_VAR;
}

static int
is_unary(int64_t op)
{
    return op == OP_NEG || op == OP_NOT;
}

/* Python's // and %: rounding towards minus infinity. 0 on division by zero or overflow. */
static int
floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == 0 || (b == -1 && a == INT64_MIN)) {
        return 0;
    }
    int64_t q = a / b, m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) {
        q -= 1;
        m += b;
    }
    *quotient = q;
    *remainder = m;
    return 1;
}

/* a op b into *result; 0 when it cannot be said in 64 bits. */
static int
shape_binary(int64_t op, int64_t a, int64_t b, int64_t *result)
{
    int64_t other;
    switch ((shape_op)op) {
    case OP_ADD:
        return !__builtin_add_overflow(a, b, result);
    case OP_SUB:
        return !__builtin_sub_overflow(a, b, result);
    case OP_MUL:
        return !__builtin_mul_overflow(a, b, result);
    case OP_FLOORDIV:
        return floor_divide(a, b, result, &other);
    case OP_MOD:
        return floor_divide(a, b, &other, result);
    case OP_MIN:
        *result = a < b ? a : b;
        return 1;
    case OP_MAX:
        *result = a > b ? a : b;
        return 1;
    case OP_EQ:
        *result = a == b;
        return 1;
    case OP_NE:
        *result = a != b;
        return 1;
    case OP_LT:
        *result = a < b;
        return 1;
    case OP_LE:
        *result = a <= b;
        return 1;
    case OP_GT:
        *result = a > b;
        return 1;
    case OP_GE:
        *result = a >= b;
        return 1;
    case OP_AND:
        *result = a && b;
        return 1;
    case OP_OR:
        *result = a || b;
        return 1;
    default:
        return 0;
    }
}

/* Whether the program, whose stack use check_program has verified, gives true. Too large a number means no. */
static int
shape_holds(const condition *c, const int64_t *variables)
{
    int64_t stack[SHAPE_STACK];
    int top = -1;
    for (Py_ssize_t i = 0; i < c->program_size; i++) {
        int64_t op = c->program[i];
        if (op == OP_CONST) {
            stack[++top] = c->program[++i];
        }
        else if (op == OP_VAR) {
            stack[++top] = variables[c->program[++i]];
        }
        else if (op == OP_NOT) {
            stack[top] = !stack[top];
        }
        else if (op == OP_NEG) {
            if (__builtin_sub_overflow((int64_t)0, stack[top], &stack[top])) {
                return 0;
            }
        }
        else {
            top--;
            if (!shape_binary(op, stack[top], stack[top + 1], &stack[top])) {
                return 0;
            }
        }
    }
    return stack[0] != 0;
}

static int
check_program(const condition *c)
{
    int depth = 0;
    for (Py_ssize_t i = 0; i < c->program_size; i++) {
        int64_t op = c->program[i];
        if (op < 0 || op >= NUM_SHAPE_OPS) {
            return 0;
        }
        if (has_operand(op)) {
            depth++;
            if (++i >= c->program_size || depth > SHAPE_STACK) {
                return 0;
            }
            if (op == OP_VAR && (c->program[i] < 0 || c->program[i] >= c->num_slots)) {
                return 0;
            }
        }
        else if (is_unary(op)) {
            if (depth < 1) {
                return 0;
            }
        }
        else if (--depth < 1) {
            return 0;
        }
    }
    return depth == 1;
}

/* -- conditions ----------------------------------------------------------------------------------------------------*/

#define FEW_OBJECTS 16

static int
are_distinct(PyObject *const *slots, const int *which, int n)
{
    if (n <= FEW_OBJECTS) {
        for (int i = 1; i < n; i++) {
            for (int j = 0; j < i; j++) {
                if (slots[which[i]] == slots[which[j]]) {
                    return 0;
                }
            }
        }
        return 1;
    }
    size_t size = 1;
    while (size < 2 * (size_t)n) {
        size *= 2;
    }
    PyObject **table = PyMem_Calloc(size, sizeof(PyObject *));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int distinct = 1;
    for (int i = 0; distinct && i < n; i++) {
        PyObject *obj = slots[which[i]];
        size_t place = ((uintptr_t)obj >> 4) * 0x9E3779B97F4A7C15u & (size - 1);
        while (table[place] != NULL && table[place] != obj) {
            place = (place + 1) & (size - 1);
        }
        distinct = table[place] == NULL;
        table[place] = obj;
    }
    PyMem_Free(table);
    return distinct;
}

static int
shape_condition(const condition *c, PyObject *const *slots)
{
    int64_t few[FEW_OBJECTS];
    int64_t *variables = few;
    if (c->num_slots > FEW_OBJECTS) {
        variables = PyMem_Malloc(c->num_slots * sizeof(int64_t));
        if (variables == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    int holds = 1;
    for (int i = 0; holds && i < c->num_slots; i++) {
        PyObject *value = slots[c->slots[i]];
        int overflow = 1;
        if (PyLong_CheckExact(value)) {
            variables[i] = PyLong_AsLongLongAndOverflow(value, &overflow);
        }
        holds = !overflow;
    }
    holds = holds && shape_holds(c, variables);
    if (variables != few) {
        PyMem_Free(variables);
    }
    return holds;
}

static int
python_condition(const condition *c, PyObject *const *slots)
{
    PyObject *few[FEW_OBJECTS] = {NULL};
    PyObject **args = few;
    if (c->num_slots > FEW_OBJECTS) {
        args = PyMem_Malloc(c->num_slots * sizeof(PyObject *));
        if (args == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (int i = 0; i < c->num_slots; i++) {
        args[i] = slots[c->slots[i]];
    }
    PyObject *result = PyObject_Vectorcall(c->callable, args, c->num_slots, NULL);
    if (args != few) {
        PyMem_Free(args);
    }
    if (result == NULL) {
        return -1;
    }
    int holds = PyObject_IsTrue(result);
    Py_DECREF(result);
    return holds;
}

static int
probe_condition(const condition *c)
{
    PyObject *found = c->kind == COND_PROBE ? PyObject_CallNoArgs(c->callable)
                                            : Py_XNewRef(PyDict_GetItemWithError(c->callable, c->key));
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int same = fxjit_held_matches(&c->expected, found);
    Py_DECREF(found);
    return same;
}

/* 1 holds, 0 does not, -1 exception. The slots it needs are filled. */
static int
run_condition(const condition *c, PyObject *const *slots)
{
    switch (c->kind) {
    case COND_STATE:
        return fxjit_state_now(c->state) == c->wanted;
    case COND_PROBE:
    case COND_DICT_ITEM:
        return probe_condition(c);
    case COND_SAME:
        return slots[c->slots[0]] == slots[c->slots[1]];
    case COND_DISTINCT:
        return are_distinct(slots, c->slots, c->num_slots);
    case COND_SHAPE:
        return shape_condition(c, slots);
    case COND_PYTHON:
        return python_condition(c, slots);
    }
    return 0;
}

/* -- the walk ------------------------------------------------------------------------------------------------------*/

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
    return run_condition(c, r->slots) == 1 ? 1 : failed(r, HOT_CONDITION, index, c->guard);
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
    return run_condition(c, r->slots) == 1 ? 1 : failed(r, HOT_CONDITION, index, c->guard);
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

/* The check by notes (_settled.c): its slots are mostly left empty, so they are kept from one check to the next. */
static int
run_settled(run *r)
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
    int holds = fxjit_settled_holds(r);
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
    if (holds == 1 && use_hot && t->settled == NULL && ++t->full_checks >= t->patience) {
        fxjit_settle(r);
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
    int known = use_hot && t->settled != NULL && t->hot == HOT_NOTHING ? run_settled(r) : 0, holds = known;
    if (known == 0 || (known == 1 && fxjit_settled_verify)) {
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

static int
index_of(PyObject *name, const char *const *names, size_t n, const char *what)
{
    for (size_t i = 0; PyUnicode_Check(name) && i < n; i++) {
        if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            return (int)i;
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown %s %R", what, name);
    return -1;
}

#define INDEX_OF(name, names, what) index_of(name, names, sizeof(names) / sizeof(names[0]), what)

/* What the accessor's argument must be. */
static int
init_accessor(node *n, PyObject *arg)
{
    switch (n->get) {
    case GET_ARG:
    case GET_CELL:
    case GET_DEREF:
    case GET_KEY:
    case GET_TENSOR_SIZE:
    case GET_TENSOR_STRIDE:
        n->index = PyLong_AsSsize_t(arg);
        if (n->index == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (n->index < 0 && n->get != GET_TENSOR_SIZE && n->get != GET_TENSOR_STRIDE) {
            PyErr_SetString(PyExc_ValueError, "a slot cannot be negative");
            return -1;
        }
        return 0;
    case GET_ITEM:
        n->index = PY_SSIZE_T_MAX;
        if (PyLong_CheckExact(arg)) {
            n->index = PyLong_AsSsize_t(arg);
            if (n->index == -1 && PyErr_Occurred()) {
                PyErr_Clear();
                n->index = PY_SSIZE_T_MAX;
            }
        }
        n->arg = Py_NewRef(arg);
        return 0;
    case GET_ATTR:
        if (!PyUnicode_Check(arg)) {
            PyErr_SetString(PyExc_TypeError, "an attribute's name must be a str");
            return -1;
        }
        n->index = PyUnicode_GET_LENGTH(arg) > 0 && PyUnicode_READ_CHAR(arg, 0) != '_';
        n->arg = Py_NewRef(arg);
        return 0;
    default:
        n->arg = Py_NewRef(arg);
        return 0;
    }
}

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
    int get = INDEX_OF(name, accessor_names, "accessor");
    if (get < 0) {
        return -1;
    }
    n->get = (accessor)get;
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
    return init_accessor(n, arg);
}

static int
init_program(condition *c, PyObject *program)
{
    if (!PyTuple_Check(program)) {
        PyErr_SetString(PyExc_TypeError, "a shape program is a tuple of ints");
        return -1;
    }
    c->program_size = PyTuple_GET_SIZE(program);
    c->program = PyMem_Calloc(c->program_size + 1, sizeof(int64_t));
    if (c->program == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < c->program_size; i++) {
        c->program[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(program, i));
        if (c->program[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    if (!check_program(c)) {
        PyErr_SetString(PyExc_ValueError, "the shape program is malformed");
        return -1;
    }
    return 0;
}

static int
init_condition_payload(condition *c, PyObject *op)
{
    Py_ssize_t n = PyTuple_GET_SIZE(op);
    const Py_ssize_t sizes[] = {3, 3, 4, 1, 1, 2, 2};
    if (n != sizes[c->kind]) {
        PyErr_Format(PyExc_ValueError, "%R is not a condition", op);
        return -1;
    }
    PyObject *first = n > 1 ? PyTuple_GET_ITEM(op, 1) : NULL;
    switch (c->kind) {
    case COND_STATE: {
        int state = fxjit_state_index(first);
        c->state = (fxjit_state)state;
        c->wanted = PyLong_AsLongLong(PyTuple_GET_ITEM(op, 2));
        return state < 0 || (c->wanted == -1 && PyErr_Occurred()) ? -1 : 0;
    }
    case COND_DICT_ITEM:
        if (!PyDict_Check(first)) {
            PyErr_SetString(PyExc_TypeError, "a dict_item condition needs a dict");
            return -1;
        }
        c->callable = Py_NewRef(first);
        c->key = Py_NewRef(PyTuple_GET_ITEM(op, 2));
        return fxjit_held_plain(&c->expected, PyTuple_GET_ITEM(op, 3));
    case COND_PROBE:
        c->callable = Py_NewRef(first);
        return fxjit_held_plain(&c->expected, PyTuple_GET_ITEM(op, 2));
    case COND_SAME:
        if (c->num_slots != 2) {
            PyErr_SetString(PyExc_ValueError, "two objects are the same, or not");
            return -1;
        }
        return 0;
    case COND_DISTINCT:
        return 0;
    case COND_SHAPE:
        return init_program(c, first);
    case COND_PYTHON:
        c->callable = Py_NewRef(first);
        return 0;
    }
    return 0;
}

/* (guard, (slot, ...), op) */
static int
init_condition(tree *t, condition *c, PyObject *spec)
{
    PyObject *slots, *op;
    if (!PyArg_ParseTuple(spec, "iO!O!", &c->guard, &PyTuple_Type, &slots, &PyTuple_Type, &op)) {
        return -1;
    }
    if (PyTuple_GET_SIZE(op) < 1) {
        PyErr_SetString(PyExc_ValueError, "an empty condition");
        return -1;
    }
    int kind = INDEX_OF(PyTuple_GET_ITEM(op, 0), condition_names, "condition");
    if (kind < 0) {
        return -1;
    }
    c->kind = (condition_kind)kind;
    Py_ssize_t n = PyTuple_GET_SIZE(slots);
    c->slots = PyMem_Calloc(n + 1, sizeof(int));
    if (c->slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        long slot = PyLong_AsLong(PyTuple_GET_ITEM(slots, i));
        if (slot < 0 || slot >= t->num_slots) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "no such slot");
            }
            return -1;
        }
        c->slots[i] = (int)slot;
    }
    c->num_slots = (int)n;
    t->num_python += c->kind == COND_PYTHON;
    return init_condition_payload(c, op);
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
        if (init_condition(t, &t->conditions[i], PyTuple_GET_ITEM(conditions, i)) < 0) {
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
    self->patience = FIRST_PATIENCE;
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
        Py_VISIT(self->conditions[i].callable);
        Py_VISIT(self->conditions[i].key);
        int stop = fxjit_held_traverse(&self->conditions[i].expected, visit, arg);
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
    fxjit_settled_free(self);
    Py_CLEAR(self->guards);
    for (int i = 0; i < num_nodes; i++) {
        Py_CLEAR(self->nodes[i].arg);
    }
    for (int i = 0; i < num_checks; i++) {
        fxjit_check_clear(&self->checks[i]);
    }
    for (int i = 0; i < num_conditions; i++) {
        Py_CLEAR(self->conditions[i].callable);
        Py_CLEAR(self->conditions[i].key);
        fxjit_held_clear(&self->conditions[i].expected);
        PyMem_Free(self->conditions[i].slots);
        PyMem_Free(self->conditions[i].program);
        self->conditions[i].slots = NULL;
        self->conditions[i].program = NULL;
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
tree_get_settled(tree *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->settled != NULL);
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
    {"settled", (getter)tree_get_settled, NULL, PyDoc_STR("whether the next check looks only at what may have changed"), NULL},
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
    if (fxjit_checks_init(module) < 0 || fxjit_settled_init(module) < 0 || PyModule_AddType(module, &FxjitGuardTree_Type) < 0) {
        return -1;
    }
    PyObject *names = PyTuple_New(NUM_SHAPE_OPS);
    for (int64_t i = 0; names != NULL && i < NUM_SHAPE_OPS; i++) {
        PyObject *name = PyUnicode_FromString(shape_op_names[i]);
        if (name == NULL) {
            Py_CLEAR(names);
            break;
        }
        PyTuple_SET_ITEM(names, i, name);
    }
    if (names == NULL) {
        return -1;
    }
    /* The operations of shape programs: the code of one is its index. */
    int status = PyModule_AddObjectRef(module, "SHAPE_OPS", names);
    Py_DECREF(names);
    return status;
}
