/* What of a guard tree need not be looked at again: the part below an object whose dicts have not changed since a full
 * check held.
 *
 *   anchor    an object the frame names (a module, mostly), compared with the one of the full check
 *   words     below it: types, instance dicts, versions of dicts (_watch.c), sizes and items of lists, each a word of
 *             memory that must be as it was
 *   tensors   below it: each with what its TensorImpl must say, which tensors of one kind share
 *   lookups   items of dicts that change all the time, looked up one by one
 *   deferred  nodes below it that none of these speaks for; walked as usual
 *
 * A word is read only when those before it have shown that its memory is what it was: a dict at its version holds what it
 * held, an object at its type and instance dict has what it had. Where the versions are not the dicts' own memory they
 * come first, and one counter says that none of them moved. Reading all this runs no Python code. Whatever differs, or is
 * not known here, means a full check (_tree.c); after a difference the notes are dropped, and taken anew after some full
 * checks that held. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include <stddef.h>
#include <string.h>

#include "_walk.h"
#include "_watch.h"

int fxjit_settled_verify;

#define MAX_PATIENCE 4096
#define FEWEST_NODES 8 /* below an anchor, for it to be worth it */
#define LOOK_AHEAD 6   /* tensors */

typedef struct {
    const uint64_t *at; /* NULL: `is` is the index of a lookup */
    uint64_t is;
} word;

/* An item of a dict (check NULL), or a check on an object. */
typedef struct {
    PyObject *obj;
    fxjit_check *check;
    PyObject *key; /* a str */
    PyObject *value;
} lookup;

typedef struct {
    PyTypeObject *type;
    int requires_grad;
    uint64_t words[FXJIT_IMPL_WORDS];
} tensor_kind;

typedef struct {
    PyObject *tensor;
    const uint64_t *impl;
    const char *meta; /* autograd metadata, or NULL */
    const tensor_kind *kind; /* an index while notes are taken */
} tensor_note;

typedef struct {
    int node;
    PyObject *ref; /* weak: the object is alive and at its address, or the notes mean nothing */
    PyObject *obj;
} anchor;

typedef struct {
    int node;
    PyObject *parent; /* borrowed: alive once the notes hold */
} deferred;

/* Of a condition that only has to compare the few objects that were walked with the rest. */
typedef struct {
    int condition, slot;
} walked_slot;

enum { NODE_PLAIN, NODE_ABOVE, NODE_ANCHOR };
enum { ASK_FULLY, ASK_NOT, ASK_WALKED };

#define LIST(item) \
    struct {       \
        item *at;  \
        int n, room; \
    }

struct fxjit_settled {
    LIST(word) words;
    LIST(word) versions; /* those that may be read at any time */
    uint64_t changes;    /* of watched dicts, when the versions were last compared */
    LIST(fxjit_watched *) watched;
    LIST(PyObject *) owners; /* for each word, the dict or list it is about; NULL: neither. Not to be looked into */
    LIST(lookup) lookups;
    LIST(tensor_note) tensors;
    LIST(tensor_kind) kinds;
    LIST(anchor) anchors;
    LIST(deferred) later;
    LIST(PyObject *) types; /* weak references */
    LIST(PyTypeObject *) type_pointers;
    LIST(int) open_slots; /* that a check fills */
    LIST(walked_slot) walked;
    char *node_kinds;
    PyObject **slot_values; /* borrowed; NULL: filled by walking */
    char *how;              /* each condition is asked */
    PyObject **distinct; /* the objects of slot_values, by address */
    size_t distinct_size;
    Py_ssize_t hits;
};

typedef struct fxjit_settled settled;

/* ---- taking notes ---- */

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
push_word(settled *s, const void *at, uint64_t is, PyObject *owner)
{
    return PUSH(s->words, (word){at, is}) < 0 ? -1 : PUSH(s->owners, owner);
}

static int
push_pointer(settled *s, const void *at, const void *is, PyObject *owner)
{
    return push_word(s, at, (uint64_t)(uintptr_t)is, owner);
}

static int
is_restless(const tree *t, PyObject *dict)
{
    for (int i = 0; i < t->num_restless; i++) {
        if (t->restless[i] == dict) {
            return 1;
        }
    }
    return 0;
}

