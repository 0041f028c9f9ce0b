/* Checks on one object: type, identity, constants, lengths, keys, attributes, tensors. Their meaning in Python is `holds`
 * of the classes in kinds.py; a test compares the two. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <string.h>

#include "../_tensor.h"
#include "_checks.h"

/* -- objects to compare with ---------------------------------------------------------------------------------------*/

int
fxjit_held_init(fxjit_held *held, PyObject *obj)
{
    held->obj = obj;
    held->ref = PyWeakref_NewRef(obj, NULL);
    held->how = HELD_WEAK;
    if (held->ref == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            held->obj = NULL;
            return -1;
        }
        PyErr_Clear();
        held->how = HELD_STRONG;
        Py_INCREF(obj);
    }
    return 0;
}

int
fxjit_held_plain(fxjit_held *held, PyObject *obj)
{
    held->obj = Py_NewRef(obj);
    held->ref = NULL;
    held->how = HELD_PLAIN;
    return 0;
}

int
fxjit_held_from_pair(fxjit_held *held, PyObject *pair)
{
    PyObject *obj;
    int plain;
    memset(held, 0, sizeof(*held));
    if (!PyTuple_Check(pair)) {
        PyErr_SetString(PyExc_TypeError, "expected a pair (object, plain)");
        return -1;
    }
    if (!PyArg_ParseTuple(pair, "Op", &obj, &plain)) {
        return -1;
    }
    return plain ? fxjit_held_plain(held, obj) : fxjit_held_init(held, obj);
}

void
fxjit_held_clear(fxjit_held *held)
{
    PyObject *obj = held->how == HELD_WEAK ? NULL : held->obj;
    held->obj = NULL;
    held->how = HELD_STRONG;
    Py_CLEAR(held->ref);
    Py_XDECREF(obj);
}

int
fxjit_held_traverse(fxjit_held *held, visitproc visit, void *arg)
{
    if (held->how != HELD_WEAK) {
        Py_VISIT(held->obj);
    }
    Py_VISIT(held->ref);
    return 0;
}

/* -- constants -----------------------------------------------------------------------------------------------------*/

/* Types compared by == once the types are the same: constants.VALUE_TYPES. */
static PyObject *value_types;

static PyObject *
set_value_types(PyObject *Py_UNUSED(module), PyObject *types)
{
    if (!PyTuple_Check(types)) {
        PyErr_SetString(PyExc_TypeError, "set_value_types() takes a tuple of types");
        return NULL;
    }
    Py_XSETREF(value_types, Py_NewRef(types));
    Py_RETURN_NONE;
}

static int
is_value_type(PyTypeObject *type)
{
    if (value_types == NULL) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value_types); i++) {
        if ((PyTypeObject *)PyTuple_GET_ITEM(value_types, i) == type) {
            return 1;
        }
    }
    return 0;
}

static int
same_tuple(PyObject *a, PyObject *b)
{
    Py_ssize_t n = PyTuple_GET_SIZE(a);
    if (PyTuple_GET_SIZE(b) != n) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int same = fxjit_same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
        if (same != 1) {
            return same;
        }
    }
    return 1;
}

