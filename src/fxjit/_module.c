/* The extension module `fxjit._C`: creates the module and lets each part add what it has.
 * The sources of the parts stand in the packages they belong to; see _module.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_module.h"

typedef int (*part_init)(PyObject *module);

int
fxjit_add_table(PyObject *module, const char *name, size_t count, PyObject *(*row)(size_t))
{
    PyObject *rows = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; rows != NULL && i < count; i++) {
        PyObject *made = row(i);
        if (made == NULL) {
            Py_CLEAR(rows);
            break;
        }
        PyTuple_SET_ITEM(rows, (Py_ssize_t)i, made);
    }
    int status = rows == NULL ? -1 : PyModule_AddObjectRef(module, name, rows);
    Py_XDECREF(rows);
    return status;
}

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fxjit._C",
    .m_doc = "The frame hook, the guard tree, the call path and the executor of fxjit.",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__C(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL) {
        return NULL;
    }
    const part_init parts[] = {
        fxjit_tensor_init, fxjit_tensor_words_init, fxjit_tensor_memory_init, fxjit_process_state_init,
        fxjit_tree_init,   fxjit_entries_init,
        fxjit_hook_init,   fxjit_call_init, fxjit_modules_init, fxjit_ranges_init, fxjit_signals_init,
        fxjit_cuda_init,   fxjit_program_init, fxjit_tiers_init,
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i](module) < 0) {
            Py_DECREF(module);
            return NULL;
        }
    }
    return module;
}
