/* Two ways to calculate the same, timed in turns: _turns.c. */
#ifndef FXJIT_TURNS_H
#define FXJIT_TURNS_H

#include <stdint.h>

typedef struct {
    int (*ways[2])(void *); /* called with `data`; below 0 where it fails, which ends the trial */
    void *data;
    int turns, failed;
    int64_t times[2]; /* the shortest call of each, in nanoseconds of the processor */
} turns_t;

/* On one thread, without the GIL. */
void fxjit_take_turns(turns_t *turns);

#endif