/* Whether some element of the set `b` is the same constant as x. */
static int
set_has_constant(PyObject *b, PyObject *x)
{
    PyObject *iterator = PyObject_GetIter(b);
    if (iterator == NULL) {
        return -1;
    }
    int same = 0;
    PyObject *item;
    while (same == 0 && (item = PyIter_Next(iterator)) != NULL) {
        same = fxjit_same_constant(x, item);
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    return same == 0 && PyErr_Occurred() ? -1 : same;
}

/* Whether each element of the set `a` is the same constant as some element of `b`. */
static int
set_holds_constants(PyObject *b, PyObject *a)
{
    PyObject *iterator = PyObject_GetIter(a);
    if (iterator == NULL) {
        return -1;
    }
    int same = 1;
    PyObject *item;
    while (same == 1 && (item = PyIter_Next(iterator)) != NULL) {
        same = set_has_constant(b, item);
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    return same == 1 && PyErr_Occurred() ? -1 : same;
}

/* Equal sets may hold 1 here and True there, and sets with NaN are equal to none. */
static int
same_frozenset(PyObject *a, PyObject *b)
{
    int same = PySet_GET_SIZE(a) == PySet_GET_SIZE(b);
    if (same == 1) {
        same = set_holds_constants(b, a);
    }
    return same == 1 ? set_holds_constants(a, b) : same;
}

/* Equal ranges may have other ends. */
static int
same_range(PyObject *a, PyObject *b)
{
    static const char *const parts[] = {"start", "stop", "step"};
    int same = 1;
    for (int i = 0; same == 1 && i < 3; i++) {
        PyObject *x = PyObject_GetAttrString(a, parts[i]), *y = PyObject_GetAttrString(b, parts[i]);
        same = x == NULL || y == NULL ? -1 : fxjit_same_constant(x, y);
        Py_XDECREF(x);
        Py_XDECREF(y);
    }
    return same;
}

static int
same_slice(PyObject *a, PyObject *b)
{
    PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
    int same = fxjit_same_constant(x->start, y->start);
    if (same == 1) {
        same = fxjit_same_constant(x->stop, y->stop);
    }
    if (same == 1) {
        same = fxjit_same_constant(x->step, y->step);
    }
    return same;
}

int
fxjit_same_constant(PyObject *a, PyObject *b)
{
    if (a == b) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b)) {
        return 0;
    }
    if (type == &PyUnicode_Type) {
        return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0;
    }
    if (type == &PyLong_Type || type == &PyBytes_Type) {
        return PyObject_RichCompareBool(a, b, Py_EQ);
    }
    if (type == &PyFloat_Type) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof(x)) == 0;
    }
    if (type == &PyComplex_Type) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return memcmp(&x.real, &y.real, sizeof(double)) == 0 && memcmp(&x.imag, &y.imag, sizeof(double)) == 0;
    }
    int (*deep)(PyObject *, PyObject *) = NULL;
    if (type == &PyTuple_Type) {
        deep = same_tuple;
    }
    else if (type == &PyFrozenSet_Type) {
        deep = same_frozenset;
    }
    else if (type == &PySlice_Type) {
        deep = same_slice;
    }
    else if (type == &PyRange_Type) {
        deep = same_range;
    }
    if (deep != NULL) {
        if (Py_EnterRecursiveCall(" in a guard")) {
            return -1;
        }
        int same = deep(a, b);
        Py_LeaveRecursiveCall();
        return same;
    }
    return is_value_type(type) ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
}

/* -- attributes ----------------------------------------------------------------------------------------------------*/

/* type.__dict__['__dict__'], which gives a class's own dict whatever its metaclass does. */
static PyObject *type_dict_descriptor;

PyObject *
fxjit_instance_dict(PyObject *obj)
{
    if (PyType_Check(obj)) {
        return Py_TYPE(type_dict_descriptor)->tp_descr_get(type_dict_descriptor, obj, (PyObject *)Py_TYPE(obj));
    }
    return PyObject_GenericGetDict(obj, NULL);
}

