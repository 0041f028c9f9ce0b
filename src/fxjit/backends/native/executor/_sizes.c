/* Sizes that vary from call to call: the symbols of a program, read from tensors and integers, and the arithmetic that fills in
 * the numbers made of them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "_program.h"

int
fxjit_read_symbol(slot_t *slot, int64_t origin, int64_t dim, int64_t *value)
{
    if (origin == FROM_INTEGER) {
        *value = PyLong_AsLongLong(slot->object);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    int64_t *numbers;
    void *handle = slot_handle(slot);
    if (handle == NULL) {
        return -1;
    }
    if ((origin == FROM_SIZE ? fxjit_shim.get_sizes : fxjit_shim.get_strides)(handle, &numbers) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim gave an error for a tensor");
        return -1;
    }
    *value = numbers[dim];
    return 0;
}

int
fxjit_calculate_sizes(const int64_t *pc, const int64_t *symbols, int64_t *numbers)
{
    int64_t stack[SIZE_STACK];
    int top = -1;
    for (;;) {
        int64_t code = *pc++;
        switch (code) {
        case S_END:
            return 0;
        case S_CONSTANT:
            stack[++top] = *pc++;
            continue;
        case S_SYMBOL:
            stack[++top] = symbols[*pc++];
            continue;
        case S_STORE:
            numbers[*pc++] = stack[top--];
            continue;
        default:
            break;
        }
        int64_t b = stack[top--], a = stack[top];
        if ((code == S_FLOORDIV || code == S_MOD) && b == 0) {
            PyErr_SetString(PyExc_ZeroDivisionError, "integer division or modulo by zero");
            return -1;
        }
        switch (code) {
        case S_ADD:
            stack[top] = a + b;
            break;
        case S_MUL:
            stack[top] = a * b;
            break;
        case S_FLOORDIV:
            stack[top] = a / b - (a % b != 0 && (a < 0) != (b < 0));
            break;
        case S_MOD:
            stack[top] = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
            break;
        case S_MAX:
            stack[top] = a > b ? a : b;
            break;
        default:
            stack[top] = a < b ? a : b;
            break;
        }
    }
}
