#include <stdlib.h>
#include <string.h>
#include "ring.h"

/* Bytes between one writer and one reader, in a circle. */
struct ring {
    unsigned char *bytes;
    size_t capacity;
    size_t head;
    size_t tail;
};

struct ring *ring_new(size_t capacity)
{
    struct ring *ring = calloc(1, sizeof *ring);
    ring->bytes = malloc(capacity);
    ring->capacity = capacity;
    return ring;
}

/* Puts as much as there is room for and says how much that was. */
size_t ring_push(struct ring *ring, const unsigned char *from, size_t count)
{
    size_t room = ring->capacity - (ring->head - ring->tail);
    if (count > room)
        count = room;
    for (size_t at = 0; at < count; at++)
        ring->bytes[(ring->head + at) % ring->capacity] = from[at];
    ring->head += count;
    return count;
}

void ring_free(struct ring *ring)
{
    free(ring->bytes);
    free(ring);
}
