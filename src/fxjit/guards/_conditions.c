/* Conditions: guards that concern no object, or several at once. The walk (_tree.c) has filled the slots they need. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <string.h>

#include "../_module.h"
#include "_walk.h"

static const struct {
    const char *name;
    Py_ssize_t operands;
    const char *when;
} conditions[] = {
#define CONDITION(id, name, operands, when) {name, operands, #when},
#include "tree.def"
};

#define NUM_CONDITIONS (sizeof(conditions) / sizeof(conditions[0]))

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
    holds = holds && fxjit_shape_program_holds(&c->program, variables);
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

int
fxjit_condition_run(const condition *c, PyObject *const *slots)
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

static int
init_condition_payload(condition *c, PyObject *op)
{
    Py_ssize_t operands = PyTuple_GET_SIZE(op) - 1;
    if (operands != conditions[c->kind].operands) {
        PyErr_Format(PyExc_ValueError, "the condition %R takes %zd operands", op, conditions[c->kind].operands);
        return -1;
    }
    PyObject *first = operands > 0 ? PyTuple_GET_ITEM(op, 1) : NULL;
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
        return fxjit_shape_program_init(&c->program, first, c->num_slots);
    case COND_PYTHON:
        c->callable = Py_NewRef(first);
        return 0;
    }
    return 0;
}

int
fxjit_condition_init(tree *t, condition *c, PyObject *spec)
{
    PyObject *slots, *op;
    if (!PyArg_ParseTuple(spec, "iO!O!", &c->guard, &PyTuple_Type, &slots, &PyTuple_Type, &op)) {
        return -1;
    }
    if (PyTuple_GET_SIZE(op) < 1) {
        PyErr_SetString(PyExc_ValueError, "an empty condition");
        return -1;
    }
    PyObject *name = PyTuple_GET_ITEM(op, 0);
    size_t kind = 0;
    while (kind < NUM_CONDITIONS && !(PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, conditions[kind].name) == 0)) {
        kind++;
    }
    if (kind == NUM_CONDITIONS) {
        PyErr_Format(PyExc_ValueError, "unknown condition %R", name);
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

int
fxjit_condition_traverse(condition *c, visitproc visit, void *arg)
{
    Py_VISIT(c->callable);
    Py_VISIT(c->key);
    return fxjit_held_traverse(&c->expected, visit, arg);
}

void
fxjit_condition_clear(condition *c)
{
    Py_CLEAR(c->callable);
    Py_CLEAR(c->key);
    fxjit_held_clear(&c->expected);
    PyMem_Free(c->slots);
    c->slots = NULL;
    fxjit_shape_program_clear(&c->program);
}

static PyObject *
condition_row(size_t i)
{
    return Py_BuildValue("(sns)", conditions[i].name, conditions[i].operands, conditions[i].when);
}

int
fxjit_conditions_init(PyObject *module)
{
    return fxjit_add_table(module, "CONDITIONS", NUM_CONDITIONS, condition_row);
}
