/* The executor's instruction set (opcodes.def) as Python reads it from `_C`. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_module.h"
#include "_opcodes.h"

static const char *const opcodes[][3] = {
#define OPCODE(name, access, ...) {#name, #access, #__VA_ARGS__},
#include "opcodes.def"
};

static const struct {
    const char *name;
    int words;
} values[] = {
#define VALUE(name, children) {#name, children},
#include "opcodes.def"
}, size_ops[] = {
#define SIZE_OP(name, operands) {#name, operands},
#include "opcodes.def"
};

static const char *const origins[] = {
#define SYMBOL_ORIGIN(name) #name,
#include "opcodes.def"
};

/* Appends a row; takes the reference, NULL is an error that is passed on. */
static int
append(PyObject *rows, PyObject *row)
{
    int status = row == NULL ? -1 : PyList_Append(rows, row);
    Py_XDECREF(row);
    return status;
}

/* The list becomes a tuple of the module. */
static int
add_rows(PyObject *module, const char *name, PyObject *rows)
{
    PyObject *all = PyList_AsTuple(rows);
    int status = all == NULL ? -1 : PyModule_AddObjectRef(module, name, all);
    Py_XDECREF(all);
    return status < 0 ? -1 : PyList_SetSlice(rows, 0, PyList_GET_SIZE(rows), NULL);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

int
fxjit_opcodes_init(PyObject *module)
{
    PyObject *rows = PyList_New(0);
    int status = rows == NULL ? -1 : 0;
    for (size_t i = 0; status == 0 && i < COUNT(opcodes); i++) {
        status = append(rows, Py_BuildValue("(sss)", opcodes[i][0], opcodes[i][1], opcodes[i][2]));
    }
    status = status < 0 ? -1 : add_rows(module, "OPCODES", rows);
    for (size_t i = 0; status == 0 && i < COUNT(values); i++) {
        status = append(rows, Py_BuildValue("(si)", values[i].name, values[i].words));
    }
    status = status < 0 ? -1 : add_rows(module, "VALUES", rows);
    for (size_t i = 0; status == 0 && i < COUNT(origins); i++) {
        status = append(rows, PyUnicode_FromString(origins[i]));
    }
    status = status < 0 ? -1 : add_rows(module, "SYMBOL_ORIGINS", rows);
    for (size_t i = 0; status == 0 && i < COUNT(size_ops); i++) {
        status = append(rows, Py_BuildValue("(si)", size_ops[i].name, size_ops[i].words));
    }
    status = status < 0 ? -1 : add_rows(module, "SIZE_OPS", rows);
    Py_XDECREF(rows);
    return status;
}
