/* dequantize, portable: x = (q - zero_point) * scale. */
#include "qk_half.h"
#include "qk_kernels.h"

/* The difference wraps in int32, as it does in every int32 instruction. */
#define MINUS(q, z) ((int32_t)((uint32_t)(int32_t)(q) - (uint32_t)(z)))

#define DEQUANTIZE(code, real, out_t, store)                                                      \
    const int step = p->vector;                                                                   \
    const code *in = x;                                                                           \
    out_t *out = y;                                                                               \
    if (p->zero_point_f)                                                                          \
        for (int64_t i = 0; i < n; i++)                                                           \
            out[i] = store(((real)in[i] - (real)p->zero_point_f[i * step]) * (real)p->scale[i * step]); \
    else                                                                                          \
        for (int64_t i = 0; i < n; i++)                                                           \
            out[i] = store((real)MINUS(in[i], p->zero_point[i * step]) * (real)p->scale[i * step]);

#define SAME(v) (v)
#define SLOT(src, code, dst, real, out_t, store)                                                  \
    void qk_dequantize_##src##_##dst##_scalar(const void *x, void *y, int64_t n, const qk_affine *p) { \
        DEQUANTIZE(code, real, out_t, store)                                                      \
    }
#define SLOTS(src, code)                                                                          \
    SLOT(src, code, f16, float, uint16_t, qk_f32_f16)                                             \
    SLOT(src, code, bf16, float, uint16_t, qk_f32_bf16)                                           \
    SLOT(src, code, f32, float, float, SAME)                                                      \
    SLOT(src, code, f64, double, double, SAME)

SLOTS(u8, uint8_t)
SLOTS(s8, int8_t)
SLOTS(i32, int32_t)
