/* The dtypes and operands that every driver speaks. */
#ifndef QK_TYPES_H
#define QK_TYPES_H

#include <stdint.h>

typedef enum { QK_U8, QK_S8, QK_I32, QK_F16, QK_BF16, QK_F32, QK_F64, QK_DTYPE_COUNT } qk_dtype;

static inline int64_t qk_itemsize(qk_dtype t) {
    static const int8_t sizes[QK_DTYPE_COUNT] = {1, 1, 4, 2, 2, 4, 8};
    return sizes[t];
}

/* An operand after qk_coalesce: dimensions that merge are merged, so few are left. Strides are in bytes. */
#define QK_MAX_NDIM 16

typedef struct {
    char *data;
    qk_dtype dtype;
    int64_t strides[QK_MAX_NDIM];
} qk_operand;

#endif
