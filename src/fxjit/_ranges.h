/* Ranges that torch's profiler shows: compiled graphs, and the kernels they launch, which no dispatcher sees. */
#ifndef FXJIT_RANGES_H
#define FXJIT_RANGES_H

/* Whether a profiler watches this thread. */
int fxjit_profiled(void);
/* Begins a range of that name; NULL where there is none to end. */
void *fxjit_begin_range(const char *name);
void fxjit_end_range(void *range);

#endif
