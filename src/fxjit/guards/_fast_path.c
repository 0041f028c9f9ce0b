/* The guard fast path: compares a snapshot of memory words with what they are now, in the place of the checks below an
 * object whose dicts have not changed since a full check held.
 *
 *   anchor    an object the frame names (a module, mostly), compared with the one of the full check
 *   words     below it: types, instance dicts, versions of dicts (_watch.c), sizes and items of lists, each a word of
 *             memory that must be as it was
 *   tensors   below it: each with what its TensorImpl must say, which tensors of one kind share
 *   lookups   items of dicts that change all the time, looked up one by one
 *   deferred  nodes below it that none of these speaks for; walked as usual
 *
 * An address speaks for an object only while the object cannot have been freed, and another made there: what is reached
 * through a dict or a class at its version, or through a tuple that is known to be the same, was alive all the time. Items of
 * lists, and of dicts that are looked into, were not: constants among them are held by the snapshot, of all others the type
 * is a word, and what is below is recorded by contents. Nothing that may hold a tensor is kept alive.
 *
 * A word is read only when those before it have shown that its memory is what it was: a dict at its version holds what it
 * held, an object at its type and instance dict has what it had. Where the versions are not the dicts' own memory they
 * come first, and one counter says that none of them moved. Reading all this runs no Python code. Whatever differs, or is
 * not known here, means a full check (_tree.c); after a difference the snapshot is dropped, and taken anew after some full
 * checks that held. */
#define PY_SSIZE_T_CLEAN
#include "../cpython_compat.h"

#include "_snapshot.h"

#define MAX_BACK_OFF 4096
#define LOOK_AHEAD 6 /* tensors */

int fxjit_fast_path_verify;

void
fxjit_fast_path_free(tree *t)
{
    snapshot *s = t->snapshot;
    t->snapshot = NULL;
    if (s != NULL) {
        fxjit_snapshot_free(s);
    }
}

/* Back-off: a snapshot costs about as much as some full checks, so one that did not last delays the next. */
static void
snapshot_failed(tree *t, Py_ssize_t hits)
{
    t->full_checks = 0;
    t->back_off = hits > t->back_off ? FIRST_BACK_OFF : Py_MIN(2 * t->back_off, MAX_BACK_OFF);
}

void
fxjit_take_snapshot(run *r)
{
    tree *t = r->t;
    if (t->scanning) {
        return;
    }
    snapshot *s = fxjit_snapshot_take(r);
    if (s == NULL) {
        snapshot_failed(t, 0);
        return;
    }
    fxjit_fast_path_free(t);
    t->snapshot = s;
}

/* A dict or list that changes while nothing of what is guarded does is looked into, in the next snapshot. */
static void
mark_restless(tree *t, PyObject *owner)
{
    if (owner == NULL || is_restless(t, owner)) {
        return;
    }
    int place = t->num_restless < MAX_RESTLESS ? t->num_restless++ : t->next_restless++ % MAX_RESTLESS;
    t->restless[place] = owner;
    t->back_off = FIRST_BACK_OFF;
}

static int
anchors_hold(const run *r, const snapshot *s)
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
first_changed(const snapshot *s)
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
versions_hold(tree *t, snapshot *s)
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
tensor_holds(const tensor_snapshot *record)
{
    const tensor_kind *kind = record->kind;
    if (Py_TYPE(record->tensor) != kind->type || fxjit_tensor_impl(record->tensor) != record->impl) {
        return 0;
    }
    const uint64_t *impl = record->impl;
    if ((impl[fxjit_shim.autograd_word] ^ (uint64_t)(uintptr_t)record->meta) | differs(kind->words, impl)) {
        return 0;
    }
    if (kind->requires_grad) {
        return record->meta[fxjit_shim.requires_grad_at] == 1;
    }
    return record->meta == NULL || !fxjit_shim.impl_requires_grad(impl);
}

static int
tensors_hold(const snapshot *s)
{
    const tensor_snapshot *at = s->tensors.at, *end = at + s->tensors.n;
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
snapshot_holds(run *r, snapshot *s)
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

/* The nodes below a node that has anchors among its children. */
static int
walk_others(run *r, const snapshot *s, int top)
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

/* Walking may run code that changes what the snapshot is of: what it needs is held first. */
static int
walk_deferred(run *r, const snapshot *s)
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

/* Objects that were walked against each other and those recorded, which are known to differ. An object recorded for a slot of
 * some other condition may be found too; the full check has the answer then. */
static int
walked_are_distinct(const run *r, const snapshot *s, int condition)
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
        if (is_recorded(s, obj)) {
            return 0;
        }
        walked[count++] = obj;
    }
    return 1;
}

static int
other_conditions_hold(run *r, const snapshot *s)
{
    const tree *t = r->t;
    for (int i = t->num_early; i < t->num_conditions; i++) {
        int holds = s->how[i] == CHECK_NOT      ? 1
                    : s->how[i] == CHECK_WALKED ? walked_are_distinct(r, s, i)
                                              : fxjit_condition_holds(r, i);
        if (holds != 1) {
            return holds;
        }
    }
    return 1;
}

static int
others_hold(run *r, const snapshot *s)
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
fxjit_fast_path_holds(run *r)
{
    tree *t = r->t;
    snapshot *s = t->snapshot;
    if (t->scanning) {
        return 0; /* below a look-up of a check of this very tree, or beside one */
    }
    int holds = fxjit_conditions_hold(r, 0, t->num_early);
    if (holds != 1) {
        return holds;
    }
    if (!snapshot_holds(r, s)) {
        snapshot_failed(t, s->hits);
        fxjit_fast_path_free(t);
        return 0;
    }
    t->scanning = 1; /* the snapshot stays */
    holds = others_hold(r, s);
    for (int i = 0; i < s->open_slots.n; i++) {
        Py_CLEAR(r->slots[s->open_slots.at[i]]);
    }
    t->scanning = 0;
    s->hits += holds == 1;
    return holds;
}

/* ---- module ---- */

static PyObject *
verify_fast_path(PyObject *Py_UNUSED(module), PyObject *value)
{
    int on = PyObject_IsTrue(value);
    if (on < 0) {
        return NULL;
    }
    PyObject *before = PyBool_FromLong(fxjit_fast_path_verify);
    fxjit_fast_path_verify = on;
    return before;
}

static PyMethodDef methods[] = {
    {"verify_fast_path", verify_fast_path, METH_O,
     PyDoc_STR("verify_fast_path(on) -> bool: compare each check that looked at versions with a full one; the previous")},
    {NULL, NULL, 0, NULL},
};

int
fxjit_fast_path_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
