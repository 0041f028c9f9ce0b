/* Checks on one object: type, identity, lengths, keys, attributes; and constants (_constants.c) and tensors (_tensor_facts.c).
 * Their meaning in Python is `holds` of the classes in kinds.py; a test compares the two. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <string.h>

#include "../_module.h"
#include "_checks.h"

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
    if (PyDict_Check(value) && PyDict_GET_SIZE(value) != check->many.n) {
        return 0; /* its order may lack entries that `dict.update(ordered, ...)` put in */
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

/* Each element of the set is one of the held ones, and each another: a set may have several NaNs. In one process they mostly
   come in the same order. */
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
    char few[64] = {0};
    char *found = n <= (Py_ssize_t)sizeof few ? few : PyMem_Calloc((size_t)n, 1);
    if (found == NULL) {
        Py_DECREF(iterator);
        PyErr_NoMemory();
        return -1;
    }
    PyObject *item;
    while (same == 1 && (item = PyIter_Next(iterator)) != NULL) {
        same = 0;
        for (Py_ssize_t tried = 0; same == 0 && tried < n; tried++) {
            if (!found[next]) {
                same = fxjit_held_matches(&check->many.items[next], item);
                found[next] = same == 1;
            }
            next = next + 1 < n ? next + 1 : 0;
        }
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    if (found != few) {
        PyMem_Free(found);
    }
    return same == 1 && PyErr_Occurred() ? -1 : same;
}

/* -- checks --------------------------------------------------------------------------------------------------------*/

/* How a check keeps what it compares with. */
typedef enum {
    HAS_NOTHING,
    HAS_OBJECT,       /* by identity: `held` */
    HAS_CONSTANT,     /* by value: `held` */
    HAS_KEY,          /* a pair (object, plain): `held` */
    HAS_OBJECTS,      /* a tuple of such: `many` */
    HAS_NUMBER,       /* `number` */
    HAS_TENSOR_FACTS, /* all operands: `tensor` */
} payload;

typedef enum {
#define CHECK(id, name, payload, operands) CHECK_##id,
#include "tree.def"
} check_kind;

static const struct {
    const char *name;
    payload payload;
    Py_ssize_t operands;
} checks[] = {
#define CHECK(id, name, payload, operands) {name, HAS_##payload, operands},
#include "tree.def"
};

#define NUM_CHECKS (sizeof(checks) / sizeof(checks[0]))

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
    Py_ssize_t operands = PyTuple_GET_SIZE(op) - 1;
    if (operands != checks[check->kind].operands) {
        PyErr_Format(PyExc_ValueError, "the check %R takes %zd operands", op, checks[check->kind].operands);
        return -1;
    }
    PyObject *first = operands > 0 ? PyTuple_GET_ITEM(op, 1) : NULL;
    if (operands == 2) {
        int present = PyObject_IsTrue(PyTuple_GET_ITEM(op, 2));
        if (present < 0) {
            return -1;
        }
        check->present = present;
    }
    switch (checks[check->kind].payload) {
    case HAS_NOTHING:
        return 0;
    case HAS_OBJECT:
        return fxjit_held_init(&check->held, first);
    case HAS_CONSTANT:
        return fxjit_held_plain(&check->held, first);
    case HAS_KEY:
        return fxjit_held_from_pair(&check->held, first);
    case HAS_OBJECTS:
        return init_many(check, first);
    case HAS_NUMBER:
        check->number = PyLong_AsLongLong(first);
        return check->number == -1 && PyErr_Occurred() ? -1 : 0;
    case HAS_TENSOR_FACTS:
        return fxjit_tensor_facts_init(&check->tensor, op);
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
    for (size_t kind = 0; kind < NUM_CHECKS; kind++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(op, 0), checks[kind].name) == 0) {
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
    switch (checks[check->kind].payload) {
    case HAS_OBJECT:
    case HAS_CONSTANT:
    case HAS_KEY:
        fxjit_held_clear(&check->held);
        break;
    case HAS_OBJECTS:
        for (Py_ssize_t i = 0; i < check->many.n; i++) {
            fxjit_held_clear(&check->many.items[i]);
        }
        PyMem_Free(check->many.items);
        break;
    case HAS_TENSOR_FACTS:
        fxjit_tensor_facts_free(check->tensor);
        break;
    case HAS_NUMBER:
    case HAS_NOTHING:
        break;
    }
    memset(check, 0, sizeof(*check));
}

