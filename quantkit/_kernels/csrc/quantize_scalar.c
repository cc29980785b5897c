/* quantize, portable: also the statement in C of what the vector kernels compute. */
#include "qk_half.h"
#include "qk_kernels.h"

/* Adding and taking away 1.5 * 2^p rounds half to even at the unit, for magnitudes far below it. */
#define ROUND_F32(t) (((t) + 0x1.8p23f) - 0x1.8p23f)
#define ROUND_F64(t) (((t) + 0x1.8p52) - 0x1.8p52)

/* NaN fails the first comparison and becomes the lowest code. Bounds are whole numbers, so clamping before rounding
 * gives what saturating after it would. */
#define QUANTIZE(real, load, code, qmin, qmax, ROUND)                                             \
    const code *const end = (const code *)y + n;                                                  \
    const int step = p->vector;                                                                   \
    const float *scale = p->scale;                                                                \
    code *out = y;                                                                                \
    if (p->zero_point_f) {                                                                        \
        const float *zero_point = p->zero_point_f;                                                \
        for (; out < end; out++, in++, scale += step, zero_point += step) {                       \
            real t = (real)load(*in) / (real)*scale + (real)*zero_point;                          \
            t = t >= (real)(qmin) ? t : (real)(qmin);                                             \
            t = t <= (real)(qmax) ? t : (real)(qmax);                                             \
            *out = (code)(int32_t)ROUND(t);                                                       \
        }                                                                                         \
    } else {                                                                                      \
        const int32_t *zero_point = p->zero_point;                                                \
        for (; out < end; out++, in++, scale += step, zero_point += step) {                       \
            const real lo = (real)((qmin) - *zero_point), hi = (real)((qmax) - *zero_point);      \
            real t = (real)load(*in) / (real)*scale;                                              \
            t = t >= lo ? t : lo;                                                                 \
            t = t <= hi ? t : hi;                                                                 \
            *out = (code)((int32_t)ROUND(t) + *zero_point);                                       \
        }                                                                                         \
    }

#define SAME(v) (v)
#define SLOT(src, stored, real, load, dst, code, qmin, qmax, ROUND)                               \
    void qk_quantize_##src##_##dst##_scalar(const void *x, void *y, int64_t n, const qk_affine *p) { \
        const stored *in = x;                                                                     \
        QUANTIZE(real, load, code, qmin, qmax, ROUND)                                             \
    }
#define SLOTS(src, stored, real, load, ROUND)                                                     \
    SLOT(src, stored, real, load, u8, uint8_t, 0, 255, ROUND)                                     \
    SLOT(src, stored, real, load, s8, int8_t, -128, 127, ROUND)

SLOTS(f16, uint16_t, float, qk_f16_f32, ROUND_F32)
SLOTS(bf16, uint16_t, float, qk_bf16_f32, ROUND_F32)
SLOTS(f32, float, float, SAME, ROUND_F32)
SLOTS(f64, double, double, SAME, ROUND_F64)
