/* What of a guard tree need not be looked at again: the part below an object whose dicts have not changed since a full
 * check held. CPython 3.11 and 3.12 give each state of each dict a version that no other state of any dict ever has.
 *
 *   anchor    an object the frame names (a module, mostly), compared with the one of the full check
 *   steps     below it, in preorder: types, instance dicts, contents of dicts, tensors; each is one comparison
 *   deferred  nodes below it that no version speaks for; walked as usual
 *
 * A step reads memory of an object that the steps before it have shown to be where it was: a dict at its version holds
 * what it held. Scanning runs no Python code. Whatever differs, or is not known here, means a full check (_tree.c);
 * after a difference the notes are dropped, and taken anew once twice as many full checks as before have held. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <string.h>

#include "_walk.h"

int fxjit_settled_verify;

#if defined(FX_PY313) && FX_PY313

/* Dicts have no versions any more. */
void
fxjit_settle(run *r)
{
    r->t->full_checks = 0;
}

int
fxjit_settled_holds(run *r)
{
    (void)r;
    return 0;
}

void
fxjit_settled_free(tree *t)
{
    (void)t;
}

#else

#define MAX_PATIENCE 4096
#define FEWEST_NODES 8  /* below an anchor, for it to be worth it */
#define INLINE_DIMS 5   /* sizes of more dimensions are not in the TensorImpl itself */
#define IMPL_HEAD 16    /* vtable and reference counts */

typedef enum { STEP_TYPE, STEP_INSTANCE_DICT, STEP_CONTENTS, STEP_TENSOR } step_kind;

typedef struct {
    step_kind kind;
    int requires_grad; /* STEP_TENSOR */
    void *where;       /* the object; STEP_INSTANCE_DICT: the slot of its dict */
    void *expected;    /* the type, the dict, the TensorImpl */
    uint64_t version;  /* of the dict; STEP_TENSOR: where its bytes are in `bytes` */
} step;

typedef struct {
    int node;
    PyObject *ref; /* weak: the object is alive and at its address, or the notes mean nothing */
    PyObject *obj;
    int begin, end;
} anchor;

typedef struct {
    int node;
    PyObject *parent; /* borrowed: alive once the steps hold */
} deferred;

enum { NODE_PLAIN, NODE_ABOVE, NODE_ANCHOR };

struct fxjit_settled {
    step *steps;
    int num_steps, room_steps;
    anchor *anchors;
    int num_anchors, room_anchors;
    deferred *later;
    int num_later, room_later;
    PyObject **types; /* weak references */
    PyTypeObject **type_pointers;
    int num_types, room_types;
    char *bytes;
    size_t num_bytes, room_bytes;
    char *node_kinds;
    PyObject **slot_values; /* borrowed; NULL: filled by walking */
    char *skip_condition;
};

typedef struct fxjit_settled settled;

