/* Memory that products pack their operands into, kept from product to product. */
#ifndef FXJIT_ROOMS_H
#define FXJIT_ROOMS_H

#include <stddef.h>
#include <stdlib.h>

/* A room of `bytes`, the same for all rooms that are kept together; NULL where there is none. */
static inline void *
take_room(void **kept, int count, size_t bytes)
{
    void *made = NULL;
    for (int i = 0; made == NULL && i < count; i++) {
        made = __atomic_exchange_n(&kept[i], NULL, __ATOMIC_ACQUIRE);
    }
    if (made == NULL && posix_memalign(&made, 64, bytes) != 0) {
        return NULL;
    }
    return made;
}

static inline void
give_room(void **kept, int count, void *room)
{
    for (int i = 0; room != NULL && i < count; i++) {
        void *none = NULL;
        if (__atomic_compare_exchange_n(&kept[i], &none, room, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            return;
        }
    }
    free(room);
}

#endif
