/* Ranges of compiled graphs and of the kernels they launch, which no dispatcher sees: shown by torch's profiler, and counted for the
 * page of a run (fxjit.report). */
#ifndef FXJIT_RANGES_H
#define FXJIT_RANGES_H

/* Whether a profiler watches this thread, or ranges are counted. */
int fxjit_profiled(void);
/* Begins a range of that name, of a kernel in that library (NULL: none); NULL where there is none to end. Needs the GIL, as the end
 * does. */
void *fxjit_begin_range(const char *name, const char *library);
void fxjit_end_range(void *range);

#endif
