/* Arenas kept between calls: a program's memory for intermediate values is not given back at the end of a call but to the next one
 * that wants as much, of whatever program. Memory that was used before has its pages: on a virtual machine the exception by which
 * the kernel hands one out takes longer than a pass over it (2.7 us for 4 KB). Touched under the GIL alone. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "_program.h"

#define ARENA_ALIGNMENT 128
#define LARGE_PAGE (1 << 21)
#define LARGE_PAGES_AT_MOST (64 << 20) /* bytes */
#define LARGE (1 << 20)                /* bytes from which an arena asks for large pages */
/* malloc keeps less than this by itself. */
#define KEPT_LEAST (128 << 10)
/* How many are kept, and their bytes together: as much as one program's arena may have (memory.py). */
#define KEPT 4
#define KEPT_MOST (64 << 20)

typedef struct {
    void *data;
    int64_t bytes;
    uint64_t given_back; /* when, in calls */
} arena_t;

static arena_t kept[KEPT];
static uint64_t now;

/* Most of the time of a pass over large new memory is the kernel handing out its pages: asks for large ones, which change
 * nothing but that. Pages that do not lie in the memory as a whole stay as they are. Not for hundreds of megabytes: on a
 * virtual machine that gives its free large pages back to its host, each of them is asked for anew (400 MB: 6 s for 1). */
void
fxjit_advise_large_pages(void *data, int64_t bytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)data + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) & ~(uintptr_t)(LARGE_PAGE - 1);
    if (first < end && bytes <= LARGE_PAGES_AT_MOST) {
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE); /* a kernel without them says no, which is no error */
    }
#else
    (void)data;
    (void)bytes;
#endif
}

static void
drop(arena_t *arena)
{
    free(arena->data);
    arena->data = NULL;
    arena->bytes = 0;
}

/* The smallest of those kept that has room. Takes it out; NULL where there is none. */
static void *
take(int64_t bytes, int64_t *room)
{
    arena_t *best = NULL;
    for (int i = 0; i < KEPT; i++) {
        if (kept[i].data != NULL && kept[i].bytes >= bytes && (best == NULL || kept[i].bytes < best->bytes)) {
            best = &kept[i];
        }
    }
    if (best == NULL) {
        return NULL;
    }
    void *data = best->data;
    *room = best->bytes;
    best->data = NULL;
    best->bytes = 0;
    return data;
}

void *
fxjit_take_arena(int64_t bytes, int64_t *room)
{
    void *arena = bytes >= KEPT_LEAST ? take(bytes, room) : NULL;
    if (arena != NULL) {
        return arena;
    }
    *room = bytes;
    if (posix_memalign(&arena, ARENA_ALIGNMENT, (size_t)bytes) != 0) {
        PyErr_NoMemory();
        return NULL;
    }
    if (bytes >= LARGE) {
        fxjit_advise_large_pages(arena, bytes);
    }
    return arena;
}

void
fxjit_give_arena(void *data, int64_t room)
{
    if (room < KEPT_LEAST || room > KEPT_MOST) {
        free(data);
        return;
    }
    /* Out go those that were given back longest ago, until there is a place and room. */
    for (;;) {
        int64_t total = room;
        arena_t *place = NULL, *oldest = NULL;
        for (int i = 0; i < KEPT; i++) {
            total += kept[i].bytes;
            if (kept[i].data == NULL) {
                place = &kept[i];
            }
            else if (oldest == NULL || kept[i].given_back < oldest->given_back) {
                oldest = &kept[i];
            }
        }
        if (place != NULL && total <= KEPT_MOST) {
            *place = (arena_t){data, room, ++now};
            return;
        }
        drop(oldest);
    }
}

PyObject *
fxjit_drop_arenas(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    int64_t bytes = 0;
    for (int i = 0; i < KEPT; i++) {
        bytes += kept[i].bytes;
        drop(&kept[i]);
    }
    return PyLong_FromLongLong(bytes);
}
