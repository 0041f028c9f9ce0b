/* Dicts that have not changed: each dict that is watched has a number, somewhere in memory, that changes whenever the
 * dict does and never comes back. _watch.c; used by _fast_path.c. */
#ifndef FXJIT_GUARDS_WATCH_H
#define FXJIT_GUARDS_WATCH_H

#include <Python.h>

#include <stdint.h>

typedef struct fxjit_watched fxjit_watched;

/* Watches an exact dict or OrderedDict. NULL: this dict cannot be watched (perhaps with an exception: MemoryError). */
fxjit_watched *fxjit_watch(PyObject *dict);
void fxjit_unwatch(fxjit_watched *watched);
/* The number. Where versions are the dict's own memory it may be read only while the dict is known to be there. */
const uint64_t *fxjit_watched_version(fxjit_watched *watched);
/* Its address, to compare with only; NULL when it is gone. */
PyObject *fxjit_watched_dict(fxjit_watched *watched);
/* Counts changes of all watched dicts, where versions may be read at any time; else NULL. */
const uint64_t *fxjit_watched_changes(void);

#endif
