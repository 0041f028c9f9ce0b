/* Shape programs (_shape_program.h): a stack machine on int64. */
#define PY_SSIZE_T_CLEAN
#include "../_module.h"
#include "_shape_program.h"

typedef enum {
#define SHAPE_OP(id, name, words, operands) OP_##id,
#include "tree.def"
} shape_op;

static const struct {
    const char *name;
    int words, operands;
} shape_ops[] = {
#define SHAPE_OP(id, name, words, operands) {name, words, operands},
#include "tree.def"
};

#define NUM_SHAPE_OPS ((int64_t)(sizeof(shape_ops) / sizeof(shape_ops[0])))
#define SHAPE_STACK 64

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

int
fxjit_shape_program_holds(const fxjit_shape_program *program, const int64_t *variables)
{
    int64_t stack[SHAPE_STACK];
    int top = -1;
    for (Py_ssize_t i = 0; i < program->size; i++) {
        int64_t op = program->words[i];
        if (op == OP_CONST) {
            stack[++top] = program->words[++i];
        }
        else if (op == OP_VAR) {
            stack[++top] = variables[program->words[++i]];
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

/* Whether running it stays within its words, its variables and the stack. */
static int
is_well_formed(const fxjit_shape_program *program, int num_variables)
{
    int depth = 0;
    for (Py_ssize_t i = 0; i < program->size; i++) {
        int64_t op = program->words[i];
        if (op < 0 || op >= NUM_SHAPE_OPS) {
            return 0;
        }
        depth -= shape_ops[op].operands;
        i += shape_ops[op].words;
        if (depth < 0 || depth + 1 > SHAPE_STACK || i >= program->size) {
            return 0;
        }
        if (op == OP_VAR && (program->words[i] < 0 || program->words[i] >= num_variables)) {
            return 0;
        }
        depth++;
    }
    return depth == 1;
}

int
fxjit_shape_program_init(fxjit_shape_program *program, PyObject *words, int num_variables)
{
    if (!PyTuple_Check(words)) {
        PyErr_SetString(PyExc_TypeError, "a shape program is a tuple of ints");
        return -1;
    }
    program->size = PyTuple_GET_SIZE(words);
    program->words = PyMem_Calloc(program->size + 1, sizeof(int64_t));
    if (program->words == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < program->size; i++) {
        program->words[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(words, i));
        if (program->words[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    if (!is_well_formed(program, num_variables)) {
        PyErr_SetString(PyExc_ValueError, "the shape program is malformed");
        return -1;
    }
    return 0;
}

void
fxjit_shape_program_clear(fxjit_shape_program *program)
{
    PyMem_Free(program->words);
    program->words = NULL;
    program->size = 0;
}

static PyObject *
shape_op_name(size_t i)
{
    return PyUnicode_FromString(shape_ops[i].name);
}

int
fxjit_shape_program_add_names(PyObject *module)
{
    return fxjit_add_table(module, "SHAPE_OPS", (size_t)NUM_SHAPE_OPS, shape_op_name);
}
