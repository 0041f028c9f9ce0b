/* The executor's instruction set (opcodes.def) as C has it: `I_NAME` and a struct of the operands for each opcode, `V_NAME` for each
 * kind of value, `FROM_NAME` for each origin of a symbol, `S_NAME` for each operation on sizes. */
#ifndef FXJIT_OPCODES_H
#define FXJIT_OPCODES_H

#include <Python.h>
#include <stdint.h>

enum {
#define OPCODE(name, access, ...) I_##name,
#include "opcodes.def"
};

#define OPCODE(name, access, ...) \
    typedef struct { \
        int64_t __VA_ARGS__; \
    } name##_operands;
#include "opcodes.def"

enum {
#define VALUE(name, children) V_##name,
#include "opcodes.def"
};

enum {
#define SYMBOL_ORIGIN(name) FROM_##name,
#include "opcodes.def"
};

enum {
#define SIZE_OP(name, operands) S_##name,
#include "opcodes.def"
};

/* Adds OPCODES, VALUES, SYMBOL_ORIGINS and SIZE_OPS to the module: a tuple for each row, which stands at the place that is its
 * code. */
int fxjit_opcodes_init(PyObject *module);

#endif
