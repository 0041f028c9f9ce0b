/* Guards on sizes that the trace kept symbolic (shapes.py), as programs over the sizes' values. A program is a list of
 * words: an operation, and its operand where it has one. _shape_program.c; used by _conditions.c. */
#ifndef FXJIT_GUARDS_SHAPE_PROGRAM_H
#define FXJIT_GUARDS_SHAPE_PROGRAM_H

#include <Python.h>

#include <stdint.h>

typedef struct {
    int64_t *words;
    Py_ssize_t size;
} fxjit_shape_program;

/* From a tuple of ints; -1 with an exception if it is no program over so many variables. Clear it in either case. */
int fxjit_shape_program_init(fxjit_shape_program *program, PyObject *words, int num_variables);
void fxjit_shape_program_clear(fxjit_shape_program *program);
/* Whether it gives true: 1 or 0. A number that 64 bits do not hold means no. */
int fxjit_shape_program_holds(const fxjit_shape_program *program, const int64_t *variables);
/* Adds SHAPE_OPS to the module: the names of the operations, of which each stands at the place that is its code. */
int fxjit_shape_program_add_names(PyObject *module);

#endif