static uint64_t
dict_version(PyObject *dict)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return ((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

/* ---- taking notes ---- */

static int
grow(void **array, int needed, int *room, size_t item)
{
    if (needed <= *room) {
        return 0;
    }
    int more = *room ? 2 * *room : 32;
    void *larger = PyMem_Realloc(*array, (size_t)more * item);
    if (larger == NULL) {
        return -1;
    }
    *array = larger;
    *room = more;
    return 0;
}

static int
push_step(settled *s, step_kind kind, void *where, void *expected, uint64_t version)
{
    if (grow((void **)&s->steps, s->num_steps + 1, &s->room_steps, sizeof(step)) < 0) {
        return -1;
    }
    s->steps[s->num_steps++] = (step){kind, 0, where, expected, version};
    return 0;
}

static int
push_type(settled *s, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyModule_Check(value)) {
        return 0; /* such objects keep their class */
    }
    int known = 0;
    for (int i = 0; !known && i < s->num_types; i++) {
        known = s->type_pointers[i] == type;
    }
    if (!known) {
        int room = s->room_types;
        if (grow((void **)&s->types, s->num_types + 1, &s->room_types, sizeof(PyObject *)) < 0 ||
            grow((void **)&s->type_pointers, s->num_types + 1, &room, sizeof(PyTypeObject *)) < 0) {
            return -1;
        }
        PyObject *ref = PyWeakref_NewRef((PyObject *)type, NULL);
        if (ref == NULL) {
            return -1;
        }
        s->types[s->num_types] = ref;
        s->type_pointers[s->num_types++] = type;
    }
    return push_step(s, STEP_TYPE, value, type, 0);
}

/* 1 noted, 0 the tensor keeps facts elsewhere, -1 no memory. */
static int
push_tensor(settled *s, PyObject *tensor)
{
    int64_t dim;
    Py_ssize_t size = fxjit_shim.impl_bytes - IMPL_HEAD;
    if (!fxjit_tensor_is_plain(tensor) || fxjit_shim.impl_requires_grad == NULL ||
        fxjit_shim.keys_offset + (Py_ssize_t)sizeof(uint64_t) > fxjit_shim.impl_bytes ||
        fxjit_shim.get_dim(fxjit_tensor_handle(tensor), &dim) || dim > INLINE_DIMS) {
        return 0;
    }
    if (s->num_bytes + (size_t)size > s->room_bytes) {
        size_t more = 2 * s->room_bytes + 16 * (size_t)size;
        char *larger = PyMem_Realloc(s->bytes, more);
        if (larger == NULL) {
            return -1;
        }
        s->bytes = larger;
        s->room_bytes = more;
    }
    char *impl = fxjit_tensor_impl(tensor);
    if (push_step(s, STEP_TENSOR, tensor, impl, s->num_bytes) < 0) {
        return -1;
    }
    s->steps[s->num_steps - 1].requires_grad = fxjit_shim.impl_requires_grad(impl);
    memcpy(s->bytes + s->num_bytes, impl + IMPL_HEAD, (size_t)size);
    s->num_bytes += (size_t)size;
    return 1;
}

static int
push_deferred(settled *s, int node, PyObject *parent)
{
    if (grow((void **)&s->later, s->num_later + 1, &s->room_later, sizeof(deferred)) < 0) {
        return -1;
    }
    s->later[s->num_later++] = (deferred){node, parent};
    return 0;
}

static inline int
has_versions(PyObject *value)
{
    return PyDict_CheckExact(value) || PyODict_CheckExact(value);
}

/* The instance dict's slot in the object, with a dict in it; NULL where there is none such. */
static PyObject **
dict_slot(PyObject *value)
{
    if (PyType_Check(value)) {
        return NULL;
    }
    PyObject *dict = fxjit_instance_dict(value);
    if (dict == NULL) {
        PyErr_Clear();
        return NULL;
    }
    PyObject **slot = _PyObject_GetDictPtr(value);
    int found = slot != NULL && *slot == dict && PyDict_CheckExact(dict);
    Py_DECREF(dict);
    return found ? slot : NULL;
}

static int
push_instance_dict(settled *s, PyObject *value)
{
    PyObject **slot = dict_slot(value);
    if (slot == NULL) {
        return 0;
    }
    return push_step(s, STEP_INSTANCE_DICT, slot, *slot, dict_version(*slot)) < 0 ? -1 : 1;
}

/* The child's object where a version or a type speaks for it, borrowed; else NULL. */
static PyObject *
settled_child(settled *s, const node *child, PyObject *value, int *contents)
{
    switch (child->get) {
    case GET_TYPE:
        return (PyObject *)Py_TYPE(value);
    case GET_INSTANCE_DICT: {
        PyObject **slot = dict_slot(value);
        return slot == NULL || push_instance_dict(s, value) != 1 ? NULL : *slot;
    }
    case GET_ITEM:
        if (PyTuple_CheckExact(value) && child->index != PY_SSIZE_T_MAX) {
            Py_ssize_t size = PyTuple_GET_SIZE(value), index = child->index < 0 ? child->index + size : child->index;
            return index < 0 || index >= size ? NULL : PyTuple_GET_ITEM(value, index);
        }
        if (!has_versions(value) || !(PyUnicode_CheckExact(child->arg) || PyLong_CheckExact(child->arg))) {
            return NULL;
        }
        if (!*contents) {
            if (push_step(s, STEP_CONTENTS, value, NULL, dict_version(value)) < 0) {
                return NULL;
            }
            *contents = 1;
        }
        return PyDict_GetItemWithError(value, child->arg);
    default:
        return NULL;
    }
}

/* Notes a node and what is below it. 1 done, 0 the node must be walked, -1 give up. */
static int
note(settled *s, const tree *t, int index, PyObject *value)
{
    const node *n = &t->nodes[index];
    int contents = 0, instance = 0, tensor = 0;
    for (int i = 0; i < n->num_checks; i++) {
        switch (fxjit_check_depends(&t->checks[n->first_check + i], value)) {
        case DEPENDS_ON_TYPE:
            break;
        case DEPENDS_ON_CONTENTS:
            contents = 1;
            break;
        case DEPENDS_ON_INSTANCE_DICT:
            instance = 1;
            break;
        case DEPENDS_ON_TENSOR:
            tensor = 1;
            break;
        case DEPENDS_ON_MORE:
            return 0;
        }
    }
    if (push_type(s, value) < 0) {
        return -1;
    }
    if (contents && push_step(s, STEP_CONTENTS, value, NULL, dict_version(value)) < 0) {
        return -1;
    }
    /* What is noted of a node that must be walked after all is true, and does no harm. */
    int noted = instance ? push_instance_dict(s, value) : 1;
    if (noted == 1 && tensor) {
        noted = push_tensor(s, value);
    }
    if (noted != 1) {
        return noted;
    }
    for (int child = index + 1; child < n->end; child = t->nodes[child].end) {
        PyObject *below = settled_child(s, &t->nodes[child], value, &contents);
        if (PyErr_Occurred()) {
            return -1;
        }
        int done = below == NULL ? 0 : note(s, t, child, below);
        if (done < 0 || (done == 0 && push_deferred(s, child, value) < 0)) {
            return -1;
        }
    }
    if (n->slot >= 0) {
        s->slot_values[n->slot] = value;
    }
    return 1;
}

static int
is_worth_it(const tree *t, int index, PyObject *value)
{
    const node *n = &t->nodes[index];
    if (n->end - index < FEWEST_NODES || PyType_Check(value) || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(value)) ||
        fxjit_tensor_is_plain(value) || dict_slot(value) == NULL) {
        return 0;
    }
    for (int child = index + 1; child < n->end; child = t->nodes[child].end) {
        if (t->nodes[child].get == GET_INSTANCE_DICT) {
            return 1;
        }
    }
    return 0;
}

