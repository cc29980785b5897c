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
    /* One a channel where layout.axis >= 0: `scale` and one of the zero points are set. Else they are NULL, and the
     * values below count, so that the call is whole in itself. */
    const float *scale;
    const int32_t *zero_point;
    const float *zero_point_f;
    float scale_value, zero_point_f_value;
    int32_t zero_point_value;
    int has_float_zero_point;
} qk_affine_call;

/* Whether quantize or dequantize has a kernel from x_dtype to y_dtype. */
int qk_affine_supported(qk_dtype x_dtype, qk_dtype y_dtype);

/* Returns 0, or -1 where scratch memory ran out (nothing or part of y is written then). */
int qk_affine_run(const qk_affine_call *call);

#endif
