/* What a trace relied on about a tensor: everything but its numbers, read through torch's C shim. tensor_spec.py says it in
 * Python; a test compares the two. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_tensor.h"
#include "_held.h"
#include "_tensor_facts.h"

#define ANY INT64_MIN

struct fxjit_tensor_facts {
    fxjit_held type;
    uint64_t keys;
    int32_t dtype, device_type, device_index, layout;
    bool requires_grad;
    bool any_size, any_stride; /* whether sizes, strides hold a number to compare with */
    bool strided;
    int64_t dim;
    int64_t numbers[]; /* sizes, then strides; ANY where any will do */
};

static inline int
numbers_fit(const int64_t *expected, const int64_t *found, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (expected[i] != found[i] && expected[i] != ANY) {
            return 0;
        }
    }
    return 1;
}

/* The key set says backend and layout family, the inference, conjugate and negative bits, and whether the tensor is
 * one whose sizes only Python knows; so it comes before everything that asks the tensor for numbers. */
int
fxjit_tensor_facts_hold(const fxjit_tensor_facts *facts, PyObject *value)
{
    if (!fxjit_held_is(&facts->type, (PyObject *)Py_TYPE(value)) || fxjit_tensor_impl(value) == NULL ||
        fxjit_tensor_keys(value) != facts->keys) {
        return 0;
    }
    const fxjit_shim_t *shim = &fxjit_shim;
    void *handle = fxjit_tensor_handle(value);
    int64_t dim, *numbers;
    int32_t code;
    if (shim->get_dim(handle, &dim) || dim != facts->dim) {
        return 0;
    }
    if (facts->any_size && (shim->get_sizes(handle, &numbers) || !numbers_fit(facts->numbers, numbers, dim))) {
        return 0;
    }
    if (shim->get_dtype(handle, &code) || code != facts->dtype) {
        return 0;
    }
    if (facts->any_stride &&
        (shim->get_strides(handle, &numbers) || !numbers_fit(facts->numbers + dim, numbers, dim))) {
        return 0;
    }
    if (shim->get_device_type(handle, &code) || code != facts->device_type) {
        return 0;
    }
    if (facts->device_index >= 0 && (shim->get_device_index(handle, &code) || code != facts->device_index)) {
        return 0;
    }
    if (!facts->strided && (shim->get_layout(handle, &code) || code != facts->layout)) {
        return 0;
    }
    int requires_grad = fxjit_tensor_requires_grad(value);
    return requires_grad < 0 ? -1 : requires_grad == facts->requires_grad;
}

/* Copies a tuple of ints and Nones. Returns whether it holds an int, -1 on error. */
static int
copy_numbers(PyObject *tuple, int64_t *numbers)
{
    int any = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *number = PyTuple_GET_ITEM(tuple, i);
        if (number == Py_None) {
            numbers[i] = ANY;
            continue;
        }
        numbers[i] = PyLong_AsLongLong(number);
        if (numbers[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
        any = 1;
    }
    return any;
}

int
fxjit_tensor_facts_init(fxjit_tensor_facts **out, PyObject *op)
{
    PyObject *name, *type, *sizes, *strides;
    unsigned long long keys;
    int dtype, device_type, device_index, layout, strided, requires_grad;
    if (!PyArg_ParseTuple(op, "OO!KiiiippO!O!", &name, &PyType_Type, &type, &keys, &dtype, &device_type, &device_index,
                          &layout, &strided, &requires_grad, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) {
        return -1;
    }
    Py_ssize_t dim = PyTuple_GET_SIZE(sizes);
    if (PyTuple_GET_SIZE(strides) != dim) {
        PyErr_SetString(PyExc_ValueError, "as many strides as sizes");
        return -1;
    }
    if (!fxjit_shim.ready || !PyType_IsSubtype((PyTypeObject *)type, fxjit_shim.tensor_class)) {
        PyErr_SetString(PyExc_ValueError, "a tensor check needs torch's C shim, and a tensor's class");
        return -1;
    }
    fxjit_tensor_facts *facts = PyMem_Calloc(1, sizeof(*facts) + 2 * dim * sizeof(int64_t));
    if (facts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *out = facts;
    facts->keys = keys;
    facts->dtype = dtype;
    facts->device_type = device_type;
    facts->device_index = device_index;
    facts->layout = layout;
    facts->strided = strided;
    facts->requires_grad = requires_grad;
    facts->dim = dim;
    int any_size = copy_numbers(sizes, facts->numbers), any_stride = copy_numbers(strides, facts->numbers + dim);
    if (any_size < 0 || any_stride < 0) {
        return -1;
    }
    facts->any_size = any_size;
    facts->any_stride = any_stride;
    return fxjit_held_init(&facts->type, type);
}

void
fxjit_tensor_facts_free(fxjit_tensor_facts *facts)
{
    if (facts != NULL) {
        fxjit_held_clear(&facts->type);
        PyMem_Free(facts);
    }
}

int
fxjit_tensor_facts_traverse(fxjit_tensor_facts *facts, visitproc visit, void *arg)
{
    return facts == NULL ? 0 : fxjit_held_traverse(&facts->type, visit, arg);
}