static int
note_anchor(settled *s, const tree *t, int index, PyObject *value)
{
    if (!is_worth_it(t, index, value)) {
        return 0;
    }
    int begin = s->num_steps;
    int done = note(s, t, index, value);
    if (done != 1) {
        return done;
    }
    PyObject *ref = PyWeakref_NewRef(value, NULL);
    if (ref == NULL || grow((void **)&s->anchors, s->num_anchors + 1, &s->room_anchors, sizeof(anchor)) < 0) {
        Py_XDECREF(ref);
        return -1;
    }
    s->anchors[s->num_anchors++] = (anchor){index, ref, value, begin, s->num_steps};
    s->node_kinds[index] = NODE_ANCHOR;
    return 1;
}

/* The objects that the frame names: arguments, cells, variables of the module. */
static int
note_top(settled *s, run *r, int top)
{
    const tree *t = r->t;
    const node *n = &t->nodes[top];
    PyObject *value = fxjit_fetch(r, n, NULL);
    int status = value == NULL ? -1 : 0;
    if (status == 0 && n->get == GET_GLOBALS) {
        for (int child = top + 1; status == 0 && child < n->end; child = t->nodes[child].end) {
            PyObject *named = t->nodes[child].get == GET_ITEM ? fxjit_fetch(r, &t->nodes[child], value) : NULL;
            int done = named == NULL ? 0 : note_anchor(s, t, child, named);
            Py_XDECREF(named);
            if (done == 1) {
                s->node_kinds[top] = NODE_ABOVE;
            }
            status = done < 0 ? -1 : 0;
        }
    }
    else if (status == 0 && (n->get == GET_ARG || n->get == GET_DEREF || n->get == GET_CONST)) {
        status = note_anchor(s, t, top, value) < 0 ? -1 : 0;
    }
    Py_XDECREF(value);
    return status;
}

static void
note_conditions(settled *s, const tree *t)
{
    for (int i = t->num_early; i < t->num_conditions; i++) {
        const condition *c = &t->conditions[i];
        int known = c->kind == COND_SAME || c->kind == COND_DISTINCT || c->kind == COND_SHAPE;
        for (int k = 0; known && k < c->num_slots; k++) {
            known = s->slot_values[c->slots[k]] != NULL;
        }
        s->skip_condition[i] = (char)known;
    }
}

