/* policy.h with an allocator that counts. */
#include <stdlib.h>
static size_t allocated, most_allocated, allocations;

static void *counted_malloc(size_t size) {
    size_t *block = malloc(size + 16);
    if (!block) return NULL;
    *block = size, allocated += size, allocations++;
    if (allocated > most_allocated) most_allocated = allocated;
    return (char *)block + 16;
}

static void counted_free(void *block) {
    if (!block) return;
    block = (char *)block - 16, allocated -= *(size_t *)block;
    free(block);
}

#define POLICY_MALLOC counted_malloc
#define POLICY_FREE counted_free
#define POLICY_IMPLEMENTATION
#include "policy.h"
