/* The dtypes that every driver speaks. */
#ifndef QK_TYPES_H
#define QK_TYPES_H

#include <stdint.h>

typedef enum { QK_U8, QK_S8, QK_I32, QK_F16, QK_BF16, QK_F32, QK_F64, QK_DTYPE_COUNT } qk_dtype;

static inline int64_t qk_itemsize(qk_dtype t) {
    static const int8_t sizes[QK_DTYPE_COUNT] = {1, 1, 4, 2, 2, 4, 8};
    return sizes[t];
}

#endif
