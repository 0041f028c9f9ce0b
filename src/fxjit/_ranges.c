/* Ranges (_ranges.h): begun and ended through torch's C shim where a profiler watches, and counted by name where that is on. */
#include <Python.h>

#include "_ranges.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "_module.h"
#include "_tensor.h"

typedef int32_t (*begin_fn)(const char *, void *, void *const *, uint64_t, void **);

static bool (*profiler_enabled)(void); /* torch::profiler::impl::profilerEnabled() */
static begin_fn begin;
static int32_t (*end)(void *);

/* Calls of one name, and the nanoseconds they took. */
typedef struct count_s {
    struct count_s *next;
    uint64_t calls, nanoseconds;
    char *library; /* NULL: no kernel */
    char name[];
} count_t;

typedef struct {
    void *shown; /* the profiler's; NULL: none */
    count_t *count; /* NULL: not counted */
    uint64_t start;
} range_t;

static int counting;
static count_t *counts;

/* Looked up once the shim is ready; where this torch does not export them all, nothing is shown. */
static int
resolve(void)
{
    static int asked;
    if (!asked && fxjit_shim.ready) {
        *(void **)&begin = fxjit_torch_symbol("aoti_record_function_start");
        *(void **)&end = fxjit_torch_symbol("aoti_record_function_end");
        if (begin != NULL && end != NULL) {
            *(void **)&profiler_enabled = fxjit_torch_symbol("_ZN5torch8profiler4impl15profilerEnabledEv");
        }
        asked = 1;
    }
    return profiler_enabled != NULL;
}

static int
shown(void)
{
    return resolve() && profiler_enabled();
}

int
fxjit_profiled(void)
{
    return counting || shown();
}

static uint64_t
now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static int
same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* A name that was counted lately stands in front. */
static count_t *
count_of(const char *name, const char *library)
{
    for (count_t **at = &counts; *at != NULL; at = &(*at)->next) {
        count_t *found = *at;
        if (strcmp(found->name, name) == 0 && same(found->library, library)) {
            *at = found->next;
            found->next = counts;
            return counts = found;
        }
    }
    count_t *made = PyMem_RawCalloc(1, sizeof(count_t) + strlen(name) + 1);
    if (made != NULL) {
        strcpy(made->name, name);
        if (library != NULL && (made->library = PyMem_RawMalloc(strlen(library) + 1)) != NULL) {
            strcpy(made->library, library);
        }
        made->next = counts;
        counts = made;
    }
    return made;
}

void *
fxjit_begin_range(const char *name, const char *library)
{
    range_t *range = PyMem_RawCalloc(1, sizeof(range_t));
    if (range == NULL) {
        return NULL;
    }
    if (shown() && begin(name, NULL, NULL, 0, &range->shown) != 0) {
        range->shown = NULL;
    }
    if (counting) {
        range->count = count_of(name, library);
        range->start = now();
    }
    return range;
}

void
fxjit_end_range(void *ended)
{
    range_t *range = ended;
    if (range == NULL) {
        return;
    }
    if (range->count != NULL) {
        range->count->calls++;
        range->count->nanoseconds += now() - range->start;
    }
    if (range->shown != NULL) {
        end(range->shown);
    }
    PyMem_RawFree(range);
}

/* -- the module ----------------------------------------------------------------------------------------------------*/

static PyObject *
count_ranges(PyObject *module, PyObject *on)
{
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0) {
        return NULL;
    }
    counting = wanted;
    Py_RETURN_NONE;
}

static PyObject *
counted_ranges(PyObject *module, PyObject *ignored)
{
    PyObject *rows = PyList_New(0);
    for (count_t *at = counts; rows != NULL && at != NULL; at = at->next) {
        PyObject *row = Py_BuildValue("(zsKd)", at->library, at->name, (unsigned long long)at->calls, (double)at->nanoseconds * 1e-9);
        if (row == NULL || PyList_Append(rows, row) < 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    return rows;
}

static PyMethodDef methods[] = {
    {"count_ranges", count_ranges, METH_O,
     "count_ranges(on)\n--\n\nCounts the calls of compiled graphs and of their kernels from now on, or no longer."},
    {"counted_ranges", counted_ranges, METH_NOARGS,
     "counted_ranges()\n--\n\nWhat was counted in this process: (library of a kernel or None, name, calls, seconds) each."},
    {NULL, NULL, 0, NULL},
};

int
fxjit_ranges_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
