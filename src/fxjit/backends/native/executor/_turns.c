/* Which of some libraries is faster (runtime/own_products.py, own_convolutions.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>

#include "_gemm.h"
#include "_turns.h"

/* Of this thread's time on the processor, which what else runs on the machine changes little. */
static int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void
take_turns(void *data)
{
    turns_t *turns = data;
    for (int way = 0; way < WAYS; way++) {
        turns->times[way] = INT64_MAX;
    }
    for (int turn = 0; turn < turns->turns; turn++) {
        for (int way = 0; way < WAYS && turns->ways[way] != NULL && !turns->failed; way++) {
            int64_t start = nanoseconds();
            turns->failed = turns->ways[way](turns->data) < 0;
            turns->times[way] = Py_MIN(turns->times[way], nanoseconds() - start);
        }
    }
}

void
fxjit_take_turns(turns_t *turns)
{
    fxjit_on_one_thread(take_turns, turns);
}