static int
has_attribute(PyObject *obj, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(obj, name);
    if (value != NULL) {
        Py_DECREF(value);
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static int
instance_has_attribute(PyObject *obj, PyObject *name)
{
    PyObject *dict = fxjit_instance_dict(obj);
    if (dict == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    int found = PySequence_Contains(dict, name);
    Py_DECREF(dict);
    return found;
}

/* -- keys ----------------------------------------------------------------------------------------------------------*/

static int
keys_are_of_dict(const fxjit_check *check, PyObject *dict)
{
    if (PyDict_GET_SIZE(dict) != check->many.n) {
        return 0;
    }
    Py_ssize_t position = 0;
    PyObject *key;
    /* Matching runs no code that could change the dict: constants compare in C, others by identity. */
    for (Py_ssize_t i = 0; PyDict_Next(dict, &position, &key, NULL); i++) {
        if (i >= check->many.n) {
            return 0;
        }
        int same = fxjit_held_matches(&check->many.items[i], key);
        if (same != 1) {
            return same;
        }
    }
    return 1;
}

PyObject *
fxjit_stored_keys(PyObject *container)
{
    if (PyODict_Check(container)) { /* in an order of its own */
        return PyODict_Type.tp_iter(container);
    }
    if (PyDict_Check(container)) {
        return PyDict_Type.tp_iter(container);
    }
    return PyAnySet_Check(container) ? PySet_Type.tp_iter(container) : PyObject_GetIter(container);
}

static int
keys_are(const fxjit_check *check, PyObject *value)
{
    if (PyDict_Check(value) && !PyODict_Check(value)) {
        return keys_are_of_dict(check, value);
    }
    PyObject *iterator = fxjit_stored_keys(value);
    if (iterator == NULL) {
        return -1;
    }
    int same = 1;
    Py_ssize_t i = 0;
    PyObject *key;
    while (same == 1 && (key = PyIter_Next(iterator)) != NULL) {
        same = i < check->many.n ? fxjit_held_matches(&check->many.items[i], key) : 0;
        i++;
        Py_DECREF(key);
    }
    Py_DECREF(iterator);
    if (same == 1) {
        same = PyErr_Occurred() ? -1 : i == check->many.n;
    }
    return same;
}

/* Each element of the set is one of the held ones. In one process they mostly come in the same order. */
static int
set_is(const fxjit_check *check, PyObject *value)
{
    if (!PyAnySet_Check(value) || PySet_GET_SIZE(value) != check->many.n) {
        return 0;
    }
    PyObject *iterator = fxjit_stored_keys(value);
    if (iterator == NULL) {
        return -1;
    }
    int same = 1;
    Py_ssize_t n = check->many.n, next = 0;
    PyObject *item;
    while (same == 1 && (item = PyIter_Next(iterator)) != NULL) {
        same = 0;
        for (Py_ssize_t tried = 0; same == 0 && tried < n; tried++) {
            same = fxjit_held_matches(&check->many.items[next], item);
            next = next + 1 < n ? next + 1 : 0;
        }
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    return same == 1 && PyErr_Occurred() ? -1 : same;
}

/* -- tensors -------------------------------------------------------------------------------------------------------*/

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
static int
tensor_is(const fxjit_tensor_facts *facts, PyObject *value)
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

/* ("tensor", type, keys, dtype, device type, device index, layout, strided, requires_grad, sizes, strides) */
static int
init_tensor(fxjit_check *check, PyObject *op)
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
    check->tensor = facts;
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

/* -- checks --------------------------------------------------------------------------------------------------------*/

typedef enum {
    CHECK_NEVER,
    CHECK_TYPE,
    CHECK_IS,
    CHECK_CODE,
    CHECK_CONST,
    CHECK_TENSOR,
    CHECK_LENGTH,
    CHECK_KEYS,
    CHECK_SET,
    CHECK_HAS_KEY,
    CHECK_HAS_ATTR,
    CHECK_INSTANCE_HAS_ATTR,
    CHECK_FOUND_IN,
    CHECK_BASES,
} check_kind;

static const char *const check_names[] = {
    "never", "type", "is", "code", "const", "tensor", "length", "keys", "set", "has_key", "has_attr",
    "instance_has_attr", "found_in", "bases",
};

static int
init_many(fxjit_check *check, PyObject *tuple)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of pairs");
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    check->many.items = PyMem_Calloc(n ? n : 1, sizeof(fxjit_held));
    if (check->many.items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (fxjit_held_from_pair(&check->many.items[i], PyTuple_GET_ITEM(tuple, i)) < 0) {
            return -1;
        }
        check->many.n = i + 1;
    }
    return 0;
}

static int
init_payload(fxjit_check *check, PyObject *op)
{
    Py_ssize_t n = PyTuple_GET_SIZE(op);
    PyObject *first = n > 1 ? PyTuple_GET_ITEM(op, 1) : NULL;
    if (check->kind != CHECK_NEVER && first == NULL) {
        PyErr_Format(PyExc_ValueError, "the check %R lacks what to compare with", op);
        return -1;
    }
    if (n > 2) {
        int present = PyObject_IsTrue(PyTuple_GET_ITEM(op, 2));
        if (present < 0) {
            return -1;
        }
        check->present = present;
    }
    switch ((check_kind)check->kind) {
    case CHECK_NEVER:
        return 0;
    case CHECK_TYPE:
    case CHECK_IS:
    case CHECK_CODE:
        return fxjit_held_init(&check->held, first);
    case CHECK_CONST:
    case CHECK_HAS_ATTR:
    case CHECK_INSTANCE_HAS_ATTR:
        return fxjit_held_plain(&check->held, first);
    case CHECK_HAS_KEY:
        return fxjit_held_from_pair(&check->held, first);
    case CHECK_LENGTH:
        check->number = PyLong_AsLongLong(first);
        return check->number == -1 && PyErr_Occurred() ? -1 : 0;
    case CHECK_KEYS:
    case CHECK_SET:
    case CHECK_FOUND_IN:
    case CHECK_BASES:
        return init_many(check, first);
    case CHECK_TENSOR:
        return init_tensor(check, op);
    }
    return 0;
}

int
fxjit_check_init(fxjit_check *check, PyObject *op, int guard)
{
    memset(check, 0, sizeof(*check));
    check->guard = guard;
    if (!PyTuple_Check(op) || PyTuple_GET_SIZE(op) < 1 || !PyUnicode_Check(PyTuple_GET_ITEM(op, 0))) {
        PyErr_Format(PyExc_TypeError, "%R is not a check", op);
        return -1;
    }
    for (size_t kind = 0; kind < sizeof(check_names) / sizeof(check_names[0]); kind++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(op, 0), check_names[kind]) == 0) {
            check->kind = (int)kind;
            return init_payload(check, op);
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown check %R", PyTuple_GET_ITEM(op, 0));
    return -1;
}

void
fxjit_check_clear(fxjit_check *check)
{
    switch ((check_kind)check->kind) {
    case CHECK_TYPE:
    case CHECK_IS:
    case CHECK_CODE:
    case CHECK_CONST:
    case CHECK_HAS_KEY:
    case CHECK_HAS_ATTR:
    case CHECK_INSTANCE_HAS_ATTR:
        fxjit_held_clear(&check->held);
        break;
    case CHECK_KEYS:
    case CHECK_SET:
    case CHECK_FOUND_IN:
    case CHECK_BASES:
        for (Py_ssize_t i = 0; i < check->many.n; i++) {
            fxjit_held_clear(&check->many.items[i]);
        }
        PyMem_Free(check->many.items);
        break;
    case CHECK_TENSOR:
        if (check->tensor != NULL) {
            fxjit_held_clear(&check->tensor->type);
            PyMem_Free(check->tensor);
        }
        break;
    case CHECK_LENGTH:
    case CHECK_NEVER:
        break;
    }
    memset(check, 0, sizeof(*check));
}

int
fxjit_check_traverse(fxjit_check *check, visitproc visit, void *arg)
{
    switch ((check_kind)check->kind) {
    case CHECK_TYPE:
    case CHECK_IS:
    case CHECK_CODE:
    case CHECK_CONST:
    case CHECK_HAS_KEY:
    case CHECK_HAS_ATTR:
    case CHECK_INSTANCE_HAS_ATTR:
        return fxjit_held_traverse(&check->held, visit, arg);
    case CHECK_KEYS:
    case CHECK_SET:
    case CHECK_FOUND_IN:
    case CHECK_BASES:
        for (Py_ssize_t i = 0; i < check->many.n; i++) {
            int stop = fxjit_held_traverse(&check->many.items[i], visit, arg);
            if (stop) {
                return stop;
            }
        }
        return 0;
    case CHECK_TENSOR:
        return check->tensor == NULL ? 0 : fxjit_held_traverse(&check->tensor->type, visit, arg);
    case CHECK_LENGTH:
    case CHECK_NEVER:
        break;
    }
    return 0;
}

static int
code_is(const fxjit_check *check, PyObject *value)
{
    return PyFunction_Check(value) && fxjit_held_is(&check->held, PyFunction_GET_CODE(value));
}

static int
length_is(const fxjit_check *check, PyObject *value)
{
    Py_ssize_t n;
    /* Of a subclass, what it holds, not what its own __len__ says. */
    if (PyList_Check(value) || PyTuple_Check(value)) {
        n = Py_SIZE(value);
    }
    else if (PyDict_Check(value)) {
        n = PyDict_GET_SIZE(value);
    }
    else if (PyAnySet_Check(value)) {
        n = PySet_GET_SIZE(value);
    }
    else {
        n = PyObject_Size(value);
    }
    return n < 0 ? -1 : n == check->number;
}

/* `found` (1, 0 or an exception) against what the check wants. */
static inline int
as_wanted(int found, bool present)
{
    return found < 0 ? -1 : found == present;
}

static int
has_key(const fxjit_check *check, PyObject *value)
{
    PyObject *key = check->held.obj;
    if (check->held.how == HELD_WEAK && !fxjit_held_is(&check->held, key)) {
        return 0; /* the key is gone */
    }
    Py_INCREF(key);
    int found = PyDict_Check(value) ? PyDict_Contains(value, key)
              : PyAnySet_Check(value) ? PySet_Contains(value, key) : PySequence_Contains(value, key);
    Py_DECREF(key);
    return as_wanted(found, check->present);
}

/* The first class, in the order in which names are looked up, whose own namespace has the name: borrowed; Py_None: none has;
 * NULL with an exception. */
static PyObject *
first_with(PyTypeObject *type, PyObject *name)
{
    PyObject *order = type->tp_mro;
    for (Py_ssize_t i = 0; order != NULL && i < PyTuple_GET_SIZE(order); i++) {
        PyObject *namespace = fx_type_dict((PyTypeObject *)PyTuple_GET_ITEM(order, i));
        if (namespace != NULL && PyDict_GetItemWithError(namespace, name) != NULL) {
            return PyTuple_GET_ITEM(order, i);
        }
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    return Py_None;
}

/* (name, owner or None) are what is held. A class at the version at which this held is not looked into. */
static int
found_in(fxjit_check *check, PyObject *value)
{
    if (!PyType_Check(value)) {
        return 0;
    }
    PyTypeObject *type = (PyTypeObject *)value;
    if (check->version != 0 && fx_type_version_now(type) == check->version) {
        return 1;
    }
    PyObject *name = check->many.items[0].obj, *order = Py_XNewRef(type->tp_mro);
    PyObject *owner = first_with(type, name);
    int holds = owner == NULL ? -1 : fxjit_held_is(&check->many.items[1], owner);
    Py_XDECREF(order);
    check->version = holds == 1 ? fx_type_version(type) : 0;
    return holds;
}

static int
bases_are(const fxjit_check *check, PyObject *value)
{
    PyObject *order = PyType_Check(value) ? ((PyTypeObject *)value)->tp_mro : NULL;
    if (order == NULL || PyTuple_GET_SIZE(order) != check->many.n) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < check->many.n; i++) {
        if (!fxjit_held_is(&check->many.items[i], PyTuple_GET_ITEM(order, i))) {
            return 0;
        }
    }
    return 1;
}

int
fxjit_check_run(fxjit_check *check, PyObject *value)
{
    switch ((check_kind)check->kind) {
    case CHECK_NEVER:
        return 0;
    case CHECK_TYPE:
        return fxjit_held_is(&check->held, (PyObject *)Py_TYPE(value));
    case CHECK_IS:
        return fxjit_held_is(&check->held, value);
    case CHECK_CODE:
        return code_is(check, value);
    case CHECK_CONST:
        return fxjit_same_constant(check->held.obj, value);
    case CHECK_TENSOR:
        return tensor_is(check->tensor, value);
    case CHECK_LENGTH:
        return length_is(check, value);
    case CHECK_KEYS:
        return keys_are(check, value);
    case CHECK_SET:
        return set_is(check, value);
    case CHECK_HAS_KEY:
        return has_key(check, value);
    case CHECK_HAS_ATTR:
        return as_wanted(has_attribute(value, check->held.obj), check->present);
    case CHECK_INSTANCE_HAS_ATTR:
        return as_wanted(instance_has_attribute(value, check->held.obj), check->present);
    case CHECK_FOUND_IN:
        return found_in(check, value);
    case CHECK_BASES:
        return bases_are(check, value);
    }
    return 0;
}

/* Whether a constant of this type is the same for ever: strings, numbers and tuples of them are. */
static int
never_changes(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyTuple_Type) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            if (!never_changes(PyTuple_GET_ITEM(value, i))) {
                return 0;
            }
        }
        return 1;
    }
    return value == Py_None || value == Py_Ellipsis || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyComplex_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == &PyRange_Type ||
           is_value_type(type);
}

