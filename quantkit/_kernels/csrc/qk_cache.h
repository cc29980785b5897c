/* Sizes of the caches, where drivers choose by them. */
#ifndef QK_CACHE_H
#define QK_CACHE_H

#include <stdint.h>

/* Bytes of the last level, shared by the cores; a common size where the system does not say. */
int64_t qk_last_level_cache(void);

#endif
