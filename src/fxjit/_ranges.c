/* Ranges that torch's profiler shows (_ranges.h), begun and ended through torch's C shim. */
#include "_ranges.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "_tensor.h"

typedef int32_t (*begin_fn)(const char *, void *, void *const *, uint64_t, void **);

static bool (*profiler_enabled)(void); /* torch::profiler::impl::profilerEnabled() */
static begin_fn begin;
static int32_t (*end)(void *);

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

int
fxjit_profiled(void)
{
    return resolve() && profiler_enabled();
}

void *
fxjit_begin_range(const char *name)
{
    void *range = NULL;
    return begin(name, NULL, NULL, 0, &range) == 0 ? range : NULL;
}

void
fxjit_end_range(void *range)
{
    if (range != NULL) {
        end(range);
    }
}
