/* Accessors: how a check of the guard tree (_tree.c) gets from an object to one that it leads to. Their meaning in Python is
 * `fetch` of the classes in source.py; a test compares the two. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include "../_module.h"
#include "_walk.h"

static const struct {
    const char *name;
    int root;
} accessors[] = {
#define ACCESSOR(id, name, root) {name, root},
#include "tree.def"
};

#define NUM_ACCESSORS (sizeof(accessors) / sizeof(accessors[0]))

static PyObject *
get_cell(const run *r, const node *n)
{
    if (r->closure == NULL || n->index >= PyTuple_GET_SIZE(r->closure)) {
        return NULL;
    }
    return Py_NewRef(PyTuple_GET_ITEM(r->closure, n->index));
}

static PyObject *
cell_contents(PyObject *cell)
{
    return cell != NULL && PyCell_Check(cell) ? PyCell_Get(cell) : NULL;
}

static PyObject *
get_deref(const run *r, const node *n)
{
    if (r->closure == NULL || n->index >= PyTuple_GET_SIZE(r->closure)) {
        return NULL;
    }
    return cell_contents(PyTuple_GET_ITEM(r->closure, n->index));
}

/* A dict's own item, never `__missing__`: looking must not write. Other containers are asked. */
static PyObject *
get_item(PyObject *container, const node *n)
{
    PyTypeObject *type = Py_TYPE(container);
    if (type == &PyDict_Type || (PyDict_Check(container) && type->tp_as_mapping != NULL &&
                                 type->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript)) {
        return Py_XNewRef(PyDict_GetItemWithError(container, n->arg));
    }
    if (type == &PyList_Type || type == &PyTuple_Type) {
        if (PyLong_CheckExact(n->arg) && n->index != PY_SSIZE_T_MAX) {
            Py_ssize_t size = Py_SIZE(container), index = n->index < 0 ? n->index + size : n->index;
            if (index < 0 || index >= size) {
                return NULL;
            }
            PyObject *item = type == &PyList_Type ? PyList_GET_ITEM(container, index)
                                                  : PyTuple_GET_ITEM(container, index);
            return Py_NewRef(item);
        }
    }
    return PyObject_GetItem(container, n->arg);
}

/* One entry of a dict in its own order, borrowed: found without the hash of its key. */
static int
find_entry(PyObject *dict, Py_ssize_t index, PyObject **key, PyObject **value)
{
    Py_ssize_t position = 0, i = -1;
    while (i < index && PyDict_Next(dict, &position, key, value)) {
        i++;
    }
    return i == index && i >= 0;
}

static PyObject *
get_key(PyObject *container, Py_ssize_t index)
{
    if (PyDict_Check(container) && !PyODict_Check(container)) {
        PyObject *key = NULL;
        return find_entry(container, index, &key, NULL) ? Py_NewRef(key) : NULL;
    }
    PyObject *iterator = fxjit_stored_keys(container);
    if (iterator == NULL) {
        return NULL;
    }
    PyObject *key = PyIter_Next(iterator);
    for (Py_ssize_t i = 0; key != NULL && i < index; i++) {
        Py_SETREF(key, PyIter_Next(iterator));
    }
    Py_DECREF(iterator);
    return key;
}

static PyObject *
get_value(PyObject *container, Py_ssize_t index)
{
    if (PyDict_Check(container) && !PyODict_Check(container)) {
        PyObject *value = NULL;
        return find_entry(container, index, NULL, &value) ? Py_NewRef(value) : NULL;
    }
    PyObject *key = PyDict_Check(container) ? get_key(container, index) : NULL;
    if (key == NULL) {
        return NULL;
    }
    PyObject *value = Py_XNewRef(PyDict_GetItemWithError(container, key));
    Py_DECREF(key);
    return value;
}

static PyObject *
call_method_with_index(PyObject *obj, const char *name, Py_ssize_t index)
{
    return PyObject_CallMethod(obj, name, "n", index);
}

static PyObject *
get_tensor_number(PyObject *tensor, const node *n)
{
    if (fxjit_tensor_is_plain(tensor)) {
        void *handle = fxjit_tensor_handle(tensor);
        int64_t dim, offset, *numbers;
        if (n->get == GET_TENSOR_OFFSET) {
            return fxjit_shim.get_storage_offset(handle, &offset) ? NULL : PyLong_FromLongLong(offset);
        }
        if (fxjit_shim.get_dim(handle, &dim)) {
            return NULL;
        }
        int64_t index = n->index < 0 ? n->index + dim : n->index;
        if (index < 0 || index >= dim) {
            return NULL;
        }
        int error = n->get == GET_TENSOR_SIZE ? fxjit_shim.get_sizes(handle, &numbers)
                                              : fxjit_shim.get_strides(handle, &numbers);
        return error ? NULL : PyLong_FromLongLong(numbers[index]);
    }
    if (n->get == GET_TENSOR_OFFSET) {
        return PyObject_CallMethod(tensor, "storage_offset", NULL);
    }
    return call_method_with_index(tensor, n->get == GET_TENSOR_SIZE ? "size" : "stride", n->index);
}

