/* The driver of dynamic quantization: range, parameters and codes in one call, because the codes depend on the range. */
#ifndef QK_DYNAMIC_H
#define QK_DYNAMIC_H

#include "qk_affine.h"

typedef struct {
    qk_affine_call affine; /* to uint8; its scale and zero point are found here */
    float *scale;          /* where to leave them */
    uint8_t *zero_point;
    int empty; /* x has no elements: only the parameters are left */
} qk_dynamic_call;

/* The parameters for values from `low` to `high`. */
void qk_dynamic_choose(double low, double high, float *scale, int32_t *zero_point);

/* Returns 0, -1 without memory, or how many values are NaN or infinite; nothing is written then. */
int qk_dynamic_run(const qk_dynamic_call *call);

#endif
