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

static PyObject *
opcode_row(size_t i)
{
    return Py_BuildValue("(sss)", opcodes[i][0], opcodes[i][1], opcodes[i][2]);
}

static PyObject *
value_row(size_t i)
{
    return Py_BuildValue("(si)", values[i].name, values[i].words);
}

static PyObject *
origin_row(size_t i)
{
    return PyUnicode_FromString(origins[i]);
}

static PyObject *
size_op_row(size_t i)
{
    return Py_BuildValue("(si)", size_ops[i].name, size_ops[i].words);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

int
fxjit_opcodes_init(PyObject *module)
{
    if (fxjit_add_table(module, "OPCODES", COUNT(opcodes), opcode_row) < 0 ||
        fxjit_add_table(module, "VALUES", COUNT(values), value_row) < 0 ||
        fxjit_add_table(module, "SYMBOL_ORIGINS", COUNT(origins), origin_row) < 0) {
        return -1;
    }
    return fxjit_add_table(module, "SIZE_OPS", COUNT(size_ops), size_op_row);
}