/* A variable of a module, as its dict has it; nothing of a module's class comes before that but dunder names. */
static PyObject *
get_attr(PyObject *obj, const node *n)
{
    if (PyModule_CheckExact(obj) && n->index) {
        PyObject *value = PyDict_GetItemWithError(PyModule_GetDict(obj), n->arg);
        if (value != NULL || PyErr_Occurred()) {
            return Py_XNewRef(value);
        }
    }
    return PyObject_GetAttr(obj, n->arg);
}

/* What the class's own namespace has, whatever its metaclass says of `__dict__`. */
static PyObject *
get_class_item(PyObject *cls, PyObject *name)
{
    PyObject *namespace = PyType_Check(cls) ? fx_type_dict((PyTypeObject *)cls) : NULL;
    return namespace == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(namespace, name));
}

PyObject *
fxjit_fetch(const run *r, const node *n, PyObject *parent)
{
    switch (n->get) {
    case GET_ARG:
        return n->index < r->nargs ? Py_XNewRef(r->args[n->index]) : NULL;
    case GET_CELL:
        return get_cell(r, n);
    case GET_DEREF:
        return get_deref(r, n);
    case GET_GLOBALS:
        return Py_XNewRef(r->globals);
    case GET_BUILTINS:
        return Py_XNewRef(r->builtins);
    case GET_CONST:
        return Py_NewRef(n->arg);
    case GET_CLASS:
        return Py_XNewRef(fx_weakref_target(n->arg));
    case GET_ATTR:
        return get_attr(parent, n);
    case GET_ITEM:
        return get_item(parent, n);
    case GET_KEY:
        return get_key(parent, n->index);
    case GET_VALUE:
        return get_value(parent, n->index);
    case GET_TYPE:
        return Py_NewRef((PyObject *)Py_TYPE(parent));
    case GET_INSTANCE_DICT:
        return fxjit_instance_dict(parent);
    case GET_CELL_CONTENTS:
        return cell_contents(parent);
    case GET_CALL:
        return PyObject_CallNoArgs(parent);
    case GET_APPLY:
        return PyObject_CallOneArg(n->arg, parent);
    case GET_TENSOR_SIZE:
    case GET_TENSOR_STRIDE:
    case GET_TENSOR_OFFSET:
        return get_tensor_number(parent, n);
    case GET_CLASS_ITEM:
        return get_class_item(parent, n->arg);
    }
    return NULL;
}

int
fxjit_accessor_init(node *n, PyObject *name, PyObject *arg)
{
    size_t get = 0;
    while (get < NUM_ACCESSORS && !(PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, accessors[get].name) == 0)) {
        get++;
    }
    if (get == NUM_ACCESSORS) {
        PyErr_Format(PyExc_ValueError, "unknown accessor %R", name);
        return -1;
    }
    n->get = (accessor)get;
    switch (n->get) {
    case GET_ARG:
    case GET_CELL:
    case GET_DEREF:
    case GET_KEY:
    case GET_VALUE:
    case GET_TENSOR_SIZE:
    case GET_TENSOR_STRIDE:
        n->index = PyLong_AsSsize_t(arg);
        if (n->index == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (n->index < 0 && n->get != GET_TENSOR_SIZE && n->get != GET_TENSOR_STRIDE) {
            PyErr_SetString(PyExc_ValueError, "a slot cannot be negative");
            return -1;
        }
        return 0;
    case GET_ITEM:
        n->index = PY_SSIZE_T_MAX;
        if (PyLong_CheckExact(arg)) {
            n->index = PyLong_AsSsize_t(arg);
            if (n->index == -1 && PyErr_Occurred()) {
                PyErr_Clear();
                n->index = PY_SSIZE_T_MAX;
            }
        }
        n->arg = Py_NewRef(arg);
        return 0;
    case GET_ATTR:
        if (!PyUnicode_Check(arg)) {
            PyErr_SetString(PyExc_TypeError, "an attribute's name must be a str");
            return -1;
        }
        n->index = PyUnicode_GET_LENGTH(arg) > 0 && PyUnicode_READ_CHAR(arg, 0) != '_';
        n->arg = Py_NewRef(arg);
        return 0;
    default:
        n->arg = Py_NewRef(arg);
        return 0;
    }
}

static PyObject *
accessor_row(size_t i)
{
    return Py_BuildValue("(si)", accessors[i].name, accessors[i].root);
}

int
fxjit_accessors_init(PyObject *module)
{
    return fxjit_add_table(module, "ACCESSORS", NUM_ACCESSORS, accessor_row);
}
