/* The driver of quantize and dequantize: shapes, strides, channels and chunks around the micro-kernels. */
#ifndef QK_AFFINE_H
#define QK_AFFINE_H

#include "qk_layout.h"
#include "qk_types.h"

typedef struct {
    qk_layout layout; /* operand 0 is x, operand 1 is y */
    const char *x;
    char *y;
    qk_dtype x_dtype, y_dtype;
    /* One value, or one a channel where layout.axis >= 0; exactly one of the zero points is set. */
    const float *scale;
    const int32_t *zero_point;
    const float *zero_point_f;
} qk_affine_call;

/* Whether quantize or dequantize has a kernel from x_dtype to y_dtype. */
int qk_affine_supported(qk_dtype x_dtype, qk_dtype y_dtype);

/* Returns 0, or -1 where scratch memory ran out (nothing or part of y is written then). */
int qk_affine_run(const qk_affine_call *call);

#endif