/* Notes that the dict is as it is. 1 noted, 0 it cannot be, -1 no memory. */
static int
push_version(settled *s, PyObject *dict)
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
push_lookup(settled *s, lookup l)
{
    return push_word(s, NULL, (uint64_t)s->lookups.n, NULL) < 0 ? -1 : PUSH(s->lookups, l);
}

static int
know_type(settled *s, PyTypeObject *type)
{
    for (int i = 0; i < s->types.n; i++) {
        if (s->type_pointers.at[i] == type) {
            return 0;
        }
    }
    PyObject *ref = PyWeakref_NewRef((PyObject *)type, NULL);
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
push_type(settled *s, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyModule_Check(value)) {
        return 0; /* such objects keep their class */
    }
    return know_type(s, type) < 0 ? -1 : push_pointer(s, &value->ob_type, type, NULL);
}

typedef uint64_t two_words __attribute__((vector_size(16), aligned(8), may_alias));

/* 0 where the words of the TensorImpl that are facts are these. */
static inline uint64_t
differs(const uint64_t *words, const uint64_t *impl)
{
    const uint64_t *bits = fxjit_shim.fact_bits;
    uint64_t difference = 0;
    two_words differences = {0, 0};
    for (int i = 0; i < fxjit_shim.num_fact_ranges; i++) {
        int at = fxjit_shim.fact_ranges[i].begin, end = fxjit_shim.fact_ranges[i].end;
        for (; at + 2 <= end; at += 2) {
            differences |= (*(const two_words *)(words + at) ^ *(const two_words *)(impl + at)) & *(const two_words *)(bits + at);
        }
        if (at < end) {
            difference |= (words[at] ^ impl[at]) & bits[at];
        }
    }
    return difference | differences[0] | differences[1];
}

static int
is_this_kind(const tensor_kind *kind, PyTypeObject *type, int requires_grad, const uint64_t *impl)
{
    return kind->type == type && kind->requires_grad == requires_grad && differs(kind->words, impl) == 0;
}

/* 1 noted, 0 the tensor keeps facts elsewhere, -1 no memory. */
static int
push_tensor(settled *s, PyObject *tensor)
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
    return PUSH(s->tensors, (tensor_note){tensor, impl, meta, (const tensor_kind *)(uintptr_t)kind}) < 0 ? -1 : 1;
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

/* What is known of one object while it is noted. */
typedef struct {
    PyObject *value;
    PyObject **slot; /* of the instance dict, once noted */
    int contents;    /* the contents of the container are noted */
    int list;        /* the list's size and place are */
    int tensor;      /* the tensor is, with its type */
    int version;     /* the class's version is */
} noting;

/* 1 noted, 0 cannot be, -1 no memory. */
static int
note_slot(settled *s, noting *now)
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
note_contents(settled *s, noting *now)
{
    int noted = now->contents ? 1 : push_version(s, now->value);
    now->contents = noted == 1;
    return noted;
}

static int
note_list(settled *s, const tree *t, noting *now)
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

_Static_assert(offsetof(PyTypeObject, tp_finalize) == offsetof(PyTypeObject, tp_version_tag) + sizeof(uint64_t),
               "the version of a class is read as one word, with what lies unused beside it");

