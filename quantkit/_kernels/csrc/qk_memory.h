/* Copies between packed buffers and strided memory. */
#ifndef QK_MEMORY_H
#define QK_MEMORY_H

#include <stdint.h>
#include <string.h>

/* to[i * to_stride] = from[i * from_stride] for elements of `size` bytes, 1, 2, 4 or 8. */
static inline void qk_copy_strided(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n,
                                   int64_t size) {
    switch (size) {
        case 1: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 1); break;
        case 2: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 2); break;
        case 4: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 4); break;
        default: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 8); break;
    }
}

#endif