static void
free_settled(settled *s)
{
    for (int i = 0; i < s->num_anchors; i++) {
        Py_DECREF(s->anchors[i].ref);
    }
    for (int i = 0; i < s->num_types; i++) {
        Py_DECREF(s->types[i]);
    }
    PyMem_Free(s->steps);
    PyMem_Free(s->anchors);
    PyMem_Free(s->later);
    PyMem_Free(s->types);
    PyMem_Free(s->type_pointers);
    PyMem_Free(s->bytes);
    PyMem_Free(s->node_kinds);
    PyMem_Free(s->slot_values);
    PyMem_Free(s->skip_condition);
    PyMem_Free(s);
}

void
fxjit_settled_free(tree *t)
{
    settled *s = t->settled;
    t->settled = NULL;
    if (s != NULL) {
        free_settled(s);
    }
}

static void
more_patience(tree *t)
{
    t->full_checks = 0;
    t->patience = Py_MIN(2 * t->patience, MAX_PATIENCE);
}

void
fxjit_settle(run *r)
{
    tree *t = r->t;
    if (t->scanning) {
        return;
    }
    more_patience(t);
    settled *s = t->num_nodes < FEWEST_NODES ? NULL : PyMem_Calloc(1, sizeof(settled));
    if (s == NULL) {
        t->patience = MAX_PATIENCE;
        return;
    }
    s->node_kinds = PyMem_Calloc((size_t)t->num_nodes + 1, 1);
    s->slot_values = PyMem_Calloc((size_t)t->num_slots + 1, sizeof(PyObject *));
    s->skip_condition = PyMem_Calloc((size_t)t->num_conditions + 1, 1);
    int status = s->node_kinds == NULL || s->slot_values == NULL || s->skip_condition == NULL ? -1 : 0;
    for (int top = 0; status == 0 && top < t->num_nodes; top = t->nodes[top].end) {
        status = note_top(s, r, top);
    }
    if (status < 0 || s->num_anchors == 0) {
        PyErr_Clear();
        free_settled(s);
        return;
    }
    note_conditions(s, t);
    fxjit_settled_free(t);
    t->settled = s;
}

/* ---- using them ---- */

static inline int
step_holds(const settled *s, const step *at, size_t size)
{
    switch (at->kind) {
    case STEP_TYPE:
        return Py_TYPE((PyObject *)at->where) == at->expected;
    case STEP_INSTANCE_DICT:
        return *(PyObject **)at->where == at->expected && dict_version(at->expected) == at->version;
    case STEP_CONTENTS:
        return dict_version(at->where) == at->version;
    case STEP_TENSOR:
        return fxjit_tensor_impl(at->where) == at->expected &&
               memcmp((char *)at->expected + IMPL_HEAD, s->bytes + at->version, size) == 0 &&
               fxjit_shim.impl_requires_grad(at->expected) == at->requires_grad;
    }
    return 0;
}

static int
anchor_holds(run *r, const settled *s, const anchor *a, PyObject *parent)
{
    PyObject *value = fxjit_fetch(r, &r->t->nodes[a->node], parent);
    if (value == NULL) {
        PyErr_Clear();
        return 0;
    }
    int same = value == a->obj && ((PyWeakReference *)a->ref)->wr_object == value;
    Py_DECREF(value); /* the frame holds it */
    size_t size = (size_t)(fxjit_shim.impl_bytes - IMPL_HEAD);
    for (int i = a->begin; same && i < a->end; i++) {
        same = step_holds(s, &s->steps[i], size);
    }
    return same;
}

/* Anchors below this top node. */
static int
anchors_hold(run *r, const settled *s, int top)
{
    const tree *t = r->t;
    for (int i = 0; i < s->num_anchors; i++) {
        const anchor *a = &s->anchors[i];
        if (a->node < top || a->node >= t->nodes[top].end) {
            continue;
        }
        if (!anchor_holds(r, s, a, a->node == top ? NULL : r->globals)) {
            return 0;
        }
    }
    return 1;
}

/* The rest below a node that has anchors among its children. */
static int
walk_others(run *r, const settled *s, int top)
{
    const tree *t = r->t;
    PyObject *value;
    int holds = fxjit_visit_node(r, top, NULL, &value);
    if (holds != 1) {
        return holds;
    }
    for (int child = top + 1; holds == 1 && child < t->nodes[top].end; child = t->nodes[child].end) {
        if (s->node_kinds[child] != NODE_ANCHOR) {
            holds = fxjit_walk(r, child, value);
        }
    }
    Py_DECREF(value);
    return holds;
}