/* Notes the version of the class: what looking names up in it gives. 1 noted, 0 it has none, -1 no memory. */
static int
note_class(settled *s, const tree *t, noting *now)
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
note_check(settled *s, const tree *t, fxjit_check *check, noting *now)
{
    PyObject *dict = now->value;
    switch (fxjit_check_depends(check, now->value)) {
    case DEPENDS_ON_TYPE:
        return 1;
    case DEPENDS_ON_TENSOR: {
        int noted = push_tensor(s, now->value);
        now->tensor = noted == 1;
        return noted;
    }
    case DEPENDS_ON_INSTANCE_DICT: {
        int noted = note_slot(s, now);
        if (noted != 1) {
            return noted;
        }
        dict = *now->slot;
        break;
    }
    case DEPENDS_ON_CONTENTS:
        if (PyList_CheckExact(now->value)) {
            return note_list(s, t, now);
        }
        if (!is_restless(t, dict)) {
            return note_contents(s, now);
        }
        break;
    case DEPENDS_ON_CODE: {
        PyObject **code = &((PyFunctionObject *)now->value)->func_code;
        return push_pointer(s, code, *code, NULL) < 0 ? -1 : 1;
    }
    case DEPENDS_ON_CLASS:
        return note_class(s, t, now);
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

/* An item of a dict: 1 with *below, borrowed; 0 nothing speaks for it; -1 no memory. */
static int
note_item(settled *s, const tree *t, const node *child, noting *now, PyObject **below)
{
    PyObject *value = now->value;
    if (!(PyDict_CheckExact(value) || PyODict_CheckExact(value)) ||
        !(PyUnicode_CheckExact(child->arg) || PyLong_CheckExact(child->arg))) {
        return 0;
    }
    int noted;
    PyObject *found = PyDict_GetItemWithError(value, child->arg);
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (!is_restless(t, value)) {
        noted = note_contents(s, now);
    }
    else if (PyUnicode_CheckExact(child->arg) && fx_dict_has_only_str_keys(value)) {
        noted = push_lookup(s, (lookup){value, NULL, child->arg, found}) < 0 ? -1 : 1;
    }
    else {
        return 0;
    }
    *below = found;
    return noted;
}

/* The child's object where a version, a word or a type speaks for it: 1 with *below, borrowed; else 0, -1. */
static int
note_child(settled *s, const tree *t, const node *child, noting *now, PyObject **below)
{
    PyObject *value = now->value;
    switch (child->get) {
    case GET_TYPE:
        *below = (PyObject *)Py_TYPE(value);
        return 1;
    case GET_CLASS_ITEM: {
        int noted = note_class(s, t, now);
        PyObject *namespace = noted == 1 ? fx_type_dict((PyTypeObject *)value) : NULL;
        *below = namespace == NULL ? NULL : PyDict_GetItemWithError(namespace, child->arg);
        return *below != NULL || noted != 1 ? noted : PyErr_Occurred() ? -1 : 0;
    }
    case GET_INSTANCE_DICT: {
        int noted = note_slot(s, now);
        *below = noted == 1 ? *now->slot : NULL;
        return noted;
    }
    case GET_ITEM: {
        int is_list = PyList_CheckExact(value);
        if ((!is_list && !PyTuple_CheckExact(value)) || child->index == PY_SSIZE_T_MAX) {
            return note_item(s, t, child, now, below);
        }
        Py_ssize_t size = Py_SIZE(value), index = child->index < 0 ? child->index + size : child->index;
        if (index < 0 || index >= size) {
            return 0;
        }
        *below = is_list ? PyList_GET_ITEM(value, index) : PyTuple_GET_ITEM(value, index);
        int noted = is_list ? note_list(s, t, now) : 1;
        if (noted == 1 && is_list) {
            noted = push_pointer(s, &((PyListObject *)value)->ob_item[index], *below, value) < 0 ? -1 : 1;
        }
        return noted;
    }
    default:
        return 0;
    }
}

/* Notes a node and what is below it. 1 done, 0 the node must be walked, -1 give up. */
static int
note(settled *s, const tree *t, int index, PyObject *value)
{
    const node *n = &t->nodes[index];
    noting now = {value, NULL, 0, 0, 0, 0};
    int is_tensor = fxjit_tensor_is_plain(value);
    if (!is_tensor && push_type(s, value) < 0) {
        return -1;
    }
    for (int i = 0; i < n->num_checks; i++) {
        /* What is noted of a node that must be walked after all is true, and does no harm. */
        int noted = note_check(s, t, &t->checks[n->first_check + i], &now);
        if (noted != 1) {
            return noted;
        }
    }
    if (is_tensor && !now.tensor && push_type(s, value) < 0) {
        return -1;
    }
    for (int child = index + 1; child < n->end; child = t->nodes[child].end) {
        PyObject *below = NULL;
        int done = note_child(s, t, &t->nodes[child], &now, &below);
        if (done == 1) {
            done = note(s, t, child, below);
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
is_worth_it(const tree *t, int index, PyObject *value)
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
note_anchor(settled *s, const tree *t, int index, PyObject *value)
{
    if (!is_worth_it(t, index, value)) {
        return 0;
    }
    int done = note(s, t, index, value);
    if (done != 1) {
        return done;
    }
    PyObject *ref = PyWeakref_NewRef(value, NULL);
    if (ref == NULL || PUSH(s->anchors, (anchor){index, ref, value}) < 0) {
        Py_XDECREF(ref);
        return -1;
    }
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
    else if (status == 0 && (n->get == GET_ARG || n->get == GET_DEREF || n->get == GET_CONST || n->get == GET_CLASS)) {
        status = note_anchor(s, t, top, value) < 0 ? -1 : 0;
    }
    Py_XDECREF(value);
    return status;
}

static size_t
place_of(PyObject *obj, size_t size)
{
    return (size_t)(((uintptr_t)obj >> 4) * 0x9E3779B97F4A7C15u >> 20) & (size - 1);
}

/* The noted objects by address, for those that have to differ from them. */
static int
index_distinct(settled *s, const tree *t)
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

static int
is_noted(const settled *s, PyObject *obj)
{
    size_t place = place_of(obj, s->distinct_size);
    while (s->distinct[place] != NULL && s->distinct[place] != obj) {
        place = (place + 1) & (s->distinct_size - 1);
    }
    return s->distinct[place] != NULL;
}

#define FEW_WALKED 8

/* How a condition is asked from now on; marks the slots it needs. -1: no memory. */
static int
note_condition(settled *s, const tree *t, int index, char *open)
{
    const condition *c = &t->conditions[index];
    int walked = 0, lasting = c->kind == COND_SAME || c->kind == COND_DISTINCT || c->kind == COND_SHAPE;
    for (int k = 0; k < c->num_slots; k++) {
        walked += s->slot_values[c->slots[k]] == NULL;
    }
    if (lasting && walked == 0) {
        s->how[index] = ASK_NOT;
        return 0;
    }
    s->how[index] = c->kind == COND_DISTINCT && walked <= FEW_WALKED ? ASK_WALKED : ASK_FULLY;
    for (int k = 0; k < c->num_slots; k++) {
        int slot = c->slots[k];
        if (s->how[index] == ASK_FULLY) {
            open[slot] = 1;
        }
        else if (s->slot_values[slot] == NULL && PUSH(s->walked, (walked_slot){index, slot}) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
note_conditions(settled *s, const tree *t)
{
    char *open = PyMem_Calloc((size_t)t->num_slots + 1, 1);
    int status = open == NULL ? -1 : index_distinct(s, t);
    for (int i = 0; status == 0 && i < t->num_slots; i++) {
        open[i] = s->slot_values[i] == NULL; /* filled by walking */
    }
    for (int i = t->num_early; status == 0 && i < t->num_conditions; i++) {
        status = note_condition(s, t, i, open);
    }
    for (int i = 0; status == 0 && i < t->num_slots; i++) {
        status = open[i] ? PUSH(s->open_slots, i) : 0;
    }
    PyMem_Free(open);
    return status;
}

static void
free_settled(settled *s)
{
    for (int i = 0; i < s->anchors.n; i++) {
        Py_DECREF(s->anchors.at[i].ref);
    }
    for (int i = 0; i < s->types.n; i++) {
        Py_DECREF(s->types.at[i]);
    }
    for (int i = 0; i < s->watched.n; i++) {
        fxjit_unwatch(s->watched.at[i]);
    }
    void *parts[] = {s->words.at,   s->versions.at, s->watched.at, s->owners.at,        s->lookups.at,    s->tensors.at,
                     s->kinds.at,   s->anchors.at,  s->later.at,   s->types.at,         s->type_pointers.at,
                     s->open_slots.at, s->walked.at, s->node_kinds, s->slot_values, s->how, s->distinct};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        PyMem_Free(parts[i]);
    }
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

/* Taking notes costs about as much as some full checks: notes that did not last make the next ones wait longer. */
static void
notes_failed(tree *t, Py_ssize_t hits)
{
    t->full_checks = 0;
    t->patience = hits > t->patience ? FIRST_PATIENCE : Py_MIN(2 * t->patience, MAX_PATIENCE);
}

/* Notes for this tree, as yet empty. */
static settled *
new_notes(const tree *t)
{
    settled *s = PyMem_Calloc(1, sizeof(settled));
    if (s == NULL) {
        return NULL;
    }
    s->node_kinds = PyMem_Calloc((size_t)t->num_nodes + 1, 1);
    s->slot_values = PyMem_Calloc((size_t)t->num_slots + 1, sizeof(PyObject *));
    s->how = PyMem_Calloc((size_t)t->num_conditions + 1, 1);
    if (s->node_kinds == NULL || s->slot_values == NULL || s->how == NULL) {
        free_settled(s);
        return NULL;
    }
    return s;
}

void
fxjit_settle(run *r)
{
    tree *t = r->t;
    if (t->scanning) {
        return;
    }
    settled *s = t->num_nodes < FEWEST_NODES ? NULL : new_notes(t);
    if (s == NULL) {
        t->full_checks = 0;
        t->patience = MAX_PATIENCE;
        return;
    }
    s->changes = fxjit_watched_changes() == NULL ? 0 : *fxjit_watched_changes();
    int status = 0, classes = 0; /* which alone are not worth it: their checks know their versions themselves */
    for (int top = 0; status == 0 && top < t->num_nodes; top = t->nodes[top].end) {
        status = note_top(s, r, top);
    }
    for (int i = 0; i < s->anchors.n; i++) {
        classes += PyType_Check(s->anchors.at[i].obj);
    }
    if (status < 0 || s->anchors.n == classes || note_conditions(s, t) < 0) {
        PyErr_Clear();
        free_settled(s);
        notes_failed(t, 0);
        return;
    }
    for (int i = 0; i < s->tensors.n; i++) {
        s->tensors.at[i].kind = &s->kinds.at[(uintptr_t)s->tensors.at[i].kind];
    }
    fxjit_settled_free(t);
    t->settled = s;
}

/* ---- using them ---- */

/* A dict or list that changes while nothing of what is guarded does is looked into, the next time notes are taken. */
static void
mark_restless(tree *t, PyObject *owner)
{
    if (owner == NULL || is_restless(t, owner)) {
        return;
    }
    int place = t->num_restless < MAX_RESTLESS ? t->num_restless++ : t->next_restless++ % MAX_RESTLESS;
    t->restless[place] = owner;
    t->patience = FIRST_PATIENCE;
}

static int
anchors_hold(const run *r, const settled *s)
{
    for (int i = 0; i < s->types.n; i++) {
        if (((PyWeakReference *)s->types.at[i])->wr_object != (PyObject *)s->type_pointers.at[i]) {
            return 0;
        }
    }
    for (int i = 0; i < s->anchors.n; i++) {
        const anchor *a = &s->anchors.at[i];
        const node *n = &r->t->nodes[a->node];
        PyObject *value = fxjit_fetch(r, n, n->parent < 0 ? NULL : r->globals);
        if (value == NULL) {
            PyErr_Clear();
            return 0;
        }
        int same = value == a->obj && ((PyWeakReference *)a->ref)->wr_object == value;
        Py_DECREF(value); /* the frame holds it */
        if (!same) {
            return 0;
        }
    }
    return 1;
}

static int
lookup_holds(const lookup *l)
{
    PyObject *dict = l->check == NULL ? l->obj : l->value;
    if (!fx_dict_has_only_str_keys(dict)) {
        return 0;
    }
    int holds = l->check == NULL ? PyDict_GetItemWithError(dict, l->key) == l->value : fxjit_check_run(l->check, l->obj) == 1;
    PyErr_Clear();
    return holds;
}

/* The place of the first word that is not as it was; the number of words if there is none. */
static int
first_changed(const settled *s)
{
    const word *at = s->words.at, *end = at + s->words.n;
    for (; at < end; at++) {
        if (at->at == NULL ? !lookup_holds(&s->lookups.at[at->is]) : *at->at != at->is) {
            break;
        }
    }
    return (int)(at - s->words.at);
}

static int
versions_hold(tree *t, settled *s)
{
    const uint64_t *changes = fxjit_watched_changes();
    if (changes == NULL || *changes == s->changes) {
        return 1;
    }
    for (int i = 0; i < s->versions.n; i++) {
        if (*s->versions.at[i].at != s->versions.at[i].is) {
            mark_restless(t, fxjit_watched_dict(s->watched.at[i]));
            return 0;
        }
    }
    s->changes = *changes;
    return 1;
}

static inline int
tensor_holds(const tensor_note *note)
{
    const tensor_kind *kind = note->kind;
    if (fxjit_tensor_impl(note->tensor) != note->impl || Py_TYPE(note->tensor) != kind->type) {
        return 0;
    }
    const uint64_t *impl = note->impl;
    if ((impl[fxjit_shim.autograd_word] ^ (uint64_t)(uintptr_t)note->meta) | differs(kind->words, impl)) {
        return 0;
    }
    if (kind->requires_grad) {
        return note->meta[fxjit_shim.requires_grad_at] == 1;
    }
    return note->meta == NULL || !fxjit_shim.impl_requires_grad(impl);
}

static int
tensors_hold(const settled *s)
{
    const tensor_note *at = s->tensors.at, *end = at + s->tensors.n;
    for (; at < end; at++) {
        if (at + LOOK_AHEAD < end) {
            const char *ahead = (const char *)at[LOOK_AHEAD].impl;
            __builtin_prefetch(at[LOOK_AHEAD].tensor);
            __builtin_prefetch(ahead + 32);
            __builtin_prefetch(ahead + 96);
            __builtin_prefetch(ahead + 160);
            __builtin_prefetch(at[LOOK_AHEAD].meta + fxjit_shim.requires_grad_at);
        }
        if (!tensor_holds(at)) {
            return 0;
        }
    }
    return 1;
}

static int
notes_hold(run *r, settled *s)
{
    tree *t = r->t;
    if (!anchors_hold(r, s) || !versions_hold(t, s)) {
        return 0;
    }
    int changed = first_changed(s);
    if (changed < s->words.n) {
        mark_restless(t, s->owners.at[changed]);
        return 0;
    }
    return tensors_hold(s);
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
    int count = s->later.n, holds = 1;
    PyObject *few[32];
    PyObject **parents = count <= 32 ? few : PyMem_Malloc((size_t)count * sizeof(PyObject *));
    if (parents == NULL) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        parents[i] = Py_NewRef(s->later.at[i].parent);
    }
    for (int i = 0; holds == 1 && i < count; i++) {
        holds = fxjit_walk(r, s->later.at[i].node, parents[i]);
    }
    for (int i = 0; i < count; i++) {
        Py_DECREF(parents[i]);
    }
    if (parents != few) {
        PyMem_Free(parents);
    }
    return holds;
}

/* Objects that were walked against each other and those noted, which are known to differ. An object noted for a slot of
 * some other condition may be found too; the full check has the answer then. */
static int
walked_are_distinct(const run *r, const settled *s, int condition)
{
    PyObject *walked[FEW_WALKED];
    int count = 0;
    for (int i = 0; i < s->walked.n; i++) {
        if (s->walked.at[i].condition != condition) {
            continue;
        }
        PyObject *obj = r->slots[s->walked.at[i].slot];
        for (int other = 0; other < count; other++) {
            if (walked[other] == obj) {
                return 0;
            }
        }
        if (is_noted(s, obj)) {
            return 0;
        }
        walked[count++] = obj;
    }
    return 1;
}

static int
other_conditions_hold(run *r, const settled *s)
{
    const tree *t = r->t;
    for (int i = t->num_early; i < t->num_conditions; i++) {
        int holds = s->how[i] == ASK_NOT      ? 1
                    : s->how[i] == ASK_WALKED ? walked_are_distinct(r, s, i)
                                              : fxjit_condition_holds(r, i);
        if (holds != 1) {
            return holds;
        }
    }
    return 1;
}

static int
rest_holds(run *r, const settled *s)
{
    const tree *t = r->t;
    for (int i = 0; i < s->open_slots.n; i++) {
        int slot = s->open_slots.at[i];
        r->slots[slot] = Py_XNewRef(s->slot_values[slot]);
    }
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

/* The slots are all empty, before and after. */
int
fxjit_settled_holds(run *r)
{
    tree *t = r->t;
    settled *s = t->settled;
    if (t->scanning) {
        return 0; /* below a look-up of a check of this very tree, or beside one */
    }
    int holds = fxjit_conditions_hold(r, 0, t->num_early);
    if (holds != 1) {
        return holds;
    }
    if (!notes_hold(r, s)) {
        notes_failed(t, s->hits);
        fxjit_settled_free(t);
        return 0;
    }
    t->scanning = 1; /* the notes stay */
    holds = rest_holds(r, s);
    for (int i = 0; i < s->open_slots.n; i++) {
        Py_CLEAR(r->slots[s->open_slots.at[i]]);
    }
    t->scanning = 0;
    s->hits += holds == 1;
    return holds;
}

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
