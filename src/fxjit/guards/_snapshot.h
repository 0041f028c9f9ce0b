/* The snapshot of a guard tree when a full check held, for _snapshot.c, which takes it, and _fast_path.c, which checks by
 * them and says what they mean. */
#ifndef FXJIT_GUARDS_SNAPSHOT_H
#define FXJIT_GUARDS_SNAPSHOT_H

#include "../cpython_compat.h"

#include "_walk.h"
#include "_watch.h"

#define FEW_WALKED 8 /* objects that a condition compares with those recorded */

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
    const tensor_kind *kind; /* an index while the snapshot is taken */
} tensor_snapshot;

typedef struct {
    int node;
    PyObject *ref; /* weak: the object is alive and at its address, or the snapshot means nothing */
    PyObject *obj;
} anchor;

typedef struct {
    int node;
    PyObject *parent; /* borrowed: alive once the snapshot holds */
} deferred;

/* Of a condition that only has to compare the few objects that were walked with the rest. */
typedef struct {
    int condition, slot;
} walked_slot;

enum { NODE_PLAIN, NODE_ABOVE, NODE_ANCHOR };
enum { CHECK_FULLY, CHECK_NOT, CHECK_WALKED };

#define LIST(item) \
    struct {       \
        item *at;  \
        int n, room; \
    }

struct fxjit_snapshot {
    LIST(word) words;
    LIST(word) versions; /* those that may be read at any time */
    uint64_t changes;    /* of watched dicts, when the versions were last compared */
    LIST(fxjit_watched *) watched;
    LIST(PyObject *) owners; /* for each word, the dict or list it is about; NULL: neither. Not to be looked into */
    LIST(lookup) lookups;
    LIST(tensor_snapshot) tensors;
    LIST(tensor_kind) kinds;
    LIST(anchor) anchors;
    LIST(deferred) later;
    LIST(PyObject *) constants; /* strong references to those that nothing recorded keeps alive */
    LIST(PyObject *) types; /* weak references */
    LIST(PyTypeObject *) type_pointers;
    LIST(int) open_slots; /* that a check fills */
    LIST(walked_slot) walked;
    char *node_kinds;
    PyObject **slot_values; /* borrowed; NULL: filled by walking */
    char *how;              /* each condition is checked */
    PyObject **distinct; /* the objects of slot_values, by address */
    size_t distinct_size;
    Py_ssize_t hits;
};

typedef struct fxjit_snapshot snapshot;

/* A snapshot of this tree, or NULL: it is too small, not enough of it can be recorded, or there was no memory. */
snapshot *fxjit_snapshot_take(run *r);
void fxjit_snapshot_free(snapshot *s);

static inline int
is_restless(const tree *t, PyObject *dict)
{
    for (int i = 0; i < t->num_restless; i++) {
        if (t->restless[i] == dict) {
            return 1;
        }
    }
    return 0;
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

static inline size_t
place_of(PyObject *obj, size_t size)
{
    return (size_t)(((uintptr_t)obj >> 4) * 0x9E3779B97F4A7C15u >> 20) & (size - 1);
}

static inline int
is_recorded(const snapshot *s, PyObject *obj)
{
    size_t place = place_of(obj, s->distinct_size);
    while (s->distinct[place] != NULL && s->distinct[place] != obj) {
        place = (place + 1) & (s->distinct_size - 1);
    }
    return s->distinct[place] != NULL;
}

#endif
