/* Takes the snapshot of _snapshot.h: what a full check of a guard tree depended on. */
#define PY_SSIZE_T_CLEAN
#include "_snapshot.h"

#include <stddef.h>
#include <string.h>

#define FEWEST_NODES 8 /* below an anchor, for it to be worth it */

void
fxjit_snapshot_free(snapshot *s)
{
    for (int i = 0; i < s->anchors.n; i++) {
        Py_DECREF(s->anchors.at[i].ref);
    }
    for (int i = 0; i < s->types.n; i++) {
        Py_DECREF(s->types.at[i]);
    }
    for (int i = 0; i < s->constants.n; i++) {
        Py_DECREF(s->constants.at[i]);
    }
    for (int i = 0; i < s->watched.n; i++) {
        fxjit_unwatch(s->watched.at[i]);
    }
    void *parts[] = {s->words.at,   s->versions.at, s->watched.at, s->owners.at,        s->lookups.at,    s->tensors.at,
                     s->kinds.at,   s->anchors.at,  s->later.at,   s->constants.at,     s->types.at,
                     s->type_pointers.at, s->open_slots.at, s->walked.at, s->node_kinds, s->slot_values, s->how, s->distinct};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        PyMem_Free(parts[i]);
    }
    PyMem_Free(s);
}

static int
grow(void *list, size_t item)
{
    LIST(char) *l = list;
    if (l->n < l->room) {
        return 0;
    }
    int more = l->room ? 2 * l->room : 16;
    void *larger = PyMem_Realloc(l->at, (size_t)more * item);
    if (larger == NULL) {
        return -1;
    }
    l->at = larger;
    l->room = more;
    return 0;
}

#define PUSH(list, ...) (grow(&(list), sizeof(*(list).at)) < 0 ? -1 : ((list).at[(list).n++] = __VA_ARGS__, 0))

static int
push_word(snapshot *s, const void *at, uint64_t is, PyObject *owner)
{
    return PUSH(s->words, (word){at, is}) < 0 ? -1 : PUSH(s->owners, owner);
}

static int
push_pointer(snapshot *s, const void *at, const void *is, PyObject *owner)
{
    return push_word(s, at, (uint64_t)(uintptr_t)is, owner);
}

