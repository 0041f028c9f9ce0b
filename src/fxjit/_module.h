/* The parts of the extension `fxjit._C`. Each adds its types and functions to the module and returns 0, or -1 with an
 * exception set. Called once, by _module.c. */
#ifndef FXJIT_MODULE_H
#define FXJIT_MODULE_H

#include <Python.h>

int fxjit_entries_init(PyObject *module);  /* frontend/_entries.c */
int fxjit_hook_init(PyObject *module);     /* frontend/_hook.c */
int fxjit_modules_init(PyObject *module);  /* frontend/_modules.c */
int fxjit_call_init(PyObject *module);     /* _call.c */
int fxjit_ranges_init(PyObject *module);   /* _ranges.c */
int fxjit_signals_init(PyObject *module);  /* _signals.c */
int fxjit_tensor_init(PyObject *module);   /* _tensor.c */
int fxjit_tensor_words_init(PyObject *module);   /* _tensor_words.c */
int fxjit_tensor_memory_init(PyObject *module);  /* _tensor_memory.c */
int fxjit_process_state_init(PyObject *module);  /* _process_state.c */
int fxjit_tree_init(PyObject *module);     /* guards/_tree.c */
int fxjit_cuda_init(PyObject *module);     /* backends/native/runtime/_cuda.c */
int fxjit_program_init(PyObject *module);  /* backends/native/executor/_program.c */
int fxjit_tiers_init(PyObject *module);    /* backends/tiers/_tiers.c */

/* Adds a tuple to the module, of which `row(i)` gives the i-th element (a new reference; NULL with an exception): how Python reads
 * the tables of a .def file. */
int fxjit_add_table(PyObject *module, const char *name, size_t count, PyObject *(*row)(size_t));

#endif