fxjit_dependence
fxjit_check_depends(const fxjit_check *check, PyObject *value)
{
    switch ((check_kind)check->kind) {
    case CHECK_TYPE:
    case CHECK_IS:
        return DEPENDS_ON_TYPE;
    case CHECK_CONST:
        return never_changes(value) ? DEPENDS_ON_TYPE : DEPENDS_ON_MORE;
    case CHECK_KEYS:
        /* An OrderedDict moves its keys without a new version. */
        return PyDict_CheckExact(value) ? DEPENDS_ON_CONTENTS : DEPENDS_ON_MORE;
    case CHECK_LENGTH:
    case CHECK_HAS_KEY:
        if (PyTuple_CheckExact(value) || PyUnicode_CheckExact(value)) {
            return DEPENDS_ON_TYPE;
        }
        if (check->kind == CHECK_LENGTH && PyList_CheckExact(value)) {
            return DEPENDS_ON_CONTENTS;
        }
        return PyDict_CheckExact(value) || PyODict_CheckExact(value) ? DEPENDS_ON_CONTENTS : DEPENDS_ON_MORE;
    case CHECK_INSTANCE_HAS_ATTR:
        return PyType_Check(value) ? DEPENDS_ON_MORE : DEPENDS_ON_INSTANCE_DICT;
    case CHECK_TENSOR:
        return DEPENDS_ON_TENSOR;
    case CHECK_CODE:
        return DEPENDS_ON_CODE;
    case CHECK_FOUND_IN:
    case CHECK_BASES:
        return DEPENDS_ON_CLASS;
    default:
        return DEPENDS_ON_MORE;
    }
}