/* Notes that the dict is as it is. 1 recorded, 0 it cannot be, -1 no memory. */
static int
push_version(snapshot *s, PyObject *dict)
{
    fxjit_watched *watched = fxjit_watch(dict);
    if (watched == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    for (int i = s->watched.n - 1; i >= 0 && i > s->watched.n - 4; i--) {
        if (s->watched.at[i] == watched) { /* several checks on one dict stand together */
            fxjit_unwatch(watched);
            return 1;
        }
    }
    if (PUSH(s->watched, watched) < 0) {
        fxjit_unwatch(watched);
        return -1;
    }
    const uint64_t *at = fxjit_watched_version(watched);
    if (fxjit_watched_changes() != NULL) {
        return PUSH(s->versions, (word){at, *at}) < 0 ? -1 : 1;
    }
    return push_word(s, at, *at, dict) < 0 ? -1 : 1;
}

static int
push_lookup(snapshot *s, lookup l)
{
    return push_word(s, NULL, (uint64_t)s->lookups.n, NULL) < 0 ? -1 : PUSH(s->lookups, l);
}

static int
know_type(snapshot *s, PyTypeObject *type)
{
    for (int i = 0; i < s->types.n; i++) {
        if (s->type_pointers.at[i] == type) {
            return 0;
        }
    }
    PyObject *ref = fxjit_weakly((PyObject *)type);
    if (ref == NULL || PUSH(s->types, ref) < 0) {
        Py_XDECREF(ref);
        return -1;
    }
    if (PUSH(s->type_pointers, type) < 0) {
        Py_DECREF(s->types.at[--s->types.n]);
        return -1;
    }
    return 0;
}

static int
push_type(snapshot *s, PyObject *value, int held)
{
    PyTypeObject *type = Py_TYPE(value);
    int is_static = !(type->tp_flags & Py_TPFLAGS_HEAPTYPE);
    if (held && is_static && !PyModule_Check(value)) {
        return 0; /* such objects keep their class */
    }
    return !is_static && know_type(s, type) < 0 ? -1 : push_pointer(s, &value->ob_type, type, NULL);
}

static int
push_constant(snapshot *s, PyObject *value)
{
    return PUSH(s->constants, value) < 0 ? -1 : (Py_INCREF(value), 0);
}

static int
is_this_kind(const tensor_kind *kind, PyTypeObject *type, int requires_grad, const uint64_t *impl)
{
    return kind->type == type && kind->requires_grad == requires_grad && differs(kind->words, impl) == 0;
}

/* 1 recorded, 0 the tensor keeps facts elsewhere, -1 no memory. */
static int
push_tensor(snapshot *s, PyObject *tensor)
{
    int64_t dim, *sizes;
    int32_t layout;
    if (!fxjit_tensor_is_plain(tensor) || fxjit_shim.impl_words == 0) {
        return 0;
    }
    void *handle = fxjit_tensor_handle(tensor);
    const uint64_t *impl = fxjit_tensor_impl(tensor);
    if (fxjit_shim.get_dim(handle, &dim) || fxjit_shim.get_sizes(handle, &sizes) ||
        fxjit_shim.get_layout(handle, &layout) || layout != fxjit_shim.strided) {
        return 0;
    }
    if (dim > 0 && ((uint64_t *)sizes < impl || (uint64_t *)sizes >= impl + fxjit_shim.impl_words)) {
        return 0; /* too many dimensions to be in the TensorImpl itself */
    }
    const char *meta = (const char *)(uintptr_t)impl[fxjit_shim.autograd_word];
    int requires_grad = fxjit_shim.impl_requires_grad(impl);
    if (requires_grad && meta[fxjit_shim.requires_grad_at] != 1) {
        return 0; /* no leaf */
    }
    int kind = 0;
    while (kind < s->kinds.n && !is_this_kind(&s->kinds.at[kind], Py_TYPE(tensor), requires_grad, impl)) {
        kind++;
    }
    if (kind == s->kinds.n) {
        tensor_kind fresh = {Py_TYPE(tensor), requires_grad, {0}};
        memcpy(fresh.words, impl, (size_t)fxjit_shim.impl_words * sizeof(uint64_t));
        if (know_type(s, Py_TYPE(tensor)) < 0 || PUSH(s->kinds, fresh) < 0) {
            return -1;
        }
    }
    return PUSH(s->tensors, (tensor_snapshot){tensor, impl, meta, (const tensor_kind *)(uintptr_t)kind}) < 0 ? -1 : 1;
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

/* What is known of one object while it is recorded. */
typedef struct {
    PyObject *value;
    int held;        /* while the words recorded so far are as they are, the object cannot have been freed */
    PyObject **slot; /* of the instance dict, once recorded */
    int contents;    /* the contents of the container are recorded */
    int list;        /* the list's size and place are */
    int length;      /* the tuple's is */
    int tensor;      /* the tensor is, with its type */
    int version;     /* the class's version is */
} recording;

/* 1 recorded, 0 cannot be, -1 no memory. */
static int
record_slot(snapshot *s, recording *now)
{
    if (now->slot == NULL) {
        PyObject **slot = dict_slot(now->value);
        if (slot == NULL) {
            return 0;
        }
        if (push_pointer(s, slot, *slot, NULL) < 0) {
            return -1;
        }
        now->slot = slot;
    }
    return 1;
}

static int
record_contents(snapshot *s, recording *now)
{
    int recorded = now->contents ? 1 : push_version(s, now->value);
    now->contents = recorded == 1;
    return recorded;
}

static int
record_list(snapshot *s, const tree *t, recording *now)
{
    PyObject *list = now->value;
    PyObject ***items = &((PyListObject *)list)->ob_item;
    if (is_restless(t, list)) {
        return 0;
    }
    if (!now->list && (push_word(s, &((PyVarObject *)list)->ob_size, (uint64_t)Py_SIZE(list), list) < 0 ||
                       push_pointer(s, items, *items, list) < 0)) {
        return -1;
    }
    now->list = 1;
    return 1;
}

/* The length of a tuple. */
static int
record_length(snapshot *s, recording *now)
{
    PyObject *tuple = now->value;
    if (!now->held && !now->length && push_word(s, &((PyVarObject *)tuple)->ob_size, (uint64_t)Py_SIZE(tuple), NULL) < 0) {
        return -1;
    }
    now->length = 1;
    return 1;
}

_Static_assert(offsetof(PyTypeObject, tp_finalize) == offsetof(PyTypeObject, tp_version_tag) + sizeof(uint64_t),
               "the version of a class is read as one word, with what lies unused beside it");

/* Notes the version of the class: what looking names up in it gives. 1 recorded, 0 it has none, -1 no memory. */
static int
record_class(snapshot *s, const tree *t, recording *now)
{
    if (now->version) {
        return 1;
    }
    PyTypeObject *type = (PyTypeObject *)now->value;
    if (!PyType_Check(now->value) || is_restless(t, now->value) || fx_type_version(type) == 0) {
        return 0;
    }
    uint64_t version;
    memcpy(&version, &type->tp_version_tag, sizeof(version));
    if (know_type(s, type) < 0 || push_word(s, &type->tp_version_tag, version, now->value) < 0) {
        return -1;
    }
    now->version = 1;
    return 1;
}

static int
record_check(snapshot *s, const tree *t, fxjit_check *check, recording *now)
{
    PyObject *dict = now->value;
    switch (fxjit_check_depends(check, now->value)) {
    case DEPENDS_ON_TYPE:
        return 1;
    case DEPENDS_ON_LENGTH:
        return record_length(s, now);
    case DEPENDS_ON_ITEMS:
        return now->held;
    case DEPENDS_ON_TENSOR: {
        int recorded = push_tensor(s, now->value);
        now->tensor = recorded == 1;
        return recorded;
    }
    case DEPENDS_ON_INSTANCE_DICT: {
        int recorded = record_slot(s, now);
        if (recorded != 1) {
            return recorded;
        }
        dict = *now->slot;
        break;
    }
    case DEPENDS_ON_CONTENTS:
        if (PyList_CheckExact(now->value)) {
            return record_list(s, t, now);
        }
        if (!is_restless(t, dict)) {
            return record_contents(s, now);
        }
        break;
    case DEPENDS_ON_CODE: {
        PyObject **code = &((PyFunctionObject *)now->value)->func_code;
        return push_pointer(s, code, *code, NULL) < 0 ? -1 : 1;
    }
    case DEPENDS_ON_CLASS:
        return record_class(s, t, now);
    case DEPENDS_ON_MORE:
        return 0;
    }
    if (!is_restless(t, dict)) {
        return push_version(s, dict);
    }
    if (!fx_dict_has_only_str_keys(dict)) {
        return 0;
    }
    return push_lookup(s, (lookup){now->value, check, NULL, dict}) < 0 ? -1 : 1;
}

/* An item of a dict: 1 with *below, borrowed, and *held; 0 nothing speaks for it; -1 no memory. */
static int
record_item(snapshot *s, const tree *t, const node *child, recording *now, PyObject **below, int *held)
{
    PyObject *value = now->value;
    if (!(PyDict_CheckExact(value) || PyODict_CheckExact(value)) ||
        !(PyUnicode_CheckExact(child->arg) || PyLong_CheckExact(child->arg))) {
        return 0;
    }
    int recorded;
    PyObject *found = PyDict_GetItemWithError(value, child->arg);
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    *held = !is_restless(t, value);
    if (*held) {
        recorded = record_contents(s, now);
    }
    else if (PyUnicode_CheckExact(child->arg) && fx_dict_has_only_str_keys(value)) {
        recorded = push_lookup(s, (lookup){value, NULL, child->arg, found}) < 0 ? -1 : 1;
    }
    else {
        return 0;
    }
    *below = found;
    return recorded;
}

/* An item of a list or tuple: as record_item. */
static int
record_item_at(snapshot *s, const tree *t, Py_ssize_t index, recording *now, PyObject **below, int *held)
{
    PyObject *value = now->value, *const *item;
    Py_ssize_t size = Py_SIZE(value);
    int is_list = PyList_CheckExact(value), recorded;
    index += index < 0 ? size : 0;
    if (index < 0 || index >= size) {
        return 0;
    }
    item = is_list ? &((PyListObject *)value)->ob_item[index] : &((PyTupleObject *)value)->ob_item[index];
    recorded = is_list ? record_list(s, t, now) : record_length(s, now);
    *below = *item;
    *held = !is_list && now->held;
    if (recorded == 1 && !*held) {
        recorded = push_pointer(s, item, *item, is_list ? value : NULL) < 0 ? -1 : 1;
    }
    return recorded;
}

/* A key or value of a dict, by its place: as record_item. An OrderedDict of several moves its keys without a new version. */
static int
record_place(snapshot *s, const tree *t, const node *child, recording *now, PyObject **below)
{
    PyObject *value = now->value, *found_key, *found;
    if (!(PyDict_CheckExact(value) || (PyODict_CheckExact(value) && PyDict_GET_SIZE(value) == 1)) || is_restless(t, value)) {
        return 0;
    }
    Py_ssize_t position = 0;
    for (Py_ssize_t i = 0; i <= child->index; i++) {
        if (!PyDict_Next(value, &position, &found_key, &found)) {
            return 0;
        }
    }
    *below = child->get == GET_KEY ? found_key : found;
    return record_contents(s, now);
}

/* The child's object where a version, a word or a type speaks for it: 1 with *below, borrowed, and *held; else 0, -1. */
static int
record_child(snapshot *s, const tree *t, const node *child, recording *now, PyObject **below, int *held)
{
    PyObject *value = now->value;
    *held = 1;
    switch (child->get) {
    case GET_TYPE:
        *below = (PyObject *)Py_TYPE(value);
        return 1;
    case GET_CLASS_ITEM: {
        int recorded = record_class(s, t, now);
        PyObject *namespace = recorded == 1 ? fx_type_dict((PyTypeObject *)value) : NULL;
        *below = namespace == NULL ? NULL : PyDict_GetItemWithError(namespace, child->arg);
        return *below != NULL || recorded != 1 ? recorded : PyErr_Occurred() ? -1 : 0;
    }
    case GET_INSTANCE_DICT: {
        int recorded = record_slot(s, now);
        *below = recorded == 1 ? *now->slot : NULL;
        *held = child->num_checks == 0; /* what is below it is there at its version, or looked up */
        return recorded;
    }
    case GET_ITEM:
        if ((!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) || child->index == PY_SSIZE_T_MAX) {
            return record_item(s, t, child, now, below, held);
        }
        return record_item_at(s, t, child->index, now, below, held);
    case GET_KEY:
    case GET_VALUE:
        return record_place(s, t, child, now, below);
    default:
        return 0;
    }
}

/* Records a node and what is below it. 1 done, 0 the node must be walked, -1 give up. */
static int
record(snapshot *s, const tree *t, int index, PyObject *value, int held)
{
    const node *n = &t->nodes[index];
    if (!held && fxjit_never_changes(value)) {
        if (push_constant(s, value) < 0) {
            return -1;
        }
        held = 1;
    }
    recording now = {.value = value, .held = held};
    int is_tensor = fxjit_tensor_is_plain(value);
    if (!is_tensor && push_type(s, value, held) < 0) {
        return -1;
    }
    for (int i = 0; i < n->num_checks; i++) {
        /* What is recorded of a node that must be walked after all is true, and does no harm. */
        int recorded = record_check(s, t, &t->checks[n->first_check + i], &now);
        if (recorded != 1) {
            return recorded;
        }
    }
    if (is_tensor && !now.tensor && push_type(s, value, held) < 0) {
        return -1;
    }
    for (int child = index + 1; child < n->end; child = t->nodes[child].end) {
        PyObject *below = NULL;
        int below_held, done = record_child(s, t, &t->nodes[child], &now, &below, &below_held);
        if (done == 1) {
            done = record(s, t, child, below, below_held);
        }
        if (done < 0 || (done == 0 && PUSH(s->later, (deferred){child, value}) < 0)) {
            return -1;
        }
    }
    if (n->slot >= 0) {
        s->slot_values[n->slot] = value;
    }
    return 1;
}

static int
pays_to_note(const tree *t, int index, PyObject *value)
{
    const node *n = &t->nodes[index];
    if (PyType_Check(value)) {
        return n->get == GET_CONST || n->get == GET_CLASS;
    }
    if (n->end - index < FEWEST_NODES || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(value)) ||
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
record_anchor(snapshot *s, const tree *t, int index, PyObject *value)
{
    if (!pays_to_note(t, index, value)) {
        return 0;
    }
    int done = record(s, t, index, value, 1);
    if (done != 1) {
        return done;
    }
    PyObject *ref = fxjit_weakly(value);
    if (ref == NULL || PUSH(s->anchors, (anchor){index, ref, value}) < 0) {
        Py_XDECREF(ref);
        return -1;
    }
    s->node_kinds[index] = NODE_ANCHOR;
    return 1;
}

/* The objects that the frame names: arguments, cells, variables of the module. */
static int
record_top(snapshot *s, run *r, int top)
{
    const tree *t = r->t;
    const node *n = &t->nodes[top];
    PyObject *value = fxjit_fetch(r, n, NULL);
    int status = value == NULL ? -1 : 0;
    if (status == 0 && n->get == GET_GLOBALS) {
        for (int child = top + 1; status == 0 && child < n->end; child = t->nodes[child].end) {
            PyObject *named = t->nodes[child].get == GET_ITEM ? fxjit_fetch(r, &t->nodes[child], value) : NULL;
            int done = named == NULL ? 0 : record_anchor(s, t, child, named);
            Py_XDECREF(named);
            if (done == 1) {
                s->node_kinds[top] = NODE_ABOVE;
            }
            status = done < 0 ? -1 : 0;
        }
    }
    else if (status == 0 && (n->get == GET_ARG || n->get == GET_DEREF || n->get == GET_CONST || n->get == GET_CLASS)) {
        status = record_anchor(s, t, top, value) < 0 ? -1 : 0;
    }
    Py_XDECREF(value);
    return status;
}

/* The recorded objects by address, for those that have to differ from them. */
static int
index_distinct(snapshot *s, const tree *t)
{
    size_t size = 8;
    while (size < 2 * (size_t)t->num_slots) {
        size *= 2;
    }
    s->distinct = PyMem_Calloc(size, sizeof(PyObject *));
    if (s->distinct == NULL) {
        return -1;
    }
    s->distinct_size = size;
    for (int i = 0; i < t->num_slots; i++) {
        PyObject *obj = s->slot_values[i];
        for (size_t place = place_of(obj, size); obj != NULL; place = (place + 1) & (size - 1)) {
            if (s->distinct[place] == NULL || s->distinct[place] == obj) {
                s->distinct[place] = obj;
                break;
            }
        }
    }
    return 0;
}

/* How a condition is checked from now on; marks the slots it needs. -1: no memory. */
static int
record_condition(snapshot *s, const tree *t, int index, char *open)
{
    const condition *c = &t->conditions[index];
    int walked = 0, lasting = c->kind == COND_SAME || c->kind == COND_DISTINCT || c->kind == COND_SHAPE;
    for (int k = 0; k < c->num_slots; k++) {
        walked += s->slot_values[c->slots[k]] == NULL;
    }
    if (lasting && walked == 0) {
        s->how[index] = CHECK_NOT;
        return 0;
    }
    s->how[index] = c->kind == COND_DISTINCT && walked <= FEW_WALKED ? CHECK_WALKED : CHECK_FULLY;
    for (int k = 0; k < c->num_slots; k++) {
        int slot = c->slots[k];
        if (s->how[index] == CHECK_FULLY) {
            open[slot] = 1;
        }
        else if (s->slot_values[slot] == NULL && PUSH(s->walked, (walked_slot){index, slot}) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
record_conditions(snapshot *s, const tree *t)
{
    char *open = PyMem_Calloc((size_t)t->num_slots + 1, 1);
    int status = open == NULL ? -1 : index_distinct(s, t);
    for (int i = 0; status == 0 && i < t->num_slots; i++) {
        open[i] = s->slot_values[i] == NULL; /* filled by walking */
    }
    for (int i = t->num_early; status == 0 && i < t->num_conditions; i++) {
        status = record_condition(s, t, i, open);
    }
    for (int i = 0; status == 0 && i < t->num_slots; i++) {
        status = open[i] ? PUSH(s->open_slots, i) : 0;
    }
    PyMem_Free(open);
    return status;
}

/* Notes for this tree, as yet empty. */
static snapshot *
new_snapshot(const tree *t)
{
    snapshot *s = PyMem_Calloc(1, sizeof(snapshot));
    if (s == NULL) {
        return NULL;
    }
    s->node_kinds = PyMem_Calloc((size_t)t->num_nodes + 1, 1);
    s->slot_values = PyMem_Calloc((size_t)t->num_slots + 1, sizeof(PyObject *));
    s->how = PyMem_Calloc((size_t)t->num_conditions + 1, 1);
    if (s->node_kinds == NULL || s->slot_values == NULL || s->how == NULL) {
        fxjit_snapshot_free(s);
        return NULL;
    }
    return s;
}

snapshot *
fxjit_snapshot_take(run *r)
{
    const tree *t = r->t;
    snapshot *s = t->num_nodes < FEWEST_NODES ? NULL : new_snapshot(t);
    if (s == NULL) {
        return NULL;
    }
    s->changes = fxjit_watched_changes() == NULL ? 0 : *fxjit_watched_changes();
    int status = 0, classes = 0; /* which alone are not worth it: their checks know their versions themselves */
    for (int top = 0; status == 0 && top < t->num_nodes; top = t->nodes[top].end) {
        status = record_top(s, r, top);
    }
    for (int i = 0; i < s->anchors.n; i++) {
        classes += PyType_Check(s->anchors.at[i].obj);
    }
    if (status < 0 || s->anchors.n == classes || record_conditions(s, t) < 0) {
        PyErr_Clear();
        fxjit_snapshot_free(s);
        return NULL;
    }
    for (int i = 0; i < s->tensors.n; i++) {
        s->tensors.at[i].kind = &s->kinds.at[(uintptr_t)s->tensors.at[i].kind];
    }
    return s;
}