int
fxjit_check_traverse(fxjit_check *check, visitproc visit, void *arg)
{
    switch (checks[check->kind].payload) {
    case HAS_OBJECT:
    case HAS_CONSTANT:
    case HAS_KEY:
        return fxjit_held_traverse(&check->held, visit, arg);
    case HAS_OBJECTS:
        for (Py_ssize_t i = 0; i < check->many.n; i++) {
            int stop = fxjit_held_traverse(&check->many.items[i], visit, arg);
            if (stop) {
                return stop;
            }
        }
        return 0;
    case HAS_TENSOR_FACTS:
        return fxjit_tensor_facts_traverse(check->tensor, visit, arg);
    case HAS_NUMBER:
    case HAS_NOTHING:
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
namespace_is(const fxjit_check *check, PyObject *value)
{
    return PyFunction_Check(value) && (int64_t)(uintptr_t)PyFunction_GET_GLOBALS(value) == check->number;
}

/* collections.deque, and the slot that gives its length. */
static PyTypeObject *deque_type;
static lenfunc deque_length;

static int
find_deque(void)
{
    PyObject *module = PyImport_ImportModule("_collections");
    if (module == NULL) {
        return -1;
    }
    deque_type = (PyTypeObject *)PyObject_GetAttrString(module, "deque");
    Py_DECREF(module);
    if (deque_type == NULL) {
        return -1;
    }
    deque_length = (lenfunc)PyType_GetSlot(deque_type, Py_sq_length);
    if (deque_length == NULL) {
        PyErr_SetString(PyExc_SystemError, "collections.deque has no length");
        return -1;
    }
    return 0;
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
    else if (PyObject_TypeCheck(value, deque_type)) {
        n = deque_length(value);
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
    case CHECK_NAMESPACE:
        return namespace_is(check, value);
    case CHECK_CONST:
        return fxjit_same_constant(check->held.obj, value);
    case CHECK_TENSOR:
        return fxjit_tensor_facts_hold(check->tensor, value);
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

fxjit_dependence
fxjit_check_depends(const fxjit_check *check, PyObject *value)
{
    switch ((check_kind)check->kind) {
    case CHECK_TYPE:
    case CHECK_IS:
    case CHECK_NAMESPACE: /* a function keeps its globals */
        return DEPENDS_ON_TYPE;
    case CHECK_CONST:
        return fxjit_never_changes(value) ? DEPENDS_ON_TYPE : DEPENDS_ON_MORE;
    case CHECK_KEYS:
        /* An OrderedDict moves its keys without a new version. */
        return PyDict_CheckExact(value) ? DEPENDS_ON_CONTENTS : DEPENDS_ON_MORE;
    case CHECK_LENGTH:
    case CHECK_HAS_KEY:
        if (PyTuple_CheckExact(value) || PyUnicode_CheckExact(value)) {
            return check->kind == CHECK_LENGTH && PyTuple_CheckExact(value) ? DEPENDS_ON_LENGTH : DEPENDS_ON_ITEMS;
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
check_row(size_t i)
{
    return Py_BuildValue("(sn)", checks[i].name, checks[i].operands);
}

static PyMethodDef methods[] = {
    {"instance_dict", instance_dict, METH_O,
     PyDoc_STR("instance_dict(obj): obj.__dict__, whatever `__getattribute__` the class has")},
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
    if (fxjit_add_table(module, "CHECKS", NUM_CHECKS, check_row) < 0 || fxjit_constants_init(module) < 0 || find_deque() < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
