/* Dicts that have not changed. On 3.11 a dict has a version of its own, and there is nothing to do. From 3.12 CPython
 * calls us before a watched dict changes or goes: the watched dicts are in a table by address, each with a number that
 * moves on. The callback runs no Python code and allocates nothing. */
#include "../cpython_compat.h"

#include "_watch.h"

#if !FX_DICTS_ARE_WATCHED

fxjit_watched *
fxjit_watch(PyObject *dict)
{
    return (fxjit_watched *)dict;
}

void
fxjit_unwatch(fxjit_watched *watched)
{
    (void)watched;
}

const uint64_t *
fxjit_watched_version(fxjit_watched *watched)
{
    return fx_dict_version((PyObject *)watched);
}

PyObject *
fxjit_watched_dict(fxjit_watched *watched)
{
    return (PyObject *)watched;
}

const uint64_t *
fxjit_watched_changes(void)
{
    return NULL;
}

#else

struct fxjit_watched {
    PyObject *dict; /* NULL: gone */
    uint64_t version;
    Py_ssize_t users;
    fxjit_watched *next; /* in the same bucket */
};

static struct {
    int id; /* of the watcher, plus one */
    uint64_t changes;
    fxjit_watched **buckets;
    size_t num_buckets, num_watched; /* a power of two */
} all;

static size_t
bucket_of(PyObject *dict)
{
    return (size_t)(((uintptr_t)dict >> 4) * 0x9E3779B97F4A7C15u >> 20) & (all.num_buckets - 1);
}

static fxjit_watched **
place_of(PyObject *dict)
{
    fxjit_watched **place = &all.buckets[bucket_of(dict)];
    while (*place != NULL && (*place)->dict != dict) {
        place = &(*place)->next;
    }
    return place;
}

/* Takes a dict out of the table; its number stays readable for those who have it. */
static void
forget(fxjit_watched **place)
{
    fxjit_watched *gone = *place;
    *place = gone->next;
    gone->dict = NULL;
    all.num_watched--;
}

static int
dict_changes(PyDict_WatchEvent event, PyObject *dict, PyObject *Py_UNUSED(key), PyObject *Py_UNUSED(value))
{
    fxjit_watched **place = all.num_watched == 0 ? NULL : place_of(dict);
    if (place != NULL && *place != NULL) {
        (*place)->version++;
        all.changes++;
        if (event == PyDict_EVENT_DEALLOCATED) {
            forget(place);
        }
    }
    return 0;
}

static int
make_room(void)
{
    if (all.num_watched < all.num_buckets) {
        return 0;
    }
    size_t before = all.num_buckets;
    fxjit_watched **old = all.buckets, **larger = PyMem_Calloc(before ? 2 * before : 256, sizeof(fxjit_watched *));
    if (larger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    all.buckets = larger;
    all.num_buckets = before ? 2 * before : 256;
    for (size_t i = 0; i < before; i++) {
        for (fxjit_watched *next, *at = old[i]; at != NULL; at = next) {
            next = at->next;
            fxjit_watched **bucket = &all.buckets[bucket_of(at->dict)];
            at->next = *bucket;
            *bucket = at;
        }
    }
    PyMem_Free(old);
    return 0;
}

static int
watcher(void)
{
    if (all.id == 0) {
        int id = PyDict_AddWatcher(dict_changes);
        if (id < 0) {
            PyErr_Clear(); /* the few that CPython has room for are taken */
            return -1;
        }
        all.id = id + 1;
    }
    return all.id - 1;
}

fxjit_watched *
fxjit_watch(PyObject *dict)
{
    int id = watcher();
    if (id < 0 || fx_dict_separate(dict) < 0 || make_room() < 0) {
        return NULL;
    }
    fxjit_watched **place = place_of(dict);
    if (*place != NULL) {
        (*place)->users++;
        return *place;
    }
    fxjit_watched *watched = PyMem_Calloc(1, sizeof(fxjit_watched));
    if (watched == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (PyDict_Watch(id, dict) < 0) {
        PyErr_Clear();
        PyMem_Free(watched);
        return NULL;
    }
    watched->dict = dict;
    watched->users = 1;
    *place = watched;
    all.num_watched++;
    return watched;
}

void
fxjit_unwatch(fxjit_watched *watched)
{
    if (--watched->users > 0) {
        return;
    }
    if (watched->dict != NULL) {
        PyObject *dict = watched->dict;
        forget(place_of(dict));
        (void)PyDict_Unwatch(all.id - 1, dict); /* it fails only for what was never watched */
    }
    PyMem_Free(watched);
}

const uint64_t *
fxjit_watched_version(fxjit_watched *watched)
{
    return &watched->version;
}

PyObject *
fxjit_watched_dict(fxjit_watched *watched)
{
    return watched->dict;
}

const uint64_t *
fxjit_watched_changes(void)
{
    return &all.changes;
}

#endif