/* Walking may run code that changes what the notes are about: what it needs is held first. */
static int
walk_deferred(run *r, const settled *s)
{
    int count = s->num_later, holds = 1;
    PyObject *few[32];
    PyObject **parents = count <= 32 ? few : PyMem_Malloc((size_t)count * sizeof(PyObject *));
    if (parents == NULL) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        parents[i] = Py_NewRef(s->later[i].parent);
    }
    for (int i = 0; holds == 1 && i < count; i++) {
        holds = fxjit_walk(r, s->later[i].node, parents[i]);
    }
    for (int i = 0; i < count; i++) {
        Py_DECREF(parents[i]);
    }
    if (parents != few) {
        PyMem_Free(parents);
    }
    return holds;
}

/* Objects in slots that were walked against all others; those noted are known to differ. */
static int
are_distinct_from_noted(const run *r, const settled *s, const condition *c)
{
    for (int i = 0; i < c->num_slots; i++) {
        if (s->slot_values[c->slots[i]] != NULL) {
            continue;
        }
        PyObject *walked = r->slots[c->slots[i]];
        for (int k = 0; k < c->num_slots; k++) {
            if (k != i && r->slots[c->slots[k]] == walked) {
                return 0;
            }
        }
    }
    return 1;
}

static int
other_conditions_hold(run *r, const settled *s)
{
    const tree *t = r->t;
    for (int i = t->num_early; i < t->num_conditions; i++) {
        const condition *c = &t->conditions[i];
        if (s->skip_condition[i]) {
            continue;
        }
        int few = 0;
        for (int k = 0; c->kind == COND_DISTINCT && k < c->num_slots; k++) {
            few += s->slot_values[c->slots[k]] == NULL;
        }
        int holds = c->kind == COND_DISTINCT && few <= 8 ? are_distinct_from_noted(r, s, c) : fxjit_condition_holds(r, i);
        if (holds != 1) {
            return holds;
        }
    }
    return 1;
}

static int
notes_hold(run *r, const settled *s)
{
    const tree *t = r->t;
    for (int i = 0; i < s->num_types; i++) {
        if (((PyWeakReference *)s->types[i])->wr_object != (PyObject *)s->type_pointers[i]) {
            return 0;
        }
    }
    for (int top = 0; top < t->num_nodes; top = t->nodes[top].end) {
        if (s->node_kinds[top] != NODE_PLAIN && !anchors_hold(r, s, top)) {
            return 0;
        }
    }
    for (int i = 0; i < t->num_slots; i++) {
        r->slots[i] = Py_XNewRef(s->slot_values[i]);
    }
    return 1;
}

static int
rest_holds(run *r, const settled *s)
{
    const tree *t = r->t;
    int holds = walk_deferred(r, s);
    for (int top = 0; holds == 1 && top < t->num_nodes; top = t->nodes[top].end) {
        if (s->node_kinds[top] == NODE_PLAIN) {
            holds = fxjit_walk(r, top, NULL);
        }
        else if (s->node_kinds[top] == NODE_ABOVE) {
            holds = walk_others(r, s, top);
        }
    }
    return holds == 1 ? other_conditions_hold(r, s) : holds;
}

int
fxjit_settled_holds(run *r)
{
    tree *t = r->t;
    if (t->scanning) {
        return 0; /* below a look-up of a check of this very tree, or beside one */
    }
    int holds = fxjit_conditions_hold(r, 0, t->num_early);
    if (holds != 1) {
        return holds;
    }
    if (!notes_hold(r, t->settled)) {
        fxjit_settled_free(t);
        return 0;
    }
    t->scanning = 1;
    holds = rest_holds(r, t->settled);
    t->scanning = 0;
    return holds;
}

#endif

/* ---- module ---- */

static PyObject *
verify_settled(PyObject *Py_UNUSED(module), PyObject *value)
{
    int on = PyObject_IsTrue(value);
    if (on < 0) {
        return NULL;
    }
    PyObject *before = PyBool_FromLong(fxjit_settled_verify);
    fxjit_settled_verify = on;
    return before;
}

static PyMethodDef methods[] = {
    {"verify_settled", verify_settled, METH_O,
     PyDoc_STR("verify_settled(on) -> bool: compare each check that looked at versions with a full one; the previous")},
    {NULL, NULL, 0, NULL},
};

int
fxjit_settled_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