/* -- module --------------------------------------------------------------------------------------------------------*/

static PyObject *
instance_dict(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return fxjit_instance_dict(obj);
}

static PyObject *
same_constant(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *a, *b;
    if (!PyArg_ParseTuple(args, "OO:same_constant", &a, &b)) {
        return NULL;
    }
    int same = fxjit_same_constant(a, b);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyMethodDef methods[] = {
    {"set_value_types", set_value_types, METH_O,
     PyDoc_STR("set_value_types(types): the types whose instances are the same constant when they are equal")},
    {"instance_dict", instance_dict, METH_O,
     PyDoc_STR("instance_dict(obj): obj.__dict__, whatever `__getattribute__` the class has")},
    {"same_constant", same_constant, METH_VARARGS,
     PyDoc_STR("same_constant(a, b) -> bool: as fxjit.guards.constants.same_constant")},
    {NULL, NULL, 0, NULL},
};

int
fxjit_checks_init(PyObject *module)
{
    PyObject *dict = PyObject_GetAttrString((PyObject *)&PyType_Type, "__dict__");
    if (dict == NULL) {
        return -1;
    }
    type_dict_descriptor = PyMapping_GetItemString(dict, "__dict__");
    Py_DECREF(dict);
    if (type_dict_descriptor == NULL) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
