/* Weights that products of few rows read over and over, as decoding does, are moved to large pages: the reading of their memory bounds
 * such products, or shows in their time (of 128 rows a fourteenth), and on pages of 4 KB the processor fetches ahead to the end of each.
 * Asked for where the memory lies, whose addresses and values stay. Two such weights may share a page with each other and with what
 * lies beside them. Touched under the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "_program.h"

#if defined(__linux__) && defined(MADV_HUGEPAGE)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1; older ones say that it is no advice */
#endif
#define SETTING "/sys/kernel/mm/transparent_hugepage/enabled"

/* Words of pagemap. */
#define PRESENT (UINT64_C(1) << 63)
#define OF_FILE (UINT64_C(1) << 61)
#define EXCLUSIVE (UINT64_C(1) << 56)

enum {
    SMALL_PAGE = 1 << 12,
    PAGE_BITS = 21,
    LARGE_PAGE = 1 << PAGE_BITS,
    PLACES = 1 << 15,       /* pages that are counted: 64 GB */
    READS = 64,             /* after which a page is moved, */
    FORGOTTEN = 1 << 16,    /* and after which it is looked at again, since other weights may lie there */
    LEAST_BYTES = 128 << 10, /* of less malloc gives what is no mapping of its own */
    SHARE = 20,             /* of the time that passes one part at most goes into moving */
};

typedef struct {
    uintptr_t page; /* addresses without their last bits */
    uint32_t reads;
} place_t;

static place_t places[PLACES];
static int64_t resting_until;
static int is_wanted = 1; /* config.large_pages */

static int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether the system leaves the choice to programs: moving pages would not heed a `never`. */
static int
may_move(void)
{
    static int known = -1;
    if (known < 0) {
        char text[64] = "";
        FILE *file = fopen(SETTING, "r");
        known = file != NULL && fgets(text, sizeof text, file) != NULL && strstr(text, "[never]") == NULL;
        if (file != NULL) {
            (void)fclose(file);
        }
    }
    return known;
}

/* Whether no other process has any of a large page's small ones, and no file: of those that forks share moving makes copies. */
static int
is_alone(uintptr_t page)
{
    uint64_t small[LARGE_PAGE / SMALL_PAGE];
    int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    ssize_t got = pread(file, small, sizeof small, (off_t)(page * sizeof small));
    (void)close(file);
    int alone = got == (ssize_t)sizeof small && sysconf(_SC_PAGESIZE) == SMALL_PAGE;
    for (int i = 0; i < LARGE_PAGE / SMALL_PAGE && alone; i++) {
        alone = !(small[i] & PRESENT) || ((small[i] & EXCLUSIVE) && !(small[i] & OF_FILE));
    }
    return alone;
}

/* Counts a read of the pages from one to another; the first of those that are to be moved, 0 where there is none. */
static uintptr_t
count(uintptr_t page, uintptr_t last)
{
    uintptr_t found = 0;
    for (; page <= last; page++) {
        place_t *place = &places[page % PLACES];
        if (place->page != page || place->reads == FORGOTTEN) {
            *place = (place_t){page, 0};
        }
        if (place->reads != READS) {
            place->reads++;
        }
        else if (found == 0) {
            found = page;
        }
    }
    return found;
}

void
fxjit_note_weight_read(const void *data, int64_t bytes)
{
    if (bytes < LEAST_BYTES || !is_wanted || !may_move()) {
        return;
    }
    uintptr_t page = count((uintptr_t)data >> PAGE_BITS, ((uintptr_t)data + (uintptr_t)bytes - 1) >> PAGE_BITS);
    int64_t start;
    if (page == 0 || (start = nanoseconds()) < resting_until) {
        return;
    }
    places[page % PLACES].reads++;
    Py_BEGIN_ALLOW_THREADS
    /* Either may say no, which is no error: the memory stays as it is. The first leaves it to the kernel's own thread. */
    void *memory = (void *)(page << PAGE_BITS);
    (void)madvise(memory, LARGE_PAGE, MADV_HUGEPAGE);
    if (is_alone(page)) {
        (void)madvise(memory, LARGE_PAGE, MADV_COLLAPSE);
    }
    Py_END_ALLOW_THREADS
    int64_t now = nanoseconds();
    resting_until = now + SHARE * (now - start);
}

static void
want(int wanted)
{
    is_wanted = wanted;
}

#else

void
fxjit_note_weight_read(const void *data, int64_t bytes)
{
    (void)data;
    (void)bytes;
}

static void
want(int wanted)
{
    (void)wanted;
}

#endif

PyObject *
fxjit_want_large_pages(PyObject *Py_UNUSED(module), PyObject *wanted)
{
    int value = PyObject_IsTrue(wanted);
    if (value < 0) {
        return NULL;
    }
    want(value);
    Py_RETURN_NONE;
}
