/* float16 and bfloat16 to and from float32 without hardware help; round half even, as the hardware does. */
#ifndef QK_HALF_H
#define QK_HALF_H

#include <stdint.h>
#include <string.h>

static inline float qk_bits_f32(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t qk_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float qk_bf16_f32(uint16_t h) { return qk_bits_f32((uint32_t)h << 16); }

static inline float qk_f16_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    if (rest >= 0x0f800000) return qk_bits_f32(sign | rest | 0x70000000); /* inf and NaN: exponent 255 */
    /* The exponent is rebiased by an exact product with a power of two, which serves denormals as well. */
    return qk_bits_f32(sign | qk_f32_bits(qk_bits_f32(rest) * 0x1p112f));
}

/* Never called with NaN: products of finite codes and finite scales. */
static inline uint16_t qk_f32_bf16(float f) {
    const uint32_t bits = qk_f32_bits(f);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline uint16_t qk_f32_f16(float f) {
    const uint32_t bits = qk_f32_bits(f), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more: infinity */
    if (magnitude < 0x38800000) {                                  /* denormal in float16: a step is 2^-24 */
        const float steps = qk_bits_f32(magnitude) + 0.5f;         /* adding 0.5 rounds to multiples of 2^-24 */
        return (uint16_t)(sign | (qk_f32_bits(steps) - 0x3f000000));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}

#endif
