/* Ways to calculate the same, timed in turns: _turns.c. */
#ifndef FXJIT_TURNS_H
#define FXJIT_TURNS_H

#include <stdint.h>

enum { WAYS = 3 };

typedef struct {
    int (*ways[WAYS])(void *); /* called with `data`, NULL where there are fewer; below 0 where it fails, which ends the trial */
    void *data;
    int turns, failed;
    int64_t times[WAYS]; /* the shortest call of each, in nanoseconds of the processor */
} turns_t;

/* On one thread, without the GIL. */
void fxjit_take_turns(turns_t *turns);

#endif
